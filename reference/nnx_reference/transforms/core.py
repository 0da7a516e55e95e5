"""The way that objects take through every transform; the package's text draws it.

1. `Inputs` opens the arguments: Variables, Modules and other objects come out of their pytree and
   are flattened as one graph, so that what several arguments share is one thing. What remains are
   values: arrays, and the values of Variables.
2. In the transformed function of values, `Structure.run` builds the same objects anew around the
   traced values and calls the user's function. It knows the structure of the arguments alone, not
   the caller's own.
3. It then flattens what that leaves behind, inputs and outputs as one graph, and compares. An
   `Outcome` records the structure, which objects and Variables are those that went in, and which
   values are new; only these are carried out.
4. Outside, `Inputs.finish` writes them into the caller's own Variables and builds the output. An
   object that went in and came out is the caller's own.

An `Outcome` holds structure and no value, so it serves again for every call that runs the same
trace.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
from jax.tree_util import keystr

from nnx_reference.attributes import data, static
from nnx_reference.configuration import resolve_modes
from nnx_reference.exactness import exactly_equal
from nnx_reference.jax_private import current_trace
from nnx_reference.nodes import (
    build,
    child_table,
    delete_child,
    is_container,
    new_object,
    set_child,
)
from nnx_reference.pytree import CAPTURES, Key, Path, Pytree, key_order
from nnx_reference.tables import Flat, GraphDef, flatten, rebuild
from nnx_reference.variables import Variable, rebuilt_variable, variable_of

MISSING: Any = object()
"""Stands for the function of a transform that is used as a decorator."""

OUTPUT = "<output>"
"""The name of a function's output in errors; no argument can have it."""


def decorator(transform: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Makes a transform that gives, when called with options alone, a decorator."""

    @functools.wraps(transform)
    def call(function: Callable[..., Any] = MISSING, **options: Any) -> Callable[..., Any]:
        if function is MISSING:
            return functools.partial(call, **options)
        return transform(function, **options)

    return call


class Opened(NamedTuple):
    """A pytree down to its objects, which are leaves.

    Attributes:
      treedef: its structure.
      leaves: its leaves: objects, and arrays or whatever else JAX takes for a leaf.
      names: a name for each leaf, for errors: `model`, `batch['x'][0]`.
      is_object: whether each leaf is an object.
    """

    treedef: Any
    leaves: list[Any]
    names: list[str]
    is_object: tuple[bool, ...]

    def objects(self, of: Sequence[Any]) -> list[Any]:
        """Picks what belongs to objects, of what has an entry for each leaf."""
        return [x for x, flag in zip(of, self.is_object, strict=True) if flag]

    def arrays(self, of: Sequence[Any]) -> list[Any]:
        """Picks what belongs to other leaves."""
        return [x for x, flag in zip(of, self.is_object, strict=True) if not flag]


def is_object(value: Any) -> bool:
    """Tells whether a value has an identity that transforms keep: a Variable or a Pytree."""
    return isinstance(value, (Variable, Pytree))


def open_tree(tree: Any, name: Callable[[tuple[Any, ...]], str]) -> Opened:
    """Flattens a pytree down to its objects; `name` makes a leaf's name of its key path."""
    found, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)
    leaves = [leaf for _, leaf in found]
    return Opened(treedef, leaves, [name(path) for path, _ in found], tuple(map(is_object, leaves)))


def close_tree(
    treedef: Any, is_object: Sequence[bool], objects: Sequence[Any], arrays: Sequence[Any]
) -> Any:
    """Builds a pytree again of its objects and its other leaves."""
    remaining = {True: iter(objects), False: iter(arrays)}
    return jax.tree.unflatten(treedef, [next(remaining[flag]) for flag in is_object])


def argument_names(function: Callable[..., Any], count: int) -> list[str]:
    """Names a function's positional arguments as its parameters, as far as these are known."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    return [names[n] if n < len(names) else f"args[{n}]" for n in range(count)]


def spell(name: str, path: Path) -> str:
    """Spells a place in a named object as one would write it: `model.layers[0].kernel`."""
    return name + "".join(
        f".{k}" if isinstance(k, str) and k.isidentifier() else f"[{k!r}]" for k in path
    )


def spell_root(roots: Sequence[str], path: Path) -> str:
    """Spells the place that a path leads to from a list of named roots."""
    return spell(roots[cast(int, path[0])], path[1:])


class Outcome(NamedTuple):
    """What a run did, without any value.

    Attributes:
      treedef: the structure of the output.
      is_object: whether each of its leaves is an object.
      first_output: where the output's objects start among the roots of `graphdef`.
      graphdef: the structure of what is left. Its roots, a list, are the inputs' objects (with
        graph updates only), the Variables that went in, and the output's objects.
      node_origins: for each of its nodes, the number that it had in the inputs; None for a new one.
      leaf_origins: the same for its leaves.
      is_carried: for each of its leaves, whether its value is carried out; the others' are as they
        were.
    """

    treedef: Any
    is_object: tuple[bool, ...]
    first_output: int
    graphdef: GraphDef[Any]
    node_origins: tuple[int | None, ...]
    leaf_origins: tuple[int | None, ...]
    is_carried: tuple[bool, ...]

    def carrying(self, origins: Set[int]) -> Outcome:
        """Returns the outcome with some of the inputs' leaves carried out in any case."""
        flags = zip(self.is_carried, self.leaf_origins, strict=True)
        return self._replace(is_carried=tuple([flag or n in origins for flag, n in flags]))


class Run(NamedTuple):
    """What a run gives.

    Attributes:
      outcome: the structure.
      flat: what is left, flattened: the graph that `outcome.graphdef` describes.
      roots: the names of its roots; see `Outcome.graphdef`.
      output: the output, opened.
    """

    outcome: Outcome
    flat: Flat
    roots: list[str]
    output: Opened

    def carried(self, of: Sequence[Any]) -> list[Any]:
        """Picks what belongs to carried leaves, of what has an entry for each leaf of `flat`."""
        return [x for x, flag in zip(of, self.outcome.is_carried, strict=True) if flag]

    def carrying(self, origins: Set[int]) -> Run:
        """Returns the run with some of the inputs' leaves carried out in any case."""
        return self._replace(outcome=self.outcome.carrying(origins))

    def carried_values(self) -> list[Any]:
        """Lists the values of the carried leaves."""
        return [
            leaf._load() if isinstance(leaf, Variable) else leaf
            for leaf in self.carried(self.flat.leaves)
        ]

    def carried_names(self) -> list[str]:
        """Names the carried leaves by their own paths."""
        return [spell_root(self.roots, path) for path in self.carried(self.flat.graphdef.paths)]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Structure:
    """What the arguments of a call are, without any value: all that a run needs to know.

    Two calls with equal structures are runs of the same trace, as long as their values are alike.
    To JAX it is a pytree without leaves, so that it can be an argument of a transformed function.

    Attributes:
      treedef: the structure of the pytree (args, kwargs), down to its objects.
      is_object: whether each of its leaves is an object.
      graphdef: the structure of the objects as one graph, whose root is a list.
      graph: whether sharing is allowed.
      updates: whether changes of structure reach the caller's objects.
      object_names: a name for each object.
      names: a name for each value: the arrays among the arguments, then the leaves of the graph.
    """

    treedef: Any
    is_object: tuple[bool, ...]
    graphdef: GraphDef[Any]
    graph: bool
    updates: bool
    object_names: list[str] = field(compare=False)
    names: list[str] = field(compare=False)

    def run(self, function: Callable[..., Any], values: Sequence[Any]) -> Run:
        """Calls a function on arguments built anew around values, and compares.

        Raises:
          ValueError: see `compare`.
        """
        count = len(values) - self.graphdef.num_leaves
        before = self.rebuild(values[count:])
        args, kwargs = close_tree(self.treedef, self.is_object, before.nodes[0], values[:count])
        return self.compare(before, values[count:], function(*args, **kwargs))

    def rebuild(self, values: Sequence[Any]) -> Flat:
        """Builds the objects anew around values, as a graph whose root is a list."""
        return rebuild(
            self.graphdef,
            [
                value if record is None else rebuilt_variable(record.kind, value, record.metadata)
                for record, value in zip(self.graphdef.leaves, values, strict=True)
            ],
        )

    def compare(self, before: Flat, values: Sequence[Any], returned: Any) -> Run:
        """Compares what a function has left with what `rebuild` gave.

        Args:
          before: the objects as they were rebuilt.
          values: the values around which they were.
          returned: the function's output.

        Raises:
          ValueError: an output shares something with an input or with another output, in tree mode.
        """
        output = open_tree(returned, lambda path: OUTPUT + keystr(path))
        kept = before.nodes[0] if self.updates else []
        passed = [n for n, leaf in enumerate(before.leaves) if isinstance(leaf, Variable)]
        after = flatten(
            [*kept, *(before.leaves[n] for n in passed), *output.objects(output.leaves)]
        )
        places = self.names[len(self.names) - len(values) :]
        names = [*self.object_names[: len(kept)], *(f"{places[n]} (as passed in)" for n in passed)]
        roots = names + output.objects(output.names)
        if not self.graph:
            check_tree(after.graphdef, roots)
        node_origins = {
            id(node): n for n, node in enumerate(before.nodes) if isinstance(node, Pytree)
        }
        origins = _leaf_origins(before, after, len(kept))
        carried = [
            n is None or not is_same(raw_value(x), values[n])
            for n, x in zip(origins, after.leaves, strict=True)
        ]
        outcome = Outcome(
            output.treedef,
            output.is_object,
            len(names),
            after.graphdef,
            tuple([node_origins.get(id(node)) for node in after.nodes]),
            tuple(origins),
            tuple(carried),
        )
        return Run(outcome, after, roots, output)


class Inputs:
    """The arguments of a call, opened.

    Attributes:
      opened: the pytree (args, kwargs).
      flat: its objects as one graph, whose root is a list.
      structure: the structure of both.
      values: the values that the transform sees: arrays among the arguments, then one for each leaf
        of `flat`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        graph: bool | None,
        updates: bool | None,
    ) -> None:
        """Opens the arguments of a call.

        Args:
          function: the function to be called; it names the arguments.
          args: the positional arguments.
          kwargs: the keyword arguments.
          graph: whether sharing is allowed; None for the default.
          updates: whether changes of structure reach the caller's objects, in graph mode only; None
            for the default.

        Raises:
          ValueError: something is shared, in tree mode.
        """
        graph, updates = resolve_modes(graph, updates)
        positional = argument_names(function, len(args))

        def name(path: tuple[Any, ...]) -> str:
            return (path[1].key if path[0].idx else positional[path[1].idx]) + keystr(path[2:])

        self.opened = opened = open_tree((args, kwargs), name)
        self.flat = flat = flatten(opened.objects(opened.leaves))
        object_names = opened.objects(opened.names)
        if not graph:
            check_tree(flat.graphdef, object_names)
        places = [spell_root(object_names, path) for path in flat.graphdef.paths]
        self.structure = Structure(
            opened.treedef,
            opened.is_object,
            flat.graphdef,
            graph,
            updates,
            object_names,
            opened.arrays(opened.names) + places,
        )
        self.values = opened.arrays(opened.leaves) + [raw_value(leaf) for leaf in flat.leaves]

    def finish(self, outcome: Outcome, carried: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """Writes what a run changed into the caller's objects and builds the output.

        Args:
          outcome: what the run did.
          carried: the values of its carried leaves.
          arrays: the output's leaves that are no objects.

        Raises:
          TraceContextError: an input that changed was captured from an outer trace level.
        """
        leaves = self._write(outcome, carried)
        roots = self._build(outcome, leaves)
        return close_tree(outcome.treedef, outcome.is_object, roots[outcome.first_output :], arrays)

    def _write(self, outcome: Outcome, carried: Sequence[Any]) -> list[Any]:
        """Returns the leaves of the outcome's graph: the caller's own, written to, and new ones."""
        values, leaves, changed = iter(carried), [], []
        records = zip(
            outcome.graphdef.leaves, outcome.leaf_origins, outcome.is_carried, strict=True
        )
        for record, origin, is_carried in records:
            value = next(values) if is_carried else None
            if origin is None:
                leaves.append(
                    value if record is None else variable_of(record.kind, value, record.metadata)
                )
                continue
            own = self.flat.leaves[origin]
            leaves.append(own)
            if record is not None and (is_carried or record.metadata != own._metadata):
                changed.append((own, value if is_carried else own._load(), record.metadata))
        for variable, _, _ in changed:
            variable._check_write()
        for variable, value, metadata in changed:
            variable.set_raw_value(value)
            if metadata != variable._metadata:
                variable.set_metadata(metadata)
        return leaves

    def _build(self, outcome: Outcome, leaves: list[Any]) -> Any:
        """Builds the outcome's graph of the caller's own objects and of new ones."""
        own = [None if n is None else self.flat.nodes[n] for n in outcome.node_origins]
        return build_around(outcome.graphdef, leaves, own, change=self.structure.updates)


def build_around(
    graphdef: GraphDef[Any], leaves: Sequence[Any], own: Sequence[Any], *, change: bool
) -> Any:
    """Builds a graph of leaves, of objects that there are, and of new ones; returns its root.

    Args:
      graphdef: its structure.
      leaves: its leaves.
      own: for each of its nodes the object that is to stand there, None for a new one.
      change: whether the former are made to hold what the graph says; else they are left alone.
    """
    trace = current_trace()
    nodes = [
        new_object(record.kind, trace) if node is None else node
        for record, node in zip(graphdef.nodes, own, strict=True)
    ]
    for number in range(len(nodes) - 1, -1, -1):
        record = graphdef.nodes[number]
        children = {key: leaves[n] for key, n in record.leaves} | {
            key: nodes[n] for key, n in record.nodes
        }
        if own[number] is None:
            nodes[number] = build(nodes[number], record.kind, record.form, children, record.static)
        elif change:
            change_children(
                nodes[number], children, {key: value for key, _, value in record.static}
            )
    return nodes[0]


def _leaf_origins(before: Flat, after: Flat, kept: int) -> list[int | None]:
    """Finds which of the inputs' leaves each one is: a Variable anywhere, an array where it was."""
    variables = {id(leaf): n for n, leaf in enumerate(before.leaves) if isinstance(leaf, Variable)}
    places = {path: n for n, path in enumerate(before.graphdef.paths)}

    def origin(path: Path, leaf: Any) -> int | None:
        if isinstance(leaf, Variable):
            return variables.get(id(leaf))
        number = places.get(path) if cast(int, path[0]) < kept else None
        return number if number is not None and before.leaves[number] is leaf else None

    return list(map(origin, after.graphdef.paths, after.leaves))


def raw_value(leaf: Any) -> Any:
    """Returns what a Variable stores, by reference or not, and anything else itself."""
    return leaf._shared() if isinstance(leaf, Variable) else leaf


def is_same(value: Any, other: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Tells whether two pytrees hold the very same leaves in the same structure."""
    if value is other and isinstance(value, jax.Array):
        return True
    flat: list[Any] = [jax.tree.flatten(x, is_leaf) for x in (value, other)]
    (mine, structure), (others, other_structure) = flat
    return structure == other_structure and all(a is b for a, b in zip(mine, others, strict=True))


def check_tree(graphdef: GraphDef[Any], roots: Sequence[str]) -> None:
    """Checks that nothing is shared in a graph whose root is a list, but the buffers of a capture.

    Raises:
      ValueError: something is; the error names every place.
    """
    if graphdef.is_tree:
        return
    shared = [
        f"Duplicate {_class_of(graphdef, number, is_a_node)}: "
        + " and ".join(spell_root(roots, path) for path in paths)
        for number, is_a_node, paths in graphdef.references()
    ]
    shared = [places for places in shared if CAPTURES not in places]
    if not shared:
        return
    raise ValueError(
        "tree mode (graph=False) does not support shared references; found at paths:\n  "
        + "\n  ".join(shared)
        + "\nPass it once and do not return it, or use graph mode (graph=True)."
    )


def _class_of(graphdef: GraphDef[Any], number: int, is_a_node: bool) -> str:
    """Names the class of what has a number in a graph."""
    record = graphdef.nodes[number] if is_a_node else graphdef.leaves[number]
    return "value" if record is None else record.kind.__name__


def reachable(graphdef: GraphDef[Any]) -> Iterator[tuple[int, Path]]:
    """Yields each leaf that each root of a graph leads to: its number, and a path from the roots.

    A leaf is met once from every root that leads to it, which a leaf's own path does not tell.
    """
    leaves, nodes = dict(graphdef.nodes[0].leaves), dict(graphdef.nodes[0].nodes)
    for root in range(len(leaves) + len(nodes)):
        if root in leaves:
            yield leaves[root], (root,)
        else:
            yield from _reachable_from(graphdef, nodes[root], (root,))


def _reachable_from(graphdef: GraphDef[Any], number: int, path: Path) -> Iterator[tuple[int, Path]]:
    pending, seen = [(number, path)], {number}
    while pending:
        number, path = pending.pop()
        yield from [(n, (*path, key)) for key, n in graphdef.nodes[number].leaves]
        fresh = [(n, (*path, key)) for key, n in graphdef.nodes[number].nodes if n not in seen]
        seen.update(n for n, _ in fresh)
        pending.extend(fresh)


def leaf_number(graphdef: GraphDef[Any], path: Path) -> int:
    """Finds the number of the leaf that a path leads to."""
    number = 0
    for key in path[:-1]:
        number = dict(graphdef.nodes[number].nodes)[key]
    return dict(graphdef.nodes[number].leaves)[path[-1]]


def change_children(node: Any, children: dict[Key, Any], statics: dict[Key, Any]) -> None:
    """Makes a node's children what they are to be, touching only those that differ."""
    table = dict(child_table(node))
    gone = [key for key in table if key not in children and key not in statics]
    for key in sorted(gone, key=key_order, reverse=True):
        delete_child(node, key)
    for key, value in children.items():
        if key not in table or not _is_same_child(table[key], value):
            set_child(node, key, data(value))
    for key, value in statics.items():
        if key not in table or not exactly_equal(table[key], value):
            set_child(node, key, static(value))


def _is_same_child(old: Any, new: Any) -> bool:
    return old is new or (is_container(old) and is_container(new) and is_same(old, new, is_object))
