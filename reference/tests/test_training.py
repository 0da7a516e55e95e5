"""The Optimizer, against optax applied to plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_reference as nnx
from nnx_reference.metadata import SHOWN

SCHEDULE = optax.exponential_decay(0.1, 2, 0.5)
CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.1))


def by_rank(tree):
    return jax.tree.map(lambda x: x.ndim > 1, tree)


def labels(tree):
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "vector", tree)


TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.01),
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=2),
    "masked": lambda: optax.masked(optax.adam(0.1), by_rank),
    "multi_transform": lambda: optax.multi_transform(
        {"matrix": optax.adam(0.1), "vector": optax.sgd(0.2)}, labels
    ),
    "schedule": lambda: optax.sgd(SCHEDULE),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "clipping": lambda: CLIPPED,
    "accumulation": lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
    "extra arguments": lambda: optax.chain(
        optax.adam(0.1), optax.contrib.reduce_on_plateau(patience=1, cooldown=0)
    ),
}


class Net(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.array([1.0, 2.0]), sharding_note=("a",))
        self.stat = nnx.BatchStat(jnp.zeros(2))
        self.frozen = jnp.ones(2)


def values(model, *filters):
    return nnx.to_pure_dict(nnx.state(model, *filters))


def equal(left, right):
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right))
    )


@pytest.fixture
def net():
    return Net()


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_updates_are_those_of_optax_on_the_arrays(net, name):
    tx, value = TRANSFORMATIONS[name](), jnp.array(1.0)
    extra = {"value": value} if name == "extra arguments" else {}
    optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
    params, rest = values(net, nnx.Param), values(net, nnx.Not(nnx.Param))
    kernel = net.layer.kernel
    opt_state = tx.init(params)
    for n in range(3):
        grads = jax.tree.map(lambda x, n=n: jnp.sin(x + n), params)
        updates, opt_state = tx.update(grads, opt_state, params, **extra)
        params = optax.apply_updates(params, updates)
        given = jax.tree.map(lambda x, n=n: jnp.sin(x + n), nnx.state(net, nnx.Param))
        returned = optimizer.update(net, given, **extra)
        assert equal(nnx.to_pure_dict(returned), updates)
        assert equal(values(net, nnx.Param), params)
        assert optimizer.step[...] == n + 1
        assert optimizer.step[...].dtype == jnp.uint32
        stored = [v[...] for v in jax.tree.leaves(optimizer.opt_state, is_leaf=is_variable)]
        assert equal(stored, jax.tree.leaves(opt_state))
    assert equal(values(net, nnx.Not(nnx.Param)), rest)
    assert net.layer.kernel is kernel


def is_variable(value):
    return isinstance(value, nnx.Variable)


def test_state_mirrors_variables_with_their_metadata(net):
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    adam = optimizer.opt_state[0]
    assert type(adam.mu) is nnx.State
    assert type(adam.mu["scale"]) is nnx.OptVariable
    assert adam.nu["scale"].get_metadata() == SHOWN | {"sharding_note": ("a",)}
    assert type(adam.count) is nnx.OptArray
    assert adam.count.get_metadata() == SHOWN
    assert set(nnx.state(optimizer, nnx.OptState)) == {"step", "opt_state"}
    assert len(jax.tree.leaves(nnx.state(optimizer))) == 2 + 2 * 3


def test_hooks_and_flags_are_not_mirrored():
    model = nnx.Dict(w=nnx.Param(jnp.ones(2), on_get_value=lambda v, x: x * 2, note=1))
    optimizer = nnx.Optimizer(model, optax.trace(0.9), wrt=nnx.Param)
    assert optimizer.opt_state.trace["w"].get_metadata() == SHOWN | {"note": 1}


@pytest.mark.parametrize(
    "wrt",
    [
        nnx.PathContains("scale"),
        [nnx.PathContains("scale")],
        lambda path, value: path == ("scale",),
        nnx.All(nnx.Param, nnx.Not(nnx.PathContains("layer"))),
    ],
)
def test_only_what_the_filter_selects_changes(net, wrt):
    optimizer = nnx.Optimizer(net, optax.sgd(0.5), wrt=wrt)
    before = values(net)
    kernel = net.layer.kernel[...]
    optimizer.update(net, jax.tree.map(jnp.ones_like, nnx.state(net, nnx.Param)))
    assert equal(values(net), {**before, "scale": jnp.array([0.5, 1.5])})
    assert net.layer.kernel[...] is kernel


@pytest.mark.parametrize("form", ["State", "arrays", "dict", "Module"])
def test_gradients_come_in_any_form(net, form):
    optimizer = nnx.Optimizer(net, optax.sgd(0.5), wrt=nnx.Param)
    ones = jax.tree.map(jnp.ones_like, net)
    grads = {
        "State": nnx.state(ones, nnx.Param),
        "arrays": nnx.as_pure(nnx.state(ones, nnx.Param)),
        "dict": nnx.to_pure_dict(nnx.state(ones, nnx.Param)),
        "Module": ones,
    }[form]
    before = values(net, nnx.Param)
    optimizer.update(net, grads)
    assert equal(values(net, nnx.Param), jax.tree.map(lambda x: x - 0.5, before))


def test_gradients_may_be_a_dict_module():
    model = nnx.Dict(a=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
    before = model.a.bias[...]
    optimizer.update(model, jax.tree.map(jnp.ones_like, model))
    assert jnp.array_equal(model.a.bias[...], before - 0.5)


def without(state, *path):
    return nnx.from_flat_state([(p, v) for p, v in nnx.to_flat_state(state) if p != path])


WRONG = {
    "missing": (lambda g: without(g, "layer", "bias"), r"'layer', 'bias'"),
    "surplus": (lambda g: nnx.merge_state(g, nnx.State({"new": nnx.Param(1.0)})), "'new'"),
    "renamed": (
        lambda g: without(nnx.merge_state(g, nnx.State({"w": g["scale"]})), "scale"),
        "'w'",
    ),
    "shape": (
        lambda g: nnx.map_state(lambda p, v: v.replace(v[...][:1]), g),
        r"bias.*\(1,\).*\(3,\)",
    ),
    "scalar": (lambda g: jax.tree.map(jnp.sum, g), r"bias.*\(\).*\(3,\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_gradients_are_named_and_change_nothing(net, case):
    change, named = WRONG[case]
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    before = jax.tree.leaves((net, optimizer))
    with pytest.raises(ValueError, match=named):
        optimizer.update(net, change(jax.tree.map(jnp.ones_like, nnx.state(net, nnx.Param))))
    assert all(a is b for a, b in zip(jax.tree.leaves((net, optimizer)), before, strict=True))


def test_a_transformation_must_keep_its_structure(net):
    tx = optax.GradientTransformation(
        lambda params: (), lambda u, s, p=None: (u, (*s, jnp.zeros(1)))
    )
    optimizer = nnx.Optimizer(net, tx, wrt=nnx.Param)
    before = values(net)
    with pytest.raises(ValueError, match="structure"):
        optimizer.update(net, nnx.state(net, nnx.Param))
    assert equal(values(net), before)
    assert optimizer.step[...] == 0


def test_an_immutable_or_captured_variable_stops_the_whole_update(net):
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    grads = nnx.state(net, nnx.Param)
    frozen = nnx.with_vars(net, mutable=False, only=nnx.PathContains("scale"))
    before = jax.tree.leaves((frozen, optimizer))
    with pytest.raises(nnx.errors.ImmutableVariableError):
        optimizer.update(frozen, grads)
    with pytest.raises(nnx.errors.TraceContextError):
        jax.jit(lambda net, grads: optimizer.update(net, grads))(net, grads)
    after = jax.tree.leaves((frozen, optimizer))
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_a_step_inside_jit_equals_an_eager_one():
    def step(net, optimizer, x):
        graphdef, params, rest = nnx.split(net, nnx.Param, ...)

        def loss(params):
            return (nnx.merge(graphdef, params, rest).layer(x) ** 2).sum()

        optimizer.update(net, jax.grad(loss)(params))

    def pure(graphdef, state, x):
        net, optimizer = nnx.merge(graphdef, state)
        step(net, optimizer, x)
        return nnx.state((net, optimizer))

    def make():
        net = nnx.Dict(layer=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        return net, nnx.Optimizer(net, optax.sgd(0.25, momentum=0.5), wrt=nnx.Param)

    x = jnp.array([[1.0, 2.0]])
    eager, (net, optimizer) = make(), make()
    jitted = jax.jit(pure)
    for _ in range(2):
        step(*eager, x)
        nnx.update((net, optimizer), jitted(*nnx.split((net, optimizer)), x))
    assert jitted._cache_size() == 1
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves((net, optimizer)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert optimizer.step[...] == 2


def test_shared_variables_are_updated_once():
    net = Net()
    net.tied = net.scale
    optimizer = nnx.Optimizer(net, optax.sgd(0.5), wrt=nnx.PathContains("scale"))
    optimizer.update(net, nnx.State({"scale": jnp.ones(2)}))
    assert jnp.array_equal(net.tied[...], jnp.array([0.5, 1.5]))
    with pytest.raises(ValueError, match="tied"):
        nnx.Optimizer(net, optax.sgd(0.5), wrt=nnx.Param, graph=False)
