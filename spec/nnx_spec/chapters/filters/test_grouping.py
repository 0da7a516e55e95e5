"""Grouping: what a predicate is shown, and which of several filters an item falls to."""

import functools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.filters.selection import MODEL, items, paths_in
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import array_record, variable_record
from nnx_spec.plans import VariablePlan, build, classes
from nnx_spec.strategies import filter_groups, graphs


class Recorder:
    """A predicate that selects nothing and keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[tuple, object]] = []

    def __call__(self, path, value):
        self.shown.append((path, value))
        return False


PLACES = {
    "bare": lambda nnx, f: f,
    "tuple": lambda nnx, f: (f,),
    "list": lambda nnx, f: [f],
    "Any": lambda nnx, f: nnx.Any(None, f),
    "All": lambda nnx, f: nnx.All(True, f),
    "Not": lambda nnx, f: nnx.Not(f),
}


@clause("FLT-006", MUST, DOCUMENTED, source="guides/filters_guide#the-filter-protocol")
class TestCallables:
    """A callable `(path, value) -> bool` is used as it is: it sees the full path and the Variable.

    The path is a tuple of keys from the object that is filtered; the value is the Variable with
    class, value and metadata, or the raw array. It is the same inside `Any`, `All` and `Not`.
    """

    @pytest.mark.parametrize(
        "make",
        [
            lambda: lambda path, value: True,
            Recorder,
            lambda: functools.partial(lambda flag, path, value: flag, True),
            lambda: Recorder().__call__,
        ],
        ids=["function", "object", "partial", "method"],
    )
    def test_used_as_it_is(self, nnx, make):
        predicate = make()
        converted = nnx.filterlib.to_predicate(predicate)
        assert converted is predicate

    @given(plan=graphs(), place=st.sampled_from(list(PLACES)))
    @example(plan=MODEL, place="bare")
    def test_sees_path_and_variable(self, nnx, plan, place):
        recorder = Recorder()
        nnx.state(build(nnx, plan), PLACES[place](nnx, recorder))
        shown = dict(recorder.shown)
        assert sorted(shown, key=repr) == sorted((path for path, _ in items(plan)), key=repr)
        assert [path for path in shown if type(path) is not tuple] == []
        for path, item in items(plan):
            if isinstance(item, VariablePlan):
                assert variable_record(shown[path]) == variable_record(build(nnx, item)), path
            else:
                assert array_record(shown[path]) == array_record(item.value()), path


def by_split(nnx, model, *filters):
    """Groups by `split`."""
    return nnx.split(model, *filters)[1:]


def by_state(nnx, model, *filters):
    """Groups by `state`."""
    states = nnx.state(model, *filters)
    return states if len(filters) > 1 else (states,)


def by_pop(nnx, model, *filters):
    """Groups by `pop`."""
    states = nnx.pop(model, *filters)
    return states if len(filters) > 1 else (states,)


@clause("FLT-007", MUST, DOCUMENTED, source="guides/filters_guide#grouping-states")
class TestOrder:
    """An item falls to the first filter that selects it, whatever later filters would.

    So a general filter before a special one leaves the special one's group empty. Groups come in
    the order of the filters, and an empty group is an empty State.
    """

    @pytest.mark.parametrize("group", [by_split, by_state], ids=["split", "state"])
    @given(plan=graphs(), filter_plans=filter_groups())
    def test_first_match_wins(self, nnx, plan, filter_plans, group):
        filters = [build_filter(nnx, filter_plan) for filter_plan in filter_plans]
        states = group(nnx, build(nnx, plan), *filters)
        wanted = [
            [path for path, item in items(plan) if group_of(filter_plans, path, item) == n]
            for n in range(len(filters))
        ]
        assert [paths_in(state) for state in states] == wanted

    @pytest.mark.parametrize("group", [by_split, by_state, by_pop], ids=["split", "state", "pop"])
    def test_general_before_special(self, nnx, group):
        special = classes(nnx).SpecialParam
        first, second, _ = group(nnx, build(nnx, MODEL), nnx.Param, special, nnx.Variable)
        assert paths_in(first) == [("block", "first"), ("first",), ("second",)]
        assert paths_in(second) == []
        first, second, _ = group(nnx, build(nnx, MODEL), special, nnx.Param, nnx.Variable)
        assert paths_in(first) == [("second",)]
        assert paths_in(second) == [("block", "first"), ("first",)]
