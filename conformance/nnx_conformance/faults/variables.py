"""Faults of the chapter on Variables: their values, writes and operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_conformance.faults import fault

NUMBERS = (bool, int, float, complex)


def around(patch: pytest.MonkeyPatch, cls: type, name: str, method: Callable[..., Any]) -> None:
    """Replaces a method by one that gets the original as its first argument."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(original, self, *args, **kwargs)

    patch.setattr(cls, name, replacement)


@fault(breaks="VAR-001")
def reading_widens_bfloat16(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`get_value` gives an array of bfloat16 as one of float32."""

    def get_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        return value.astype("float32") if getattr(value, "dtype", None) == jnp.bfloat16 else value

    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="VAR-001")
def raw_value_is_a_copy(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`get_raw_value` gives an equal array in the place of the stored one."""

    def get_raw_value(original: Any, self: Any) -> Any:
        value = original(self)
        return jnp.array(value, copy=True) if isinstance(value, jax.Array) else value

    around(patch, nnx.Variable, "get_raw_value", get_raw_value)


@fault(breaks="VAR-002")
def set_value_keeps_the_dtype(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_value` converts a new array to the dtype of the old one."""

    def set_value(original: Any, self: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        old = self.get_raw_value()
        if isinstance(value, np.ndarray) and isinstance(old, jax.Array):
            value = value.astype(old.dtype)
        original(self, value, *args, **kwargs)

    around(patch, nnx.Variable, "set_value", set_value)


@fault(breaks="VAR-002")
def writing_forgets_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_value` leaves a Variable without its metadata."""

    def set_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.set_metadata({})

    around(patch, nnx.Variable, "set_value", set_value)


@fault(breaks="VAR-003")
def reversed_slices_write_forwards(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A write at a slice with a negative step fills the same rows in the opposite order."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        backwards = isinstance(index, slice) and (index.step or 1) < 0
        original(self, index, jnp.flip(jnp.asarray(y), 0) if backwards and jnp.ndim(y) else y)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-003")
def indexed_writes_take_the_new_dtype(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A write into an array of floats converts it to the dtype of what is written."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        value = self.get_raw_value()
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating):
            self.set_value(value.astype(jnp.asarray(y).dtype))
        original(self, index, y)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-004")
def items_are_written_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Item assignment writes the item back twice."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        original(self, index, y)
        original(self, index, y)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-004 VAR-014")
def item_writes_drop_other_items(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Item assignment to a dict leaves nothing but that item."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        if isinstance(self.get_raw_value(), dict):
            self.set_value({index: y})
        else:
            original(self, index, y)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-005")
def reflected_subtraction_is_not_reflected(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`array - variable` computes `variable - array`."""
    patch.setattr(nnx.Variable, "__rsub__", nnx.Variable.__sub__)
    patch.setattr(nnx.Variable, "__array_priority__", 1000, raising=False)


@fault(breaks="VAR-005")
def equality_is_one_truth(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`==` gives one truth value instead of one for each element."""

    def equal(original: Any, self: Any, other: Any) -> Any:
        return bool(jnp.all(original(self, other)))

    around(patch, nnx.Variable, "__eq__", equal)


@fault(breaks="VAR-005")
def negation_changes_the_operand(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The unary minus also negates the Variable itself."""

    def negative(original: Any, self: Any) -> Any:
        result = original(self)
        self.set_value(result)
        return result

    around(patch, nnx.Variable, "__neg__", negative)


@fault(breaks="VAR-006")
def in_place_addition_gives_an_array(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`v += 1` puts the sum, a plain array, in the Variable's place."""
    patch.setattr(nnx.Variable, "__iadd__", nnx.Variable.__add__, raising=False)


@fault(breaks="VAR-025")
def in_place_errors_name_no_way(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error that `v *= 2` raises does not say what to write instead."""

    def refuse(self: Any, other: Any) -> Any:
        raise TypeError(f"unsupported in-place operator for {type(self).__name__}")

    patch.setattr(nnx.Variable, "__imul__", refuse, raising=False)


@fault(breaks="VAR-007")
def functions_see_half_precision(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jax.numpy` functions see a value of float32 in bfloat16."""

    def as_array(original: Any, self: Any) -> Any:
        value = original(self)
        return value.astype("bfloat16") if jnp.result_type(value) == jnp.float32 else value

    around(patch, nnx.Variable, "__jax_array__", as_array)


@fault(breaks="VAR-007")
def size_is_the_length(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`size` is the length of the first axis."""
    size = property(lambda self: len(self.get_value()) if self.ndim else 1)
    patch.setattr(nnx.Variable, "size", size, raising=False)


@fault(breaks="VAR-013")
def wrapped_numbers_are_static(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Python number in a Variable is kept with its metadata, and so never traced."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        static = {"number": value} if isinstance(value, NUMBERS) else {}
        original(self, value, **metadata, **static)

    def get_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        return self.get_metadata("number", value) if isinstance(value, jax.core.Tracer) else value

    around(patch, nnx.Variable, "__init__", init)
    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="VAR-014")
def length_counts_leaves(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`len` of a Variable counts the leaves of a nested value."""

    def length(original: Any, self: Any) -> int:
        value = self.get_value()
        is_container = isinstance(value, (dict, list, tuple))
        return len(jax.tree.leaves(value)) if is_container else int(original(self))

    around(patch, nnx.Variable, "__len__", length)


@fault(breaks="VAR-014")
def deleting_an_item_blanks_it(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Deleting an item of a dict leaves its key, with the value None."""

    def delitem(original: Any, self: Any, key: Any) -> None:
        if isinstance(self.get_value(), dict) and key in self:
            self[key] = None
        else:
            original(self, key)

    around(patch, nnx.Variable, "__delitem__", delitem)


@fault(breaks="VAR-018")
def the_accessor_writes_to_a_copy(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Assigning to `.value` sets the value of a copy."""

    def write(self: Any, value: Any) -> None:
        self.copy().set_value(value)

    patch.setattr(nnx.Variable, "value", property(lambda self: self.get_value(), write))


@fault(breaks="VAR-022")
def repr_computes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`repr` shows the mean of the value, which it computes on the device."""

    def show(original: Any, self: Any) -> str:
        value = self.get_raw_value()
        is_array = isinstance(value, jax.Array)
        return str(original(self)) + (f" # mean {jnp.mean(value)}" if is_array else "")

    around(patch, nnx.Variable, "__repr__", show)


@fault(breaks="VAR-022")
def repr_hides_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`repr` shows class and value only."""

    def show(original: Any, self: Any) -> str:
        bare = self.copy()
        bare.set_metadata({})
        return str(original(bare))

    around(patch, nnx.Variable, "__repr__", show)


@fault(breaks="VAR-024")
def writing_clears_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A write to an array sets the element to zero before it converts what is written."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        if isinstance(self.get_raw_value(), jax.Array):
            original(self, index, 0)
        original(self, index, y)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-024")
def a_failed_deletion_empties(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Deleting an item that is not there empties the container."""

    def delitem(original: Any, self: Any, key: Any) -> None:
        try:
            original(self, key)
        except (KeyError, IndexError):
            self.set_value(type(self.get_value())())
            raise

    around(patch, nnx.Variable, "__delitem__", delitem)
