"""What the tests of axis metadata share: Variables whose axes have names, and ways to map them."""

from __future__ import annotations

from typing import Any

import jax

from nnx_spec.chapters.transforms.axes import Axis, batched, counted
from nnx_spec.chapters.transforms.modes import MODES

Names = tuple[str | None, ...]

SIZE = 3
TREE, GRAPH, UPDATES = MODES.values()


def annotated(nnx: Any, element: Names | None, rank: int, axis: Axis, partition: str | None) -> Any:
    """Makes a Variable of elements stacked along an axis, each axis of it with its name.

    Args:
      nnx: the target.
      element: the names of an element's axes; None for a Variable without names.
      rank: the number of an element's axes.
      axis: where elements are stacked; None for one element.
      partition: the name of that axis.
    """
    shape = batched((2,) * rank, axis, SIZE)
    names = None if element is None else inserted(element, axis, partition)
    return named(nnx, counted(shape), names)


def named(nnx: Any, value: Any, names: Names | None) -> Any:
    """Makes a Variable with names of its axes, and no devices to lay it out on."""
    if names is None:
        return nnx.Param(value)
    return nnx.Param(value, out_sharding=names, eager_sharding=False)


def inserted(names: Names, axis: Axis, name: str | None) -> Names:
    """Inserts the name of a new axis; a negative axis counts in the result."""
    if axis is None:
        return names
    place = axis % (len(names) + 1)
    return (*names[:place], name, *names[place:])


def names_of(variable: Any) -> Names | None:
    """Reads the names of a Variable's axes; None if it has none."""
    names = variable.get_metadata().get("out_sharding")
    return None if names is None else tuple(names)


def _vmap(nnx: Any, f: Any, axes: dict[str, Any], partition: str | None, mode: Any) -> Any:
    inner = nnx.transform_metadata(f, **axes, partition=partition, graph=mode["graph"])
    return nnx.vmap(inner, **axes, **mode)


def _scan(nnx: Any, f: Any, axes: dict[str, Any], partition: str | None, mode: Any) -> Any:
    inner = nnx.transform_metadata(f, **axes, partition=partition, graph=mode["graph"])
    return nnx.scan(inner, **axes, **mode)


def _jax_vmap(nnx: Any, f: Any, axes: dict[str, Any], partition: str | None, mode: Any) -> Any:
    inner = nnx.transform_metadata(f, **axes, partition=partition, graph=mode["graph"])
    return jax.vmap(inner, **axes)


def keyword(nnx: Any, name: str, f: Any, axes: dict[str, Any], partition: str | None) -> Any:
    """Maps a function with the keyword `transform_metadata` of a transform."""
    metadata = {nnx.PARTITION_NAME: partition}
    return getattr(nnx, name)(f, **axes, transform_metadata=metadata, **UPDATES)


FORMS = {
    "vmap": lambda nnx, f, axes, name: _vmap(nnx, f, axes, name, TREE),
    "vmap in graph mode": lambda nnx, f, axes, name: _vmap(nnx, f, axes, name, GRAPH),
    "jax.vmap": lambda nnx, f, axes, name: _jax_vmap(nnx, f, axes, name, TREE),
    "scan": lambda nnx, f, axes, name: _scan(nnx, f, axes, name, TREE),
    "scan in graph mode": lambda nnx, f, axes, name: _scan(nnx, f, axes, name, GRAPH),
    "vmap by keyword": lambda nnx, f, axes, name: keyword(nnx, "vmap", f, axes, name),
    "scan by keyword": lambda nnx, f, axes, name: keyword(nnx, "scan", f, axes, name),
}
"""Ways to map a function of Variables whose axes have names: `form(nnx, f, axes, name)`."""
