"""LoRA: a low-rank change of another map, learned in its stead."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from nnx_reference.layers.initialization import NONE, Initializer, Metadata, parameter
from nnx_reference.layers.linear import Linear
from nnx_reference.layers.promotion import PromoteDtype, promote_dtype
from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs
from nnx_reference.variables import LoRAParam, Variable


class LoRA(Module):
    """A map of low rank, `x @ lora_a @ lora_b`, added to what another map makes of x.

    At first it is zero, unless `b_initializer` says otherwise.

    Attributes:
      lora_a: a `lora_param_type` of shape (in_features, lora_rank).
      lora_b: a `lora_param_type` of shape (lora_rank, out_features).
      base_module: the other map, or None.
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Module | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        a_initializer: Initializer = jax.nn.initializers.he_uniform(),  # noqa: B008 (made once, a pure function)
        b_initializer: Initializer = jax.nn.initializers.zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NONE,
        b_metadata: Metadata = NONE,
    ):
        """Draws one key of `rngs.params` for each of the two factors.

        Args:
          in_features: the size of the input's last axis.
          lora_rank: the rank of the map.
          out_features: the size of the output's last axis.
          base_module: a map from in_features to out_features that this one is added to; its
            parameters stay where they are.
          dtype: the dtype in which to compute, None for the promoted one.
          param_dtype: the dtype of the parameters.
          a_initializer: makes `lora_a`.
          b_initializer: makes `lora_b`.
          lora_param_type: the class of the parameters.
          promote_dtype: casts (input, lora_a, lora_b) to the dtype in which to compute.
          rngs: the random streams.
          a_metadata: metadata of `lora_a`.
          b_metadata: metadata of `lora_b`.
        """
        self.lora_a = parameter(
            lora_param_type, a_initializer, rngs, (in_features, lora_rank), param_dtype, a_metadata
        )
        self.lora_b = parameter(
            lora_param_type, b_initializer, rngs, (lora_rank, out_features), param_dtype, b_metadata
        )
        self.base_module = data(base_module)
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.promote_dtype = promote_dtype

    def __call__(self, x: Any, **kwargs: Any) -> jax.Array:
        """Maps the last axis of x, (..., in_features) to (..., out_features).

        Args:
          x: the input. It is cast to the dtype in which to compute before either map sees it.
          **kwargs: passed on to `base_module`, if there is one.

        Raises:
          ValueError: `base_module` is not callable.
        """
        factors = (x, self.lora_a.get_value(), self.lora_b.get_value())
        x, lora_a, lora_b = self.promote_dtype(factors, dtype=self.dtype)
        y = x @ lora_a @ lora_b
        if self.base_module is None:
            return y
        if not callable(self.base_module):
            raise ValueError(
                "the base_module of a LoRA is to be callable, but a"
                f" {type(self.base_module).__name__} is not: give it a __call__, or use"
                " LoRA(..., base_module=None)"
            )
        return y + self.base_module(x, **kwargs)


class LoRALinear(Linear):
    """A Linear with a LoRA added to it. It holds a Linear's parameters at the same paths.

    Attributes:
      lora: the LoRA.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: DTypeLike | None = None,
        lora_param_dtype: DTypeLike = jnp.float32,
        a_initializer: Initializer = jax.nn.initializers.he_uniform(),  # noqa: B008 (made once, a pure function)
        b_initializer: Initializer = jax.nn.initializers.zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NONE,
        b_metadata: Metadata = NONE,
        **kwargs: Any,
    ):
        """Draws the keys of a Linear, then those of a LoRA, from `rngs.params`.

        Args:
          in_features: the size of the input's last axis.
          out_features: the size of the output's last axis.
          lora_rank: the rank of the LoRA.
          lora_dtype: the dtype in which the LoRA computes, None for the promoted one.
          lora_param_dtype: the dtype of the LoRA's parameters.
          a_initializer: makes `lora.lora_a`.
          b_initializer: makes `lora.lora_b`.
          lora_param_type: the class of the LoRA's parameters.
          lora_promote_dtype: as `promote_dtype` of LoRA.
          rngs: the random streams.
          a_metadata: metadata of `lora.lora_a`.
          b_metadata: metadata of `lora.lora_b`.
          **kwargs: as for Linear.
        """
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            dtype=lora_dtype,
            param_dtype=lora_param_dtype,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            lora_param_type=lora_param_type,
            promote_dtype=lora_promote_dtype,
            rngs=rngs,
            a_metadata=a_metadata,
            b_metadata=b_metadata,
        )

    def __call__(self, inputs: Any, out_sharding: Any = None) -> jax.Array:
        """Maps the last axis as Linear does, and adds the LoRA's map."""
        return super().__call__(inputs, out_sharding=out_sharding) + self.lora(inputs)
