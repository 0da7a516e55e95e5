"""Views: `with_vars` on whatever holds Variables, on some of them, and its older name."""

import warnings

import jax
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MAY, MUST, OURS, TESTED, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_copies, assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.filter_plans import build_filter, matches
from nnx_spec.oracles import (
    at,
    leaves,
    names_path,
    nodes,
    snapshot,
    user_metadata,
    value_record,
)
from nnx_spec.plans import VariablePlan, build
from nnx_spec.strategies import filters, trees


def pytrees(nnx):
    """Makes pytrees of several kinds that hold one Param and one BatchStat each, by name."""

    def pair():
        return nnx.Param(array(1), tag="t"), nnx.BatchStat(array([2, 3]))

    def named():
        return dict(zip("wm", pair(), strict=True))

    return {
        "list": list(pair()),
        "tuple": (pair(), None),
        "dict": {"a": {"b": pair()[0]}, "c": [pair()[1]]},
        "Module": net(nnx, **named()),
        "Modules": {"x": net(nnx, w=pair()[0]), "y": (net(nnx, m=pair()[1]),)},
        "List": nnx.List(list(pair())),
        "Dict": nnx.Dict(named()),
        "State": nnx.state(net(nnx, **named())),
    }


def variables_in(nnx, tree):
    """Lists the Variables of a pytree."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [x for x in found if isinstance(x, nnx.Variable)]


@clause("HJX-020", MUST, DOCUMENTED, source="guides/view#using-with_vars", needs={"hijax"})
class TestSelection:
    """`with_vars` takes any pytree or Module and applies to the Variables that `only=` selects.

    Without `only` these are all in it. What is selected is replaced in a new structure of the same
    kind by copies of the same class, value and metadata; what is not selected stands there as the
    identical object. The argument stays as it is.
    """

    def test_single_variable(self, nnx):
        v = nnx.Param(array([1, 2]), tag="t")
        view = with_vars(nnx, v, hijax=True)
        assert (view.hijax, v.hijax) == (True, False)
        assert_holds(nnx, view, nnx.Param, np.float32([1, 2]), tag="t")
        assert_copies(nnx, view, v)

    def test_every_pytree(self, nnx):
        for name, tree in pytrees(nnx).items():
            view = with_vars(nnx, tree, hijax=True)
            assert type(view) is type(tree), name
            old, new = (variables_in(nnx, x) for x in (tree, view))
            assert [v.hijax for v in new] == [True, True], name
            assert [v.hijax for v in old] == [False, False], name
            for v, original in zip(new, old, strict=True):
                assert_copies(nnx, v, original)

    def test_other_leaves_of_a_pytree(self, nnx):
        raw = array(3)
        tree = {"v": nnx.Param(array(1)), "raw": raw, "rest": (None, 5, "text")}
        view = with_vars(nnx, tree, hijax=True)
        assert view["v"].hijax is True
        assert view["raw"] is raw
        assert view["rest"] == (None, 5, "text")

    @given(plan=trees(), filter_plan=filters())
    def test_any_filter(self, nnx, plan, filter_plan):
        model = build(nnx, plan)
        before = snapshot(nnx, model, identities=True)
        view = with_vars(nnx, model, hijax=True, only=build_filter(nnx, filter_plan))
        for path, item in leaves(plan):
            old, new = at(nnx, model, path), at(nnx, view, path)
            if isinstance(item, VariablePlan) and matches(filter_plan, path, item):
                assert new is not old
                assert new.hijax is True
                assert_holds(nnx, new, type(old), old.get_value(), **user_metadata(old))
            else:
                assert new is old
        assert [type(x) for x in nodes(nnx, view)] == [type(x) for x in nodes(nnx, model)]
        assert snapshot(nnx, model, identities=True) == before

    def test_filters_that_name_a_class(self, nnx):
        model = net(nnx, w=nnx.Param(array(1)), m=nnx.BatchStat(array(2)), r=array(3))
        view = with_vars(nnx, model, hijax=True, only=nnx.BatchStat)
        assert (view.w is model.w, view.m.hijax, view.r is model.r) == (True, True, True)
        back = with_vars(nnx, view, hijax=False, only=(nnx.Param, nnx.BatchStat))
        assert (back.w.hijax, back.m.hijax, view.m.hijax) == (False, False, True)
        assert_holds(nnx, back.m, nnx.BatchStat, np.float32(2))


def shared_in(nnx):
    """Makes structures in which one Variable stands at several paths: these, by name."""
    v, w = nnx.Param(array([1, 2])), nnx.BatchStat(array(3))
    return {
        "list": ([v, w, v], [(0,), (2,)]),
        "dict": ({"a": v, "b": {"c": w, "d": v}}, [("a",), ("b", "d")]),
        "Module": (net(nnx, first=v, other=w, tied=v), [("first",), ("tied",)]),
        "three": (
            net(nnx, x=v, y=net(nnx, z=v), items=nnx.List([w, v])),
            [("x",), ("y", "z"), ("items", 1)],
        ),
        "two-modules": ((net(nnx, w=v), net(nnx, v=v)), [(0, "w"), (1, "v")]),
    }


SHARED = ("list", "dict", "Module", "three", "two-modules")


@clause(
    "HJX-021",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVariableRefMode::test_to_arrays_example",
    needs={"hijax"},
)
class TestSharedVariables:
    """`with_vars` raises `ValueError` if it would copy one Variable at two places.

    The message lists every path of the Variable, and nothing changes. `allow_duplicates=True` lets
    it through. Different Variables that share an array are no duplicates.
    """

    @pytest.mark.parametrize("name", SHARED)
    def test_refused(self, nnx, name):
        structure, paths = shared_in(nnx)[name]
        before = snapshot(nnx, structure, identities=True)
        with pytest.raises(ValueError, match=str(paths[0][-1])) as caught:
            with_vars(nnx, structure, hijax=True)
        for path in paths:
            assert names_path(str(caught.value), path), path
        assert snapshot(nnx, structure, identities=True) == before

    @pytest.mark.parametrize("name", SHARED)
    def test_allowed(self, nnx, name):
        structure, paths = shared_in(nnx)[name]
        view = with_vars(nnx, structure, hijax=True, allow_duplicates=True)
        for path in paths:
            v = at(nnx, view, path)
            assert v.hijax is True
            assert_holds(nnx, v, nnx.Param, np.float32([1, 2]))
            assert at(nnx, structure, path).hijax is False

    def test_shared_arrays(self, nnx):
        x = array([1, 2])
        view = with_vars(nnx, [nnx.Param(x), nnx.Param(x)], hijax=True)
        for v in view:
            assert v.hijax is True
            assert_holds(nnx, v, nnx.Param, np.float32([1, 2]))


@clause(
    "HJX-022",
    MAY,
    OURS,
    source="an older name that releases deprecate goes on to work",
    needs={"hijax"},
)
class TestOlderName:
    """`vars_as` is another name of `with_vars`: it takes, returns and raises the same.

    Where a release deprecates it, it warns with a `DeprecationWarning` that names `with_vars`;
    `with_vars` warns of nothing.
    """

    @staticmethod
    def called(view, *args, **kwargs):
        """Returns what a function returns and the warnings it gives."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = view(*args, **kwargs)
        return result, caught

    def test_same_results(self, nnx):
        model = net(nnx, w=nnx.Param(array(1), tag="t"), m=nnx.BatchStat(array(2)))
        for flags in ({"hijax": True}, {"hijax": True, "only": nnx.Param}, {}):
            old, _ = self.called(nnx.vars_as, model, **flags)
            new, _ = self.called(nnx.with_vars, model, **flags)
            assert type(old) is type(new)
            for name in ("w", "m"):
                one, two, original = (getattr(x, name) for x in (old, new, model))
                assert one.hijax is two.hijax
                assert (one is original) is (two is original)
                assert value_record(one.get_value()) == value_record(two.get_value())
                assert user_metadata(one) == user_metadata(two) == user_metadata(original)

    def test_same_errors(self, nnx):
        v = nnx.Param(array(1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for view in (nnx.vars_as, nnx.with_vars):
                with pytest.raises(ValueError, match="1"):
                    view([v, v], hijax=True)
                assert [x.hijax for x in view([v, v], hijax=True, allow_duplicates=True)] == [
                    True,
                    True,
                ]

    def test_warnings(self, nnx):
        v = nnx.Param(array(1))
        assert not self.called(nnx.with_vars, v, hijax=True)[1]
        for warning in self.called(nnx.vars_as, v, hijax=True)[1]:
            assert issubclass(warning.category, DeprecationWarning)
            assert "with_vars" in str(warning.message)
