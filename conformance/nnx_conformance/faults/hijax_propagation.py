"""Faults of the chapter on hijax Variables: what Variables are and carry out under `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


def is_tracing() -> bool:
    """Tells whether a function is being traced just now."""
    return isinstance(jnp.zeros(()), jax.core.Tracer)


def skip_writes(nnx: Any, patch: pytest.MonkeyPatch, skips: Callable[[Any, str], bool]) -> None:
    """Makes methods that write do nothing where `skips(variable, name of the method)` says so.

    A method that another of them calls, for the same write, is not asked about.
    """
    inside: list[Any] = []

    def replace(name: str) -> None:
        def write(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
            if not inside and skips(self, name):
                return
            inside.append(self)
            try:
                original(self, *args, **kwargs)
            finally:
                inside.pop()

        around(patch, nnx.Variable, name, write)

    for name in ("__setitem__", "__delitem__", "set_value"):
        replace(name)


@fault(breaks="HJX-008 HJX-013")
def set_value_is_lost_under_jit(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What `set_value` writes in a `jax.jit` function, unlike item assignment, stays unwritten."""
    skip_writes(nnx, patch, lambda v, name: name == "set_value" and is_tracing())


@fault(breaks="HJX-008 HJX-010 HJX-014")
def the_first_write_under_jit_is_the_last(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Of several writes to one Variable in a `jax.jit` function, only the first is done."""
    written: list[Any] = []

    def skips(v: Any, name: str) -> bool:
        if not is_tracing():
            return False
        known = any(v is other for other in written)
        written.append(v)
        return known

    skip_writes(nnx, patch, skips)


def note_eager_variables(nnx: Any, patch: pytest.MonkeyPatch) -> Callable[[Any], bool]:
    """Notes every Variable that is made outside of traces, and returns a test for being one."""
    made: dict[int, Any] = {}

    def init(original: Any, self: Any, *args: Any, **metadata: Any) -> None:
        original(self, *args, **metadata)
        if not is_tracing():
            made[id(self)] = self

    around(patch, nnx.Variable, "__init__", init)
    return lambda variable: made.get(id(variable)) is variable


@fault(breaks="HJX-009")
def writes_to_captured_variables_are_lost(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Nothing that a `jax.jit` function writes to a Variable it captures is carried out."""
    is_eager = note_eager_variables(nnx, patch)
    skip_writes(nnx, patch, lambda v, name: is_tracing() and is_eager(v))


@fault(breaks="HJX-010")
def the_last_item_wins(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Of the items that are updated one by one under `jax.jit`, the last alone is written back."""
    starts: dict[int, tuple[Any, Any]] = {}

    def setitem(original: Any, self: Any, key: Any, item: Any) -> None:
        value = self.get_value()
        if not is_tracing() or not isinstance(value, dict):
            original(self, key, item)
            return
        _, start = starts.setdefault(id(self), (self, value))
        self.set_value({**start, key: item})

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="HJX-011 HJX-012")
def new_keys_get_zeros(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A key that is added under `jax.jit` gets zeros of the right shape for its value."""

    def setitem(original: Any, self: Any, key: Any, item: Any) -> None:
        value = self.get_value()
        is_new = isinstance(value, dict) and key not in value and is_tracing()
        original(self, key, jnp.zeros_like(item) if is_new else item)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="HJX-013 HJX-046")
def deletions_under_jit_are_forgotten(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A key that is deleted under `jax.jit` is still there afterwards."""
    skip_writes(nnx, patch, lambda v, name: name == "__delitem__" and is_tracing())


@fault(breaks="HJX-013")
def dtype_changes_under_jit_are_cast(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An array of another dtype is cast to the old one when it is set under `jax.jit`."""

    def set_value(original: Any, self: Any, value: Any, **index: Any) -> None:
        old = self.get_value()
        if isinstance(old, jax.Array) and isinstance(value, jax.Array) and is_tracing():
            value = value.astype(old.dtype)
        original(self, value, **index)

    around(patch, nnx.Variable, "set_value", set_value)


@fault(breaks="HJX-014")
def reads_under_jit_give_the_first_value(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """In a `jax.jit` function, an argument reads as at its first read, whatever was written."""
    is_eager = note_eager_variables(nnx, patch)
    first: dict[int, tuple[Any, Any]] = {}

    def get_value(original: Any, self: Any, **index: Any) -> Any:
        value = original(self, **index)
        if index or is_eager(self) or not isinstance(value, jax.core.Tracer):
            return value
        return first.setdefault(id(self), (self, value))[1]

    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="HJX-015")
def traced_subtraction_is_not_reflected(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, `array - variable` computes `variable - array`."""

    def reflected(original: Any, self: Any, other: Any) -> Any:
        return self - other if is_tracing() else original(self, other)

    around(patch, nnx.Variable, "__rsub__", reflected)


@fault(breaks="HJX-047")
def traced_variables_are_negated_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, what `jax.numpy` takes a Variable for is its value with the other sign."""

    def array(original: Any, self: Any) -> Any:
        return -original(self) if is_tracing() else original(self)

    around(patch, nnx.Variable, "__jax_array__", array)


@fault(breaks="HJX-048")
def traced_variables_have_no_shape(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, the shape of a Variable is that of a scalar."""
    shape = property(lambda self: () if is_tracing() else self.get_value().shape)
    patch.setattr(nnx.Variable, "shape", shape, raising=False)


@fault(breaks="HJX-016")
def the_flag_hijax_is_off_under_jit(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, `v.hijax` is False, as if the Variable there were a plain one."""
    original = nnx.Variable.hijax
    hijax = property(lambda self: not is_tracing() and original.__get__(self, type(self)))
    patch.setattr(nnx.Variable, "hijax", hijax)


@fault(breaks="HJX-016")
def tags_are_unknown_under_jit(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jax.jit`, `get_metadata()` has none of what the user gave."""

    def get_metadata(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        whole = not args and not kwargs
        return {} if whole and is_tracing() else original(self, *args, **kwargs)

    around(patch, nnx.Variable, "get_metadata", get_metadata)
