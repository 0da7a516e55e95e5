"""Update: writing values into an object that exists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.functional.edits import revalued
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.chapters.functional.states import nested
from nnx_spec.filter_plans import build_filter
from nnx_spec.oracles import (
    array_record,
    at,
    is_node,
    leaf_record,
    snapshot,
    state_items,
    user_metadata,
    value_record,
    walk,
)
from nnx_spec.plans import ArrayPlan, ListPlan, ModulePlan, StaticPlan, VariablePlan, build
from nnx_spec.strategies import filter_groups, graphs, trees

FUNCTIONAL = "nnx_basics#split-merge-and-update"

SPELLINGS = {
    "State of Variables": lambda nnx, items: nnx.State(nested(items)),
    "dict of Variables": lambda nnx, items: nested(items),
    "dict of arrays": lambda nnx, items: nested(raw(nnx, items)),
}
"""The ways to write new values down."""

MODEL = ModulePlan(
    (
        ("bias", VariablePlan("Param", ArrayPlan((2,)))),
        (
            "block",
            ModulePlan(
                (("mean", VariablePlan("BatchStat", ArrayPlan(()))), ("width", StaticPlan(7)))
            ),
        ),
        ("layers", ListPlan(((0, VariablePlan("Count", ArrayPlan((1, 3)))),))),
        ("table", ArrayPlan((2,))),
        ("zone", VariablePlan("Param", ArrayPlan((2,)))),
    )
)

LACKING = {
    "array": (("missing",), "array"),
    "Variable": (("missing",), "Variable"),
    "array below a Module": (("block", "missing"), "array"),
    "Variable below a Module": (("block", "missing"), "Variable"),
    "array in a Module that is not there": (("missing", "kernel"), "array"),
    "Variable in a Module that is not there": (("missing", "kernel"), "Variable"),
    "Variable below a Variable": (("bias", "kernel"), "Variable"),
    "array below an array": (("table", "kernel"), "array"),
    "Variable below an array": (("table", "kernel"), "Variable"),
    "array below a static value": (("block", "width", "kernel"), "array"),
    "Variable below a static value": (("block", "width", "kernel"), "Variable"),
    "array for a static value": (("block", "width"), "array"),
    "Variable for a static value": (("block", "width"), "Variable"),
    "array for a Module": (("block",), "array"),
    "Variable for a Module": (("block",), "Variable"),
    "Variable for a List": (("layers",), "Variable"),
    "array beyond a List": (("layers", 5), "array"),
    "Variable beyond a List": (("layers", 5), "Variable"),
    "Variable at a name of a List": (("layers", "missing"), "Variable"),
}
"""Leaves for which the object has no place: where they stand, and what they are."""


@clause("GRF-007", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.update")
class TestUpdate:
    """`update(node, state, ...)` writes the given values into the node's own Variables, in place.

    Nodes and Variables stay the same objects, with their classes and metadata; what the states do
    not mention stays as it is. The values come as a State, as several, or as nested plain dicts,
    with Variables or arrays as leaves.
    """

    @both_modes
    @given(plan=trees(), spelling=st.sampled_from([*SPELLINGS]), data=st.data())
    def test_trees(self, nnx, graph, plan, spelling, data):
        self.check(nnx, plan, spelling, data, graph)

    @given(
        plan=graphs(sharing=True, cycles=True),
        spelling=st.sampled_from([*SPELLINGS]),
        data=st.data(),
    )
    def test_graphs(self, nnx, plan, spelling, data):
        self.check(nnx, plan, spelling, data, graph=True)

    def check(self, nnx, plan, spelling, data, graph):
        """Updates some of an object's leaves, and compares all of them."""
        node, other = build(nnx, plan), build(nnx, revalued(plan))
        old = {path: identity(nnx, value) for path, value in walk(nnx, node)}
        records = dict(state_records(nnx, node, graph))
        new = dict(state_items(nnx.state(other, graph=graph)))
        chosen = data.draw(st.lists(st.sampled_from([*new]), unique=True) if new else st.just([]))
        records |= {path: leaf_record(nnx, new[path]) for path in chosen}
        nnx.update(node, SPELLINGS[spelling](nnx, {path: new[path] for path in chosen}))
        assert dict(state_records(nnx, node, graph)) == records
        assert {path: identity(nnx, value) for path, value in walk(nnx, node)} == old

    @both_modes
    @given(plan=trees(), filter_plans=filter_groups(), order=st.randoms(use_true_random=False))
    def test_several_states(self, nnx, graph, plan, filter_plans, order):
        node, other = build(nnx, plan), build(nnx, revalued(plan))
        built = [build_filter(nnx, item) for item in filter_plans]
        _, *states = nnx.split(other, *built, graph=graph)
        order.shuffle(states)
        nnx.update(node, *states)
        assert snapshot(nnx, node) == snapshot(nnx, other)

    @pytest.mark.parametrize("array", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
    def test_arrays_go_into_variables(self, nnx, array):
        node = build(nnx, MODEL)
        variable = node.bias
        variable.set_metadata(owner="me")
        nnx.update(node, {"bias": array([3.0, 4.0], dtype="float32")})
        assert node.bias is variable
        assert array_record(variable[...]) == array_record(np.float32([3, 4]))
        assert user_metadata(variable) == {"owner": "me"}

    def test_dict_as_the_value_of_a_variable(self, nnx):
        node = build(nnx, ModulePlan((("stats", VariablePlan(value={"k": ArrayPlan((2,))})),)))
        variable = node.stats
        value = {"k": jnp.ones(3)}
        nnx.update(node, {"stats": value})
        assert node.stats is variable
        assert value_record(variable.get_value()) == value_record(value)

    @pytest.mark.parametrize("spelling", SPELLINGS)
    def test_every_spelling(self, nnx, spelling):
        node, other = build(nnx, MODEL), build(nnx, revalued(MODEL))
        nnx.update(node, SPELLINGS[spelling](nnx, dict(state_items(nnx.state(other)))))
        assert snapshot(nnx, node) == snapshot(nnx, other)

    def test_state_that_was_mapped(self, nnx):
        node, other = build(nnx, MODEL), build(nnx, revalued(MODEL, by=2))
        nnx.update(node, jax.tree.map(lambda x: x + 2, nnx.state(node)))
        assert snapshot(nnx, node) == snapshot(nnx, other)


def states_with(nnx, name, place):
    """Makes States with a leaf for which there is no place, alone or among others that have one."""
    path, form = LACKING[name]
    value = jnp.asarray([5.0, 6.0])
    bad = {path: nnx.Param(value) if form == "Variable" else value}
    good = {("bias",): jnp.ones(2), ("layers", 0): jnp.ones(3), ("zone",): jnp.ones(2)}
    good = {key: leaf for key, leaf in good.items() if key[0] != path[0]}
    return {
        "alone": [bad],
        "with others": [good | bad],
        "first state": [bad, good],
        "last state": [good, bad],
    }[place]


each_place = pytest.mark.parametrize("place", ["alone", "with others", "first state", "last state"])
each_lacking = pytest.mark.parametrize("name", LACKING)


@clause(
    "GRF-008", SHOULD, OURS, source="after an error nobody wants to guess what has been written"
)
@each_place
@each_lacking
def test_all_or_nothing(nnx, name, place):
    """An `update` that raises for a leaf without a place has changed nothing.

    No value, no attribute and no identity is another than before. It does not matter where the leaf
    stands among the others, nor in which of several States.
    """
    node, update = build(nnx, MODEL), nnx.update
    before = snapshot(nnx, node, identities=True)
    try:
        update(node, *[nested(state) for state in states_with(nnx, name, place)])
    except Exception:
        is_unchanged = snapshot(nnx, node, identities=True) == before
        assert is_unchanged, f"the update was refused, and has changed the object: {node}"


@clause("GRF-036", MUST, SOUND, source="a value is dropped silently, or lands in another place")
@each_place
@each_lacking
def test_values_arrive_where_they_are_sent(nnx, name, place):
    """`update` with a leaf for which the object has no place raises, or makes that place.

    If it does not raise, every path of the States exists afterwards and holds the value.
    """
    node, update = build(nnx, MODEL), nnx.update
    states = states_with(nnx, name, place)
    try:
        update(node, *[nested(state) for state in states])
    except Exception:
        return
    leaves = {path: leaf for state in states for path, leaf in state.items()}
    there = dict(walk(nnx, node))
    found = {path: array_record(held(nnx, there[path])) for path in leaves if path in there}
    assert found == {path: array_record(held(nnx, leaf)) for path, leaf in leaves.items()}


def held(nnx, leaf):
    """Returns the value of a Variable, and anything else itself."""
    return leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf


def raw(nnx, items):
    """Returns leaves with their paths, Variables replaced by their values."""
    return {p: v.get_value() if isinstance(v, nnx.Variable) else v for p, v in items.items()}


def identity(nnx, value):
    """Returns what must stay the same of a value: the object, or for a raw array that it is one."""
    is_object = isinstance(value, nnx.Variable) or is_node(nnx, value)
    return id(value) if is_object else type(value).__name__


def state_records(nnx, node, graph):
    """Describes an object's Variables and arrays exactly, with their paths."""
    state = nnx.state(node, graph=graph)
    return [(path, leaf_record(nnx, at(nnx, node, path))) for path, _ in state_items(state)]
