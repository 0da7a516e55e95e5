"""Modes: setting attributes all over a model, in place and on a copy that shares its Variables."""

import functools

import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.chapters.modules.models import layers, model_with_modes, modes, with_modes
from nnx_spec.oracles import nodes, snapshot, variables
from nnx_spec.plans import build
from nnx_spec.strategies import graphs, trees

SELECTIONS = {
    "class": lambda nnx: layers(nnx).Dropout,
    "path": lambda nnx: nnx.PathContains("blocks"),
    "callable": lambda nnx: lambda path, module: len(path) == 1,
    "several": lambda nnx: (nnx.PathContains("tree"), nnx.PathContains("plain")),
    "all but": lambda nnx: nnx.Not(nnx.PathContains("blocks")),
}
"""Filters of Modules."""

SELECTED = {
    "class": with_modes(7, False),
    "path": with_modes(False, False, **{"blocks.1.drop": 7}),
    "callable": with_modes(False, False, drop=7),
    "several": with_modes(False, False, **{"tree.drop": 7, "plain.0": 7}),
    "all but": with_modes(7, False, **{"blocks.1.drop": False}),
}
"""The modes after `deterministic` has been set to 7 where the filter selects a Module."""


@clause(
    "MOD-013",
    MUST,
    DOCUMENTED,
    source="api_reference/flax.nnx/module#flax.nnx.Module.set_attributes",
)
class TestSettingAttributes:
    """`set_attributes` sets attributes in place on every nested Module that has them.

    Filters restrict it to the Modules that they select. A name that no selected Module has raises
    ValueError, unless `raise_if_not_found=False`. `train` and `eval` set
    `deterministic` and `use_running_average` to False and to True, and what else they are given.
    """

    def test_train_and_eval(self, nnx):
        model = model_with_modes(nnx)
        model.eval()
        assert modes(model) == with_modes(True, True)
        model.train()
        assert modes(model) == with_modes(False, False)

    def test_train_and_eval_with_further_attributes(self, nnx):
        model = model_with_modes(nnx)
        model.eval(rate=0.0)
        assert modes(model) == with_modes(True, True)
        assert (model.drop.rate, model.plain[0].rate) == (0, 0)
        assert not hasattr(model.blocks[0], "rate")

    def test_models_without_modes(self, nnx):
        model = net(nnx, w=param(nnx, 1.0), n=1)
        before = snapshot(nnx, model, identities=True)
        model.train()
        model.eval()
        assert snapshot(nnx, model, identities=True) == before

    def test_all_modules(self, nnx):
        model = model_with_modes(nnx)
        weight, statistic = model.weight, model.blocks[0].mean
        model.set_attributes(deterministic="d", use_running_average="u")
        assert modes(model) == with_modes("d", "u")
        assert not hasattr(model, "deterministic")
        assert model.weight is weight
        assert model.blocks[0].mean is statistic

    def test_the_module_itself(self, nnx):
        model = net(nnx, deterministic=None, inner=layers(nnx).Dropout())
        model.set_attributes(deterministic=7)
        assert (model.deterministic, model.inner.deterministic) == (7, 7)

    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_filters(self, nnx, selection):
        model = model_with_modes(nnx)
        model.set_attributes(SELECTIONS[selection](nnx), deterministic=7)
        assert modes(model) == SELECTED[selection]

    def test_several_filters(self, nnx):
        model = model_with_modes(nnx)
        own = layers(nnx)
        model.set_attributes(own.Norm, nnx.PathContains("tree"), deterministic=7, rate=0.0)
        assert modes(model) == with_modes(False, False, **{"tree.drop": 7})
        assert (model.tree.drop.rate, model.drop.rate) == (0, 0.5)

    @pytest.mark.parametrize(
        ("filters", "attributes", "missing"),
        [
            ((), {"zone": 1}, "zone"),
            ((), {"deterministic": 1, "zone": 2}, "zone"),
            (("Norm",), {"deterministic": 1}, "deterministic"),
            (("Dropout",), {"deterministic": 1, "use_running_average": 1}, "use_running_average"),
        ],
    )
    def test_names_that_nothing_has(self, nnx, filters, attributes, missing):
        model = model_with_modes(nnx)
        selected = [getattr(layers(nnx), name) for name in filters]
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            model.set_attributes(*selected, **attributes)
        model.set_attributes(*selected, **attributes, raise_if_not_found=False)
        dropped = attributes.get("deterministic") if "Norm" not in filters else None
        assert modes(model) == with_modes(dropped or False, False)
        assert not hasattr(model, "zone")
        assert not hasattr(model.drop, "zone")


VIEWS = {
    "view": lambda nnx: nnx.view,
    "with_attributes": lambda nnx: nnx.with_attributes,
}
"""Functions that give a copy with other modes."""

either_view = pytest.mark.parametrize("view", VIEWS)


@clause("MOD-014", MUST, DOCUMENTED, source="guides/view#example-with-nnx-view")
class TestViews:
    """`view` gives a copy of a model in other modes, which shares its Variables and arrays.

    The original keeps its modes. A mode goes to every Module whose `set_view` has a parameter of
    that name, and `only` restricts it to the Modules that a filter selects. A mode that no selected
    Module takes raises ValueError, unless `raise_if_not_found=False`.
    `with_attributes` does the same for attributes, wherever a Module has them.
    """

    @both_modes
    @either_view
    def test_modes_of_the_copy(self, nnx, view, graph):
        model = model_with_modes(nnx)
        before = snapshot(nnx, model, identities=True)
        make = functools.partial(VIEWS[view](nnx), model, graph=graph)
        one, other = make(deterministic=True), make(deterministic=True, use_running_average="u")
        assert modes(one) == with_modes(True, False)
        assert modes(other) == with_modes(True, "u")
        assert modes(make()) == with_modes(False, False)
        assert snapshot(nnx, model, identities=True) == before
        assert type(one) is type(model)

    @both_modes
    @either_view
    def test_sharing_with_the_original(self, nnx, view, graph):
        model = model_with_modes(nnx)
        copy = VIEWS[view](nnx)(model, deterministic=True, graph=graph)
        assert copy.weight is model.weight
        assert copy.table["norm"].mean is model.table["norm"].mean
        assert copy.blocks[0].table is model.blocks[0].table
        assert not {*map(id, nodes(nnx, model))} & {*map(id, nodes(nnx, copy))}
        copy.weight[...] = 9.0
        assert model.weight.get_value().tolist() == [9, 9]
        copy.extra = 1
        assert not hasattr(model, "extra")

    @given(plan=trees())
    def test_sharing_of_any_tree(self, nnx, plan):
        self.check_sharing(nnx, nnx.view, build(nnx, plan), graph=False)

    @given(plan=graphs(sharing=True))
    def test_sharing_of_any_graph(self, nnx, plan):
        self.check_sharing(nnx, nnx.with_attributes, build(nnx, plan), graph=True)

    def check_sharing(self, nnx, view, model, graph):
        copy = view(model, mode=1, raise_if_not_found=False, graph=graph)
        assert snapshot(nnx, copy) == snapshot(nnx, model)
        assert [*map(id, variables(nnx, copy))] == [*map(id, variables(nnx, model))]
        assert not {*map(id, nodes(nnx, model))} & {*map(id, nodes(nnx, copy))}

    @either_view
    def test_shared_modules(self, nnx, view):
        norm = layers(nnx).Norm()
        copy = VIEWS[view](nnx)(net(nnx, a=norm, b=norm), use_running_average=True, graph=True)
        assert copy.a is copy.b
        assert copy.a.mean is norm.mean
        assert (copy.a.use_running_average, norm.use_running_average) == (True, False)

    @both_modes
    @either_view
    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_filters(self, nnx, view, selection, graph):
        model, only = model_with_modes(nnx), SELECTIONS[selection](nnx)
        copy = VIEWS[view](nnx)(model, only=only, deterministic=7, graph=graph)
        assert modes(copy) == SELECTED[selection]
        assert modes(model) == with_modes(False, False)

    @both_modes
    @either_view
    def test_unknown_modes(self, nnx, view, graph):
        model, norm = model_with_modes(nnx), layers(nnx).Norm
        before = snapshot(nnx, model, identities=True)
        make = functools.partial(VIEWS[view](nnx), model, graph=graph)
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            make(zone=1)
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            make(deterministic=True, zone=1)
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            make(only=norm, deterministic=True)
        assert snapshot(nnx, model, identities=True) == before
        copy = make(deterministic=True, zone=1, raise_if_not_found=False)
        assert modes(copy) == with_modes(True, False)
        assert not hasattr(copy, "zone")
        copy = make(only=norm, deterministic=True, raise_if_not_found=False)
        assert modes(copy) == with_modes(False, False)

    def test_set_view_gets_what_it_declares(self, nnx):
        calls = []

        class Layer(nnx.Module):
            def set_view(self, decode: bool | None = None, length: int | None = None):
                calls.append((decode, length))

        nnx.view(net(nnx, layer=Layer(), drop=layers(nnx).Dropout()), length=3, rate=0.1)
        assert calls == [(None, 3)]

    def test_none_leaves_a_mode(self, nnx):
        model = model_with_modes(nnx)
        copy = nnx.view(model, deterministic=None, use_running_average=True)
        assert modes(copy) == with_modes(False, True)

    def test_attributes_of_any_kind(self, nnx):
        model = net(nnx, inner=net(nnx, w=param(nnx, 1.0), n=1), n=2)
        w = param(nnx, 5.0)
        copy = nnx.with_attributes(model, n="new", w=w)
        assert (copy.n, copy.inner.n) == ("new", "new")
        assert copy.inner.w is w
        assert (model.n, model.inner.n, float(model.inner.w.get_value())) == (2, 1, 1)
