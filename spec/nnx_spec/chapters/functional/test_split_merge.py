"""Split and merge: an object as a graphdef and a State, and back."""

import functools
import itertools
from collections.abc import Mapping

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, TESTED, clause
from nnx_spec.chapters.functional.edits import edits, reordered, revalued
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.chapters.functional.states import nested
from nnx_spec.filter_plans import build_filter
from nnx_spec.oracles import (
    at,
    graph_items,
    leaf_record,
    names_path,
    nodes,
    snapshot,
    state_items,
    state_paths,
)
from nnx_spec.plans import (
    ArrayPlan,
    ListPlan,
    ModulePlan,
    StaticPlan,
    VariablePlan,
    build,
)
from nnx_spec.strategies import filter_groups, graphs, trees

FUNCTIONAL = "nnx_basics#split-merge-and-update"

MODEL = ModulePlan(
    (
        ("kernel", VariablePlan("Param", ArrayPlan((2,)), (("tag", "red"),))),
        ("block", ModulePlan((("mean", VariablePlan("BatchStat", ArrayPlan((), "int32"))),))),
        ("layers", ListPlan(((0, VariablePlan("Count", ArrayPlan((1, 3)))),))),
        ("table", ArrayPlan((2,), start=5)),
        ("width", StaticPlan(7)),
    )
)
"""Variables at the root, below a Module and in a List, an array and a static value."""


@clause("GRF-001", MUST, DOCUMENTED, source=FUNCTIONAL)
class TestSplitAndMerge:
    """`merge` of what `split` gives is a new object equal to the split one, which stays untouched.

    Equal means: of the same classes, with the same attributes, Variables (class, value, metadata),
    arrays and static values, and in graph mode with the same sharing. New means that no node of the
    one is a node of the other, and that each `merge` makes nodes of its own.
    """

    @both_modes
    @given(plan=trees())
    def test_trees(self, nnx, graph, plan):
        self.check(nnx, plan, graph)

    @given(plan=graphs(sharing=True, cycles=True))
    def test_graphs(self, nnx, plan):
        self.check(nnx, plan, graph=True)

    def check(self, nnx, plan, graph):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        graphdef, state = nnx.split(original, graph=graph)
        first, second = nnx.merge(graphdef, state), nnx.merge(graphdef, state)
        assert snapshot(nnx, first) == snapshot(nnx, second) == snapshot(nnx, build(nnx, plan))
        assert snapshot(nnx, original, identities=True) == before
        made = [id(node) for root in (original, first, second) for node in nodes(nnx, root)]
        assert len(set(made)) == len(made)


@clause(
    "GRF-002",
    MUST,
    TESTED,
    source="tests/nnx/graph_utils_test.py::TestGraphUtils::test_graphdef_hash_with_sequential",
)
class TestGraphdefEquality:
    """Two graphdefs are equal, with equal hashes, exactly when the objects are equal in structure.

    Structure is everything but the values of Variables and arrays: classes, attribute names, static
    values, sharing, and the classes and metadata of Variables. The order in which attributes were
    set is not part of it.
    """

    @both_modes
    @given(plan=trees())
    def test_equal_trees(self, nnx, graph, plan):
        ways = (plan, plan, revalued(plan), reordered(plan))
        self.check_equal([nnx.graphdef(build(nnx, way), graph=graph) for way in ways])

    @given(plan=graphs(sharing=True, cycles=True))
    def test_equal_graphs(self, nnx, plan):
        ways = (plan, plan, revalued(plan))
        self.check_equal([nnx.graphdef(build(nnx, way), graph=True) for way in ways])

    def check_equal(self, graphdefs):
        first, *others = graphdefs
        for other in others:
            assert first == other
            assert (first != other) is False
            assert hash(first) == hash(other)
        assert len(set(graphdefs)) == 1

    @both_modes
    @given(plan=trees(), choice=st.integers(0, 999))
    def test_one_edit_of_a_tree(self, nnx, graph, plan, choice):
        self.check_edits(nnx, plan, edits(plan, choice, sharing=False), graph)

    @given(plan=graphs(sharing=True, cycles=True), choice=st.integers(0, 999))
    def test_one_edit_of_a_graph(self, nnx, plan, choice):
        self.check_edits(nnx, plan, edits(plan, choice, sharing=True), graph=True)

    def check_edits(self, nnx, plan, by_kind, graph):
        unnoticed = []
        for kind, versions in by_kind.items():
            before, after = (nnx.graphdef(build(nnx, way), graph=graph) for way in versions)
            if (before == after, before != after, len({before, after})) != (False, True, 2):
                unnoticed.append(kind)
        assert unnoticed == []


@clause("GRF-003", MUST, DOCUMENTED, source="nnx_basics#state-and-graphdef")
class TestState:
    """A State maps keys to Variables, arrays or further States, along the attribute paths.

    It is read by item, and where keys are strings by attribute. It is a JAX pytree; the order of
    its leaves is that of the keys, whatever the order in which attributes were set, and flattening
    and unflattening give back an equal State.
    """

    @both_modes
    @given(plan=trees())
    def test_paths_and_leaves(self, nnx, graph, plan):
        original = build(nnx, plan)
        state = nnx.split(original, graph=graph)[1]
        assert isinstance(state, nnx.State)
        assert isinstance(state, Mapping)
        assert [path for path, _ in state_items(state)] == state_paths(plan)
        for path, leaf in state_items(state):
            assert leaf_record(nnx, leaf) == leaf_record(nnx, at(nnx, original, path))
            assert functools.reduce(by_attribute, path, state) is leaf

    @both_modes
    @given(plan=trees())
    def test_order_of_leaves(self, nnx, graph, plan):
        for way in (plan, reordered(plan)):
            state = nnx.split(build(nnx, way), graph=graph)[1]
            leaves = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
            in_order = [leaf_record(nnx, build(nnx, item)) for _, item in graph_items(plan)]
            assert [leaf_record(nnx, leaf) for leaf in leaves] == in_order

    @both_modes
    @given(plan=trees())
    def test_flatten_and_unflatten(self, nnx, graph, plan):
        state = nnx.split(build(nnx, plan), graph=graph)[1]
        leaves, treedef = jax.tree.flatten(state)
        again = jax.tree.unflatten(treedef, leaves)
        assert isinstance(again, nnx.State)
        assert records(nnx, again) == records(nnx, state)
        other = nnx.split(build(nnx, revalued(reordered(plan))), graph=graph)[1]
        assert jax.tree.structure(other) == treedef


def split_items(nnx, graph):
    """Splits the common model; returns the graphdef, and the leaves by their paths."""
    graphdef, state = nnx.split(build(nnx, MODEL), graph=graph)
    return graphdef, dict(state_items(state))


def refusal_of(nnx, graphdef, items):
    """Asserts that leaves are refused by `merge`, and returns the message."""
    with pytest.raises((ValueError, TypeError, KeyError)) as caught:
        nnx.merge(graphdef, nnx.State(nested(items)))
    return str(caught.value)


def take_away(items, path):
    """Takes a leaf away."""
    del items[path]
    return [path]


def rename(items, path):
    """Puts a leaf under another key."""
    items[(*path[:-1], "zone")] = items.pop(path)
    return [path, (*path[:-1], "zone")]


def deepen(items, path):
    """Puts a leaf below where it belongs."""
    items[(*path, "zone")] = items.pop(path)
    return [path]


MISFITS = {"missing": take_away, "under another key": rename, "a node instead": deepen}
"""Ways to spoil leaves; each returns the paths of which one is to be named."""


@clause("GRF-006", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.merge")
class TestMergeOfGroups:
    """`merge` takes a State in any number of groups, in any order, and refuses what does not fit.

    A leaf that is missing, one too many, a leaf where the object has a node and a node where it has
    a leaf raise an error.
    """

    @both_modes
    @given(plan=trees(), filters=filter_groups(), order=st.randoms(use_true_random=False))
    def test_any_grouping_in_any_order(self, nnx, graph, plan, filters, order):
        self.check(nnx, plan, filters, order, graph)

    @given(
        plan=graphs(sharing=True, cycles=True),
        filters=filter_groups(),
        order=st.randoms(use_true_random=False),
    )
    def test_any_grouping_of_a_graph(self, nnx, plan, filters, order):
        self.check(nnx, plan, filters, order, graph=True)

    def check(self, nnx, plan, filters, order, graph):
        original = build(nnx, plan)
        built = [build_filter(nnx, item) for item in filters]
        graphdef, *groups = nnx.split(original, *built, graph=graph)
        order.shuffle(groups)
        assert snapshot(nnx, nnx.merge(graphdef, *groups)) == snapshot(nnx, original)

    @both_modes
    def test_every_order_of_single_leaves(self, nnx, graph):
        original = build(nnx, MODEL)
        graphdef, state = nnx.split(original, graph=graph)
        groups = [nnx.State(nested({path: leaf})) for path, leaf in state_items(state)]
        for order in itertools.permutations(groups):
            assert snapshot(nnx, nnx.merge(graphdef, *order)) == snapshot(nnx, original)

    @both_modes
    @pytest.mark.parametrize("path", state_paths(MODEL), ids=str)
    def test_missing_leaf(self, nnx, graph, path):
        graphdef, items = split_items(nnx, graph)
        del items[path]
        refusal_of(nnx, graphdef, items)

    @both_modes
    @pytest.mark.parametrize("leaf", ["Variable", "array"])
    @pytest.mark.parametrize(
        "path",
        [("zone",), ("block", "zone"), ("layers", 1), ("width",), ("zone", "kernel")],
        ids=str,
    )
    def test_surplus_leaf(self, nnx, graph, leaf, path):
        graphdef, items = split_items(nnx, graph)
        items[path] = build(nnx, VariablePlan() if leaf == "Variable" else ArrayPlan())
        refusal_of(nnx, graphdef, items)

    @both_modes
    @pytest.mark.parametrize("path", state_paths(MODEL), ids=str)
    def test_node_where_a_leaf_belongs(self, nnx, graph, path):
        graphdef, items = split_items(nnx, graph)
        items[(*path, "zone")] = items.pop(path)
        refusal_of(nnx, graphdef, items)

    @both_modes
    @pytest.mark.parametrize("path", [("block", "mean"), ("layers", 0)], ids=str)
    def test_leaf_where_a_node_belongs(self, nnx, graph, path):
        graphdef, items = split_items(nnx, graph)
        items[path[:-1]] = items.pop(path)
        refusal_of(nnx, graphdef, items)


@clause("GRF-034", MUST, SOUND, source="a leaf of one name lands silently in the place of another")
@both_modes
@pytest.mark.parametrize("path", state_paths(MODEL), ids=str)
def test_leaf_under_another_key(nnx, graph, path):
    """A State with a leaf under another key than the structure's is refused by `merge`.

    That the numbers of leaves agree does not make them fit: leaves go by their paths.
    """
    graphdef, items = split_items(nnx, graph)
    items[(*path[:-1], "zone")] = items.pop(path)
    refusal_of(nnx, graphdef, items)


@clause(
    "GRF-035", SHOULD, OURS, source="whoever restores a State wants to know which leaf is wrong"
)
@both_modes
@pytest.mark.parametrize("path", state_paths(MODEL), ids=str)
@pytest.mark.parametrize("misfit", MISFITS)
def test_misfits_are_named(nnx, graph, path, misfit):
    """The error of `merge` about a State that does not fit names the path of what does not."""
    graphdef, items = split_items(nnx, graph)
    named = MISFITS[misfit](items, path)
    message = refusal_of(nnx, graphdef, items)
    assert [path for path in named if names_path(message, path)] != [], message


@clause("GRF-013", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.graphdef")
class TestGraphdef:
    """`graphdef(node)` equals what `split` gives first, however `split` groups the state."""

    @both_modes
    @given(plan=trees(), filters=filter_groups())
    def test_trees(self, nnx, graph, plan, filters):
        self.check(nnx, plan, filters, graph)

    @given(plan=graphs(sharing=True, cycles=True), filters=filter_groups())
    def test_graphs(self, nnx, plan, filters):
        self.check(nnx, plan, filters, graph=True)

    def check(self, nnx, plan, filters, graph):
        original = build(nnx, plan)
        graphdef = nnx.graphdef(original, graph=graph)
        groups = [build_filter(nnx, item) for item in filters]
        for other in (nnx.split(original, graph=graph), nnx.split(original, *groups, graph=graph)):
            assert graphdef == other[0]
            assert hash(graphdef) == hash(other[0])
        assert graphdef == nnx.graphdef(original, graph=graph)
        state = nnx.split(original, graph=graph)[1]
        assert snapshot(nnx, nnx.merge(graphdef, state)) == snapshot(nnx, original)


def by_attribute(state, key):
    """Reads an entry of a State by attribute, or by item where the key is a number."""
    return getattr(state, key) if isinstance(key, str) else state[key]


def records(nnx, state):
    """Describes a State's leaves exactly, with their paths."""
    return [(path, leaf_record(nnx, leaf)) for path, leaf in state_items(state)]
