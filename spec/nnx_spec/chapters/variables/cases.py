"""What the tests of this chapter share: arrays, refusals, ways to make a second Variable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec.plans import classes


def array(values: Any, dtype: Any = "float32") -> jax.Array:
    """Makes a JAX array of nested numbers without compiling anything."""
    return jnp.asarray(np.array(values, jnp.dtype(dtype)))


class RefusalError(Exception):
    """Raised where a new value is computed."""


class Refuses:
    """An operand that raises `RefusalError` whatever is computed with it."""

    def __radd__(self, other: Any) -> Any:
        raise RefusalError

    def __jax_array__(self) -> Any:
        raise RefusalError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RefusalError


def inside(nnx: Any, variable: Any) -> Any:
    """Makes a Module whose attribute `v` is the Variable."""
    model = classes(nnx).Net()
    model.v = variable
    return model


def _merged_copy(nnx: Any, variable: Any, graph: bool) -> Any:
    graphdef, state = nnx.split(inside(nnx, variable), graph=graph)
    return nnx.merge(graphdef, state, copy=True).v


def _merged_tree(nnx: Any, variable: Any, graph: bool) -> Any:
    graphdef, state = nnx.split(inside(nnx, variable), graph=graph)
    return nnx.merge(graphdef, jax.tree.map(lambda x: x, state)).v


def _unflattened(variable: Any) -> Any:
    leaves, treedef = jax.tree.flatten(variable)
    return jax.tree.unflatten(treedef, leaves)


SECONDS = {
    "copy": lambda nnx, v: v.copy(),
    "replace": lambda nnx, v: v.replace(v.get_value()),
    "clone-tree-mode": lambda nnx, v: nnx.clone(inside(nnx, v), graph=False).v,
    "clone-graph-mode": lambda nnx, v: nnx.clone(inside(nnx, v), graph=True).v,
    "split-merge-copy-tree-mode": lambda nnx, v: _merged_copy(nnx, v, graph=False),
    "split-merge-copy-graph-mode": lambda nnx, v: _merged_copy(nnx, v, graph=True),
    "split-map-merge-tree-mode": lambda nnx, v: _merged_tree(nnx, v, graph=False),
    "split-map-merge-graph-mode": lambda nnx, v: _merged_tree(nnx, v, graph=True),
    "tree-map": lambda nnx, v: jax.tree.map(lambda x: x, v),
    "unflatten": lambda nnx, v: _unflattened(v),
}
"""Ways to make, from a Variable, a second one of the same class, value and metadata, by name."""
