"""Reading: the functional API leaves alone what it reads."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, SOUND, clause
from nnx_spec.chapters.functional.making import records
from nnx_spec.chapters.functional.threads import in_a_thread
from nnx_spec.filter_plans import build_filter
from nnx_spec.oracles import is_node, snapshot, state_items
from nnx_spec.plans import build, classes
from nnx_spec.strategies import filter_groups, filters, graphs, shared_graphs, trees

READS = {
    "split": lambda nnx, node, **graph: nnx.split(node, **graph),
    "split in groups": lambda nnx, node, **graph: nnx.split(node, nnx.Param, ..., **graph),
    "split and merge": lambda nnx, node, **graph: nnx.merge(*nnx.split(node, **graph)),
    "graphdef": lambda nnx, node, **graph: hash(nnx.graphdef(node, **graph)),
    "state": lambda nnx, node, **graph: nnx.state(node, nnx.Param, nnx.BatchStat, **graph),
    "variables": lambda nnx, node, **graph: nnx.variables(node, **graph),
    "clone": lambda nnx, node, **graph: nnx.clone(node, **graph),
    "clone without Variables": lambda nnx, node, **graph: nnx.clone(node, variables=False, **graph),
    "clone with arrays": lambda nnx, node, **graph: nnx.clone(node, arrays=True, **graph),
    "iter_graph": lambda nnx, node, **graph: list(nnx.iter_graph(node, **graph)),
    "iter_children": lambda nnx, node, **graph: list(nnx.iter_children(node, **graph)),
    "iter_modules": lambda nnx, node, **graph: list(nnx.iter_modules(node, **graph)),
    "map": lambda nnx, node, **graph: nnx.map(lambda path, leaf: leaf, node, **graph),
}
"""Functions that read an object and take `graph`."""

MAPS = {
    "recursive_map": lambda nnx, node, **graph: nnx.recursive_map(lambda path, x: x, node, **graph),
}
"""Further ones, to which no document gives a meaning on cycles."""

READS_OF_EITHER_MODE = {
    "find_duplicates": lambda nnx, node: nnx.find_duplicates(node),
    "to_tree": lambda nnx, node: nnx.from_tree(nnx.to_tree(node)),
}
"""Functions that read an object and do not depend on the mode."""

READS_AS_TREE = {
    "as_pure": lambda nnx, node: nnx.as_pure(node),
    "flatten": lambda nnx, node: jax.tree.unflatten(*jax.tree.flatten(node)[::-1]),
    "tree.map": lambda nnx, node: jax.tree.map(jnp.zeros_like, node),
}
"""Functions that read an object as a pytree."""

READS_OF_STATES = {
    "to_flat_state": lambda nnx, state, f: nnx.from_flat_state(nnx.to_flat_state(state)),
    "split_state": lambda nnx, state, f: nnx.split_state(state, f, ...),
    "filter_state": lambda nnx, state, f: nnx.filter_state(state, f),
    "merge_state": lambda nnx, state, f: nnx.merge_state(state, nnx.State({"zone": nnx.Param(0)})),
    "map_state": lambda nnx, state, f: nnx.map_state(lambda path, leaf: 0, state),
    "to_pure_dict": lambda nnx, state, f: nnx.to_pure_dict(state).clear(),
    "as_pure": lambda nnx, state, f: nnx.as_pure(state),
    "union": lambda nnx, state, f: state | nnx.State({"zone": nnx.Param(0)}),
    "difference": lambda nnx, state, f: state - nnx.filter_state(state, f),
    "flatten": lambda nnx, state, f: jax.tree.unflatten(*jax.tree.flatten(state)[::-1]),
}
"""Functions that read a State, with a filter."""


def everything(nnx, node):
    """Describes an object to the last identity, private attributes of its nodes included."""
    found, pending = {}, [node]
    while pending:
        value = pending.pop()
        if id(value) not in found and is_node(nnx, value):
            found[id(value)] = {name: id(item) for name, item in vars(value).items()}
            pending.extend(vars(value).values())
    return snapshot(nnx, node, identities=True), found


@clause("GRF-028", MUST, SOUND, source="an object changes silently when it is read")
class TestReading:
    """What the functional API reads it leaves alone: objects, States and graphdefs.

    After a read every node, Variable and array is the same object with the same value, attributes
    and metadata. A read that fails leaves things alone, too, and so does the merging or updating of
    other objects with a State.
    """

    @given(plan=graphs(sharing=True, cycles=True))
    def test_reads_in_graph_mode(self, nnx, plan):
        reads = {name: partial(read, graph=True) for name, read in READS.items()}
        self.check(nnx, plan, {**reads, **READS_OF_EITHER_MODE})

    @given(plan=trees())
    def test_reads_in_tree_mode(self, nnx, plan):
        reads = {name: partial(read, graph=False) for name, read in {**READS, **MAPS}.items()}
        self.check(nnx, plan, {**reads, **READS_AS_TREE})

    @given(plan=graphs(sharing=True))
    def test_reads_of_shared_references(self, nnx, plan):
        reads = {name: partial(read, graph=True) for name, read in MAPS.items()}
        self.check(nnx, plan, {**reads, **READS_AS_TREE})

    @given(plan=shared_graphs())
    def test_refusals(self, nnx, plan):
        reads = {name: partial(read, graph=False) for name, read in {**READS, **MAPS}.items()}
        in_a_thread(lambda: self.check(nnx, plan, reads, refusal=ValueError))

    def check(self, nnx, plan, reads, refusal=()):
        node = build(nnx, plan)
        before = everything(nnx, node)
        for name, read in reads.items():
            with contextlib.suppress(refusal):
                read(nnx, node)
            assert everything(nnx, node) == before, name

    @given(plan=graphs(sharing=True), groups=st.lists(filters(), max_size=3))
    def test_reads_with_filters(self, nnx, plan, groups):
        node = build(nnx, plan)
        before = everything(nnx, node)
        built = [build_filter(nnx, item) for item in groups]
        for read in (nnx.split, nnx.state):
            with contextlib.suppress(ValueError):
                read(node, *built)
            assert everything(nnx, node) == before

    @given(plan=graphs(sharing=True), f=filters(everything=False))
    def test_reads_of_states(self, nnx, plan, f):
        state = nnx.state(build(nnx, plan))
        before = records(nnx, state)
        leaves = [id(leaf) for _, leaf in state_items(state)]
        structure = jax.tree.structure(state)
        for name, read in READS_OF_STATES.items():
            read(nnx, state, build_filter(nnx, f))
            assert records(nnx, state) == before, name
            assert [id(leaf) for _, leaf in state_items(state)] == leaves, name
            assert jax.tree.structure(state) == structure, name

    @given(plan=graphs(sharing=True), groups=filter_groups())
    def test_merging_and_updating(self, nnx, plan, groups):
        built = [build_filter(nnx, item) for item in groups]
        graphdef, *states = nnx.split(build(nnx, plan), *built)
        graphdef_hash, description = hash(graphdef), repr(graphdef)
        before = [records(nnx, state) for state in states]
        leaves = [id(leaf) for state in states for _, leaf in state_items(state)]
        nnx.merge(graphdef, *states)
        nnx.update(build(nnx, plan), *states)
        other = build(nnx, plan)
        other.zone = classes(nnx).Count(jnp.zeros(()))
        nnx.update(other, *states)
        assert [records(nnx, state) for state in states] == before
        assert [id(leaf) for state in states for _, leaf in state_items(state)] == leaves
        assert (hash(graphdef), repr(graphdef)) == (graphdef_hash, description)
