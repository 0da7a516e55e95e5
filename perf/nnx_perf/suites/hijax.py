"""Hijax Variables: what it costs to call a compiled step that changes each of them.

The step adds one to every Variable of a model. Its floors are the same step in plain JAX, on as
many `jax.Ref`s, which is the mechanism that JAX itself offers for changes in place, and on as many
arrays, which the step returns anew.
"""

from __future__ import annotations

from typing import Any

import jax
import pytest

from nnx_perf import models
from nnx_perf.plugin import Contest
from nnx_perf.sampling import Call


def on_variables(nnx: Any, plain: Any) -> Call:
    """Steps through a model of hijax Variables, which is the step's argument."""
    with nnx.var_defaults(hijax=True):
        model = models.model(nnx, plain)

    step = jax.jit(models.tick)
    before = int(model.step[...])
    jax.block_until_ready(step(model))
    if (after := int(model.step[...])) != before + 1:
        raise ValueError(f"the step took the count from {before} to {after}")
    return lambda: jax.block_until_ready(step(model))


def on_refs(plain: Any) -> Call:
    """Steps through a tree of Refs."""
    refs = jax.tree.map(jax.new_ref, plain)

    @jax.jit
    def step(refs: Any) -> Any:
        for ref in jax.tree.leaves(refs):
            ref[...] += 1
        return refs["step"][...]

    return lambda: jax.block_until_ready(step(refs))


def on_arrays(plain: Any) -> Call:
    """Steps through a tree of arrays and gives another one."""
    step = jax.jit(lambda arrays: jax.tree.map(lambda x: x + 1, arrays))
    return lambda: jax.block_until_ready(step(plain))


FLOORS = {"step / refs": on_refs, "step / arrays": on_arrays}


@pytest.mark.parametrize("operation", FLOORS)
@pytest.mark.parametrize("size", models.SIZES[:3])
def bench_hijax(contest: Contest, operation: str, size: int) -> None:
    """Times the step on `size` hijax Variables, on each target and against the floor."""
    plain = models.tree(size)
    contest.run(lambda nnx: on_variables(nnx, plain), FLOORS[operation](plain))
