"""Random streams, bit for bit against `jax.random`."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx
from nnx_reference import rngs as rngs_module

SAMPLER_ARGUMENTS = {
    "ball": ((3,), {"shape": (2,)}),
    "bernoulli": ((0.5, (4,)), {}),
    "beta": ((1.0, 2.0, (4,)), {}),
    "binomial": ((5, 0.5), {"shape": (4,)}),
    "bits": (((4,),), {}),
    "categorical": ((jnp.zeros(5),), {"shape": (4,)}),
    "cauchy": (((4,),), {}),
    "chisquare": ((3.0,), {"shape": (4,)}),
    "choice": ((jnp.arange(7), (4,)), {}),
    "dirichlet": ((jnp.ones(3), (2,)), {}),
    "double_sided_maxwell": ((0.0, 1.0), {"shape": (4,)}),
    "exponential": (((4,),), {}),
    "f": ((2.0, 3.0), {"shape": (4,)}),
    "gamma": ((2.0, (4,)), {}),
    "generalized_normal": ((2.0, (4,)), {}),
    "geometric": ((0.5, (4,)), {}),
    "gumbel": (((4,),), {}),
    "laplace": (((4,),), {}),
    "loggamma": ((2.0, (4,)), {}),
    "logistic": (((4,),), {}),
    "lognormal": ((), {"shape": (4,)}),
    "maxwell": (((4,),), {}),
    "multinomial": ((5, jnp.array([0.5, 0.5])), {}),
    "multivariate_normal": ((jnp.zeros(2), jnp.eye(2)), {}),
    "normal": (((4,),), {"dtype": jnp.float16}),
    "orthogonal": ((3,), {}),
    "pareto": ((2.0, (4,)), {}),
    "permutation": ((jnp.arange(7),), {}),
    "poisson": ((3.0, (4,)), {}),
    "rademacher": (((4,),), {}),
    "randint": (((4,), 0, 9), {}),
    "rayleigh": ((1.0, (4,)), {}),
    "t": ((3.0, (4,)), {}),
    "triangular": ((0.0, 0.5, 1.0), {"shape": (4,)}),
    "truncated_normal": ((-1.0, 1.0, (4,)), {}),
    "uniform": (((4,),), {"minval": -1.0}),
    "wald": ((1.0,), {"shape": (4,)}),
    "weibull_min": ((1.0, 2.0, (4,)), {}),
}


def same(left, right):
    """Compares keys by their data."""
    left, right = (x.get_value() if isinstance(x, nnx.Variable) else x for x in (left, right))
    return bool(jnp.array_equal(jax.random.key_data(left), jax.random.key_data(right)))


def nth_key(seed, n):
    return jax.random.fold_in(jax.random.key(seed), n)


@pytest.mark.parametrize(
    "seed",
    [3, np.int64(3), jnp.array(3), jax.random.key(3), jax.random.PRNGKey(3)],
    ids=lambda s: type(s).__name__,
)
def test_a_seed_is_an_integer_or_a_key(seed):
    rngs = nnx.Rngs(seed, dropout=seed)
    for name in ("default", "dropout"):
        stream = rngs[name]
        assert same(stream.key, jax.random.key(3))
        assert stream.count[...].dtype == jnp.uint32
        assert stream.tag == stream.key.tag == stream.count.tag == name
        assert type(stream.key) is nnx.RngKey
        assert type(stream.count) is nnx.RngCount


def test_a_mapping_seeds_streams_by_name():
    rngs = nnx.Rngs({"a": 1, "b": 2}, b=3)
    assert list(rngs) == ["a", "b"]
    assert same(rngs.a.key, jax.random.key(1))
    assert same(rngs.b.key, jax.random.key(3))


@pytest.mark.parametrize(
    "seed", [1.5, "three", None, [1], jnp.ones(2), jnp.zeros(3, jnp.uint32), 2j]
)
def test_a_bad_seed_is_refused_by_name(seed):
    with pytest.raises(ValueError, match="dropout") as raised:
        nnx.Rngs(dropout=seed)
    assert repr(seed) in str(raised.value)


def test_a_draw_folds_the_count_in_and_adds_one():
    rngs = nnx.Rngs(params=5)
    for n in range(3):
        assert same(rngs.params(), nth_key(5, n))
        assert rngs.params.count[...] == n + 1
    assert same(rngs.params.key, jax.random.key(5))


def test_unknown_streams_are_served_by_default():
    rngs = nnx.Rngs(0, params=1)
    assert rngs.noise is rngs.default is rngs["noise"] is rngs["default"]
    assert rngs["params"] is rngs.params
    assert same(rngs.noise(), nth_key(0, 0))
    assert same(rngs(), nth_key(0, 1))
    assert "noise" not in rngs
    assert len(rngs) == 2


def test_without_a_default_an_unknown_stream_is_an_error():
    rngs = nnx.Rngs(params=1)
    with pytest.raises(AttributeError, match="noise"):
        _ = rngs.noise
    with pytest.raises(KeyError, match="noise"):
        _ = rngs["noise"]
    with pytest.raises(AttributeError, match="default"):
        rngs()


def test_python_protocols_are_not_answered_with_a_stream():
    assert not hasattr(nnx.Rngs(0), "__jax_array__")
    assert not hasattr(nnx.Rngs(0), "_private")


INITIALIZERS = {
    "delta_orthogonal": ((), (3, 4, 4)),
    "glorot_normal": ((), (2, 3)),
    "glorot_uniform": ((), (2, 3)),
    "he_normal": ((), (2, 3)),
    "he_uniform": ((), (2, 3)),
    "kaiming_normal": ((), (2, 3)),
    "kaiming_uniform": ((), (2, 3)),
    "lecun_normal": ((), (2, 3)),
    "lecun_uniform": ((), (2, 3)),
    "variance_scaling": ((2.0, "fan_in", "normal"), (2, 3)),
    "xavier_normal": ((), (2, 3)),
    "xavier_uniform": ((), (2, 3)),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name):
    args, shape = INITIALIZERS[name]
    rngs = nnx.Rngs(0, params=1)
    dtype = jnp.float32 if name == "delta_orthogonal" else jnp.float16
    initializer = getattr(jax.nn.initializers, name)(*args)
    for seed, source in ((0, rngs), (1, rngs.params)):
        made = getattr(source, name)(*args)
        for n in range(2):
            expected = initializer(nth_key(seed, n), shape, dtype)
            assert jnp.array_equal(made(shape, dtype), expected)
    assert [stream.count[...] for _, stream in rngs.items()] == [2, 2]


def test_the_initializers_are_all_of_jax_nn_that_draw():
    samplers = {"normal", "orthogonal", "truncated_normal", "uniform"}
    assert set(rngs_module._initializers()) == set(INITIALIZERS) | samplers
    assert nnx.Rngs(0).constant.tag == nnx.Rngs(0).zeros.tag == "default"


@pytest.mark.parametrize(("name", "value"), [("zeros", 0), ("ones", 1)])
def test_initializers_of_constants(name, value):
    initializer = getattr(nnx.initializers, name)
    made = getattr(nnx.initializers, f"{name}_init")()
    assert jnp.array_equal(initializer(None, (2, 3)), jnp.full((2, 3), value))
    assert made is initializer is getattr(jax.nn.initializers, name)


def test_the_samplers_are_all_of_jax_random():
    takes_key = {
        name
        for name, function in inspect.getmembers(jax.random, inspect.isroutine)
        if not name.startswith("_") and next(iter(inspect.signature(function).parameters)) == "key"
    }
    assert takes_key - {"clone", "fold_in", "split"} == set(SAMPLER_ARGUMENTS)


@pytest.mark.parametrize("stream", ["default", "params"])
@pytest.mark.parametrize("name", SAMPLER_ARGUMENTS)
def test_a_sampler_computes_what_jax_random_does(name, stream):
    args, kwargs = SAMPLER_ARGUMENTS[name]

    def by_method(rngs):
        source = rngs if stream == "default" else rngs[stream]
        return getattr(source, name)(*args, **kwargs)

    def by_function(rngs):
        return getattr(jax.random, name)(rngs[stream](), *args, **kwargs)

    rngs = nnx.Rngs(0, params=1)
    assert str(jax.make_jaxpr(by_method)(rngs)) == str(jax.make_jaxpr(by_function)(rngs))


def test_samples_are_those_of_jax_random():
    rngs = nnx.Rngs(0, params=1)
    for n in range(2):
        expected = jax.random.normal(nth_key(0, n), (4,), jnp.float16)
        assert jnp.array_equal(rngs.normal((4,), jnp.float16), expected)
    expected = jax.random.bernoulli(nth_key(1, 0), 0.25, shape=(8,))
    assert jnp.array_equal(rngs.params.bernoulli(0.25, shape=(8,)), expected)
    assert (rngs.default.count[...], rngs.params.count[...]) == (2, 1)


def test_a_sampler_has_the_signature_without_the_key():
    assert list(inspect.signature(nnx.Rngs(0).uniform).parameters)[:4] == [
        "shape",
        "dtype",
        "minval",
        "maxval",
    ]


def test_fork_takes_the_next_key_as_root():
    rngs = nnx.Rngs(params=1, dropout=2)
    rngs.params()
    forked = rngs.fork()
    assert same(forked.params.key, nth_key(1, 1))
    assert same(forked.dropout.key, nth_key(2, 0))
    assert forked.params.count[...] == 0
    assert (rngs.params.count[...], rngs.dropout.count[...]) == (2, 1)


@pytest.mark.parametrize(("split", "shape"), [(3, (3,)), ((2, 3), (2, 3)), ((), ())])
def test_split_gives_different_keys_of_the_shape(split, shape):
    rngs = nnx.Rngs(params=1)
    for n, batched in enumerate((rngs.split(split), rngs.fork(split=split))):
        assert same(batched.params.key, jax.random.split(nth_key(1, n), shape))
        assert batched.params.count[...].shape == shape
        assert batched.params.count[...].dtype == jnp.uint32
    assert rngs.params.count[...] == 2


def test_a_mapping_splits_by_filter_and_forks_the_rest():
    rngs = nnx.Rngs(params=1, dropout=2, noise=3)
    batched = rngs.split({"params": 4, nnx.PathContains("dropout"): None, ...: (2, 5)})
    assert batched.params.key.shape == (4,)
    assert batched.noise.key.shape == (2, 5)
    assert same(batched.dropout.key, nth_key(2, 0))
    assert rngs.split({"params": 4}).noise.key.shape == ()


def test_broadcast_repeats_one_key():
    batched = nnx.Rngs(params=1).broadcast(3)
    assert same(batched.params.key, jnp.stack([nth_key(1, 0)] * 3))
    assert batched.params.count[...].shape == (3,)


def test_a_stream_is_a_seed():
    parent = nnx.Rngs(a=0, b=1)
    parent.a()
    rngs = nnx.Rngs(a=parent.a, b=parent.split({"b": 3}).b)
    assert same(rngs.a.key, parent.a.key)
    assert rngs.a.key is not parent.a.key
    assert int(rngs.a.count[...]) == 0
    assert rngs.b.key.shape == (3,)


def test_broadcast_keeps_batched_streams():
    rngs = nnx.Rngs(a=0, b=1).split({"a": 3})
    both = rngs.broadcast({"b": 3})
    assert same(both.a.key, rngs.a.key)
    assert both.a.key is not rngs.a.key
    assert both.a.count[...].tolist() == rngs.a.count[...].tolist()
    assert same(both.b.key, jnp.stack([jax.random.fold_in(rngs.b.key[...], 0)] * 3))


@pytest.mark.parametrize(
    "use", [lambda r: r(), lambda r: r.fork(), lambda r: r.split(2), lambda r: r.normal()]
)
def test_a_batched_stream_does_not_draw(use):
    batched = nnx.Rngs(0).split(3)
    with pytest.raises(ValueError, match=r"'default'.*\(3,\)"):
        use(batched)
    assert jnp.array_equal(batched.default.count[...], jnp.zeros(3))


@pytest.mark.parametrize("shape", [-1, 1.5, "three", (2, -1), True])
def test_a_bad_shape_draws_nothing(shape):
    rngs = nnx.Rngs(a=0, b=1)
    with pytest.raises(ValueError, match="split into"):
        rngs.split({"a": 2, "b": shape})
    assert (rngs.a.count[...], rngs.b.count[...]) == (0, 0)


def test_draws_are_the_same_inside_jit():
    @jax.jit
    def draw(rngs):
        return rngs.params(), rngs.normal((2,)), rngs

    first, noise, after = draw(nnx.Rngs(0, params=1))
    assert same(first, nth_key(1, 0))
    assert jnp.array_equal(noise, jax.random.normal(nth_key(0, 0), (2,)))
    assert (after.params.count[...], after.default.count[...]) == (1, 1)


def test_captured_streams_raise_instead_of_repeating():
    rngs = nnx.Rngs(0)
    with pytest.raises(nnx.errors.TraceContextError, match="RngCount"):
        jax.jit(lambda: rngs())()
    assert rngs.default.count[...] == 0


def test_streams_are_variables_that_filters_select():
    rngs = nnx.Rngs(params=1, dropout=2)
    assert len(jax.tree.leaves(nnx.state(rngs, nnx.RngKey))) == 2
    assert set(nnx.state(rngs, "dropout")) == {"dropout"}
    copied = nnx.clone(rngs)
    assert same(copied.params(), nth_key(1, 0))
    assert rngs.params.count[...] == 0
    assert same(nnx.merge(*nnx.split(rngs)).dropout(), nth_key(2, 0))
