"""Sharding: annotations for Variables, and what they say about whole models.

`partitioning.py` says what the annotations mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nnx_reference.functional import map_leaves, split
from nnx_reference.metadata import with_metadata
from nnx_reference.partitioning import partition_spec, with_sharding
from nnx_reference.state import State, map_state
from nnx_reference.tables import GraphDef
from nnx_reference.transforms.tracing import eval_shape
from nnx_reference.variables import Variable


def with_partitioning(
    initializer: Callable[..., Any],
    sharding: Any,
    mesh: Mesh | None = None,
    **metadata: Any,
) -> Callable[..., Any]:
    """Makes an initializer whose result, wrapped in a Variable, is partitioned.

    Args:
      initializer: returns an array.
      sharding: the metadata `out_sharding`: for each axis the name of a mesh axis, or None.
      mesh: the metadata `mesh`; None for the mesh that is set when the Variable is made.
      **metadata: further metadata.
    """
    entries = metadata if mesh is None else {**metadata, "mesh": mesh}
    return with_metadata(initializer, out_sharding=sharding, **entries)


def get_partition_spec(tree: Any) -> Any:
    """Returns how the leaves of a pytree are annotated.

    Args:
      tree: a pytree, such as a State or a Module.

    Returns:
      The pytree, with a PartitionSpec as the value of each Variable, `PartitionSpec()` if it is not
      annotated, and in place of each array; None in place of all else.

    Raises:
      ValueError: two rules say different things about a logical name.
    """
    return jax.tree.map(_spec, tree, is_leaf=_is_variable)


def _spec(leaf: Any) -> Any:
    if isinstance(leaf, Variable):
        said = partition_spec(leaf.get_metadata())
        if said is None and hasattr(leaf.get_value(), "shape"):
            said = PartitionSpec()
        return leaf.replace(said, hijax=False, ref=False)
    return PartitionSpec() if hasattr(leaf, "shape") else None


def get_named_sharding(tree: Any, mesh: Mesh) -> Any:
    """Returns how the leaves of a pytree are annotated, on a mesh.

    Args:
      tree: a pytree, such as a State or a Module.
      mesh: the mesh.

    Returns:
      As `get_partition_spec`, with a NamedSharding for each PartitionSpec.

    Raises:
      ValueError: two rules say different things about a logical name.
    """
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), get_partition_spec(tree))


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, Variable)


def as_abstract(tree: Any, graph: bool | None = None) -> Any:
    """Adds shardings to the abstract values of Variables, as `eval_shape` makes them.

    Args:
      tree: an object or container of objects. It does not change.
      graph: True for graph mode, False for tree mode, None for the default.

    Returns:
      A copy in which each `jax.ShapeDtypeStruct` of an annotated Variable has a NamedSharding: on
      the mesh in its metadata `mesh`, or else on that of `jax.set_mesh`. What has a sharding
      already keeps it; without a mesh, none is added.

    Raises:
      ValueError: two rules say different things about a logical name; or, in tree mode, something
        is shared.
    """

    def annotated(_: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Variable):
            return leaf
        return jax.tree.map(lambda value: with_sharding(value, leaf._metadata), leaf)

    return map_leaves(annotated, tree, graph=graph)


def get_abstract_model(
    init_fn: Callable[[], Any], mesh: Mesh, *, graph: bool | None = None
) -> tuple[GraphDef[Any], State]:
    """Finds what a function that makes a model would make, without any array: for checkpoints.

    Args:
      init_fn: makes the model.
      mesh: the devices.
      graph: True for graph mode, False for tree mode, None for the default.

    Returns:
      The structure and the State of the model. In the State there is a `jax.ShapeDtypeStruct` for
      each array, with its shape, dtype and a NamedSharding: by the metadata `out_sharding` of the
      Variable or, without any, such that all devices have the whole array.

    Raises:
      ValueError: in tree mode, something in the model is shared.
    """
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        model = eval_shape(init_fn, graph=graph, graph_updates=False)
    graphdef, state = split(model, graph=graph)
    return graphdef, map_state(lambda _, leaf: _with_sharding(leaf, mesh), state)


def _with_sharding(leaf: Any, mesh: Mesh) -> Any:
    said = partition_spec(leaf.get_metadata()) if isinstance(leaf, Variable) else None
    sharding = NamedSharding(mesh, PartitionSpec() if said is None else said)
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), leaf
    )
