"""All that the package takes from JAX's private modules, each with the reason."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from weakref import ReferenceType, ref

import jax
from jax._src.array import ArrayImpl

# `jax.extend.core.get_opaque_trace_state` tells the same publicly, but to ask and compare takes
# 0.4 us; this takes 0.1 us, and is done for each Variable that is made or written.
from jax._src.core import eval_trace, set_current_trace, trace_ctx

# To tell a differentiated value or Ref before JAX refuses it in words that name no Variable.
from jax._src.interpreters.ad import JVPTracer, LinearizeTracer

ConcreteArray = ArrayImpl
"""The class of arrays that are no tracers.

To ask `isinstance(x, jax.Array)` takes 20 times as long as to compare the class, and a public
function gives it away only at the cost of starting a backend.
"""

Trace = ReferenceType[object]
"""A trace level. Two are the same level exactly when they are the same object: compare with `is`.

It is a weak reference, so that what outlives a trace does not keep the trace alive.
"""


def current_trace() -> Trace:
    """Returns the caller's trace level: that of the innermost transform, or the eager one."""
    return ref(trace_ctx.trace)


def is_eager() -> bool:
    """Tells whether the caller is inside no transform at all."""
    return trace_ctx.trace is eval_trace


def outer_traces() -> list[Trace]:
    """Lists the trace levels around the caller's, the innermost first and the eager one last."""
    found: list[Trace] = []
    trace: Any = trace_ctx.trace
    while trace is not eval_trace:
        trace = getattr(trace, "parent_trace", None) or eval_trace
        found.append(ref(trace))
    return found


def eagerly() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the caller is inside no transform, wherever it stands."""
    return set_current_trace(eval_trace)


def traced_for() -> Iterator[str]:
    """Yields what the caller is being staged out for, `jit`, `while_cond`, ..., innermost first."""
    trace: Any = trace_ctx.trace
    while trace is not None and trace is not eval_trace:
        if frame := getattr(trace, "frame", None):
            yield getattr(frame.debug_info, "traced_for", "")
        trace = getattr(trace, "parent_trace", None)


CHECKPOINT = "checkpoint / remat"
"""What a function is staged out for that is computed again in the backward pass."""


def running_trace() -> Any:
    """Returns the outermost transform around the caller, if what it traces is computed at once.

    So it is in `jax.grad`, whose function does what it does to Refs while it is traced. Where
    something is staged out, as by `jax.jit`, it is None.
    """
    trace: Any = trace_ctx.trace
    while (parent := getattr(trace, "parent_trace", None) or eval_trace) is not eval_trace:
        trace = parent
    return None if trace is eval_trace or hasattr(trace, "frame") else trace


def is_differentiated(value: Any) -> bool:
    """Tells whether an array or Ref carries a tangent at the caller's trace level."""
    return isinstance(value, (JVPTracer, LinearizeTracer))


# `ref[...]` and `ref[...] = x`, eagerly, compile a program for each shape (50 ms) and then take
# 100 us. The buffer is where JAX's own `repr` of a Ref finds the elements.


def read_buffer(array_ref: Any) -> jax.Array:
    """Returns the value of a Ref, eagerly, as an array that later writes leave alone."""
    buffer = array_ref._refs._buf
    return jax.device_put(buffer, buffer.sharding, may_alias=False)


def write_buffer(array_ref: Any, value: jax.Array) -> None:
    """Sets a Ref, eagerly, to a copy of an array of its shape and dtype."""
    refs = array_ref._refs
    if jax.typeof(
        value
    ).weak_type:  # compiled functions expect the Ref's own type, which is not weak
        value = jax.lax.convert_element_type(value, value.dtype)
    refs._buf = jax.device_put(value, refs._buf.sharding, may_alias=False)


def delete_buffer(array_ref: Any) -> None:
    """Makes every further use of a Ref, compiled ones included, an error."""
    array_ref._refs._buf.delete()


# What quasi-dynamic types need beyond `jax.experimental.hijax`: the current structure of a value,
# and the base class of effects. JAX had such types up to 0.10.


def quasi_dynamic() -> bool:
    """Tells whether this JAX has quasi-dynamic types."""
    return hasattr(importlib.import_module("jax.experimental.hijax"), "MutableHiType")


def current_structure(cell: Any) -> Any:
    """Returns the quasi-dynamic data of a value, at this point of the trace."""
    core: Any = importlib.import_module("jax._src.core")
    return core.cur_qdd(cell)


Effect: Any = importlib.import_module("jax._src.effects").Effect

# What a jaxpr says of Refs that it writes to.

WriteEffect: Any = importlib.import_module("jax._src.state.types").WriteEffect
