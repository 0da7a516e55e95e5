"""Trees: object graphs inside a pytree, made into plain pytrees of their own and back.

`to_tree` replaces each object and each Variable in a pytree by a `NodeStates`, a pytree of its
leaves. What several of them share stands in the first one; `from_tree` brings all of them back at
once, sharing included.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import GetAttrKey

from nnx_reference.functional import merge, split
from nnx_reference.pytree import Pytree
from nnx_reference.tables import GraphDef
from nnx_reference.variables import Variable


class NodeStates:
    """What stands for one object in a tree.

    Attributes:
      graphdef: the structure of all objects that were in the tree, as a list.
      index: which of them this is.
      state: the leaves that are this one's own; None if it has none.
    """

    __slots__ = ("graphdef", "index", "state")

    def __init__(self, graphdef: GraphDef[Any], index: int, state: Any) -> None:
        self.graphdef = graphdef
        self.index = index
        self.state = state

    def __repr__(self) -> str:
        return f"NodeStates(index={self.index}, state={self.state!r})"


jax.tree_util.register_pytree_with_keys(
    NodeStates,
    lambda node: (((GetAttrKey("state"), node.state),), (node.graphdef, node.index)),
    lambda static, children: NodeStates(*static, *children),
)


def _is_object(value: Any) -> bool:
    return isinstance(value, (Pytree, Variable))


def _is_node_states(value: Any) -> bool:
    return isinstance(value, NodeStates)


def to_tree(tree: Any, /, *, graph: bool | None = None) -> Any:
    """Replaces each object and Variable in a pytree by a NodeStates; other leaves stay.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_object)
    objects = [leaf for leaf in leaves if _is_object(leaf)]
    graphdef, state = split(objects, graph=graph)
    replacements = iter([NodeStates(graphdef, n, state.get(n)) for n in range(len(objects))])
    return jax.tree.unflatten(
        treedef, [next(replacements) if _is_object(leaf) else leaf for leaf in leaves]
    )


def from_tree(tree: Any, /) -> Any:
    """Replaces each NodeStates in a pytree by a new object; the inverse of `to_tree`.

    Raises:
      ValueError: the NodeStates are not those of one `to_tree`, each once.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=_is_node_states)
    found = [leaf for leaf in leaves if _is_node_states(leaf)]
    if not found:
        return tree
    graphdef = found[0].graphdef
    expected = list(range(len(graphdef.nodes[0].leaves) + len(graphdef.nodes[0].nodes)))
    if sorted(one.index for one in found) != expected or any(
        one.graphdef != graphdef for one in found
    ):
        raise ValueError(
            "from_tree takes all of what one to_tree has made, and nothing of another one"
        )
    objects = merge(graphdef, {one.index: one.state for one in found if one.state is not None})
    return jax.tree.unflatten(
        treedef, [objects[leaf.index] if _is_node_states(leaf) else leaf for leaf in leaves]
    )
