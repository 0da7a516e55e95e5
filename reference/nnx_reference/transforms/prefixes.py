"""prefix: a tree like an object, with what is said of its Variables in their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.tree_util import keystr

from nnx_reference.configuration import resolve_graph
from nnx_reference.filters import Filter, to_predicate
from nnx_reference.nodes import plain_key
from nnx_reference.pytree import Path
from nnx_reference.tables import flatten, unflatten
from nnx_reference.transforms.core import check_tree, close_tree, is_object, open_tree


def prefix(
    node: Any,
    filter_map: Mapping[Filter, Any] | Callable[[Path, Any], Any],
    /,
    *,
    graph: bool | None = None,
) -> Any:
    """Makes a tree prefix for an object, or a pytree of objects, to pass as `in_axes` and the like.

    Args:
      node: the object.
      filter_map: maps filters to what shall stand for a Variable or array, the first that selects
        it deciding; or a function of its path and itself that tells.
      graph: True for graph mode, False for tree mode, None for the default.

    Returns:
      A tree of the same structure, Modules being of the same class, with an axis, a PartitionSpec
      or whatever is said in the place of each Variable and array. Every transform takes it in the
      place of the object, and those of JAX do for what they take as a pytree.

    Raises:
      ValueError: no filter selects some Variable; in tree mode, something is shared.
    """
    opened = open_tree(node, lambda path: "node" + keystr(path))
    places = [
        tuple(map(plain_key, path))
        for path, _ in jax.tree_util.tree_leaves_with_path(node, is_leaf=is_object)
    ]
    flat = flatten(opened.objects(opened.leaves))
    if not resolve_graph(graph):
        check_tree(flat.graphdef, opened.objects(opened.names))
    tell = filter_map if callable(filter_map) else _first_of(filter_map)
    roots = opened.objects(places)
    said = [
        tell((*roots[path[0]], *path[1:]), leaf)  # type: ignore[index]
        for path, leaf in zip(flat.graphdef.paths, flat.leaves, strict=True)
    ]
    arrays = map(tell, opened.arrays(places), opened.arrays(opened.leaves))
    objects = unflatten(flat.graphdef, said)
    return close_tree(opened.treedef, opened.is_object, objects, list(arrays))


def _first_of(filter_map: Mapping[Filter, Any]) -> Callable[[Path, Any], Any]:
    """Makes the function that tells what the first filter says which selects something."""
    pairs = [(to_predicate(selector), said) for selector, said in filter_map.items()]

    def tell(path: Path, leaf: Any) -> Any:
        for selects, said in pairs:
            if selects(path, leaf):
                return said
        raise ValueError(
            f"prefix has nothing for the {type(leaf).__name__} at {path}: add a filter that"
            " selects it, or `...`"
        )

    return tell
