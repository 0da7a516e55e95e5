"""nnx.compat: graph mode whatever the defaults, as functions and as decorators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import nnx_reference as nnx

X = jnp.array([1.0, 2.0])


@pytest.fixture(autouse=True)
def tree_mode_by_default():
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        yield


class Tied(nnx.Module):
    def __init__(self):
        self.a = self.b = nnx.Param(jnp.array([3.0, 4.0]))
        self.rngs = nnx.Rngs(0)


def test_the_functional_api_takes_sharing():
    model = Tied()
    with pytest.raises(ValueError, match="tree mode"):
        nnx.split(model)
    graphdef, state = nnx.compat.split(model)
    merged = nnx.merge(graphdef, state)
    assert merged.a is merged.b
    assert nnx.compat.graphdef(model) == graphdef == nnx.compat.flatten(model)[0]
    assert set(nnx.compat.state(model)) == set(state) == {"a", "rngs"}
    copy = nnx.compat.clone(model)
    assert copy.a is copy.b is not model.a
    assert len(list(nnx.compat.iter_graph(model))) > len(list(nnx.compat.iter_modules(model))) == 1
    assert [key for key, _ in nnx.compat.iter_children(model)] == ["a", "rngs"]
    mapped = nnx.compat.recursive_map(lambda path, value: value, model)
    assert mapped.a is mapped.b is model.a
    assert nnx.compat.view(model).a is model.a


def test_random_streams():
    model = Tied()
    backups = nnx.compat.split_rngs(model, splits=2)
    assert model.rngs.default.key.shape == (2,)
    nnx.restore_rngs(backups)
    nnx.compat.fork_rngs(model, split=3)
    assert model.rngs.default.key.shape == (3,)
    model = Tied()
    backups, before = nnx.compat.backup_keys(model), model.rngs.default.key[...]
    nnx.compat.reseed(model, default=1)
    assert model.rngs.default.key[...] != before
    nnx.restore_rngs(backups)
    assert model.rngs.default.key[...] == before


def change(model, x):
    model.made = nnx.BatchStat(x)
    return model.a[...] * x


def assert_changed(model):
    assert model.a is model.b
    assert type(model.made) is nnx.BatchStat
    del model.made


def test_transforms_propagate_structure():
    model, compat = Tied(), nnx.compat
    jitted = compat.jit(change)
    assert jitted(model, X).tolist() == [3.0, 8.0]
    assert_changed(model)
    compat.remat(change)(model, X)
    assert_changed(model)
    compat.vmap(change, in_axes=(None, 0), out_axes=0)
    mapped = compat.vmap(in_axes=(nnx.StateAxes({...: None}), None), out_axes=None, axis_size=2)
    assert mapped(change)(model, X).tolist() == [3.0, 8.0]
    assert_changed(model)
    assert compat.vjp(change, model, X)[1](X)[1].tolist() == [3.0, 8.0]
    assert_changed(model)
    assert type(compat.grad(lambda m, x: change(m, x).sum())(model, X)) is nnx.State
    assert_changed(model)
    compat.value_and_grad(has_aux=True)(lambda m, x: (x.sum(), change(m, x)))(model, X)
    assert_changed(model)
    error, _ = compat.checkify(change)(model, X)
    error.throw()
    assert_changed(model)


def test_loops_and_branches_take_sharing():
    model, compat = Tied(), nnx.compat

    def add(model):
        model.b[...] += 1

    def step(count, model):
        add(model)
        return count + 1

    compat.cond(True, add, lambda m: None, model)
    compat.switch(0, [add, lambda m: None], model)
    scanned = compat.scan(in_axes=(nnx.Carry, None), out_axes=nnx.Carry, length=2)
    assert scanned(step)(0, model) == 2
    model = compat.fori_loop(0, 2, lambda n, m: (add(m), m)[1], model)
    model = compat.while_loop(lambda m: m.a[0] < 11, lambda m: (add(m), m)[1], model)
    assert model.a[...].tolist() == [11.0, 12.0]


def test_what_does_not_run():
    model = Tied()
    abstract = nnx.compat.eval_shape(lambda: Tied())
    assert abstract.a is abstract.b
    assert abstract.a.shape == (2,)
    assert "mul" in str(nnx.compat.make_jaxpr(lambda m, x: m.a[...] * x)(model, X))


def test_rules_get_the_cotangents_of_updates():
    @nnx.compat.custom_vjp
    def f(model):
        return model.a[...].sum()

    def bwd(res, g):
        (of_model,), g = g
        of_model["a"][...] += g
        return (of_model,)

    f.defvjp(lambda m: (f(m), None), bwd)
    gradient = nnx.compat.grad(f)(Tied())
    assert gradient["a"][...].tolist() == [1.0, 1.0]


def test_cached_partial():
    model = Tied()

    @nnx.compat.jit
    def add(model, x):
        model.a[...] += x

    nnx.compat.cached_partial(add, model)(X)
    assert model.b[...].tolist() == [4.0, 6.0]


def test_an_abstract_model_has_shardings():
    class Wide(nnx.Module):
        def __init__(self):
            self.w = self.v = nnx.Param(jnp.zeros((2, 3)), out_sharding=(None, "x"))
            self.n = nnx.BatchStat(X)

    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    graphdef, state = nnx.compat.get_abstract_model(Wide, mesh)
    w, n = state["v"].get_value(), state["n"].get_value()
    assert (w.shape, w.dtype, w.sharding.spec) == ((2, 3), "float32", PartitionSpec(None, "x"))
    assert (n.shape, n.sharding) == ((2,), NamedSharding(mesh, PartitionSpec()))
    model = nnx.merge(graphdef, state)
    assert model.w is model.v
    with pytest.raises(ValueError, match="tree mode"):
        nnx.get_abstract_model(Wide, mesh)
