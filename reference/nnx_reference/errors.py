"""The exceptions that only this API raises; everything else is Python's own."""

from __future__ import annotations


class TraceContextError(Exception):
    """An object that belongs to one trace level was to be changed from another.

    A write from inside `jax.jit`, `jax.grad`, `jax.vmap`, ... to an object that was captured from
    outside would either be lost or leave a tracer behind, so it is refused. Pass the object in as
    an argument instead.
    """


class ImmutableVariableError(Exception):
    """A Variable whose `mutable` flag is False was to be written."""
