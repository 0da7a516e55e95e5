"""vmap: mapping a function over an axis of arrays, Variables and Modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax

from nnx_reference.configuration import resolve_graph, resolve_graph_updates
from nnx_reference.transforms.axes import (
    axes_left,
    distinct_axes,
    leaf_axes,
    leaves_of,
    refuse_state_axes,
    spread,
)
from nnx_reference.transforms.core import MISSING, Inputs, Outcome, decorator


@decorator
def vmap(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | tuple[Hashable, ...] | None = None,
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
        ints, None and StateAxes. Keyword arguments are mapped over axis 0.
      out_axes: a tree prefix of the output, likewise.
      axis_name: a name of the axis for collectives.
      axis_size: the size of the axis, where no argument tells.
      spmd_axis_name: as for `jax.vmap`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The mapped function. It raises ValueError where `jax.vmap` does; if one Variable is to have
      two different axes; if StateAxes do not select some Variable; in tree mode, if something is
      shared or there are StateAxes. If it raises, the caller's objects are unchanged.
    """
    options: dict[str, Any] = {
        "axis_name": axis_name,
        "axis_size": axis_size,
        "spmd_axis_name": spmd_axis_name,
    }

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        inputs = Inputs(f, args, kwargs, resolve_graph(graph), resolve_graph_updates(graph_updates))
        return _Mapping(f, inputs, in_axes, out_axes, len(args)).call(options)

    return mapped


class _Mapping:
    """One call of a mapped function."""

    def __init__(
        self, f: Callable[..., Any], inputs: Inputs, in_axes: Any, out_axes: Any, count: int
    ) -> None:
        opened = inputs.opened
        prefixes = spread(
            (_per_argument(in_axes, count), 0), opened.treedef, opened.is_object, "vmap in_axes"
        )
        out_prefixes = leaves_of(out_axes)
        if not inputs.structure.graph:
            refuse_state_axes([*prefixes, *out_prefixes])
        self.f = f
        self.inputs = inputs
        self.out_axes = out_axes
        self.object_prefixes = opened.objects(prefixes)
        self.leaf_axes = leaf_axes(inputs.flat, self.object_prefixes, inputs.structure.object_names)
        self.in_axes = opened.arrays(prefixes) + self.leaf_axes
        self.axes = distinct_axes([*prefixes, *out_prefixes])
        self.outcome: Outcome
        self.places: list[tuple[int, str]]

    def call(self, options: dict[str, Any]) -> Any:
        """Maps over the values; they come out in a dict by name for each axis, as JAX has it."""
        names, values = self.inputs.structure.names, self.inputs.values
        in_axes = (dict(zip(names, self.in_axes, strict=True)),)
        function = jax.vmap(self.run, in_axes=in_axes, out_axes=tuple(self.axes), **options)
        bundles = function(dict(zip(names, values, strict=True)))
        carried = [bundles[number][name] for number, name in self.places]
        arrays = len(carried) - self.outcome.is_object.count(False)
        return self.inputs.finish(self.outcome, carried[:arrays], carried[arrays:])

    def run(self, values: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Runs the function on traced values."""
        structure = self.inputs.structure
        run = structure.run(self.f, [values[name] for name in structure.names])
        output = run.output
        prefixes = spread(self.out_axes, output.treedef, output.is_object, "vmap out_axes")
        left = axes_left(
            run, self.inputs, self.object_prefixes, self.leaf_axes, output.objects(prefixes)
        )
        axes = run.carried(left) + output.arrays(prefixes)
        names = run.carried_names() + output.arrays(output.names)
        leaves = run.carried_values() + output.arrays(output.leaves)
        bundles: tuple[dict[str, Any], ...] = tuple({} for _ in self.axes)
        for axis, name, leaf in zip(axes, names, leaves, strict=True):
            bundles[self.axes.index(axis)][name] = leaf
        self.outcome = run.outcome
        self.places = [
            (self.axes.index(axis), name) for axis, name in zip(axes, names, strict=True)
        ]
        return bundles


def _per_argument(in_axes: Any, count: int) -> tuple[Any, ...]:
    """Returns a prefix for each positional argument."""
    if in_axes is None or isinstance(in_axes, int):
        return (in_axes,) * count
    if not isinstance(in_axes, (tuple, list)):
        raise TypeError(
            f"vmap in_axes is an int, None, or a tuple with an entry per argument, not {in_axes!r}"
        )
    if len(in_axes) != count:
        raise ValueError(
            f"vmap in_axes has {len(in_axes)} entries for {count} positional arguments"
        )
    return tuple(in_axes)
