"""Remembering: what `flatten` found the last time, used again as long as it is still true.

Most graphs are flattened again and again while only the values of their Variables change. So the
root of a graph keeps a `Memo` of the last walk. It is checked, not trusted: every node must still
hold the very same children under the same keys, and every Variable the same metadata. This takes a
tenth of the time of a walk.

A memo refers to what the graph refers to. Lest it keep alive what was taken out of the graph since,
every object in it carries a weak reference to the memo, and when the object is about to change, the
memo forgets everything.

A graph is not remembered if its check would miss a change: if there are static lists, dicts or sets
in it, which can change inside, or containers that only JAX knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any
from weakref import ref

from nnx_reference.containers import Dict, List
from nnx_reference.nodes import own_static
from nnx_reference.pytree import Layout, Pytree
from nnx_reference.state import State
from nnx_reference.variables import Variable


class Memo:
    """A walk's result with what has to hold for it to be still true.

    Attributes:
      result: the result; it must not refer to the root, or the root would refer to itself. None
        once forgotten.
      layouts: objects with their layouts; the root's is kept apart.
      mappings: where nodes keep their children by key, with the keys and children.
      sequences: where nodes keep their children in a list, with the children.
      variables: the Variables, whose metadata is `metadata`.
    """

    __slots__ = (
        "__weakref__",
        "layouts",
        "mappings",
        "metadata",
        "result",
        "root_layout",
        "sequences",
        "variables",
    )

    def __init__(self, nodes: list[Any], leaves: list[Any], result: Any) -> None:
        """Notes what to check, for nodes, the root first, and leaves."""
        self.result = result
        self.root_layout: Layout | None = nodes[0]._pytree_known
        self.layouts = [
            (node, node._pytree_known) for node in nodes[1:] if isinstance(node, Pytree)
        ]
        tables = [table for node in nodes for table in _tables(node)]
        self.mappings = [(m, tuple(m), tuple(m.values())) for m in tables if isinstance(m, dict)]
        self.sequences = [(s, tuple(s)) for s in tables if isinstance(s, list)]
        self.variables = [leaf for leaf in leaves if isinstance(leaf, Variable)]
        self.metadata = [variable._metadata for variable in self.variables]

    def recall(self, root: Pytree) -> Any:
        """Returns the walk's result, or None if the graph has changed since."""
        result = self.result
        if result is None or root._pytree_known is not self.root_layout or not self._holds():
            self.forget()
            return None
        return result

    def _holds(self) -> bool:
        for node, layout in self.layouts:
            if node._pytree_known is not layout:
                return False
        for mapping, keys, values in self.mappings:
            if tuple(mapping) != keys or not all(map(is_, mapping.values(), values)):
                return False
        for sequence, values in self.sequences:
            if len(sequence) != len(values) or not all(map(is_, sequence, values)):
                return False
        return all(map(is_, [variable._metadata for variable in self.variables], self.metadata))

    def forget(self) -> None:
        """Lets go of everything."""
        self.result = self.root_layout = None
        self.layouts, self.mappings, self.sequences = [], [], []
        self.variables, self.metadata = [], []


def _tables(node: Any) -> tuple[dict[Any, Any] | list[Any], ...]:
    """Returns the mutable objects in which a node keeps its children."""
    match node:
        case List():
            return node._elements, node.__dict__
        case Dict():
            return (node._items,)
        case Pytree():
            return (node.__dict__,)
        case State():
            return (node._mapping,)
        case list() | dict():
            return (node,)
        case _:
            return ()


def remember(nodes: list[Any], leaves: list[Any], statics: Iterable[Any], result: Any) -> None:
    """Makes the root of a graph keep a memo of its walk, if every change of it can be noticed.

    Args:
      nodes: the graph's nodes, the root first.
      leaves: the graph's leaves.
      statics: all static values.
      result: what `recall` shall give.
    """
    if not all(map(_is_checkable, nodes)) or any(
        own_static(value) is not value for value in statics
    ):
        return
    memo = Memo(nodes, leaves, result)
    watcher = ref(memo)
    for node in nodes:
        if isinstance(node, Pytree):
            _store(node, "_pytree_watcher", watcher)
    _store(nodes[0], "_pytree_memo", memo)


def _is_checkable(node: Any) -> bool:
    return isinstance(node, (Pytree, tuple)) or type(node) in (list, dict, State, type(None))


_store = object.__setattr__
