"""`DiffState`: which part of an object a function is differentiated with respect to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause, stands_on
from nnx_spec.chapters.filters.selection import expected as selected
from nnx_spec.chapters.functional.making import count, net, param, records
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.filter_plans import build_filter
from nnx_spec.oracles import (
    array_record,
    at,
    snapshot,
    state_items,
    value_record,
    variable_record,
)
from nnx_spec.plans import build, classes
from nnx_spec.strategies import filters, trees

UPDATES = MODES["graph-updates"]

X = np.float32([3, 5])


def model_of(nnx):
    """Makes a Module with parameters, a statistic, a count and a tied parameter."""
    tied = param(nnx, [7, 8], tag="red")
    inner = net(nnx, tied=tied, special=classes(nnx).SpecialParam(counted((2,), 4)))
    stat = nnx.BatchStat(counted((2,), 10), tag="red")
    return net(nnx, bias=param(nnx, [1, 2]), inner=inner, tied=tied, mean=stat, n=count(nnx, 0))


def loss(model, x):
    """Computes a scalar, counts the call, moves the statistic and doubles the bias."""
    model.n[...] += 1
    model.mean[...] = model.mean + x
    model.bias[...] = 2 * model.bias
    weights = model.tied * model.inner.tied + model.inner.special * model.mean
    return jnp.sum(model.bias * x + weights)


GRADIENTS = {
    ("bias",): [6, 10],
    ("inner", "special"): [13, 16],
    ("inner", "tied"): [14, 16],
    ("mean",): [4, 5],
}
"""The derivative of `loss` by each float of `model_of`, by path."""

SELECTIONS = {
    "class": (lambda nnx: nnx.Param, [("bias",), ("inner", "special"), ("inner", "tied")]),
    "subclass": (lambda nnx: classes(nnx).SpecialParam, [("inner", "special")]),
    "other class": (lambda nnx: nnx.BatchStat, [("mean",)]),
    "classes": (lambda nnx: (nnx.Param, nnx.BatchStat), list(GRADIENTS)),
    "tag": (lambda nnx: "red", [("inner", "tied"), ("mean",)]),
    "path": (
        lambda nnx: nnx.PathContains("inner"),
        [("inner", "special"), ("inner", "tied")],
    ),
    "All": (lambda nnx: nnx.All(nnx.Param, nnx.Not("red")), [("bias",), ("inner", "special")]),
    "callable": (lambda nnx: lambda path, value: path[-1] == "bias", [("bias",)]),
    "nothing": (lambda nnx: False, []),
}
"""Filters, and what each selects of `model_of`."""


def after(nnx):
    """Makes a `model_of` as it is after one call of `loss`."""
    model = model_of(nnx)
    loss(model, X)
    return model


def check_state(nnx, gradient, paths, model):
    """Checks that a gradient is a State of some of a model's Variables, with derivatives."""
    assert isinstance(gradient, nnx.State), f"the gradient is a {type(gradient).__name__}"
    wanted = {
        path: variable_record(at(nnx, model, path).replace(np.float32(GRADIENTS[path])))
        for path in paths
    }
    assert records(nnx, gradient) == wanted


@clause("GRA-005", MUST, DOCUMENTED, source="guides/transforms#transforming-sub-states-lift-types")
class TestDiffState:
    """`DiffState(n, filter)` as an `argnums` of `grad` and `value_and_grad` selects, of argument n,
    the Variables to differentiate with respect to; the gradient is a State of these.

    It has their paths, classes and metadata; what is shared is in it once, with the derivative by
    all its places. Whatever the function changes, selected or not, is propagated. The number n of
    an object stands for `DiffState(n, Param)`, 0 if nothing is said; numbers and DiffStates may
    stand together. In `nondiff_argnums` of `custom_vjp` a DiffState selects what the tangents of
    argument n consist of.
    """

    @pytest.mark.parametrize("function", ["grad", "value_and_grad"])
    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_selection(self, nnx, selection, function):
        make, paths = SELECTIONS[selection]
        model = model_of(nnx)
        argnums = nnx.DiffState(0, make(nnx))
        result = getattr(nnx, function)(loss, argnums=argnums, **UPDATES)(model, X)
        if function == "value_and_grad":
            value, result = result
            assert array_record(value) == array_record(loss(model_of(nnx), X))
        check_state(nnx, result, paths, model)
        assert snapshot(nnx, model) == snapshot(nnx, after(nnx))

    @pytest.mark.parametrize("options", [{}, {"argnums": 0}], ids=["no argnums", "argnums=0"])
    def test_default(self, nnx, options):
        model = model_of(nnx)
        gradient = nnx.grad(loss, **options, **UPDATES)(model, X)
        check_state(nnx, gradient, SELECTIONS["class"][1], model)
        assert snapshot(nnx, model) == snapshot(nnx, after(nnx))

    def test_several_arguments(self, nnx):
        def both(x, first, second):
            return loss(first, x) + 2 * loss(second, x)

        models = [model_of(nnx), model_of(nnx)]
        argnums = (nnx.DiffState(2, nnx.BatchStat), 0, 1)
        found = nnx.grad(both, argnums=argnums, **UPDATES)(X, *models)
        assert type(found).__name__ == "tuple"
        stats, x, params = found
        ((path, stat),) = state_items(stats)
        assert (path, stat.get_value().tolist(), stat.tag) == (("mean",), [8, 10], "red")
        assert x.tolist() == [3 * (2 + 4), 3 * (4 + 5)]
        check_state(nnx, params, SELECTIONS["class"][1], models[1])
        assert [snapshot(nnx, model) for model in models] == [snapshot(nnx, after(nnx))] * 2

    def test_has_aux(self, nnx):
        def with_aux(model, x):
            return loss(model, x), (model.n[...] * 2, model.mean)

        model = model_of(nnx)
        transform = nnx.grad(
            with_aux, argnums=nnx.DiffState(0, nnx.BatchStat), has_aux=True, **UPDATES
        )
        gradient, (doubled, mean) = transform(model, X)
        check_state(nnx, gradient, [("mean",)], model)
        assert int(doubled) == 2
        assert mean is model.mean, "another Variable was returned than the model's own"

    def test_objects_in_a_pytree(self, nnx):
        models = {"a": model_of(nnx), "b": [model_of(nnx)]}
        gradient = nnx.grad(
            lambda models: loss(models["a"], X) + loss(models["b"][0], X),
            argnums=nnx.DiffState(0, "red"),
            **UPDATES,
        )(models)
        for state, model in ((gradient["a"], models["a"]), (gradient["b"][0], models["b"][0])):
            check_state(nnx, state, SELECTIONS["tag"][1], model)

    @stands_on(CONVENTION, "jax.grad")
    def test_no_floats(self, nnx):
        model = model_of(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises(TypeError):
            nnx.grad(loss, argnums=nnx.DiffState(0, ...), **UPDATES)(model, X)
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    @given(plan=trees(), selection=filters())
    def test_any_filter(self, nnx, plan, selection):
        def total(model):
            leaves = enumerate(jax.tree.leaves(model), 2)
            return sum((n * jnp.sum(x.astype("float32")) for n, x in leaves), jnp.float32(0))

        model = build(nnx, plan)
        paths = selected(plan, selection)
        values = [jax.tree.leaves(at(nnx, model, path)) for path in paths]
        argnums = nnx.DiffState(0, build_filter(nnx, selection))
        transform = nnx.grad(total, argnums=argnums, **UPDATES)
        if all(jnp.issubdtype(x.dtype, jnp.inexact) for leaves in values for x in leaves):
            found = state_items(transform(model))
            assert [path for path, _ in found] == paths
            weights = {id(leaf): n for n, leaf in enumerate(jax.tree.leaves(model), 2)}
            for (_, gradient), leaves in zip(found, values, strict=True):
                pairs = zip(jax.tree.leaves(gradient), leaves, strict=True)
                for derivative, leaf in pairs:
                    wanted = np.full(leaf.shape, weights[id(leaf)], leaf.dtype)
                    assert array_record(derivative) == array_record(wanted)
        else:
            with pytest.raises(TypeError):
                transform(model)

    @pytest.mark.parametrize("selection", ["class", "other class", "path", "tag"])
    def test_custom_vjp(self, nnx, selection):
        make, paths = SELECTIONS[selection]
        chosen = nnx.DiffState(0, make(nnx))
        ruled = nnx.custom_vjp(loss, nondiff_argnums=(chosen,), **UPDATES)

        def backward(residuals, g):
            (updates, x_update), cotangent = g
            assert x_update is None, f"an array has the update {x_update}"
            tangent = nnx.filter_state(updates, make(nnx))
            for path, leaf in state_items(tangent):
                leaf.set_value(cotangent * 10 * np.float32(GRADIENTS[path]))
            return tangent, cotangent * X

        ruled.defvjp(lambda model, x: (ruled(model, x), None), backward)
        model = model_of(nnx)
        gradient = nnx.grad(ruled, argnums=chosen, **UPDATES)(model, X)
        found = {path: value_record(leaf.get_value()) for path, leaf in state_items(gradient)}
        assert found == {path: value_record(10 * np.float32(GRADIENTS[path])) for path in paths}
        assert snapshot(nnx, model) == snapshot(nnx, after(nnx))
