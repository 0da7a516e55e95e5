"""Linear, BatchNorm, Dropout."""

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


@pytest.mark.parametrize("layer", ["linear", "batch norm", "lora"])
def test_no_rank_is_promoted(layer):
    rngs = nnx.Rngs(0)
    made = {
        "linear": nnx.Linear(2, 2, rngs=rngs),
        "batch norm": nnx.BatchNorm(2, rngs=rngs),
        "lora": nnx.LoRALinear(2, 2, lora_rank=1, rngs=rngs),
    }[layer]
    x = jnp.arange(12.0).reshape(3, 2, 2)
    expected = made(x)
    with jax.numpy_rank_promotion("raise"):
        assert jnp.array_equal(made(x), expected)


def test_the_product_is_computed_as_said():
    calls = []

    def dot_general(*args, **kwargs):
        calls.append(kwargs)
        return 2 * jax.lax.dot_general(*args, **kwargs)

    x = jnp.arange(4.0).reshape(2, 2)
    plain = nnx.Linear(2, 3, use_bias=False, rngs=nnx.Rngs(0))
    linear = nnx.Linear(
        2,
        3,
        use_bias=False,
        dot_general=dot_general,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float16,
        rngs=nnx.Rngs(0),
    )
    assert linear(x).dtype == jnp.float16
    assert jnp.allclose(linear(x), 2 * plain(x), rtol=1e-3)
    assert calls[0] == {
        "precision": jax.lax.Precision.HIGHEST,
        "preferred_element_type": jnp.float16,
    }


def test_promotion_is_done_as_said():
    seen = []

    def promote(arrays, dtype):
        seen.append((len(arrays), dtype))
        return [None if x is None else x.astype(jnp.float16) for x in arrays]

    rngs = nnx.Rngs(0)
    linear = nnx.Linear(2, 3, dtype=jnp.bfloat16, promote_dtype=promote, rngs=rngs)
    norm = nnx.BatchNorm(2, promote_dtype=promote, use_bias=False, rngs=rngs)
    assert linear(jnp.ones((4, 2))).dtype == norm(jnp.ones((4, 2))).dtype == jnp.float16
    assert seen == [(3, jnp.bfloat16), (5, None)]


def test_parameters_carry_metadata():
    rngs = nnx.Rngs(0)
    linear = nnx.Linear(
        2, 3, kernel_metadata={"tag": "kernel"}, bias_metadata={"tag": "bias"}, rngs=rngs
    )
    norm = nnx.BatchNorm(
        2, scale_metadata={"tag": "scale"}, bias_metadata={"tag": "bias"}, rngs=rngs
    )
    tags = [x.tag for x in (linear.kernel, linear.bias, norm.scale, norm.bias)]
    assert tags == ["kernel", "bias", "scale", "bias"]


@pytest.mark.parametrize(
    ("options", "drawn"), [({}, 2), ({"use_bias": False}, 1), ({"use_scale": False}, 1)]
)
def test_a_batch_norm_draws_for_the_parameters_that_it_has(options, drawn):
    rngs = nnx.Rngs(0)
    nnx.BatchNorm(2, rngs=rngs, **options)
    assert rngs.default.count[...] == drawn


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


class TestBatchNorm:
    x = jnp.array([[1.0, 10.0], [3.0, 30.0]])

    def test_parameters_are_drawn_from_params_in_order(self):
        rngs, init = nnx.Rngs(0, params=1), jax.nn.initializers.normal()
        layer = nnx.BatchNorm(
            2, scale_init=init, bias_init=init, scale_metadata={"note": "a"}, rngs=rngs
        )
        keys = [jax.random.fold_in(jax.random.key(1), n) for n in range(2)]
        assert jnp.array_equal(layer.scale[...], init(keys[0], (2,)))
        assert jnp.array_equal(layer.bias[...], init(keys[1], (2,)))
        assert layer.scale.note == "a"
        assert (layer.mean[...].tolist(), layer.var[...].tolist()) == ([0, 0], [1, 1])

    @pytest.mark.parametrize("fast", [True, False])
    def test_training(self, fast):
        layer = nnx.BatchNorm(
            2, momentum=0.75, epsilon=0.0, use_fast_variance=fast, rngs=nnx.Rngs(0)
        )
        layer.scale[...] = jnp.array([2.0, 3.0])
        layer.bias[...] = jnp.array([1.0, 0.0])
        assert jnp.allclose(layer(self.x), jnp.array([[-1.0, -3.0], [3.0, 3.0]]), rtol=1e-6)
        assert jnp.allclose(layer.mean[...], jnp.array([0.5, 5.0]))
        assert jnp.allclose(layer.var[...], jnp.array([1.0, 25.75]))

    def test_running_averages(self):
        layer = nnx.BatchNorm(
            2, epsilon=0.25, use_running_average=True, use_bias=False, use_scale=False,
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        layer.mean[...] = jnp.array([1.0, 2.0])
        layer.var[...] = jnp.array([3.75, 0.75])
        assert layer(self.x).tolist() == [[0, 8], [1, 28]]
        assert layer.mean[...].tolist() == [1, 2]
        assert not jnp.array_equal(layer(self.x, use_running_average=False), layer(self.x))

    def test_axes_and_mask(self):
        layer = nnx.BatchNorm(2, axis=0, momentum=0.0, rngs=nnx.Rngs(0))
        layer(self.x, mask=jnp.array([[True, True], [True, False]]))
        assert layer.mean[...].tolist() == [5.5, 3]
        assert layer.var[...].tolist() == [20.25, 0]

    def test_over_a_mapped_axis(self):
        layer = nnx.BatchNorm(2, momentum=0.0, axis_name="batch", rngs=nnx.Rngs(0))
        y, mean = jax.vmap(
            lambda layer, x: (layer(x), layer.mean[...]), axis_name="batch", in_axes=(None, 0)
        )(layer, self.x[:, None])
        assert mean.tolist() == [[2, 20], [2, 20]]
        assert jnp.allclose(y[:, 0], jnp.array([[-1.0, -1.0], [1.0, 1.0]]), atol=1e-4)

    def test_statistics_are_in_float32(self):
        layer = nnx.BatchNorm(2, dtype=jnp.bfloat16, momentum=0.0, rngs=nnx.Rngs(0))
        assert layer(self.x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
        assert (layer.mean.dtype, layer.mean[...].tolist()) == (jnp.float32, [2, 20])

    def test_the_mode_is_needed(self):
        layer = nnx.BatchNorm(2, use_running_average=None, rngs=nnx.Rngs(0))
        with pytest.raises(ValueError, match="BatchNorm has to know use_running_average"):
            layer(self.x)
        assert nnx.view(layer, use_running_average=True)(self.x).shape == (2, 2)


class TestDropout:
    def test_it_draws_from_a_stream_of_its_own(self):
        rngs = nnx.Rngs(0, dropout=1)
        layer = nnx.Dropout(0.25, rngs=rngs)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), 0), 0)
        kept = jax.random.bernoulli(key, 0.75, (100,))
        assert jnp.array_equal(layer(jnp.full(100, 3.0)), jnp.where(kept, 4.0, 0.0))
        assert (rngs.dropout.count[...], layer.rngs.count[...]) == (1, 1)

    def test_what_the_call_brings_is_used(self):
        layer, x = nnx.Dropout(0.5), jnp.ones(100)
        results = [layer(x, rngs=one) for one in (nnx.Rngs(dropout=2), nnx.Rngs(2).default)]
        key = jax.random.fold_in(jax.random.key(2), 0)
        assert all(jnp.array_equal(one, layer(x, rngs=key)) for one in results)

    def test_broadcast_dims(self):
        y = nnx.Dropout(0.5, broadcast_dims=(0,), rngs=nnx.Rngs(0))(jnp.ones((3, 50)))
        assert jnp.array_equal(y[0], y[1])
        assert {*y[0].tolist()} == {0, 2}

    @pytest.mark.parametrize(("rate", "kept"), [(0.0, 1), (1.0, 0)])
    def test_extreme_rates_draw_nothing(self, rate, kept):
        layer = nnx.Dropout(rate, rngs=nnx.Rngs(0))
        assert layer(jnp.ones(3)).tolist() == [kept] * 3
        assert layer.rngs.count[...] == 0

    def test_modes(self):
        layer = nnx.Dropout(0.5, deterministic=True)
        assert layer(jnp.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="a Dropout that drops needs random numbers"):
            layer(jnp.ones(3), deterministic=False)
        with pytest.raises(ValueError, match="Dropout has to know deterministic"):
            nnx.Dropout(0.5, deterministic=None)(jnp.ones(3))
        assert nnx.view(layer, deterministic=False).deterministic is False
        assert nnx.Dropout(0.5, rngs=nnx.Rngs(0))(jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_activations_are_those_of_jax():
    assert (nnx.gelu, nnx.relu) == (jax.nn.gelu, jax.nn.relu)
