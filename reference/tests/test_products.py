"""nnx.vjp and nnx.jvp: agreement with JAX, objects as tangents and cotangents, propagation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx

MODES = [
    {"graph": False, "graph_updates": False},
    {"graph": True, "graph_updates": False},
    {"graph": True, "graph_updates": True},
]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree-mode", "graph-mode", "updates"])
each_graph_mode = pytest.mark.parametrize("mode", MODES[1:], ids=["graph-mode", "updates"])

X = jnp.array([3.0, 4.0])


class Count(nnx.Variable):
    pass


class Scale(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array([1.0, 2.0]), tag="t")
        self.layers = nnx.List([nnx.Param(jnp.asarray(float(n))) for n in range(11)])
        self.mean = nnx.BatchStat(jnp.asarray(3.0))
        self.count = Count(jnp.asarray(0))


def apply(m, x):
    m.mean[...] = m.mean[...] * 2
    m.count[...] += 1
    return (m.w[...] * x).sum() * m.mean[...] + m.layers[10][...] ** 2


def tangent_of(model):
    """Makes a tangent that is 1 everywhere, but 2 for the last layer."""
    tangent = nnx.map(
        lambda path, v: (
            jnp.ones_like(v[...])
            if jnp.issubdtype(v.dtype, jnp.floating)
            else np.zeros(v.shape, jax.dtypes.float0)
        ),
        model,
    )
    tangent.layers[10][...] = 2.0
    return tangent


def assert_propagated(model):
    assert (model.mean[...], model.count[...]) == (6.0, 1)
    assert model.w[...].tolist() == [1.0, 2.0]


@each_mode
def test_vjp(mode):
    model = Scale()
    y, pull_back = nnx.vjp(apply, model, X, **mode)
    assert y == 166.0
    assert_propagated(model)
    of_model, of_x = pull_back(jnp.asarray(2.0))
    assert type(of_model.w) is nnx.Param
    assert of_model.w.tag == "t"
    assert of_model.w[...].tolist() == [36.0, 48.0]
    assert [of_model.layers[n][...].item() for n in range(11)] == [0.0] * 10 + [40.0]
    if mode["graph_updates"]:
        assert type(of_model) is nnx.State
        assert set(of_model) == {"w", "layers"}
    else:
        assert type(of_model) is Scale
        assert of_model.mean[...] == 44.0
        assert of_model.count[...].dtype == jax.dtypes.float0
    assert of_x.tolist() == [12.0, 24.0]
    assert pull_back(1.0)[1].tolist() == [6.0, 12.0]
    assert_propagated(model)


@each_mode
def test_jvp(mode):
    model = Scale()
    y, tangent = nnx.jvp(apply, (model, X), (tangent_of(model), X), **mode)
    assert (y, tangent) == (166.0, 42.0 + 22.0 + 66.0 + 40.0)
    assert_propagated(model)


@each_mode
def test_has_aux(mode):
    def f(m, x):
        return apply(m, x), {"made": nnx.Param(m.w[...] * 2), "x": x}

    model = Scale()
    y, pull_back, aux = nnx.vjp(f, model, X, has_aux=True, **mode)
    assert (y, aux["made"][...].tolist(), aux["x"].tolist()) == (166.0, [2.0, 4.0], [3.0, 4.0])
    assert pull_back(1.0)[1].tolist() == [6.0, 12.0]
    assert_propagated(model)
    model = Scale()
    y, tangent, aux = nnx.jvp(f, (model, X), (tangent_of(model), X), has_aux=True, **mode)
    assert (y, tangent, aux["made"][...].tolist()) == (166.0, 170.0, [2.0, 4.0])
    for call in (nnx.vjp, lambda f, x, **o: nnx.jvp(f, (x,), (x,), **o)):
        with pytest.raises(TypeError, match="a pair"):
            call(lambda x: x, X, has_aux=True, **mode)


@each_mode
def test_decorators(mode):
    pulled, pushed = nnx.vjp(**mode)(apply), nnx.jvp(**mode)(apply)
    assert pulled.__name__ == pushed.__name__ == "apply"
    assert pulled(Scale(), X)[1](1.0)[1].tolist() == [6.0, 12.0]
    assert nnx.vjp(apply, **mode)(Scale(), X)[0] == 166.0
    assert pushed((model := Scale(), X), (tangent_of(model), X)) == (166.0, 170.0)


@each_mode
def test_objects_in_the_output(mode):
    def f(m):
        return {"made": nnx.Param(m.w[...] ** 2, tag="u"), "rest": [m.layers[1][...]]}

    model = Scale()
    y, pull_back = nnx.vjp(f, model, **mode)
    assert (y["made"][...].tolist(), y["made"].tag) == ([1.0, 4.0], "u")
    (of_model,) = pull_back({"made": nnx.Param(X, tag="u"), "rest": [jnp.asarray(5.0)]})
    assert (of_model.w[...].tolist(), of_model.layers[1][...]) == ([6.0, 16.0], 5.0)
    with pytest.raises(ValueError, match="the same class"):
        pull_back({"made": X, "rest": [jnp.asarray(5.0)]})
    _, tangent = nnx.jvp(f, (model,), (tangent_of(model),), **mode)
    assert type(tangent["made"]) is nnx.Param
    assert tangent["made"][...].tolist() == [2.0, 4.0]
    assert tangent["rest"] == [1.0]


@each_graph_mode
def test_sharing(mode):
    v = nnx.Param(jnp.asarray(3.0))
    y, pull_back = nnx.vjp(lambda a, b: a[...] * b[...], v, v, **mode)
    assert y == 9.0
    first, second = pull_back(1.0)
    assert first[...] == second[...] == 6.0
    assert mode["graph_updates"] or first is second
    t = nnx.Param(jnp.asarray(1.0))
    assert nnx.jvp(lambda a, b: a[...] * b[...], (v, v), (t, t), **mode) == (9.0, 6.0)
    with pytest.raises(TypeError, match="same class and structure"):
        nnx.jvp(lambda a, b: a[...] * b[...], (v, v), (t, nnx.Param(1.0)), **mode)


@each_graph_mode
def test_an_argument_in_the_output_is_the_caller_s(mode):
    model = Scale()
    (same, y), pull_back = nnx.vjp(lambda m: (m, m.w[...] * X), model, **mode)
    assert same is model
    assert y.tolist() == [3.0, 8.0]
    cotangent = tangent_of(model)
    assert pull_back((cotangent, X))[0].w[...].tolist() == [10.0, 17.0]


def test_updates_of_structure():
    model = Scale()

    def f(m, x):
        m.made = nnx.BatchStat(x)
        return (m.made[...] * m.w[...]).sum()

    assert nnx.compat.vjp(f, model, X)[1](1.0)[1].tolist() == [1.0, 2.0]
    assert model.made[...].tolist() == [3.0, 4.0]


@each_mode
def test_under_other_transforms(mode):
    model = Scale()

    @nnx.jit(**mode)
    def step(m, x):
        y, pull_back = nnx.vjp(apply, m, x, **mode)
        return y, pull_back(1.0)[0].w[...]

    assert step(model, X)[0] == 166.0
    y, of_w = step(model, X)
    assert (y, of_w.tolist(), model.count[...]) == (232.0, [36.0, 48.0], 2)

    def hessian_vector(x):
        return nnx.jvp(jax.grad(lambda x: (x**3).sum()), (x,), (jnp.ones_like(x),), **mode)[1]

    assert nnx.vmap(hessian_vector, **mode)(X).tolist() == [18.0, 24.0]


@each_mode
def test_jit_returns_what_pulls_back(mode):
    make = nnx.jit(lambda m, x: nnx.vjp(apply, m, x, **mode)[1], **mode)
    of_model, of_x = make(Scale(), X)(1.0)
    assert (of_model.w[...].tolist(), of_x.tolist()) == ([18.0, 24.0], [6.0, 12.0])


@each_mode
def test_errors_change_nothing(mode):
    def fail(m):
        m.count[...] += 1
        raise RuntimeError

    model = Scale()
    for call in (
        lambda: nnx.vjp(fail, model, **mode),
        lambda: nnx.jvp(fail, (model,), (tangent_of(model),), **mode),
    ):
        with pytest.raises(RuntimeError):
            call()
    assert model.count[...] == 0
    with pytest.raises(TypeError, match="same class"):
        nnx.jvp(apply, (model, X), (nnx.state(model, nnx.Param), X), **mode)
    with pytest.raises(TypeError, match="primals in a tuple"):
        nnx.jvp(apply, model, (model,), **mode)
    with pytest.raises(ValueError, match="mutable=False"):
        nnx.vjp(apply, nnx.with_vars(model, hijax=True), X, **mode)
    held = nnx.with_vars(model, hijax=True, only=nnx.Not(nnx.Param))
    if mode["graph_updates"]:
        assert nnx.vjp(apply, held, X, **mode)[1](1.0)[1].tolist() == [6.0, 12.0]
        assert (held.mean[...], held.count[...]) == (6.0, 1)
    assert (model.mean[...], model.count[...]) == (3.0, 0)


def test_tree_mode_takes_no_sharing():
    v = nnx.Param(jnp.asarray(3.0))
    with pytest.raises(ValueError, match="a and b"):
        nnx.vjp(lambda a, b: a, v, v, graph=False)
    with pytest.raises(ValueError, match="<output>"):
        nnx.jvp(lambda a: a, (v,), (v,), graph=False)
