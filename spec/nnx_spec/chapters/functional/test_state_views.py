"""Views of state: what `state` gives, and what is on the object's side of the boundary."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, TESTED, clause
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import (
    array_record,
    at,
    graph_items,
    state_items,
    user_metadata,
    variable_record,
    walk,
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


@clause("GRF-009", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.state")
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
            copied = [n for n, array in enumerate(shared) if held[n] is not array]
            assert copied == [], "these arrays of the value are copies"
        else:
            assert leaf is original


@clause(
    "GRF-010",
    MUST,
    TESTED,
    source="tests/nnx/graph_utils_test.py::TestGraphUtils::test_state_variables_shared_with_graph",
)
class TestSharing:
    """The leaves of `split` and `state` are the object's own Variables; `merge` uses its States'.

    So what is written to the values or metadata of the object, of its State, or of an object that
    `merge` makes of the State, is seen in the two others. What shares nothing is named by another
    clause: `merge` with `copy=True`, `clone`, a deep copy, and what goes through JAX.
    """

    @both_modes
    @pytest.mark.parametrize("source", STATES)
    def test_leaves(self, nnx, graph, source):
        node = build(nnx, MODEL)
        state = STATES[source](nnx, node, graph)
        assert places(nnx, node, state) == {path: path for path, _ in state_items(state)}

    @given(plan=graphs(sharing=True, cycles=True))
    def test_every_leaf_of_a_graph(self, nnx, plan):
        node = build(nnx, plan)
        states = nnx.split(node, nnx.Param, ..., graph=True)[1:]
        for state in (*states, nnx.state(node, graph=True)):
            state = nnx.filter_state(state, nnx.Variable)
            assert places(nnx, node, state) == {path: path for path, _ in state_items(state)}

    @given(plan=graphs(sharing=True, cycles=True))
    def test_every_leaf_of_a_merged_graph(self, nnx, plan):
        graphdef, *states = nnx.split(build(nnx, plan), nnx.Param, ..., graph=True)
        merged = nnx.merge(graphdef, *states)
        for state in states:
            state = nnx.filter_state(state, nnx.Variable)
            assert places(nnx, merged, state) == {path: path for path, _ in state_items(state)}

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("source", STATES)
    def test_from_the_state(self, nnx, graph, source, write):
        node = build(nnx, MODEL)
        WRITES[write](STATES[source](nnx, node, graph)["kernel"])
        assert variable_record(node.kernel) == written(nnx, write)

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("source", STATES)
    def test_from_the_object(self, nnx, graph, source, write):
        node = build(nnx, MODEL)
        leaf = STATES[source](nnx, node, graph)["kernel"]
        WRITES[write](node.kernel)
        assert variable_record(leaf) == written(nnx, write)

    @both_modes
    @pytest.mark.parametrize("write", WRITES)
    def test_from_a_merged_object(self, nnx, graph, write):
        node = build(nnx, MODEL)
        graphdef, state = nnx.split(node, graph=graph)
        WRITES[write](nnx.merge(graphdef, state).kernel)
        assert variable_record(node.kernel) == written(nnx, write)
        assert variable_record(state["kernel"]) == written(nnx, write)

    @both_modes
    def test_update_of_a_merged_object(self, nnx, graph):
        node = build(nnx, MODEL)
        merged = nnx.merge(*nnx.split(node, graph=graph))
        nnx.update(merged, {"kernel": jnp.asarray([5.0, 6.0])})
        assert array_record(node.kernel[...]) == array_record(jnp.asarray([5.0, 6.0]))
        assert user_metadata(node.kernel) == {"tag": "red"}


def places(nnx, node, state):
    """Says for each path of a State at which path of an object that very leaf stands, if at any."""
    own = {id(value): path for path, value in walk(nnx, node)}
    return {path: own.get(id(leaf), "nowhere") for path, leaf in state_items(state)}


def written(nnx, write):
    """Describes the Variable `kernel` after a write."""
    kernel = build(nnx, MODEL).kernel
    WRITES[write](kernel)
    return variable_record(kernel)
