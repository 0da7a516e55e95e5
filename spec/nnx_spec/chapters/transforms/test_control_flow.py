"""cond, switch, while_loop and fori_loop of functions that change objects."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause, stands_on
from nnx_spec.chapters.transforms.axes import counted
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, assert_no_tracers, snapshot
from nnx_spec.plans import classes


def model_of(nnx):
    """Makes a Module with a parameter, a statistic in another Module, and a count."""
    own = classes(nnx)
    model = own.Net()
    model.kernel = nnx.Param(counted((2,), start=1), tag="red")
    model.block = own.Net()
    model.block.mean = nnx.BatchStat(jnp.zeros(2))
    model.count = own.Count(jnp.int32(0))
    return model


def train(model, x):
    """Changes the parameter and the statistic."""
    model.block.mean[...] = model.kernel + x
    model.kernel[...] *= 2
    return x + 1, model.kernel[...] * 1


def count(model, x):
    """Changes the count."""
    model.count[...] += 1
    return x * 2, model.kernel - x


def leave(model, x):
    """Changes nothing."""
    return -x, model.kernel * x


BRANCHES = (train, count, leave)
X = np.float32(3)


def run_in_turn(nnx, call, numbers):
    """Checks a call `call(number, model, x)` against the branch of that number, again and again."""
    model, plain = model_of(nnx), model_of(nnx)
    for number in numbers:
        found, expected = call(number, model, jnp.asarray(X)), BRANCHES[number](plain, X)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert snapshot(nnx, model) == snapshot(nnx, plain)


def shape(model, x):
    """Gives a Variable another shape."""
    model.block.mean.set_value(counted((3,)))
    return leave(model, x)


def dtype(model, x):
    """Gives a Variable another dtype."""
    model.block.mean.set_value(counted((2,), "int32"))
    return leave(model, x)


def output(model, x):
    """Returns another structure."""
    return {"x": x}


def output_shape(model, x):
    """Returns another shape."""
    return counted((2,)), counted((2,))


def attribute(model, x):
    """Adds a Variable, of the class of another."""
    model.extra = type(model.count)(x)
    return leave(model, x)


@clause("TRX-021", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.cond")
class TestBranches:
    """`cond` and `switch` give what the chosen branch returns, and its updates alone.

    The branches may change different Variables. A branch that returns another structure, or leaves
    a Variable with another shape or dtype, raises and changes nothing; with graph updates, so does
    one that changes the structure of an object.
    """

    @each_mode
    def test_cond(self, nnx, mode):
        def call(number, model, x):
            return nnx.cond(number == 0, train, count, model, x, **mode)

        run_in_turn(nnx, call, [0, 1])

    @each_mode
    def test_cond_with_a_branch_that_changes_nothing(self, nnx, mode):
        def call(number, model, x):
            return nnx.cond(jnp.array(number == 2), leave, train, model, x, **mode)

        run_in_turn(nnx, call, [0, 2])

    @each_mode
    def test_switch(self, nnx, mode):
        def call(number, model, x):
            return nnx.switch(number, BRANCHES, model, x, **mode)

        run_in_turn(nnx, call, [2, 0, 1])

    @each_mode
    def test_switch_takes_the_nearest_branch(self, nnx, mode):
        def call(number, model, x):
            return nnx.switch((-1, 1, 7)[number], BRANCHES, model, x, **mode)

        run_in_turn(nnx, call, [0, 2])

    @each_mode
    def test_traced_choice(self, nnx, mode):
        @nnx.jit(**mode)
        def call(number, model, x):
            x, y = nnx.switch(number, BRANCHES, model, x, **mode)
            return nnx.cond(number < 0, train, lambda model, x: (x, y), model, x, **mode)

        run_in_turn(nnx, call, [0, 1])

    @each_mode
    @pytest.mark.parametrize("branch", [shape, dtype, output, output_shape])
    @stands_on(CONVENTION, "jax.lax.cond")
    def test_other_structure(self, nnx, mode, branch):
        self.check_refusal(nnx, mode, branch)

    def test_other_attributes(self, nnx):
        self.check_refusal(nnx, {"graph": True, "graph_updates": True}, attribute)

    def check_refusal(self, nnx, mode, branch):
        model = model_of(nnx)
        before = snapshot(nnx, model)
        with pytest.raises((TypeError, ValueError)):
            nnx.cond(True, branch, train, model, jnp.asarray(X), **mode)
        with pytest.raises((TypeError, ValueError)):
            nnx.switch(0, (train, count, branch), model, jnp.asarray(X), **mode)
        assert snapshot(nnx, model) == before
        assert_no_tracers(nnx, model)


def advance(number, state):
    """Changes a model by a number and an array."""
    model, x = state["model"], state["x"]
    model.block.mean[...] = model.block.mean * 2 + x + number
    model.count[...] += 1
    return {"model": model, "x": model.kernel - x}


def run_loop(nnx, numbers):
    """Calls `advance` for each number; returns the model and the array."""
    state = {"model": model_of(nnx), "x": counted((2,), start=5)}
    for number in numbers:
        state = advance(number, state)
    return state


@clause("TRX-022", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.while_loop")
class TestLoops:
    """`while_loop` and `fori_loop` equal the Python loop, in the carried value and in state.

    An object in the carried value is at each step what the step before has left, and so is the
    caller's own after the loop. A loop without a step changes nothing.
    """

    @each_mode
    @pytest.mark.parametrize("steps", [0, 3])
    def test_while_loop(self, nnx, mode, steps):
        def proceed(state):
            return state["model"].count[...] < steps

        def body(state):
            return advance(state["model"].count[...], state)

        init = {"model": model_of(nnx), "x": counted((2,), start=5)}
        self.check(nnx, nnx.while_loop(proceed, body, init, **mode), init["model"], range(steps))

    @each_mode
    @pytest.mark.parametrize(("lower", "upper"), [(2, 5), (-1, 1), (3, 3), (3, 2)])
    def test_fori_loop(self, nnx, mode, lower, upper):
        init = {"model": model_of(nnx), "x": counted((2,), start=5)}
        found = nnx.fori_loop(lower, upper, advance, init, **mode)
        self.check(nnx, found, init["model"], range(lower, upper))

    @each_mode
    @pytest.mark.parametrize("unroll", [2, True])
    def test_unroll(self, nnx, mode, unroll):
        init = {"model": model_of(nnx), "x": counted((2,), start=5)}
        found = nnx.fori_loop(0, 3, advance, init, unroll=unroll, **mode)
        self.check(nnx, found, init["model"], range(3))

    @each_mode
    def test_traced_bounds(self, nnx, mode):
        @nnx.jit(**mode)
        def call(model, x, bounds):
            return nnx.fori_loop(*bounds, advance, {"model": model, "x": x}, **mode)["x"]

        model = model_of(nnx)
        x = call(model, counted((2,), start=5), (jnp.int32(1), jnp.int32(4)))
        self.check(nnx, {"model": model, "x": x}, model, range(1, 4))

    @each_mode
    def test_a_condition_on_what_is_carried(self, nnx, mode):
        def halve(v):
            v[...] /= 2
            return v

        v = nnx.Param(jnp.float32(40))
        carried = nnx.while_loop(lambda v: v[...] > 3, halve, v, **mode)
        assert (carried.get_value(), v.get_value()) == (2.5, 2.5)

    def check(self, nnx, found, model, numbers):
        expected = run_loop(nnx, numbers)
        assert array_record(found["x"]) == array_record(expected["x"])
        assert snapshot(nnx, found["model"]) == snapshot(nnx, expected["model"])
        assert snapshot(nnx, model) == snapshot(nnx, expected["model"])
