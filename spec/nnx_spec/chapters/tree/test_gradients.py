"""Gradients in tree mode: of the whole argument, or of a group that was split off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import CONVENTION, DOCUMENTED, MUST, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.tree.calls import TREE
from nnx_spec.oracles import (
    array_record,
    snapshot,
    state_items,
    user_metadata,
    value_record,
    variables,
)
from nnx_spec.plans import build, classes
from nnx_spec.strategies import trees

SOURCE = "flip/5310-tree-mode-nnx#nnxgrad"


def loss(tree):
    """Computes a scalar of all leaves of a pytree, each with a weight of its own."""
    leaves = enumerate(jax.tree.leaves(tree), 2)
    return sum((n * jnp.sum(jnp.asarray(x, "float32") ** 2) for n, x in leaves), jnp.float32(0))


def oracle(tree, function=loss):
    """Differentiates with respect to the list of a pytree's leaves."""
    leaves, treedef = jax.tree.flatten(tree)
    found = jax.grad(lambda leaves: function(jax.tree.unflatten(treedef, leaves)))(leaves)
    return jax.tree.unflatten(treedef, found)


def everything(nnx):
    """Makes a Module with float data of every sort, and static attributes."""
    table = classes(nnx).Tree()
    table.entries = counted((2, 1), 3)
    stat = nnx.BatchStat(counted((2,)), note="running")
    return net(
        nnx,
        w=param(nnx, [1, 2], tag="red"),
        inner=net(nnx, n=stat, name="inner", special=classes(nnx).SpecialParam(counted(()))),
        layers=nnx.List([param(nnx, 3.0), nnx.Cache({"k": counted((1,)), "l": counted((2,), 5)})]),
        named=nnx.Dict(x=counted((2,), 7)),
        table=table,
        width=3,
    )


ARGUMENTS = {
    "Module": everything,
    "List": lambda nnx: nnx.List([param(nnx, 2.0), counted((1,))]),
    "Dict": lambda nnx: nnx.Dict(w=param(nnx, 2.0)),
    "Variable": lambda nnx: nnx.BatchStat(counted((2,)), tag="red"),
    "Variable of a dict": lambda nnx: nnx.Param({"k": counted((2,)), "l": counted(())}),
    "State": lambda nnx: nnx.state(everything(nnx), graph=False),
    "dict of Modules": lambda nnx: {"a": everything(nnx), "b": [counted((2,)), param(nnx, 4.0)]},
}
"""First arguments of a function: objects, States and pytrees of them."""

NOT_FLOATS = {
    "int32": lambda nnx: count(nnx, 3),
    "uint32": lambda nnx: nnx.Param(jnp.uint32(3)),
    "bool": lambda nnx: nnx.BatchStat(jnp.bool_(True)),
    "in a dict": lambda nnx: nnx.Cache({"k": counted((1,)), "n": jnp.int32(3)}),
    "random stream": lambda nnx: nnx.Rngs(0),
    "array": lambda nnx: jnp.int32(3),
}
"""What a Module may have that cannot be differentiated with respect to."""


@clause("TREE-004", MUST, DOCUMENTED, source=SOURCE)
class TestWholeArgument:
    """In tree mode `grad` and `value_and_grad` differentiate with respect to the whole argument.

    The gradient has the argument's own class and structure, static values and metadata included,
    with a gradient for every leaf, of whatever kind of Variable. If a leaf is no float the
    function raises TypeError as that of `jax.grad` does, unless `allow_int` is given.
    """

    @pytest.mark.parametrize("argument", ARGUMENTS)
    def test_class_and_values(self, nnx, argument):
        tree = ARGUMENTS[argument](nnx)
        gradient = nnx.grad(loss, **TREE)(tree)
        assert jax.tree.structure(gradient) == jax.tree.structure(tree)
        assert type(gradient).__name__ == type(tree).__name__
        self.check_leaves(gradient, oracle(tree))

    @pytest.mark.parametrize("function", ["grad", "value_and_grad"])
    def test_module(self, nnx, function):
        model = everything(nnx)
        before = snapshot(nnx, model, identities=True)
        gradient = getattr(nnx, function)(loss, **TREE)(model)
        if function == "value_and_grad":
            value, gradient = gradient
            assert array_record(value) == array_record(loss(model))
        assert snapshot(nnx, gradient) == snapshot(nnx, oracle(model))
        assert (gradient.width, gradient.inner.name) == (3, "inner")
        assert user_metadata(gradient.inner.n) == {"note": "running"}
        assert gradient.inner.n.get_value().tolist() == [4, 8]
        assert gradient.named["x"].tolist() == [98, 112]
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    @pytest.mark.parametrize("argnums", [1, (0, 1), (1,)])
    def test_argnums(self, nnx, argnums):
        models = [everything(nnx), net(nnx, n=nnx.BatchStat(counted((2,))))]
        gradient = nnx.grad(lambda a, b: loss((a, b)), argnums=argnums, **TREE)(*models)
        whole = oracle(models)
        expected = tuple(whole[n] for n in argnums) if isinstance(argnums, tuple) else whole[1]
        assert type(gradient).__name__ == type(expected).__name__
        assert jax.tree.structure(gradient) == jax.tree.structure(expected)
        self.check_leaves(gradient, expected)

    @given(plan=trees())
    def test_any_module(self, nnx, plan):
        model = build(nnx, plan)
        if all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(model)):
            assert snapshot(nnx, nnx.grad(loss, **TREE)(model)) == snapshot(nnx, oracle(model))
        else:
            with pytest.raises(TypeError):
                nnx.grad(loss, **TREE)(model)

    @pytest.mark.parametrize("kind", NOT_FLOATS)
    @pytest.mark.parametrize("function", ["grad", "value_and_grad"])
    @stands_on(CONVENTION, "jax.grad")
    def test_no_floats(self, nnx, function, kind):
        model = net(nnx, w=param(nnx, 2.0), n=NOT_FLOATS[kind](nnx))
        before = snapshot(nnx, model, identities=True)

        def square(model):
            model.w[...] += 1
            return model.w[...] ** 2

        with pytest.raises(TypeError):
            jax.grad(lambda leaves: leaves[-1] ** 2)(jax.tree.leaves(model))
        with pytest.raises(TypeError):
            getattr(nnx, function)(square, **TREE)(model)
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    @stands_on(CONVENTION, "jax.grad")
    def test_integers_that_are_allowed(self, nnx):
        model = net(nnx, w=param(nnx, 2.0), n=count(nnx, 3))
        gradient = nnx.grad(lambda m: m.w[...] ** 2 * m.n[...], allow_int=True, **TREE)(model)
        assert (type(gradient), float(gradient.w[...])) == (type(model), 12)
        assert gradient.n.get_raw_value().dtype == jax.dtypes.float0

    def check_leaves(self, found, expected):
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        assert [(o, e) for o, e in pairs if array_record(o) != array_record(e)] == []


def layered(nnx):
    """Makes a model that counts its calls and keeps a statistic, and whose Params are nested."""

    class Layer(nnx.Module):
        def __init__(self, start):
            self.kernel = nnx.Param(counted((2, 2), start) / 8, tag="red")
            self.mean = nnx.BatchStat(counted((2,)))
            self.calls = nnx.Cache(jnp.int32(0))

        def __call__(self, x):
            self.mean[...] = 0.5 * self.mean + 0.5 * x
            self.calls[...] += 1
            return jnp.sin(x @ self.kernel) + self.mean

    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([Layer(1), Layer(3)])
            self.scale = classes(nnx).SpecialParam({"by": counted((2,))})
            self.rngs = nnx.Rngs(0)

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return jnp.sum(x * self.scale["by"])

    return Model()


def gradients_by_path(gradients):
    """Describes a State of gradients: value by path."""
    return {path: value_record(leaf.get_value()) for path, leaf in state_items(gradients)}


@clause(
    "TREE-005",
    MUST,
    TESTED,
    source="tests/nnx/integration_test.py::TestIntegration::test_stateful_example_functional",
)
class TestSplitGroups:
    """In tree mode, splitting off the Params and differentiating with respect to them, with `merge`
    inside, gives the gradients that `grad` of the model gives in graph mode with graph updates.

    The gradient is a State of the structure of the parameters that were split off.
    """

    @pytest.mark.parametrize("function", ["grad", "value_and_grad"])
    def test_gradients(self, nnx, function):
        x = np.float32([0.5, -1.0])
        graphdef, params, rest = nnx.split(layered(nnx), nnx.Param, ..., graph=False)
        transform = getattr(nnx, function)
        split = transform(lambda *groups: nnx.merge(graphdef, *groups)(x), **TREE)
        whole = transform(lambda model: model(x), graph=True, graph_updates=True)
        gradients, expected = split(params, rest), whole(layered(nnx))
        if function == "value_and_grad":
            (value, gradients), (expected_value, expected) = gradients, expected
            assert array_record(value) == array_record(expected_value)
        assert jax.tree.structure(gradients) == jax.tree.structure(params)
        found = gradients_by_path(gradients)
        assert found == gradients_by_path(expected)
        assert [*found] == [("layers", 0, "kernel"), ("layers", 1, "kernel"), ("scale",)]

    def test_values(self, nnx):
        model = net(nnx, w=param(nnx, [1, 2]), inner=net(nnx, n=nnx.BatchStat(counted((2,), 3))))
        graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=False)

        def split_loss(params, rest):
            merged = nnx.merge(graphdef, params, rest)
            return jnp.sum(merged.w**2 * merged.inner.n)

        gradients = nnx.grad(split_loss, **TREE)(params, rest)
        assert type(gradients).__name__ == type(params).__name__
        assert type(gradients["w"]).__name__ == "Param"
        assert gradients["w"].get_value().tolist() == [6, 16]

    @given(plan=trees())
    def test_any_model(self, nnx, plan):
        model = build(nnx, plan)
        graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=False)
        floats = {jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(params)}
        if floats <= {True}:
            split = nnx.grad(lambda *groups: loss(nnx.merge(graphdef, *groups)), **TREE)
            whole = nnx.grad(loss, graph=True, graph_updates=True)
            found = gradients_by_path(split(params, rest))
            assert found == gradients_by_path(whole(model))
            assert len(found) == len(variables(nnx, nnx.clone(params, graph=False)))
