"""The guide's models, in our own words."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jax


@functools.cache
def layers(nnx: Any) -> SimpleNamespace:
    """Makes the classes of the guide's models on a target: Linear and Block."""

    class Linear(nnx.Module):
        """A linear map without a bias."""

        def __init__(self, size_in: int, size_out: int, rngs: Any) -> None:
            self.kernel = nnx.Param(rngs.normal((size_in, size_out)))

        def __call__(self, x: Any) -> Any:
            return x @ self.kernel

    class Block(nnx.Module):
        """A linear map, normalization, dropout, the gelu and another linear map."""

        def __init__(
            self, size_in: int, size: int, size_out: int, rngs: Any, rate: float = 0.1
        ) -> None:
            self.linear = Linear(size_in, size, rngs)
            self.norm = nnx.BatchNorm(size, use_running_average=False, rngs=rngs)
            self.dropout = nnx.Dropout(rate, deterministic=False, rngs=rngs)
            self.linear_out = Linear(size, size_out, rngs)

        def __call__(self, x: Any) -> Any:
            return self.linear_out(jax.nn.gelu(self.dropout(self.norm(self.linear(x)))))

    return SimpleNamespace(Linear=Linear, Block=Block)
