"""Gradients: what they are with respect to, and what the loss changes meanwhile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.derivatives import (
    VALUES,
    arrays_of,
    assert_gradient,
    loss_of,
    model_of,
)
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, assert_no_tracers, snapshot, variable_record, variables
from nnx_spec.plans import classes

OTHER_VALUES = {"w": np.float32([2, 1, -1]), "scale": np.float32(3), "bias": np.float32([7, 8, 9])}


def total(first, x, second, y=2.0):
    """Computes a number of two models and two numbers."""
    return loss_of(first, x) * y + loss_of(second, x * y) * 3


def pure_total(nnx):
    """Makes `total` a function of the arrays in the models."""
    return lambda first, x, second, y=2.0: total(model_of(nnx, first), x, model_of(nnx, second), y)


def expected_of(nnx, argnums):
    """Differentiates `total` with JAX."""
    return jax.grad(pure_total(nnx), argnums)(VALUES, 1.5, OTHER_VALUES, 2.0)


def check(nnx, mode, gradient, expected):
    """Checks the gradient with respect to one argument of `total`."""
    if isinstance(expected, dict):
        kind = nnx.State if mode["graph_updates"] else type(model_of(nnx))
        assert isinstance(gradient, kind)
        assert_gradient(nnx, gradient, expected)
        assert all(type(v) is nnx.Param for v in variables(nnx, gradient))
    else:
        assert array_record(gradient) == array_record(expected)


@clause("TRX-009", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.grad")
class TestGradients:
    """`grad` and `value_and_grad` give the gradients of the pure function of the arrays.

    `has_aux`, `argnums` (an int, negative or not, or a tuple of them), `holomorphic` and
    `allow_int` have JAX's meaning. With graph updates a Module is differentiated with respect to
    its `Param`s, and the gradient is a State of these; otherwise with respect to everything in it,
    and the gradient is an object of its own class. The objects that are differentiated stay as they
    are.
    """

    @each_mode
    @pytest.mark.parametrize("argnums", [0, 1, 2, -1, -2, (0,), (2, 0), (1, 2, 3)], ids=str)
    def test_argnums(self, nnx, mode, argnums):
        models = model_of(nnx), model_of(nnx, OTHER_VALUES)
        before = snapshot(nnx, models)
        differentiate = nnx.grad(total, argnums=argnums, **mode)
        gradients = differentiate(models[0], 1.5, models[1], 2.0)
        expected = expected_of(nnx, argnums)
        if not isinstance(argnums, tuple):
            gradients, expected = (gradients,), (expected,)
        assert type(gradients) is tuple
        for gradient, wanted in zip(gradients, expected, strict=True):
            check(nnx, mode, gradient, wanted)
        assert snapshot(nnx, models) == before

    @each_mode
    def test_value_and_grad(self, nnx, mode):
        models = model_of(nnx), model_of(nnx, OTHER_VALUES)
        differentiate = nnx.value_and_grad(**mode)(total)
        value, gradient = differentiate(models[0], 1.5, second=models[1])
        assert array_record(value) == array_record(total(models[0], 1.5, models[1]))
        check(nnx, mode, gradient, expected_of(nnx, 0))

    @each_mode
    @pytest.mark.parametrize("transform", ["grad", "value_and_grad"])
    def test_has_aux(self, nnx, mode, transform):
        def loss(model, x):
            return loss_of(model, x), {"x": x * 2, "w": model.w[...] + x}

        differentiate = getattr(nnx, transform)(loss, has_aux=True, argnums=(1, 0), **mode)
        found = differentiate(model_of(nnx), 1.5)
        (by_x, by_model), rest = found if transform == "grad" else found[::-1]
        if transform == "value_and_grad":
            value, rest = rest
            assert array_record(value) == array_record(loss_of(model_of(nnx), 1.5))
        expected = jax.grad(lambda v, x: loss_of(model_of(nnx, v), x), (1, 0))(VALUES, 1.5)
        assert array_record(by_x) == array_record(expected[0])
        assert_gradient(nnx, by_model, expected[1])
        assert float(rest["x"]) == 3
        np.testing.assert_array_equal(rest["w"], VALUES["w"] + np.float32(1.5))

    @each_mode
    def test_pytree_of_objects(self, nnx, mode):
        def loss(tree):
            return loss_of(tree["models"][0], tree["x"]) + tree["v"][...] ** 2

        model = model_of(nnx)
        gradient = nnx.grad(loss, **mode)({"models": [model], "x": 1.5, "v": param(nnx, 3.0)})
        expected = jax.grad(lambda values: loss_of(model_of(nnx, values), 1.5))(VALUES)
        assert sorted(gradient) == ["models", "v", "x"]
        assert_gradient(nnx, gradient["models"][0], expected)
        assert isinstance(gradient["v"], nnx.Param)
        assert float(gradient["v"][...]) == 6

    @each_mode
    def test_other_variables(self, nnx, mode):
        """Tells what a Module is differentiated with respect to."""
        model = net(nnx, w=param(nnx, [1.0, 2.0]), mean=nnx.BatchStat(jnp.float32(3)))
        gradient = nnx.grad(lambda m: (m.w[...] * m.mean[...]).sum(), **mode)(model)
        found = {path[0]: value.tolist() for path, value in arrays_of(nnx, gradient).items()}
        expected = {"w": [3, 3]} if mode["graph_updates"] else {"mean": 3, "w": [3, 3]}
        assert found == expected

    @each_mode
    def test_holomorphic(self, nnx, mode):
        values = {**VALUES, "w": np.complex64([1j, 2, 1 + 1j])}
        values = {name: value.astype("complex64") for name, value in values.items()}
        differentiate = nnx.grad(loss_of, holomorphic=True, **mode)
        gradient = differentiate(model_of(nnx, values), np.complex64(1 - 2j))

        def pure(values, x):
            return loss_of(model_of(nnx, values), x)

        expected = jax.grad(pure, holomorphic=True)(values, np.complex64(1 - 2j))
        assert_gradient(nnx, gradient, expected)
        with pytest.raises(TypeError):
            nnx.grad(loss_of, **mode)(model_of(nnx, values), np.complex64(1 - 2j))

    @each_mode
    def test_allow_int(self, nnx, mode):
        values = {**VALUES, "scale": np.int32(4)}
        gradient = nnx.grad(loss_of, allow_int=True, **mode)(model_of(nnx, values), 1.5)
        expected = jax.grad(lambda v: loss_of(model_of(nnx, v), 1.5), allow_int=True)(values)
        assert expected["scale"].dtype == jax.dtypes.float0
        assert_gradient(nnx, gradient, expected)
        model = model_of(nnx, values)
        with pytest.raises(TypeError):
            nnx.grad(loss_of, **mode)(model, 1.5)
        assert_no_tracers(nnx, model)

    @each_mode
    def test_loss_is_no_scalar(self, nnx, mode):
        model = model_of(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises(TypeError):
            nnx.grad(lambda model: model.w[...], **mode)(model)
        assert snapshot(nnx, model, identities=True) == before

    @each_mode
    def test_second_derivative(self, nnx, mode):
        def slope(model):
            return nnx.grad(loss_of, argnums=1, **mode)(model, 1.5)

        gradient = nnx.grad(slope, **mode)(model_of(nnx))
        pure = jax.grad(lambda values, x: loss_of(model_of(nnx, values), x), argnums=1)
        assert_gradient(nnx, gradient, jax.grad(pure)(VALUES, 1.5))


def observe(model, statistics, x):
    """Computes a number of a model, and notes what it sees."""
    y = model.w[...] * x
    mean = y.mean()
    statistics.mean[...] = statistics.mean[...] * 0.75 + mean * 0.25
    statistics.seen.calls[...] += 1
    statistics.seen.last.set_value({"y": y, "n": statistics.seen.calls[...] * 2})
    return y.sum() + statistics.mean[...]


def statistics_of(nnx):
    """Makes a Module of what `observe` notes: a mean, a count, the last result, and a name."""
    last = nnx.Intermediate({"y": jnp.zeros(2), "n": jnp.int32(0)})
    seen = net(nnx, calls=count(nnx, 5, tag="calls"), last=last, name="seen")
    return net(nnx, mean=nnx.BatchStat(jnp.float32(8)), other=param(nnx, 1.0), seen=seen)


@clause("TRX-010", MUST, DOCUMENTED, source="guides/transforms#state-propagation")
class TestChanges:
    """What the loss changes in Variables that it is not differentiated by reaches the caller.

    Statistics and counts are those of one eager call afterwards, in the caller's own Variables,
    whether they come in another argument or, with graph updates, in the differentiated Module
    itself, and whether `has_aux` is used or not. The loss sees its own changes, and they are part
    of the derivative.
    """

    @staticmethod
    def expected(nnx, calls):
        """Calls `observe` eagerly; returns the statistics and the derivative by `w`."""
        model, statistics = net(nnx, w=param(nnx, [2.0, 6.0])), statistics_of(nnx)
        for x in calls:
            observe(model, statistics, x)
        return statistics, [(1 + 0.25 / 2) * calls[-1]] * 2

    @each_mode
    @pytest.mark.parametrize("aux", [False, True], ids=["no-aux", "has_aux"])
    @pytest.mark.parametrize("transform", ["grad", "value_and_grad"])
    def test_in_another_argument(self, nnx, mode, transform, aux):
        def loss(model, statistics, x):
            value = observe(model, statistics, x)
            return (value, x * 2) if aux else value

        model, statistics = net(nnx, w=param(nnx, [2.0, 6.0])), statistics_of(nnx)
        held = [(v, type(v)) for v in variables(nnx, statistics)]
        differentiate = getattr(nnx, transform)(loss, has_aux=aux, **mode)
        for x in (1.0, 3.0):
            found = differentiate(model, statistics, x)
        if transform == "value_and_grad":
            found = (found[1], found[0][1]) if aux else found[1]
        gradient, rest = found if aux else (found, 6)
        expected, slope = self.expected(nnx, (1.0, 3.0))
        assert snapshot(nnx, statistics) == snapshot(nnx, expected)
        assert [(v, type(v)) for v in variables(nnx, statistics)] == held
        assert {k: v.tolist() for k, v in arrays_of(nnx, gradient).items()} == {("w",): slope}
        assert float(rest) == 6
        assert_no_tracers(nnx, model, statistics)

    @each_mode
    def test_within_the_model(self, nnx, mode):
        """Has the statistics in the Module, which is differentiated where its Params alone are."""
        model = net(nnx, w=param(nnx, [2.0, 6.0]), statistics=statistics_of(nnx))

        def loss(w, model, x):
            return observe(model if mode["graph_updates"] else net(nnx, w=w), model.statistics, x)

        argnums = 1 if mode["graph_updates"] else 0
        w = param(nnx, [2.0, 6.0])
        nnx.grad(loss, argnums=argnums, **mode)(w, model, 1.0)
        gradient = nnx.grad(loss, argnums=argnums, **mode)(w, model, 3.0)
        expected, slope = self.expected(nnx, (1.0, 3.0))
        assert snapshot(nnx, model.statistics) == snapshot(nnx, expected)
        found = gradient["w"] if mode["graph_updates"] else gradient
        assert found[...].tolist() == slope
        assert variable_record(model.w) == variable_record(w)

    @each_mode
    def test_under_jit(self, nnx, mode):
        @nnx.jit(**mode)
        def step(model, statistics, x):
            gradient = nnx.grad(observe, **mode)(model, statistics, x)
            return arrays_of(nnx, gradient)[("w",)]

        model, statistics = net(nnx, w=param(nnx, [2.0, 6.0])), statistics_of(nnx)
        step(model, statistics, 1.0)
        slope = step(model, statistics, 3.0)
        expected, wanted = self.expected(nnx, (1.0, 3.0))
        assert snapshot(nnx, statistics) == snapshot(nnx, expected)
        assert slope.tolist() == wanted

    @each_mode
    def test_only_what_changes(self, nnx, mode):
        statistics = statistics_of(nnx)
        seen = statistics.seen
        nnx.grad(observe, **mode)(net(nnx, w=param(nnx, [2.0, 6.0])), statistics, 1.0)
        assert variable_record(statistics.other) == variable_record(statistics_of(nnx).other)
        assert statistics.seen is seen, "the caller's Module has another one in its place"
        assert type(seen.calls) is classes(nnx).Count
