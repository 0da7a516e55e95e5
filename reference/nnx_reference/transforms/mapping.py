"""vmap: mapping a function over an axis of arrays, Variables and Modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from nnx_reference.transforms.axes import AXES
from nnx_reference.transforms.axis_metadata import NO_METADATA, in_step, refuse_metadata
from nnx_reference.transforms.core import MISSING, Inputs, decorator
from nnx_reference.transforms.placing import Placed, bundle, finish


@decorator
def vmap(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | tuple[Hashable, ...] | None = None,
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Maps a function over axes of its arguments: `jax.vmap` for functions of objects.

    An axis that is said of an object holds for every Variable and array in it; `StateAxes` say one
    for each. What the function does to objects among its arguments reaches the caller's objects,
    along the axis on which they came in. A Variable that is not mapped (None) can only be written
    with what is the same for all slices.

    Args:
      f: the function; without it, the result is a decorator.
      in_axes: an int, None, or a tuple with a tree prefix for each positional argument, which holds
        ints, None and StateAxes. Keyword arguments are mapped over axis 0, but for those whose
        positions have an entry in a tuple.
      out_axes: a tree prefix of the output, likewise.
      axis_name: a name of the axis for collectives.
      axis_size: the size of the axis, where no argument tells.
      spmd_axis_name: as for `jax.vmap`.
      transform_metadata: with graph updates only, `{PARTITION_NAME: name}` keeps sharding metadata
        in step with the axes; see `nnx.transform_metadata`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The mapped function. It raises ValueError where `jax.vmap` does; if one Variable is to have
      two different axes; if StateAxes do not select some Variable, or are there without graph
      updates; in tree mode, if something is shared. If it raises, the caller's objects are
      unchanged.
    """
    options: dict[str, Any] = {
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
    }

    function = in_step(f, transform_metadata, in_axes, out_axes)
    placed = Placed(function, (in_axes, out_axes), AXES, "vmap")

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs and isinstance(in_axes, (tuple, list)) and len(in_axes) > len(args):
            bound = inspect.signature(f).bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        refuse_metadata(transform_metadata, inputs)
        placement = placed.place(inputs)
        places = placed.places(placement)
        axes = (None, places)
        over_slices = jax.vmap(placed.run, in_axes=axes, out_axes=axes, **options)
        left, bundles = over_slices(placement, bundle(placement, places, inputs.values))
        return finish(inputs, left.value, bundles)

    return mapped
