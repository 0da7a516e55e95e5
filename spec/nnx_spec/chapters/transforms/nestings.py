"""Nestings: transforms around each other, each with what it means in plain Python.

An entry of `NESTING` turns a function of a model and x into another of the same kind; so does its
twin, which works on the objects of `plain` and calls the function as often as it says. A list of
names, the outermost first, is a nesting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from nnx_spec import plain
from nnx_spec.chapters.transforms.applying import APPLY, Function, Mode
from nnx_spec.oracles import variables


def _gradient(nnx: Any, f: Function, mode: Mode) -> Function:
    def loss(x: Any, model: Any) -> Any:
        return f(model, x).sum()

    differentiated = nnx.grad(loss, **mode)
    return lambda model, x: differentiated(x, model)


def _plain_gradient(f: Function) -> Function:
    """Differentiates by x; what f leaves in the cells is handed out beside."""

    def applied(model: Any, x: Any) -> Any:
        cells = variables(plain, model)

        def loss(x: Any) -> tuple[Any, list[Any]]:
            y = f(model, x)
            return y.sum(), [cell.get_value() for cell in cells]

        gradient, left = jax.grad(loss, has_aux=True)(x)
        for cell, value in zip(cells, left, strict=True):
            cell.set_value(value)
        return gradient

    return applied


def _two_steps(nnx: Any, f: Function, mode: Mode) -> Function:
    axes = (nnx.Carry, 0)

    def step(carry: Any, number: Any) -> tuple[Any, Any]:
        model, x = carry
        y = f(model, x + number)
        return (model, y), y

    scanned = nnx.scan(step, in_axes=axes, out_axes=axes, **mode)
    return lambda model, x: scanned((model, x), jnp.float32([1, 2]))[1].sum(0)


def _plain_two_steps(f: Function) -> Function:
    def applied(model: Any, x: Any) -> Any:
        first = f(model, x + 1)
        return first + f(model, first + 2)

    return applied


def _twice(nnx: Any, f: Function, mode: Mode) -> Function:
    def body(number: Any, carry: Any) -> Any:
        model, x = carry
        return model, f(model, x)

    return lambda model, x: nnx.fori_loop(0, 2, body, (model, x), **mode)[1]


def _if_positive(nnx: Any, f: Function, mode: Mode) -> Function:
    def other(model: Any, x: Any) -> Any:
        return -x

    return lambda model, x: nnx.cond(x[0] > 0, f, other, model, x, **mode)


def _same(f: Function) -> Function:
    return f


Twins = tuple[Callable[[Any, Function, Mode], Function], Callable[[Function], Function]]

NESTING: Mapping[str, Twins] = MappingProxyType(
    {
        "jit": (APPLY["jit"], _same),
        "remat": (APPLY["remat"], _same),
        "vmap": (APPLY["vmap"], _same),
        "grad": (_gradient, _plain_gradient),
        "scan": (_two_steps, _plain_two_steps),
        "fori_loop": (_twice, lambda f: lambda model, x: f(model, f(model, x))),
        "cond": (_if_positive, lambda f: lambda model, x: f(model, x) if x[0] > 0 else -x),
    }
)
"""Transforms to nest, and what they mean on plain objects."""


def nested(nnx: Any, names: Sequence[str], f: Function, mode: Mode) -> Function:
    """Wraps a function in transforms of a target, the last name first."""
    for name in reversed(names):
        f = NESTING[name][0](nnx, f, mode)
    return f


def plainly_nested(names: Sequence[str], f: Function) -> Function:
    """Wraps a function of plain objects in what the transforms mean."""
    for name in reversed(names):
        f = NESTING[name][1](f)
    return f
