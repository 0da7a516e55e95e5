"""Graphs: an object and all that it holds, as a table of structure and a list of leaves.

`flatten` walks an object graph and gives a `GraphDef` and the leaves; `unflatten` builds an equal
graph of both. All of the functional API stands on these two.

The table. Every object and every container is a node and has a number, in the order in which a
depth-first walk meets them: the root is 0. Every Variable and every raw data value is a leaf,
numbered in the same order. A node's record says what it is (its class), its static children by
value, its data children by number:

    class Net(Module):                      nodes[0] = Net:   nodes  (a, 1) (b, 1)
      def __init__(self):                                     static (n, 3)
        self.a = self.b = Layer()           nodes[1] = Layer: leaves (w, 0)
        self.n = 3                          leaves[0] = Param, no metadata

So what is shared simply has its number at several places, and a cycle is a number that is met again
further down. Nothing in the table refers to the graph that it describes. Two graphs have equal
tables exactly when they have the same classes, keys, static values, metadata and sharing.

A path leads to a leaf by keys; where several do, the one that the walk takes first is the leaf's
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from nnx_reference.exactness import all_exactly_equal
from nnx_reference.jax_private import current_trace
from nnx_reference.metadata import Metadata
from nnx_reference.nodes import Parts, Static, build, is_node, new_object, take_apart
from nnx_reference.pytree import CAPTURES, Key, Path, Pytree, key_order, unhashable
from nnx_reference.remembering import recall, remember
from nnx_reference.variables import Variable

A = TypeVar("A")


class NodeDef(NamedTuple):
    """The record of a node.

    Attributes:
      kind: its class.
      leaves: (key, number) of each child that is a leaf.
      nodes: (key, number) of each child that is a node.
      static: (key, type, value) of each static child.
      form: for a container that only JAX knows, how to build it.
    """

    kind: type
    leaves: tuple[tuple[Key, int], ...]
    nodes: tuple[tuple[Key, int], ...]
    static: tuple[Static, ...]
    form: Any

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, NodeDef):
            return NotImplemented
        return (
            self.kind is other.kind
            and self.leaves == other.leaves
            and self.nodes == other.nodes
            and all_exactly_equal(self.static, other.static)
            and bool(self.form == other.form)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.kind, self.leaves, self.nodes, self.static, self.form))


class VariableDef(NamedTuple):
    """The record of a leaf that is a Variable: its class and metadata."""

    kind: type[Variable[Any]]
    metadata: Metadata


class GraphDef(Generic[A]):
    """The structure of an object graph; see the module's text. Immutable, and hashable.

    It is a JAX pytree without leaves, so that it can be passed to transformed functions as an
    argument.

    Attributes:
      nodes: the record of each node; none if the root is a leaf.
      leaves: the record of each leaf; None for one that is no Variable.
      paths: each leaf's own path.
      node_paths: each node's own path.
      is_tree: whether nothing is shared.
    """

    __slots__ = (
        "__weakref__",
        "_cached_buffers",
        "_cached_hash",
        "_cached_plan",
        "is_tree",
        "leaves",
        "node_paths",
        "nodes",
        "paths",
    )

    _cached_buffers: tuple[int, ...]
    _cached_hash: int
    _cached_plan: Any  # of `nesting.py`

    def __init__(
        self,
        nodes: Sequence[NodeDef],
        leaves: Sequence[VariableDef | None],
        paths: Sequence[Path],
        node_paths: Sequence[Path],
    ) -> None:
        self.nodes = tuple(nodes)
        self.leaves = tuple(leaves)
        self.paths = tuple(paths)
        self.node_paths = tuple(node_paths)
        references = sum([len(node.leaves) + len(node.nodes) for node in self.nodes])
        self.is_tree = not self.nodes or references == len(self.leaves) + len(self.nodes) - 1

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return len(self.leaves)

    @property
    def buffers(self) -> tuple[int, ...]:
        """The numbers of the leaves into which a capture records; copies share them."""
        try:
            return self._cached_buffers
        except AttributeError:
            numbers = [n for n, path in enumerate(self.paths) if CAPTURES in path]
            self._cached_buffers = tuple(numbers)
            return self._cached_buffers

    def statics(self) -> list[Any]:
        """Lists the static values."""
        return [value for node in self.nodes for _, _, value in node.static]

    def references(self) -> list[tuple[int, bool, list[Path]]]:
        """Lists what is shared: its number, whether it is a node, and every path to it.

        The buffers of a capture do not count, as copies share them by nature.
        """
        found: dict[tuple[bool, int], list[Path]] = {(True, 0): [()]} if self.nodes else {}
        for path, node in zip(self.node_paths, self.nodes, strict=True):
            for is_a_node, children in ((False, node.leaves), (True, node.nodes)):
                for key, number in children:
                    found.setdefault((is_a_node, number), []).append((*path, key))
        shared = [
            (n, is_a_node, sorted(p, key=_order))
            for (is_a_node, n), p in found.items()
            if len(p) > 1 and not any(CAPTURES in path for path in p)
        ]
        return sorted(shared, key=lambda item: _order(item[2][0]))

    def apply(self, state: Any, /, *states: Any) -> Any:
        """Returns a stand-in for the object of this structure and of States; see `calling.call`.

        `y, (graphdef, state) = graphdef.apply(state)(x)` calls the object with x.
        """
        from nnx_reference.calling import call  # it builds on this module

        return call((self, state, *states))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, GraphDef):
            return NotImplemented
        return self.leaves == other.leaves and self.nodes == other.nodes

    def __hash__(self) -> int:
        try:
            return self._cached_hash
        except AttributeError:
            self._check_hashable()
            self._cached_hash = hash((self.nodes, self.leaves))
            return self._cached_hash

    def _check_hashable(self) -> None:
        for path, node in zip(self.node_paths, self.nodes, strict=True):
            for key, _, value in node.static:
                try:
                    hash(value)
                except TypeError:
                    raise unhashable(node.kind, (*path, key), value) from None
        for path, leaf in zip(self.paths, self.leaves, strict=True):
            try:
                hash(leaf)
            except TypeError as error:
                raise TypeError(f"at {path}: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphDef, (self.nodes, self.leaves, self.paths, self.node_paths)

    def __repr__(self) -> str:
        nodes = ", ".join(node.kind.__name__ for node in self.nodes)
        leaves = ", ".join("data" if leaf is None else leaf.kind.__name__ for leaf in self.leaves)
        return f"GraphDef(nodes=[{nodes}], leaves=[{leaves}])"


jax.tree_util.register_static(GraphDef)


def _order(path: Path) -> list[tuple[bool, Any]]:
    return [key_order(key) for key in path]


class Flat(NamedTuple):
    """A graph taken apart.

    Attributes:
      graphdef: its structure.
      leaves: the Variables themselves and raw values, one for each leaf of `graphdef`.
      nodes: the objects and containers themselves, one for each node of `graphdef`.
    """

    graphdef: GraphDef[Any]
    leaves: list[Any]
    nodes: list[Any]


def flatten(root: Any) -> Flat:
    """Takes a graph apart. It is only read; cost grows with its size, and its depth is not limited.

    Args:
      root: an object, a container, or a single leaf.

    Raises:
      ValueError: a container contains itself.
    """
    if not is_node(root):
        record = VariableDef(type(root), root._metadata) if isinstance(root, Variable) else None
        return Flat(GraphDef((), (record,), ((),), ()), [root], [])
    if not isinstance(root, Pytree):
        return _walk(root)
    if (known := recall(root, flatten)) is not None:
        graphdef, leaves, nodes = known
        return Flat(graphdef, leaves, [root, *nodes])
    flat = _walk(root)
    known = flat.graphdef, flat.leaves, flat.nodes[1:]
    remember(root, flatten, flat.nodes, flat.leaves, flat.graphdef.statics(), known)
    return flat


def _walk(root: Any) -> Flat:
    walk = _Walk()
    walk.open(root, (), judged=True)
    while walk.frames:
        walk.advance(walk.frames[-1])
    graphdef: GraphDef[Any] = GraphDef(walk.records, walk.leaf_records, walk.paths, walk.node_paths)
    return Flat(graphdef, walk.leaves, walk.nodes)


class _Frame:
    """A node whose children are being walked."""

    __slots__ = ("leaves", "node", "nodes", "number", "parts", "path", "pending")

    def __init__(self, node: Any, number: int, path: Path, parts: Parts) -> None:
        self.node = node
        self.number = number
        self.path = path
        self.parts = parts
        self.pending: Iterator[tuple[Key, Any]] = iter(parts.data)
        self.leaves: list[tuple[Key, int]] = []
        self.nodes: list[tuple[Key, int]] = []


class _Walk:
    """A depth-first walk, with a stack of its own instead of recursion."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.numbers: dict[
            int, int
        ] = {}  # of objects, Variables and Refs by id; the graph keeps them alive
        self.open_containers: set[int] = set()
        self.records: list[Any] = []
        self.nodes: list[Any] = []
        self.node_paths: list[Path] = []
        self.leaf_records: list[VariableDef | None] = []
        self.leaves: list[Any] = []
        self.paths: list[Path] = []

    def open(self, node: Any, path: Path, judged: bool) -> int:
        """Gives a node its number and makes it the innermost frame."""
        number = len(self.nodes)
        if isinstance(node, Pytree):
            self.numbers[id(node)] = number
        elif id(node) in self.open_containers:
            raise ValueError(
                f"the {type(node).__name__} at {path} contains itself; only objects may do that"
            )
        else:
            self.open_containers.add(id(node))
        self.nodes.append(node)
        self.node_paths.append(path)
        self.records.append(None)
        self.frames.append(_Frame(node, number, path, take_apart(node, judged)))
        return number

    def advance(self, frame: _Frame) -> None:
        """Walks through a node's children, up to the next one that has to be opened first."""
        numbers, path = self.numbers, frame.path
        for key, value in frame.pending:
            if isinstance(value, Variable):
                number = numbers.get(id(value))
                if number is None:
                    number = numbers[id(value)] = self.add_leaf(
                        value, (*path, key), VariableDef(type(value), value._metadata)
                    )
                frame.leaves.append((key, number))
            elif is_node(value):
                number = numbers.get(id(value))
                if number is None:
                    frame.nodes.append((key, self.open(value, (*path, key), frame.parts.judged)))
                    return
                frame.nodes.append((key, number))
            else:
                frame.leaves.append((key, self.add_value(value, (*path, key))))
        self.close(frame)

    def add_value(self, value: Any, path: Path) -> int:
        """Returns the number of a raw value: a new one, but for a Ref that was met before."""
        if not isinstance(value, jax.Ref):
            return self.add_leaf(value, path, None)
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = self.add_leaf(value, path, None)
        return number

    def add_leaf(self, value: Any, path: Path, record: VariableDef | None) -> int:
        self.leaves.append(value)
        self.paths.append(path)
        self.leaf_records.append(record)
        return len(self.leaves) - 1

    def close(self, frame: _Frame) -> None:
        """Writes the record of a node whose children have all been walked."""
        self.frames.pop()
        self.open_containers.discard(id(frame.node))
        static, form = frame.parts.static, frame.parts.form
        self.records[frame.number] = NodeDef(
            type(frame.node), tuple(frame.leaves), tuple(frame.nodes), static, form
        )


def unflatten(graphdef: GraphDef[A], leaves: Sequence[Any]) -> A:
    """Builds a new graph of its structure and leaves; see `rebuild`."""
    root: A = rebuild(graphdef, leaves).nodes[0] if graphdef.nodes else leaves[0]
    return root


def rebuild(graphdef: GraphDef[Any], leaves: Sequence[Any]) -> Flat:
    """Builds a new graph of its structure and leaves, which become part of it as they are.

    Its objects belong to the current trace level. A node's number is higher than that of any
    container that holds it, so going from the last node to the first, every child that is a
    container is whole when its parent is built.

    Args:
      graphdef: the structure.
      leaves: a Variable or raw value for each leaf of `graphdef`.

    Returns:
      The new graph, as `flatten` would take it apart.
    """
    trace = current_trace()
    built = [new_object(node.kind, trace) for node in graphdef.nodes]
    for number in range(len(built) - 1, -1, -1):
        kind, leaf_children, node_children, static, form = graphdef.nodes[number]
        data: dict[Key, Any] = {key: leaves[n] for key, n in leaf_children}
        for key, n in node_children:
            data[key] = built[n]
        built[number] = build(built[number], kind, form, data, static)
    return Flat(graphdef, list(leaves), built)
