"""nnx.remat: values, gradients, what is recomputed, propagation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
both = pytest.mark.parametrize("mode", MODES, ids=["updates", "graph-mode", "tree-mode"])


class Layer(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array([1.0, 2.0]))
        self.calls = nnx.BatchStat(jnp.asarray(0))

    def __call__(self, x, power=2):
        self.calls[...] += 1
        return jnp.sin(self.w[...] * x) ** power


def loss(layer, x):
    return layer(x).sum()


@both
def test_values_and_gradients_are_those_of_the_function(mode):
    layer, plain, x = Layer(), Layer(), jnp.array([0.5, 0.25])
    rematted = nnx.remat(loss, **mode)
    assert rematted(layer, x) == loss(plain, x)
    found = nnx.grad(lambda x, layer: rematted(layer, x), **mode)(x, layer)
    expected = nnx.grad(lambda x, layer: loss(layer, x), **mode)(x, plain)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert layer.calls[...] == plain.calls[...] == 2


def residuals(function, x):
    """Counts the sines of the forward pass that are stored for the backward pass."""
    _, pull = jax.vjp(function, x)
    return sum(leaf.size for leaf in jax.tree.leaves(pull))


def test_the_policy_decides_what_is_stored():
    def deep(x):
        for _ in range(4):
            x = jnp.sin(x)
        return x

    def run(**options):
        return residuals(lambda x: nnx.remat(deep, **options)(x), jnp.ones(8))

    everything = run(policy=jax.checkpoint_policies.everything_saveable)
    assert run() < everything
    assert run(policy=jax.checkpoint_policies.nothing_saveable) == run()


@pytest.mark.parametrize("prevent_cse", [True, False])
def test_prevent_cse_is_passed_on(prevent_cse):
    jaxpr = jax.make_jaxpr(nnx.remat(jnp.sin, prevent_cse=prevent_cse))(1.0)
    assert f"prevent_cse={prevent_cse}" in str(jaxpr)


def test_static_arguments():
    layer, x = Layer(), jnp.array([0.5, 0.25])
    cubed = nnx.remat(Layer.__call__, static_argnums=2)
    assert cubed(layer, x, 3).tolist() == (jnp.sin(layer.w[...] * x) ** 3).tolist()
    with pytest.raises(ValueError, match="hashable"):
        cubed(layer, x, [3])


def test_it_decorates_and_keeps_structure_changes():
    @nnx.remat(graph=True)
    def grow(layer):
        layer.cache = nnx.Cache(layer.w[...] + 1)
        return layer.cache, layer

    layer = Layer()
    cache, same = grow(layer)
    assert (cache is layer.cache, same is layer) == (True, True)
    assert cache[...].tolist() == [2.0, 3.0]


def test_captured_variables_are_not_written_and_sharing_is_checked():
    layer, x = Layer(), jnp.array([0.5, 0.25])
    with pytest.raises(nnx.errors.TraceContextError, match="BatchStat"):
        nnx.remat(lambda x: layer(x))(x)
    with pytest.raises(ValueError, match=r"a.*and b"):
        nnx.remat(lambda a, b: a(x), graph=False)(layer, layer)
    assert layer.calls[...] == 0


def test_draws_are_repeated_and_counted_once():
    def noisy(x, rngs):
        return jnp.sin(x * rngs.normal(x.shape)).sum()

    rngs, x = nnx.Rngs(0), jnp.ones(3)
    found = nnx.grad(lambda x, rngs: nnx.remat(noisy)(x, rngs))(x, rngs)
    noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), 0), (3,))
    np.testing.assert_allclose(found, noise * jnp.cos(noise), rtol=1e-6)
    assert rngs.default.count[...] == 1


@both
def test_keys_by_reference_are_kept(mode):
    with nnx.var_defaults(ref=True):
        model = nnx.Dict(w=nnx.Param(jnp.zeros(2)), rngs=nnx.Rngs(1))

    def f(model, x):
        model.w[...] = x
        return x

    key = model.rngs.default.key[...]
    nnx.remat(f, **mode)(model, jnp.ones(2))
    assert model.w[...].tolist() == [1, 1]
    assert jax.random.key_data(model.rngs.default.key[...]).tolist() == (
        jax.random.key_data(key).tolist()
    )
