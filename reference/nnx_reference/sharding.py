"""Sharding: which part of each array lives on which device.

The metadata `out_sharding` of a Variable names the axis of a mesh for each axis of its value, None
where that is not partitioned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nnx_reference.functional import split
from nnx_reference.metadata import partition_spec
from nnx_reference.state import State, map_state
from nnx_reference.tables import GraphDef
from nnx_reference.transforms.tracing import eval_shape
from nnx_reference.variables import Variable


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
    model = eval_shape(init_fn, graph=graph, graph_updates=False)
    graphdef, state = split(model, graph=graph)
    return graphdef, map_state(lambda _, leaf: _with_sharding(leaf, mesh), state)


def _with_sharding(leaf: Any, mesh: Mesh) -> Any:
    said = partition_spec(leaf.get_metadata()) if isinstance(leaf, Variable) else None
    sharding = NamedSharding(mesh, PartitionSpec() if said is None else said)
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), leaf
    )
