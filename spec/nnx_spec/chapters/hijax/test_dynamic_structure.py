"""Dynamic structure: changes of a hijax Variable's keys, dtypes and shapes under `jax.jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, TESTED, clause
from nnx_spec.chapters.hijax.cases import Counted, assert_holds
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import value_record

X = np.float32([2, 5])


@clause(
    "HJX-011",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_hijax_dynamic_structure",
    needs={"hijax", "hijax.qdd"},
)
class TestNewKeys:
    """A key that a `jax.jit` function adds to a dict value is there afterwards, with its value.

    The next call, whose input has the key, traces the function once more; further calls do not.
    """

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_metrics(self, nnx, captured):
        metrics = nnx.Variable({}, hijax=True, tag="t")

        @Counted
        def measure(x, *args):
            (v,) = args or (metrics,)
            v["mean"] = jnp.mean(x)
            return x * 2

        args = () if captured else (metrics,)
        traces = []
        for n in (1, 2, 3):
            assert measure(n * X, *args).tolist() == (2 * n * X).tolist()
            assert_holds(nnx, metrics, nnx.Variable, {"mean": np.float32(3.5 * n)}, tag="t")
            traces.append(measure.traces)
        assert traces == [1, 2, 2]

    def test_beside_other_keys(self, nnx):
        @Counted
        def step(v, x):
            v["last"] = x
            v["total"] += x.sum()

        v = nnx.Variable({"total": array(1)}, hijax=True)
        for _ in range(3):
            step(v, X)
        assert_holds(nnx, v, nnx.Variable, {"last": X, "total": np.float32(22)})
        assert step.traces == 2


KEYS = ("a", "b", "c")

edits = st.tuples(
    st.sampled_from(["set", "set", "add", "delete"]), st.sampled_from(KEYS), st.integers(1, 9)
)
"""A change of a dict: what to do, with which key, and a number to compute with."""

starts = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), max_size=2)


def edit(target, program, x):
    """Runs a program of edits on a dict, or a Variable that holds one."""
    for action, key, number in program:
        if action == "delete":
            del target[key]
        else:
            target[key] = x * number + (target[key] if action == "add" else 0)


def executable(start, program):
    """Leaves out the edits that need a key which is not there."""
    keys, kept = set(start), []
    for action, key, number in program:
        if action == "set" or key in keys:
            kept.append((action, key, number))
            (set.discard if action == "delete" else set.add)(keys, key)
    return kept


def keeps(edit):
    """Tells whether an edit deletes nothing."""
    return edit[0] != "delete"


def check_edits(nnx, start, program):
    """Runs edits on a dict, on a Variable, and on one under `jax.jit`: all end alike."""
    expected = {key: np.float32(number) for key, number in start.items()}
    traced, eager = (
        nnx.Variable({key: array(n) for key, n in start.items()}, hijax=True) for _ in range(2)
    )
    x = np.float32(3)
    edit(expected, program, x)
    edit(eager, program, x)
    jax.jit(lambda v, x: edit(v, program, x))(traced, x)
    assert_holds(nnx, traced, nnx.Variable, expected)
    assert_holds(nnx, eager, nnx.Variable, expected)


@clause(
    "HJX-012",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#hijax-variable",
    needs={"hijax", "hijax.qdd"},
)
class TestEdits:
    """Whatever a `jax.jit` function does to the keys of a dict value, the Variable ends as it would
    outside.

    That is any sequence of additions and overwrites, on a dict with or without keys.
    """

    @pytest.mark.parametrize(
        ("start", "program"),
        [
            ({}, [("set", "b", 2), ("set", "a", 3), ("add", "b", 4)]),
            ({"b": 1}, [("set", "a", 3), ("set", "b", 2), ("set", "a", 5)]),
        ],
        ids=["empty", "not-empty"],
    )
    def test_without_deletions(self, nnx, start, program):
        check_edits(nnx, start, program)

    @given(start=starts, program=st.lists(edits.filter(keeps), min_size=1, max_size=5))
    def test_any_sequence(self, nnx, start, program):
        check_edits(nnx, start, executable(start, program))


@clause(
    "HJX-046",
    SHOULD,
    OURS,
    source="what can be added can be taken away, as from a dict",
    needs={"hijax.qdd"},
)
class TestDeletions:
    """Keys that a `jax.jit` function deletes from a dict value are gone afterwards.

    That is in any sequence of additions, overwrites and deletions. Releases up to 0.12.12 have no
    deletion inside of a trace.
    """

    @given(start=starts, program=st.lists(edits, min_size=1, max_size=5))
    @example(start={"a": 1, "b": 2}, program=[("delete", "a", 1), ("delete", "b", 1)])
    @example(start={"a": 1}, program=[("delete", "a", 1), ("set", "a", 3), ("add", "a", 4)])
    def test_any_sequence(self, nnx, start, program):
        check_edits(nnx, start, executable(start, program))


def put(v, key, value):
    """Runs `v[key] = value`."""
    v[key] = value


def delete(v, key):
    """Runs `del v[key]`."""
    del v[key]


CHANGES = {
    "new-key": (lambda: {"k": array(1)}, lambda v, x: put(v, "new", x)),
    "deleted-key": (lambda: {"k": array(1), "l": array(2)}, lambda v, x: delete(v, "k")),
    "longer-list": (lambda: [array(1)], lambda v, x: v.set_value([*v.get_value(), x])),
    "array-to-dict": (lambda: array([1, 2]), lambda v, x: v.set_value({"k": x})),
    "dtype": (lambda: array([1, 2], "int32"), lambda v, x: v.set_value(x + 0.5)),
    "dtype-of-an-item": (lambda: {"k": array([1, 2])}, lambda v, x: put(v, "k", x < 3)),
    "shape": (lambda: array(1), lambda v, x: v.set_value(x)),
    "shape-of-an-item": (lambda: {"k": array([1, 2])}, lambda v, x: put(v, "k", x[:1])),
}
"""Changes of a value's structure, dtype or shape: what to start from, and the change, by name."""


@clause(
    "HJX-013",
    MUST,
    SOUND,
    source="a change is lost silently, or converted into another",
    needs={"hijax"},
)
class TestChangesThatCannotBeCarried:
    """A change of structure, dtype or shape under `jax.jit` either shows outside or raises.

    It is never lost silently, nor converted into something else. If it raises, then at the
    statement that makes the change; the Variable keeps its value and can be used as before.
    """

    @pytest.mark.parametrize("name", CHANGES)
    def test_argument(self, nnx, name):
        self.check(nnx, name, lambda f, v: jax.jit(f)(v, X))

    @pytest.mark.parametrize("name", ["new-key", "dtype", "shape"])
    def test_captured(self, nnx, name):
        self.check(nnx, name, lambda f, v: jax.jit(lambda x: f(v, x))(X))

    @pytest.mark.parametrize("name", ["deleted-key", "dtype-of-an-item", "shape"])
    def test_in_an_inner_function(self, nnx, name):
        self.check(nnx, name, lambda f, v: jax.jit(lambda v: jax.jit(f)(v, X))(v))

    @staticmethod
    def check(nnx, name, call):
        start, change = CHANGES[name]
        v, eager = (nnx.Cache(start(), hijax=True, tag="t") for _ in range(2))
        change(eager, X)
        passed = []

        def f(v, x):
            change(v, x)
            passed.append(name)

        try:
            call(f, v)
        except Exception:
            assert not passed
            assert_holds(nnx, v, nnx.Cache, start(), tag="t")
            v.set_value(eager.get_value())
        assert_holds(nnx, v, nnx.Cache, eager.get_value(), tag="t")
        assert value_record(start()) != value_record(eager.get_value())
