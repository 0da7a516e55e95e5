"""nnx.jit: results, propagation, tracing once, static and donated arguments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
both = pytest.mark.parametrize("mode", MODES, ids=["updates", "graph-mode", "tree-mode"])


class Counter(nnx.Module):
    def __init__(self, start=0):
        self.kernel = nnx.Param(jnp.arange(3.0))
        self.count = nnx.BatchStat(jnp.asarray(start))

    def step(self, x):
        self.count[...] += 1
        return self.kernel[...] * x


@both
def test_results_and_updates_are_those_of_the_eager_call(mode):
    counter = Counter()
    kernel, count, buffer = counter.kernel, counter.count, counter.kernel[...]
    step = nnx.jit(Counter.step, **mode)
    for n in range(3):
        assert step(counter, 2.0).tolist() == [0.0, 2.0, 4.0]
        assert counter.count[...] == n + 1
    assert (counter.kernel is kernel, counter.count is count) == (True, True)
    assert counter.kernel[...] is buffer


@both
def test_it_traces_once_for_equal_structures(mode):
    @nnx.jit(**mode)
    def step(counter, x):
        traces.append(x)
        return counter.step(x)

    traces = []
    for start in range(3):
        step(Counter(start), jnp.float32(start))
    assert len(traces) == 1
    step(Counter(), jnp.ones(3))
    other = Counter()
    other.count = nnx.Cache(jnp.asarray(0))
    step(other, jnp.float32(0))
    assert len(traces) == 3
    assert other.count[...] == 1


def test_it_decorates_functions_methods_and_partials():
    class Doubling(Counter):
        @nnx.jit
        def call(self, x, *, scale=2.0):
            return self.step(x) * scale

    doubling = Doubling()
    assert doubling.call(1.0).tolist() == [0.0, 2.0, 4.0]
    assert doubling.call(1.0, scale=1.0).tolist() == [0.0, 1.0, 2.0]
    assert nnx.jit(functools.partial(Counter.step, x=3.0))(doubling).tolist() == [0.0, 3.0, 6.0]
    assert doubling.count[...] == 3
    assert Doubling.call.__name__ == "call"


def test_new_attributes_arrive_with_graph_updates_only():
    def grow(counter):
        counter.extra = nnx.Cache(counter.kernel[...].sum())
        counter.name = "grown"
        return counter.extra

    counter = Counter()
    extra = nnx.jit(grow)(counter)
    assert counter.extra is extra
    assert (extra[...], counter.name) == (3.0, "grown")
    counter = Counter()
    assert nnx.jit(grow, graph_updates=False)(counter)[...] == 3.0
    assert not hasattr(counter, "extra")


def test_sharing_is_kept_in_graph_mode_and_refused_in_tree_mode():
    counter = Counter()

    def both_ways(a, b):
        a.count[...] += 1
        return b.count[...] + (1 if a is b else 0)

    assert nnx.jit(both_ways)(counter, counter) == 2
    with pytest.raises(ValueError, match=r"a.*and b"):
        nnx.jit(both_ways, graph=False)(counter, counter)
    assert counter.count[...] == 1


def test_an_exception_changes_nothing():
    @nnx.jit
    def fail(counter):
        counter.count[...] += 1
        raise ZeroDivisionError

    counter = Counter()
    with pytest.raises(ZeroDivisionError):
        fail(counter)
    assert counter.count[...] == 0


def test_captured_variables_may_be_read_and_not_written():
    counter = Counter()
    assert nnx.jit(lambda: counter.kernel[...] + 1)().tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(nnx.errors.TraceContextError, match="BatchStat"):
        nnx.jit(lambda: counter.step(1.0))()
    assert counter.count[...] == 0


@pytest.mark.parametrize(
    "option",
    [
        {"static_argnums": 1},
        {"static_argnames": "power"},
        {"static_argnums": (1,), "static_argnames": ("power",)},
        {"static_argnums": -1},
    ],
    ids=str,
)
def test_static_arguments_are_traced_anew_for_another_value(option):
    @nnx.jit(**option)
    def power_of(counter, power):
        traces.append(power)
        assert isinstance(power, int)
        counter.count[...] += power
        return counter.kernel[...] ** power

    traces, counter = [], Counter()
    assert power_of(counter, 2).tolist() == [0.0, 1.0, 4.0]
    assert power_of(counter, 2).tolist() == [0.0, 1.0, 4.0]
    assert power_of(counter, 3).tolist() == [0.0, 1.0, 8.0]
    if option != {"static_argnums": -1}:
        assert power_of(counter, power=3).tolist() == [0.0, 1.0, 8.0]
    assert set(traces) == {2, 3}
    assert traces[:2] == [2, 3]


def test_static_values_of_different_types_are_different():
    traces = []
    typed = nnx.jit(lambda x, flag: traces.append(flag) or x, static_argnums=1)
    for flag in (1, True, 1.0):
        typed(0, flag)
    assert [type(flag) for flag in traces] == [int, bool, float]


def test_bad_static_arguments_are_refused():
    with pytest.raises(ValueError, match=r"hashable.*\[5\]"):
        nnx.jit(lambda x, n: x, static_argnums=1)(1, [5])
    with pytest.raises(ValueError, match=r"'m'.*takes n, x"):
        nnx.jit(lambda x, n: x, static_argnames="m")
    with pytest.raises(ValueError, match="donate_argnames has 'm'"):
        nnx.jit(lambda x, n: x, donate_argnames="m")


@both
@pytest.mark.parametrize("option", [{"donate_argnums": 0}, {"donate_argnames": "counter"}], ids=str)
def test_donated_variables_hold_what_comes_out(mode, option):
    @nnx.jit(**option, **mode)
    def step(counter, other):
        counter.count[...] += 1
        return other.kernel[...] + counter.kernel[...]

    counter, other = Counter(), Counter()
    old, kept = [v.get_value() for v in (counter.kernel, counter.count)], other.kernel[...]
    assert step(counter=counter, other=other).tolist() == [0.0, 2.0, 4.0]
    assert step(counter, other).tolist() == [0.0, 2.0, 4.0]
    assert all(buffer.is_deleted() for buffer in old)
    assert (kept.is_deleted(), other.kernel[...] is kept) == (False, True)
    assert counter.count[...] == 2
    assert counter.kernel[...].tolist() == [0.0, 1.0, 2.0]


def test_what_is_also_reached_from_elsewhere_is_not_donated():
    counter = Counter()
    buffer = counter.kernel[...]
    nnx.jit(lambda a, b: a.step(1.0), donate_argnums=0)(counter, counter.kernel)
    assert not buffer.is_deleted()
    assert counter.count[...] == 1


def test_arrays_are_donated_as_jax_does():
    x = jnp.arange(4.0)
    assert nnx.jit(lambda x: x + 1, donate_argnums=0)(x).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert x.is_deleted()


MESH = Mesh(np.array(jax.devices()[:8]), ("data",))
ROWS, WHOLE = NamedSharding(MESH, PartitionSpec("data")), NamedSharding(MESH, PartitionSpec())


class Rows(nnx.Module):
    def __init__(self):
        self.kernel = nnx.Param(jnp.arange(16.0).reshape(8, 2))
        self.count = nnx.BatchStat(jnp.zeros(()))

    def step(self, x):
        self.count[...] += 1
        return self.kernel[...] * x


def test_each_group_of_variables_has_its_sharding_in_and_out():
    split = nnx.StateSharding({nnx.Param: ROWS, ...: WHOLE})
    step = nnx.jit(Rows.step, in_shardings=(split, None), out_shardings=WHOLE)
    rows = Rows()
    for n in range(3):
        y = step(rows, 2.0)
        assert y.sharding.is_equivalent_to(WHOLE, 2)
        assert rows.count[...].sharding.is_equivalent_to(WHOLE, 0)
        assert rows.count[...] == n + 1
        assert y.tolist() == (2 * np.arange(16.0).reshape(8, 2)).tolist()


@both
def test_a_sharding_at_an_object_holds_for_all_in_it(mode):
    pair = nnx.Dict(a=nnx.Param(jnp.arange(8.0)), b=nnx.Param(jnp.zeros((8, 2))))
    double = nnx.jit(lambda pair: pair["a"].set_value(pair["a"] * 2), in_shardings=ROWS, **mode)
    double(pair)
    assert pair["a"][...].sharding.is_equivalent_to(ROWS, 1)
    assert pair["a"][...].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]


def test_a_variable_has_one_sharding():
    rows = Rows()
    f = nnx.jit(lambda rows, kernel: None, in_shardings=(WHOLE, ROWS))
    with pytest.raises(ValueError, match=r"kernel.*rows\.kernel|rows\.kernel.*kernel"):
        f(rows, rows.kernel)


def test_shardings_are_not_for_keyword_arguments():
    step = nnx.jit(Rows.step, in_shardings=(WHOLE, None))
    with pytest.raises(ValueError, match="positional arguments"):
        step(Rows(), x=2.0)


def test_shapes_of_a_compiled_function():
    counter = Counter()
    found = nnx.jit(Counter.step, static_argnames="x").eval_shape(counter, x=2.0)
    assert (found.shape, found.dtype, int(counter.count[...])) == ((3,), jnp.float32, 0)
