"""Faults of derivatives: gradients, products with Jacobians, rules, and what a loss changes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.transforms_calls import Function, copied, replace


def is_inexact(x: Any) -> bool:
    """Tells whether an array can be differentiated with respect to."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


@fault(breaks="TRX-009")
def gradients_come_in_order(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` gives the gradients in the order of the arguments, whatever that of `argnums` is."""

    def grad(original: Function, f: Function, *, argnums: Any = 0, **options: Any) -> Any:
        if isinstance(argnums, tuple) and all(isinstance(n, int) for n in argnums):
            argnums = tuple(sorted(argnums))
        return original(f, argnums=argnums, **options)

    replace(nnx, patch, "grad", grad)


@fault(breaks="TRX-009")
def gradients_of_objects_are_off(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`value_and_grad` gives gradients that are 1% too large."""

    def value_and_grad(original: Function, f: Function, **options: Any) -> Function:
        differentiated = original(f, **options)

        def enlarge(x: Any) -> Any:
            return x * 1.01 if is_inexact(x) else x

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            value, gradient = differentiated(*args, **kwargs)
            return value, jax.tree.map(enlarge, gradient)

        return call

    replace(nnx, patch, "value_and_grad", value_and_grad)


@fault(breaks="TRX-010")
def losses_see_copies_of_statistics(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` passes copies of all arguments but the first."""

    def grad(original: Function, f: Function, **options: Any) -> Function:
        differentiated = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            return differentiated(*args[:1], *copied(nnx, args[1:]), **kwargs)

        return call

    replace(nnx, patch, "grad", grad)


@fault(breaks="TRX-010")
def losses_change_nothing_with_aux(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What the loss changes is lost in `value_and_grad` with `has_aux`."""

    def value_and_grad(
        original: Function, f: Function, *, has_aux: bool = False, **options: Any
    ) -> Function:
        differentiated = original(f, has_aux=has_aux, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            return differentiated(*(copied(nnx, args) if has_aux else args), **kwargs)

        return call

    replace(nnx, patch, "value_and_grad", value_and_grad)


@fault(breaks="TRX-011")
def vjp_changes_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vjp` works on copies of its primals."""

    def vjp(original: Function, f: Function, *primals: Any, **options: Any) -> Any:
        return original(f, *copied(nnx, primals), **options)

    replace(nnx, patch, "vjp", vjp)


@fault(breaks="TRX-011")
def tangents_of_scalars_are_lost(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jvp` takes the tangents of scalars in objects for zero."""

    def without_scalars(tangent: Any) -> Any:
        if not isinstance(tangent, nnx.Pytree):
            return tangent
        return jax.tree.map(lambda x: x * 0 if x.ndim == 0 and is_inexact(x) else x, tangent)

    def jvp(original: Function, f: Function, *args: Any, **options: Any) -> Any:
        if not args:
            return lambda primals, tangents: jvp(original, f, primals, tangents, **options)
        primals, tangents = args
        return original(f, primals, tuple(map(without_scalars, tangents)), **options)

    replace(nnx, patch, "jvp", jvp)


class _Ruled:
    """A function with a rule for its derivative, whose rules are changed before they are set."""

    def __init__(self, ruled: Any, function: Function, change: Function) -> None:
        functools.update_wrapper(self, function)
        self.ruled, self.change = ruled, change

    def __call__(self, *args: Any) -> Any:
        return self.ruled(*args)

    def defvjp(self, forward: Function, backward: Function) -> None:
        self.ruled.defvjp(forward, self.change(backward))


@fault(breaks="TRX-023")
def rules_give_tangents_that_are_too_large(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The tangents that a backward rule returns are taken 1% too large."""

    def change(backward: Function) -> Function:
        def enlarged(*args: Any) -> Any:
            return jax.tree.map(lambda x: x * 1.01 if is_inexact(x) else x, backward(*args))

        return enlarged

    def custom_vjp(original: Function, f: Function, **options: Any) -> Any:
        return _Ruled(original(f, **options), f, change)

    replace(nnx, patch, "custom_vjp", custom_vjp)


@fault(breaks="TRX-023")
def ruled_functions_work_on_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a function of `custom_vjp` changes is lost, and no error is raised."""

    def custom_vjp(original: Function, f: Function, **options: Any) -> Any:
        @functools.wraps(f)
        def on_copies(*args: Any) -> Any:
            return f(*copied(nnx, args))

        return original(on_copies, **options)

    replace(nnx, patch, "custom_vjp", custom_vjp)
