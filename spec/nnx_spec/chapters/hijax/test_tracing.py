"""Tracing: what a trace that fails, or that is all there is, leaves behind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnx_spec import DOCUMENTED, MUST, SOUND, TESTED, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import assert_no_tracers


class PlannedError(Exception):
    """Raised in the middle of a function."""


def model_of(nnx):
    """Makes a Module of three hijax Variables, one of them with a dict as its value."""
    with nnx.var_defaults(hijax=True):
        return net(
            nnx,
            w=nnx.Param(array([1, 2]), tag="t"),
            inner=net(nnx, n=nnx.BatchStat(array(0, "int32"))),
            items=nnx.Cache({"a": array(3), "b": array(4)}),
        )


def change(model, x=1.0):
    """Changes each Variable of `model_of`."""
    model.w[...] += x
    model.w[1] *= 2
    model.inner.n[...] += 1
    model.items["a"] = model.items["b"] + x
    return model.w[...].sum() * model.items["a"]


def assert_unchanged(nnx, model):
    """Asserts that a model is as `model_of` makes it."""
    assert_holds(nnx, model.w, nnx.Param, np.float32([1, 2]), tag="t")
    assert_holds(nnx, model.inner.n, nnx.BatchStat, np.int32(0))
    assert_holds(nnx, model.items, nnx.Cache, {"a": np.float32(3), "b": np.float32(4)})


def assert_changed(nnx, model):
    """Asserts that a model is as `change` leaves one of `model_of`."""
    assert_holds(nnx, model.w, nnx.Param, np.float32([2, 6]), tag="t")
    assert_holds(nnx, model.inner.n, nnx.BatchStat, np.int32(1))
    assert_holds(nnx, model.items, nnx.Cache, {"a": np.float32(5), "b": np.float32(4)})


def fail_after(f):
    """Makes a function that calls another and then raises, the first time it is traced."""
    calls = []

    def failing(*args):
        result = f(*args)
        calls.append(None)
        if len(calls) == 1:
            raise PlannedError
        return result

    return failing


SETTINGS = {
    "argument": lambda f, model: functools.partial(jax.jit(f), model),
    "captured": lambda f, model: jax.jit(lambda: f(model)),
    "nested": lambda f, model: functools.partial(jax.jit(lambda m: jax.jit(f)(m)), model),
    "nested-captured": lambda f, model: jax.jit(lambda: jax.jit(lambda: f(model))()),
    "in-a-gradient": lambda f, model: jax.jit(
        lambda: jax.value_and_grad(lambda x: x * f(model))(2.0)[0]
    ),
    "in-a-branch": lambda f, model: jax.jit(
        lambda: jax.lax.cond(jnp.array(True), lambda: f(model), lambda: 0.0)
    ),
    "in-a-scan": lambda f, model: jax.jit(
        lambda: jax.lax.scan(lambda c, x: (c, f(model)), 0, None, length=1)
    ),
}
"""Where a function of a model is traced, by name."""


@clause(
    "HJX-037",
    MUST,
    SOUND,
    source="a tracer or half a change is left behind",
    needs={"hijax.updates"},
)
class TestExceptions:
    """An exception inside a traced function leaves every hijax Variable unchanged and usable.

    It comes out as it was raised. Nothing holds a tracer afterwards, and another call, in which
    nothing is raised, does its work.
    """

    @pytest.mark.parametrize("setting", SETTINGS)
    def test_unchanged(self, nnx, setting):
        model = model_of(nnx)
        call = SETTINGS[setting](fail_after(change), model)
        with pytest.raises(PlannedError):
            call()
        assert_unchanged(nnx, model)
        change(model)
        assert_changed(nnx, model)

    @pytest.mark.parametrize("setting", ["argument", "captured"])
    def test_next_call(self, nnx, setting):
        model = model_of(nnx)
        call = SETTINGS[setting](fail_after(change), model)
        with pytest.raises(PlannedError):
            call()
        assert float(call()) == 40
        assert_changed(nnx, model)

    def test_training_step(self, nnx):
        with nnx.var_defaults(hijax=True):
            model = net(nnx, w=nnx.Param(array([1, 2])))
            optimizer = nnx.Optimizer(model, optax.sgd(0.5, momentum=0.5), wrt=nnx.Param)

        def step():
            view = with_vars(nnx, model, hijax=False)
            optimizer.update(model, jax.grad(lambda m: (m.w[...] ** 2).sum() / 2)(view))

        failing = jax.jit(fail_after(step))
        with pytest.raises(PlannedError):
            failing()
        assert_no_tracers(nnx, model, optimizer)
        assert_holds(nnx, model.w, nnx.Param, np.float32([1, 2]))
        assert int(optimizer.step[...]) == 0
        failing()
        assert_holds(nnx, model.w, nnx.Param, np.float32([0.5, 1]))
        assert int(optimizer.step[...]) == 1


@clause("HJX-038", MUST, DOCUMENTED, source="hijax/hijax#hijax-variable", needs={"hijax.updates"})
class TestJaxprs:
    """`jax.make_jaxpr` of a function that changes a hijax Variable gives a jaxpr that has the
    Variable as an input, and changes nothing outside.

    The function may be under `jax.jit`, and may be called afterwards.
    """

    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
    def test_scalar(self, nnx, wrap):
        @wrap
        def increment(v):
            v[...] += 1

        v = nnx.Variable(array(0, "int32"), hijax=True, tag="t")
        made = jax.make_jaxpr(increment)(v)
        assert len(made.jaxpr.invars) == 1
        assert len(made.jaxpr.outvars) == 0
        assert_holds(nnx, v, nnx.Variable, np.int32(0), tag="t")
        jax.jit(increment)(v)
        assert_holds(nnx, v, nnx.Variable, np.int32(1), tag="t")

    def test_several(self, nnx):
        with nnx.var_defaults(hijax=True):
            model = net(nnx, w=nnx.Param(array([1, 2])), n=nnx.BatchStat(array(0, "int32")))

        @jax.jit
        def step(model, x):
            model.w[...] *= x
            model.n[...] += 1
            return model.w[...].sum(), model.n[...]

        made = jax.make_jaxpr(step)(model, 2.0)
        assert len(made.jaxpr.invars) == 3
        assert [(x.shape, x.dtype) for x in made.out_avals] == [((), np.float32), ((), np.int32)]
        assert_holds(nnx, model.w, nnx.Param, np.float32([1, 2]))
        assert_holds(nnx, model.n, nnx.BatchStat, np.int32(0))

    def test_pytree_value(self, nnx):
        model = model_of(nnx)
        made = jax.make_jaxpr(change)(model)
        assert len(made.jaxpr.invars) >= 3
        assert_unchanged(nnx, model)

    def test_captured(self, nnx):
        model = model_of(nnx)
        jax.make_jaxpr(lambda x: change(model, x))(2.0)
        assert_unchanged(nnx, model)


@clause(
    "HJX-039",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_eval_shape",
    needs={"hijax.updates"},
)
class TestShapes:
    """`jax.eval_shape` of a function of hijax Variables gives the shapes and dtypes of its outputs,
    and changes nothing outside.
    """

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
    def test_outputs(self, nnx, wrap, captured):
        model = model_of(nnx)

        @wrap
        def f(x, *args):
            (own,) = args or (model,)
            change(own)
            return {"y": x @ own.w[...], "n": own.inner.n[...], "items": own.items.get_value()}

        args = () if captured else (model,)
        x = jax.ShapeDtypeStruct((5, 2), np.float32)
        shapes = jax.tree.map(lambda s: (s.shape, s.dtype), jax.eval_shape(f, x, *args))
        assert shapes == {
            "y": ((5,), np.float32),
            "n": ((), np.int32),
            "items": {"a": ((), np.float32), "b": ((), np.float32)},
        }
        assert_unchanged(nnx, model)
        change(model)
        assert_changed(nnx, model)

    def test_gradients(self, nnx):
        model = model_of(nnx)

        def f(x):
            return jax.value_and_grad(lambda x: (x * change(model)).sum())(x)

        value, grad = jax.eval_shape(f, jax.ShapeDtypeStruct((3,), np.float32))
        assert (value.shape, grad.shape, grad.dtype) == ((), (3,), np.float32)
        assert_unchanged(nnx, model)
