"""Remembering: what was found out about a graph, used again as long as it is still true.

Most graphs are walked through again and again while only the values of their Variables change. So
the root of a graph keeps `Memo`s: what `flatten` found the last time, and what compiled functions
need to know of their arguments. As long as a memo is valid, nobody walks.

What can change, and how a memo comes to know:

- An object's attributes, a List's elements, a Dict's items. Objects in a graph that is remembered
  refer to its memos, weakly, and before one changes, the memos forget everything. That also lets go
  of what they alone would keep alive.
- Attributes behind an object's back: in the dict that `vars(obj)` or `obj.__dict__` has given away.
  The object notes that it did, and from then on the attributes are compared one by one. Only
  `object.__setattr__` goes unnoticed.
- Plain lists and dicts, which cannot tell: they are compared, too.
- Static values that are equal to others, and so may be changed inside: their hashes are compared.
- A Variable's metadata: `Changes.latest` tells whether there may be others than before.

A graph is not remembered if a change could be missed all the same: if there are static lists, dicts
or sets in it, or containers that only JAX knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, is_
from typing import Any
from weakref import ref

from nnx_reference.metadata import Changes
from nnx_reference.nodes import own_static
from nnx_reference.pytree import Pytree, attributes_of
from nnx_reference.state import State
from nnx_reference.variables import Variable

CAPACITY = 16
"""How many memos a root keeps."""


class Memo:
    """What is known of a graph, with what has to hold for it to be still true.

    Attributes:
      result: what is known; it must not refer to the root, or the root would refer to itself. None
        once forgotten.
      mappings: mutable mappings of children that cannot tell, with the keys and children.
      sequences: lists of children that cannot tell, with the children.
      statics: static values that may change inside, with their hashes.
      variables: the Variables, whose metadata is `metadata`.
      latest: the latest change of metadata that is known not to concern them.
      compares: whether there is anything to compare but metadata.
    """

    __slots__ = (
        "__weakref__",
        "compares",
        "latest",
        "mappings",
        "metadata",
        "result",
        "sequences",
        "statics",
        "variables",
    )

    def __init__(self, nodes: list[Any], leaves: list[Any], statics: list[Any], result: Any):
        """Notes what to check, for nodes and leaves."""
        self.latest = Changes.latest
        self.result = result
        tables = [table for node in nodes for table in _silent_tables(node)]
        self.mappings = [(m, tuple(m), tuple(m.values())) for m in tables if isinstance(m, dict)]
        self.sequences = [(s, tuple(s)) for s in tables if isinstance(s, list)]
        self.statics = [(value, hash(value)) for value in statics if _may_change_inside(value)]
        self.variables = [leaf for leaf in leaves if isinstance(leaf, Variable)]
        self.metadata = list(map(_metadata, self.variables))
        self.compares = bool(self.mappings or self.sequences or self.statics)

    def recall(self) -> Any:
        """Returns what is known, or None if the graph has changed since."""
        if self.compares and not self._holds():
            self.forget()
        if self.latest is not Changes.latest:
            self._compare_metadata()
        return self.result

    def _holds(self) -> bool:
        for mapping, keys, values in self.mappings:
            if tuple(mapping) != keys or not all(map(is_, mapping.values(), values)):
                return False
        for sequence, values in self.sequences:
            if len(sequence) != len(values) or not all(map(is_, sequence, values)):
                return False
        return all(hash(value) == before for value, before in self.statics)

    def _compare_metadata(self) -> None:
        latest = Changes.latest
        if not all(map(is_, map(_metadata, self.variables), self.metadata)):
            self.forget()
        self.latest = latest

    def forget(self) -> None:
        """Lets go of everything."""
        self.result, self.compares = None, False
        self.mappings, self.sequences, self.statics = [], [], []
        self.variables, self.metadata = [], []


_metadata = attrgetter("_metadata")


class Notes:
    """What an object keeps of the memos that it is in.

    Attributes:
      memos: those of graphs whose root it is, by what they are for.
      watchers: weak references to all that it is in.
      exposed: whether its attributes may change behind its back.
    """

    __slots__ = ("exposed", "memos", "watchers")

    def __init__(self) -> None:
        self.memos: dict[Any, Memo] = {}
        self.watchers: list[ref[Memo]] = []
        self.exposed = False

    def change(self) -> None:
        """Makes all memos forget, as the object is about to change."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if (memo := watcher()) is not None:
                memo.forget()

    def expose(self) -> None:
        """Takes note that the object may change behind its back from now on."""
        if not self.exposed:
            self.change()
            self.exposed = True

    def watch(self, watcher: ref[Memo]) -> None:
        """Adds a memo to those that forget when the object changes."""
        self.watchers = [known for known in self.watchers if known() is not None]
        self.watchers.append(watcher)


def notes_of(node: Pytree) -> Notes:
    """Returns an object's notes."""
    notes: Notes | None = node._pytree_notes
    if notes is None:
        notes = Notes()
        object.__setattr__(node, "_pytree_notes", notes)
    return notes


def remember(
    root: Pytree, key: Any, nodes: list[Any], leaves: list[Any], statics: Iterable[Any], result: Any
) -> None:
    """Makes the root of a graph keep a memo, if every change of the graph can be noticed.

    Args:
      root: the root.
      key: what the memo is for; another one for the same is replaced.
      nodes: the nodes to watch.
      leaves: the leaves to watch.
      statics: all static values of these nodes.
      result: what `recall` shall give.
    """
    statics = list(statics)
    if not all(map(_is_checkable, nodes)) or any(own_static(x) is not x for x in statics):
        return
    memo = Memo(nodes, leaves, statics, result)
    watcher = ref(memo)
    for node in nodes:
        if isinstance(node, Pytree):
            notes_of(node).watch(watcher)
    memos = notes_of(root).memos
    memos.pop(key, None)
    while len(memos) >= CAPACITY:
        del memos[next(iter(memos))]
    memos[key] = memo


def recall(root: Pytree, key: Any) -> Any:
    """Returns what the root of a graph remembers; None for nothing that is still true."""
    notes = root._pytree_notes
    if notes is None or (memo := notes.memos.get(key)) is None:
        return None
    return memo.recall()


def _silent_tables(node: Any) -> tuple[dict[Any, Any] | list[Any], ...]:
    """Returns what a node keeps its children in, if these can change without notice."""
    match node:
        case Pytree():
            notes: Notes | None = node._pytree_notes
            return (attributes_of(node),) if notes is not None and notes.exposed else ()
        case State():
            return (node._mapping,)
        case list() | dict():
            return (node,)
        case _:
            return ()


def _is_checkable(node: Any) -> bool:
    return isinstance(node, (Pytree, tuple)) or type(node) in (list, dict, State, type(None))


_UNCHANGEABLE = frozenset({int, float, complex, bool, str, bytes, type(None)})


def _may_change_inside(value: Any) -> bool:
    """Tells whether a hashable static value is equal to others because of what is in it."""
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return any(map(_may_change_inside, value))
    return kind not in _UNCHANGEABLE and kind.__eq__ is not object.__eq__
