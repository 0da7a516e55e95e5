"""remat: computing again in the backward pass what the forward pass computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from nnx_reference.transforms.core import MISSING, Inputs, decorator
from nnx_reference.transforms.statics import find_places, mark
from nnx_reference.transforms.tracing import traced, unwrapping


@decorator
def remat(
    f: Callable[..., Any] = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Makes a function that is computed again where its gradient is: `jax.checkpoint` for objects.

    What the function does to objects among its arguments reaches the caller's objects, once. What
    it draws from random streams is the same both times.

    Args:
      f: the function; without it, the result is a decorator.
      prevent_cse: as for `jax.checkpoint`.
      static_argnums: the positions of arguments that are not traced; they must be hashable.
      policy: tells which intermediate values are stored after all, as for `jax.checkpoint`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The function. It raises ValueError if a static argument is not hashable and, in tree mode, if
      something is shared. If it raises, the caller's objects are unchanged.
    """
    static = find_places(f, "static", static_argnums, None)

    @functools.wraps(f)
    def rematted(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mark(static, args, kwargs)
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        structure, function = inputs.structure, traced(f)

        def run(values: dict[str, Any]) -> Any:
            return function(unwrapping, structure, [values[name] for name in structure.names])

        checkpointed = jax.checkpoint(run, prevent_cse=prevent_cse, policy=policy)
        values = dict(zip(structure.names, inputs.values, strict=True))
        outcome, carried, arrays = checkpointed(values)
        return inputs.finish(outcome.value, carried, arrays)

    return rematted
