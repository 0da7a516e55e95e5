"""nnx.custom_vjp: the rules, what they get and return, what may change, errors."""

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

TREE = {"graph": False, "graph_updates": False}
GRAPH = {"graph": True, "graph_updates": False}
UPDATES = {"graph": True, "graph_updates": True}
each_mode = pytest.mark.parametrize(
    "mode", [TREE, GRAPH, UPDATES], ids=["tree-mode", "graph-mode", "updates"]
)
pure = pytest.mark.parametrize("mode", [TREE, GRAPH], ids=["tree-mode", "graph-mode"])


class Count(nnx.Variable):
    pass


class Product(nnx.Module):
    def __init__(self):
        self.x = nnx.Param(jnp.asarray(2.0))
        self.y = nnx.Param(jnp.asarray(3.0), tag="t")
        self.count = Count(jnp.asarray(0))


def ruled(mode, backward=None, *, function=None, **options):
    """Makes a product whose derivatives are a hundred and ten times as large as they are."""

    @nnx.custom_vjp(**mode, **options)
    def f(m, z):
        m.count[...] += 1
        if function is not None:
            function(m)
        return m.x[...] * m.y[...] * z

    def bwd(res, g):
        m, z = res
        if mode["graph_updates"]:
            (of_m, _), g = g
        else:
            of_m = nnx.clone(m)
        of_m.x[...] = 100 * g * m.y[...] * z
        of_m.y[...] = 10 * g * m.x[...] * z
        return of_m, 7 * g

    f.defvjp(lambda m, z: (f(m, z), (m, z)), backward or bwd)
    return f


@each_mode
def test_the_backward_rule_is_used(mode):
    model, f = Product(), ruled(mode)
    assert f(model, 5.0) == 30.0
    assert f(z=5.0, m=model) == 30.0
    assert model.count[...] == 2
    gradient, of_z = nnx.grad(f, argnums=(0, 1), allow_int=True, **mode)(model, 5.0)
    assert type(gradient) is (nnx.State if mode["graph_updates"] else Product)
    assert (gradient.x[...], gradient.y[...], of_z) == (1500.0, 100.0, 7.0)
    assert gradient.y.tag == "t"
    assert model.count[...] == 3
    assert (model.x[...], model.y[...]) == (2.0, 3.0)


def transformed(name, loss, mode):
    match name:
        case "jit of grad":
            return nnx.jit(nnx.grad(loss, **mode), **mode)
        case "grad of jit":
            return nnx.grad(nnx.jit(loss, **mode), **mode)
        case "grad of remat":
            return nnx.grad(nnx.remat(loss, **mode), **mode)
        case "vmap of grad":
            mapped = nnx.vmap(nnx.grad(loss, **mode), in_axes=(0, None), **mode)
            return lambda z, m: mapped(jnp.array([z, z]), m)[1]
        case "grad of vmap":
            mapped = nnx.vmap(loss, in_axes=(0, None), **mode)
            summed = nnx.grad(lambda zs, m: mapped(zs, m).sum(), **mode)
            return lambda z, m: summed(jnp.array([z, z]), m)[1]


@each_mode
@pytest.mark.parametrize(
    "name", ["jit of grad", "grad of jit", "grad of remat", "vmap of grad", "grad of vmap"]
)
def test_under_other_transforms(mode, name):
    f, model = ruled(mode), Product()
    assert transformed(name, lambda z, m: f(m, z), mode)(5.0, model) == 7.0
    assert model.count[...] == 1


@each_mode
def test_hijax_variables(mode):
    model = nnx.with_vars(Product(), hijax=True, only=Count)
    gradient = nnx.grad(lambda z, m: ruled(mode)(m, z), **mode)(5.0, model)
    assert gradient == 7.0
    assert model.count[...] == 1


@each_mode
def test_arguments_that_are_not_differentiated(mode):
    @nnx.custom_vjp(nondiff_argnums=(0, 2, -1), **mode)
    def f(function, x, m, k):
        m.x[...] += 1
        return function(x) * m.x[...] * k["k"]

    def bwd(function, m, k, res, g):
        assert function is jnp.square
        assert k == {"k": 4}
        assert (m.x[...], m.count[...]) == (2.0, 0)
        g = g[1] if mode["graph_updates"] else g
        return (g * res * 50,)

    f.defvjp(lambda function, x, m, k: (f(function, x, m, k), m.x[...]), bwd)
    model = Product()
    loss = nnx.value_and_grad(lambda x, m: f(jnp.square, x, m, {"k": 4}), **mode)
    assert loss(3.0, model) == (108.0, 150.0)
    assert (model.x[...], model.y[...], model.count[...]) == (3.0, 3.0, 0)


def change(m):
    m.x[...] *= 10


@pure
def test_differentiable_variables_may_not_change(mode):
    model = Product()
    f = ruled(mode, function=change)
    for call in (f, nnx.grad(f, allow_int=True, **mode), nnx.jit(f, **mode)):
        with pytest.raises(ValueError, match=r"differentiable Param m\.x"):
            call(model, 5.0)
    assert (model.x[...], model.count[...]) == (2.0, 0)


@pure
def test_a_rule_may_take_the_cotangents_of_updates(mode):
    def bwd(res, g, *, updates_g):
        of_m, of_z = updates_g
        assert of_z is None
        assert type(of_m) is Product
        assert (of_m.y, of_m.x[...]) == (None, 7.0)
        assert of_m.count[...].dtype == jax.dtypes.float0
        of_result = nnx.clone(res[0])
        of_result.x[...] = of_m.x[...] + g
        return of_result, None

    f = ruled(mode, bwd, function=change)

    def loss(m, z):
        return f(m, z) + 7 * m.x[...]

    model = Product()
    gradient = nnx.grad(loss, allow_int=True, **mode)(model, 5.0)
    assert gradient.x[...] == 8.0
    assert (model.x[...], model.count[...]) == (20.0, 1)


def test_with_graph_updates_the_rule_gets_the_cotangents_of_updates():
    def bwd(res, g):
        (of_m, of_z), g = g
        assert of_z is None
        assert type(of_m) is nnx.State
        assert set(of_m) == {"x", "y", "count"}
        assert (of_m["x"][...], of_m["y"][...]) == (7.0, 0.0)
        of_m["x"][...] = of_m["x"][...] + g
        return of_m, g

    f = ruled(UPDATES, bwd, function=change)
    model = Product()
    gradient = nnx.compat.grad(lambda m, z: f(m, z) + 7 * m.x[...])(model, 5.0)
    assert (gradient["x"][...], gradient["y"][...]) == (8.0, 0.0)
    assert (model.x[...], model.count[...]) == (20.0, 1)

    def add(m):
        m.made = nnx.Param(m.x[...])

    f = ruled(UPDATES, function=add)
    assert nnx.compat.grad(lambda z, m: f(m, z))(5.0, model) == 7.0
    assert model.made[...] == 20.0


def test_diff_state():
    only_x = nnx.DiffState(0, nnx.PathContains("x"))
    extra = []

    def bwd(res, g):
        (of_m, _), g = g
        for name in {"y", "count"} - set(extra):
            del of_m[name]
        of_m["x"][...] = 100 * g
        return of_m, g

    f = ruled(UPDATES, bwd, function=lambda m: m.y.set_value(4.0), nondiff_argnums=(only_x,))
    model = Product()
    gradient = nnx.grad(f, argnums=only_x, **UPDATES)(model, 5.0)
    assert nnx.to_pure_dict(gradient) == {"x": 100.0}
    assert model.y[...] == 4.0
    extra.append("y")
    with pytest.raises(TypeError, match=r"'y',.* not differentiated"):
        nnx.grad(f, argnums=only_x, **UPDATES)(model, 5.0)
    for mode in (TREE, GRAPH):
        with pytest.raises(ValueError, match=r"nnx\.split.*nnx\.merge"):
            nnx.custom_vjp(change, nondiff_argnums=(only_x,), **mode)


@each_mode
def test_objects_in_the_output(mode):
    @nnx.custom_vjp(**mode)
    def f(m):
        return {"made": nnx.Param(m.x[...] * m.y[...], tag="u"), "y": m.y[...]}

    def bwd(res, g):
        g = g[1] if mode["graph_updates"] else g
        assert type(g["made"]) is nnx.Param
        assert (g["made"][...], g["made"].tag, g["y"]) == (2.0, "u", 5.0)
        return (None,)

    f.defvjp(lambda m: (f(m), None), bwd)

    def loss(m):
        out = f(m)
        return out["made"][...] * 2 + out["y"] * 5 + m.x[...]

    gradient = nnx.grad(loss, allow_int=True, **mode)(Product())
    assert (gradient.x[...], gradient.y[...]) == (1.0, 0.0)


@pytest.mark.parametrize("mode", [GRAPH, UPDATES], ids=["graph-mode", "updates"])
def test_sharing(mode):
    @nnx.custom_vjp(**mode)
    def f(a, b):
        return a[...] * b[...], a

    def bwd(res, g):
        g = g[1] if mode["graph_updates"] else g
        return nnx.Param(g[0] * 10), nnx.Param(g[0] + g[1][...])

    f.defvjp(lambda a, b: (f(a, b), None), bwd)
    v = nnx.Param(jnp.asarray(3.0))
    assert f(v, v)[1] is v
    assert nnx.grad(lambda v: f(v, v)[0], **mode)(v)[...] == 11.0


@each_mode
def test_keyword_only_arguments_keep_their_defaults(mode):
    @nnx.custom_vjp(**mode)
    def f(x, y=3.0, *, k=2.0):
        return x * y * k

    f.defvjp(lambda x, y: (f(x, y), y), lambda y, g: (y, None))
    assert f(5.0) == 30.0
    assert nnx.grad(f, **mode)(5.0) == 3.0
    with pytest.raises(TypeError, match="positional arguments, not \\['k'\\]"):
        f(5.0, k=2.0)


@each_mode
def test_wrong_uses(mode):
    with pytest.raises(AttributeError, match="sin has no rules"):
        nnx.custom_vjp(jnp.sin, **mode)(1.0)
    model = Product()
    for returned, message in (
        (None, "a tuple with 2 cotangents"),
        ((None,), "a tuple with 2 cotangents"),
        ((1.0, 1.0), "an object or a State"),
        ((Count(0.0), None), "lacks .*'x'"),
    ):
        f = ruled(mode, lambda *_, returned=returned: returned)
        with pytest.raises(TypeError, match=message):
            nnx.grad(f, allow_int=True, **mode)(model, 5.0)
    assert model.count[...] == 0
    f.defvjp(lambda m, z: 1.0, lambda *_: None)
    with pytest.raises(TypeError, match="a pair"):
        nnx.grad(f, allow_int=True, **mode)(model, 5.0)
    with pytest.raises(ValueError, match="nondiff_argnums has 2"):
        ruled(mode, nondiff_argnums=(2,))(model, 5.0)


def test_tree_mode_takes_no_sharing():
    f = nnx.custom_vjp(lambda a, b: a, **TREE)
    f.defvjp(lambda a, b: (f(a, b), None), lambda res, g: (None, None))
    v = nnx.Param(jnp.asarray(3.0))
    with pytest.raises(ValueError, match="a and b"):
        f(v, v)
    with pytest.raises(ValueError, match="<output>"):
        f(v, nnx.Param(1.0))
