"""remat: computing again in the backward pass what the forward pass computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from nnx_reference.jax_private import WriteEffect
from nnx_reference.transforms.core import MISSING, Inputs, decorator
from nnx_reference.transforms.statics import find_places, mark
from nnx_reference.transforms.tracing import name_of, traced, unwrapping
from nnx_reference.variables import Variable


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
        values = dict(zip(structure.names, _read(inputs), strict=True))
        _check_captured(f, jax.make_jaxpr(run)(values))
        outcome, carried, arrays = checkpointed(values)
        return inputs.finish(outcome.value, carried, arrays)

    return rematted


def _read(inputs: Inputs) -> list[Any]:
    """Lists the values of the arguments, those that are held by reference as arrays.

    What is written to a Ref would be written again in the backward pass; so the function gets
    copies, and what it leaves in them is written once it has run.
    """
    leaves = inputs.flat.leaves
    first = len(inputs.values) - len(leaves)
    return inputs.values[:first] + [
        leaf._load() if isinstance(leaf, Variable) else leaf for leaf in leaves
    ]


def _check_captured(f: Callable[..., Any], jaxpr: Any) -> None:
    """Checks that a function does not write to Refs that it captures.

    Raises:
      ValueError: it does.
    """
    if any(type(effect) is WriteEffect for effect in jaxpr.effects):
        raise ValueError(
            f"{name_of(f)} writes to a Variable with hijax=True or ref=True that it captures, and"
            " nnx.remat would run it again in the backward pass: pass the Variable as an argument"
        )
