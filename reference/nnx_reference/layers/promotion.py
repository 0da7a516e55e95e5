"""In which dtype a layer computes.

Each layer takes a function `promote_dtype` of the arrays that it computes with, which casts them to
one dtype; `promote_dtype` here is what it is unless another one is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp
from jax.typing import DTypeLike


class PromoteDtype(Protocol):
    """A function that casts the arrays, but not None, of a tuple to a dtype that fits all."""

    def __call__(self, arrays: tuple[Any, ...], /, *, dtype: DTypeLike | None = None) -> Any:
        """Returns a tuple of arrays, with None where there is none."""


def common_dtype(arrays: Sequence[Any], dtype: DTypeLike | None = None) -> DTypeLike:
    """Returns a dtype to compute in.

    Args:
      arrays: the arrays that take part; None is none.
      dtype: the answer, unless it is None. Then it is what the arrays promote to, at least float32
        if that is an integer or a bool.
    """
    if dtype is not None:
        return dtype
    promoted = jnp.result_type(*(x for x in arrays if x is not None))
    if jnp.issubdtype(promoted, jnp.inexact):
        return promoted
    return jnp.promote_types(jnp.float32, promoted)


def promote_dtype(arrays: tuple[Any, ...], /, *, dtype: DTypeLike | None = None) -> tuple[Any, ...]:
    """Casts arrays, but not None, to a dtype, or else to the float that they promote to."""
    dtype = common_dtype(arrays, dtype)
    return tuple(None if x is None else jnp.asarray(x, dtype) for x in arrays)
