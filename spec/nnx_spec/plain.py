"""Plain Python and JAX in the place of a target: what objects do where there are no transforms.

The module has the names that plans and generated programs use. Its Modules are plain objects and
its Variables cells: no pytrees, no traces, no checks. A program that runs on it eagerly says what
the program means; the elements of a cell may be of any kind of number, JAX's or NumPy's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def data(value: Any) -> Any:
    """Returns the value: a plain object knows no kinds of attributes."""
    return value


static = data


class Variable:
    """A cell that holds an array."""

    def __init__(self, value: Any, **metadata: Any) -> None:
        self.value = value
        self.metadata = metadata

    def __getitem__(self, index: Any) -> Any:
        return self.value if index is ... else self.value[index]

    def __setitem__(self, index: Any, new: Any) -> None:
        if index is ...:
            self.value = new
        elif isinstance(self.value, np.ndarray):
            self.value = self.value.copy()
            self.value[index] = new
        else:
            self.value = self.value.at[index].set(new)

    def get_value(self) -> Any:
        """Returns the array."""
        return self.value

    get_raw_value = get_value

    def set_value(self, new: Any) -> None:
        """Replaces the array."""
        self.value = new

    def get_metadata(self) -> dict[str, Any]:
        """Returns a copy of the metadata."""
        return dict(self.metadata)

    def set_metadata(self, name: str, new: Any) -> None:
        """Sets one entry of the metadata."""
        self.metadata[name] = new


class Param(Variable):
    """A parameter."""


class BatchStat(Variable):
    """A statistic."""


class Cache(Variable):
    """A cached value."""


class Intermediate(Variable):
    """A value on the way."""


class RngKey(Variable):
    """The root of a stream of keys."""


class RngCount(Variable):
    """How often a stream has drawn."""


class Pytree:
    """An object with whatever attributes it is given."""


class Module(Pytree):
    """An object with whatever attributes it is given."""


Object = Module


class List(list[Any]):
    """A list."""


class Dict(dict[str, Any]):
    """A dict."""


class RngStream(Module):
    """A stream of keys: each is the root with the number of the draw folded in."""

    def __init__(self, seed: int) -> None:
        self.key = RngKey(jax.random.key(seed))
        self.count = RngCount(jnp.uint32(0))

    def __call__(self) -> Any:
        """Draws a key."""
        key = jax.random.fold_in(self.key[...], self.count[...])
        self.count[...] += 1
        return key


class Rngs(Module):
    """Streams of keys, of which there is one."""

    def __init__(self, seed: int) -> None:
        self.default = RngStream(seed)

    def __call__(self) -> Any:
        """Draws a key."""
        return self.default()
