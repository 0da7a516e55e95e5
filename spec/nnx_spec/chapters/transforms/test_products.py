"""vjp and jvp: products with the Jacobian of a function of objects."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause, needs
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.derivatives import (
    VALUES,
    arrays_of,
    assert_gradient,
    model_of,
    predict,
    zero_tangent_of,
)
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, assert_no_tracers, snapshot, variables

TANGENTS = {"w": np.float32([1, 0, 2]), "scale": np.float32(-1), "bias": np.float32([3, 1, 0])}
COTANGENT = np.float32([1, 10, 100])


def pure(nnx):
    """Makes `predict` a function of the arrays in the model."""
    return lambda values, x: predict(model_of(nnx, values), x)


def predict_and_note(model, x, statistics):
    """Computes what `predict` does; writes what it saw."""
    y = predict(model, x)
    statistics.sum[...] += jax.lax.stop_gradient(y)
    statistics.inner.calls[...] += 1
    return y


def with_rest(model, x, statistics):
    """Computes the same, and something beside it."""
    y = predict_and_note(model, x, statistics)
    return y, {"calls": statistics.inner.calls[...] + 0, "double": x * 2}


def statistics_of(nnx):
    """Makes a Module of a sum and a count."""
    return net(nnx, sum=param(nnx, [0.0, 0.0, 0.0]), inner=net(nnx, calls=count(nnx, 3)))


@clause("TRX-011", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.vjp")
class TestProducts:
    """`vjp` and `jvp` agree with `jax.vjp` and `jax.jvp` on the arrays, and propagate state.

    `vjp(f, *primals)` gives the value and a function of a cotangent, which may be called again and
    gives for each argument what `grad` would: an object of its class, or with graph updates a State
    of its `Param`s. `jvp(f, primals, tangents)` takes objects as tangents, of the structure of the
    primals. With `has_aux` both give what the function returns beside the value, last. Either can
    be used as a decorator. What the function writes is written once, as by one eager call.
    """

    @each_mode
    @needs("transforms.vjp")
    def test_vjp(self, nnx, mode):
        model = model_of(nnx)
        before = snapshot(nnx, model)
        value, pull = nnx.vjp(predict, model, 1.5, **mode)
        expected, expected_pull = jax.vjp(pure(nnx), VALUES, 1.5)
        assert array_record(value) == array_record(expected)
        for cotangent in (COTANGENT, COTANGENT * 3):
            by_model, by_x = pull(cotangent)
            values, wanted = expected_pull(cotangent)
            assert array_record(by_x) == array_record(wanted)
            assert isinstance(by_model, nnx.State if mode["graph_updates"] else type(model))
            assert_gradient(nnx, by_model, values)
        assert snapshot(nnx, model) == before
        assert_no_tracers(nnx, model)

    @each_mode
    @needs("transforms.vjp")
    def test_vjp_as_decorator(self, nnx, mode):
        value, pull = nnx.vjp(**mode)(predict)(model_of(nnx), 1.5)
        expected, expected_pull = jax.vjp(pure(nnx), VALUES, 1.5)
        assert array_record(value) == array_record(expected)
        assert_gradient(nnx, pull(COTANGENT)[0], expected_pull(COTANGENT)[0])

    @each_mode
    @pytest.mark.parametrize("aux", [False, True], ids=["no-aux", "has_aux"])
    @needs("transforms.vjp")
    def test_vjp_state(self, nnx, mode, aux):
        model, statistics = model_of(nnx), statistics_of(nnx)
        held = variables(nnx, statistics)
        f = with_rest if aux else predict_and_note
        for x in (1.5, 2.0):
            _, pull, *rest = nnx.vjp(f, model, x, statistics, has_aux=aux, **mode)
            by_model, by_x, _ = pull(COTANGENT)
        values, wanted = jax.vjp(pure(nnx), VALUES, 2.0)[1](COTANGENT)
        assert_gradient(nnx, by_model, values)
        assert array_record(by_x) == array_record(wanted)
        if aux:
            assert [(int(r["calls"]), float(r["double"])) for r in rest] == [(5, 4.0)]
        self.check_state(nnx, model, statistics, held)

    @each_mode
    @pytest.mark.parametrize("aux", [False, True], ids=["no-aux", "has_aux"])
    @needs("transforms.jvp")
    def test_jvp(self, nnx, mode, aux):
        model, statistics = model_of(nnx), statistics_of(nnx)
        held = variables(nnx, statistics)
        f = with_rest if aux else predict_and_note
        for x in (1.5, 2.0):
            tangents = model_of(nnx, TANGENTS), 0.5, zero_tangent_of(nnx, statistics)
            found = nnx.jvp(f, (model, x, statistics), tangents, has_aux=aux, **mode)
        expected = jax.jvp(pure(nnx), (VALUES, 2.0), (TANGENTS, 0.5))
        assert [*map(array_record, found[:2])] == [*map(array_record, expected)]
        if aux:
            assert [(int(r["calls"]), float(r["double"])) for r in found[2:]] == [(5, 4.0)]
        self.check_state(nnx, model, statistics, held)

    @each_mode
    @needs("transforms.jvp")
    def test_jvp_as_decorator(self, nnx, mode):
        tangents = model_of(nnx, TANGENTS), 0.5
        found = nnx.jvp(**mode)(predict)((model_of(nnx), 1.5), tangents)
        expected = jax.jvp(pure(nnx), (VALUES, 1.5), (TANGENTS, 0.5))
        assert [*map(array_record, found)] == [*map(array_record, expected)]

    @each_mode
    @needs("transforms.vjp", "transforms.jvp")
    def test_under_jit(self, nnx, mode):
        @nnx.jit(**mode)
        def products(model, tangent, statistics):
            _, pull = nnx.vjp(predict_and_note, model, 1.5, statistics, **mode)
            pair = nnx.jvp(predict, (model, 1.5), (tangent, 0.0), **mode)
            return arrays_of(nnx, pull(COTANGENT)[0])[("w",)], pair

        statistics = statistics_of(nnx)
        by_w, pair = products(model_of(nnx), model_of(nnx, TANGENTS), statistics)
        values, _ = jax.vjp(pure(nnx), VALUES, 1.5)[1](COTANGENT)
        np.testing.assert_allclose(by_w, values["w"], rtol=1e-6)
        expected = jax.jvp(pure(nnx), (VALUES, 1.5), (TANGENTS, 0.0))
        np.testing.assert_allclose(pair, expected, rtol=1e-6)
        assert int(statistics.inner.calls[...]) == 4

    @staticmethod
    def check_state(nnx, model, statistics, held):
        """Checks the state after calls of the function with 1.5 and 2."""
        expected = statistics_of(nnx)
        for x in (1.5, 2.0):
            predict_and_note(model_of(nnx), x, expected)
        assert snapshot(nnx, statistics) == snapshot(nnx, expected)
        assert all(a is b for a, b in zip(variables(nnx, statistics), held, strict=True))
        assert_no_tracers(nnx, model, statistics)
