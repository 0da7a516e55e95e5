"""eval_shape and make_jaxpr; and that traces are remembered, but not for longer than right."""

import functools
import gc
import types
import weakref

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["updates", "graph-mode", "tree-mode"])
each_flag = pytest.mark.parametrize("flags", [{}, {"hijax": True}, {"ref": True}], ids=str)


class Net(nnx.Module):
    """A module with a parameter, a count and an array."""

    def __init__(self, size=3, **flags):
        self.w = nnx.Param(jnp.ones(size), tag="red", **flags)
        self.n = nnx.BatchStat(jnp.int32(0), **flags)
        self.raw = jnp.zeros(2)


def use(net, x):
    net.n[...] += 1
    return {"y": net.w * x, "cache": nnx.Cache(net.w[:2])}


def described(tree):
    return jax.tree.map(lambda leaf: (type(leaf).__name__, leaf.shape, leaf.dtype.name), tree)


@each_mode
def test_eval_shape_of_a_constructor(mode):
    net = nnx.eval_shape(functools.partial(Net, 10**12), **mode)
    assert type(net) is Net
    assert type(net.w) is nnx.Param
    assert net.w.tag == "red"
    assert described(net.w.get_value()) == ("ShapeDtypeStruct", (10**12,), "float32")
    assert described(net.raw) == ("ShapeDtypeStruct", (2,), "float32")


@each_mode
@each_flag
def test_eval_shape_changes_nothing(mode, flags):
    net = Net(**flags)
    found = nnx.eval_shape(use, net, x=jax.ShapeDtypeStruct((4, 3), "float32"), **mode)
    assert described(found["y"]) == ("ShapeDtypeStruct", (4, 3), "float32")
    assert type(found["cache"]) is nnx.Cache
    assert described(found["cache"].get_value()) == ("ShapeDtypeStruct", (2,), "float32")
    assert net.n[...] == 0
    abstract = nnx.eval_shape(lambda: Net(**flags), **mode)
    assert described(nnx.eval_shape(use, abstract, 2.0, **mode)["y"])[1] == (3,)


@each_flag
def test_eval_shape_of_arguments_that_come_out(flags):
    net = Net(**flags)

    def grow(net):
        net.extra = nnx.Cache(net.w[...][None])
        return [net, net.w]

    abstract, w = nnx.eval_shape(grow, net)
    assert abstract is not net
    assert abstract.w is w
    assert described(abstract.extra.get_value())[1] == (1, 3)
    assert described(w.get_value()) == ("ShapeDtypeStruct", (3,), "float32")
    assert not hasattr(net, "extra")
    with pytest.raises(ValueError, match=r"net\.w.*<output>\[1\]"):
        nnx.eval_shape(grow, net, graph=False)


@each_mode
def test_make_jaxpr(mode):
    net = Net()
    jaxpr = nnx.make_jaxpr(use, **mode)(net, 2.0)
    assert [a.str_short() for a in jaxpr.in_avals] == [
        "int32[]",
        "float32[2]",
        "float32[3]",
        "float32[]",
    ]
    shapes = [(a.shape, a.dtype.name) for a in jaxpr.out_avals]
    assert shapes == [((3,), "float32"), ((), "int32"), ((2,), "float32")]
    static = nnx.make_jaxpr(static_argnums=1, **mode)(lambda net, n: net.w[...] * n)
    assert len(static(net, 2).in_avals) == 3
    first = nnx.make_jaxpr(lambda x, net: use(net, x), **mode)(2.0, net)
    assert first.in_avals[0].shape == ()
    assert net.n[...] == 0


def test_make_jaxpr_is_that_of_the_namesake_for_arrays():
    def f(x, y):
        return {"b": jnp.sin(x) * y["a"], "a": x + y["z"]}

    args = 1.0, {"z": 2, "a": jnp.ones(2)}
    assert str(nnx.make_jaxpr(f)(*args)) == str(jax.make_jaxpr(f)(*args))


def test_what_is_captured_is_traced_again_when_it_has_changed():
    net, calls = Net(), []

    def body(i, x):
        calls.append(i)
        return x + net.w[0]

    def run():
        return float(nnx.fori_loop(0, 2, body, 0.0))

    assert (run(), run(), len(calls)) == (2, 2, 1)
    net.w[...] = jnp.full(3, 5.0)
    assert (run(), run(), len(calls)) == (10, 10, 2)
    net.mode = "other"
    assert (run(), len(calls)) == (10, 3)


def test_methods_and_partials():
    class Counter(nnx.Module):
        def __init__(self):
            self.n = nnx.BatchStat(jnp.int32(1))

        def add(self, i, x):
            return x + self.n[...]

        def __call__(self, i, x):
            return self.add(i, x)

    counter = Counter()
    kept = counter.add
    functions = [kept, counter, functools.partial(Counter.add, counter), lambda i, x: kept(i, x)]
    assert [int(nnx.fori_loop(0, 2, f, 0)) for f in functions] == [2] * 4
    counter.n[...] = 3
    assert [int(nnx.fori_loop(0, 2, f, 0)) for f in functions] == [6] * 4


NET, NETS = Net(), [Net()]


def named_by_helper(x):
    return x + NET.w[0]


def with_default(x, net=NET):
    return x + net.w[0]


def with_keyword(x, *, nets={"a": NET}):  # noqa: B006 (not changed)
    return x + nets["a"].w[0]


def with_inner(x):
    return (lambda y: y + NET.w[0])(x)


class Holder:
    net = NET

    def __call__(self, x):
        return x + self.net.w[0]


holder = Holder()
CAPTURES = {
    "helper": lambda x: named_by_helper(x),
    "default": with_default,
    "keyword": with_keyword,
    "inner function": with_inner,
    "list": lambda x: x + NETS[0].w[0],
    "partial": functools.partial(lambda nets, x: x + nets[0].w[0], NETS),
    "attribute": lambda x: holder(x),
    "callable": holder,
    "nested": lambda x: nnx.cond(True, holder, holder, x),
    "argument": lambda x: nnx.jit(lambda net: x + net.w[0])(holder.net),
    "state": lambda x: x + nnx.state(holder.net)["w"][0],
    "pytree": lambda x: x + jax.tree.leaves(vars(holder.net)["w"])[0][0],
}


@pytest.mark.parametrize("capture", CAPTURES)
def test_whatever_is_captured_in_any_way_is_never_outdated(capture):
    function = CAPTURES[capture]
    transformed = [
        lambda: nnx.cond(True, function, function, 1.0),
        lambda: nnx.remat(function)(1.0),
        lambda: jax.grad(lambda x: nnx.remat(function)(x) ** 2)(1.0) / 2,
        lambda: nnx.pmap(function)(jnp.ones(1))[0],
    ]
    for value in (1.0, 2.0):
        for net in (NET, *NETS):
            net.w[...] = jnp.full(3, value)
        assert [float(run()) for run in transformed] == [1 + value] * len(transformed)


def test_a_captured_variable_is_traced_again_only_when_it_has_changed():
    v, calls = nnx.Variable(jnp.float32(1), scale=2), []

    def f(x):
        calls.append(x)
        return x + v[...] * v.scale

    def run():
        return float(nnx.cond(True, f, lambda x: x, 0.0)), len(calls)

    assert [run(), run()] == [(2, 1), (2, 1)]
    v[...] = jnp.float32(5)
    assert [run(), run()] == [(10, 2), (10, 2)]
    v.set_metadata(scale=3)
    assert [run(), run()] == [(15, 3), (15, 3)]


def use_everywhere():
    net = Net()
    big = jnp.ones(1000)

    def body(i, net):
        net.w[...] += big.sum()
        return net

    nnx.fori_loop(0, 2, body, net)
    nnx.cond(True, lambda net: body(0, net).n[...], lambda net: net.n[...], net)
    nnx.eval_shape(body, 0, net)
    nnx.make_jaxpr(body)(0, net)
    nnx.while_loop(lambda net: net.n[...] > 0, lambda net: body(0, net), net)
    nnx.scan(lambda net, x: (body(0, net), x))(net, jnp.ones(2))
    hidden = types.SimpleNamespace(net=net)
    unclear = functools.partial(lambda x: x + hidden.net.w[0])
    nnx.cond(True, unclear, unclear, big[0])
    net.w[...] += 1
    nnx.cond(True, unclear, unclear, big[0])
    return [weakref.ref(x) for x in (net, net.w[...], big, body, unclear)]


def test_nothing_is_kept_alive():
    references = use_everywhere()
    gc.collect()
    assert [r() is None for r in references] == [True] * 5
