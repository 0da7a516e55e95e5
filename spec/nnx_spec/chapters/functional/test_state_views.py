"""Views of state: what `state` gives, and what is on the object's side of the boundary."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, clause
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import (
    array_record,
    at,
    graph_items,
    snapshot,
    state_items,
    user_metadata,
    variable_record,
    variables,
)
from nnx_spec.plans import ArrayPlan, ModulePlan, VariablePlan, build
from nnx_spec.strategies import filters, graphs, trees

MODEL = ModulePlan(
    (
        ("kernel", VariablePlan("Param", ArrayPlan((2,)), (("tag", "red"),))),
        ("block", ModulePlan((("mean", VariablePlan("BatchStat", ArrayPlan((2,)))),))),
    )
)

STATES = {
    "split": lambda nnx, node, graph: nnx.split(node, graph=graph)[1],
    "split into groups": lambda nnx, node, graph: nnx.split(node, nnx.Param, ..., graph=graph)[1],
    "state": lambda nnx, node, graph: nnx.state(node, graph=graph),
    "state of a filter": lambda nnx, node, graph: nnx.state(node, nnx.Param, graph=graph),
}
"""The ways to a State with the Variable `kernel`."""


def augment(v):
    """Adds to a Variable's value."""
    v[...] += 5.0


WRITES = {
    "item": lambda v: v.__setitem__(..., jnp.asarray([8.0, 9.0])),
    "element": lambda v: v.__setitem__(0, 8.0),
    "augmented": augment,
    "set_value": lambda v: v.set_value(jnp.ones(3)),
    "new metadata": lambda v: v.set_metadata(owner="me"),
    "other metadata": lambda v: v.set_metadata(tag="blue"),
    "no metadata": lambda v: v.del_metadata("tag"),
}
"""The ways to change a Variable."""


@clause("GRF-009", MUST, source="api_reference/flax.nnx/graph")
class TestStateOfFilters:
    """`state(node, f1, ..., fn)` gives a State per filter, of the leaves that match it first.

    Without filters it gives one State of everything, with one filter a State instead of a tuple.
    What no filter matches is left out. The values are those of the object's Variables, not copies.
    """

    @both_modes
    @given(plan=trees(), filter_plans=st.lists(filters(everything=False), max_size=3))
    def test_trees(self, nnx, graph, plan, filter_plans):
        self.check(nnx, plan, filter_plans, graph)

    @given(
        plan=graphs(sharing=True, cycles=True),
        filter_plans=st.lists(filters(everything=False), max_size=3),
    )
    def test_graphs(self, nnx, plan, filter_plans):
        self.check(nnx, plan, filter_plans, graph=True)

    def check(self, nnx, plan, filter_plans, graph):
        node = build(nnx, plan)
        built = [build_filter(nnx, item) for item in filter_plans]
        result = nnx.state(node, *built, graph=graph)
        states = result if len(built) > 1 else (result,)
        assert isinstance(states, tuple)
        expected = [[] for _ in states]
        for path, item in graph_items(plan):
            group = group_of(filter_plans, path, item) if filter_plans else 0
            if group is not None:
                expected[group].append(path)
        assert [[path for path, _ in state_items(state)] for state in states] == expected
        for state in states:
            assert isinstance(state, nnx.State)
            for path, leaf in state_items(state):
                self.check_leaf(nnx, leaf, at(nnx, node, path))

    def check_leaf(self, nnx, leaf, original):
        if isinstance(original, nnx.Variable):
            assert variable_record(leaf) == variable_record(original)
            held, shared = (jax.tree.leaves(v.get_raw_value()) for v in (leaf, original))
            assert [id(array) for array in held] == [id(array) for array in shared]
        else:
            assert leaf is original


@clause("GRF-010", MUST, source="nnx_basics#the-flax-functional-api")
class TestBoundary:
    """A State is a value: writing to its Variables does not reach the object, nor the other way.

    This holds for values and metadata, for a State from `split` and from `state`, and for objects
    that `merge` makes of it: what is done on one side reaches the other by `update` alone. What is
    documented to share is not meant: `clone` with `variables=False`, views, and hijax Variables.
    """

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("source", STATES)
    def test_from_the_state(self, nnx, graph, source, write):
        node = build(nnx, MODEL)
        before = snapshot(nnx, node, identities=True)
        WRITES[write](STATES[source](nnx, node, graph)["kernel"])
        assert snapshot(nnx, node, identities=True) == before

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("source", STATES)
    def test_from_the_object(self, nnx, graph, source, write):
        node = build(nnx, MODEL)
        leaf = STATES[source](nnx, node, graph)["kernel"]
        before = variable_record(leaf)
        WRITES[write](node.kernel)
        assert variable_record(leaf) == before

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    def test_from_a_merged_object(self, nnx, graph, write):
        node = build(nnx, MODEL)
        before = snapshot(nnx, node, identities=True)
        merged = nnx.merge(*nnx.split(node, graph=graph))
        WRITES[write](merged.kernel)
        assert snapshot(nnx, node, identities=True) == before

    @given(plan=graphs(sharing=True, cycles=True))
    def test_every_variable_of_a_graph(self, nnx, plan):
        node = build(nnx, plan)
        before = snapshot(nnx, node, identities=True)
        for _, leaf in state_items(nnx.state(node, nnx.Variable, graph=True)):
            leaf.set_value(jnp.asarray(-1))
            leaf.set_metadata(owner="me")
        assert snapshot(nnx, node, identities=True) == before
        state = nnx.state(node, nnx.Variable, graph=True)
        records = [variable_record(leaf) for _, leaf in state_items(state)]
        for variable in variables(nnx, node):
            variable.set_value(jnp.asarray(-1))
            variable.set_metadata(owner="me")
        assert [variable_record(leaf) for _, leaf in state_items(state)] == records

    @both_modes
    def test_update_carries_values_over(self, nnx, graph):
        node = build(nnx, MODEL)
        state = nnx.state(node, graph=graph)
        augment(state["kernel"])
        nnx.update(node, state)
        assert array_record(node.kernel[...]) == array_record(jnp.asarray([5.0, 6.0]))
        assert user_metadata(node.kernel) == {"tag": "red"}
