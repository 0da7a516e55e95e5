"""Dropout: random elements are set to zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nnx_reference.layers.modes import first_given
from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs, RngStream


class Dropout(Module):
    """Sets random elements to zero, and scales up the others so that the mean is kept.

    Attributes:
      rate: the probability of zero.
      deterministic: whether nothing is dropped; None if each call says so.
      rngs: an `RngStream`, forked from the one that was given, or None.
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ):
        """Forks a random stream, so that the layer has one of its own.

        Args:
          rate: the probability that an element is set to zero.
          broadcast_dims: the axes along which all elements share one fate.
          deterministic: whether nothing is dropped.
          rng_collection: the name of the stream in `rngs`.
          rngs: random streams, or a stream; None if each call brings some.
        """
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        stream = rngs[rng_collection] if isinstance(rngs, Rngs) else rngs
        self.rngs = data(None if stream is None else stream.fork())

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets the mode; None leaves it."""
        if deterministic is not None:
            self.deterministic = deterministic

    def __call__(
        self,
        inputs: Any,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements of the inputs, which may be of any shape.

        Args:
          inputs: the inputs.
          deterministic: the mode of this call; None for the layer's.
          rngs: random streams, a stream or a key to use instead of the layer's stream.

        Raises:
          ValueError: neither the call nor the layer says which mode, or has random numbers.
        """
        mode = first_given(self, "deterministic", deterministic)
        inputs = jnp.asarray(inputs)
        if mode or self.rate == 0:
            return inputs
        if self.rate == 1:
            return jnp.zeros_like(inputs)
        shape = list(inputs.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        kept = jax.random.bernoulli(self._key(rngs), 1 - self.rate, tuple(shape))
        return jnp.where(kept, inputs / (1 - self.rate), 0).astype(inputs.dtype)

    def _key(self, rngs: Rngs | RngStream | jax.Array | None) -> jax.Array:
        source = self.rngs if rngs is None else rngs
        if source is None:
            raise ValueError(
                "a Dropout that drops needs random numbers: make it with Dropout(..., rngs=rngs),"
                " or call it with rngs="
            )
        if isinstance(source, Rngs):
            source = source[self.rng_collection]
        return source() if isinstance(source, RngStream) else source
