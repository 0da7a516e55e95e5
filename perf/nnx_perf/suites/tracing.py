"""Tracing: what it costs to trace a model that `jax.jit` has not seen yet.

The model has 32 layers, one after the other, and counts its calls; or its layers are stacked and
scanned over, 8 or 512 of each, which must take equally long. The floor is the same model in plain
JAX, traced likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_perf import models
from nnx_perf.plugin import Contest
from nnx_perf.sampling import Call
from nnx_perf.suites.dispatch import MODES

DEPTHS = (8, 512)
"""Numbers of layers in a stack."""


def apply(kernel: Any, bias: Any, x: jax.Array) -> jax.Array:
    """Applies a layer: `[2]` to `[2]`."""
    return jnp.tanh(x * kernel + bias)


def traced(jit: Callable[..., Any], forward: Callable[..., Any], *args: Any) -> Call:
    """Traces a function that is new each time."""

    def call() -> Any:
        def fresh(*args: Any) -> Any:
            return forward(*args)

        return jit(fresh).trace(*args)

    return call


def layers_on_model(nnx: Any, plain: Any, mode: dict[str, bool]) -> Call:
    """Traces a model layer by layer."""

    def forward(model: Any, x: jax.Array) -> jax.Array:
        model.step[...] += 1
        for layer in models.layers(model):
            x = apply(layer.kernel[...], layer.bias[...], x)
        return x

    return traced(lambda f: nnx.jit(f, **mode), forward, models.model(nnx, plain), jnp.ones(2))


def layers_on_tree(plain: Any) -> Call:
    """Traces a nested dict layer by layer."""

    def forward(tree: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for block in tree["blocks"].values():
            for name in models.LAYERS:
                x = apply(block[name]["kernel"], block[name]["bias"], x)
        return x, tree["step"] + 1

    return traced(jax.jit, forward, plain, jnp.ones(2))


def scan_on_model(nnx: Any, stack: Any, mode: dict[str, bool]) -> Call:
    """Traces a model whose only block is a stack."""

    def step(block: Any, x: jax.Array) -> jax.Array:
        for name in models.LAYERS:
            layer = getattr(block, name)
            x = apply(layer.kernel[...], layer.bias[...], x)
        return x

    def forward(model: Any, x: jax.Array) -> jax.Array:
        scan = nnx.scan(step, in_axes=(0, nnx.Carry), out_axes=nnx.Carry, **mode)
        model.step[...] += 1
        y: jax.Array = scan(model.blocks[0], x)
        return y

    return traced(lambda f: nnx.jit(f, **mode), forward, models.model(nnx, stack), jnp.ones(2))


def scan_on_tree(stack: Any) -> Call:
    """Traces a nested dict whose only block is a stack."""

    def step(x: jax.Array, block: Any) -> tuple[jax.Array, None]:
        for name in models.LAYERS:
            x = apply(block[name]["kernel"], block[name]["bias"], x)
        return x, None

    def forward(tree: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, _ = jax.lax.scan(step, x, tree["blocks"]["0"])
        return x, tree["step"] + 1

    return traced(jax.jit, forward, stack, jnp.ones(2))


def stack(depth: int) -> Any:
    """Stacks the arrays of a model with one block `depth` times."""
    plain = models.tree(models.SIZES[0])
    blocks = jax.tree.map(lambda x: jnp.broadcast_to(x, (depth, *x.shape)), plain["blocks"])
    return {**plain, "blocks": blocks}


LAYERED = {f"32 layers / {name}": mode for name, mode in MODES.items()}
STACKED = {
    f"scan of {depth} / {name}": (depth, mode) for depth in DEPTHS for name, mode in MODES.items()
}


@pytest.mark.parametrize("operation", LAYERED)
@pytest.mark.parametrize("size", [65])
def bench_layers(contest: Contest, operation: str, size: int) -> None:
    """Times the tracing of a model of 32 layers, with `size` Variables."""
    plain = models.tree(size)
    mode = LAYERED[operation]
    contest.run(lambda nnx: layers_on_model(nnx, plain, mode), layers_on_tree(plain))


@pytest.mark.parametrize("operation", STACKED)
@pytest.mark.parametrize("size", [9])
def bench_scan(contest: Contest, operation: str, size: int) -> None:
    """Times the tracing of a model of `size` Variables whose layers are stacked."""
    depth, mode = STACKED[operation]
    plain = stack(depth)
    contest.run(lambda nnx: scan_on_model(nnx, plain, mode), scan_on_tree(plain))
