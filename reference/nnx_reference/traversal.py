"""Traversal: going through an object graph, and rebuilding it on the way.

Everything is visited once, children before parents and in canonical order, with a path that leads
to it. Static values are visited, too. In tree mode something that is met twice is an error; in
graph mode it is visited where it is met first, and cycles end there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nnx_reference.configuration import resolve_graph
from nnx_reference.filters import Filter, to_predicate
from nnx_reference.functional import read
from nnx_reference.jax_private import current_trace
from nnx_reference.nodes import build, is_node, new_object, take_apart
from nnx_reference.pytree import Key, Module, Path, Pytree, key_order
from nnx_reference.tables import flatten
from nnx_reference.variables import Variable


class _Visit:
    """A node on the way: first its children are visited, then it."""

    __slots__ = ("judged", "node", "parts", "path", "pending")

    def __init__(self, node: Any, path: Path, judged: bool) -> None:
        self.node = node
        self.path = path
        self.parts = take_apart(node, judged)
        self.judged = self.parts.judged
        items = [*self.parts.data, *((key, value) for key, _, value in self.parts.static)]
        static = {key for key, _, _ in self.parts.static}
        ordered = sorted(items, key=lambda item: key_order(item[0]))
        self.pending: Iterator[tuple[Key, Any, bool]] = iter(
            [(k, v, k in static) for k, v in ordered]
        )


def _visits(root: Any) -> Iterator[tuple[Path, Any, _Visit | None]]:
    """Yields everything once, children first: its path, itself, and for a node its parts."""
    if not is_node(root):
        yield (), root, None
        return
    seen = {id(root)}
    stack = [_Visit(root, (), judged=True)]
    while stack:
        visit = stack[-1]
        for key, value, is_static in visit.pending:
            if isinstance(value, (Variable, Pytree)):
                if id(value) in seen:
                    continue
                seen.add(id(value))
            if not is_static and is_node(value):
                stack.append(_Visit(value, (*visit.path, key), visit.judged))
                break
            yield (*visit.path, key), value, None
        else:
            stack.pop()
            yield visit.path, visit.node, visit


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """Yields (path, value) for all in an object graph, leaves and static values included.

    Raises:
      ValueError: in tree mode, something is shared; at once, before anything is yielded.
    """
    read(node, graph, "iter_graph")
    return ((path, value) for path, value, _ in _visits(node))


def iter_modules(module: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """Yields (path, Module) for every Module in an object graph, the root last.

    Raises:
      ValueError: in tree mode, something is shared; at once, before anything is yielded.
    """
    read(module, graph, "iter_modules")
    return ((path, value) for path, value, _ in _visits(module) if isinstance(value, Module))


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Key, Any]]:
    """Yields (key, child) for those children of a node that are nodes or Variables.

    Raises:
      ValueError: in tree mode, something is shared; at once, before anything is yielded.
    """
    if not resolve_graph(graph):
        read(node, graph, "iter_children")
    children = take_apart(node, judged=True).data if is_node(node) else []
    once = {id(child): (key, child) for key, child in reversed(children)}
    return (
        once[id(child)]
        for key, child in children
        if once[id(child)][0] == key and _has_identity(child)
    )


def _has_identity(value: Any) -> bool:
    return isinstance(value, Variable) or is_node(value)


def iter_module_children(
    node: Any, /, *, graph: bool | None = None
) -> Iterator[tuple[Key, Module]]:
    """Yields (key, child) for the children of a node that are Modules, in canonical order.

    Raises:
      ValueError: in tree mode, something is shared; at once, before anything is yielded.
    """
    return (
        (key, child) for key, child in iter_children(node, graph=graph) if isinstance(child, Module)
    )


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """Rebuilds an object graph bottom-up, with `f(path, value)` in place of each value.

    `f` gets leaves and static values as they are, and each node as a new one that already has its
    new children. It is called once for each Variable and object; what it returns stands wherever
    that was met. Only where a cycle leads back to an object on the way down, the new object stands
    even if `f` goes on to replace it. The original is unchanged; Variables that `f` returns are
    shared with it.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    read(node, graph, "recursive_map")
    rebuilding = _Rebuilding(f)
    for path, value, visit in _visits(node):
        rebuilding.add(path, value, visit)
    return rebuilding.results[()]


class _Rebuilding:
    """What has been rebuilt so far: by path, and what has an identity by that, too."""

    def __init__(self, f: Callable[[Path, Any], Any]) -> None:
        self.f = f
        self.results: dict[Path, Any] = {}
        self.by_identity: dict[int, Any] = {}
        self.trace = current_trace()

    def add(self, path: Path, value: Any, visit: _Visit | None) -> None:
        result = self.f(path, value if visit is None else self.build(visit))
        self.results[path] = result
        if isinstance(value, (Variable, Pytree)):
            self.by_identity[id(value)] = result

    def build(self, visit: _Visit) -> Any:
        kind = type(visit.node)
        data = {key: self.child(visit, key, value) for key, value in visit.parts.data}
        static = [
            (k, type(v), v) for k, _, old in visit.parts.static for v in [self.child(visit, k, old)]
        ]
        return build(self.empty(visit.node), kind, visit.parts.form, data, static)

    def child(self, visit: _Visit, key: Key, value: Any) -> Any:
        path = (*visit.path, key)
        if path in self.results:
            return self.results.pop(path)
        if id(value) in self.by_identity:
            return self.by_identity[id(value)]
        return self.empty(value)  # an object further up

    def empty(self, node: Any) -> Any:
        """Returns the new object that is to stand for one, not filled yet."""
        if not isinstance(node, Pytree):
            return None
        if id(node) not in self.by_identity:
            self.by_identity[id(node)] = new_object(type(node), self.trace)
        return self.by_identity[id(node)]


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """Finds what a tree must not have: Variables and objects that are met more than once.

    Args:
      node: an object, or a container of objects.
      only: selects which Variables and objects count, by their own path.

    Returns:
      For each of them a list of the paths at which it is met; [] for a tree.
    """
    flat, selects = flatten(node), to_predicate(only)
    return [
        paths
        for number, is_a_node, paths in flat.graphdef.references()
        if selects(paths[0], (flat.nodes if is_a_node else flat.leaves)[number])
    ]
