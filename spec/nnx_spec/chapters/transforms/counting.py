"""Functions of a model that count their calls, and each transform applied to them.

The same code runs with JAX's own transforms, on a dict of arrays, and with the target's, on a
Module of Variables: JAX says how often a function is called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from nnx_spec.chapters.transforms.derivatives import zero_tangent
from nnx_spec.chapters.transforms.meshes import mesh_of

Call = Callable[[Any, Any], Any]
"""A call on a model and an array of shape (2,)."""


class Counted:
    """Functions that count their calls, each made once.

    Attributes:
      calls: how often each function has been called, by name.
    """

    def __init__(self, touch: Callable[[Any], Any]) -> None:
        """Makes the functions.

        Args:
          touch: reads a model, and may write to it; returns an array of shape () or (2,).
        """
        self.calls: Counter[str] = Counter()
        self.touch = touch
        self.main = self._counting("main", lambda model, x: x * touch(model))
        self.other = self._counting("other", lambda model, x: x + touch(model))
        self.loss = self._counting("loss", lambda x, model: (x * touch(model)).sum())
        self.step = self._counting("step", lambda model, x: (model, x * touch(model)))
        self.test = self._counting("test", lambda carry: carry[0] < 2)
        self.body = self._counting("body", self._body)
        self.fori = self._counting("fori", lambda n, carry: self._body((n, *carry))[1:])
        self.primal = self._counting("primal", lambda x: x * x)
        self.forward = self._counting("forward", lambda x: (x * x, x))
        self.backward = self._counting("backward", lambda x, g: (g * x,))

    def _counting(self, name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            self.calls[name] += 1
            return f(*args)

        return counting

    def _body(self, carry: Any) -> Any:
        n, model, x = carry
        return n + 1, model, x * self.touch(model)


def _shard_map(t: Any, f: Counted) -> Call:
    whole = PartitionSpec()
    mapped = t.shard_map(f.main, mesh=mesh_of(1), in_specs=(whole, whole), out_specs=whole)
    return lambda model, x: mapped(model, x)


def _grad(t: Any, f: Counted) -> Call:
    differentiated = t.grad(f.loss)
    return lambda model, x: differentiated(x, model)


def _value_and_grad(t: Any, f: Counted) -> Call:
    differentiated = t.value_and_grad(f.loss)
    return lambda model, x: differentiated(x, model)


def _vjp(t: Any, f: Counted) -> Call:
    return lambda model, x: t.vjp(f.loss, x, model)[1](np.float32(1))


def _jvp(t: Any, f: Counted) -> Call:
    return lambda model, x: t.jvp(f.loss, (x, model), (x, jax.tree.map(zero_tangent, model)))


def _custom_vjp(t: Any, f: Counted) -> Call:
    ruled = t.custom_vjp(f.primal)
    ruled.defvjp(f.forward, f.backward)
    return lambda model, x: ruled(x)


def _custom_vjp_grad(t: Any, f: Counted) -> Call:
    ruled = t.custom_vjp(f.primal)
    ruled.defvjp(f.forward, f.backward)
    return lambda model, x: jax.grad(lambda x: ruled(x).sum())(x)


APPLY: Mapping[str, Callable[[Any, Counted], Call]] = MappingProxyType(
    {
        "jit": lambda t, f: t.jit(f.main),
        "grad": _grad,
        "value_and_grad": _value_and_grad,
        "vjp": _vjp,
        "jvp": _jvp,
        "remat": lambda t, f: t.remat(f.main),
        "remat under grad": lambda t, f: (
            lambda model, x: t.grad(lambda x, model: t.remat(f.main)(model, x).sum())(x, model)
        ),
        "custom_vjp": _custom_vjp,
        "custom_vjp under grad": _custom_vjp_grad,
        "vmap": lambda t, f: t.vmap(f.main, in_axes=(None, 0)),
        "pmap": lambda t, f: (
            lambda model, x: t.pmap(f.main, in_axes=(None, 0), devices=jax.devices()[:2])(model, x)
        ),
        "shard_map": _shard_map,
        "scan": lambda t, f: lambda model, x: t.scan(f.step, model, x),
        "cond": lambda t, f: lambda model, x: t.cond(x[0] > 0, f.main, f.other, model, x),
        "switch": lambda t, f: lambda model, x: t.switch(jnp.int32(1), [f.main, f.other], model, x),
        "while_loop": lambda t, f: (
            lambda model, x: t.while_loop(f.test, f.body, (jnp.int32(0), model, x))[2]
        ),
        "fori_loop": lambda t, f: lambda model, x: t.fori_loop(0, 3, f.fori, (model, x))[1],
        "checkify": lambda t, f: t.checkify(f.main),
    }
)
"""Each transform by name: wraps the functions, and gives a call of what comes out.

`t` has the transforms, JAX's own or the target's (see `namesakes`).
"""
