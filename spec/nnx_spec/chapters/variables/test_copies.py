"""Copies: second Variables made from a first, and values taken over from one."""

import copy
import pickle
import sys
import types

import jax
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import CONVENTION, MAY, MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.variables.cases import array, inside
from nnx_spec.oracles import user_metadata, value_record, variable_record
from nnx_spec.plans import VARIABLE_KINDS, build, build_value, classes, variable_class
from nnx_spec.strategies import variables

VALUES = {
    "array": lambda: array([1, 2, 3]),
    "numpy": lambda: np.float32([1, 2, 3]),
    "dict": lambda: {"a": array([1, 2]), "b": 3},
    "list": lambda: [array([1, 2]), 3],
    "number": lambda: 5,
}
"""Values of every kind that can be written to, by name."""


def set_whole(v):
    """Replaces the whole value."""
    v.set_value(jax.tree.map(lambda x: x * 0 - 7, v.get_value()))


def set_all_items(v):
    """Writes one number to every element of an array."""
    v[...] = -7.0


def set_one_item(v):
    """Writes to the first item."""
    v[next(iter(v.get_value())) if isinstance(v.get_value(), dict) else 0] = -7.0


def delete_one_item(v):
    """Deletes an item of a container."""
    del v["a" if isinstance(v.get_value(), dict) else 0]


def change_metadata(v):
    """Changes one entry of the metadata."""
    v.set_metadata("tag", "changed")


ARRAY_WRITES = [set_whole, set_all_items, set_one_item, change_metadata]
CONTAINER_WRITES = [set_whole, set_one_item, delete_one_item, change_metadata]
WRITES = [
    pytest.param(kind, write, id=f"{kind}-{write.__name__}")
    for kind, writes in {
        "array": ARRAY_WRITES,
        "numpy": ARRAY_WRITES,
        "dict": CONTAINER_WRITES,
        "list": CONTAINER_WRITES,
        "number": [set_whole, change_metadata],
    }.items()
    for write in writes
]
"""Every way to write to each kind of value."""


def assert_independent(v, w, write):
    """Writes to each of two equal Variables in turn, and finds the other as it was."""
    assert v is not w
    before = variable_record(v)
    assert variable_record(w) == before
    write(w)
    assert variable_record(v) == before
    changed = variable_record(w)
    assert changed != before
    v.set_value(jax.tree.map(lambda x: x * 0 + 9, v.get_value()))
    v.set_metadata(other="new")
    assert variable_record(w) == changed


@clause(
    "VAR-015", MUST, SOUND, source="a copy loses what it is of, or a write to it shows elsewhere"
)
class TestCopyAndReplace:
    """`copy()` and `replace(value)` give a new Variable of the same class and metadata.

    The copy has the same value, the replacement the given one; the original stays as it is, then
    and when the new Variable is written to in whatever way, and the other way round.
    """

    @pytest.mark.parametrize("kind", VARIABLE_KINDS)
    @given(plan=variables)
    def test_copy(self, nnx, kind, plan):
        v = variable_class(nnx, kind)(build_value(plan.value), **dict(plan.metadata))
        w = v.copy()
        assert w is not v
        assert type(w) is type(v)
        assert variable_record(w) == variable_record(v)

    @given(plan=variables, other=variables)
    def test_replace(self, nnx, plan, other):
        v, value = build(nnx, plan), build(nnx, other).get_value()
        before = variable_record(v)
        w = v.replace(value)
        assert w is not v
        assert type(w) is type(v)
        assert user_metadata(w) == user_metadata(v)
        assert value_record(w.get_value()) == value_record(value)
        assert variable_record(v) == before

    @pytest.mark.parametrize("make", ["copy", "replace"])
    @pytest.mark.parametrize(("kind", "write"), WRITES)
    def test_independent(self, nnx, kind, write, make):
        v = nnx.BatchStat(VALUES[kind](), tag="t")
        assert_independent(v, v.copy() if make == "copy" else v.replace(VALUES[kind]()), write)

    @pytest.mark.parametrize("make", ["copy", "replace"])
    def test_in_a_trace(self, nnx, make):
        @jax.jit
        def f(v):
            w = v.copy() if make == "copy" else v.replace(v.get_value())
            w[...] *= 2
            return v, w

        v, w = f(nnx.BatchStat(array([1, 2]), tag="t"))
        assert (v[...].tolist(), w[...].tolist()) == ([1, 2], [2, 4])
        for x in (v, w):
            assert (type(x), user_metadata(x)) == (nnx.BatchStat, {"tag": "t"})


TAKES = pytest.mark.parametrize("take", ["copy_from", "update_from_state"])

TWO_CLASSES = pytest.mark.parametrize(
    ("to", "source"),
    [
        ("Param", "BatchStat"),
        ("Param", "Variable"),
        ("Variable", "Param"),
        ("SpecialParam", "Param"),
        ("Param", "SpecialParam"),
        ("RngKey", "RngCount"),
    ],
)


def refused(nnx, take, to, source):
    """Lets a Variable take over one of another class; gives the message of the refusal."""
    own = classes(nnx)
    to_class, source_class = (getattr(own, k, None) or getattr(nnx, k) for k in (to, source))
    v, w = to_class(array([1, 2]), tag="t"), source_class(array([3, 4]), note="n")
    before, raw = variable_record(v), v.get_raw_value()
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(v, take)(w)
    assert variable_record(v) == before
    assert v.get_raw_value() is raw, "the value has been replaced by an equal one"
    assert w[...].tolist() == [3, 4]
    return str(caught.value)


@clause(
    "VAR-016", MUST, SOUND, source="a Variable silently becomes one of another kind, or half of it"
)
class TestTakingOver:
    """`copy_from(other)` and `update_from_state(other)` take over value and metadata in place.

    The Variable stays the same object and the other as it is. `copy_from` refuses a Variable of
    another class, be it a base, a subclass or a sibling, and nothing changes.
    """

    @TAKES
    @given(plan=variables, other=variables)
    def test_takes_value_and_metadata(self, nnx, take, plan, other):
        source = build(nnx, other)
        v = type(source)(build(nnx, plan).get_value(), **dict(plan.metadata))
        model = inside(nnx, v)
        before = variable_record(source)
        getattr(v, take)(source)
        assert model.v is v
        assert type(v) is type(source)
        assert variable_record(v) == variable_record(source) == before

    @pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
    def test_takes_from_a_state(self, nnx, graph):
        v = nnx.Param(array([1, 2]), old="gone")
        source = inside(nnx, nnx.Param(array([3, 4]), tag="t"))
        v.update_from_state(nnx.state(source, graph=graph)["v"])
        assert v[...].tolist() == [3, 4]
        assert user_metadata(v) == {"tag": "t"}

    @TAKES
    @pytest.mark.parametrize("write", ARRAY_WRITES)
    def test_independent_afterwards(self, nnx, take, write):
        v, w = nnx.Param(array([0]), old="gone"), nnx.Param(array([1, 2, 3]), tag="t")
        getattr(v, take)(w)
        assert_independent(w, v, write)

    @TAKES
    def test_itself(self, nnx, take):
        v = nnx.Param(array([1, 2]), tag="t")
        getattr(v, take)(v)
        assert v[...].tolist() == [1, 2]
        assert user_metadata(v) == {"tag": "t"}

    @TWO_CLASSES
    def test_other_classes_are_refused(self, nnx, to, source):
        refused(nnx, "copy_from", to, source)


@clause("VAR-026", SHOULD, OURS, source="a state that does not fit is seen where it is put in")
class TestTakingOverAnotherClass:
    """A Variable of another class is refused by `update_from_state`, and errors name both classes.

    Releases of Flax take the value of a Variable of any class there; none of its documents says
    which it is to be.
    """

    @TAKES
    @TWO_CLASSES
    def test_other_classes(self, nnx, take, to, source):
        message = refused(nnx, take, to, source)
        assert [name for name in (to, source) if name in message] == [to, source], message


COPIES = {
    "copy.deepcopy": copy.deepcopy,
    **{
        f"pickle-{protocol}": lambda v, protocol=protocol: pickle.loads(pickle.dumps(v, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}
"""Python's own ways to copy an object, by name."""


@clause("VAR-020", MUST, CONVENTION, source="copy.deepcopy")
class TestPythonCopies:
    """`copy.deepcopy` and `pickle` give a Variable of equal class, value and metadata.

    The copy and the original are independent: writing to one, or changing its metadata, leaves the
    other as it is. An importable class of the user's own is copied as the surface's classes are.
    Of `copy.copy`, which is shallow by convention, nothing is said.
    """

    KINDS = ("Variable", "Param", "BatchStat", "Cache", "RngCount", "OptState")

    @pytest.mark.parametrize("way", COPIES)
    @pytest.mark.parametrize("kind", KINDS)
    def test_class_value_and_metadata(self, nnx, kind, way):
        v = getattr(nnx, kind)(array([1, 2]), tag="t", note=("a", 1))
        w = COPIES[way](v)
        assert w is not v
        assert type(w) is type(v)
        assert variable_record(w) == variable_record(v)

    @pytest.mark.parametrize("way", COPIES)
    @pytest.mark.parametrize("kind", VALUES)
    def test_kinds_of_value(self, nnx, kind, way):
        v = nnx.Param(VALUES[kind](), tag="t")
        w = COPIES[way](v)
        assert type(w) is nnx.Param
        assert variable_record(w) == variable_record(v)

    @pytest.mark.parametrize("way", ["copy.deepcopy", "pickle-4"])
    @pytest.mark.parametrize(("kind", "write"), WRITES)
    def test_independent(self, nnx, kind, write, way):
        v = nnx.Param(VALUES[kind](), tag="t")
        w = COPIES[way](v)
        assert type(w) is nnx.Param
        assert_independent(v, w, write)

    @pytest.mark.parametrize("way", COPIES)
    def test_importable_class(self, nnx, way, monkeypatch):
        module = types.ModuleType("classes_of_a_user")
        module.Scale = type("Scale", (nnx.Param,), {"__module__": module.__name__})
        monkeypatch.setitem(sys.modules, module.__name__, module)
        v = module.Scale(array([1, 2]), tag="t")
        w = COPIES[way](v)
        assert type(w) is module.Scale
        assert variable_record(w) == variable_record(v)
        w[0] = 5.0
        assert (v[...].tolist(), w[...].tolist()) == ([1, 2], [5, 2])

    @pytest.mark.parametrize("way", COPIES)
    def test_inside_a_module(self, nnx, way):
        v = nnx.Param(array([1, 2]), tag="t")
        w, again = COPIES[way]([v, v])
        assert w is again
        assert isinstance(w, nnx.Param)


@clause("VAR-021", MAY, OURS, source="a Variable is seldom meant to hold another one")
class TestVariableOfAVariable:
    """A Variable made of another Variable takes that one's value and metadata, and no more of it.

    It has the class that is called. Neither sees what is written to the other afterwards.
    """

    @given(plan=variables)
    def test_value_and_metadata(self, nnx, plan):
        v = build(nnx, plan)
        before = variable_record(v)
        w = nnx.Variable(v)
        assert type(w) is nnx.Variable
        assert value_record(w.get_value()) == value_record(v.get_value())
        assert user_metadata(w) == user_metadata(v)
        assert variable_record(v) == before

    @pytest.mark.parametrize("kind", ["Variable", "Param", "BatchStat"])
    def test_class_is_the_one_called(self, nnx, kind):
        x = array([1, 2])
        w = getattr(nnx, kind)(nnx.Param(x, tag="t"))
        assert type(w) is getattr(nnx, kind)
        assert w.get_raw_value() is x
        assert w.tag == "t"

    @pytest.mark.parametrize(("kind", "write"), WRITES)
    def test_independent(self, nnx, kind, write):
        v = nnx.Param(VALUES[kind](), tag="t")
        assert_independent(v, nnx.Param(v), write)
