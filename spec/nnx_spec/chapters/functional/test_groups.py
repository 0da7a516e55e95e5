"""Groups: how filters divide an object's state."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import at, graph_items, leaf_record, names_path, snapshot, state_items
from nnx_spec.plans import ArrayPlan, DictPlan, ModulePlan, VariablePlan, build
from nnx_spec.strategies import filter_groups, filters, graphs, trees

GROUPS = "guides/filters_guide#grouping-states"

MODEL = ModulePlan(
    (
        ("kernel", VariablePlan("Param", ArrayPlan((2,)))),
        ("block", DictPlan((("mean", VariablePlan("BatchStat", ArrayPlan((1,)))),))),
        ("tally", VariablePlan("Count", ArrayPlan((), "int32"))),
        ("table", ArrayPlan((2,))),
    )
)

LEFTOVERS = {
    "Variable": (lambda nnx: [nnx.BatchStat, (nnx.PathContains("tally"), "table")], ("kernel",)),
    "below": (lambda nnx: [nnx.Param, nnx.Not(nnx.PathContains("block"))], ("block", "mean")),
    "array": (lambda nnx: [nnx.Variable], ("table",)),
    "nothing": (lambda nnx: [nnx.Not(nnx.PathContains("tally")), None], ("tally",)),
}
"""Filters that leave something of the model over, and where that stands."""


@clause("GRF-004", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.split")
class TestGroups:
    """`split(node, f1, ..., fn)` gives a State per filter; each leaf is in the first that matches.

    The groups are disjoint, and together they hold every Variable and array of the node, at the
    paths and with the values that the undivided State has. A filter that matches nothing, or only
    what earlier ones have taken, gives an empty State.
    """

    @both_modes
    @given(plan=trees(), filter_plans=filter_groups())
    def test_trees(self, nnx, graph, plan, filter_plans):
        self.check(nnx, plan, filter_plans, graph)

    @given(plan=graphs(sharing=True, cycles=True), filter_plans=filter_groups())
    def test_graphs(self, nnx, plan, filter_plans):
        self.check(nnx, plan, filter_plans, graph=True)

    def check(self, nnx, plan, filter_plans, graph):
        node = build(nnx, plan)
        built = [build_filter(nnx, item) for item in filter_plans]
        _, *states = nnx.split(node, *built, graph=graph)
        expected = [[] for _ in filter_plans]
        for path, item in graph_items(plan):
            expected[group_of(filter_plans, path, item)].append(path)
        assert [[path for path, _ in state_items(state)] for state in states] == expected
        for state in states:
            assert isinstance(state, nnx.State)
            for path, leaf in state_items(state):
                assert leaf_record(nnx, leaf) == leaf_record(nnx, at(nnx, node, path))

    @both_modes
    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_one_state_for_each_filter(self, nnx, graph, count):
        given_back = nnx.split(build(nnx, MODEL), *[None] * (count - 1), ..., graph=graph)
        assert len(given_back) == 1 + count
        assert [len(state_items(state)) for state in given_back[1:]] == [0] * (count - 1) + [4]


@clause("GRF-005", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.split")
class TestExhaustiveFilters:
    """Filters that leave something of a `split` over, or `...` before the last, raise ValueError.

    The object is untouched.
    """

    @both_modes
    @pytest.mark.parametrize("name", LEFTOVERS)
    def test_leftovers(self, nnx, graph, name):
        make, _ = LEFTOVERS[name]
        node = build(nnx, MODEL)
        before = snapshot(nnx, node, identities=True)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.split(node, *make(nnx), graph=graph)
        assert snapshot(nnx, node, identities=True) == before

    @both_modes
    @given(plan=trees(), filter_plans=st.lists(filters(everything=False), min_size=1, max_size=3))
    def test_any_leftover(self, nnx, graph, plan, filter_plans):
        left = [p for p, item in graph_items(plan) if group_of(filter_plans, p, item) is None]
        assume(left)
        built = [build_filter(nnx, item) for item in filter_plans]
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.split(build(nnx, plan), *built, graph=graph)

    @both_modes
    @pytest.mark.parametrize("function", ["split", "state"])
    @pytest.mark.parametrize(
        "make",
        [
            lambda nnx: (..., nnx.Param),
            lambda nnx: (nnx.BatchStat, ..., nnx.Param),
            lambda nnx: (..., nnx.Param, ...),
        ],
        ids=["first", "second", "first-and-last"],
    )
    def test_everything_before_the_last(self, nnx, graph, make, function):
        with pytest.raises(ValueError):  # noqa: PT011
            getattr(nnx, function)(build(nnx, MODEL), *make(nnx), graph=graph)


@clause("GRF-040", SHOULD, OURS, source="whoever groups a state wants to know what is left over")
@both_modes
@pytest.mark.parametrize("name", LEFTOVERS)
def test_leftovers_are_named(nnx, graph, name):
    """The error about what the filters of a `split` leave over names a path to it."""
    make, path = LEFTOVERS[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        nnx.split(build(nnx, MODEL), *make(nnx), graph=graph)
    message = str(caught.value)
    assert names_path(message, path), f"{path} is not named in: {message}"
