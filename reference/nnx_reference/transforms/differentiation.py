"""grad and value_and_grad: derivatives with respect to arrays, Variables and Modules.

In graph mode with graph updates a Module, or another node, stands for its `Param`s: the function is
differentiated with respect to these, and the gradient of the Module is a State of them. `DiffState`
names other Variables. Otherwise it stands for everything in it, as any pytree does, and its
gradient is an object of its own kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax

from nnx_reference.filters import Filter, to_predicate
from nnx_reference.pytree import Path
from nnx_reference.state import from_flat_state
from nnx_reference.tables import GraphDef, flatten, unflatten
from nnx_reference.transforms.core import (
    MISSING,
    Inputs,
    Outcome,
    close_tree,
    decorator,
    is_object,
    leaf_number,
    open_tree,
    reachable,
    spell_root,
)
from nnx_reference.transforms.forms import variable_like
from nnx_reference.undoing import all_or_nothing
from nnx_reference.variables import Param


@dataclass(frozen=True)
class DiffState:
    """What of an argument to differentiate with respect to.

    Attributes:
      argnum: the position of the argument.
      filter: selects what is differentiated of its Modules and other nodes. Arrays and Variables
        that are not in one are all differentiated with respect to.
    """

    argnum: int
    filter: Filter


Argnum = int | DiffState
Argnums = Argnum | Sequence[Argnum]


@decorator
def grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Makes the function of a scalar function's gradient: `jax.grad` for functions of objects.

    What the function does to objects among its arguments reaches the caller's objects.

    Args:
      f: the function; without it, the result is a decorator.
      argnums: the positions of the arguments to differentiate with respect to. A node, such as a
        Module, stands for its `Param`s in graph mode with graph updates, where a DiffState in place
        of a position selects others, and for all that is in it otherwise.
      has_aux: whether the function returns a pair, the scalar and whatever else.
      holomorphic: as for `jax.grad`.
      allow_int: as for `jax.grad`.
      reduce_axes: as for `jax.grad`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      A function that returns the gradient, or with `has_aux` a pair of it and the rest. The
      gradient has the structure of the argument; a State stands for a node in graph mode with
      graph updates. For a sequence of positions it is a tuple. The function raises TypeError and
      ValueError where that of `jax.grad` does; ValueError if there is a DiffState without graph
      updates, if a Variable is to be differentiated with respect to at one place and not at another
      and, in tree mode, if something is shared. If it raises, the caller's objects are unchanged.
    """
    function = value_and_grad(
        f,
        argnums=argnums,
        has_aux=has_aux,
        holomorphic=holomorphic,
        allow_int=allow_int,
        reduce_axes=reduce_axes,
        graph=graph,
        graph_updates=graph_updates,
    )
    return _without_value(function, f, has_aux)


def _without_value(
    function: Callable[..., Any], f: Callable[..., Any], has_aux: bool
) -> Callable[..., Any]:
    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        value, gradient = function(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return differentiated


@decorator
def value_and_grad(
    f: Callable[..., Any] = MISSING,
    *,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Makes the function of a scalar function's value and gradient; see `grad`.

    Returns:
      A function that returns the pair of value and gradient; with `has_aux` the value is itself
      the pair that the function returned.
    """
    options: dict[str, Any] = {
        "holomorphic": holomorphic,
        "allow_int": allow_int,
        "reduce_axes": reduce_axes,
    }

    @functools.wraps(f)
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        return _Differentiation(f, inputs, args, argnums, has_aux).call(options)

    return differentiated


class _Differentiation:
    """One call of a differentiated function."""

    def __init__(
        self,
        f: Callable[..., Any],
        inputs: Inputs,
        args: tuple[Any, ...],
        argnums: Argnums,
        has_aux: bool,
    ) -> None:
        self.f = f
        self.inputs = inputs
        self.has_aux = has_aux
        self.is_single = isinstance(argnums, (int, DiffState))
        updates = inputs.structure.updates
        self.arguments = [
            Argument(inputs, args, argnum, Param if updates else ..., as_states=updates)
            for argnum in ([argnums] if isinstance(argnums, (int, DiffState)) else argnums)
        ]
        self.chosen = {number for argument in self.arguments for number in argument.chosen}
        _check_aliases(inputs, self.arguments)
        self.outcome: Outcome
        self.value: Any

    def call(self, options: dict[str, Any]) -> Any:
        """Differentiates with respect to the chosen values."""
        named = list(zip(self.inputs.structure.names, self.inputs.values, strict=True))
        chosen = {name: value for n, (name, value) in enumerate(named) if n in self.chosen}
        others = {name: value for n, (name, value) in enumerate(named) if n not in self.chosen}
        function = jax.value_and_grad(self.run, has_aux=True, **options)
        with all_or_nothing(self.inputs.values):
            (value, (carried, arrays)), found = function(chosen, others)
        aux = self.inputs.finish(self.outcome, carried, arrays)
        gradients = {n: found[name] for n, (name, _) in enumerate(named) if n in self.chosen}
        made = tuple(argument.gradient(gradients) for argument in self.arguments)
        return (value, aux) if self.has_aux else value, made[0] if self.is_single else made

    def run(
        self, chosen: dict[str, Any], others: dict[str, Any]
    ) -> tuple[Any, tuple[list[Any], list[Any]]]:
        """Runs the function on traced values; what it returns besides the scalar is the output."""
        values, structure = chosen | others, self.inputs.structure
        run = structure.run(self.set_apart, [values[name] for name in structure.names])
        self.outcome = run.outcome
        return self.value, (run.carried_values(), run.output.arrays(run.output.leaves))

    def set_apart(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, keeps its value and returns the rest."""
        returned = self.f(*args, **kwargs)
        if not self.has_aux:
            self.value = _scalar(returned)
            return ()
        value, aux = pair(returned)
        self.value = _scalar(value)
        return aux


def pair(returned: Any) -> tuple[Any, Any]:
    """Returns the two parts of what a function returns with `has_aux=True`.

    Raises:
      TypeError: it is no pair.
    """
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise TypeError(
            "with has_aux=True the function returns a pair, what is differentiated and whatever"
            f" else, not a {type(returned).__name__}"
        )
    return returned[0], returned[1]


def _scalar(value: Any) -> Any:
    """Returns what is differentiated, of which JAX checks the rest.

    Raises:
      TypeError: it is an object.
    """
    if is_object(value):
        raise TypeError(
            f"only a scalar can be differentiated, not the {type(value).__name__} that the function"
            " returns: return a Variable's value, v[...]"
        )
    return value


class Argument:
    """An argument with respect to which a function is differentiated, without any value.

    Attributes:
      treedef: its structure, down to its objects.
      is_object: whether each of its leaves is an object.
      arrays: the numbers of its leaves that are no objects, among the values of all arguments.
      graphdefs: the structure of each of its objects.
      leaves: for each of its objects, the number and the path of every chosen leaf.
      first_root: the number of its first object among those of all arguments.
      as_states: whether the gradient of a node is a State.
    """

    def __init__(
        self,
        inputs: Inputs,
        args: tuple[Any, ...],
        argnum: Argnum,
        default: Filter = ...,
        *,
        as_states: bool = False,
    ) -> None:
        """Finds what is chosen of an argument.

        Args:
          inputs: the arguments of the call, opened.
          args: its positional arguments.
          argnum: which one is meant; a DiffState also says what of its nodes.
          default: what of its nodes, where no DiffState says it.
          as_states: whether the gradient of a node is a State.

        Raises:
          ValueError: there is no such argument, or DiffState is not allowed.
        """
        check_argnum(argnum, inputs.structure.updates)
        position = _position(argnum, len(args))
        selects = to_predicate(argnum.filter if isinstance(argnum, DiffState) else default)
        opened = open_tree(args[position], lambda path: "")
        arrays, roots = [sum(x) for x in zip(*map(_count, args[:position]), strict=True)] or [0, 0]
        table, flats = inputs.flat.graphdef, [flatten(x) for x in opened.objects(opened.leaves)]
        first = len(inputs.values) - table.num_leaves
        self.treedef, self.is_object = opened.treedef, opened.is_object
        self.arrays = [arrays + n for n in range(opened.is_object.count(False))]
        self.graphdefs = [flat.graphdef for flat in flats]
        self.leaves = [
            [
                (first + leaf_number(table, (root, *path)), path)
                for path, leaf in zip(flat.graphdef.paths, flat.leaves, strict=True)
                if not flat.nodes or selects(path, leaf)
            ]
            for root, flat in enumerate(flats, roots)
        ]
        self.first_root = roots
        self.as_states = as_states

    @property
    def chosen(self) -> set[int]:
        """The numbers of the values that are chosen."""
        return {*self.arrays, *(n for leaves in self.leaves for n, _ in leaves)}

    def gradient(self, found: Mapping[int, Any]) -> Any:
        """Builds the gradient of the argument of those of all values, by number.

        Where there is none, None stands for the Variable or array.
        """
        pairs = zip(self.graphdefs, self.leaves, strict=True)
        objects = [self._gradient_of(graphdef, leaves, found) for graphdef, leaves in pairs]
        return close_tree(
            self.treedef, self.is_object, objects, [found.get(n) for n in self.arrays]
        )

    def _gradient_of(
        self, graphdef: GraphDef[Any], leaves: list[tuple[int, Path]], found: Mapping[int, Any]
    ) -> Any:
        records = dict(zip(graphdef.paths, graphdef.leaves, strict=True))
        made = [
            (path, variable_like(record, found[n]) if record and n in found else found.get(n))
            for n, path in leaves
            for record in [records[path]]
        ]
        if self.as_states and graphdef.nodes:
            return from_flat_state(made)
        return unflatten(graphdef, [leaf for _, leaf in made])


def _check_aliases(inputs: Inputs, arguments: Sequence[Argument]) -> None:
    """Checks that what is differentiated with respect to is so at every place where it stands.

    Raises:
      ValueError: a Variable is at a place where it is not; the error names two places.
    """
    table, names = inputs.flat.graphdef, inputs.structure.object_names
    first = len(inputs.values) - table.num_leaves
    chosen: dict[int, dict[int, Path]] = {}
    for argument in arguments:
        for root, leaves in enumerate(argument.leaves, argument.first_root):
            chosen.setdefault(root, {}).update({n: (root, *path) for n, path in leaves})
    places = {n: path for paths in chosen.values() for n, path in paths.items()}
    for number, path in reachable(table):
        number += first
        if number in places and number not in chosen.get(cast(int, path[0]), {}):
            here, there = spell_root(names, places[number]), spell_root(names, path)
            raise ValueError(
                f"Inconsistent aliasing: the function is differentiated with respect to {here}, and"
                f" not to {there}, which is the same Variable: choose both, or pass a copy at one"
                " of the places"
            )


def _count(tree: Any) -> tuple[int, int]:
    """Counts the arrays and the objects of a pytree."""
    flags = [is_object(leaf) for leaf in jax.tree.leaves(tree, is_leaf=is_object)]
    return flags.count(False), flags.count(True)


def check_argnum(argnum: Argnum, updates: bool) -> None:
    """Checks that there is no DiffState without graph updates.

    Raises:
      ValueError: there is.
    """
    if isinstance(argnum, DiffState) and not updates:
        raise ValueError(
            f"{argnum} needs graph mode with graph updates (graph=True, graph_updates=True): else"
            " pass what nnx.split gives for the filter as an argument of its own, and nnx.merge it"
            " inside"
        )


def _position(argnum: Argnum, count: int) -> int:
    """Finds which of `count` arguments is meant.

    Raises:
      TypeError, ValueError: there is no such argument.
    """
    position = argnum.argnum if isinstance(argnum, DiffState) else argnum
    if not -count <= position < count:
        kind = ValueError if position < 0 else TypeError  # as for jax.grad
        raise kind(f"argnums has {position}, but there are {count} positional arguments")
    return position % count
