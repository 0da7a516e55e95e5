"""Placing: functions of objects whose values each have a place.

`vmap`, `pmap` and `shard_map` say a place of each value, that goes in or comes out: an axis, or a
partition spec. JAX wants to know the places of what comes out before the function has run. What
will come out nobody knows by then, but the places in question are known. So values travel in
bundles, one for each place, each a dict by name, and within a bundle there may be any number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from nnx_reference.transforms.axes import (
    Kind,
    Prefix,
    distinct,
    leaf_axes,
    leaves_of,
    per_argument,
    places_left,
    refuse_state_axes,
    spread,
)
from nnx_reference.transforms.core import Inputs, Outcome, Run, Structure
from nnx_reference.transforms.statics import Static

Bundles = tuple[dict[str, Any], ...]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Placement:
    """The structure of a call's arguments, and the place of each value among them.

    Two calls with equal placements are runs of the same trace; see `Structure`.

    Attributes:
      structure: the structure.
      objects: what is said of each object.
      leaves: the place of each leaf of the objects' graph.
      values: the place of each value: the arrays among the arguments, then the leaves.
    """

    structure: Structure
    objects: tuple[Prefix, ...]
    leaves: tuple[Any, ...]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, inputs: Inputs, prefix: Any, kind: Kind, what: str) -> Placement:
        """Places the arguments of a call.

        Args:
          inputs: the arguments.
          prefix: what is said of them: one for all positional arguments, or a tuple with a tree
            prefix for each that is not static. Of keyword arguments is said what `kind` says.
          kind: what the prefix holds.
          what: the name of the prefix, for errors.

        Raises:
          TypeError: something else stands in the prefix.
          ValueError: the prefix does not fit the arguments; two paths to one leaf say different
            things; it says nothing of some leaf; without graph updates, it is said by
            filter.
        """
        opened, structure = inputs.opened, inputs.structure
        args, _ = jax.tree.unflatten(opened.treedef, opened.leaves)
        is_static = [isinstance(arg, Static) for arg in args]
        entries = iter(per_argument(prefix, is_static.count(False), what, kind))
        said = tuple([None if static else next(entries) for static in is_static])
        prefixes = spread((said, kind.keyword), opened.treedef, opened.is_object, what, kind)
        if not structure.updates:
            refuse_state_axes(prefixes)
        objects = opened.objects(prefixes)
        leaves = leaf_axes(inputs.flat, objects, structure.object_names, kind)
        return cls(structure, tuple(objects), tuple(leaves), (*opened.arrays(prefixes), *leaves))

    def left(self, run: Run, prefix: Any, kind: Kind, what: str) -> tuple[list[Any], list[Any]]:
        """Places what a run on the arguments leaves.

        Args:
          run: the run.
          prefix: what is said of the output, a tree prefix of it.
          kind: what the prefix holds.
          what: the name of the prefix, for errors.

        Returns:
          The place of each leaf that is carried out, and of each of the output's arrays.

        Raises:
          TypeError: something else stands in the prefix.
          ValueError: as for `of`.
        """
        output = run.output
        prefixes = spread(prefix, output.treedef, output.is_object, what, kind)
        if not self.structure.updates:
            refuse_state_axes(prefixes)
        found = output.objects(prefixes)
        places = places_left(run, self.structure, self.objects, self.leaves, found, kind)
        return run.carried(places), output.arrays(prefixes)


class Left(NamedTuple):
    """What a run has left, and in which bundles under which names it comes out.

    Attributes:
      outcome: the structure.
      carried: the bundle and the name of each leaf that is carried out.
      arrays: the bundle and the name of each of the output's arrays.
    """

    outcome: Outcome
    carried: tuple[tuple[int, str], ...]
    arrays: tuple[tuple[int, str], ...]


class Placed:
    """A function of objects, as one of bundles.

    Attributes:
      f: the function.
      name: the name of the transform, for errors.
      prefix: what is said of the arguments.
      out_prefix: what is said of the output.
      kind: what both hold.
      words: what JAX calls the two prefixes.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        prefixes: tuple[Any, Any],
        kind: Kind,
        name: str,
        words: tuple[str, str] = ("in_axes", "out_axes"),
    ) -> None:
        self.f = f
        self.prefix, self.out_prefix = prefixes
        self.kind = kind
        self.what, self.out_what = (f"{name} {word}" for word in words)

    def place(self, inputs: Inputs) -> Placement:
        """Places the arguments of a call.

        Raises:
          TypeError: as for `Placement.of`.
          ValueError: likewise, and for what is carried.
        """
        placement = Placement.of(inputs, self.prefix, self.kind, self.what)
        self._check(placement.values, self.what)
        return placement

    def _check(self, said: Sequence[Any], what: str) -> None:
        for place in said:
            if not self.kind.accepts(place):
                raise ValueError(f"{what} has {place!r}, which only scan has a use for")

    def places(self, placement: Placement) -> tuple[Any, ...]:
        """Lists the places that values can have, one for each bundle."""
        said = [*placement.values, *placement.objects, *leaves_of(self.out_prefix)]
        return tuple(distinct(said, self.kind))

    def run(
        self, placement: Placement, bundles: Bundles, always: frozenset[int] = frozenset()
    ) -> tuple[Static, Bundles]:
        """Runs the function on traced values; what it leaves is structure of the output.

        Args:
          placement: the places of the values.
          bundles: the values.
          always: the leaves, by number, that are carried out in any case.
        """
        places = self.places(placement)
        run = placement.structure.run(self.f, unbundle(placement, places, bundles))
        run = run.carrying(always)
        carried, arrays = placement.left(run, self.out_prefix, self.kind, self.out_what)
        self._check(carried, self.out_what)
        made: Bundles = tuple({} for _ in places)

        def put(said: list[Any], names: list[str], values: list[Any]) -> tuple[Any, ...]:
            spots = [(places.index(place), name) for place, name in zip(said, names, strict=True)]
            for (number, name), value in zip(spots, values, strict=True):
                made[number][name] = value
            return tuple(spots)

        left = Left(
            run.outcome,
            put(carried, run.carried_names(), run.carried_values()),
            put(arrays, run.output.arrays(run.output.names), run.output.arrays(run.output.leaves)),
        )
        return Static(left), made


def bundle(placement: Placement, places: Sequence[Any], values: Sequence[Any]) -> Bundles:
    """Puts values into bundles."""
    bundles: Bundles = tuple({} for _ in places)
    names = placement.structure.names
    for name, value, place in zip(names, values, placement.values, strict=True):
        bundles[places.index(place)][name] = value
    return bundles


def unbundle(placement: Placement, places: Sequence[Any], bundles: Bundles) -> list[Any]:
    """Takes values out of bundles."""
    pairs = zip(placement.structure.names, placement.values, strict=True)
    return [bundles[places.index(place)][name] for name, place in pairs]


def finish(inputs: Inputs, left: Left, bundles: Bundles) -> Any:
    """Writes what a run left into the caller's objects and builds the output."""
    carried = [bundles[number][name] for number, name in left.carried]
    return inputs.finish(
        left.outcome, carried, [bundles[number][name] for number, name in left.arrays]
    )
