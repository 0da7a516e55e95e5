"""Dispatch: what it costs to call a jitted step again on a model whose structure stays as it is.

The step adds one to every Variable of a model and returns the count. Its floor is the same step in
plain JAX, on a flat list of the same arrays, which takes the place of the list that went in.

On the smallest model it is counted, too, how many arrays are still there after 1,000 steps that
were not there before.
"""

from __future__ import annotations

from typing import Any

import jax
import pytest

from nnx_perf import models
from nnx_perf.plugin import Contest
from nnx_perf.sampling import Call

MODES = {
    "tree mode": {"graph": False, "graph_updates": False},
    "graph mode": {"graph": True, "graph_updates": False},
    "graph updates": {"graph": True, "graph_updates": True},
}

STEPS = 1000


def on_model(nnx: Any, plain: Any, mode: dict[str, bool]) -> Call:
    """Steps through a model.

    Raises:
      ValueError: the step does not count.
    """
    model = models.model(nnx, plain)

    jitted = nnx.jit(models.tick, **mode)
    if (int(jitted(model)), int(jitted(model))) != (1, 2):
        raise ValueError(f"the step should have counted to 2, not to {model.step}")
    return lambda: jitted(model)


def on_arrays(plain: Any) -> Call:
    """Steps through a list of arrays."""
    arrays = jax.tree.leaves(plain)

    @jax.jit
    def step(arrays: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        return [x + 1 for x in arrays], arrays[-1] + 1

    def call() -> jax.Array:
        arrays[:], count = step(arrays)
        return count

    return call


@pytest.mark.parametrize("operation", MODES)
@pytest.mark.parametrize("size", models.SIZES)
def bench_dispatch(contest: Contest, operation: str, size: int) -> None:
    """Times a step on a model of `size` Variables, on each target and against the floor."""
    plain = models.tree(size)
    contest.run(
        lambda nnx: on_model(nnx, plain, MODES[operation]),
        on_arrays(plain),
        steps=STEPS if size == models.SIZES[0] else 0,
    )
