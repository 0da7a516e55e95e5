"""Loops that carry values, and what a condition and a branch must leave as it was.

A loop carries arrays, and new values of Variables. JAX wants to know the latter before the loop
begins. So a step is traced by itself first, on values like those of the loop; that tells what it
writes. In the rare case that it turns out to write more in the loop, because types are other than
expected, the loop is built again (`build_loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import jax
from jax.tree_util import keystr

from nnx_reference.exactness import Exact
from nnx_reference.pytree import Pytree
from nnx_reference.tables import Flat, GraphDef, flatten
from nnx_reference.transforms.core import (
    OUTPUT,
    Opened,
    Outcome,
    Structure,
    open_tree,
    spell_root,
)
from nnx_reference.transforms.statics import Static
from nnx_reference.transforms.tracing import How, Traced

T = TypeVar("T")


class Widen(Exception):  # noqa: N818 (no error: `build_loop` catches it)
    """The loop has to carry these values as well."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers


def build_loop(build: Callable[[set[int]], T], carried: set[int]) -> T:
    """Builds a loop that carries the values of these numbers, and those that its step writes.

    Args:
      build: builds it, or raises Widen.
      carried: the numbers to begin with.
    """
    while True:
        try:
            return build(carried)
        except Widen as wider:
            carried = carried | wider.numbers


class Renewed(NamedTuple):
    """What of a carry a step returns anew, other than by writing to Variables.

    Attributes:
      nodes: the numbers, in the carry's own graph, of objects that are other ones.
      leaves: the numbers there of leaves that are.
      numbers: the numbers of these in the structure of all arguments.
    """

    nodes: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()


class Left(NamedTuple):
    """What a step has done.

    Attributes:
      outcome: the outcome.
      numbers: the numbers of the values that it has written and that are not stacked.
      axes: the axis along which to stack each value that is stacked.
      renewed: what of the carry is new.
    """

    outcome: Outcome
    numbers: tuple[int, ...]
    axes: tuple[int, ...] = ()
    renewed: Renewed = Renewed()


Finished = tuple[Static, list[Any], list[Any], list[Any], list[Any]]
"""What a loop gives: the outcome and what is renewed, what it carries, the carry's arrays, the
values of what is renewed, and the other outputs."""


class Loop:
    """A loop that carries certain values.

    Attributes:
      state: these values at the beginning, by name.
      left: what the step has done, once it has been traced.
    """

    def __init__(
        self,
        function: Traced,
        how: How,
        structure: Structure,
        values: dict[str, Any],
        carried: set[int],
    ) -> None:
        """Takes what a loop is made of.

        Args:
          function: the user's function.
          how: runs a step; it gives a Static of `Left`, the written values, the carry's arrays, and
            the values to be stacked.
          structure: the structure of the arguments.
          values: all values at the beginning, by name.
          carried: the numbers of those that are carried.
        """
        self.function = function
        self.how = how
        self.structure = structure
        self.values = values
        self.carried = carried
        self.first = len(structure.names) - structure.graphdef.num_leaves
        self.arrays = [structure.names[n] for n in sorted(carried) if n < self.first]
        self.state = {structure.names[n]: values[structure.names[n]] for n in sorted(carried)}
        self.left: Left

    def values_at(self, state: dict[str, Any]) -> list[Any]:
        """Lists the values that a function sees at some state of the loop."""
        current = self.values | state
        return [current[name] for name in self.structure.names]

    def step(
        self, state: dict[str, Any], slices: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Any]]:
        """Runs a step on a state and what is this step's own; returns the next, and what to stack.

        Raises:
          Widen: it writes what is not carried.
        """
        found, written, arrays, stacked = self.function(
            self.how, self.structure, self.values_at(state | slices)
        )
        self.left = found.value
        if missing := set(self.left.numbers) - self.carried:
            raise Widen(missing)
        state = state | dict(zip(self.arrays, arrays, strict=True))
        return self.updated(state, self.left.numbers, written), stacked

    def updated(
        self, state: dict[str, Any], numbers: Sequence[int], written: Sequence[Any]
    ) -> dict[str, Any]:
        """Returns a state with other values of these numbers."""
        names = [self.structure.names[n] for n in numbers]
        return state | dict(zip(names, written, strict=True))

    def finish(
        self, state: dict[str, Any], stacked: Sequence[Any] = (), also: Iterable[int] = ()
    ) -> Finished:
        """Returns what the loop gives.

        Args:
          state: the last state.
          stacked: what was stacked.
          also: the numbers of values that were written outside of the step.
        """
        names = self.structure.names
        outcome = self.left.outcome.carrying({n - self.first for n in also})
        remaining = iter(stacked)
        carried = [
            next(remaining)
            if origin is None or origin + self.first not in self.carried
            else state[names[origin + self.first]]
            for origin, is_carried in zip(outcome.leaf_origins, outcome.is_carried, strict=True)
            if is_carried
        ]
        renewed = self.left.renewed
        arrays = [state[name] for name in self.arrays]
        inside = [state[names[n]] for n in renewed.numbers]
        return Static((outcome, renewed)), carried, arrays, inside, list(remaining)


class Entry(NamedTuple):
    """What stands at a place: a class, its metadata or static values, and which input it was.

    Attributes:
      kind: the class.
      details: pairs of names and values.
      origin: the number that it had in the inputs; None for a new one.
    """

    kind: type | None
    details: Hashable
    origin: int | None

    def __str__(self) -> str:
        if self.kind is None:
            return "data" if self.origin is not None else "new data"
        pairs: Any = self.details
        items = ", ".join(f"{name}={value!r}" for name, value in pairs)
        return f"{'a' if self.origin is not None else 'a new'} {self.kind.__name__}({items})"


Table = dict[str, Entry]


@contextmanager
def only_values_change(what: str, opened: Opened) -> Iterator[None]:
    """Checks that what runs inside changes nothing of objects but values of Variables.

    Args:
      what: whose doing it is, for errors.
      opened: a pytree with the objects.

    Raises:
      ValueError: it does; the error names a place.
    """
    names, objects = opened.objects(opened.names), opened.objects(opened.leaves)
    known = flatten(objects)
    before = table_of(known, known, names)
    yield
    after = table_of(known, flatten(objects), names)
    for name in [*before, *after]:
        old, new = before.get(name), after.get(name)
        if old != new:
            raise ValueError(
                f"{what} changes more than values of Variables: {name} was {old or 'not there'} and"
                f" is {new or 'gone'}; make that change outside, or keep it in a Variable"
            )


def table_of(known: Flat, flat: Flat, names: list[str]) -> Table:
    """Lists what is in a graph; its parts are numbered by where they are in a known one."""
    nodes, leaves = [
        {id(part): n for n, part in enumerate(parts)} for parts in (known.nodes, known.leaves)
    ]
    origins = [nodes.get(id(n)) for n in flat.nodes], [leaves.get(id(x)) for x in flat.leaves]
    return tabulate(flat.graphdef, names, *origins)


def table_after(structure: Structure, outcome: Outcome) -> Table:
    """Lists what a run leaves of its inputs, and the objects of its output, by their places."""
    origins = outcome.node_origins, outcome.leaf_origins
    return tabulate(outcome.graphdef, roots_after(structure, outcome), *origins)


def roots_after(structure: Structure, outcome: Outcome) -> list[str]:
    """Names the roots of an outcome's graph."""
    leaves = structure.graphdef.leaves
    names = structure.names[len(structure.names) - len(leaves) :]
    kept = structure.object_names if structure.updates else []
    suffix = " (as passed in)" if structure.updates else ""
    passed = [f"{names[n]}{suffix}" for n, record in enumerate(leaves) if record is not None]
    numbered = jax.tree.unflatten(outcome.treedef, range(len(outcome.is_object)))
    output = open_tree(numbered, lambda path: OUTPUT + keystr(path)).names
    made = [name for name, flag in zip(output, outcome.is_object, strict=True) if flag]
    return [*kept, *passed, *made]


def tabulate(
    graphdef: GraphDef[Any], roots: list[str], node_origins: Any, leaf_origins: Any
) -> Table:
    """Lists what is in a graph with named roots, and which input each part was, by place."""
    nodes = zip(graphdef.node_paths, graphdef.nodes, node_origins, strict=True)
    leaves = zip(graphdef.paths, graphdef.leaves, leaf_origins, strict=True)
    found = {
        spell_root(roots, path): Entry(
            node.kind,
            tuple([(key, Exact(value)) for key, _, value in node.static]),
            origin if issubclass(node.kind, Pytree) else 0,
        )
        for path, node, origin in nodes
        if path
    }
    for path, record, origin in leaves:
        details = () if record is None else tuple(record.metadata.exact_items())
        kind = None if record is None else record.kind
        found[spell_root(roots, path)] = Entry(kind, details, origin)
    return found
