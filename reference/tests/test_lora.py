"""LoRA and LoRALinear, against what they compute in plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx

X = jax.random.normal(jax.random.key(1), (5, 3))


def lora(**options):
    options = {"b_initializer": jax.nn.initializers.normal(), "rngs": nnx.Rngs(0), **options}
    return nnx.LoRA(3, 2, 4, **options)


class Scaled(nnx.Module):
    def __init__(self):
        self.kernel = nnx.Param(jnp.full((3, 4), 2.0))

    def __call__(self, x, scale=1.0):
        return scale * x @ self.kernel


def test_it_is_zero_at_first():
    module = nnx.LoRA(3, 2, 4, rngs=nnx.Rngs(0))
    assert np.array_equal(module(X), np.zeros((5, 4)))
    assert module.lora_a.shape == (3, 2)
    assert module.lora_b.shape == (2, 4)
    assert type(module.lora_a) is type(module.lora_b) is nnx.LoRAParam


def test_keys_are_drawn_from_params_in_order():
    rngs = nnx.Rngs(0, params=7)
    normal = jax.nn.initializers.normal()
    module = lora(rngs=rngs)
    keys = [jax.random.fold_in(jax.random.key(7), n) for n in range(2)]
    assert np.array_equal(module.lora_a[...], jax.nn.initializers.he_uniform()(keys[0], (3, 2)))
    assert np.array_equal(module.lora_b[...], normal(keys[1], (2, 4)))


def test_it_is_a_product_of_two_maps():
    module = lora()
    expected = X @ module.lora_a[...] @ module.lora_b[...]
    np.testing.assert_allclose(module(X), expected, rtol=1e-6)
    np.testing.assert_allclose(module(X[0]), expected[0], rtol=1e-6)


def test_it_is_added_to_the_base_module_which_gets_the_keywords():
    module = lora(base_module=Scaled())
    change = X @ module.lora_a[...] @ module.lora_b[...]
    for scale in (1.0, 3.0):
        expected = change + scale * X @ np.full((3, 4), 2.0)
        np.testing.assert_allclose(module(X, scale=scale), expected, rtol=1e-5)


def test_without_a_base_module_keywords_are_ignored():
    module = lora()
    assert np.array_equal(module(X, scale=3.0), module(X))


def test_a_base_module_is_to_be_callable():
    module = lora(base_module=nnx.Dict(kernel=nnx.Param(jnp.ones(3))))
    with pytest.raises(ValueError, match="base_module of a LoRA is to be callable"):
        module(X)


@pytest.mark.parametrize("kind", [nnx.Param, nnx.LoRAParam, nnx.BatchStat])
def test_the_class_of_the_parameters(kind):
    module = lora(lora_param_type=kind, base_module=Scaled())
    assert set(nnx.state(module, lambda path, x: type(x) is kind)) >= {"lora_a", "lora_b"}


def test_only_the_change_is_trained():
    module = lora(base_module=Scaled())

    def loss(module):
        return jnp.sum(module(X) ** 2)

    grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(module)
    assert set(grads) == {"lora_a", "lora_b"}
    a, b, kernel = module.lora_a[...], module.lora_b[...], module.base_module.kernel[...]
    expected = jax.grad(lambda a: jnp.sum((X @ a @ b + X @ kernel) ** 2))(a)
    np.testing.assert_allclose(grads["lora_a"][...], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({}, jnp.float32),
        ({"dtype": jnp.float16}, jnp.float16),
        ({"param_dtype": jnp.float16}, jnp.float32),
        ({"promote_dtype": lambda arrays, dtype: [x.astype(jnp.bfloat16) for x in arrays]}, "bf"),
    ],
)
def test_dtypes(options, result):
    module = lora(**options)
    assert module.lora_a.dtype == options.get("param_dtype", jnp.float32)
    assert module(X).dtype == (jnp.bfloat16 if result == "bf" else result)


def test_metadata():
    module = lora(a_metadata={"tag": "a"}, b_metadata={"tag": "b"})
    assert (module.lora_a.tag, module.lora_b.tag) == ("a", "b")


def test_a_lora_linear_is_a_linear_and_a_lora():
    linear = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    module = nnx.LoRALinear(
        3,
        4,
        lora_rank=2,
        b_initializer=jax.nn.initializers.ones,
        a_metadata={"tag": "a"},
        bias_metadata={"tag": "bias"},
        rngs=nnx.Rngs(0),
    )
    assert np.array_equal(module.kernel[...], linear.kernel[...])
    expected = linear(X) + X @ module.lora.lora_a[...] @ np.ones((2, 4))
    np.testing.assert_allclose(module(X), expected, rtol=1e-5)
    assert (module.lora.lora_a.tag, module.bias.tag) == ("a", "bias")


def test_a_lora_linear_takes_over_the_state_of_a_linear():
    linear = nnx.Linear(3, 4, rngs=nnx.Rngs(5))
    module = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
    nnx.update(module, nnx.state(linear))
    assert np.array_equal(module(X), linear(X))
