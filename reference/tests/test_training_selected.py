"""Optimizer: what it selects, and what it passes on to optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_reference as nnx

X, Y = jnp.ones((4, 2)), jnp.zeros((4, 3))


def loss(model):
    return jnp.mean((model(X) - Y) ** 2)


class Raw(nnx.Module):
    """Holds arrays, one of them in a List, and a Param."""

    def __init__(self):
        self.w = jnp.ones(3)
        self.v = nnx.Param(jnp.ones(3))
        self.parts = nnx.List([jnp.ones(2)])

    def total(self):
        return 2 * jnp.sum(self.w * self.v) + jnp.sum(self.parts[0])


@pytest.mark.parametrize("wrt", [nnx.OfType(jax.Array), ...], ids=["arrays", "all"])
def test_arrays_are_updated_like_variables(wrt):
    model = Raw()
    wrt = (lambda path, x: not isinstance(x, nnx.Variable)) if wrt is not ... else wrt
    optimizer = nnx.Optimizer(model, optax.sgd(0.5, momentum=0.9), wrt=wrt)
    param = model.v
    grads = nnx.grad(Raw.total, argnums=nnx.DiffState(0, wrt), graph=True, graph_updates=True)(
        model
    )
    optimizer.update(model, grads)
    assert np.array_equal(model.w, np.zeros(3))
    assert np.array_equal(model.parts[0], np.full(2, 0.5))
    assert model.v is param
    assert np.array_equal(model.v[...], np.ones(3) if wrt is not ... else np.zeros(3))
    trace = optimizer.opt_state[0].trace
    assert type(trace["w"]) is type(trace["parts"][0]) is nnx.OptArray
    assert np.array_equal(trace["w"][...], np.full(3, 2.0))


LABELS = {"kernel": "slow", "bias": "fast"}
FORMS = {
    "state": lambda params: nnx.State(LABELS),
    "mapped state": lambda params: nnx.map_state(lambda path, _: LABELS[path[-1]], params),
    "function": lambda params: lambda p: nnx.map_state(lambda path, _: LABELS[path[-1]], p),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transform", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_a_partition_by_labels(form, transform):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    rates = {"slow": 0.125, "fast": 0.5}
    tx = optax.partition(
        {name: optax.sgd(rate, momentum=0.9) for name, rate in rates.items()},
        FORMS[form](nnx.state(model, nnx.Param)),
    )
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    before = nnx.to_pure_dict(nnx.state(model))
    grads = nnx.to_pure_dict(nnx.state(nnx.grad(loss)(model)))

    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model))

    transform(step)(model, optimizer)
    for name, label in LABELS.items():
        expected = before[name] - rates[label] * grads[name]
        np.testing.assert_allclose(getattr(model, name)[...], expected, rtol=1e-5)


def test_variables_among_the_arguments_of_optax_are_values():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.lbfgs(), wrt=nnx.Param)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    value, grads = nnx.value_and_grad(loss)(model)

    def value_fn(params):
        return loss(nnx.merge(graphdef, params, rest))

    pure = nnx.as_pure(params)
    tx = optax.lbfgs()
    pure_grads = jax.grad(value_fn)(pure)
    expected, _ = tx.update(
        pure_grads, tx.init(pure), pure, grad=pure_grads, value=value, value_fn=value_fn
    )
    updates = optimizer.update(model, grads, grad=grads, value=value, value_fn=value_fn)
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(updates[name], expected[name], rtol=1e-5)
    assert loss(model) < value


def test_an_optimizer_is_sharded_as_its_own_annotation_says():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        model = nnx.Linear(
            4, 4, kernel_metadata={"optimizer_sharding": ("a", "b")}, rngs=nnx.Rngs(0)
        )
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    moment = optimizer.opt_state[0].mu["kernel"]
    assert moment.out_sharding == ("a", "b")
    assert moment[...].sharding.shard_shape((4, 4)) == (2, 2)
    assert model.kernel[...].sharding.shard_shape((4, 4)) == (4, 4)


def test_what_is_not_placed_makes_state_that_is_not():
    kernel = {"out_sharding": ("a",), "eager_sharding": False}
    model = nnx.Linear(4, 4, kernel_metadata=kernel, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    moment = optimizer.opt_state[0].mu["kernel"]
    assert (moment.out_sharding, moment.eager_sharding) == (("a",), False)
