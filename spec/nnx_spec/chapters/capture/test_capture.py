"""Capturing: what a call sows, beside its result."""

import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.capture.models import (
    X,
    defaults,
    found,
    negatives,
    own,
    products,
    wanted,
)
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import MODES, each_mode
from nnx_spec.oracles import at, objects, sort_key
from nnx_spec.plans import ModulePlan, build
from nnx_spec.strategies import shared_graphs, trees

SOURCE = "guides/extracting_intermediates"

FORMS = {
    "Module": lambda nnx, model, *kinds: nnx.capture(model, *kinds),
    "method": lambda nnx, model, *kinds: nnx.capture(model.apply, *kinds),
    "function": lambda nnx, model, *kinds: (
        lambda *args, **kwargs: nnx.capture(
            lambda model, x, *, shift=0.0: model(x, shift=shift), *kinds
        )(model, *args, **kwargs)
    ),
    "decorator": lambda nnx, model, *kinds: (
        lambda *args, **kwargs: nnx.capture(*kinds)(
            lambda model, x, *, shift=0.0: model(x, shift=shift)
        )(model, *args, **kwargs)
    ),
}
"""Ways to capture what a Stack sows; each gives a function of what the Stack is called with."""


def sow_everywhere(node, nnx, plan):
    """Sows in every Module of a plan, once for each of its paths, a number.

    Returns what is sown by the path of each Module, the first of its paths.
    """
    sown = {}
    for paths in (paths for item, paths in objects(plan) if isinstance(item, ModulePlan)):
        for number, path in enumerate(paths):
            at(nnx, node, path).sow(nnx.Intermediate, "sown here", X(number))
        sown[(*min(paths, key=ordered), "sown here")] = (*range(len(paths)),)
    return sown


def ordered(path):
    """Gives the order in which objects are walked through."""
    return [sort_key(key) for key in path]


@clause("CAP-001", MUST, DOCUMENTED, source=SOURCE)
class TestCapture:
    """`capture(f, Type, ...)` makes a function that returns f's result and, for each Type, a State
    of what was sown of that Type meanwhile.

    f is a Module, a method of one, or a function whose first argument is one; without f, the result
    is a decorator. In a State there is, at the path of each Module that sowed and under the name
    that it sowed by, a Variable of the Type. If nothing was sown, the State is empty; with no Type
    the result is returned alone. Otherwise the call does what it does without capturing.
    """

    @each_mode
    @pytest.mark.parametrize("form", FORMS)
    def test_forms(self, nnx, form, mode):
        model = own(nnx).Stack()
        with defaults(nnx, mode):
            output = FORMS[form](nnx, model, nnx.Intermediate)(X(3), shift=1.0)
        assert type(output) is tuple, f"a {type(output).__name__} was returned"
        result, state = output
        assert float(result) == 4411
        assert isinstance(state, nnx.State), f"a {type(state).__name__} holds what was sown"
        assert found(state, nnx.Intermediate) == wanted(products(3))
        assert int(model.tail.calls[...]) == 2

    @pytest.mark.parametrize("form", FORMS)
    def test_several_types(self, nnx, form):
        metric = own(nnx).Metric
        for kinds in ([nnx.Intermediate, metric], [metric, nnx.Intermediate]):
            result, *states = FORMS[form](nnx, own(nnx).Stack(), *kinds)(X(3))
            assert float(result) == 4410
            expected = {nnx.Intermediate: products(3), metric: negatives(3)}
            for kind, state in zip(kinds, states, strict=True):
                assert found(state, kind) == wanted(expected[kind])

    @each_mode
    def test_nothing_is_sown(self, nnx, mode):
        model = own(nnx).Stack()
        with defaults(nnx, mode):
            result, cached, state = nnx.capture(model, nnx.Cache, nnx.Perturbation)(X(3))
            quiet = nnx.capture(lambda module: "result", nnx.Intermediate)(net(nnx))
        assert (float(result), len(cached), len(state)) == (4410, 0, 0)
        assert isinstance(state, nnx.State), f"a {type(state).__name__} holds what was sown"
        assert (quiet[0], len(quiet[1]), len(quiet)) == ("result", 0, 2)

    def test_no_type(self, nnx):
        assert float(nnx.capture(own(nnx).Stack())(X(3))) == 4410

    def test_each_call_begins_anew(self, nnx):
        capturing = nnx.capture(own(nnx).Stack(), nnx.Intermediate)
        for x in (3, 4):
            assert found(capturing(X(x))[1]) == wanted(products(x))

    def test_results_of_any_kind(self, nnx):
        model = own(nnx).Stack()
        value = {"x": (1, "text"), "model": model}
        result, state = nnx.capture(lambda model: value, nnx.Intermediate)(model)
        assert result is value, "another object was returned than the function's result"
        assert len(state) == 0

    @given(plan=trees())
    def test_any_tree(self, nnx, plan):
        self.check(nnx, plan, MODES["tree-mode"])

    @given(plan=shared_graphs(cycles=True))
    def test_any_graph(self, nnx, plan):
        self.check(nnx, plan, MODES["graph-mode"])

    def check(self, nnx, plan, mode):
        node = build(nnx, plan)
        with defaults(nnx, mode):
            capturing = nnx.capture(sow_everywhere, nnx.Intermediate)
            expected, state = capturing(node, nnx, plan)
        assert found(state, nnx.Intermediate) == wanted(expected)

    def test_attributes_of_the_same_name(self, nnx):
        model = net(nnx, y=param(nnx, 1.0), n=nnx.Intermediate(X(5)))
        capturing = nnx.capture(lambda m: m.sow(nnx.Intermediate, "y", m.y + 1), nnx.Intermediate)
        assert found(capturing(model)[1]) == wanted({("y",): (2.0,)})
        assert float(model.y[...]) == 1
