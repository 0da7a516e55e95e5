"""Ways to apply each transform to a function of a model, so that its effect is that of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from nnx_spec.chapters.transforms.derivatives import zero_tangent, zero_tangent_of
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import MODES, Mode, case

Function = Callable[[Any, Any], Any]
"""A function of a model and a float array x; it returns an array of the same shape and dtype.

It may change the model.
"""


def _cached_partial(nnx: Any, f: Function, mode: Mode) -> Function:
    return lambda model, x: nnx.cached_partial(nnx.jit(f, **mode), model, **mode)(x)


def _grad(nnx: Any, f: Function, mode: Mode) -> Function:
    differentiated = nnx.grad(_with_loss(f), has_aux=True, **mode)
    return lambda model, x: differentiated(x, model)[1]


def _value_and_grad(nnx: Any, f: Function, mode: Mode) -> Function:
    differentiated = nnx.value_and_grad(_with_loss(f), has_aux=True, **mode)
    return lambda model, x: differentiated(x, model)[0][1]


def _with_loss(f: Function) -> Function:
    """Makes a loss that is differentiated by x alone, with what f returns beside it."""

    def loss(x: Any, model: Any) -> tuple[Any, Any]:
        return jnp.sum(x), f(model, x)

    return loss


def _vjp(nnx: Any, f: Function, mode: Mode) -> Function:
    return lambda model, x: nnx.vjp(f, model, x, **mode)[0]


def _jvp(nnx: Any, f: Function, mode: Mode) -> Function:
    def applied(model: Any, x: Any) -> Any:
        tangents = zero_tangent_of(nnx, model), zero_tangent(x)
        return nnx.jvp(f, (model, x), tangents, **mode)[0]

    return applied


def _vmap(nnx: Any, f: Function, mode: Mode) -> Function:
    return nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2, **mode)


def _pmap(nnx: Any, f: Function, mode: Mode) -> Function:
    device = jax.devices()[:1]
    mapped = nnx.pmap(f, in_axes=(None, 0), out_axes=0, devices=device, **mode)
    return lambda model, x: mapped(model, x[None])[0]


def _shard_map(nnx: Any, f: Function, mode: Mode) -> Function:
    whole = PartitionSpec()
    mapped = nnx.shard_map(f, mesh=mesh_of(1), in_specs=(whole, whole), out_specs=whole, **mode)
    return nnx.jit(mapped, **mode)  # eager, JAX compiles every operation in it by itself


def _scan(nnx: Any, f: Function, mode: Mode) -> Function:
    axes = (nnx.Carry, 0)

    def step(model: Any, x: Any) -> tuple[Any, Any]:
        return model, f(model, x)

    scanned = nnx.scan(step, in_axes=axes, out_axes=axes, **mode)
    return lambda model, x: scanned(model, x[None])[1][0]


def _cond(nnx: Any, f: Function, mode: Mode) -> Function:
    return lambda model, x: nnx.cond(True, f, lambda model, x: x, model, x, **mode)


def _switch(nnx: Any, f: Function, mode: Mode) -> Function:
    branches = (lambda model, x: x, f)
    return lambda model, x: nnx.switch(1, branches, model, x, **mode)


def _while_loop(nnx: Any, f: Function, mode: Mode) -> Function:
    def body(carry: Any) -> Any:
        count, model, x = carry
        return count + 1, model, f(model, x)

    def applied(model: Any, x: Any) -> Any:
        return nnx.while_loop(lambda carry: carry[0] < 1, body, (0, model, x), **mode)[2]

    return applied


def _fori_loop(nnx: Any, f: Function, mode: Mode) -> Function:
    def body(n: Any, carry: Any) -> Any:
        model, x = carry
        return model, f(model, x)

    return lambda model, x: nnx.fori_loop(0, 1, body, (model, x), **mode)[1]


def _checkify(nnx: Any, f: Function, mode: Mode) -> Function:
    def applied(model: Any, x: Any) -> Any:
        error, y = nnx.checkify(f, **mode)(model, x)
        error.throw()
        return y

    return applied


def _custom_vjp(nnx: Any, f: Function, mode: Mode) -> Function:
    """With graph updates the model may be changed as it is, else as a non-differentiable one."""
    if mode["graph_updates"]:
        ruled = nnx.custom_vjp(f, **mode)
        ruled.defvjp(lambda model, x: (f(model, x), None), lambda _, gradients: gradients)
    else:
        ruled = nnx.custom_vjp(f, nondiff_argnums=(0,), **mode)
        ruled.defvjp(lambda model, x: (f(model, x), None), lambda model, _, g: (g,))
    return lambda model, x: ruled(model, x)


APPLY: Mapping[str, Callable[[Any, Function, Mode], Function]] = MappingProxyType(
    {
        "jit": lambda nnx, f, mode: nnx.jit(f, **mode),
        "cached_partial": _cached_partial,
        "grad": _grad,
        "value_and_grad": _value_and_grad,
        "vjp": _vjp,
        "jvp": _jvp,
        "custom_vjp": _custom_vjp,
        "remat": lambda nnx, f, mode: nnx.remat(f, **mode),
        "vmap": _vmap,
        "pmap": _pmap,
        "shard_map": _shard_map,
        "scan": _scan,
        "while_loop": _while_loop,
        "fori_loop": _fori_loop,
        "cond": _cond,
        "switch": _switch,
        "checkify": _checkify,
    }
)
"""Each transform by name: `APPLY[name](nnx, f, mode)(model, x)` does what `f(model, x)` does.

The result is that of f, and so is what happens to the model. Mapped over, f runs for equal slices;
in a loop it is the body and runs once; of branches it is the chosen one.
"""

ANY_OUTPUT = (
    "jit",
    "grad",
    "value_and_grad",
    "remat",
    "vmap",
    "shard_map",
    "checkify",
)
"""Transforms of which f may also return arrays of other shapes, and objects, the model too."""

STRUCTURE_MAY_CHANGE = tuple(
    name
    for name in APPLY
    if name not in ("cached_partial", "scan", "while_loop", "fori_loop", "cond", "switch")
)
"""Transforms in which f may change the structure of the model: no carry, no branch, no cache."""

GRAPH_UPDATES_ONLY = frozenset({"cached_partial"})
"""Transforms that the documents know with graph updates alone."""


def each_transform(*names: str, modes: Mapping[str, Mode] = MODES) -> pytest.MarkDecorator:
    """Runs a test for each transform, or those of the given names, in each mode that it has.

    The test takes `transform`, a name, and `mode`.
    """
    cases = [
        case(name, mode, id=f"{name}-{label}", mode=mode, transform=name)
        for name in names or APPLY
        for label, mode in modes.items()
        if mode["graph_updates"] or name not in GRAPH_UPDATES_ONLY
    ]
    return pytest.mark.parametrize(("transform", "mode"), cases)
