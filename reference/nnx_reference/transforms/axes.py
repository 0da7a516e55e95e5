"""Axes: what is said of each value in a transform's arguments, and of each that it leaves.

JAX takes a tree prefix of the arguments, with an axis or None wherever it ends, or a partition spec
or a sharding (`Kind`). Here a prefix may end at an object as well, a Variable, a Module or any
other node. What stands there is one of three things:

- what it would be for an array, and holds for all that is in the object;
- a `StatePrefix`, which says it for each of the object's Variables by filter;
- a tree like the object itself, which says it at each Variable's place (`nnx.prefix` makes these).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

import jax

from nnx_reference.filters import Filter, to_predicate
from nnx_reference.nodes import child_table, is_node
from nnx_reference.pytree import Path
from nnx_reference.state import State, to_flat_state
from nnx_reference.tables import Flat, flatten
from nnx_reference.transforms.core import Run, Structure, is_object, reachable, spell_root
from nnx_reference.variables import Variable

T = TypeVar("T")

Axis = int | None
"""The axis that is mapped; None where the value is the same for all."""


class Carry:
    """Stands in `in_axes` and `out_axes` for the argument, and the output, that a scan carries."""


class StatePrefix(Mapping[Filter, T], Generic[T]):
    """What is said of an object's Variables by filter; the first that selects a Variable decides.

    Attributes:
      filters: the filters.
    """

    __slots__ = ("_predicates", "_said", "filters")

    filters: tuple[Filter, ...]
    _said: tuple[T, ...]
    _noun: ClassVar[str]
    _nouns: ClassVar[str]

    def __init__(self, filters: State | Mapping[Filter, T] | Iterable[tuple[Filter, T]], /) -> None:
        """Takes filters with what they say; of a State, each leaf says it of what is at its path.

        Raises:
          TypeError: a filter is none, or something else is said than may be.
        """
        pairs = tuple(_pairs(filters))
        self.filters = tuple(selector for selector, _ in pairs)
        self._said = tuple(said for _, said in pairs)
        self._predicates = tuple(map(to_predicate, self.filters))
        for said in self._said:
            if not self.accepts(said):
                raise TypeError(
                    f"{type(self).__name__} maps filters to {self._nouns}, not {said!r}"
                )

    @staticmethod
    def accepts(said: object) -> bool:
        """Tells whether this may be said of a Variable."""
        raise NotImplementedError

    def of(self, path: Path, leaf: Any) -> T:
        """Returns what is said of the Variable or array at a path within the object.

        Raises:
          ValueError: no filter selects it.
        """
        for selects, said in zip(self._predicates, self._said, strict=True):
            if selects(path, leaf):
                return said
        raise ValueError(
            f"{self!r} has no {self._noun} for the {type(leaf).__name__} at {path}: add a filter"
            " that selects it, or `...`"
        )

    def map_prefix(self, path: Path, variable: Any) -> T:
        """Returns what is said of a Variable at a path; see `of`."""
        return self.of(path, variable)

    def __getitem__(self, selector: Filter) -> T:
        return self._said[self.filters.index(selector)]

    def __iter__(self) -> Iterator[Filter]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.filters)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        pairs = ", ".join(f"{getattr(f, '__name__', f)}: {said}" for f, said in self.items())
        return f"{type(self).__name__}({{{pairs}}})"

    def _key(self) -> tuple[Any, ...]:
        return self._predicates, self._said


def _pairs(filters: Any) -> Iterable[tuple[Filter, Any]]:
    if isinstance(filters, State):
        return [(At(path), _bare(leaf)) for path, leaf in to_flat_state(filters)]
    return filters.items() if isinstance(filters, Mapping) else filters


@dataclass(frozen=True)
class At:
    """A filter that selects what is at one path."""

    path: Path

    def __call__(self, path: Path, value: Any) -> bool:
        """Tells whether the path is that one."""
        return path == self.path


class StateAxes(StatePrefix[Axis | type[Carry]]):
    """The axes of an object's Variables by filter; the first one that selects a Variable decides.

    Attributes:
      filters: the filters.
      axes: their axes; for `scan` these may be Carry.
    """

    __slots__ = ()

    _noun = "axis"
    _nouns = "ints, None and Carry"

    @property
    def axes(self) -> tuple[Axis | type[Carry], ...]:
        """The axes of the filters."""
        return self._said

    @staticmethod
    def accepts(said: object) -> bool:
        """Tells whether this is an axis or Carry."""
        return said is Carry or is_axis(said)


def is_axis(axis: object) -> bool:
    """Tells whether something is an int (no bool) or None."""
    return axis is None or (isinstance(axis, int) and not isinstance(axis, bool))


class ObjectPrefix:
    """What is said of an object's Variables by a tree like it, with that in the Variables' places.

    Attributes:
      tree: the tree. Two are equal if it is the same one.
    """

    __slots__ = ("kind", "tree")

    def __init__(self, tree: Any, kind: Kind) -> None:
        self.tree = tree
        self.kind = kind

    def of(self, path: Path, leaf: Any) -> Any:
        """Returns what is said of the Variable or array at a path within the object.

        Raises:
          TypeError: something else is said than may be.
          ValueError: the tree has no such path.
        """
        said = self.tree
        for key in path:
            if said is None or not is_node(said):
                break
            children = child_table(said)
            if key not in children:
                raise ValueError(
                    f"a {type(self.tree).__name__} as prefix says nothing of the"
                    f" {type(leaf).__name__} at {path}: make it of the very object, with nnx.prefix"
                )
            said = children[key]
        said = _bare(said)
        if not self.kind.accepts(said):
            raise TypeError(
                f"a {type(self.tree).__name__} as prefix holds {self.kind.nouns}, not {said!r} as"
                f" at {path}"
            )
        return said

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPrefix) and self.tree is other.tree

    def __hash__(self) -> int:
        return id(self.tree)


def _bare(leaf: Any) -> Any:
    return leaf.get_raw_value() if isinstance(leaf, Variable) else leaf


@dataclass(frozen=True)
class Kind:
    """What a tree prefix says of a value.

    Attributes:
      nouns: what may stand in the prefix, for errors.
      by_filter: the class of what says it by filter.
      accepts: tells whether something may be said of a value.
      normal: makes what is said in two ways the same.
      keyword: what is said of keyword arguments.
    """

    nouns: str
    by_filter: type[StatePrefix[Any]]
    accepts: Callable[[object], bool]
    normal: Callable[[Any], Any]
    keyword: Any


AXES = Kind("ints, None and StateAxes", StateAxes, is_axis, lambda axis: axis, 0)

Prefix = Any
"""What stands for one leaf or one object once a tree prefix is spread."""


def said_of(prefix: Prefix, path: Path, leaf: Any) -> Any:
    """Returns what the prefix of an object says of the Variable or array at a path within it."""
    return prefix.of(path, leaf) if isinstance(prefix, (StatePrefix, ObjectPrefix)) else prefix


def spread(
    axes: Any, treedef: Any, is_object: Sequence[bool], what: str, kind: Kind = AXES
) -> list[Prefix]:
    """Spreads a tree prefix over a pytree.

    Args:
      axes: the prefix.
      treedef: the pytree's structure, down to its objects.
      is_object: whether each leaf of it is an object.
      what: the name of the prefix, for errors.
      kind: what it may hold.

    Returns:
      One for each leaf.

    Raises:
      TypeError: the prefix has a leaf of another type.
      ValueError: it is no prefix of the pytree, or there is for what is no object what can only
        stand for one.
    """
    numbered = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    found: list[tuple[Any, Any]] = []
    try:
        jax.tree.map(lambda axis, part: found.append((axis, part)), axes, numbered, is_leaf=_is_end)
    except ValueError as error:
        raise ValueError(f"{what} is no tree prefix of what it is for: {error}") from None
    return [
        axis
        for said, part in found
        for axis in [_prefix(said, isinstance(part, int) and is_object[part], what, kind)]
        for _ in jax.tree.leaves(part)
    ]


def _prefix(said: Any, is_for_object: bool, what: str, kind: Kind) -> Prefix:
    """Checks and returns what stands where a tree prefix ends."""
    if kind.accepts(said):
        return kind.normal(said)
    if not isinstance(said, kind.by_filter) and not is_object(said):
        raise TypeError(f"{what} holds {kind.nouns}, not {said!r}")
    if not is_for_object:
        raise ValueError(
            f"{what} has {said!r} for what is no Module or Variable: put one at each object"
        )
    return ObjectPrefix(said, kind) if is_object(said) else said


class StandIn:
    """Stands for a tree prefix where something hashable is needed.

    Two are equal if the prefixes have the same structure and say the same; of objects that stand in
    them, if these are the same ones.
    """

    __slots__ = ("_leaves", "_treedef")

    def __init__(self, prefix: Any) -> None:
        """Takes the prefix."""
        leaves, self._treedef = jax.tree.flatten(prefix, _is_end)
        self._leaves = tuple([ObjectPrefix(x, AXES) if is_object(x) else x for x in leaves])

    def tree(self) -> Any:
        """Returns the prefix."""
        leaves = [x.tree if isinstance(x, ObjectPrefix) else x for x in self._leaves]
        return jax.tree.unflatten(self._treedef, leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._leaves, self._treedef


def leaves_of(axes: Any) -> list[Any]:
    """Lists what stands in a tree prefix, None included."""
    return jax.tree.leaves(axes, is_leaf=_is_end)


def _is_end(axis: Any) -> bool:
    return axis is None or is_object(axis)


def leaf_axes(
    flat: Flat, prefixes: Sequence[Prefix], roots: Sequence[str], kind: Kind = AXES
) -> list[Any]:
    """Finds what is said of every leaf of a graph whose root is a list.

    Args:
      flat: the graph.
      prefixes: what is said of each root.
      roots: the name of each root, for errors.
      kind: what the prefixes hold.

    Raises:
      ValueError: two paths to one leaf say different things, or a prefix says nothing of one.
    """
    found: dict[int, tuple[Any, Path]] = {}
    for number, path in reachable(flat.graphdef):
        leaf = flat.leaves[number]
        said = kind.normal(said_of(prefixes[cast(int, path[0])], path[1:], leaf))
        other, other_path = found.setdefault(number, (said, path))
        if other != said:
            raise ValueError(
                f"Inconsistent aliasing detected: one {type(leaf).__name__} stands at"
                f" {spell_root(roots, other_path)}, with {other}, and at"
                f" {spell_root(roots, path)}, with {said}: give both places the same, or put"
                " separate objects there"
            )
    return [found[number][0] for number in range(len(flat.leaves))]


def places_left(
    run: Run,
    structure: Structure,
    object_prefixes: Sequence[Prefix],
    places: Sequence[Any],
    output_prefixes: Sequence[Prefix],
    kind: Kind = AXES,
) -> list[Any]:
    """Finds what is said of every leaf that a run leaves: of inputs it is the same, in and out.

    Args:
      run: the run.
      structure: the structure of its inputs.
      object_prefixes: what is said of each object among them.
      places: what is said of each leaf of their graph.
      output_prefixes: what is said of each object in the output.
      kind: what the prefixes hold.

    Raises:
      ValueError: two paths to one leaf say different things, or a prefix says nothing of one.
    """
    kept = object_prefixes if structure.updates else []
    records = structure.graphdef.leaves
    passed = [place for place, record in zip(places, records, strict=True) if record is not None]
    return leaf_axes(run.flat, [*kept, *passed, *output_prefixes], run.roots, kind)


def refuse_state_axes(prefixes: Iterable[Any]) -> None:
    """Checks that nothing is said by filter, which only graph updates allow.

    Raises:
      ValueError: something is.
    """
    for prefix in prefixes:
        if isinstance(prefix, StatePrefix):
            raise ValueError(
                f"{prefix!r} needs graph mode with graph updates (graph=True, graph_updates=True):"
                " else pass what nnx.split gives for these filters as arguments of their own, and"
                " nnx.merge it inside"
            )


def per_argument(axes: Any, count: int, what: str, kind: Kind = AXES) -> tuple[Prefix, ...]:
    """Returns a prefix for each positional argument.

    Raises:
      TypeError: it is neither one for all nor a tuple.
      ValueError: it has not as many entries as there are arguments.
    """
    if kind.accepts(axes) or isinstance(axes, kind.by_filter) or is_object(axes):
        return (axes,) * count
    if not isinstance(axes, (tuple, list)):
        raise TypeError(
            f"{what} is one for all arguments or a tuple with an entry for each, of {kind.nouns};"
            f" not {axes!r}"
        )
    if len(axes) != count:
        raise ValueError(f"{what} has {len(axes)} entries for {count} positional arguments")
    return tuple(axes)


def distinct(prefixes: Iterable[Prefix], kind: Kind) -> list[Any]:
    """Lists the different things that are said in prefixes, in the order of first appearance."""
    said = [one for prefix in prefixes for one in _said_in(prefix)]
    return list(dict.fromkeys(kind.normal(one) for one in said if kind.accepts(one)))


def _said_in(prefix: Prefix) -> Iterable[Any]:
    if isinstance(prefix, StatePrefix):
        return prefix._said
    tree = prefix.tree if isinstance(prefix, ObjectPrefix) else prefix
    # None is nothing to `flatten`, so it may be there unseen.
    return [None, *map(_bare, flatten(tree).leaves)] if is_object(tree) else [tree]
