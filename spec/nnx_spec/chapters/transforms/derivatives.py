"""What the tests of derivatives share: a model to differentiate, gradients and tangents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec.chapters.functional.making import net
from nnx_spec.oracles import Path, array_record, is_node, walk

Values = Mapping[str, Any]
"""Arrays for the Variables of a model, by name."""

VALUES: Values = {
    "w": np.float32([1, -2, 3]),
    "scale": np.float32(4),
    "bias": np.float32([0.5, 0, -1]),
}
"""Values for `model_of`."""

PLACES: Mapping[str, Path] = {
    "w": ("w",),
    "scale": ("inner", "scale"),
    "bias": ("inner", "layers", 0),
}
"""Where the Variables of `model_of` stand, by name."""


def model_of(nnx: Any, values: Values = VALUES) -> Any:
    """Makes a Module of three Params, two of them below, and with static attributes."""
    w, scale, bias = (nnx.Param(values[name], tag=name) for name in ("w", "scale", "bias"))
    return net(nnx, w=w, power=2, inner=net(nnx, scale=scale, layers=nnx.List([bias])))


def predict(model: Any, x: Any) -> Any:
    """Computes an array of shape (3,) of a model and a number; no two Params do the same in it."""
    return model.w[...] ** model.power * model.inner.scale[...] * x + model.inner.layers[0][...]


def loss_of(model: Any, x: Any) -> Any:
    """Computes a number of a model and a number."""
    return (predict(model, x) * np.float32([1, 2, 4])).sum()


def zero_tangent(value: Any) -> Any:
    """Makes the tangent zero of an array."""
    differentiable = jnp.issubdtype(value.dtype, jnp.inexact)
    return jnp.zeros_like(value) if differentiable else np.zeros(value.shape, jax.dtypes.float0)


def zero_tangent_of(nnx: Any, model: Any) -> Any:
    """Makes the tangent zero of an object: one of the same structure."""
    graphdef, state = nnx.split(model, graph=True)
    return nnx.merge(graphdef, jax.tree.map(zero_tangent, state))


def arrays_of(nnx: Any, gradient: Any) -> dict[Path, Any]:
    """Returns what a gradient, or any object, holds: each Variable's value and array by its path.

    It may be an object, a State, an array, or a pytree of them.
    """
    return {
        path: value.get_value() if isinstance(value, nnx.Variable) else value
        for path, value in walk(nnx, gradient)
        if not is_node(nnx, value) and isinstance(value, (nnx.Variable, jax.Array, np.ndarray))
    }


def at_places(values: Values) -> dict[Path, Any]:
    """Puts values of `model_of` where its Variables stand."""
    return {PLACES[name]: value for name, value in values.items()}


def assert_gradient(nnx: Any, gradient: Any, expected: Values) -> None:
    """Asserts that a gradient with respect to `model_of` holds the expected values and no more."""
    found = arrays_of(nnx, gradient)
    wanted = at_places(expected)
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        assert array_record(found[path]) == array_record(value), path
