"""How parameters get their first value: an initializer, a key of the stream `params`, metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jax.typing import DTypeLike

from nnx_reference.rngs import Rngs
from nnx_reference.variables import Variable

V = TypeVar("V", bound=Variable[Any])

Initializer = Callable[..., Any]
"""A function of a key, a shape and a dtype that makes a parameter's first value."""

Metadata = Mapping[str, Any]
"""Metadata for a parameter."""

NONE: Metadata = {}
"""No metadata."""


def parameter(
    kind: type[V],
    initializer: Initializer,
    rngs: Rngs,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    metadata: Metadata = NONE,
) -> V:
    """Makes a Variable with one key of `rngs.params`."""
    return kind(initializer(rngs.params(), shape, dtype), **metadata)
