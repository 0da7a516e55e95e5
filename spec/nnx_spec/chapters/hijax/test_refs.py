"""Refs: Variables that hold their value in a `jax.Ref`."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, TESTED, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import Counted, assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.plans import classes

modes = pytest.mark.parametrize("hijax", [False, True], ids=["plain", "hijax"])
"""Runs a test with ref Variables that are hijax Variables, and with such that are not."""


def by_default(nnx, kind, value, hijax, **metadata):
    """Makes a Variable while ref Variables are the default."""
    with nnx.var_defaults(ref=True, hijax=hijax):
        return kind(value, **metadata)


MAKERS = {
    "keyword": lambda nnx, kind, value, **kw: kind(value, ref=True, **kw),
    "default": by_default,
    "view": lambda nnx, kind, value, **kw: with_vars(nnx, kind(value, **kw), ref=True),
}
"""Ways to come to a ref Variable of a class, by name."""


def held(v):
    """Returns the Ref that a Variable holds."""
    ref = v.get_raw_value()
    assert isinstance(ref, jax.Ref)
    return ref


@clause("HJX-023", MUST, DOCUMENTED, source="hijax/hijax#ref-support", needs={"hijax", "hijax.ref"})
class TestRefs:
    """A Variable with `ref=True` holds its value in a `jax.Ref`: `get_raw_value()` is that Ref,
    `v[...]` the array in it, and `v.ref` is True.

    So it is by keyword, by default and in a view that `with_vars` makes; class and metadata are the
    same as without. What is written to the Variable is in the Ref, which stays the same, and what
    is written to the Ref is the Variable's value.
    """

    @modes
    @pytest.mark.parametrize("make", MAKERS)
    @pytest.mark.parametrize("kind", ["Param", "Count"])
    def test_reading(self, nnx, kind, make, hijax):
        own = classes(nnx).Count if kind == "Count" else nnx.Param
        v = MAKERS[make](nnx, own, array([1, 2]), hijax=hijax, tag="t")
        assert (v.ref, v.hijax) == (True, hijax)
        assert held(v) is held(v)
        np.testing.assert_array_equal(held(v)[...], np.float32([1, 2]), strict=True)
        for value in (v[...], v.get_value()):
            assert isinstance(value, jax.Array)
        assert_holds(nnx, v, own, np.float32([1, 2]), tag="t")
        assert (v.shape, v.dtype, float(v[1]), len(v)) == ((2,), np.float32, 2, 2)

    @modes
    @pytest.mark.parametrize("make", MAKERS)
    def test_writing(self, nnx, make, hijax):
        v = MAKERS[make](nnx, nnx.Param, array([1, 2]), hijax=hijax)
        ref, read = held(v), v[...]
        v[...] = array([3, 4])
        v[0] += 10
        assert ref[...].tolist() == [13, 4]
        v.set_value(array([5, 6]))
        assert ref[...].tolist() == [5, 6]
        ref[...] = array([7, 8])
        assert_holds(nnx, v, nnx.Param, np.float32([7, 8]))
        assert held(v) is ref
        assert read.tolist() == [1, 2]

    @modes
    def test_without(self, nnx, hijax):
        v = nnx.Param(array(1), hijax=hijax)
        assert v.ref is False
        assert not isinstance(v.get_raw_value(), jax.Ref)

    @modes
    def test_view_leaves_the_original(self, nnx, hijax):
        model = net(nnx, w=nnx.Param(array(1), hijax=hijax))
        view = with_vars(nnx, model, ref=True)
        view.w[...] += 1
        assert (view.w.ref, float(view.w[...])) == (True, 2)
        assert (model.w.ref, float(model.w[...])) == (False, 1)


@clause(
    "HJX-024",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVariableRefMode::test_object",
    needs={"hijax", "hijax.ref"},
)
class TestUpdates:
    """What a `jax.jit` function does to a ref Variable, its argument or captured, shows outside.

    Each call does it, the function is traced once, and the Variable keeps its Ref.
    """

    @modes
    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_increment(self, nnx, captured, hijax):
        v = nnx.Param(array(5), ref=True, hijax=hijax, tag="t")
        ref = held(v)

        @Counted
        def increment(*args):
            (w,) = args or (v,)
            w[...] += 1
            return w[...] * 10

        args = () if captured else (v,)
        for calls in range(1, 4):
            assert float(increment(*args)) == 10 * (5 + calls)
            assert_holds(nnx, v, nnx.Param, np.float32(5 + calls), tag="t")
        assert held(v) is ref
        assert float(ref[...]) == 8
        assert increment.traces == 1

    @modes
    def test_model(self, nnx, hijax):
        with nnx.var_defaults(ref=True, hijax=hijax):
            model = net(nnx, w=nnx.Param(array([1, 2])), n=nnx.BatchStat(array(0, "int32")))
            other = nnx.Param(array(3))

        @jax.jit
        def inner(model, x):
            model.n[...] += 1
            model.w[0] = x

        @jax.jit
        def outer(model):
            inner(model, other[...])
            other[...] *= model.w[1]
            inner(model, other[...])

        outer(model)
        assert_holds(nnx, model.w, nnx.Param, np.float32([6, 2]))
        assert_holds(nnx, model.n, nnx.BatchStat, np.int32(2))
        assert_holds(nnx, other, nnx.Param, np.float32(6))

    @modes
    def test_between_calls(self, nnx, hijax):
        v = nnx.Variable(array([1, 2]), ref=True, hijax=hijax)
        double = jax.jit(lambda v: v.set_value(v[...] * 2))
        double(v)
        v[0] += 10
        double(v)
        assert v[...].tolist() == [24, 8]


@clause(
    "HJX-025",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#ref-support",
    needs={"hijax", "hijax.ref", "mutable-flag"},
)
class TestImmutableViews:
    """An immutable view of a ref Variable holds no Ref and has the metadata `had_ref`; a mutable
    view of it is a ref Variable again.

    The value is the same at each step. The views are Variables of their own: the Ref of the last is
    not that of the first.
    """

    @modes
    @pytest.mark.parametrize("make", MAKERS)
    def test_there_and_back(self, nnx, make, hijax):
        v = MAKERS[make](nnx, nnx.Param, array([1, 2]), hijax=hijax, tag="t")
        immutable = with_vars(nnx, v, mutable=False)
        assert (immutable.ref, immutable.mutable, immutable.hijax) == (False, False, hijax)
        assert immutable.get_metadata()["had_ref"] is True
        assert not isinstance(immutable.get_raw_value(), jax.Ref)
        assert_holds(nnx, immutable, nnx.Param, np.float32([1, 2]), tag="t")

        again = with_vars(nnx, immutable, mutable=True)
        assert (again.ref, again.mutable, again.hijax) == (True, True, hijax)
        assert not again.get_metadata().get("had_ref")
        assert_holds(nnx, again, nnx.Param, np.float32([1, 2]), tag="t")

        v[...] = array([3, 4])
        again[0] = 9.0
        values = [w[...].tolist() for w in (v, immutable, again)]
        assert values == [[3, 4], [1, 2], [9, 2]]
        assert held(v) is not held(again)

    @modes
    def test_of_a_model(self, nnx, hijax):
        model = net(
            nnx,
            w=nnx.Param(array(1), ref=True, hijax=hijax),
            n=nnx.BatchStat(array(2), hijax=hijax),
        )
        immutable = with_vars(nnx, model, mutable=False)
        assert (immutable.w.ref, immutable.n.ref) == (False, False)
        assert not immutable.n.get_metadata().get("had_ref")
        again = with_vars(nnx, immutable, mutable=True)
        assert (again.w.ref, again.n.ref) == (True, False)
        assert (float(held(again.w)[...]), float(again.n[...])) == (1, 2)
