"""Propagation: what a function under `jax.jit` writes to a hijax Variable is seen outside."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnx_spec import DOCUMENTED, MUST, SOUND, TESTED, clause, needs
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import Counted, assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import assert_no_tracers
from nnx_spec.plans import classes


@clause(
    "HJX-008",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_variable_to_hijax",
    needs={"hijax.updates"},
)
class TestArguments:
    """What a `jax.jit` function does in place to a hijax Variable that is its argument shows
    outside.

    A scalar that it increments is one more after every call, and the function is traced once. The
    Variable stays the same object with its class and metadata, and the function may return values
    besides.
    """

    @pytest.mark.parametrize("dtype", ["int32", "float32"])
    def test_increment(self, nnx, dtype):
        def increment(v):
            v[...] += 1

        increment = Counted(increment)
        v = nnx.Param(array(5, dtype), hijax=True, tag="t")
        for calls in range(1, 4):
            assert increment(v) is None
            assert_holds(nnx, v, nnx.Param, np.array(5 + calls, dtype), tag="t")
        assert increment.traces == 1

    def test_between_calls(self, nnx):
        @jax.jit
        def double(v):
            v[...] *= 2
            return v[...] + 1

        v = nnx.Variable(array(1), hijax=True)
        assert double(v) == 3
        v[...] += 3
        assert double(v) == 11
        assert double(v) == 21
        assert_holds(nnx, v, nnx.Variable, np.float32(20))

    def test_each_variable_gets_its_own(self, nnx):
        def step(first, second):
            first[...] += 1
            second[...] += 10

        step = Counted(step)
        a, b = (nnx.Variable(array(n), hijax=True) for n in (1, 2))
        step(a, b)
        step(b, a)
        assert (float(a[...]), float(b[...])) == (12, 13)
        assert step.traces == 1

    def test_spellings(self, nnx):
        @jax.jit
        def write(model, by_name):
            model.a[...] = model.a[...] + 1
            model.a.set_value(model.a.get_value() * 3)
            model.layers[0][1] -= 4
            by_name["x"].set_value(jnp.float32(9))

        count = classes(nnx).Count
        a, vector, x = array(2), array([6, 7]), array(0)
        model = net(
            nnx,
            a=count(a, hijax=True, note="n"),
            layers=nnx.List([nnx.Param(vector, hijax=True), nnx.Param(array(8), hijax=True)]),
        )
        variables = [model.a, *model.layers, nnx.BatchStat(x, hijax=True)]
        write(model, by_name={"x": variables[3]})
        assert model.a is variables[0]
        assert_holds(nnx, model.a, count, np.float32(9), note="n")
        assert_holds(nnx, variables[1], nnx.Param, np.float32([6, 3]))
        assert_holds(nnx, variables[2], nnx.Param, np.float32(8))
        assert_holds(nnx, variables[3], nnx.BatchStat, np.float32(9))
        assert (a.item(), vector.tolist(), x.item()) == (2, [6, 7], 0)


INPUTS = np.float32([[1, 2], [0, 1], [2, -1]])
TARGETS = np.float32([[1], [0], [2]])
WEIGHTS = {"kernel": np.float32([[0.5], [-1]]), "bias": np.float32([0.25])}
OPTIMIZER = optax.sgd(1e-1, momentum=0.5)


def loss_of(kernel, bias):
    """Returns the mean squared error of a layer with these weights."""
    return jnp.mean((INPUTS @ kernel + bias - TARGETS) ** 2)


@functools.cache
def trained(steps):
    """Trains the weights in plain JAX; returns them and the losses."""

    @jax.jit
    def step(weights, state):
        loss, gradients = jax.value_and_grad(lambda weights: loss_of(**weights))(weights)
        updates, state = OPTIMIZER.update(gradients, state, weights)
        return loss, optax.apply_updates(weights, updates), state

    weights, state, losses = WEIGHTS, OPTIMIZER.init(WEIGHTS), []
    for _ in range(steps):
        loss, weights, state = step(weights, state)
        losses.append(loss)
    return weights, np.array(losses)


@clause("HJX-009", MUST, DOCUMENTED, source="hijax/hijax#hijax", needs={"hijax.updates"})
class TestClosures:
    """What a `jax.jit` function does to a hijax Variable that it captures shows outside.

    So it is with a Module of them, with a method of one, and with an Optimizer: a training step
    that captures both model and optimizer trains, as the guide's first one does.
    """

    def test_variable(self, nnx):
        v = nnx.Variable(array(5), hijax=True, tag="t")

        @Counted
        def increment(x):
            v[...] += x
            return v[...]

        assert [float(increment(x)) for x in (1.0, 2.0, 3.0)] == [6, 8, 11]
        assert_holds(nnx, v, nnx.Variable, np.float32(11), tag="t")
        assert increment.traces == 1

    def test_module(self, nnx):
        model = net(
            nnx,
            w=nnx.Param(array([1, 2]), hijax=True),
            inner=net(nnx, count=nnx.BatchStat(array(0, "int32"), hijax=True)),
            untouched=nnx.Param(array(3), hijax=True),
        )

        @jax.jit
        def step():
            model.w[...] *= 2
            model.inner.count[...] += 1

        for _ in range(2):
            step()
        assert_holds(nnx, model.w, nnx.Param, np.float32([4, 8]))
        assert_holds(nnx, model.inner.count, nnx.BatchStat, np.int32(2))
        assert_holds(nnx, model.untouched, nnx.Param, np.float32(3))

    def test_method(self, nnx):
        class Counter(nnx.Module):
            def __init__(self):
                self.count = nnx.BatchStat(array(0, "int32"), hijax=True)

            def __call__(self, x):
                self.count[...] += 1
                return x * self.count

        counter = Counter()
        call = jax.jit(counter.__call__)
        assert [int(call(10)) for _ in range(3)] == [10, 20, 30]
        assert_holds(nnx, counter.count, nnx.BatchStat, np.int32(3))

    def test_captured_and_passed(self, nnx):
        total = nnx.Variable(array(0), hijax=True)

        @jax.jit
        def add(v):
            total[...] += v[...]
            v[...] = -v[...]

        v = nnx.Param(array(3), hijax=True)
        for _ in range(2):
            add(v)
        assert (float(total[...]), float(v[...])) == (0, 3)
        add(v)
        assert (float(total[...]), float(v[...])) == (3, -3)

    @pytest.mark.parametrize(
        "view", [pytest.param("mutable", marks=needs("mutable-flag")), "hijax"]
    )
    def test_training_step(self, nnx, view):
        with nnx.var_defaults(hijax=True):
            model = net(nnx, **{k: nnx.Param(jnp.asarray(w)) for k, w in WEIGHTS.items()})
            optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)

        @Counted
        def step():
            differentiable = with_vars(nnx, model, **{view: False})
            loss, grads = jax.value_and_grad(lambda m: loss_of(m.kernel[...], m.bias[...]))(
                differentiable
            )
            optimizer.update(model, grads)
            return loss

        losses = np.array([step() for _ in range(3)])
        weights, expected = trained(steps=3)
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for name, weight in weights.items():
            np.testing.assert_allclose(getattr(model, name)[...], weight, rtol=1e-5)
        assert losses[0] > losses[1] > losses[2]
        assert int(optimizer.step[...]) == 3
        assert step.traces == 1
        assert_no_tracers(nnx, model, optimizer)

    def test_the_guides_losses(self, nnx):
        with nnx.var_defaults(hijax=True):
            rngs = nnx.Rngs(0)
            model = nnx.Linear(2, 3, rngs=rngs)
            optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

        @jax.jit
        def step(x, y):
            view = with_vars(nnx, model, hijax=False)
            loss, grads = jax.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(view)
            optimizer.update(model, grads)
            return loss

        x, y = rngs.uniform((4, 2)), rngs.uniform((4, 3))
        losses = np.array([step(x, y) for _ in range(3)])
        np.testing.assert_allclose(losses, [0.85250294, 0.8165137, 0.7814907], rtol=1e-5)


@clause(
    "HJX-010",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_pytree_value",
    needs={"hijax.updates"},
)
class TestItems:
    """Items of a pytree value that a `jax.jit` function updates one by one are all written back.

    Those that it leaves alone keep their values, and the value its structure.
    """

    def test_dict(self, nnx):
        @jax.jit
        def step(v):
            v["a"] += 1
            v["b"] *= 2

        v = nnx.Variable({"a": array(0), "b": array(2), "c": array(7)}, hijax=True)
        for _ in range(2):
            step(v)
        expected = {"a": np.float32(2), "b": np.float32(8), "c": np.float32(7)}
        assert_holds(nnx, v, nnx.Variable, expected)

    def test_list(self, nnx):
        v = nnx.Cache([array([1, 2]), array(3, "int32"), array(4)], hijax=True, tag="t")

        @jax.jit
        def step():
            v[0] = v[0] * v[2]
            v[-1] += 1

        for _ in range(2):
            step()
        expected = [np.float32([20, 40]), np.int32(3), np.float32(6)]
        assert_holds(nnx, v, nnx.Cache, expected, tag="t")

    def test_nested(self, nnx):
        @jax.jit
        def step(v):
            v["pair"] = (v["pair"][1], v["pair"][0] + 1)
            v["inner"] = {"x": v["inner"]["x"] * 2, "y": v["inner"]["y"]}

        value = {"pair": (array(1), array(10)), "inner": {"x": array(3), "y": array([4, 5])}}
        v = nnx.Variable(value, hijax=True)
        step(v)
        expected = {
            "pair": (np.float32(10), np.float32(2)),
            "inner": {"x": np.float32(6), "y": np.float32([4, 5])},
        }
        assert_holds(nnx, v, nnx.Variable, expected)


@clause(
    "HJX-014",
    MUST,
    SOUND,
    source="a read that misses a write before it computes with what is gone",
    needs={"hijax.updates"},
)
class TestOrder:
    """Inside a `jax.jit` function, a read of a hijax Variable sees the writes before it.

    This holds across functions: one under `jax.jit` that is called within another sees what its
    caller has written, and its caller what it has written, in the order of the program. Outside,
    the last write shows.
    """

    def test_read_after_write(self, nnx):
        @jax.jit
        def f(v):
            seen = [v[...]]
            for n in (1, 2):
                v[...] = v[...] * 10 + n
                seen.append(v[...])
            return seen

        v = nnx.Variable(array(3), hijax=True)
        assert [float(x) for x in f(v)] == [3, 31, 312]
        assert float(v[...]) == 312

    def test_read_of_a_constant(self, nnx):
        @jax.jit
        def f(v):
            v[...] = jnp.float32(4)
            return v[...] + 1

        v = nnx.Variable(array(3), hijax=True)
        assert float(f(v)) == 5
        assert float(v[...]) == 4

    def test_read_of_a_constant_item(self, nnx):
        @jax.jit
        def f(v):
            v["k"] = jnp.float32(4)
            return v["k"] + 1

        v = nnx.Variable({"k": array(3)}, hijax=True)
        assert float(f(v)) == 5
        assert float(v["k"]) == 4

    def test_part_after_part(self, nnx):
        @jax.jit
        def f(v):
            v[0] = v[1] + 1
            v[1] = v[0] * 2
            v[:2] += 100
            return v[...].sum()

        v = nnx.Variable(array([1, 2, 3]), hijax=True)
        assert float(f(v)) == 103 + 106 + 3
        assert v[...].tolist() == [103, 106, 3]

    @pytest.mark.parametrize("captured", [False, True], ids=["arguments", "captured"])
    def test_nested(self, nnx, captured):
        v = nnx.Variable(array(0, "int32"), hijax=True)

        @jax.jit
        def inner(*args):
            (w,) = args or (v,)
            w[...] = w[...] * 10 + 2
            return w[...]

        @jax.jit
        def outer(*args):
            (w,) = args or (v,)
            w[...] = w[...] * 10 + 1
            first = inner(*args)
            w[...] = w[...] * 10 + 3
            return first, inner(*args), w[...]

        args = () if captured else (v,)
        assert [int(x) for x in outer(*args)] == [12, 1232, 1232]
        assert_holds(nnx, v, nnx.Variable, np.int32(1232))
        assert int(outer(*args)[2]) == 12321232
        assert int(v[...]) == 12321232

    def test_three_deep(self, nnx):
        depths = []

        def write(v, n):
            v[...] = v[...] * 10 + n
            if n < 3:
                jax.jit(write, static_argnums=1)(v, n + 1)
                v[...] = v[...] * 10 + n
            depths.append(n)

        v = nnx.Variable(array(0, "int32"), hijax=True)
        jax.jit(write, static_argnums=1)(v, 1)
        assert int(v[...]) == 12321
        assert depths == [3, 2, 1]
        assert_no_tracers(nnx, v)
