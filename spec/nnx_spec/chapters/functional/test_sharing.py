"""Sharing: objects that can be reached by several paths, in graph mode and in tree mode."""

import jax.numpy as jnp
import pytest
from hypothesis import assume, given

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.functional.sharing import (
    CHILD_AND_PARENT,
    CHILDREN_FUNCTIONS,
    FUNCTIONS,
    NO_TREES,
    refusal,
)
from nnx_spec.oracles import (
    array_record,
    at,
    graph_items,
    is_node,
    leaf_record,
    names_path,
    objects,
    snapshot,
    state_items,
    state_paths,
    walk,
)
from nnx_spec.plans import VariablePlan, build
from nnx_spec.strategies import shared_graphs, trees


@clause("GRF-014", MUST, DOCUMENTED, source="guides/surgery#pythonic-nnx-module-manipulation")
class TestSharing:
    """In graph mode what several paths lead to is stored once, and is one object after `merge`.

    It stands in the State at the first of its paths. Writing to it by any path is seen by all.
    """

    @given(plan=shared_graphs())
    def test_stored_once(self, nnx, plan):
        node = build(nnx, plan)
        state = nnx.split(node, graph=True)[1]
        assert [path for path, _ in state_items(state)] == state_paths(plan)
        for path, leaf in state_items(state):
            assert leaf_record(nnx, leaf) == leaf_record(nnx, at(nnx, node, path))

    @given(plan=shared_graphs())
    def test_one_object_after_merge(self, nnx, plan):
        merged = nnx.merge(*nnx.split(build(nnx, plan), graph=True))
        found = [{id(at(nnx, merged, path)) for path in paths} for _, paths in objects(plan)]
        assert [len(identities) for identities in found] == [1] * len(found)
        assert len(set.union(*found)) == len(found)

    @given(plan=shared_graphs())
    def test_writing_by_one_path_is_seen_by_all(self, nnx, plan):
        merged = nnx.merge(*nnx.split(build(nnx, plan), graph=True))
        for item, paths in objects(plan):
            for number, path in enumerate(paths):
                written = jnp.asarray([number, 7.0])
                if isinstance(item, VariablePlan):
                    at(nnx, merged, path).set_value(written)
                    seen = [array_record(at(nnx, merged, other).get_value()) for other in paths]
                    assert seen == [array_record(written)] * len(paths)

    @pytest.mark.parametrize("name", NO_TREES)
    def test_update_of_what_is_shared(self, nnx, name):
        plan, paths = NO_TREES[name]
        node = build(nnx, plan)
        shared = at(nnx, node, paths[0])
        state = nnx.state(node, graph=True)
        assert len(state_items(state)) == len(graph_items(plan))
        nnx.update(node, state)
        assert [at(nnx, node, path) is shared for path in paths] == [True] * len(paths)
        assert snapshot(nnx, node) == snapshot(nnx, build(nnx, plan))


@clause("GRF-015", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#motivation")
class TestCycles:
    """In graph mode objects that can be reached from themselves split, merge, clone and iterate.

    The copies have the same cycles, and `iter_graph` gives every node and Variable once, at a path
    that leads to it.
    """

    @given(plan=shared_graphs(cycles=True))
    def test_split_and_merge(self, nnx, plan):
        node = build(nnx, plan)
        merged = nnx.merge(*nnx.split(node, graph=True))
        assert snapshot(nnx, merged) == snapshot(nnx, node)

    @given(plan=shared_graphs(cycles=True))
    def test_clone(self, nnx, plan):
        node = build(nnx, plan)
        copy = nnx.clone(node, graph=True)
        assert snapshot(nnx, copy) == snapshot(nnx, node)
        assert not {*identities(nnx, copy)} & {*identities(nnx, node)}

    @given(plan=shared_graphs(cycles=True))
    def test_iterate(self, nnx, plan):
        node = build(nnx, plan)
        met = [
            (path, value)
            for path, value in nnx.iter_graph(node, graph=True)
            if isinstance(value, nnx.Variable) or is_node(nnx, value)
        ]
        assert all(at(nnx, node, path) is value for path, value in met)
        assert sorted(id(value) for _, value in met) == sorted(identities(nnx, node))

    def test_child_that_refers_to_its_parent(self, nnx):
        node = build(nnx, CHILD_AND_PARENT)
        graphdef, state = nnx.split(node, graph=True)
        assert [path for path, _ in state_items(state)] == [("child", "weight")]
        assert hash(graphdef) == hash(nnx.graphdef(build(nnx, CHILD_AND_PARENT), graph=True))
        for copy in (nnx.merge(graphdef, state), nnx.clone(node, graph=True)):
            assert copy.child.parent is copy
            assert copy is not node
        modules = dict(nnx.iter_modules(node, graph=True))
        assert modules == {(): node, ("child",): node.child}


WITH_DATA = [kind for kind in NO_TREES if kind != "Module of static values"]


def refused(nnx, call, plan):
    """Asserts that a call refuses an object and leaves it alone, and returns the message."""
    node = build(nnx, plan)
    before = snapshot(nnx, node, identities=True)
    error = refusal(call, nnx, node)
    assert isinstance(error, ValueError), f"{error!r} instead of a ValueError"
    is_unchanged = snapshot(nnx, node, identities=True) == before
    assert is_unchanged, f"the refusal has changed the object: {node}"
    return str(error)


@clause("GRF-016", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#implementation")
class TestTreeMode:
    """In tree mode every function that takes `graph=` refuses shared references with ValueError.

    Shared is any Variable, any node that holds data, and any ancestor that is referred to from
    below.
    """

    @pytest.mark.parametrize("kind", WITH_DATA)
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_functions(self, nnx, function, kind):
        refused(nnx, FUNCTIONS[function], NO_TREES[kind][0])

    @given(plan=shared_graphs())
    def test_any_graph(self, nnx, plan):
        leaves = [path for path, _ in graph_items(plan)]
        below = {path[:depth] for path in leaves for depth in range(1, len(path) + 1)}
        assume(any(len(paths) > 1 and below & {*paths} for _, paths in objects(plan)))
        for call in FUNCTIONS.values():
            refused(nnx, call, plan)

    @given(plan=trees())
    def test_any_tree_is_taken(self, nnx, plan):
        node = build(nnx, plan)
        for call in FUNCTIONS.values():
            call(nnx, node)

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_cycles(self, nnx, function):
        refused(nnx, FUNCTIONS[function], CHILD_AND_PARENT)


@clause("GRF-037", SHOULD, OURS, source="who shares by mistake wants to know where, and at once")
class TestSharingInTreeMode:
    """In tree mode shared objects without data are refused as well, and every path is named.

    So do functions that look at the children of one node alone.
    """

    @pytest.mark.parametrize("kind", NO_TREES)
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_every_path(self, nnx, function, kind):
        plan, paths = NO_TREES[kind]
        message = refused(nnx, FUNCTIONS[function], plan)
        assert [path for path in paths if not names_path(message, path)] == []

    @pytest.mark.parametrize("kind", ["Module", "Module of static values"])
    @pytest.mark.parametrize("function", CHILDREN_FUNCTIONS)
    def test_functions_of_children(self, nnx, function, kind):
        plan, paths = NO_TREES[kind]
        message = refused(nnx, CHILDREN_FUNCTIONS[function], plan)
        assert [path for path in paths if not names_path(message, path)] == []

    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_cycles(self, nnx, function):
        assert names_path(refused(nnx, FUNCTIONS[function], CHILD_AND_PARENT), ("child", "parent"))


def identities(nnx, root):
    """Lists the identities of an object graph's nodes and Variables, each once."""
    return [
        id(value)
        for _, value in walk(nnx, root)
        if isinstance(value, nnx.Variable) or is_node(nnx, value)
    ]
