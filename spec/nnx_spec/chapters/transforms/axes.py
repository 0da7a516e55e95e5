"""What the tests of axes share: slices, stacks, and a model whose Variables have one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec.plans import classes

Axis = int | None


def counted(shape: tuple[int, ...], dtype: str = "float32", start: int = 0) -> jax.Array:
    """Makes an array whose elements count up from `start`, without compiling anything."""
    size = int(np.prod(shape))
    return jnp.asarray(np.arange(start, start + size).reshape(shape).astype(dtype))


def batched(element: tuple[int, ...], axis: Axis, size: int) -> tuple[int, ...]:
    """Returns the shape of `size` elements that are stacked along an axis; None stacks nothing."""
    if axis is None:
        return element
    place = axis % (len(element) + 1)
    return (*element[:place], size, *element[place:])


def slice_of(value: Any, axis: Axis, number: int) -> Any:
    """Takes a slice of an array; None leaves it whole."""
    return value if axis is None else jnp.asarray(np.take(np.asarray(value), number, axis))


def stack(values: Sequence[Any], axis: Axis) -> Any:
    """Stacks arrays along an axis; None takes the last."""
    return values[-1] if axis is None else jnp.asarray(np.stack(values, axis))


def model_of(nnx: Any, kernel: Any, seen: Any) -> Any:
    """Makes a Module with a Param `kernel` and, in a Module `block`, a Count `seen`."""
    own = classes(nnx)
    model = own.Net()
    model.kernel = nnx.Param(kernel, tag="red")
    model.block = own.Net()
    model.block.seen = own.Count(seen, note="n")
    model.block.size = 7
    return model


def values_of(model: Any) -> tuple[Any, Any]:
    """Reads the two Variables of `model_of`."""
    return model.kernel.get_value(), model.block.seen.get_value()
