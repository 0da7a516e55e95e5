"""Axes: along which axis of each array a transform maps.

JAX takes a tree prefix of the arguments, an int or None wherever it ends. Here a prefix may end at
an object as well, a Variable, a Module or any other node, and then holds for all that is in it; or
it is a `StateAxes` there, which says an axis for each of the object's Variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax

from nnx_reference.filters import Filter, Path, to_predicate
from nnx_reference.graph import Flat
from nnx_reference.transforms.core import Inputs, Run, reachable, spell_root

Axis = int | None
"""The axis that is mapped; None where the value is the same for all."""


class StateAxes(Mapping[Filter, Axis]):
    """The axes of an object's Variables by filter; the first one that selects a Variable decides.

    Attributes:
      filters: the filters.
      axes: their axes.
    """

    __slots__ = ("_predicates", "axes", "filters")

    filters: tuple[Filter, ...]
    axes: tuple[Axis, ...]

    def __init__(
        self, filter_axes: Mapping[Filter, Axis] | Iterable[tuple[Filter, Axis]], /
    ) -> None:
        """Takes filters with their axes.

        Raises:
          TypeError: a filter is none, or an axis is neither an int nor None.
        """
        pairs = tuple(filter_axes.items() if isinstance(filter_axes, Mapping) else filter_axes)
        self.filters = tuple(selector for selector, _ in pairs)
        self.axes = tuple(axis for _, axis in pairs)
        self._predicates = tuple(map(to_predicate, self.filters))
        for axis in self.axes:
            if not is_axis(axis):
                raise TypeError(f"StateAxes maps filters to ints and None, not to {axis!r}")

    def axis_of(self, path: Path, value: Any) -> Axis:
        """Returns the axis of the Variable or array at a path within the object.

        Raises:
          ValueError: no filter selects it.
        """
        for selects, axis in zip(self._predicates, self.axes, strict=True):
            if selects(path, value):
                return axis
        raise ValueError(
            f"{self!r} has no axis for the {type(value).__name__} at {path}: add a filter that"
            " selects it, or `...`"
        )

    def __getitem__(self, selector: Filter) -> Axis:
        return self.axes[self.filters.index(selector)]

    def __iter__(self) -> Iterator[Filter]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateAxes) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        pairs = ", ".join(f"{getattr(f, '__name__', f)}: {a}" for f, a in self.items())
        return f"StateAxes({{{pairs}}})"

    def _key(self) -> tuple[Any, ...]:
        return self._predicates, self.axes


def is_axis(axis: object) -> bool:
    """Tells whether something is an int (no bool) or None."""
    return axis is None or (isinstance(axis, int) and not isinstance(axis, bool))


Prefix = Axis | StateAxes
"""What stands for one leaf or one object once a tree prefix is spread."""


def spread(axes: Any, treedef: Any, is_object: Sequence[bool], what: str) -> list[Prefix]:
    """Spreads a tree prefix over a pytree.

    Args:
      axes: the prefix; its leaves are ints, None and StateAxes.
      treedef: the pytree's structure, down to its objects.
      is_object: whether each leaf of it is an object.
      what: the name of the prefix, for errors.

    Returns:
      One for each leaf.

    Raises:
      TypeError: the prefix has a leaf of another type.
      ValueError: it is no prefix of the pytree, or there are StateAxes for what is no object.
    """
    numbered = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    found: list[tuple[Any, Any]] = []
    try:
        jax.tree.map(
            lambda axis, part: found.append((axis, part)), axes, numbered, is_leaf=_is_none
        )
    except ValueError as error:
        raise ValueError(f"{what} is no tree prefix of what it is for: {error}") from None
    for axis, part in found:
        if not isinstance(axis, StateAxes) and not is_axis(axis):
            raise TypeError(f"{what} holds ints, None and StateAxes, not {axis!r}")
        if isinstance(axis, StateAxes) and not (isinstance(part, int) and is_object[part]):
            raise ValueError(
                f"{what} has {axis!r} for what is no Module or Variable: put one at each object"
            )
    return [axis for axis, part in found for _ in jax.tree.leaves(part)]


def leaves_of(axes: Any) -> list[Any]:
    """Lists what stands in a tree prefix, None included."""
    return jax.tree.leaves(axes, is_leaf=_is_none)


def _is_none(axis: Any) -> bool:
    return axis is None


def leaf_axes(flat: Flat, prefixes: Sequence[Prefix], roots: Sequence[str]) -> list[Axis]:
    """Finds the axis of every leaf of a graph whose root is a list.

    Args:
      flat: the graph.
      prefixes: the axis, or axes, of each root.
      roots: the name of each root, for errors.

    Raises:
      ValueError: two paths to one leaf say different axes, or StateAxes say none.
    """
    found: dict[int, tuple[Axis, Path]] = {}
    for number, path in reachable(flat.graphdef):
        leaf, prefix = flat.leaves[number], prefixes[cast(int, path[0])]
        axis = prefix.axis_of(path[1:], leaf) if isinstance(prefix, StateAxes) else prefix
        other, other_path = found.setdefault(number, (axis, path))
        if other != axis:
            raise ValueError(
                f"one {type(leaf).__name__} stands at {spell_root(roots, other_path)}, on axis"
                f" {other}, and at {spell_root(roots, path)}, on axis {axis}: give both the same"
                " axis, or put separate objects there"
            )
    return [found[number][0] for number in range(len(flat.leaves))]


def axes_left(
    run: Run,
    inputs: Inputs,
    object_prefixes: list[Prefix],
    axes: list[Axis],
    output_prefixes: list[Prefix],
) -> list[Axis]:
    """Finds the axis of every leaf that a run leaves: inputs keep theirs, in and out.

    Args:
      run: the run.
      inputs: the inputs that it ran on.
      object_prefixes: the axis, or axes, of each object among them.
      axes: the axis of each leaf of their graph.
      output_prefixes: the axis, or axes, of each object in the output.

    Raises:
      ValueError: two paths to one leaf say different axes, or StateAxes say none.
    """
    kept = object_prefixes if inputs.structure.updates else []
    records = inputs.flat.graphdef.leaves
    passed = [axis for axis, record in zip(axes, records, strict=True) if record is not None]
    return leaf_axes(run.flat, [*kept, *passed, *output_prefixes], run.roots)


def refuse_state_axes(prefixes: Iterable[Any]) -> None:
    """Checks that there are no StateAxes, which tree mode does not take.

    Raises:
      ValueError: there are some.
    """
    for prefix in prefixes:
        if isinstance(prefix, StateAxes):
            raise ValueError(
                f"tree mode (graph=False) does not take {prefix!r}: pass what nnx.split gives for"
                " these filters as arguments of their own, and nnx.merge it inside"
            )


def distinct_axes(prefixes: Iterable[Prefix]) -> list[Axis]:
    """Lists the different axes in prefixes, in the order of their first appearance."""
    axes = [axis for p in prefixes for axis in (p.axes if isinstance(p, StateAxes) else (p,))]
    return list(dict.fromkeys(axes))
