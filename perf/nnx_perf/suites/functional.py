"""The functional API: taking a model apart, putting it together, copying it.

The floor of an operation is what plain JAX does with a nested dict of the same arrays: flatten it
into leaves and structure, unflatten these, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import pytest

from nnx_perf import counters, models
from nnx_perf.plugin import Contest
from nnx_perf.sampling import Call


def flatten(tree: Any) -> Call:
    """Flattens a tree."""
    return lambda: jax.tree.flatten(tree)


def unflatten(tree: Any) -> Call:
    """Unflattens the leaves of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    return lambda: jax.tree.unflatten(structure, leaves)


def rebuild(tree: Any) -> Call:
    """Flattens a tree and unflattens its leaves."""

    def call() -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, leaves)

    return call


def merge(nnx: Any, model: Any) -> Call:
    """Merges what a model was split into."""
    graphdef, state = nnx.split(model)
    return lambda: nnx.merge(graphdef, state)


def update(nnx: Any, model: Any) -> Call:
    """Updates a model from its own State."""
    state = nnx.state(model)
    return lambda: nnx.update(model, state)


@dataclass(frozen=True)
class Operation:
    """What prepares an operation on a target's model, and its floor on a plain tree."""

    on_model: Callable[[Any, Any], Call]
    on_tree: Callable[[Any], Call]


OPERATIONS = {
    "flatten": Operation(lambda nnx, model: flatten(model), flatten),
    "split": Operation(lambda nnx, model: lambda: nnx.split(model), flatten),
    "split+flatten": Operation(
        lambda nnx, model: lambda: jax.tree.flatten(nnx.split(model)), flatten
    ),
    "merge": Operation(merge, unflatten),
    "state": Operation(lambda nnx, model: lambda: nnx.state(model), flatten),
    "update": Operation(update, rebuild),
    "clone": Operation(lambda nnx, model: lambda: nnx.clone(model), rebuild),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("size", models.SIZES)
def bench_functional(contest: Contest, operation: str, size: int) -> None:
    """Times an operation on a model of `size` Variables, on each target and against the floor."""
    plain = models.tree(size)

    def prepare(nnx: Any) -> Call:
        model = models.model(nnx, plain)
        if (found := counters.leaves(model)) != size:
            raise ValueError(f"a model of {size} Variables has {found} leaves")
        return OPERATIONS[operation].on_model(nnx, model)

    contest.run(prepare, OPERATIONS[operation].on_tree(plain))
