"""Combinators: filters made of filters, and filters as values."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.filters.selection import MODEL, expected, items, paths_in
from nnx_spec.filter_plans import build_filter
from nnx_spec.plans import build
from nnx_spec.strategies import filters, graphs

LAWS = {
    "de Morgan, Any": lambda nnx, a, b, c: (
        nnx.Not(nnx.Any(a, b)),
        nnx.All(nnx.Not(a), nnx.Not(b)),
    ),
    "de Morgan, All": lambda nnx, a, b, c: (
        nnx.Not(nnx.All(a, b)),
        nnx.Any(nnx.Not(a), nnx.Not(b)),
    ),
    "double negation": lambda nnx, a, b, c: (nnx.Not(nnx.Not(a)), a),
    "excluded middle": lambda nnx, a, b, c: (nnx.Any(a, nnx.Not(a)), nnx.Everything()),
    "contradiction": lambda nnx, a, b, c: (nnx.All(a, nnx.Not(a)), nnx.Nothing()),
    "Any commutes": lambda nnx, a, b, c: (nnx.Any(a, b), nnx.Any(b, a)),
    "All commutes": lambda nnx, a, b, c: (nnx.All(a, b), nnx.All(b, a)),
    "Any associates": lambda nnx, a, b, c: (nnx.Any(nnx.Any(a, b), c), nnx.Any(a, b, c)),
    "All associates": lambda nnx, a, b, c: (nnx.All(a, nnx.All(b, c)), nnx.All(a, b, c)),
    "All distributes": lambda nnx, a, b, c: (
        nnx.All(a, nnx.Any(b, c)),
        nnx.Any(nnx.All(a, b), nnx.All(a, c)),
    ),
    "Any distributes": lambda nnx, a, b, c: (
        nnx.Any(a, nnx.All(b, c)),
        nnx.All(nnx.Any(a, b), nnx.Any(a, c)),
    ),
    "absorption": lambda nnx, a, b, c: (nnx.All(a, nnx.Any(a, b)), a),
    "empty Any": lambda nnx, a, b, c: (nnx.Any(a, nnx.Any()), a),
    "empty All": lambda nnx, a, b, c: (nnx.All(a, nnx.All()), a),
    "a tuple is Any": lambda nnx, a, b, c: ((a, b, c), nnx.Any(a, b, c)),
    "a list is Any": lambda nnx, a, b, c: ([a, b, c], nnx.Any(a, b, c)),
    "a nested tuple is Any": lambda nnx, a, b, c: (nnx.Not([a, (b, c)]), nnx.Not(nnx.Any(a, b, c))),
}


@clause("FLT-005", MUST, DOCUMENTED, source="guides/filters_guide#the-filter-dsl")
class TestBooleanAlgebra:
    """`Any`, `All` and `Not` obey Boolean algebra, and a tuple or list is `Any` of its items.

    De Morgan's laws hold among the others. Inner filters may be of any form, literals included;
    `Any()` selects nothing and `All()` everything.
    """

    @given(plan=graphs(), filter_plan=filters())
    def test_selection(self, nnx, plan, filter_plan):
        state = nnx.state(build(nnx, plan), build_filter(nnx, filter_plan))
        assert paths_in(state) == expected(plan, filter_plan)

    @pytest.mark.parametrize("law", LAWS)
    @given(a=filters(), b=filters(), c=filters())
    def test_laws(self, nnx, law, a, b, c):
        inner = [build_filter(nnx, plan) for plan in (a, b, c)]
        left, right = map(nnx.filterlib.to_predicate, LAWS[law](nnx, *inner))
        shown = stocked(nnx)
        assert [left(*item) for item in shown] == [right(*item) for item in shown]


@functools.cache
def stocked(nnx):
    """Builds the Variables of the common model, with their paths."""
    return [(path, build(nnx, item)) for path, item in items(MODEL)]


DISTINCT = {
    "Everything()": lambda nnx: nnx.Everything(),
    "Nothing()": lambda nnx: nnx.Nothing(),
    "OfType(Param)": lambda nnx: nnx.OfType(nnx.Param),
    "OfType(Variable)": lambda nnx: nnx.OfType(nnx.Variable),
    "WithTag(a)": lambda nnx: nnx.WithTag("a"),
    "WithTag(b)": lambda nnx: nnx.WithTag("b"),
    "PathContains(a)": lambda nnx: nnx.PathContains("a"),
    "PathContains(b)": lambda nnx: nnx.PathContains("b"),
    "PathContains(0)": lambda nnx: nnx.PathContains(0),
    "Any()": lambda nnx: nnx.Any(),
    "Any(a)": lambda nnx: nnx.Any("a"),
    "Any(a, Param)": lambda nnx: nnx.Any("a", nnx.Param),
    "All()": lambda nnx: nnx.All(),
    "All(a)": lambda nnx: nnx.All("a"),
    "All(a, Param)": lambda nnx: nnx.All("a", nnx.Param),
    "Not(a)": lambda nnx: nnx.Not("a"),
    "Not(b)": lambda nnx: nnx.Not("b"),
    "Not(Not(a))": lambda nnx: nnx.Not(nnx.Not("a")),
    "Any([a, b])": lambda nnx: nnx.Any(["a", "b"]),
    "All([a, b], Not([Param]))": lambda nnx: nnx.All(["a", "b"], nnx.Not([nnx.Param])),
}


@clause("FLT-009", MUST, DOCUMENTED, source="guides/transforms#transforming-sub-states-lift-types")
class TestFiltersAsValues:
    """Filter objects are hashable, and two are equal when they were made alike.

    So they can be keys of a dict, as StateAxes take them, and static arguments of `jax.jit`.
    Filters of different classes, or of one class with different arguments, are unequal.
    """

    @pytest.mark.parametrize("name", DISTINCT)
    def test_made_alike(self, nnx, name):
        first, second = DISTINCT[name](nnx), DISTINCT[name](nnx)
        assert first == second
        assert (first != second) is False
        assert hash(first) == hash(second)
        assert {first: "found"}[second] == "found"

    @pytest.mark.parametrize("name", DISTINCT)
    def test_made_differently(self, nnx, name):
        made = DISTINCT[name](nnx)
        equal = [other for other, make in DISTINCT.items() if make(nnx) == made]
        assert equal == [name]
        assert made != name

    def test_keys_of_a_dict(self, nnx):
        numbers = {make(nnx): n for n, make in enumerate(DISTINCT.values())}
        assert [numbers[make(nnx)] for make in DISTINCT.values()] == list(range(len(DISTINCT)))

    def test_static_arguments(self, nnx):
        traces = []

        def double(x, select):
            traces.append(select)
            return 2 * x if select((), nnx.Param(0)) else x

        jitted = jax.jit(double, static_argnums=1)
        made = [lambda: nnx.Not("a"), lambda: nnx.Any(nnx.OfType(nnx.BatchStat))]
        got = [jitted(jnp.float32(3), make()).item() for make in [*made, *made]]
        assert got == [6, 3, 6, 3]
        assert len(traces) == 2
