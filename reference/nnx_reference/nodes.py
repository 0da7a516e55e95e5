"""Nodes: what the functional API looks into, and how each kind is taken apart and rebuilt.

Two kinds of things have children. Objects (Pytrees, `pytree=False` ones included) have an identity:
the graph knows whether two places hold the same one. Containers (list, tuple, dict, None, State and
whatever else is registered with JAX) have none: one at two places is two.

In a Pytree, and in a container that is one of its data attributes, everything that is not static is
data, whatever it is. Where nobody has said what is data, in a container at the root and in
`pytree=False` objects, each value speaks for itself: it is data if `is_data` says so, or if it is a
container that holds such data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from nnx_reference.attributes import has_data, is_data
from nnx_reference.jax_private import Trace
from nnx_reference.pytree import Key, Path, Pytree, key_order
from nnx_reference.state import State, sorted_keys
from nnx_reference.variables import Variable

Items = list[tuple[Key, Any]]
Static = tuple[Key, type, Any]
"""A static child: key, type, value. The type keeps 1, 1.0 and True apart in comparisons."""


class Parts(NamedTuple):
    """A node taken apart.

    Attributes:
      data: data children by key, in canonical order.
      static: static children, in canonical order.
      form: what else is needed to build such a node again; None for most.
      judged: whether containers among the data are to be judged value by value, too.
    """

    data: Items
    static: tuple[Static, ...] = ()
    form: Any = None
    judged: bool = False


def is_container(value: Any) -> bool:
    """Tells whether a value that is neither an object nor a Variable has children."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    return not isinstance(value, (Variable, Pytree, jax.Array)) and not jax.tree_util.all_leaves(
        [value]
    )


def is_node(value: Any) -> bool:
    """Tells whether a value is an object or a container."""
    return isinstance(value, Pytree) or is_container(value)


def take_apart(node: Any, judged: bool = False) -> Parts:
    """Lists a node's children.

    Args:
      node: an object or a container.
      judged: for a container: whether it stands where each value speaks for itself.
    """
    if isinstance(node, Pytree):
        return _take_object_apart(node)
    form = None
    if isinstance(node, (dict, State)) and type(node) in _PLAIN:
        items = [(key, node[key]) for key in sorted_keys(node)]
    elif type(node) in _PLAIN:
        items = list(enumerate(node or ()))
    else:
        items, form = _take_registered_apart(node)
    return Parts(items, form=form) if not judged else _judge(items, form)


def _take_object_apart(node: Pytree) -> Parts:
    table = node._pytree_table()
    if not node._pytree_enabled:
        return _judge([(key, table[key]) for key in sorted_keys(table)], None)
    layout = node._pytree_layout()
    static = tuple([_static(key, table[key]) for key in layout.static])
    return Parts([(key, table[key]) for key in layout.data], static)


def _static(key: Key, value: Any) -> Static:
    kind = type(value)
    return (key, kind, own_static(value) if kind in _COPIED else value)


def _judge(items: Items, form: Any) -> Parts:
    data: Items = []
    static: list[Static] = []
    for key, value in items:
        if is_data(value) or has_data(value):
            data.append((key, value))
        else:
            static.append(_static(key, value))
    return Parts(data, tuple(static), form, judged=True)


class Form(NamedTuple):
    """How a container that only JAX knows is built: a treedef of its children, and their keys."""

    treedef: Any
    keys: tuple[Key, ...]


def _take_registered_apart(node: Any) -> tuple[Items, Form]:
    found, treedef = jax.tree_util.tree_flatten_with_path(
        node, is_leaf=lambda value: value is not node
    )
    keys = tuple(plain_key(path[0]) for path, _ in found)
    if len(set(keys)) < len(keys):
        keys = tuple(range(len(keys)))
    items = [(key, value) for key, (_, value) in zip(keys, found, strict=True)]
    return sorted(items, key=lambda item: key_order(item[0])), Form(treedef, keys)


def plain_key(key: Any) -> Key:
    """Returns the key that an entry of a JAX key path stands for."""
    match key:
        case GetAttrKey(name=name):
            return name
        case SequenceKey(idx=index):
            return index
        case DictKey(key=inner):
            return inner
        case _:
            return getattr(key, "key", str(key))


_PLAIN = frozenset({list, tuple, dict, type(None), State})


# --- building ---


def new_object(kind: type, trace: Trace) -> Any:
    """Makes an empty object; for a container, which is built whole, gives None."""
    return kind._pytree_new(trace) if issubclass(kind, Pytree) else None


def build(node: Any, kind: type, form: Any, data: dict[Key, Any], static: Iterable[Static]) -> Any:
    """Gives an empty object its children, or builds a container of them; returns it."""
    values = {key: own_static(value) if of in _COPIED else value for key, of, value in static}
    if node is not None:
        node._pytree_fill(data, values)
        return node
    children = {**data, **values} if values else data
    if kind is list or kind is tuple:
        return kind([children[n] for n in range(len(children))])
    if kind is dict:
        return {key: children[key] for key in sorted_keys(children)}
    if kind is State:
        return State(children)
    return (
        None
        if form is None
        else jax.tree.unflatten(form.treedef, [children[key] for key in form.keys])
    )


_COPIED = frozenset({list, dict, set, tuple})


def own_static(value: Any) -> Any:
    """Returns a static value that shares no list, dict or set with the given one, at any depth.

    It is the given one itself if there are none in it.
    """
    match value:
        case list() if type(value) is list:
            return [own_static(item) for item in value]
        case dict() if type(value) is dict:
            return {key: own_static(item) for key, item in value.items()}
        case set() if type(value) is set:
            return set(value)
        case tuple() if type(value) is tuple:
            copied = tuple([own_static(item) for item in value])
            return value if all(map(is_, copied, value)) else copied
        case _:
            return value


# --- changing one child ---


def child_table(node: Any) -> Mapping[Key, Any]:
    """Returns a node's children by key, static ones included."""
    if isinstance(node, Pytree):
        return node._pytree_table()
    parts = take_apart(node)
    return dict(parts.data)


def is_changeable(node: Any) -> bool:
    """Tells whether children of a node can be put in, replaced and taken out in place."""
    return isinstance(node, (Pytree, list, dict, State))


def check_changeable(node: Any, path: Path) -> None:
    """Checks that a child of a node may be put in, replaced or taken out.

    Raises:
      TraceContextError: the node is an object of another trace level.
      ValueError: the node is a container that cannot be changed.
    """
    if isinstance(node, Pytree):
        node._pytree_before_change()
    elif not is_changeable(node):
        raise ValueError(
            f"the {type(node).__name__} at {path} cannot be changed in place; use a list or a dict"
        )


def set_child(node: Any, key: Key, value: Any) -> None:
    """Puts a child into a node or replaces one."""
    if isinstance(node, Pytree):
        node._pytree_set(key, value)
    else:
        node[key] = value


def delete_child(node: Any, key: Key) -> None:
    """Takes a child out of a node."""
    if isinstance(node, Pytree):
        node._pytree_delete(key)
    else:
        del node[key]
