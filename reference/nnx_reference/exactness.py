"""Exactness: static values that `==` takes for the same, told apart.

Compiled functions are looked up by static values, and what they compute depends on more than `==`
sees: 1, 1.0 and True are equal, and so are 0.0 and -0.0, also inside tuples, frozensets and
dataclasses. Two values are *exactly equal* if they are of one type, equal, and so on for what is in
them. Values whose `==` does not say yes or no, such as arrays, are exactly equal only to
themselves; so is what raises when it is compared.

Exactly equal values are equal and have the same hash, so `hash` goes with it.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any

import numpy as np

_PLAIN = frozenset({int, bool, str, bytes, type(None)})

_SPELLED = (range, slice, decimal.Decimal, datetime.datetime, datetime.time)
"""Types of values that are equal without being spelled alike."""


def exactly_equal(one: Any, other: Any) -> bool:
    """Tells whether two static values are the same in all that a computation may depend on."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return bool(one == other)
    for types, compare in _COMPARISONS:
        if isinstance(one, types):
            return compare(one, other)
    if dataclasses.is_dataclass(kind):
        return _are_fields_equal(one, other)
    return _is_equal(one, other)


def all_exactly_equal(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Tells whether two tuples or lists hold exactly equal values."""
    mine, others = tuple(one), tuple(other)
    if all(map(is_, mine, others)):
        return len(mine) == len(others)
    return len(mine) == len(others) and all(map(exactly_equal, mine, others))


class Exact:
    """A value that is equal to another one only if they are exactly equal."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Exact):
            return NotImplemented
        return exactly_equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def items_exactly_equal(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
    """Tells whether two mappings have exactly equal items, in whatever order."""
    mine = {Exact(key): value for key, value in one.items()}
    others = {Exact(key): value for key, value in other.items()}
    return mine.keys() == others.keys() and all(
        exactly_equal(value, others[key]) for key, value in mine.items()
    )


def _is_equal(one: Any, other: Any) -> bool:
    try:
        found = one == other
    except Exception:
        return False
    return found is True or (isinstance(found, np.bool_) and bool(found))


def _are_fields_equal(one: Any, other: Any) -> bool:
    """Compares dataclasses by field, unless their class has an `__eq__` that compares otherwise."""
    kind = type(one)
    fields = [field.name for field in dataclasses.fields(kind) if field.compare]
    if not kind.__dataclass_params__.eq or _is_written_out(kind):
        return _is_equal(one, other)
    return all(exactly_equal(getattr(one, name), getattr(other, name)) for name in fields)


def _is_written_out(kind: type) -> bool:
    """Tells whether the `__eq__` of a dataclass is not the generated one."""
    code = getattr(vars(kind).get("__eq__"), "__code__", None)
    return code is None or code.co_filename != "<string>"


def _are_floats_equal(one: float, other: float) -> bool:
    return _is_equal(one, other) and float.hex(one) == float.hex(other)


def _are_scalars_equal(one: np.generic, other: np.generic) -> bool:
    return bool(one.dtype == other.dtype) and one.tobytes() == other.tobytes()


def _are_sets_equal(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return set(map(Exact, one)) == set(map(Exact, other))


_COMPARISONS: tuple[tuple[Any, Callable[[Any, Any], bool]], ...] = (
    (np.generic, _are_scalars_equal),
    (float, _are_floats_equal),
    (complex, lambda a, b: _is_equal(a, b) and repr(a) == repr(b)),
    ((tuple, list), all_exactly_equal),
    ((frozenset, set), _are_sets_equal),
    (dict, items_exactly_equal),
    (_SPELLED, lambda a, b: _is_equal(a, b) and repr(a) == repr(b)),
)
