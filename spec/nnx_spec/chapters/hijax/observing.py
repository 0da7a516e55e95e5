"""Observations that hold for hijax Variables and plain ones alike.

The Python type of a hijax Variable may be one of the implementation's own; what counts is that it
is an instance of the class that it was made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnx_spec.oracles import Path, array_record, is_node, user_metadata, value_record, walk
from nnx_spec.plans import VARIABLE_KINDS, is_array, variable_class


def kinds(nnx: Any, variable: Any) -> tuple[str, ...]:
    """Names the classes of `VARIABLE_KINDS` of which a Variable is an instance."""
    return tuple(k for k in VARIABLE_KINDS if isinstance(variable, variable_class(nnx, k)))


def record(nnx: Any, leaf: Any) -> Any:
    """Describes a Variable by its classes, its value to the bit and the user's metadata; or an
    array.
    """
    if not isinstance(leaf, nnx.Variable):
        return array_record(leaf)
    metadata = tuple(sorted(user_metadata(leaf).items()))
    return kinds(nnx, leaf), value_record(leaf.get_value()), metadata


def description(nnx: Any, root: Any) -> list[tuple[Path, Any]]:
    """Describes everything in an object graph with its path, each object once."""

    def describe(value: Any) -> Any:
        if isinstance(value, nnx.Variable) or is_array(value):
            return record(nnx, value)
        return type(value) if is_node(nnx, value) else (type(value), value)

    return [(path, describe(value)) for path, value in walk(nnx, root)]


def refusal(call: Callable[[], Any]) -> Exception | None:
    """Returns the exception that a call raises, or None."""
    try:
        call()
    except Exception as error:
        return error
    return None
