"""Layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs
from nnx_reference.variables import Param

Initializer = Callable[..., Any]
"""A function of a key, a shape and a dtype that makes a parameter's first value."""


class Linear(Module):
    """An affine map of the last axis, `x @ kernel + bias`.

    Attributes:
      kernel: a Param of shape (in_features, out_features).
      bias: a Param of shape (out_features,), or None.
      in_features: the size of the input's last axis.
      out_features: the size of the output's last axis.
      dtype: the dtype in which to compute; None for the one to which input and parameters promote,
        at least a float.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),  # noqa: B008 (made once, a pure function)
        bias_init: Initializer = jax.nn.initializers.zeros,
        rngs: Rngs,
    ):
        """Draws one key of `rngs.params` for the kernel and one for the bias, in this order.

        Args:
          in_features: the size of the input's last axis.
          out_features: the size of the output's last axis.
          use_bias: whether there is a bias.
          dtype: the dtype in which to compute, None for the promoted one.
          param_dtype: the dtype of the parameters.
          precision: the precision of the product, as `jax.lax.dot_general` takes it.
          kernel_init: makes the kernel.
          bias_init: makes the bias.
          rngs: the random streams.
        """
        self.kernel = Param(kernel_init(rngs.params(), (in_features, out_features), param_dtype))
        bias = Param(bias_init(rngs.params(), (out_features,), param_dtype)) if use_bias else None
        self.bias: Param[jax.Array] | None = data(bias)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def __call__(self, x: Any) -> jax.Array:
        """Maps the last axis of x, (..., in_features) to (..., out_features)."""
        bias = None if self.bias is None else self.bias.get_value()
        x, kernel, bias = promote((x, self.kernel.get_value(), bias), self.dtype)
        y = jnp.matmul(x, kernel, precision=self.precision)
        return y if bias is None else y + bias


def promote(arrays: tuple[Any, ...], dtype: DTypeLike | None) -> tuple[Any, ...]:
    """Casts arrays, but not None, to a dtype, or else to the float that they promote to."""
    if dtype is None:
        dtype = jnp.result_type(*(x for x in arrays if x is not None))
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
    return tuple(None if x is None else jnp.asarray(x, dtype) for x in arrays)
