"""Plans: what a call of a jitted function is compiled for, and what objects keep of it.

A `Plan` stands for one structure of the objects among a call's arguments. The objects come in as
groups, one for each, which hold what is met for the first time in that object. All other arguments
go to `jax.jit` as they are, with None in the place of an object, or a `HOLE` where it was in a
container or a keyword argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

import jax

from nnx_reference.transforms.core import Inputs, Outcome, Structure, is_object, raw_value
from nnx_reference.variables import Variable


@jax.tree_util.register_static
class _Hole:
    """Stands among the arguments where an object was."""


HOLE = _Hole()


@jax.tree_util.register_static
class Result:
    """What a trace did, as part of the structure of the compiled function's output.

    Attributes:
      outcome: what it did.
      writes: if it only wrote to Variables among the inputs, the numbers of these; else None.
    """

    __slots__ = ("outcome", "writes")

    def __init__(self, outcome: Outcome, structure: Structure) -> None:
        self.outcome = outcome
        self.writes = _plain_writes(outcome, structure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.outcome == other.outcome

    def __hash__(self) -> int:
        return hash(self.outcome)


def _plain_writes(outcome: Outcome, structure: Structure) -> tuple[int, ...] | None:
    """Lists the Variables that a trace wrote to; None if it did anything else to the inputs."""
    before, after, origins = structure.graphdef, outcome.graphdef, outcome.leaf_origins
    if any(outcome.is_object) or None in origins:
        return None
    known = [before.leaves[cast(int, origin)] for origin in origins]
    writes = [n for n, carried in zip(origins, outcome.is_carried, strict=True) if carried]
    written = [before.leaves[cast(int, n)] for n in writes]
    is_plain = (
        known == list(after.leaves)
        and writes == sorted(cast(list[int], writes))
        and all(record is not None and not record.metadata.by_reference for record in written)
        and (not structure.updates or _is_same_structure(outcome, structure))
    )
    return tuple(cast(list[int], writes)) if is_plain else None


def _is_same_structure(outcome: Outcome, structure: Structure) -> bool:
    """Tells whether the inputs' nodes are as they were; the roots are compared one by one."""
    before, after = structure.graphdef, outcome.graphdef
    count = len(before.nodes)
    return (
        after.nodes[1:] == before.nodes[1:]
        and outcome.node_origins[1:] == tuple(range(1, count))
        and outcome.leaf_origins[: len(before.leaves)] == tuple(range(len(before.leaves)))
        and set(before.nodes[0].nodes) <= set(after.nodes[0].nodes)
    )


class Plan:
    """The structure of a call's objects, for which a function is compiled.

    Attributes:
      structure: the structure; without that of the other arguments, which JAX takes care of.
      donated: the numbers of the leaves whose arrays may be overwritten.
      count: the number of objects.
      places: the objects' positions if each is an argument itself; None if some are not.
      groups: for each object, the numbers of the leaves that are met in it for the first time.
      order: the numbers of the leaves in the order in which they are passed.
    """

    __slots__ = ("count", "donated", "groups", "order", "places", "structure")

    def __init__(
        self, structure: Structure, donated: frozenset[int], places: tuple[int, ...] | None
    ) -> None:
        self.structure = structure
        self.donated = donated
        self.places = places
        self.count = len(structure.object_names)
        self.groups: list[list[int]] = [[] for _ in range(self.count)]
        for number, path in enumerate(structure.graphdef.paths):
            self.groups[cast(int, path[0])].append(number)
        first, lists = self.arrange(range(len(structure.graphdef.leaves)))
        self.order: list[int] = [*first, *chain(*lists)]

    def is_variable(self, number: int) -> bool:
        """Tells whether a leaf is a Variable."""
        return self.structure.graphdef.leaves[number] is not None

    def arrange(self, of: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Arranges what belongs to leaves as it is passed: for donated ones, and for the others.

        The latter are lists: for each object one for its Variables, and one for its other leaves if
        it has any.
        """
        lists = []
        for group in self.groups:
            kept = [n for n in group if n not in self.donated]
            lists.append([of[n] for n in kept if self.is_variable(n)])
            if others := [of[n] for n in kept if not self.is_variable(n)]:
                lists.append(others)
        return [of[n] for n in sorted(self.donated)], lists

    def by_number(self, passed: Sequence[Any]) -> list[Any]:
        """Puts what is passed into the order of the leaves."""
        found = dict(zip(self.order, passed, strict=True))
        return [found[number] for number in range(len(found))]


class Call:
    """A call, by identity; the objects that were passed in it remember it together.

    Objects of two calls with the same plan do not make another such call: they may share other
    things with each other.

    Attributes:
      plan: its plan.
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class Group:
    """What an object remembers of its part in a call.

    Attributes:
      call: the call.
      place: the object's position among the arguments, or among the objects if not all objects are
        arguments themselves.
      variables: the Variables that are met in it for the first time, by number.
      kept: those that are not donated.
      donated: those that are.
      others: the other leaves.
      result: the result of the last trace that ran.
      targets: the Variables that it writes to.
    """

    __slots__ = (
        "call",
        "donated",
        "kept",
        "others",
        "place",
        "result",
        "targets",
        "variables",
    )

    def __init__(self, call: Call, index: int, place: int, leaves: Sequence[Any]) -> None:
        plan = call.plan
        numbers = plan.groups[index]
        self.call = call
        self.place = place
        self.variables = {n: leaves[n] for n in numbers if plan.is_variable(n)}
        self.kept = [v for n, v in self.variables.items() if n not in plan.donated]
        self.donated = [v for n, v in self.variables.items() if n in plan.donated]
        self.others = [leaves[n] for n in numbers if not plan.is_variable(n)]
        self.result: Result | None = None
        self.targets: list[Variable[Any]] = []

    def pass_on(self, values: list[list[Any]], donated: list[Any]) -> None:
        """Adds its leaves' values to those that are passed to the compiled function."""
        values.append([v._value for v in self.kept])
        if self.others:
            values.append(self.others)
        if self.donated:
            donated += [v._value for v in self.donated]

    def targets_of(self, result: Result) -> list[Variable[Any]]:
        """Lists those of its Variables that a trace writes to, by number."""
        if self.result is not result:
            writes = result.writes or ()
            self.targets = [self.variables[n] for n in writes if n in self.variables]
            self.result = result
        return self.targets


class Passed:
    """What the compiled function is called with.

    Attributes:
      donated: the values of donated leaves.
      groups: for each object a list of the values of its Variables that are not donated, and if it
        has other leaves, a list of these.
      args: the positional arguments, with holes.
      kwargs: the keyword arguments, with holes.
    """

    __slots__ = ("args", "donated", "groups", "kwargs")

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        opened, hole = inputs.opened, HOLE if plan.places is None else None
        holed = [
            hole if flag else leaf
            for leaf, flag in zip(opened.leaves, opened.is_object, strict=True)
        ]
        self.donated, self.groups = plan.arrange([raw_value(leaf) for leaf in inputs.flat.leaves])
        self.args, self.kwargs = jax.tree.unflatten(opened.treedef, holed)


def places_of(args: tuple[Any, ...], count: int) -> tuple[int, ...] | None:
    """Lists the positions of the arguments that are objects, if that is where all objects are."""
    places = tuple([place for place, x in enumerate(args) if is_object(x)])
    return places if len(places) == count else None


def fill(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], objects: Sequence[Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Puts objects where they were among the arguments."""
    if plan.places is not None:
        filled = list(args)
        for place, thing in zip(plan.places, objects, strict=True):
            filled[place] = thing
        return filled, kwargs
    remaining = iter(objects)
    found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(
        lambda leaf: next(remaining) if leaf is HOLE else leaf, (args, kwargs), is_leaf=_is_hole
    )
    return found


def _is_hole(value: Any) -> bool:
    return value is HOLE
