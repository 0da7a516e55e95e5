"""Linear."""

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx


def test_parameters_are_drawn_from_params_in_order():
    rngs = nnx.Rngs(0, params=1)
    bias_init = jax.nn.initializers.normal()
    linear = nnx.Linear(2, 3, bias_init=bias_init, param_dtype=jnp.float16, rngs=rngs)
    keys = [jax.random.fold_in(jax.random.key(1), n) for n in range(2)]
    kernel = jax.nn.initializers.lecun_normal()(keys[0], (2, 3), jnp.float16)
    assert type(linear.kernel) is type(linear.bias) is nnx.Param
    assert jnp.array_equal(linear.kernel[...], kernel)
    assert jnp.array_equal(linear.bias[...], bias_init(keys[1], (3,), jnp.float16))
    assert (rngs.params.count[...], rngs.default.count[...]) == (2, 0)


@pytest.mark.parametrize("shape", [(2,), (4, 2), (5, 4, 2)])
def test_it_maps_the_last_axis(shape):
    linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    linear.bias[...] = jnp.arange(3.0)
    x = jnp.arange(float(jnp.prod(jnp.array(shape)))).reshape(shape)
    assert jnp.array_equal(linear(x), x @ linear.kernel[...] + jnp.arange(3.0))


def test_without_a_bias():
    rngs = nnx.Rngs(0)
    linear = nnx.Linear(2, 3, use_bias=False, rngs=rngs)
    assert linear.bias is None
    assert rngs.default.count[...] == 1
    x = jnp.ones((4, 2))
    assert jnp.array_equal(linear(x), x @ linear.kernel[...])
    linear.bias = nnx.Param(jnp.ones(3))
    assert len(jax.tree.leaves(linear)) == 2


@pytest.mark.parametrize(
    ("options", "x", "result"),
    [
        ({}, jnp.int32, jnp.float32),
        ({"param_dtype": jnp.float16}, jnp.float32, jnp.float32),
        ({"param_dtype": jnp.float16}, jnp.float16, jnp.float16),
        (
            {"param_dtype": jnp.int32, "kernel_init": jax.nn.initializers.ones},
            jnp.int32,
            jnp.float32,
        ),
        ({"dtype": jnp.bfloat16}, jnp.float32, jnp.bfloat16),
    ],
)
def test_the_dtype_is_promoted_or_given(options, x, result):
    linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0), **options)
    assert linear(jnp.ones((1, 2), x)).dtype == result
    assert linear.kernel.dtype == options.get("param_dtype", jnp.float32)
