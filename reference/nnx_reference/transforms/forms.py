"""Forms: a pytree with objects in it as arrays, and such a pytree made of arrays again.

JAX's products with Jacobians take and give pytrees that are like a function's arguments and its
output. So do ours, objects included: the cotangent of a Module is a Module of its class, in which
each Variable holds the cotangent of its value, and what is shared in the one is shared in the
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.tree_util import keystr

from nnx_reference.metadata import FLAGS
from nnx_reference.tables import GraphDef, VariableDef, flatten, unflatten
from nnx_reference.transforms.core import close_tree, open_tree, raw_value, spell_root
from nnx_reference.variables import Variable, new_variable


def variable_like(record: VariableDef, value: Any) -> Variable[Any]:
    """Makes a Variable like another one for a tangent, a cotangent: that is always held plainly."""
    metadata = record.metadata
    if metadata.by_reference:
        metadata = metadata.updated(FLAGS)
    return new_variable(record.kind, value, metadata)


class Form(NamedTuple):
    """The structure of a pytree with objects in it.

    Attributes:
      treedef: its structure, down to its objects.
      is_object: whether each of its leaves is an object.
      graphdef: the structure of the objects as one graph, whose root is a list.
      names: a name for each leaf of that graph: that of its place in the pytree.
    """

    treedef: Any
    is_object: tuple[bool, ...]
    graphdef: GraphDef[Any]
    names: list[str]

    def build(self, bare: Any, leaves: Mapping[str, Any]) -> Any:
        """Builds a new pytree of this form, of what JAX has made of the parts of one."""
        made = [
            leaves[name]
            if record is None
            else new_variable(record.kind, leaves[name], record.metadata)
            for name, record in zip(self.names, self.graphdef.leaves, strict=True)
        ]
        objects = unflatten(self.graphdef, made)
        return close_tree(self.treedef, self.is_object, objects, jax.tree.leaves(bare))


class Parts(NamedTuple):
    """A pytree taken apart.

    Attributes:
      form: its structure.
      bare: the pytree with an empty tuple in the place of each object.
      leaves: the values in its objects, by their names.
    """

    form: Form
    bare: Any
    leaves: dict[str, Any]


def take_apart(tree: Any) -> Parts:
    """Takes a pytree with objects in it apart."""
    opened = open_tree(tree, keystr)
    flat = flatten(opened.objects(opened.leaves))
    roots = opened.objects(opened.names)
    names = [spell_root(roots, path) for path in flat.graphdef.paths]
    return Parts(
        Form(opened.treedef, opened.is_object, flat.graphdef, names),
        close_tree(
            opened.treedef, opened.is_object, [()] * len(roots), opened.arrays(opened.leaves)
        ),
        dict(zip(names, map(raw_value, flat.leaves), strict=True)),
    )
