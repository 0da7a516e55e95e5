"""What the reference promises of filters beyond the clauses, and how they read."""

import pickle
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from nnx_reference.filters import (
    All,
    Any,
    Everything,
    Not,
    Nothing,
    OfType,
    PathContains,
    WithTag,
    to_predicate,
)
from nnx_reference.variables import BatchStat, Param, Variable

CONVERSIONS = [
    (..., Everything()),
    (True, Everything()),
    (None, Nothing()),
    (False, Nothing()),
    (Param, OfType(Param)),
    ("dropout", WithTag("dropout")),
    ((Param, "dropout"), Any(OfType(Param), WithTag("dropout"))),
    ([Param, ...], Any(Param, ...)),
    ((), Any()),
    (Not(Param), Not(OfType(Param))),
]


@pytest.mark.parametrize(("filter", "predicate"), CONVERSIONS, ids=repr)
def test_literals(filter, predicate):
    assert to_predicate(filter) == predicate


def test_callables_stay_what_they_are():
    def selects(path, value):
        return True

    assert to_predicate(selects) is selects


@pytest.mark.parametrize("wrong", [1, 2.5, {"a": 1}, b"tag", Param(jnp.ones(1))], ids=repr)
@pytest.mark.parametrize("use", [to_predicate, Not, Any, lambda f: All(Param, [f])])
def test_what_is_no_filter(wrong, use):
    with pytest.raises(TypeError, match="not a filter") as raised:
        use(wrong)
    assert repr(wrong) in str(raised.value)


class TestOfType:
    def test_what_only_says_its_class(self):
        assert not OfType(Param)((), SimpleNamespace(type=Param))

    def test_any_class_of_value(self):
        assert OfType(jax.Array)((), jnp.ones(1))
        assert not OfType(jax.Array)((), Param(jnp.ones(1)))


class TestWithTag:
    def test_metadata_only(self):
        tagged_value = SimpleNamespace(tag="a")
        assert WithTag("a")((), tagged_value)
        assert not WithTag("a")((), Variable(tagged_value))
        assert WithTag("b")((), Variable(tagged_value, tag="b"))

    def test_tag_of_another_type(self):
        assert not WithTag("1")((), Variable(0, tag=1))
        assert not WithTag("a")((), Variable(0, tag=jnp.ones(3)))


class TestPathContains:
    def test_exact(self):
        assert PathContains("layer")(("layer", 1), None)
        assert not PathContains("layer")(("layer1",), None)
        assert not PathContains("1")(("layer", 1), None)

    def test_by_text(self):
        assert PathContains("ayer", exact=False)(("layer1",), None)
        assert PathContains("1", exact=False)((21,), None)
        assert PathContains(1, exact=False)(("layer1",), None)
        assert not PathContains("layers", exact=False)(("layer", "s"), None)


class TestCombinations:
    def test_empty(self):
        assert All()((), None)
        assert not Any()((), None)

    def test_kinds_differ(self):
        assert len({Any(Param), All(Param), Not(Param), Any(BatchStat), Any(OfType(Param))}) == 4

    def test_pickle(self):
        combined = All(Any(Variable, "a"), Not(PathContains("b")))
        assert pickle.loads(pickle.dumps(combined)) == combined

    def test_frozen(self):
        with pytest.raises(AttributeError):
            Not(Param).predicate = OfType(BatchStat)
