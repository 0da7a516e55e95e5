"""Literals: what a bare value selects when it stands where a filter is taken."""

import re

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.filters.selection import expected, items, paths_in
from nnx_spec.filter_plans import (
    EVERYTHING,
    NOTHING,
    PathPlan,
    TagPlan,
    TypePlan,
    build_filter,
    is_kind,
)
from nnx_spec.plans import VARIABLE_KINDS, build, variable_class
from nnx_spec.strategies import NAMES, graphs

GUIDE = "guides/filters_guide#the-filter-dsl"


@clause("FLT-001", MUST, DOCUMENTED, source=GUIDE)
class TestEverythingAndNothing:
    """`...` and `True` select everything, `None` and `False` select nothing.

    `Everything()` and `Nothing()` are the same as callables.
    """

    @given(plan=graphs(), spelling=st.sampled_from(list(EVERYTHING)))
    def test_everything(self, nnx, plan, spelling):
        state = nnx.state(build(nnx, plan), EVERYTHING[spelling](nnx))
        assert paths_in(state) == [path for path, _ in items(plan)]

    @given(plan=graphs(), spelling=st.sampled_from(list(NOTHING)))
    def test_nothing(self, nnx, plan, spelling):
        assert paths_in(nnx.state(build(nnx, plan), NOTHING[spelling](nnx))) == []

    @pytest.mark.parametrize("value", [None, 0, "text", jnp.zeros(2)], ids=repr)
    @pytest.mark.parametrize("path", [(), ("a",), ("a", 0)])
    def test_path_and_value_do_not_matter(self, nnx, path, value):
        for spelling in EVERYTHING.values():
            assert nnx.filterlib.to_predicate(spelling(nnx))(path, value) is True
        for spelling in NOTHING.values():
            assert nnx.filterlib.to_predicate(spelling(nnx))(path, value) is False


@clause("FLT-002", MUST, DOCUMENTED, source=GUIDE)
class TestClasses:
    """A class selects the instances of it and of its subclasses, and nothing else.

    `OfType(cls)` is the same as a callable. A raw array is no instance of a class of Variables.
    """

    @pytest.mark.parametrize("literal", [True, False], ids=["class", "OfType"])
    @pytest.mark.parametrize("wanted", VARIABLE_KINDS)
    def test_instances_of_subclasses(self, nnx, wanted, literal):
        select = nnx.filterlib.to_predicate(build_filter(nnx, TypePlan(wanted, literal)))
        variables = {kind: variable_class(nnx, kind)(jnp.zeros(2)) for kind in VARIABLE_KINDS}
        selected = [kind for kind, variable in variables.items() if select((kind,), variable)]
        assert selected == [kind for kind in VARIABLE_KINDS if is_kind(kind, wanted)]

    @given(plan=graphs(), wanted=st.sampled_from(VARIABLE_KINDS))
    def test_graphs(self, nnx, plan, wanted):
        state = nnx.state(build(nnx, plan), variable_class(nnx, wanted))
        assert paths_in(state) == expected(plan, TypePlan(wanted))

    def test_classes_that_are_no_variables(self, nnx):
        class Part(nnx.Module):
            pass

        class SpecialPart(Part):
            pass

        select = nnx.filterlib.to_predicate(Part)
        assert select((), Part())
        assert select((), SpecialPart())
        assert not select((), nnx.Module())
        assert not select((), nnx.Param(1))


@clause("FLT-003", MUST, DOCUMENTED, source=GUIDE)
class TestTags:
    """A string selects the Variables whose metadata `tag` equals it, such as an RNG stream's.

    `WithTag(tag)` is the same as a callable. A Variable without a tag is selected by no string:
    neither its name nor its class counts.
    """

    @given(plan=graphs(), tag=st.sampled_from(["red", "blue", "a", "Param"]), literal=st.booleans())
    def test_graphs(self, nnx, plan, tag, literal):
        state = nnx.state(build(nnx, plan), build_filter(nnx, TagPlan(tag, literal)))
        assert paths_in(state) == expected(plan, TagPlan(tag))

    @pytest.mark.parametrize(
        "tag", ["Red", "red ", "re", "redder", "", None, 1, ("red",)], ids=repr
    )
    def test_only_an_equal_tag(self, nnx, tag):
        select = nnx.filterlib.to_predicate("red")
        assert select((), nnx.Variable(0, tag="red"))
        assert not select(("red",), nnx.Variable(0, tag=tag))

    def test_a_tag_that_changes(self, nnx):
        select = nnx.filterlib.to_predicate("red")
        v = nnx.Variable(0)
        assert not select((), v)
        v.set_metadata(tag="red")
        assert select((), v)

    @pytest.mark.parametrize("stream", ["params", "dropout", "default"])
    def test_random_streams(self, nnx, stream):
        rngs = nnx.Rngs(0, params=1, dropout=2)
        assert paths_in(nnx.state(rngs, stream)) == [(stream, "count"), (stream, "key")]


@clause("FLT-004", MUST, DOCUMENTED, source=GUIDE)
class TestPaths:
    """`PathContains(key)` selects what has the key anywhere in its path.

    The key must equal one of the path's keys: a part of a name does not count, and 1 is not "1".
    """

    @given(plan=graphs(), key=st.sampled_from([*NAMES, 0, 1]))
    def test_graphs(self, nnx, plan, key):
        state = nnx.state(build(nnx, plan), nnx.PathContains(key))
        assert paths_in(state) == expected(plan, PathPlan(key))

    @pytest.mark.parametrize(
        ("key", "path", "selected"),
        [
            ("a", ("a",), True),
            ("a", ("a", "b", "c"), True),
            ("a", ("b", "a", "c"), True),
            ("a", ("b", "c", "a"), True),
            ("a", (), False),
            ("a", ("b", "c"), False),
            ("layer1", ("layer10", "kernel"), False),
            ("layer10", ("layer1", "kernel"), False),
            (1, ("layers", 1, "kernel"), True),
            (1, ("layers", 10, "kernel"), False),
            (1, ("layers", "1", "kernel"), False),
            ("1", ("layers", 1, "kernel"), False),
        ],
        ids=repr,
    )
    def test_any_place_but_whole_keys(self, nnx, key, path, selected):
        assert nnx.PathContains(key)(path, nnx.Param(0)) is selected


OTHER_OBJECTS = pytest.mark.parametrize(
    "other", [0, 1, 7, 2.5, b"dropout", {"a": "b"}, {"a"}], ids=repr
)

USES = pytest.mark.parametrize(
    "use",
    [
        lambda nnx, other: nnx.filterlib.to_predicate(other),
        lambda nnx, other: nnx.filterlib.to_predicate(("a", other)),
        lambda nnx, other: nnx.filterlib.to_predicate(["a", ("b", other)]),
        lambda nnx, other: nnx.Any("a", other),
        lambda nnx, other: nnx.All("a", other),
        lambda nnx, other: nnx.Not(other),
        lambda nnx, other: nnx.state(nnx.Dict(a=nnx.Param(1)), other),
        lambda nnx, other: nnx.split(nnx.Dict(a=nnx.Param(1)), nnx.Param, other),
    ],
    ids=["to_predicate", "tuple", "list", "Any", "All", "Not", "state", "split"],
)


@clause("FLT-008", MUST, DOCUMENTED, source=GUIDE)
class TestToPredicate:
    """`to_predicate` turns every literal into its predicate, and refuses what is no filter.

    It raises TypeError or ValueError. So does every place that takes a filter, also where the
    object stands inside another filter.
    """

    @pytest.mark.parametrize(
        ("literal", "predicate"),
        [
            (lambda nnx: ..., lambda nnx: nnx.Everything()),
            (lambda nnx: True, lambda nnx: nnx.Everything()),
            (lambda nnx: None, lambda nnx: nnx.Nothing()),
            (lambda nnx: False, lambda nnx: nnx.Nothing()),
            (lambda nnx: nnx.Param, lambda nnx: nnx.OfType(nnx.Param)),
            (lambda nnx: "dropout", lambda nnx: nnx.WithTag("dropout")),
            (lambda nnx: (), lambda nnx: nnx.Any()),
            (lambda nnx: ("a", nnx.Param), lambda nnx: nnx.Any("a", nnx.Param)),
            (lambda nnx: ["a", nnx.Param], lambda nnx: nnx.Any("a", nnx.Param)),
            (lambda nnx: ["a", ("b", None)], lambda nnx: nnx.Any("a", nnx.Any("b", None))),
        ],
        ids=["...", "True", "None", "False", "class", "str", "empty", "tuple", "list", "nested"],
    )
    def test_literals(self, nnx, literal, predicate):
        converted = nnx.filterlib.to_predicate(literal(nnx))
        assert converted == predicate(nnx)
        assert type(converted) is type(predicate(nnx))

    @OTHER_OBJECTS
    @USES
    def test_other_objects_are_refused(self, nnx, use, other):
        with pytest.raises((TypeError, ValueError)):
            use(nnx, other)


@clause("FLT-011", SHOULD, OURS, source="who passes something else by mistake looks for it")
class TestMessages:
    """The error about an object that is no filter shows the object."""

    @OTHER_OBJECTS
    @USES
    def test_message(self, nnx, use, other):
        with pytest.raises((TypeError, ValueError), match=re.escape(repr(other))):
            use(nnx, other)
