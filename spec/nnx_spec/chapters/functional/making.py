"""Small objects by hand, for clauses that need a certain one, and what their States hold."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from nnx_spec.oracles import Path, leaf_record, state_items
from nnx_spec.plans import classes


def net(nnx: Any, **attributes: Any) -> Any:
    """Makes a Module with the given attributes."""
    module = classes(nnx).Net()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def param(nnx: Any, value: Any = 0.0, **metadata: Any) -> Any:
    """Makes a Param that holds the value as a float32 array."""
    return nnx.Param(jnp.asarray(value, "float32"), **metadata)


def count(nnx: Any, value: int = 0, **metadata: Any) -> Any:
    """Makes a Variable of the user's own kind `Count` that holds an int32."""
    return classes(nnx).Count(jnp.asarray(value, "int32"), **metadata)


def records(nnx: Any, state: Any) -> dict[Path, Any]:
    """Describes a State's leaves exactly, by their paths."""
    return {path: leaf_record(nnx, leaf) for path, leaf in state_items(state)}
