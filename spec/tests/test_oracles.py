"""Oracles: observations on objects in plain Python, and expectations from plans."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnx_spec import plain
from nnx_spec.chapters.functional.edits import edits, reordered, revalued, without_lists
from nnx_spec.oracles import (
    array_record,
    assert_no_tracers,
    at,
    children,
    graph_items,
    has_cycle,
    has_sharing,
    leaf_record,
    leaves,
    names_path,
    nodes,
    objects,
    snapshot,
    sort_key,
    state_items,
    state_paths,
    user_metadata,
    value_record,
    variable_record,
    variables,
    walk,
)
from nnx_spec.plans import (
    ArrayPlan,
    DictPlan,
    ListPlan,
    ModulePlan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
    build,
)
from nnx_spec.strategies import graphs, trees

few = settings(
    max_examples=50,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

PLAN = ModulePlan(
    (
        ("z", VariablePlan("Param", ArrayPlan((2,)))),
        ("block", ModulePlan((("a", SharedPlan(1)), ("up", SharedPlan(0)), ("n", StaticPlan(3))))),
        ("layers", ListPlan(tuple((n, ArrayPlan(start=n)) for n in range(11)))),
        ("again", SharedPlan(2)),
    )
)
"""A Variable at two places and at a third by a shared Module, a cycle, and a long List."""


class TestRecords:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (jnp.float32(1), jnp.float32(1.01)),
            (jnp.float32(1), jnp.bfloat16(1)),
            (jnp.float32(0.0), jnp.float32(-0.0)),
            (jnp.zeros(2), jnp.zeros((2, 1))),
            (jnp.zeros((0,)), jnp.zeros((0, 1))),
            (jax.random.key(0), jax.random.key(1)),
        ],
        ids=["value", "dtype", "sign of zero", "shape", "empty shape", "key"],
    )
    def test_arrays_that_differ(self, first, second):
        assert array_record(first) != array_record(second)
        assert array_record(first) == array_record(first.copy())

    def test_nan_equals_itself(self):
        assert array_record(jnp.float32("nan")) == array_record(np.float32("nan"))

    def test_values_that_are_trees(self):
        assert value_record({"k": jnp.ones(2)}) == value_record({"k": np.ones(2, "float32")})
        assert value_record({"k": jnp.ones(2)}) != value_record({"l": jnp.ones(2)})
        assert value_record([1.0]) != value_record((1.0,))
        assert value_record(1) != value_record(1.0)

    def test_metadata_of_the_user(self):
        assert user_metadata(plain.Param(0, tag="red", hijax=True)) == {"tag": "red"}

    def test_variables_that_differ(self):
        ways = [
            plain.Param(jnp.ones(2), tag="red"),
            plain.BatchStat(jnp.ones(2), tag="red"),
            plain.Param(jnp.ones(3), tag="red"),
            plain.Param(jnp.ones(2), tag="blue"),
            plain.Param(jnp.ones(2)),
        ]
        records = [variable_record(variable) for variable in ways]
        assert [records.count(record) for record in records] == [1] * len(ways)
        assert variable_record(plain.Param(jnp.ones(2), tag="red")) == records[0]

    def test_leaves(self):
        assert leaf_record(plain, plain.Param(jnp.ones(2)))[0] is plain.Param
        assert leaf_record(plain, jnp.ones(2)) == array_record(jnp.ones(2))


class TestReading:
    def test_children_are_in_order_and_public(self):
        built = build(plain, PLAN)
        built._private = 1
        assert [key for key, _ in children(plain, built)] == ["again", "block", "layers", "z"]
        assert [key for key, _ in children(plain, built.layers)] == list(range(11))
        assert children(plain, 3) == []
        assert children(plain, {"b": 1, 10: 2, 9: 3}) == [(9, 3), (10, 2), ("b", 1)]

    def test_at(self):
        built = build(plain, PLAN)
        assert at(plain, built, ()) is built
        assert at(plain, built, ("block", "a")) is built.z
        assert at(plain, built, ("block", "up", "block")) is built.block
        with pytest.raises(KeyError):
            at(plain, built, ("block", "b"))

    def test_walk_meets_objects_once(self):
        built = build(plain, PLAN)
        met = dict(walk(plain, built))
        assert list(met)[:4] == [(), ("again",), ("again", "a"), ("again", "n")]
        assert met[("again", "n")] == 3
        assert ("block",) not in met
        assert nodes(plain, built) == [built, built.block, built.layers]
        assert variables(plain, built) == [built.z]

    def test_state_items(self):
        state = {"b": {10: "x", 9: "y"}, "a": "z", "empty": {}}
        assert state_items(state) == [(("a",), "z"), (("b", 9), "y"), (("b", 10), "x")]

    @pytest.mark.parametrize(
        ("message", "named"),
        [
            ("at a/0/b", True),
            ("at ('a', 0, 'b')", True),
            ("at .a[0].b!", True),
            ("['a'][0]['b']", True),
            ("at a/0", False),
            ("at a/0/bc", False),
            ("at aa/0/b", False),
            ("at a/10/b", False),
            ("b, 0 and a", False),
        ],
    )
    def test_names_path(self, message, named):
        assert names_path(message, ("a", 0, "b")) is named

    def test_sort_key(self):
        assert sorted(["b", 10, "a", 9], key=sort_key) == [9, 10, "a", "b"]


class TestSnapshot:
    @few
    @given(plan=graphs(sharing=True, cycles=True))
    def test_equal_for_equal_graphs(self, plan):
        first, second = build(plain, plan), build(plain, plan)
        assert snapshot(plain, first) == snapshot(plain, second)
        assert snapshot(plain, first, identities=True) == snapshot(plain, first, identities=True)
        assert snapshot(plain, first, identities=True) != snapshot(plain, second, identities=True)

    @few
    @given(plan=graphs(sharing=True, cycles=True), choice=st.integers(0, 999))
    def test_different_after_any_edit(self, plan, choice):
        for kind, (before, after) in edits(plan, choice, sharing=True).items():
            first, second = (snapshot(plain, build(plain, way)) for way in (before, after))
            assert (kind, first) != (kind, second)

    @few
    @given(plan=trees())
    def test_order_of_attributes_does_not_matter(self, plan):
        assert snapshot(plain, build(plain, reordered(plan))) == snapshot(plain, build(plain, plan))

    @few
    @given(plan=graphs(sharing=True).filter(lambda plan: holds_a_number(plan)))
    def test_values_matter(self, plan):
        assert snapshot(plain, build(plain, revalued(plan))) != snapshot(plain, build(plain, plan))

    @pytest.mark.parametrize(("first", "second"), [(1, True), (1, 1.0), (0, None), ((1,), [1])])
    def test_types_of_static_values_matter(self, first, second):
        ways = (ModulePlan((("n", StaticPlan(value)),)) for value in (first, second))
        assert len({repr(snapshot(plain, build(plain, plan))) for plan in ways}) == 2

    def test_identities_of_what_is_held(self):
        built = build(plain, PLAN)
        before = snapshot(plain, built, identities=True)
        built.z.value = built.z.value.copy()
        changed = snapshot(plain, built, identities=True)
        assert changed != before
        built.z = built.block.a = plain.Param(built.z.value)
        assert snapshot(plain, built, identities=True) != changed


class TestTracers:
    @pytest.mark.parametrize(
        "put",
        [
            lambda model, x: setattr(model.inner, "v", type(model.v)({"k": x})),
            lambda model, x: model.v.metadata.update(tag=x),
            lambda model, x: setattr(model, "raw", (1, [x])),
        ],
        ids=["value", "metadata", "array"],
    )
    def test_left_behind(self, put):
        model, other = plain.Module(), plain.Module()
        model.inner, model.v, model.name = plain.Pytree(), plain.Param(jnp.zeros(2)), "text"
        model.inner.back = model
        assert_no_tracers(plain, other, model)
        jax.make_jaxpr(lambda x: put(model, x))(1.0)
        with pytest.raises(AssertionError, match="Tracer"):
            assert_no_tracers(plain, other, model)


class TestExpectations:
    def test_objects(self):
        assert [(type(item).__name__, paths) for item, paths in objects(PLAN)] == [
            ("ModulePlan", [(), ("block", "up"), ("again", "up")]),
            ("VariablePlan", [("z",), ("block", "a"), ("again", "a")]),
            ("ModulePlan", [("block",), ("again",)]),
            ("ListPlan", [("layers",)]),
        ]

    def test_equal_parts_are_told_apart(self):
        weight = VariablePlan()
        plan = ModulePlan((("a", weight), ("b", weight), ("c", SharedPlan(2))))
        assert [paths for _, paths in objects(plan)] == [[()], [("a",)], [("b",), ("c",)]]

    def test_graph_items_stand_at_the_first_path_in_order(self):
        assert state_paths(PLAN)[:3] == [("again", "a"), ("layers", 0), ("layers", 1)]
        assert state_paths(PLAN)[-1] == ("layers", 10)
        assert graph_items(PLAN)[0] == (("again", "a"), VariablePlan("Param", ArrayPlan((2,))))

    @few
    @given(plan=graphs(sharing=True, cycles=True))
    def test_graph_items_are_what_is_there(self, plan):
        built = build(plain, plan)
        for path, item in graph_items(plan):
            expected = leaf_record(plain, build(plain, item))
            assert leaf_record(plain, at(plain, built, path)) == expected
        found = [path for path, value in walk(plain, built) if is_leaf(value)]
        assert found == state_paths(plan)

    @few
    @given(plan=graphs(sharing=True, cycles=True))
    def test_objects_are_what_is_there(self, plan):
        built = build(plain, plan)
        found = [{id(at(plain, built, path)) for path in paths} for _, paths in objects(plan)]
        assert [len(identities) for identities in found] == [1] * len(found)
        assert len(set.union(*found)) == len(found)

    def test_sharing_and_cycles(self):
        tied = ModulePlan((("v", VariablePlan()), ("w", SharedPlan(1))))
        twice = ModulePlan((("m", ModulePlan()), ("n", ModulePlan((("m", SharedPlan(1)),)))))
        below = ModulePlan((("m", ModulePlan((("n", ModulePlan((("m", SharedPlan(1)),))),))),))
        plans = [ModulePlan((("v", VariablePlan()),)), tied, twice, below, PLAN]
        assert [has_sharing(plan) for plan in plans] == [False, True, True, True, True]
        assert [has_cycle(plan) for plan in plans] == [False, False, False, True, True]

    def test_leaves(self):
        plan = ModulePlan((("b", DictPlan((("k", ArrayPlan()),))), ("a", StaticPlan(1))))
        assert list(leaves(plan)) == [(("a",), StaticPlan(1)), (("b", "k"), ArrayPlan())]


class TestEdits:
    @few
    @given(plan=graphs(sharing=True, cycles=True), choice=st.integers(0, 999))
    def test_references_still_lead_somewhere(self, plan, choice):
        for before, after in edits(plan, choice, sharing=True).values():
            assert build(plain, before) is not build(plain, after)

    def test_without_sharing_trees_stay_trees(self):
        plan = ModulePlan((("a", VariablePlan()), ("b", VariablePlan())))
        assert not any(has_sharing(after) for _, after in edits(plan, 0, sharing=False).values())
        assert {*edits(plan, 0, sharing=True)} - {*edits(plan, 0, sharing=False)} == {
            "sharing-or-copy",
            "sharing-with-another",
        }

    def test_revalued(self):
        plan = ModulePlan((("v", VariablePlan(value={"k": ArrayPlan()})), ("x", ArrayPlan())))
        assert revalued(plan, by=2) == ModulePlan(
            (("v", VariablePlan(value={"k": ArrayPlan(start=2)})), ("x", ArrayPlan(start=2)))
        )

    @few
    @given(plan=graphs(sharing=True))
    def test_without_lists(self, plan):
        changed = without_lists(plan)
        assert not any(isinstance(item, ListPlan) for item, _ in objects(changed))
        assert len(objects(changed)) == len(objects(plan))


def is_leaf(value):
    """Tells whether a State would hold a value."""
    return isinstance(value, (plain.Variable, jax.Array))


def holds_a_number(plan):
    """Tells whether some array of a plan has elements."""
    arrays = []
    for _, item in graph_items(plan):
        value = item.value if isinstance(item, VariablePlan) else item
        arrays += value.values() if isinstance(value, dict) else [value]
    return any(0 not in array.shape for array in arrays)
