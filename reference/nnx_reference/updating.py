"""Changing an object in place: `update` writes a state into it, `pop` takes state out of it.

Both check everything before they change anything, so that an error leaves the object as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nnx_reference.attributes import is_data
from nnx_reference.filters import Filter
from nnx_reference.functional import state_of
from nnx_reference.grouping import select
from nnx_reference.nesting import as_value
from nnx_reference.nodes import (
    build,
    check_changeable,
    child_table,
    delete_child,
    is_changeable,
    is_node,
    set_child,
    take_apart,
)
from nnx_reference.pytree import Key, Path, Pytree
from nnx_reference.tables import Flat, flatten
from nnx_reference.values import unaliased
from nnx_reference.variables import Variable

Write = Callable[[], None]


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Writes the leaves of States into the Variables at their paths; all objects stay the same.

    A leaf may be a Variable of the class that stands there, whose value and metadata are taken
    over, or a plain value: an array, a number, for a Variable with a container as its value also a
    mapping. It may also stand for a raw value among an object's data. A Variable at a path that an
    object lacks becomes a new attribute.

    Args:
      node: the object, or container of objects, to update.
      state: a State or nested mapping.
      *states: more; where several have a path, the last one decides.

    Raises:
      ValueError: a path leads nowhere, to a node or to a static value, or to a Variable of another
        class, or to a raw value in a tuple that no list, dict or object holds. The error names the
        path, and nothing has changed.
      TraceContextError: what is to be written belongs to another trace level; nothing has changed.
      ImmutableVariableError: a Variable to be written is not mutable; nothing has changed.
    """
    if isinstance(node, Variable):
        writes = [_write_variable(node, one, ()) for one in (state, *states)]
    else:
        writing = _Writing()
        for one in (state, *states):
            writing.add(node, one)
        writes = [*writing.writes, *reversed(writing.rebuilds)]
    for write in writes:
        write()


class _Writing:
    """What has to be done, as far as the States have been gone through; each item after its check.

    For a container that cannot change, a dict of its children is changed instead; after that, and
    innermost first, the container is rebuilt where it stood.
    """

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.rebuilds: list[Write] = []
        self.stand_ins: dict[Path, dict[Key, Any]] = {}
        self.holders: dict[Path, tuple[Any, Path]] = {}
        self.further: list[tuple[Any, Mapping[Key, Any], Path]] = []

    def add(self, root: Any, state: Any) -> None:
        """Goes through a State."""
        if not is_node(root) or not isinstance(state, Mapping):
            raise ValueError(
                f"update takes an object and nested mappings, not a {type(root).__name__} and a"
                f" {type(state).__name__}"
            )
        self.further.append((root, state, ()))
        while self.further:
            self.into(*self.further.pop())

    def into(self, node: Any, mapping: Mapping[Key, Any], path: Path) -> None:
        """Goes through what a State has for a node's children."""
        children = child_table(node)
        for key, value in mapping.items():
            child, inner = children.get(key, _ABSENT), (*path, key)
            if isinstance(child, Variable):
                self.writes.append(_write_variable(child, value, inner))
            elif not _leads_on(value) or not is_node(child):
                self.check_holder(path)
                self.writes.append(_write_child(node, key, child, value, inner))
            elif is_changeable(child):
                self.further.append((child, value, inner))
            else:
                self.holders[inner] = node, path
                self.further.append((self.stand_in(node, key, child, inner), value, inner))

    def stand_in(self, node: Any, key: Key, container: Any, path: Path) -> dict[Key, Any]:
        """Returns what is changed instead of a node's container that cannot change."""
        if path not in self.stand_ins:
            children = self.stand_ins[path] = dict(take_apart(container).data)
            self.rebuilds.append(partial(_rebuild, node, key, container, children))
        return self.stand_ins[path]

    def check_holder(self, path: Path) -> None:
        """Checks that what is rebuilt for a change inside can be put where it stood."""
        holder = None
        while path in self.holders:
            holder, path = self.holders[path]
        if holder is not None:
            check_changeable(holder, path)


def _rebuild(node: Any, key: Key, container: Any, children: dict[Key, Any]) -> None:
    """Puts a container with other children in place of one, unless they are all the same."""
    parts = take_apart(container)
    if any(children[inner] is not child for inner, child in parts.data):
        set_child(node, key, build(None, type(container), parts.form, children, ()))


_ABSENT: Any = object()


def _leads_on(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, Variable)


def _write_variable(variable: Variable[Any], value: Any, path: Path) -> Write:
    if not isinstance(value, Variable):
        variable._check_write()
        if isinstance(value, Mapping):
            value = as_value(value, path)
            if not isinstance(variable._load(), Mapping):
                raise ValueError(
                    f"the state has a mapping at {path}, where the object has {variable!r}"
                )
        variable._check_write(value)
        return lambda: variable._store(unaliased(value))
    if type(value) is not type(variable):
        raise ValueError(
            f"the state has a {type(value).__name__} at {path}, where the object has a"
            f" {type(variable).__name__}"
        )
    variable._check_copy(value)
    return lambda: variable._take(value)


def _write_child(node: Any, key: Key, child: Any, value: Any, path: Path) -> Write:
    """Replaces a raw data value, or puts a new Variable in; everything else is refused."""
    if child is _ABSENT:
        may_be_new = isinstance(node, Pytree) and node._pytree_takes(key)
        if not may_be_new or not isinstance(value, Variable):
            raise ValueError(
                f"the object has nothing at {path}; only a Variable may be put in, and only where"
                " an object can have a child of that key"
            )
        value = value.copy()
    else:
        is_raw = _is_data_child(node, key, child) and not is_node(child)
        if not is_raw or _leads_on(value) or isinstance(value, Variable):
            kind = "data" if is_raw else "node" if is_node(child) else "static"
            raise ValueError(
                f"the object has a {type(child).__name__} ({kind}) at {path}, which a"
                f" {type(value).__name__} in a state cannot update"
            )
    check_changeable(node, path[:-1])
    return lambda: set_child(node, key, value)


def _is_data_child(node: Any, key: Key, child: Any) -> bool:
    if not isinstance(node, Pytree):
        return True
    return node._pytree_layout().flags[key] if node._pytree_enabled else is_data(child)


def pop(node: Any, /, *filters: Filter) -> Any:
    """Takes what filters select out of an object graph, from every place that holds it.

    Returns:
      The leaves taken out, as a State by each one's own path, or a tuple of a State for each filter
      if there are several. Variables are the very objects.

    Raises:
      ValueError: there is no filter, `...` is not the last one, or something selected is in a tuple
        or the like. The graph is unchanged then.
      TraceContextError: an object that holds something selected belongs to another trace level;
        likewise.
    """
    if not filters:
        raise ValueError("pop takes at least one filter; `...` takes out everything")
    flat = flatten(node)
    groups = select(zip(flat.graphdef.paths, flat.leaves, strict=True), filters)
    paths = {path for group in groups for path, _ in group}
    chosen = {n for n, path in enumerate(flat.graphdef.paths) if path in paths}
    if chosen and not flat.nodes:
        raise ValueError(
            f"a {type(node).__name__} cannot be taken out of itself; pop takes what holds it"
        )
    for holder, keys in _holders(flat, chosen):
        for key in reversed(keys):  # a list closes up behind what is taken out
            delete_child(holder, key)
    states = [state_of(group) for group in groups]
    return states[0] if len(states) == 1 else tuple(states)


def _holders(flat: Flat, chosen: set[int]) -> list[tuple[Any, list[Key]]]:
    """Lists the nodes that hold chosen leaves, with the keys; checks that each can be changed."""
    found = []
    for node, record, path in zip(
        flat.nodes, flat.graphdef.nodes, flat.graphdef.node_paths, strict=True
    ):
        keys = [key for key, number in record.leaves if number in chosen]
        if keys:
            check_changeable(node, path)
            found.append((node, keys))
    return found
