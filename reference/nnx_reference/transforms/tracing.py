"""Tracing a user's function once, however often it is used.

Branches and loop bodies have to be known before JAX's own control flow is built: which Variables
does a step write? So a user's function is traced by itself first, to a jaxpr and an `Outcome`, and
what JAX then calls in its place is that jaxpr. `Traced` is such a function. `jax.jit` does the
tracing, and remembers it by structure, shapes and dtypes.

A transform that JAX does not compile by itself is compiled as a whole (`Operation`), so that
another call of it neither traces nor compiles.

Both are remembered for as long as the user's functions live and what they capture stays the same
(`closures.py`): to transform the same function again traces nothing.

`eval_shape` and `make_jaxpr` stand directly on this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from nnx_reference import hijax
from nnx_reference.partitioning import with_sharding
from nnx_reference.tables import unflatten
from nnx_reference.transforms.closures import Function, remembered, watched, weakly
from nnx_reference.transforms.core import (
    MISSING,
    Inputs,
    Outcome,
    Structure,
    close_tree,
    decorator,
)
from nnx_reference.transforms.statics import Static, find_places, mark, unmarked
from nnx_reference.variables import variable_of

How = Callable[[Function, Structure, Sequence[Any]], Any]
"""How a function is run on a structure and values, to a pytree; hashable, as part of a cache key.

What of the result is structure stands in a `Static`.
"""


def plainly(
    function: Function, structure: Structure, values: Sequence[Any]
) -> tuple[Static, list[Any], list[Any]]:
    """Runs a function; gives its outcome, the carried values, and the output's arrays."""
    run = structure.run(function, values)
    return Static(run.outcome), run.carried_values(), run.output.arrays(run.output.leaves)


def unwrapping(
    function: Function, structure: Structure, values: Sequence[Any]
) -> tuple[Static, list[Any], list[Any]]:
    """Runs a function likewise, static arguments unwrapped."""
    return plainly(unmarked(function), structure, values)


class Traced:
    """A function of objects that is traced once for each way of running it, structure and types.

    It holds the function weakly: it is remembered by it.
    """

    def __init__(self, function: Function) -> None:
        source = weakly(function)

        def run(how: Static, structure: Structure, values: Sequence[Any]) -> Any:
            with watched(source()):
                return how.value(source(), structure, values)

        run.__name__ = run.__qualname__ = name_of(function)
        self.name = run.__name__
        self._compiled: Any = jax.jit(run, inline=True)

    def __call__(self, how: How, structure: Structure, values: Sequence[Any]) -> Any:
        """Runs what was traced."""
        return self._compiled(Static(how), structure, list(values))

    def shapes(self, how: How, structure: Structure, values: Sequence[Any]) -> Any:
        """Returns the result with a `jax.ShapeDtypeStruct` for each array; nothing runs."""
        return self._compiled.eval_shape(Static(how), structure, list(values))

    def jaxpr(self, how: How, structure: Structure, values: Sequence[Any]) -> Any:
        """Returns the jaxpr."""
        return self._compiled.trace(Static(how), structure, list(values)).jaxpr


def traced(function: Function) -> Traced:
    """Returns the `Traced` of a function, the same one each time."""
    return remembered(Traced, Traced, (function,))


Build = Callable[[tuple[Traced, ...], Any, Structure, dict[str, Any], Any], Any]
"""Computes a transform: of traced functions, what is static about it, the arguments' structure, the
values by name, and further values."""


class Operation:
    """A transform of some functions of objects, compiled as a whole."""

    def __init__(self, build: Build, *functions: Function) -> None:
        members = tuple(map(traced, functions))

        def run(static: Static, structure: Structure, values: dict[str, Any], more: Any) -> Any:
            return build(members, static.value, structure, values, more)

        run.__name__ = run.__qualname__ = build.__name__.strip("_")
        self._compiled: Any = jax.jit(run, inline=True)

    def __call__(
        self, static: Hashable, structure: Structure, values: dict[str, Any], more: Any = ()
    ) -> Any:
        """Computes it; traced once for each static part, structure and types."""
        return self._compiled(Static(static), structure, values, more)


def operation(build: Build, functions: Sequence[Function]) -> Operation:
    """Returns the `Operation` of functions, the same one each time."""
    return remembered(build, functools.partial(Operation, build), functions)


def name_of(function: Function) -> str:
    """Returns a function's name, for errors and profiles."""
    return getattr(function, "__name__", type(function).__name__)


def eval_shape(
    f: Callable[..., Any],
    *args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Finds the shapes and dtypes of a function's output: `jax.eval_shape` for objects.

    The function is traced. Nothing is computed or allocated, and the arguments are unchanged.

    Args:
      f: the function.
      *args: its arguments; a `jax.ShapeDtypeStruct` may stand for any array, in Variables, too.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether the function may return an argument's object, None for the default; in
        the output another one stands for it.
      **kwargs: its keyword arguments.

    Returns:
      The output with a `jax.ShapeDtypeStruct` in the place of each array: shape, dtype and, where
      it is known, sharding: where it is part of the type, and where a Variable's metadata
      `out_sharding` says it of the current mesh. Objects are new ones of the same class and
      metadata.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    inputs = Inputs(f, args, kwargs, graph, graph_updates)
    found = traced(f).shapes(plainly, inputs.structure, inputs.values)
    outcome: Outcome = found[0].value
    leaves = _abstract_leaves(inputs, outcome, found[1])
    objects = unflatten(outcome.graphdef, leaves)[outcome.first_output :]
    return close_tree(outcome.treedef, outcome.is_object, objects, found[2])


def _abstract_leaves(inputs: Inputs, outcome: Outcome, carried: Sequence[Any]) -> list[Any]:
    """Lists new leaves for the outcome's graph: what it carries, and the arguments' types."""
    records = inputs.flat.graphdef.leaves
    by_reference = tuple([r is not None and r.metadata.by_reference for r in records])
    raw = inputs.values[len(inputs.values) - len(records) :]
    given = jax.eval_shape(_read_all, Static(by_reference), raw)
    remaining = iter(carried)
    values = [
        next(remaining) if is_carried else given[origin]
        for origin, is_carried in zip(outcome.leaf_origins, outcome.is_carried, strict=True)
    ]
    return [
        value
        if record is None
        else variable_of(record.kind, with_sharding(value, record.metadata), record.metadata)
        for record, value in zip(outcome.graphdef.leaves, values, strict=True)
    ]


def _read_all(by_reference: Static, values: Sequence[Any]) -> list[Any]:
    pairs = zip(values, by_reference.value, strict=True)
    return [hijax.read(value) if flag else value for value, flag in pairs]


@decorator
def make_jaxpr(
    f: Callable[..., Any] = MISSING,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Makes a function that shows what another one computes: `jax.make_jaxpr` for objects.

    Args:
      f: the function; without it, the result is a decorator.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether the function may change the structure of objects; None for the default.
      static_argnums: the positions of arguments that are not traced; they must be hashable.

    Returns:
      A function that returns the jaxpr for its arguments, which are unchanged. The jaxpr takes
      arrays and the values of Variables in the order of the arguments, what is shared once. It
      gives the output's arrays, then the new values of Variables: those that are written and those
      in the output. The function raises ValueError if a static argument is not hashable and, in
      tree mode, if something is shared.
    """
    static = find_places(f, "static", static_argnums, None)

    @functools.wraps(f)
    def make(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mark(static, args, kwargs)
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        order = tuple(_argument_order(inputs))
        values = [inputs.values[number] for number in order]
        return traced(f).jaxpr(_InOrder(order), inputs.structure, values)

    return make


def _argument_order(inputs: Inputs) -> Iterator[int]:
    """Yields the numbers of the values in the order of the arguments."""
    count = len(inputs.values) - inputs.flat.graphdef.num_leaves
    arrays, leaves = iter(range(count)), list(enumerate(inputs.flat.graphdef.paths, count))
    root = 0
    for flag in inputs.opened.is_object:
        if flag:
            yield from [number for number, path in leaves if path[0] == root]
            root += 1
        else:
            yield next(arrays)


@dataclass(frozen=True)
class _InOrder:
    """Runs a function on values that come in another order, static arguments unwrapped."""

    order: tuple[int, ...]

    def __call__(self, function: Function, structure: Structure, values: Sequence[Any]) -> Any:
        named = dict(zip(self.order, values, strict=True))
        run = structure.run(unmarked(function), [named[n] for n in range(len(named))])
        return run.output.arrays(run.output.leaves), run.carried_values()
