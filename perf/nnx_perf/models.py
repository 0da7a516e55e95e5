"""Models of a given size, and plain trees with the same leaves."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

SIZES = (9, 65, 257, 1025)
"""Numbers of Variables: 1, 8, 32 and 128 blocks of eight, and one counter."""

LAYERS = ("query", "key", "value", "out")


@functools.cache
def classes(nnx: Any) -> tuple[type, type, type]:
    """Makes a target's classes: a Layer, a Block of four Layers, the Model of Blocks."""

    class Layer(nnx.Module):
        """A kernel and a bias."""

        def __init__(self, arrays: dict[str, jax.Array]) -> None:
            self.kernel = nnx.Param(arrays["kernel"])
            self.bias = nnx.Param(arrays["bias"])

    class Block(nnx.Module):
        """Four Layers."""

        def __init__(self, layers: dict[str, Any]) -> None:
            for name in LAYERS:
                setattr(self, name, Layer(layers[name]))

    class Model(nnx.Module):
        """A List of Blocks, and a step count."""

        def __init__(self, tree: dict[str, Any]) -> None:
            self.blocks = nnx.List([Block(block) for block in tree["blocks"].values()])
            self.step = nnx.Variable(tree["step"])

    return Layer, Block, Model


def tree(size: int) -> dict[str, Any]:
    """Builds a nested dict of `size` small arrays: float32 `[2]` and `[1]`, an int32 scalar.

    Raises:
      ValueError: `size` is not one more than a multiple of eight.
    """
    blocks, rest = divmod(size - 1, 2 * len(LAYERS))
    if rest or blocks < 1:
        raise ValueError(f"a model has 9, 17, 25, ... Variables, not {size}")

    def layer() -> dict[str, jax.Array]:
        return {"kernel": jnp.ones(2), "bias": jnp.zeros(1)}

    made = {str(n): {name: layer() for name in LAYERS} for n in range(blocks)}
    return {"blocks": made, "step": jnp.int32(0)}


def model(nnx: Any, plain: dict[str, Any]) -> Any:
    """Builds the target's model of a plain tree: the same arrays, each in a Variable."""
    *_, cls = classes(nnx)
    return cls(plain)


def layers(model: Any) -> list[Any]:
    """Lists the Layers of a model in order."""
    return [getattr(block, name) for block in model.blocks for name in LAYERS]


def tick(model: Any) -> Any:
    """Adds one to every Variable of a model; returns the count."""
    for layer in layers(model):
        layer.kernel[...] += 1
        layer.bias[...] += 1
    model.step[...] += 1
    return model.step[...]
