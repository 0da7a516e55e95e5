"""Values: how an item of a Variable's value is read, set and deleted.

A value is an array, a Python number, or any pytree of them. Whoever holds the old value never sees
a change: an array is updated functionally, a container is copied first.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def get_item(value: Any, index: Any) -> Any:
    """Returns `value[index]`, or the whole value for `...`."""
    return value if index is ... else value[index]


def set_item(value: Any, index: Any, item: Any) -> Any:
    """Returns the value with `item` at `index`.

    An array keeps its shape and dtype: `item` is broadcast and cast, as `value.at[index].set(item)`
    does it. Of any other value `...` is the whole, and `item` takes its place.

    Raises:
      TypeError: the value is one whose items cannot be set: a tuple or a number.
    """
    if isinstance(value, jax.Array):
        return item if index is ... and _same_type(value, item) else value.at[index].set(item)
    if isinstance(value, np.ndarray) and _is_traced((index, item)):
        return jnp.asarray(value).at[index].set(item)
    if index is ... and not isinstance(value, np.ndarray):
        return item
    changed = copy.copy(value)
    changed[index] = item
    return changed


def delete_item(value: Any, index: Any) -> Any:
    """Returns the value without what stands at `index`.

    Raises:
      TypeError: the value is one whose items cannot be deleted: an array or a tuple.
    """
    changed = copy.copy(value)
    del changed[index]
    return changed


def unaliased(value: Any) -> Any:
    """Returns an equal value that shares no container and no NumPy array; JAX arrays are shared."""
    if isinstance(value, jax.Array):
        return value
    if type(value) is dict:
        return {key: unaliased(item) for key, item in value.items()}
    return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, value)


def _same_type(value: jax.Array, item: Any) -> bool:
    return (
        isinstance(item, jax.Array)
        and item.shape == value.shape
        and item.dtype == value.dtype
        and jax.typeof(item).weak_type == jax.typeof(value).weak_type
    )


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
