"""vmap, against a Python loop over slices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx
from nnx_reference.metadata import SHOWN

MODES = [
    {"graph": False},
    {"graph": True, "graph_updates": False},
    {"graph": True, "graph_updates": True},
]
MODE_IDS = ["tree-mode", "graph-mode", "graph-updates"]
in_every_mode = pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)

COUNTED = nnx.StateAxes({nnx.BatchStat: 0, ...: None})


class Count(nnx.Variable):
    pass


class Net(nnx.Module):
    def __init__(self, w, count):
        self.w = nnx.Param(w, note="weights")
        self.count = Count(count)
        self.layers = nnx.List([nnx.Dict(b=nnx.BatchStat(jnp.zeros(w.shape[0])))])
        self.name = "net"


def array(*shape):
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)


def net(n=3):
    return Net(array(n, 2), jnp.zeros(n, jnp.int32))


def step(net, x):
    net.count[...] += 1
    net.layers[0]["b"][...] += x.sum()
    return net.w * x


@in_every_mode
@pytest.mark.parametrize("in_axes", [0, (0, 0), [0, 0], (0, {"x": 0})], ids=str)
def test_a_module_is_mapped_and_updated_like_slices(mode, in_axes):
    model, x = (
        net(),
        {"x": array(3, 2)} if isinstance(in_axes, tuple) and in_axes[1] != 0 else array(3, 2),
    )
    before = model.w, model.count, model.layers, model.w[...]
    y = nnx.vmap(lambda m, x: step(m, jax.tree.leaves(x)[0]), in_axes=in_axes, **mode)(model, x)
    x = jax.tree.leaves(x)[0]
    assert jnp.array_equal(y, jnp.stack([before[0][n] * x[n] for n in range(3)]))
    assert jnp.array_equal(model.count[...], jnp.ones(3, jnp.int32))
    assert jnp.array_equal(model.layers[0]["b"][...], x.sum(1))
    assert (model.w, model.count, model.layers) == before[:3]
    assert model.w[...] is before[3], "an unchanged Variable keeps its very array"


@in_every_mode
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("out_axis", [0, 1, -1])
def test_any_axis_goes_in_and_out(mode, axis, out_axis):
    v = nnx.Param(array(2, 3, 2))
    seen = []

    def f(v):
        seen.append(v.shape)
        y = v[...] * 2
        v[...] = v[...] + 1
        return y

    before = v[...]
    y = nnx.vmap(f, in_axes=axis, out_axes=out_axis, **mode)(v)
    expected = jnp.moveaxis(before, axis, 0) * 2
    assert jnp.array_equal(y, jnp.moveaxis(expected, 0, out_axis))
    assert jnp.array_equal(v[...], before + 1)
    assert seen == [expected.shape[1:]]


def test_state_axes_give_each_variable_its_own():
    model = Net(array(2, 3), jnp.array(0))
    model.layers[0]["b"] = nnx.BatchStat(jnp.zeros(3))
    axes = nnx.StateAxes({nnx.Param: 1, Count: None, ...: 0})
    x = array(3)

    def f(model, x):
        model.count[...] += 1
        model.layers[0]["b"][...] += x
        return model.w * x

    y = nnx.vmap(f, in_axes=(axes, 0), out_axes=1)(model, x)
    assert jnp.array_equal(y, array(2, 3) * x)
    assert model.count[...] == 1
    assert jnp.array_equal(model.layers[0]["b"][...], x)


def test_state_axes_see_paths_and_must_be_exhaustive():
    model = net()
    axes = nnx.StateAxes([(nnx.PathContains("layers"), 0), (lambda path, value: path == ("w",), 0)])
    with pytest.raises(ValueError, match=r"Count.*'count'"):
        nnx.vmap(lambda m: None, in_axes=(axes,))(model)
    assert dict(nnx.StateAxes({nnx.Param: 0, ...: None})) == {nnx.Param: 0, ...: None}
    assert nnx.StateAxes({nnx.BatchStat: 0, ...: None}) == COUNTED
    assert hash(COUNTED) == hash(nnx.StateAxes({nnx.BatchStat: 0, True: None}))
    with pytest.raises(TypeError, match="StateAxes"):
        nnx.StateAxes({nnx.Param: "0"})


def test_state_axes_are_refused_where_they_mean_nothing():
    model = net()
    for mode in MODES[:2]:
        for axes in (COUNTED, (COUNTED,)):
            with pytest.raises(ValueError, match=r"nnx\.split .* nnx\.merge"):
                nnx.vmap(lambda m: None, in_axes=axes, **mode)(model)
        with pytest.raises(ValueError, match=r"nnx\.split .* nnx\.merge"):
            nnx.vmap(net, out_axes=COUNTED, axis_size=2, **mode)()
    with pytest.raises(ValueError, match="StateAxes"):
        nnx.vmap(lambda m: None, in_axes=(COUNTED,))({"m": model})
    with pytest.raises(ValueError, match="StateAxes"):
        nnx.vmap(lambda m: None, in_axes=(COUNTED,))(array(3))
    with pytest.raises(TypeError, match="in_axes"):
        nnx.vmap(lambda m: None, in_axes="0")(model)
    carried = nnx.StateAxes({...: nnx.Carry})
    with pytest.raises(ValueError, match=r"Carry.*scan"):
        nnx.vmap(lambda m, x: None, in_axes=(carried, 0))(model, array(3))
    with pytest.raises(ValueError, match=r"Carry.*scan"):
        nnx.vmap(net, out_axes=carried, axis_size=2)()


@in_every_mode
def test_a_broadcast_variable_is_updated_once_or_not_at_all(mode):
    count = Count(jnp.array(0.0))

    def f(count, x, batched):
        count[...] += x if batched else 1
        return x

    mapped = nnx.vmap(f, in_axes=(None, 0, None), **mode)
    mapped(count, array(3), False)
    assert count[...] == 1
    with pytest.raises(ValueError, match="count"):
        mapped(count, array(3), True)
    assert count[...] == 1


@in_every_mode
def test_an_initializer_makes_a_stack(mode):
    def make(seed):
        return {"net": nnx.Linear(2, 3, rngs=nnx.Rngs(seed)), "seed": seed}

    seeds = jnp.arange(4)
    stack = nnx.vmap(make, out_axes={"net": 1, "seed": 0}, **mode)(seeds)
    linear = stack["net"]
    assert type(linear) is nnx.Linear
    assert type(linear.kernel) is nnx.Param
    singles = [make(int(n))["net"].kernel[...] for n in seeds]
    assert jnp.array_equal(linear.kernel[...], jnp.stack(singles, 1))
    assert linear.bias.shape == (3, 4)
    assert jnp.array_equal(stack["seed"], seeds)
    linear.kernel[...] *= 2  # it belongs to the caller's trace level


def test_output_axes_by_filter():
    made = nnx.vmap(
        lambda: Net(array(2, 3), jnp.array(7)),
        axis_size=4,
        out_axes=nnx.StateAxes({nnx.Param: 1, ...: None}),
    )()
    assert made.w.shape == (2, 4, 3)
    assert made.w.note == "weights"
    assert made.count[...] == 7
    assert made.layers[0]["b"].shape == (2,)


@pytest.mark.parametrize("graph_updates", [False, True])
def test_sharing_is_kept(graph_updates):
    model = net()
    model.again = model.w

    def f(model, w):
        assert model.again is model.w is w
        w[...] += 1
        pair = nnx.List([Count(w.sum()), w])
        pair.append(pair[0])
        return pair, w, model

    before = model.w[...]
    pair, w, same = nnx.vmap(f, graph=True, graph_updates=graph_updates)(model, model.w)
    assert w is model.w is pair[1]
    assert same is model
    assert pair[0] is pair[2]
    assert jnp.array_equal(w[...], before + 1)
    assert jnp.array_equal(pair[0][...], (before + 1).sum(1))


def test_cycles_are_kept():
    model = net()
    model.layers[0]["top"] = model

    def f(model):
        assert model.layers[0]["top"] is model
        model.count[...] += 1

    nnx.vmap(f)(model)
    assert model.layers[0]["top"] is model
    assert jnp.array_equal(model.count[...], jnp.ones(3))


@in_every_mode
def test_two_axes_for_one_variable_are_refused(mode):
    model = Net(array(3, 3), jnp.zeros(3))
    with pytest.raises(ValueError, match=r"first\['m'\]\.w.*\n?.*second\[0\]"):
        nnx.vmap(lambda first, second: None, in_axes=(0, 1), **mode)({"m": model}, [model.w])


def test_a_shared_module_on_two_axes_is_refused():
    model = net()
    axes = nnx.StateAxes({Count: None, ...: 0})
    with pytest.raises(ValueError, match=r"a\.count.*b\.inner\.count"):
        nnx.vmap(lambda a, b: None, in_axes=(0, axes))(model, nnx.Dict(inner=model))


@pytest.mark.parametrize("mode", MODES[1:], ids=MODE_IDS[1:])
def test_one_axis_in_and_another_out_is_refused(mode):
    v = nnx.Param(array(2, 2))
    with pytest.raises(ValueError, match=r"v.*<output>"):
        nnx.vmap(lambda v: v, in_axes=0, out_axes=1, **mode)(v)


def test_tree_mode_refuses_what_is_shared():
    model = net()
    with pytest.raises(ValueError, match=r"m\.w and v"):
        nnx.vmap(lambda m, v: None, graph=False)(model, model.w)
    with pytest.raises(ValueError, match=r"<output>\['w'\]"):
        nnx.vmap(lambda m: {"w": m.w}, graph=False)(model)


def test_graph_updates_reach_the_objects():
    model = net()
    objects = model.w, model.layers, model.layers[0]
    old = model.count

    def f(model, x):
        model.w[...] += x.sum()
        old_count = model.count
        old_count[...] += 5
        model.count = Count(x)
        del model.name
        model.tag = ("a", 1)
        model.raw = x * 2
        model.pair = nnx.data([model.w, x])
        model.tied = model.w
        model.layers.append(nnx.Dict(c=Count(x)))
        del model.layers[0]["b"]
        return model.layers

    x = array(3, 2)
    w = model.w[...]
    layers = nnx.vmap(f)(model, x)
    assert (model.w, model.layers, model.layers[0]) == objects
    assert layers is model.layers
    assert model.tied is model.w is model.pair[0]
    assert jnp.array_equal(model.w[...], w + x.sum(1)[:, None])
    assert model.count is not old
    assert jnp.array_equal(old[...], jnp.full(3, 5)), (
        "a Variable that was taken out has been written first"
    )
    assert jnp.array_equal(model.count[...], x)
    assert jnp.array_equal(model.raw, x * 2)
    assert jnp.array_equal(model.pair[1], x)
    assert jnp.array_equal(model.layers[1]["c"][...], x)
    assert model.tag == ("a", 1)
    assert not hasattr(model, "name")
    assert "b" not in model.layers[0]


@pytest.mark.parametrize("mode", MODES[:2], ids=MODE_IDS[:2])
def test_without_graph_updates_only_variables_change(mode):
    model = net()
    vars_before = dict(vars(model))

    def f(model):
        model.count[...] += 1
        model.tied = model.w
        model.layers.append(nnx.Dict())
        del model.name

    nnx.vmap(f, **mode)(model)
    assert vars(model) == vars_before
    assert len(model.layers) == 1
    assert jnp.array_equal(model.count[...], jnp.ones(3))


def test_methods_can_be_mapped():
    class Stack(nnx.Module):
        @nnx.vmap
        def __init__(self, seed):
            self.w = nnx.Param(jax.random.normal(jax.random.key(seed), (2,)))

        @nnx.vmap(in_axes=(0, None), out_axes=1)
        def __call__(self, x):
            return self.w * x

    stack = Stack(jnp.arange(3))
    w = jnp.stack([jax.random.normal(jax.random.key(n), (2,)) for n in range(3)])
    assert jnp.array_equal(stack.w[...], w)
    assert jnp.array_equal(stack(2.0), w.T * 2)


@in_every_mode
def test_keyword_arguments_are_mapped_over_axis_0(mode):
    @nnx.vmap(in_axes=(None,), **mode)
    def f(x, *, v, scale):
        v[...] += x
        return v * scale

    v = nnx.Param(array(3))
    y = f(10.0, v=v, scale=array(3))
    assert jnp.array_equal(v[...], array(3) + 10)
    assert jnp.array_equal(y, (array(3) + 10) * array(3))


@in_every_mode
def test_values_of_any_structure_are_mapped(mode):
    v = nnx.Variable({"a": array(3), "b": (array(3, 2),)})

    def f(v):
        v["a"] += 1
        v["new"] = v["b"][0].sum()

    nnx.vmap(f, **mode)(v)
    assert jnp.array_equal(v["a"], array(3) + 1)
    assert jnp.array_equal(v["new"], array(3, 2).sum(1))


@in_every_mode
def test_metadata_changes_are_carried_out(mode):
    model = net()
    nnx.vmap(lambda m: m.w.set_metadata(note="changed"), **mode)(model)
    assert model.w.get_metadata() == SHOWN | {"note": "changed"}


def test_random_streams_advance():
    rngs = nnx.Rngs(0)
    split = rngs.split(3)
    keys = split.default.key[...]
    drawn = nnx.vmap(lambda r: (r.normal(), r.normal()))(split)
    expected = [[jax.random.normal(jax.random.fold_in(key, n)) for key in keys] for n in range(2)]
    assert jnp.array_equal(jnp.stack(drawn), jnp.array(expected))
    assert jnp.array_equal(split.default.count[...], jnp.full(3, 2))

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0}), None))
    def noise(rngs, scale):
        return rngs.normal() * scale

    assert not jnp.array_equal(noise(rngs, 1.0), noise(rngs, 1.0))
    assert rngs.default.key.shape == ()
    assert rngs.default.count[...] == 3


@in_every_mode
def test_collectives_work_by_axis_name(mode):
    @nnx.vmap(axis_name="batch", **mode)
    def f(v):
        v[...] = jax.lax.pmean(v[...], "batch")

    v = nnx.BatchStat(array(4))
    f(v)
    assert jnp.array_equal(v[...], jnp.full(4, 1.5))


@in_every_mode
def test_mismatched_sizes_are_named(mode):
    with pytest.raises(ValueError, match="model") as raised:
        nnx.vmap(lambda model, x: None, **mode)(net(3), array(4))
    assert "'x'" in str(raised.value)


PURE_ERRORS = {
    "in_axes too long": ({"in_axes": (0, 0)}, (array(3),), ValueError),
    "in_axes too short": ({"in_axes": ()}, (array(3),), ValueError),
    "in_axes of a wrong type": ({"in_axes": {"a": 0}}, (array(3),), TypeError),
    "in_axes with a wrong leaf": ({"in_axes": ("a",)}, (array(3),), TypeError),
    "in_axes no prefix": ({"in_axes": ((0, 0),)}, ([array(3)],), ValueError),
    "nothing mapped": ({"in_axes": None}, (array(3),), ValueError),
    "rank too low": ({}, (1.0,), ValueError),
    "no JAX type": ({}, ("text",), TypeError),
    "out_axes no prefix": ({"out_axes": (0, 0)}, (array(3),), ValueError),
    "out_axes None of a batched value": ({"out_axes": None}, (array(3),), ValueError),
    "no arguments": ({}, (), ValueError),
}


@pytest.mark.parametrize("case", PURE_ERRORS)
def test_errors_are_those_of_jax(case):
    options, args, error = PURE_ERRORS[case]
    for vmap in (jax.vmap, nnx.vmap):
        with pytest.raises(error):
            vmap(lambda *args: args[0] if args else 1.0, **options)(*args)


def test_an_exception_leaves_everything_as_it_was():
    model = net()
    before = jax.tree.leaves(model)

    def f(model):
        model.w[...] += 1
        model.extra = Count(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nnx.vmap(f)(model)
    assert all(a is b for a, b in zip(jax.tree.leaves(model), before, strict=True))
    assert not hasattr(model, "extra")
    nnx.vmap(step)(model, array(3, 2))


def test_captured_objects_can_be_read_but_not_written():
    model = net()
    y = nnx.vmap(lambda x: model.w[0] * x)(array(3))
    assert jnp.array_equal(y, array(3)[:, None] * model.w[0])
    with pytest.raises(nnx.errors.TraceContextError, match="Param"):
        nnx.vmap(lambda x: model.w.set_value(x))(array(3))
    with pytest.raises(nnx.errors.TraceContextError, match="Count"):
        jax.jit(lambda: nnx.vmap(lambda m: m.count.set_value(m.count + 1))(model))()
    assert jnp.array_equal(model.count[...], jnp.zeros(3))


@in_every_mode
def test_maps_nest(mode):
    v = nnx.Param(array(2, 3))

    @nnx.vmap(**mode)
    @nnx.vmap(**mode)
    def f(v):
        v[...] *= 2
        return v + 1

    y = f(v)
    assert jnp.array_equal(v[...], array(2, 3) * 2)
    assert jnp.array_equal(y, array(2, 3) * 2 + 1)


def test_keyword_arguments_at_positions_that_have_an_axis():
    @nnx.vmap(in_axes=(0, None))
    def scaled(x, y):
        return x * y

    assert scaled(y=jnp.arange(3.0), x=jnp.arange(2.0)).tolist() == [[0, 0, 0], [0, 1, 2]]
    assert nnx.vmap(lambda x, *, y: x * y, in_axes=(0,))(jnp.arange(2), y=jnp.arange(2)).shape == (
        2,
    )
