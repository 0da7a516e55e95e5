"""The functional API on hijax Variables, and the way from plain Variables to them and back."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.edits import revalued
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_holds, with_vars
from nnx_spec.chapters.hijax.observing import description, record
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import snapshot, state_items, variable_record, variables
from nnx_spec.plans import build, build_value, classes, variable_class
from nnx_spec.strategies import graphs, trees
from nnx_spec.strategies import variables as variable_plans


def built(nnx, plan):
    """Builds a plan with hijax Variables."""
    with nnx.var_defaults(hijax=True):
        return build(nnx, plan)


def hijax_flags(nnx, root):
    """Lists which Variables of an object are hijax ones."""
    return {v.hijax for v in variables(nnx, root)}


def leaf_records(nnx, state):
    """Describes a State's leaves, by path."""
    return [(path, record(nnx, leaf)) for path, leaf in state_items(state)]


@clause("HJX-041", MUST, DOCUMENTED, source="hijax/hijax#training-loop", needs={"hijax"})
class TestFunctionalApi:
    """`split`, `state`, `update` and `clone` act on hijax Variables as on plain ones.

    Paths, classes, metadata and values are the same, and a State's leaves show them; filters select
    the same leaves. Merged and cloned objects have hijax Variables. A clone is independent.
    """

    @given(plan=trees())
    def test_state(self, nnx, plan):
        node, twin = built(nnx, plan), build(nnx, plan)
        assert leaf_records(nnx, nnx.state(node)) == leaf_records(nnx, nnx.state(twin))
        for only in (nnx.Param, nnx.BatchStat, classes(nnx).SpecialParam):
            found, expected = nnx.state(node, only), nnx.state(twin, only)
            assert leaf_records(nnx, found) == leaf_records(nnx, expected)

    @given(plan=graphs(sharing=True))
    def test_split_and_merge(self, nnx, plan):
        node = built(nnx, plan)
        graphdef, params, rest = nnx.split(node, nnx.Param, ...)
        merged = nnx.merge(graphdef, params, rest)
        assert description(nnx, merged) == description(nnx, build(nnx, plan))
        assert hijax_flags(nnx, merged) == hijax_flags(nnx, node)
        assert nnx.find_duplicates(merged) == nnx.find_duplicates(node)

    @given(plan=trees())
    def test_update(self, nnx, plan):
        node = built(nnx, plan)
        held = variables(nnx, node)
        nnx.update(node, nnx.state(build(nnx, revalued(plan))))
        assert description(nnx, node) == description(nnx, build(nnx, revalued(plan)))
        assert all(a is b for a, b in zip(variables(nnx, node), held, strict=True))
        assert False not in hijax_flags(nnx, node)

    @given(plan=graphs(sharing=True))
    def test_clone(self, nnx, plan):
        node, twin = built(nnx, plan), build(nnx, plan)
        copy = nnx.clone(node)
        assert description(nnx, copy) == description(nnx, twin)
        assert False not in hijax_flags(nnx, copy)
        for v in variables(nnx, copy):
            v.set_metadata(owner="clone")
            v.set_value(jnp.float32(7))
        assert description(nnx, node) == description(nnx, twin)

    def test_small_model(self, nnx):
        model = net(
            nnx,
            w=nnx.Param(array([1, 2]), hijax=True, tag="red"),
            inner=net(nnx, n=classes(nnx).Count(array(3), hijax=True)),
        )
        state = nnx.state(model)
        assert [path for path, _ in state_items(state)] == [("inner", "n"), ("w",)]
        assert_holds(nnx, state["w"], nnx.Param, np.float32([1, 2]), tag="red")
        assert_holds(nnx, state["inner"]["n"], classes(nnx).Count, np.float32(3))
        nnx.update(model, {"w": nnx.Param(array([5, 6]), tag="red")})
        assert_holds(nnx, model.w, nnx.Param, np.float32([5, 6]), tag="red")
        assert_holds(nnx, model.inner.n, classes(nnx).Count, np.float32(3))


@clause("HJX-042", MUST, DOCUMENTED, source="guides/view#using-with_vars", needs={"hijax"})
class TestThereAndBack:
    """From plain to hijax with `with_vars` and back gives Variables of the same classes, values
    and user's metadata as before; nothing of the original changes.

    In between they are hijax Variables of these classes, values and metadata, too.
    """

    @given(plan=variable_plans)
    def test_any_variable(self, nnx, plan):
        metadata = dict(plan.metadata)
        plain = variable_class(nnx, plan.kind)(build_value(plan.value), **metadata)
        before = variable_record(plain)
        hijax = with_vars(nnx, plain, hijax=True)
        assert (hijax.hijax, plain.hijax) == (True, False)
        assert record(nnx, hijax) == record(nnx, plain)
        back = with_vars(nnx, hijax, hijax=False)
        assert (back.hijax, hijax.hijax) == (False, True)
        assert variable_record(back) == variable_record(plain) == before

    @given(plan=trees())
    def test_any_tree(self, nnx, plan):
        plain = build(nnx, plan)
        hijax = with_vars(nnx, plain, hijax=True)
        assert False not in hijax_flags(nnx, hijax)
        assert description(nnx, hijax) == description(nnx, plain)
        back = with_vars(nnx, hijax, hijax=False)
        assert True not in hijax_flags(nnx, back)
        assert snapshot(nnx, back) == snapshot(nnx, plain) == snapshot(nnx, build(nnx, plan))

    @pytest.mark.parametrize("first", [False, True], ids=["from-plain", "from-hijax"])
    def test_three_times(self, nnx, first):
        v = nnx.Param(array([1, 2]), tag="t", owner=None, hijax=first)
        for hijax in (not first, first, not first, first):
            v = with_vars(nnx, v, hijax=hijax)
            assert v.hijax is hijax
            assert_holds(nnx, v, nnx.Param, np.float32([1, 2]), tag="t", owner=None)
