"""checkify: checks that depend on values, in functions of objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax.experimental import checkify as jax_checkify

from nnx_reference.transforms.core import Inputs
from nnx_reference.transforms.statics import Static


def checkify(
    f: Callable[..., Any],
    errors: frozenset[Any] = jax_checkify.user_checks,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., tuple[jax_checkify.Error, Any]]:
    """Makes a function that tells which of its checks failed: JAX's `checkify` for objects.

    What the function does to objects among its arguments reaches the caller's objects, whether or
    not a check fails.

    Args:
      f: the function; it calls `jax.experimental.checkify.check`.
      errors: the kinds of errors to check for, as for `jax.experimental.checkify.checkify`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      A function that returns a pair, the error and what `f` returns; `error.throw()` raises if a
      check failed. The function raises ValueError in tree mode if something is shared.
    """

    @functools.wraps(f)
    def checked(*args: Any, **kwargs: Any) -> tuple[jax_checkify.Error, Any]:
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        structure = inputs.structure

        def run(values: dict[str, Any]) -> tuple[Static, list[Any], list[Any]]:
            run = structure.run(f, [values[name] for name in structure.names])
            arrays = run.output.arrays(run.output.leaves)
            return Static(run.outcome), run.carried_values(), arrays

        values = dict(zip(structure.names, inputs.values, strict=True))
        error, (outcome, carried, arrays) = jax_checkify.checkify(run, errors)(values)
        return error, inputs.finish(outcome.value, carried, arrays)

    return checked
