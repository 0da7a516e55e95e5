"""Calls of a jitted function on objects that it knows: as quick as may be, and never outdated."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnx_reference as nnx

MODES = {
    "tree-mode": {"graph": False, "graph_updates": False},
    "graph-mode": {"graph": True, "graph_updates": False},
    "graph-updates": {"graph": True, "graph_updates": True},
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


class Layer(nnx.Module):
    def __init__(self, value):
        self.weight = nnx.Param(jnp.full(2, float(value)))
        self.scale = 2


@dataclasses.dataclass(unsafe_hash=True)
class Settings:
    """Equal by value, and yet changeable: what a static attribute had better not be."""

    factor: int = 3


class Model(nnx.Module):
    def __init__(self, layers=2):
        self.layers = nnx.List([Layer(n + 1) for n in range(layers)])
        self.named = nnx.Dict({"first": Layer(7)})
        self.plain = nnx.data([nnx.BatchStat(jnp.zeros(2))])
        self.table = nnx.data({"a": nnx.BatchStat(jnp.ones(2))})
        self.settings = Settings()
        self.array = jnp.ones(2)
        self.count = nnx.Variable(jnp.int32(0))


def step(model, x):
    """Reads everything there is in a model, and writes to every Variable of floats."""
    parts = {"layers": list(model.layers), "named": dict(model.named)}
    total = x * model.settings.factor + model.array
    for layer in [*parts["layers"], *parts["named"].values()]:
        layer.weight[...] += x
        total = total + layer.scale * layer.weight + len(layer.weight.get_metadata())
        for extra in [value for name, value in sorted(vars(layer).items()) if name == "extra"]:
            extra[...] += 1
            total = total + 100 * extra
    for stat in [*model.plain, *model.table.values()]:
        stat[...] *= 2
        total = total + stat
    model.count[...] += 1
    return total, model.count[...] + len(parts["layers"])


def record(model):
    """Describes a model: structure and values."""
    graphdef, state = nnx.split(model, graph=True)
    return graphdef, [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(state)]


def append(model):
    model.layers.append(Layer(len(model.layers)))


def pop(model):
    if len(model.layers) > 1:
        model.layers.pop()


def replace(model):
    model.layers[0] = Layer(9)


def replace_variable(model):
    model.layers[0].weight = nnx.Param(jnp.full(2, 5.0))


def change_class(model):
    model.layers[0].weight = nnx.BatchStat(jnp.full(2, 5.0))


def add_attribute(model):
    model.layers[0].extra = nnx.BatchStat(jnp.zeros(2))


def delete_attribute(model):
    if "extra" in vars(model.layers[0]):
        del model.layers[0].extra


def set_static(model):
    model.layers[0].scale += 1


def set_static_to_an_equal_number(model):
    model.layers[0].scale = float(model.layers[0].scale)


def change_static_inside(model):
    model.settings.factor += 1


def set_array(model):
    model.array = model.array + 1


def set_key(model):
    model.named["second"] = Layer(8)


def set_metadata(model):
    weight = model.layers[0].weight
    weight.set_metadata(**{f"m{len(weight.get_metadata())}": 1})


def copy_metadata(model):
    model.layers[0].weight.copy_from(model.layers[0].weight.replace(copied=True))


def append_to_a_plain_list(model):
    model.plain.append(nnx.BatchStat(jnp.full(2, 3.0)))


def set_in_a_plain_dict(model):
    model.table["b"] = nnx.BatchStat(jnp.full(2, 4.0))


def replace_in_a_plain_list(model):
    model.plain[0] = nnx.BatchStat(jnp.full(2, 6.0))


def set_behind_its_back(model):
    vars(model.layers[0])["scale"] = 11


def write(model):
    model.layers[0].weight[...] = 4.0


def change_dtype(model):
    model.count.set_raw_value(model.count[...].astype(jnp.float32))


EDITS = [
    append,
    pop,
    replace,
    replace_variable,
    change_class,
    add_attribute,
    delete_attribute,
    set_static,
    set_static_to_an_equal_number,
    change_static_inside,
    set_array,
    set_key,
    set_metadata,
    copy_metadata,
    append_to_a_plain_list,
    set_in_a_plain_dict,
    replace_in_a_plain_list,
    set_behind_its_back,
    write,
    change_dtype,
]


def check(model, jitted):
    """Calls a jitted step and compares with the step on a copy."""
    copy = nnx.clone(model, graph=True)
    expected = step(copy, jnp.ones(2))
    given = jitted(model, jnp.ones(2))
    assert [x.tolist() for x in given] == [x.tolist() for x in expected]
    assert record(model) == record(copy)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_change_is_seen_at_the_next_call(edit):
    model, jitted = Model(), nnx.jit(step, **MODES["tree-mode"])
    check(model, jitted)
    check(model, jitted)
    edit(model)
    check(model, jitted)
    check(model, jitted)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(edits=st.lists(st.sampled_from(EDITS), max_size=6))
def test_any_changes_are_seen_at_the_next_call(edits):
    model, jitted = Model(), nnx.jit(step)
    for edit in edits:
        edit(model)
        check(model, jitted)
        check(model, jitted)


def test_shared_references_are_seen_at_the_next_call():
    model, jitted = Model(), nnx.jit(step)
    check(model, jitted)
    model.layers[1] = model.layers[0]
    check(model, jitted)
    model.layers[1] = Layer(3)
    check(model, jitted)
    tree = nnx.jit(step, **MODES["tree-mode"])
    tree(model, jnp.ones(2))
    model.layers[1].weight = model.layers[0].weight
    with pytest.raises(ValueError, match=r"layers\[0\].weight and model.layers\[1\].weight"):
        tree(model, jnp.ones(2))


class Reference(nnx.Module):
    def __init__(self, variable):
        self.variable = variable


@pytest.mark.parametrize(
    "call",
    [
        lambda f, a, b: f(a, b),
        lambda f, a, b: f(a, b=b),
        lambda f, a, b: f((a, [b])),
    ],
    ids=["positions", "keyword", "containers"],
)
@pytest.mark.parametrize("shared", [False, True])
def test_models_of_different_calls_share_what_they_share(shared, call):
    """What one pair of models shares says nothing of a pair that has never met before."""

    def f(a, b=None):
        a, b = (a[0], a[1][0]) if b is None else (a, b)
        a.variable[...] += 1
        b.variable[...] *= 10

    jitted = nnx.jit(f, **MODES["graph-mode"])
    v, w, x = (nnx.Variable(jnp.float32(n)) for n in (1, 2, 3))
    pairs = [(v, v), (w, w)] if shared else [(v, x), (w, v)]
    (a, b), (c, d) = [tuple(map(Reference, pair)) for pair in pairs]
    for _ in range(2):
        call(jitted, a, b)
        call(jitted, c, d)
    for variable, value in ((v, 1.0), (w, 2.0)):
        variable[...] = jnp.float32(value)
    call(jitted, a, d)
    assert (v[...], w[...]) == ((2, 20) if shared else (20, 2))


def test_a_function_that_changes_the_structure_does_so_at_every_call():
    def grow(model):
        model.layers.append(Layer(1))
        return len(model.layers)

    model, jitted = Model(), nnx.jit(grow, **MODES["graph-updates"])
    assert [int(jitted(model)) for _ in range(3)] == [3, 4, 5]


def test_an_outcome_may_depend_on_the_shape():
    def f(counter, other, x):
        if x.shape[0] > 2:
            other.set_metadata(long=True)
            other[...] += 10
        counter[...] += 1

    model, jitted = Model(), nnx.jit(lambda m, x: f(m.count, m.plain[0], x))
    for length in (1, 1, 3, 3, 1, 1):
        jitted(model, jnp.ones(length))
    assert model.count[...] == 6
    assert model.plain[0][...].tolist() == [20.0, 20.0]
    assert model.plain[0].long


@each_mode
def test_several_models_and_arguments_of_every_kind(mode):
    @nnx.jit(**mode)
    def f(first, x, second, batch, *, flag=None):
        first.count[...] += x
        second.count[...] += batch["a"][0] * (1 if flag is None else flag)
        return first.count + second.count

    models = [Model(1), Model(2), Model(1)]
    for a, b in [(0, 1), (0, 1), (1, 0), (0, 2), (2, 0), (0, 2)]:
        f(models[a], 1, models[b], {"a": [jnp.int32(10)]})
        f(models[a], jnp.int32(1), models[b], {"a": [np.int32(10)]}, flag=2)
    assert [int(model.count[...]) for model in models] == [68, 62, 62]


def test_one_model_at_several_places():
    f = nnx.jit(lambda a, b: (a.count.set_value(a.count + 1), b.count.set_value(b.count * 2))[:0])
    model, other = Model(), Model()
    for a, b in [(model, model), (model, other), (model, model), (other, model)]:
        f(a, b)
    assert (model.count[...], other.count[...]) == (16, 1)


def test_the_first_call_of_a_reader_is_not_the_last():
    """A trace that writes nothing is remembered as well as one that does."""
    model = Model()
    read, write = nnx.jit(lambda m: m.count[...]), nnx.jit(lambda m: m.count.set_value(m.count + 1))
    seen = []
    for _ in range(3):
        write(model)
        seen.append(int(read(model)))
    assert seen == [1, 2, 3]


def test_donated_variables_are_replaced_at_every_call():
    model = Model()
    jitted = nnx.jit(lambda m, x: m.count.set_value(m.count + x), donate_argnums=(0,))
    for n in range(3):
        before = model.layers[0].weight[...]
        jitted(model, 1)
        assert before.is_deleted()
        assert model.count[...] == n + 1
        assert model.layers[0].weight[...].tolist() == [1.0, 1.0]


class Tower(nnx.Module):
    def __init__(self, layers):
        self.layers = nnx.List([Layer(n) for n in range(layers)])
        self.count = nnx.Variable(jnp.int32(0))

    def tick(self):
        for layer in self.layers:
            layer.weight[...] += 1
        self.count[...] += 1


@each_mode
def test_nothing_is_traversed_while_the_structure_stays(mode, python_calls):
    tick = nnx.jit(Tower.tick, **mode)
    counts = []
    for size in (1, 50):
        tower = Tower(size)
        tick(tower)
        tick(tower)
        counts.append(python_calls(tick, tower))
        assert tower.layers[0].weight[...].tolist() == [3.0, 3.0]
    assert counts[0] == counts[1] < 10


@pytest.mark.parametrize(
    "call",
    [
        lambda tick, tower, other: tick(tower=tower, others=[other]),
        lambda tick, tower, other: tick(tower, others={"a": other}),
        lambda tick, tower, other: tick(tower, (other, jnp.ones(2), None)),
    ],
    ids=["keywords", "in-a-dict", "in-a-tuple"],
)
def test_objects_in_containers_and_keywords_are_known_too(call, python_calls):
    traces = []

    @nnx.jit
    def tick(tower, others):
        traces.append(1)
        for one in [tower, *jax.tree.leaves(others, is_leaf=lambda x: isinstance(x, Tower))]:
            if isinstance(one, Tower):
                one.tick()

    counts = []
    for size in (1, 50):
        tower, other = Tower(size), Tower(size)
        call(tick, tower, other)
        call(tick, tower, other)
        counts.append(python_calls(call, tick, tower, other))
        assert (int(tower.count[...]), int(other.count[...])) == (3, 3)
        other.layers.append(Layer(1))
        call(tick, tower, other)
        assert other.layers[-1].weight[...].tolist() == [2.0, 2.0]
        call(tick, tower, tower)
        assert (int(tower.count[...]), int(other.count[...])) == (6, 4)
    assert counts[0] == counts[1]
    assert len(traces) == 6


def test_a_wrapper_made_anew_traces_nothing_anew():
    traces = []

    def f(model):
        traces.append(1)
        model.count[...] += 1

    model = Model()
    for _ in range(3):
        nnx.jit(f)(model)
        nnx.jit(f, keep_unused=True)(model)
    assert (len(traces), int(model.count[...])) == (2, 6)


def test_models_and_functions_are_not_kept_alive():
    def scope():
        captured = jnp.ones(3)

        def f(model, other):
            model.count[...] += 1
            return captured + other.array[0]

        return nnx.jit(f), weakref.ref(f), weakref.ref(captured)

    jitted, function, captured = scope()
    model, other = Model(), Model()
    for _ in range(3):
        jitted(model, other)
    kernel = weakref.ref(other.layers[0].weight)
    buffer = weakref.ref(other.layers[0].weight[...])
    del other
    assert kernel() is None
    assert buffer() is None
    replaced = weakref.ref(model.layers[0].weight)
    model.layers[0] = Layer(3)
    assert replaced() is None
    del jitted
    gc.collect()
    assert function() is None
    assert captured() is None


def test_threads_do_not_mix_models():
    tick = nnx.jit(Tower.tick)
    towers = [Tower(2) for _ in range(4)]

    def work(tower, times):
        for _ in range(times):
            tick(tower)

    threads = [threading.Thread(target=work, args=(t, 10 * n)) for n, t in enumerate(towers, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(tower.count[...]) for tower in towers] == [10, 20, 30, 40]


def test_stages():
    tower = Tower(1)
    tick = nnx.jit(Tower.tick)
    lowered = tick.trace(tower).lower()
    assert "stablehlo.add" in lowered.as_text()
    executable = lowered.compile()
    assert tower.count[...] == 0
    executable(tower)
    assert (tower.count[...], executable.out_info is not None) == (1, True)
    with pytest.raises(TypeError, match="structure"):
        executable(Tower(2))
    assert tick.lower(tower).compile()(Tower(1)) is None


def test_the_rest_of_a_partial():
    tower = Tower(1)

    def add(tower, x, times=1):
        tower.count[...] += x * times
        return tower.count[...]

    add_to = nnx.jit_partial(add, tower)
    assert [int(add_to(1)), int(add_to(2, times=3))] == [1, 7]
    assert tower.count[...] == 7


def test_call_splits_again():
    graphdef, state = nnx.split({"a": Tower(1), "b": Tower(2)})
    output, (graphdef, state) = jax.jit(lambda pair: nnx.call(pair)["b"].tick())((graphdef, state))
    assert output is None
    towers = nnx.merge(graphdef, state)
    assert (int(towers["a"].count[...]), int(towers["b"].count[...])) == (0, 1)


def test_parameters_may_have_any_name():
    @nnx.jit(donate_argnums=(0,))
    def add(donated, groups):
        return donated[...] + groups[...]

    one, other = nnx.Param(jnp.ones(2)), nnx.Param(jnp.ones(2))
    assert add(one, other).tolist() == [2.0, 2.0]
    assert add(groups=one, donated=other).tolist() == [2.0, 2.0]
