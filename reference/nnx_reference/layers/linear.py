"""Linear: an affine map of the last axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from nnx_reference.layers.initialization import NONE, Initializer, Metadata, parameter
from nnx_reference.layers.promotion import PromoteDtype, promote_dtype
from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs
from nnx_reference.variables import Param

DotGeneral = Callable[..., jax.Array]
"""A function that takes what `jax.lax.dot_general` takes."""


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
        dot_general: DotGeneral = jax.lax.dot_general,
        promote_dtype: PromoteDtype = promote_dtype,
        preferred_element_type: DTypeLike | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NONE,
        bias_metadata: Metadata = NONE,
    ):
        """Draws one key of `rngs.params` for the kernel, then one for the bias if there is one.

        Args:
          in_features: the size of the input's last axis.
          out_features: the size of the output's last axis.
          use_bias: whether there is a bias.
          dtype: the dtype in which to compute, None for the promoted one.
          param_dtype: the dtype of the parameters.
          precision: the precision of the product, as `dot_general` takes it.
          kernel_init: makes the kernel.
          bias_init: makes the bias.
          dot_general: computes the product, called as `jax.lax.dot_general` is.
          promote_dtype: casts (input, kernel, bias) to the dtype in which to compute.
          preferred_element_type: the dtype of the product, None for that of its factors.
          rngs: the random streams.
          kernel_metadata: metadata of the kernel.
          bias_metadata: metadata of the bias.
        """
        self.kernel = parameter(
            Param, kernel_init, rngs, (in_features, out_features), param_dtype, kernel_metadata
        )
        bias = None
        if use_bias:
            bias = parameter(Param, bias_init, rngs, (out_features,), param_dtype, bias_metadata)
        self.bias: Param[jax.Array] | None = data(bias)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.dot_general = dot_general
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type

    def __call__(self, inputs: Any, out_sharding: Any = None) -> jax.Array:
        """Maps the last axis of the inputs, (..., in_features) to (..., out_features).

        Args:
          inputs: the inputs.
          out_sharding: how the product is partitioned, as `jax.lax.dot_general` takes it; None
            leaves it to JAX.
        """
        bias = None if self.bias is None else self.bias.get_value()
        factors = (inputs, self.kernel.get_value(), bias)
        x, kernel, bias = self.promote_dtype(factors, dtype=self.dtype)
        options = {
            "preferred_element_type": self.preferred_element_type,
            "out_sharding": out_sharding,
        }
        y = self.dot_general(
            x,
            kernel,
            (((jnp.ndim(x) - 1,), (0,)), ((), ())),
            precision=self.precision,
            **{name: option for name, option in options.items() if option is not None},
        )
        return y if bias is None else y + jnp.expand_dims(bias, range(y.ndim - 1))
