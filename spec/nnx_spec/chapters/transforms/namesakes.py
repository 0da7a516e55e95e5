"""The transforms of JAX and those of the target under one roof, to run the same code with both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
from jax.experimental import checkify

SAME = (
    "jit",
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "vmap",
    "pmap",
    "shard_map",
    "remat",
    "custom_vjp",
    "eval_shape",
    "make_jaxpr",
)
"""Transforms of which the target's has the name that `jax` has."""

CONTROL_FLOW = ("cond", "switch", "while_loop", "fori_loop")
"""Transforms of which the target's has the name that `jax.lax` has."""


def of_jax() -> SimpleNamespace:
    """Returns JAX's own transforms by name."""
    return SimpleNamespace(
        scan=jax.lax.scan,
        checkify=checkify.checkify,
        **{name: getattr(jax, name) for name in SAME},
        **{name: getattr(jax.lax, name) for name in CONTROL_FLOW},
    )


def of_target(nnx: Any, mode: Mapping[str, bool]) -> SimpleNamespace:
    """Returns the target's transforms by name, in a mode, to be called as JAX's are.

    `scan` takes the initial carry and the other arrays after the function, as `jax.lax.scan` does.
    A backward rule of `custom_vjp` gets the cotangent of the output alone, in every mode.
    """
    names = (*SAME, *CONTROL_FLOW, "checkify")
    transforms = {name: _in_mode(nnx, name, mode) for name in names}
    if mode["graph_updates"]:
        transforms["custom_vjp"] = _without_updates(transforms["custom_vjp"])

    def scan(f: Callable[..., Any], init: Any, xs: Any = None, **options: Any) -> Any:
        return nnx.scan(f, **options, **mode)(init, xs)

    return SimpleNamespace(scan=scan, **transforms)


def _in_mode(nnx: Any, name: str, mode: Mapping[str, bool]) -> Callable[..., Any]:
    """Makes a transform that is looked up when it is used, so that others work without it."""

    def transform(*args: Any, **options: Any) -> Any:
        return getattr(nnx, name)(*args, **options, **mode)

    return transform


def _without_updates(custom_vjp: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a `custom_vjp` whose backward rules do not get the cotangents of updates."""

    def transform(fun: Callable[..., Any], **options: Any) -> Any:
        ruled = custom_vjp(fun, **options)

        def call(*args: Any) -> Any:
            return ruled(*args)

        def defvjp(forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
            ruled.defvjp(forward, lambda *args: backward(*args[:-1], args[-1][1]))

        call.defvjp = defvjp  # type: ignore[attr-defined]
        return call

    return transform
