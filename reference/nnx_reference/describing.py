"""Describing values in a line, for `repr`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SHOWN_ELEMENTS = 16
"""Arrays with more elements are described by shape and dtype alone."""


def describe(value: Any) -> str:
    """Describes a value in a line: small arrays by their elements, others by shape and dtype.

    Nothing is computed on a device. Tracers, PRNG keys, deleted arrays and arrays that are spread
    over processes are described by what is known without.
    """
    match value:
        case dict() if type(value) is dict:
            items = (f"{key!r}: {describe(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        case list() if type(value) is list:
            return "[" + ", ".join(map(describe, value)) + "]"
        case tuple() if type(value) is tuple:
            return "(" + ", ".join(map(describe, value)) + (",)" if len(value) == 1 else ")")
        case jax.Array() | np.ndarray() if not isinstance(value, jax.core.Tracer):
            return _describe_array(value)
        case _:
            return " ".join(line.strip() for line in repr(value).splitlines())


def _describe_array(value: jax.Array | np.ndarray) -> str:
    name = "Array" if isinstance(value, jax.Array) else "array"
    if value.size > SHOWN_ELEMENTS or not _is_readable(value):
        return f"{name}(shape={value.shape}, dtype={value.dtype})"
    elements = np.array2string(np.asarray(value), separator=", ", max_line_width=10**6)
    return f"{name}({' '.join(elements.split())}, dtype={value.dtype})"


def _is_readable(value: jax.Array | np.ndarray) -> bool:
    if isinstance(value, np.ndarray):
        return True
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return not is_key and value.is_fully_addressable and not value.is_deleted()
