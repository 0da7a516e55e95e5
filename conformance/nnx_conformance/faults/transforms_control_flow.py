"""Faults of remat, branches, loops and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.transforms_axes import replace_transform, undoing, variables_in


@fault(breaks="TRX-020")
def remat_writes_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`remat` adds what it adds to a Variable once more."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            found = variables_in(nnx, list(args))
            before = [variable.get_value() for variable in found]
            output = original(function, **options)(*args)
            for variable, value in zip(found, before, strict=True):
                if variable.get_value() is not value:
                    variable.set_value(variable.get_value() * 2 - value)
            return output

        return call

    replace_transform(nnx, patch, "remat", change)


@fault(breaks="TRX-020")
def remat_stores_everything(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`remat` stores all that it computes, unless a policy tells otherwise."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        options.setdefault("policy", jax.checkpoint_policies.everything_saveable)
        return original(function, **options)

    replace_transform(nnx, patch, "remat", change)


@fault(breaks="TRX-020")
def remat_has_no_policy(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`remat` takes `policy` and does not heed it."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        options.pop("policy", None)
        return original(function, **options)

    replace_transform(nnx, patch, "remat", change)


@fault(breaks="TRX-021")
def both_branches_write(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cond` makes the updates of the other branch, too."""
    original = nnx.cond

    def cond(pred: Any, true_fun: Any, false_fun: Any, *operands: Any, **options: Any) -> Any:
        output = original(pred, true_fun, false_fun, *operands, **options)
        original(pred, false_fun, true_fun, *operands, **options)
        return output

    patch.setattr(nnx, "cond", cond)


@fault(breaks="TRX-021")
def switch_falls_back_to_the_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`switch` takes the first branch for an index that is too large."""
    original = nnx.switch

    def switch(index: Any, branches: Any, *operands: Any, **options: Any) -> Any:
        index = jnp.where(jnp.asarray(index) < len(branches), index, 0)
        return original(index, branches, *operands, **options)

    patch.setattr(nnx, "switch", switch)


@fault(breaks="TRX-021")
def branches_may_reshape(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cond` of branches that leave other shapes does not raise; it does nothing to the objects."""
    original = nnx.cond

    def cond(pred: Any, true_fun: Any, false_fun: Any, *operands: Any, **options: Any) -> Any:
        try:
            return original(pred, true_fun, false_fun, *operands, **options)
        except (TypeError, ValueError):
            chosen = true_fun if pred else false_fun
            return undoing(nnx, chosen, operands, operands)

    patch.setattr(nnx, "cond", cond)


@fault(breaks="TRX-022")
def while_loop_drops_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The caller's objects are after `while_loop` as they were before."""
    original = nnx.while_loop

    def while_loop(cond_fun: Any, body_fun: Any, init_val: Any, **options: Any) -> Any:
        def call(init_val: Any) -> Any:
            return original(cond_fun, body_fun, init_val, **options)

        return undoing(nnx, call, (init_val,), [init_val])

    patch.setattr(nnx, "while_loop", while_loop)


def _change_fori_loop(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any, Any, Any], tuple[Any, Any, Any]]
) -> None:
    """Changes the bounds and the body of `fori_loop`."""
    original = nnx.fori_loop

    def fori_loop(lower: Any, upper: Any, body_fun: Any, init_val: Any, **options: Any) -> Any:
        return original(*change(lower, upper, body_fun), init_val, **options)

    patch.setattr(nnx, "fori_loop", fori_loop)


@fault(breaks="TRX-022")
def fori_loop_takes_one_step(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`fori_loop` takes a step where there is none to take."""
    _change_fori_loop(
        nnx, patch, lambda lower, upper, body: (lower, jnp.maximum(lower + 1, upper), body)
    )


@fault(breaks="TRX-022")
def fori_loop_counts_from_zero(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`fori_loop` numbers its steps from zero."""

    def change(lower: Any, upper: Any, body: Any) -> tuple[Any, Any, Any]:
        return lower, upper, lambda number, value: body(number - lower, value)

    _change_fori_loop(nnx, patch, change)


@fault(breaks="TRX-040")
def while_loop_does_not_say_where(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of `while_loop` for a carry that changes does not name the leaf."""
    original = nnx.while_loop

    def while_loop(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except (TypeError, ValueError):
            raise TypeError("the carry changes its type") from None

    patch.setattr(nnx, "while_loop", while_loop)


def _arrays_in(nnx: Any, carry: Any) -> list[Any]:
    """Lists the arrays in attributes of the Pytrees in a carry."""
    nodes = [node for _, node in nnx.iter_graph(carry, graph=True) if isinstance(node, nnx.Pytree)]
    values = [value for node in nodes for value in vars(node).values()]
    return [value for value in values if isinstance(value, jax.Array)]


@fault(breaks="TRX-042")
def scan_keeps_attributes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` refuses a step that puts another array into an attribute of what it carries."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def step(carry: Any, *rest: Any) -> Any:
            before = _arrays_in(nnx, carry)
            new, output = function(carry, *rest)
            if any(a is not b for a, b in zip(before, _arrays_in(nnx, new), strict=True)):
                raise ValueError("the carry changes")
            return new, output

        return original(step, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-044")
def fori_loop_keeps_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`fori_loop` refuses a State with other Variables than those that it was passed."""

    def change(lower: Any, upper: Any, body: Any) -> tuple[Any, Any, Any]:
        def step(number: Any, carry: Any) -> Any:
            new = body(number, carry)
            pairs = zip(variables_in(nnx, carry), variables_in(nnx, new), strict=True)
            if any(a is not b for a, b in pairs):
                raise ValueError("a Variable is another one")
            return new

        return lower, upper, step

    _change_fori_loop(nnx, patch, change)


@fault(breaks="TRX-046")
def scan_takes_other_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` writes to the Variable that it carries what another one holds that a step returns."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def step(carry: Any, *rest: Any) -> Any:
            new, output = function(carry, *rest)
            if isinstance(new, nnx.Variable) and new is not carry:
                carry.set_value(new.get_value())
                new = carry
            return new, output

        return original(step, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-024")
def failed_checks_drop_updates(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The updates of a function under `checkify` are lost if a check fails."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            before = [(v, v.get_value()) for v in variables_in(nnx, list(args))]
            error, output = original(function, **options)(*args)
            is_traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(error))
            if not is_traced and error.get() is not None:
                for variable, value in before:
                    variable.set_value(value)
            return error, output

        return call

    replace_transform(nnx, patch, "checkify", change)


@fault(breaks="TRX-024")
def checkify_looks_for_checks_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`checkify` takes `errors` and does not heed it."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        options.pop("errors", None)
        return original(function, **options)

    replace_transform(nnx, patch, "checkify", change)
