"""Clone and pop: copies of an object, and taking Variables out of one."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.edits import without_lists
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.filter_plans import AllPlan, TypePlan, build_filter, group_of
from nnx_spec.oracles import (
    at,
    children,
    graph_items,
    nodes,
    snapshot,
    state_items,
    variable_record,
    variables,
    walk,
)
from nnx_spec.plans import (
    ArrayPlan,
    ListPlan,
    ModulePlan,
    PytreePlan,
    SharedPlan,
    VariablePlan,
    build,
    classes,
)
from nnx_spec.strategies import filters, graphs, trees

CLONE = "api_reference/flax.nnx/graph#flax.nnx.clone"

variable_filters = filters().map(lambda plan: AllPlan((TypePlan("Variable"), plan)))
"""Plans of filters that select Variables only."""


@clause("GRF-011", MUST, DOCUMENTED, source=CLONE)
class TestClone:
    """`clone(node)` is an equal copy that shares neither nodes nor Variables with the original.

    Writing values, metadata or attributes of the one does not reach the other. With
    `variables=False` the copy's nodes are new, and its Variables are the original's own objects.
    """

    @both_modes
    @given(plan=trees())
    def test_trees(self, nnx, graph, plan):
        self.check_independent(nnx, plan, graph)

    @given(plan=graphs(sharing=True, cycles=True))
    def test_graphs(self, nnx, plan):
        self.check_independent(nnx, plan, graph=True)

    def check_independent(self, nnx, plan, graph):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        copy = nnx.clone(original, graph=graph)
        assert snapshot(nnx, original, identities=True) == before
        assert snapshot(nnx, copy) == snapshot(nnx, original)
        assert common(nnx, original, copy) == []
        change_everything(nnx, copy)
        assert snapshot(nnx, original, identities=True) == before
        second = nnx.clone(original, graph=graph)
        before = snapshot(nnx, second, identities=True)
        change_everything(nnx, original)
        assert snapshot(nnx, second, identities=True) == before

    @both_modes
    @given(plan=trees())
    def test_shared_variables_of_trees(self, nnx, graph, plan):
        self.check_shared(nnx, plan, graph)

    @given(plan=graphs(sharing=True, cycles=True))
    def test_shared_variables_of_graphs(self, nnx, plan):
        self.check_shared(nnx, plan, graph=True)

    def check_shared(self, nnx, plan, graph):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        copy = nnx.clone(original, variables=False, graph=graph)
        assert snapshot(nnx, original, identities=True) == before
        assert snapshot(nnx, copy) == snapshot(nnx, original)
        shared = [path for path, item in walk(nnx, original) if isinstance(item, nnx.Variable)]
        assert common(nnx, original, copy) == shared
        copy.further = 1
        assert not hasattr(original, "further")


@clause("GRF-012", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.pop")
class TestPop:
    """`pop(node, f1, ..., fn)` takes the matching Variables out of a node and gives them back.

    It gives a State per filter, or with one filter a State instead of a tuple, with each Variable
    in the first that matches it, at the first of its paths. The Variables are gone from the node at
    every path; all else is as before.
    """

    @given(
        plan=graphs(sharing=True, cycles=True).map(without_lists),
        filter_plans=st.lists(variable_filters, min_size=1, max_size=3),
    )
    def test_graphs(self, nnx, plan, filter_plans):
        node, rest = build(nnx, plan), build(nnx, plan)
        expected = [{} for _ in filter_plans]
        for path, item in graph_items(plan):
            group = group_of(filter_plans, path, item)
            if group is not None:
                expected[group][path] = variable_record(at(nnx, node, path))
        for group in expected:
            remove(nnx, rest, [at(nnx, rest, path) for path in group])
        result = nnx.pop(node, *[build_filter(nnx, item) for item in filter_plans])
        states = result if len(filter_plans) > 1 else (result,)
        assert isinstance(states, tuple)
        assert [popped(nnx, state) for state in states] == expected
        assert snapshot(nnx, node) == snapshot(nnx, rest)

    def test_identities_of_the_rest(self, nnx):
        plan = ModulePlan((("kernel", VariablePlan("Param")), ("mean", VariablePlan("BatchStat"))))
        node = build(nnx, ModulePlan((("block", plan), ("table", ArrayPlan((2,))))))
        before = [id(node.block), id(node.block.mean), id(node.table)]
        nnx.pop(node, nnx.Param)
        assert [id(node.block), id(node.block.mean), id(node.table)] == before
        assert not hasattr(node.block, "kernel")

    @pytest.mark.parametrize("kind", [ModulePlan, PytreePlan])
    def test_shared_variable(self, nnx, kind):
        inner = kind((("first", SharedPlan(1)), ("mean", VariablePlan("BatchStat"))))
        plan = ModulePlan(
            (("first", VariablePlan("Param")), ("block", inner), ("second", SharedPlan(1)))
        )
        node = build(nnx, plan)
        state = nnx.pop(node, nnx.Param)
        assert [path for path, _ in state_items(state)] == [("block", "first")]
        found = [
            hasattr(owner, name) for owner in (node, node.block) for name in ("first", "second")
        ]
        assert found == [False] * 4
        assert hasattr(node.block, "mean")
        assert state_items(nnx.pop(node, nnx.Param)) == []

    def test_items_of_a_list(self, nnx):
        kinds = ("Param", "BatchStat", "Param", "Cache")
        items = tuple((n, VariablePlan(kind, ArrayPlan(start=n))) for n, kind in enumerate(kinds))
        node = build(nnx, ModulePlan((("layers", ListPlan(items)),)))
        kept = [id(node.layers[1]), id(node.layers[3])]
        state = nnx.pop(node, nnx.Param)
        assert [path for path, _ in state_items(state)] == [("layers", 0), ("layers", 2)]
        assert len(node.layers) == 2
        assert [id(item) for item in node.layers] == kept


def common(nnx, original, copy):
    """Lists where in a copy there are nodes and Variables of the original."""
    own = {id(item) for item in (*nodes(nnx, original), *variables(nnx, original))}
    return [path for path, item in walk(nnx, copy) if id(item) in own]


def change_everything(nnx, root):
    """Writes to every Variable of an object graph, and adds an attribute to every Module."""
    for variable in variables(nnx, root):
        variable.set_value(jnp.asarray(-1))
        variable.set_metadata(owner="changed")
    for node in nodes(nnx, root):
        if isinstance(node, (classes(nnx).Net, classes(nnx).Tree)):
            node.further = 1


def remove(nnx, root, gone):
    """Deletes Variables from an object graph without lists, wherever they stand."""
    for node in nodes(nnx, root):
        for key, child in children(nnx, node):
            if any(child is variable for variable in gone):
                if isinstance(node, nnx.Dict):
                    del node[key]
                else:
                    delattr(node, key)


def popped(nnx, state):
    """Describes a State of Variables exactly, by path."""
    assert isinstance(state, nnx.State)
    return {path: variable_record(leaf) for path, leaf in state_items(state)}
