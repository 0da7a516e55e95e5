"""while_loop and fori_loop: loops over arrays, Variables and Modules.

The carry's arrays go from step to step, and so do the values of the Variables that a step writes.
Those that it only reads are constants of the loop. The carry's objects must come out of a step as
they went in.

Variables with the flag `hijax` or `ref` are constants, too: JAX carries their writes out by itself.
But a condition that reads one would see what it was before the loop, and what a condition writes
would be lost. Such a condition is computed ahead, at the end of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np

from nnx_reference.transforms.carries import Carried, Passed, last_carry, open_carry
from nnx_reference.transforms.carrying import (
    Finished,
    Left,
    Loop,
    Renewed,
    build_loop,
    only_values_change,
)
from nnx_reference.transforms.closures import Function
from nnx_reference.transforms.core import Inputs, Run, Structure
from nnx_reference.transforms.statics import Static
from nnx_reference.transforms.tracing import Traced, operation

T = TypeVar("T")


def while_loop(
    cond_fun: Callable[[T], Any],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls a function on its own result while a condition holds: `jax.lax.while_loop` for objects.

    What the body does to Variables in the carry, the condition sees, and so does the caller at the
    end. The condition may write Variables, too.

    Args:
      cond_fun: tells of a carry, as a boolean scalar, whether to go on.
      body_fun: takes a carry and returns the next one, of the same structure, shapes and dtypes,
        with the same objects.
      init_val: the first carry.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: as for other transforms; a step must not change the structure of the carry's
        objects in any case. None for the default.

    Returns:
      The last carry, with the caller's own objects.

    Raises:
      TypeError: the carry, or a Variable in it, changes its structure, shape or dtype; or the
        condition is no boolean scalar.
      ValueError: an object in the carry is replaced by another one; the body changes structure or
        metadata, or the condition does so; in tree mode, something is shared.
    """
    inputs = Inputs(body_fun, (init_val,), {}, graph, graph_updates)
    values = dict(zip(inputs.structure.names, inputs.values, strict=True))
    found = operation(_while, (cond_fun, body_fun))(None, inputs.structure, values)
    return _last_carry(inputs, init_val, *found)


def _while(
    functions: tuple[Traced, ...], _: None, structure: Structure, values: dict[str, Any], more: Any
) -> Finished:
    condition, body = functions
    first = len(values) - structure.graphdef.num_leaves
    listed = [values[name] for name in structure.names]
    found, _, _ = condition.shapes(_conditionally, structure, listed)
    effects = condition.jaxpr(_conditionally, structure, listed).effects
    is_pure = not found.value.numbers and not effects

    how = _Step("while_loop", 0)
    written, _, _, _ = body.shapes(how, structure, listed)

    def build(carried: set[int]) -> Finished:
        loop = Loop(body, how, structure, values, carried)

        def test(state: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            left, written, answer = condition(_conditionally, structure, loop.values_at(state))
            return loop.updated(state, left.value.numbers, written), answer

        def step(state: dict[str, Any]) -> dict[str, Any]:
            return loop.step(state, {})[0]

        if is_pure:
            last = jax.lax.while_loop(lambda state: test(state)[1], step, loop.state)
        else:
            last, _ = jax.lax.while_loop(
                lambda pair: pair[1], lambda pair: test(step(pair[0])), test(loop.state)
            )
        return loop.finish(last, also=found.value.numbers)

    return build_loop(build, {*range(first), *found.value.numbers, *written.value.numbers})


def _conditionally(
    function: Function, structure: Structure, values: Sequence[Any]
) -> tuple[Static, list[Any], Any]:
    """Runs the condition of a loop; gives what it has done, what it has written, and its output."""

    def condition(carry: Any) -> Any:
        if not structure.updates:
            return function(carry)
        with only_values_change("cond_fun of while_loop", open_carry(carry)):
            return function(carry)

    run = structure.run(condition, values)
    output = jax.tree.unflatten(run.output.treedef, run.output.leaves)
    return *_written(structure, run), output


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, T], T],
    init_val: T,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls a function on its own result for a range of numbers: `jax.lax.fori_loop` for objects.

    What the body does to Variables in the carry reaches the caller's.

    Args:
      lower: the first number, an integer scalar.
      upper: the number before which to end, likewise.
      body_fun: takes a number and a carry and returns the next carry, of the same structure, shapes
        and dtypes, with the same objects.
      init_val: the first carry.
      unroll: as for `jax.lax.fori_loop`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: as for other transforms; a step must not change the structure of the carry's
        objects in any case. None for the default.

    Returns:
      The last carry, with the caller's own objects.

    Raises:
      TypeError: the carry, or a Variable in it, changes its structure, shape or dtype; or a bound
        is no integer scalar.
      ValueError: an object in the carry is replaced by another one; the body changes structure or
        metadata; in tree mode, something is shared.
    """
    inputs = Inputs(body_fun, (lower, init_val), {}, graph, graph_updates)
    names = inputs.structure.names[1:]
    values = dict(zip(names, inputs.values[1:], strict=True))
    bounds = _bounds(lower, upper)
    static = bounds, unroll
    more = (lower, upper) if bounds is None else ()
    found = operation(_fori, (body_fun,))(static, inputs.structure, values, more)
    return _last_carry(inputs, init_val, *found)


Bound = tuple[str | None, int]
"""A number with the dtype of its array, if it was one."""


def _bounds(*bounds: Any) -> tuple[Bound, ...] | None:
    """Returns bounds as a static value, if they are known; then JAX can differentiate the loop."""
    found: list[Bound] = []
    for bound in bounds:
        if type(bound) is int:
            found.append((None, bound))
        elif (
            isinstance(bound, (np.integer, np.ndarray, jax.Array))
            and not isinstance(bound, jax.core.Tracer)
            and np.issubdtype(bound.dtype, np.integer)
            and bound.shape == ()
        ):
            found.append((bound.dtype.name, int(bound)))
        else:
            return None
    return tuple(found)


def _bound(dtype: str | None, value: int) -> Any:
    return value if dtype is None else np.asarray(value, dtype)


def _fori(
    functions: tuple[Traced, ...],
    static: tuple[tuple[Bound, ...] | None, int | bool | None],
    structure: Structure,
    values: dict[str, Any],
    more: tuple[Any, ...],
) -> Finished:
    (body,), (bounds, unroll) = functions, static
    lower, upper = more if bounds is None else [_bound(*bound) for bound in bounds]

    how = _Step("fori_loop", 1)
    index = lower if bounds is None else bounds[0][1]  # JAX counts in int32 if it knows both
    listed = [index, *(values[name] for name in structure.names[1:])]
    written, _, _, _ = body.shapes(how, structure, listed)

    def build(carried: set[int]) -> Finished:
        loop = Loop(body, how, structure, values, carried)

        def step(index: Any, state: dict[str, Any]) -> dict[str, Any]:
            return loop.step(state, {structure.names[0]: index})[0]

        return loop.finish(jax.lax.fori_loop(lower, upper, step, loop.state, unroll=unroll))

    first = len(structure.names) - structure.graphdef.num_leaves
    return build_loop(build, {*range(1, first), *written.value.numbers})


@dataclass(frozen=True)
class _Step:
    """Runs the body of a loop; gives what `Loop` asks for.

    Attributes:
      what: the loop, for errors.
      position: the position of the carry among the body's arguments.
    """

    what: str
    position: int

    def __call__(
        self, function: Function, structure: Structure, values: Sequence[Any]
    ) -> tuple[Static, list[Any], list[Any], list[Any]]:
        """Runs it."""
        found: list[Carried] = []

        def step(*args: Any) -> None:
            passed = Passed(self.what, args, self.position, structure)
            found.append(passed.compare(function(*args)))

        run = structure.run(step, values)
        (carried,) = found
        return *_written(structure, run, carried.inside, carried.renewed), carried.arrays, []


def _written(
    structure: Structure,
    run: Run,
    inside: dict[int, Any] | None = None,
    renewed: Renewed = Renewed(),  # noqa: B008
) -> tuple[Static, list[Any]]:
    """Returns what a function has done that changes values only, and these values."""
    first = len(structure.names) - structure.graphdef.num_leaves
    pairs = zip(run.carried(run.outcome.leaf_origins), run.carried_values(), strict=True)
    written = {first + n: value for n, value in pairs if n is not None} | (inside or {})
    left = Left(run.outcome, tuple(written), renewed=renewed)
    return Static(left), list(written.values())


def _last_carry(
    inputs: Inputs,
    init_val: Any,
    found: Static,
    carried: list[Any],
    arrays: list[Any],
    inside: list[Any],
    _: Any,
) -> Any:
    """Writes what a loop has left into the caller's objects, and builds the carry of them."""
    outcome, renewed = found.value
    inputs.finish(outcome, carried, [])
    return last_carry(init_val, arrays, inside, renewed, inputs.structure.updates)
