"""Writes: replacing a value, or a part of it, in place."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, SOUND, clause
from nnx_spec.chapters.variables.cases import RefusalError, Refuses, array
from nnx_spec.oracles import array_record, user_metadata, value_record
from nnx_spec.plans import classes


def write_item(v, y):
    """Replaces the value by item assignment."""
    v[...] = y


def write_value(v, y):
    """Replaces the value by `set_value`."""
    v.set_value(y)


WRITES = pytest.mark.parametrize("write", [write_item, write_value])


@clause("VAR-002", MUST, DOCUMENTED, source="nnx_basics#stateful-computation")
class TestReplacement:
    """`v[...] = y` and `set_value(y)` replace the value in place: every holder of the Variable sees
    the new one.

    The Variable stays the same object, of the same class and with the same metadata. `set_value`
    takes any value, whatever the shape, dtype or structure of the old one.
    """

    @WRITES
    @pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
    @pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
    def test_new_value(self, nnx, write, shape, dtype):
        old = array(np.zeros(shape), dtype)
        new = array(np.ones(shape), dtype)
        v = nnx.Param(old, tag="t")
        write(v, new)
        assert array_record(v[...]) == array_record(v.get_value()) == array_record(new)
        assert type(v) is nnx.Param
        assert user_metadata(v) == {"tag": "t"}

    @WRITES
    def test_every_holder_sees_it(self, nnx, write):
        own = classes(nnx)
        model, other, inner = own.Net(), own.Tree(), own.Net()
        model.v = v = nnx.Param(array([1, 2]))
        other.w = v
        model.items = nnx.List([v])
        model.inner, inner.v = inner, v
        write(other.w, array([3, 4]))
        for holder in (v, model.v, model.items[0], model.inner.v):
            assert holder is v
            assert holder[...].tolist() == [3, 4]

    @WRITES
    @given(values=st.lists(st.integers(-99, 99), min_size=1, max_size=6))
    def test_the_last_write_wins(self, nnx, write, values):
        v = nnx.Variable(array(0, "int32"))
        alias = v
        for number in values:
            write(v, array(number, "int32"))
            assert alias.get_value().tolist() == number

    @pytest.mark.parametrize(
        "value",
        [np.arange(4), np.ones((2, 1), "int32"), {"a": np.ones(2)}, [1, (2.5, None)], 7],
        ids=["shape", "dtype", "dict", "nested", "number"],
    )
    def test_set_value_takes_any_value(self, nnx, value):
        v = nnx.Variable(array([1, 2, 3]), tag="t")
        v.set_value(value)
        assert value_record(v.get_value()) == value_record(value)
        assert user_metadata(v) == {"tag": "t"}

    @WRITES
    def test_inside_a_trace(self, nnx, write):
        @jax.jit
        def f(v, y):
            alias = v
            write(v, y)
            return alias, v.get_value() * 2

        v, doubled = f(nnx.Param(array([1, 2]), tag="t"), array([5, 6]))
        assert v[...].tolist() == [5, 6]
        assert doubled.tolist() == [10, 12]
        assert (type(v), v.tag) == (nnx.Param, "t")

    @WRITES
    def test_the_old_value_is_left_alone(self, nnx, write):
        old = array([1, 2])
        v = nnx.Variable(old)
        held = v.get_value()
        write(v, array([3, 4]))
        assert old.tolist() == held.tolist() == [1, 2]


def add(v, key, operand):
    """Runs `v[key] += operand`."""
    v[key] += operand


def put(v, key, y):
    """Runs `v[key] = y`."""
    v[key] = y


def remove(v, key):
    """Runs `del v[key]`."""
    del v[key]


ARRAY_FAILURES = {
    "augmented": lambda v: add(v, ..., Refuses()),
    "augmented-part": lambda v: add(v, 0, Refuses()),
    "augmented-shape": lambda v: add(v, ..., array([1, 2, 3, 4, 5])),
    "unconvertible": lambda v: put(v, ..., Refuses()),
    "unconvertible-part": lambda v: put(v, 1, Refuses()),
    "no-array": lambda v: put(v, ..., object()),
    "text": lambda v: put(v, 0, "text"),
    "shape": lambda v: put(v, ..., array([1, 2, 3, 4, 5])),
    "part-shape": lambda v: put(v, slice(0, 2), array([1, 2, 3])),
    "too-many-indices": lambda v: put(v, (0, 0, 0), 1.0),
    "text-index": lambda v: put(v, "k", 1.0),
    "float-index": lambda v: put(v, 1.5, 1.0),
    "set-value": lambda v: v.set_value(v.get_value() + Refuses()),
}
"""Updates of an array of three elements that fail."""

DICT_FAILURES = {
    "augmented": lambda v: add(v, "k", Refuses()),
    "augmented-missing": lambda v: add(v, "missing", 1),
    "delete-missing": lambda v: remove(v, "missing"),
    "set-value": lambda v: v.set_value({"k": v["k"] + Refuses()}),
}
"""Updates of a dict that fail."""

LIST_FAILURES = {
    "augmented": lambda v: add(v, 0, Refuses()),
    "augmented-missing": lambda v: add(v, 7, 1),
    "put-missing": lambda v: put(v, 7, 1),
    "delete-missing": lambda v: remove(v, 7),
}
"""Updates of a list that fail."""


@clause("VAR-024", MUST, SOUND, source="part of a write that failed stays behind")
class TestFailedUpdates:
    """An exception raised while a new value is computed or put in leaves the Variable exactly as it
    was.

    That is: the same stored object, the same elements, the same metadata, and the Variable takes
    the next write.
    """

    @staticmethod
    def assert_untouched(nnx, value, fail):
        v = nnx.Param(value, tag="t")
        raw, record = v.get_raw_value(), value_record(v.get_value())
        with pytest.raises(Exception):  # noqa: B017, PT011 - each update fails in a way of its own
            fail(v)
        assert value_record(v.get_value()) == record
        assert jax.tree.all(jax.tree.map(lambda a, b: a is b, v.get_raw_value(), raw))
        assert (type(v), user_metadata(v)) == (nnx.Param, {"tag": "t"})
        v.set_value(value)
        assert value_record(v.get_value()) == record

    @pytest.mark.parametrize("name", ARRAY_FAILURES)
    def test_array(self, nnx, name):
        self.assert_untouched(nnx, array([1, 2, 3]), ARRAY_FAILURES[name])

    @pytest.mark.parametrize("name", DICT_FAILURES)
    def test_dict(self, nnx, name):
        self.assert_untouched(nnx, {"k": 1, "l": array([2, 3])}, DICT_FAILURES[name])

    @pytest.mark.parametrize("name", LIST_FAILURES)
    def test_list(self, nnx, name):
        self.assert_untouched(nnx, [1, array([2, 3])], LIST_FAILURES[name])

    @pytest.mark.parametrize(
        "transform", [jax.jit, jax.grad, jax.checkpoint], ids=["jit", "grad", "checkpoint"]
    )
    def test_argument_of_a_transform(self, nnx, transform):
        def f(v):
            v[...] *= 2
            raise RefusalError

        def attempt(v):
            with pytest.raises(RefusalError):
                transform(f)(v)

        v = nnx.Param(array(3), tag="t")
        attempt(v)
        assert array_record(v[...]) == array_record(array(3))
        assert v.tag == "t"
