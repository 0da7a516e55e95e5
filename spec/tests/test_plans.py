"""Plans: what is built of them, and what the strategies draw."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from nnx_spec import plain
from nnx_spec.oracles import array_record, has_cycle, has_sharing, objects
from nnx_spec.plans import (
    VARIABLE_KINDS,
    ArrayPlan,
    DictPlan,
    ListPlan,
    ModulePlan,
    NodePlan,
    PytreePlan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
    build,
    classes,
    is_array,
    variable_class,
)
from nnx_spec.strategies import DTYPES, graphs, shared_graphs, trees

few = settings(
    max_examples=50,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,), (2, 0)])
def test_arrays_have_shape_and_dtype_and_count_up(dtype, shape):
    value = ArrayPlan(shape, dtype, start=4).value()
    assert value.shape == shape
    assert value.dtype == jnp.dtype(dtype)
    counted = np.arange(4, 4 + value.size).reshape(shape)
    assert (value == (counted % 2 == 1 if dtype == "bool" else counted)).all()


def test_a_plan_builds_what_it_says():
    plan = ModulePlan(
        (
            ("w", VariablePlan("Param", ArrayPlan((2,), "int32", 3), (("tag", "red"),))),
            ("tree", PytreePlan((("x", ArrayPlan((1,))), ("n", StaticPlan((1, "two")))))),
            ("layers", ListPlan(((0, VariablePlan("Count")), (1, ArrayPlan())))),
            ("named", DictPlan((("k", VariablePlan("Cache", {"a": ArrayPlan((1,))})),))),
        )
    )
    built = build(plain, plan)
    own = classes(plain)
    assert [type(built), type(built.tree)] == [own.Net, own.Tree]
    assert [type(built.layers), type(built.named)] == [plain.List, plain.Dict]
    assert type(built.w) is plain.Param
    assert built.w.metadata == {"tag": "red"}
    assert array_record(built.w.value) == array_record(np.int32([3, 4]))
    assert built.tree.n == (1, "two")
    assert array_record(built.tree.x) == array_record(np.float32([0]))
    count, array = built.layers
    assert type(count) is own.Count
    assert is_array(array)
    assert array_record(built.named["k"].value["a"]) == array_record(np.float32([0]))


def test_references_lead_to_the_very_object():
    inner = ModulePlan((("v", VariablePlan()), ("up", SharedPlan(0)), ("self", SharedPlan(1))))
    plan = ModulePlan((("inner", inner), ("v", SharedPlan(2)), ("again", SharedPlan(1))))
    built = build(plain, plan)
    assert built.inner.up is built
    assert built.inner.self is built.inner
    assert built.again is built.inner
    assert built.v is built.inner.v


def test_each_build_is_of_its_own():
    plan = ModulePlan((("v", VariablePlan()),))
    first, second = build(plain, plan), build(plain, plan)
    assert first is not second
    assert first.v is not second.v
    assert type(first) is type(second)


def test_what_is_no_plan_is_refused():
    with pytest.raises(TypeError, match="not a plan: 3"):
        build(plain, ModulePlan((("v", 3),)))


@pytest.mark.parametrize("kind", VARIABLE_KINDS)
def test_kinds_are_classes_of_variables(kind):
    cls = variable_class(plain, kind)
    assert issubclass(cls, plain.Variable)
    assert cls.__name__ == kind
    assert issubclass(cls, plain.Param) == (kind in ("Param", "SpecialParam"))


def test_plans_are_values():
    def plan():
        return ModulePlan((("v", VariablePlan(value={"k": ArrayPlan()})),))

    assert plan() == plan()
    assert hash(plan()) == hash(plan())
    assert plan() != PytreePlan(plan().children)


@few
@given(plan=trees())
def test_trees_share_nothing(plan):
    assert not has_sharing(plan)
    assert all(len(paths) == 1 for _, paths in objects(plan))


@few
@given(plan=graphs(sharing=True))
def test_without_cycles_references_lead_sideways(plan):
    assert not has_cycle(plan)


@few
@given(plan=shared_graphs())
def test_shared_graphs_share(plan):
    assert has_sharing(plan)
    assert any(len(paths) > 1 for _, paths in objects(plan))


@few
@given(plan=shared_graphs(cycles=True))
def test_shared_graphs_with_cycles_have_one(plan):
    assert has_cycle(plan)


@few
@given(plan=graphs(sharing=True, cycles=True))
def test_every_drawn_plan_can_be_built(plan):
    assert type(build(plain, plan)) is classes(plain).Net
    assert all(child.to < len(objects(plan)) for child in references(plan))


@few
@given(plan=graphs(statics=False))
def test_static_values_can_be_left_out(plan):
    assert not any(isinstance(part, StaticPlan) for part in parts(plan))


def test_every_kind_of_part_is_drawn():
    drawn = set()

    @few
    @given(plan=graphs(sharing=True))
    def collect(plan):
        drawn.update(type(part) for part in parts(plan))

    collect()
    objects_and_values = {VariablePlan, ArrayPlan, StaticPlan, SharedPlan}
    assert drawn == {ModulePlan, PytreePlan, ListPlan, DictPlan} | objects_and_values


def parts(plan):
    """Yields a plan and everything in it."""
    yield plan
    if isinstance(plan, NodePlan):
        for _, child in plan.children:
            yield from parts(child)


def references(plan):
    """Lists the references in a plan."""
    return [part for part in parts(plan) if isinstance(part, SharedPlan)]
