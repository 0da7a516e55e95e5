"""Sequential: what is passed from one function to the next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx


class Noise(nnx.Module):
    def __call__(self, x, *, rngs):
        return x + rngs.normal(x.shape)


def test_layers_are_called_in_order():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=rngs), jnp.tanh, nnx.Linear(3, 4, rngs=rngs))
    x = jnp.arange(10.0).reshape(5, 2)
    first, last = model.layers[0], model.layers[2]
    assert np.array_equal(model(x), last(jnp.tanh(first(x))))
    assert np.array_equal(nnx.jit(lambda model, x: model(x))(model, x), jax.jit(model)(x))


def test_parameters_are_found():
    model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.tanh)
    assert [path for path, _ in nnx.to_flat_state(nnx.state(model))] == [
        ("layers", 0, "bias"),
        ("layers", 0, "kernel"),
    ]


@pytest.mark.parametrize(
    ("functions", "result"),
    [
        ((lambda x: (x, x + 1), lambda a, b: a * b), 6),
        ((lambda x: {"a": x, "b": 5}, lambda b, a: b - a), 3),
        ((lambda x: [x, x], len), 2),
        ((lambda x: (), lambda: 7), 7),
        ((lambda x: None, lambda x: x is None), True),
    ],
)
def test_what_is_returned_becomes_arguments(functions, result):
    assert nnx.Sequential(*functions)(2) == result


def test_without_functions_it_returns_its_arguments():
    model = nnx.Sequential()
    assert (model(1), model(1, 2), model(), model(k=2)) == (1, (1, 2), None, {"k": 2})


def test_random_streams_go_to_those_that_take_them():
    x = jnp.zeros(3)
    model = nnx.Sequential(lambda x: x + 1, Noise(), lambda x: 2 * x)
    expected = 2 * (1 + jax.random.normal(jax.random.fold_in(jax.random.key(4), 0), (3,)))
    np.testing.assert_allclose(model(x, rngs=nnx.Rngs(4)), expected, rtol=1e-6)
    with pytest.raises(TypeError, match="rngs"):
        model(x)


def test_dropout_in_a_sequence_draws_from_what_is_given():
    x = jnp.ones(100)
    model = nnx.Sequential(nnx.Dropout(0.5), lambda x: x)
    expected = nnx.Dropout(0.5)(x, rngs=nnx.Rngs(dropout=3))
    assert np.array_equal(model(x, rngs=nnx.Rngs(dropout=3)), expected)


def test_what_is_not_callable_is_named():
    with pytest.raises(
        TypeError, match=r"layers\[1\] of a Sequential is to be callable, but a int"
    ):
        nnx.Sequential(jnp.tanh, 3)(1.0)
