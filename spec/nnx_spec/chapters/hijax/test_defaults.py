"""Defaults: in which mode a Variable is made."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from jax.nn.initializers import zeros

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, TESTED, clause
from nnx_spec.chapters.variables.cases import array
from nnx_spec.plans import classes

MODES = ("hijax", "ref")

MAKERS = {
    "Variable": lambda nnx: nnx.Variable(array([1, 2])),
    "Param": lambda nnx: nnx.Param(array(1), tag="t"),
    "user's class": lambda nnx: classes(nnx).SpecialParam(array(1)),
    "numpy": lambda nnx: nnx.BatchStat(np.float32([1, 2])),
    "layer": lambda nnx: nnx.Linear(1, 2, kernel_init=zeros, rngs=nnx.Rngs(0)).kernel,
    "random stream": lambda nnx: nnx.Rngs(0).default.count,
}
"""Ways to come to a Variable without saying its mode, by name."""


def made(nnx):
    """Makes a Variable and tells which modes it is in."""
    v = nnx.Variable(array(0))
    return {mode: getattr(v, mode) for mode in MODES}


def modes(*on):
    """Returns the modes with those that are on."""
    return {mode: mode in on for mode in MODES}


def other(mode):
    """Returns the mode that is not this one."""
    return MODES[1 - MODES.index(mode)]


@pytest.fixture(autouse=True)
def _defaults(nnx):
    """Turns both modes off again, whatever the test has done."""
    yield
    if (var_defaults := getattr(nnx, "var_defaults", None)) is not None:
        var_defaults(hijax=False, ref=False)


@clause(
    "HJX-001",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVarDefaults::test_mapping_protocol",
    needs={"hijax"},
)
class TestDefaults:
    """Variables are neither hijax nor ref by default, as `var_defaults()` says.

    `var_defaults()` changes nothing. It returns the current defaults, which can be read as
    attributes, `hijax` and `ref`, and as a mapping with these two keys.
    """

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("make", MAKERS)
    def test_variables(self, nnx, make, mode):
        assert getattr(MAKERS[make](nnx), mode) is False

    @pytest.mark.parametrize("on", [(), ("hijax",), ("ref",), MODES], ids=str)
    def test_attributes_and_mapping(self, nnx, on):
        nnx.var_defaults(**modes(*on))
        defaults = nnx.var_defaults()
        assert {mode: getattr(defaults, mode) for mode in MODES} == modes(*on)
        assert {mode: defaults[mode] for mode in MODES} == modes(*on)
        assert dict(defaults) == modes(*on)
        assert sorted(defaults) == sorted(MODES)
        assert len(defaults) == 2

    def test_unpacks_into_itself(self, nnx):
        defaults = nnx.var_defaults()
        nnx.var_defaults(hijax=True, ref=True)
        nnx.var_defaults(**defaults)
        assert dict(nnx.var_defaults()) == made(nnx) == modes()

    def test_asking_changes_nothing(self, nnx):
        nnx.var_defaults(hijax=True)
        nnx.var_defaults()
        assert dict(nnx.var_defaults()) == made(nnx) == modes("hijax")


@clause("HJX-002", MUST, DOCUMENTED, source="hijax/hijax#hijax-variable", needs={"hijax"})
class TestSetting:
    """`var_defaults(hijax=True)` makes every Variable made from then on a hijax one.

    So it stays until the default is set again, and so it is with `ref=True`; to set one leaves the
    other. Variables that exist keep their mode.
    """

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("make", MAKERS)
    def test_later_variables(self, nnx, make, mode):
        before = MAKERS[make](nnx)
        nnx.var_defaults(**{mode: True})
        between = MAKERS[make](nnx)
        nnx.var_defaults(**{mode: False})
        after = MAKERS[make](nnx)
        found = [getattr(v, mode) for v in (before, between, after)]
        assert found == [False, True, False]

    @pytest.mark.parametrize("mode", MODES)
    def test_lasts(self, nnx, mode):
        def elsewhere():
            nnx.var_defaults(**{mode: True})

        elsewhere()
        assert [getattr(nnx.Param(array(n)), mode) for n in range(3)] == [True] * 3
        assert nnx.var_defaults()[mode] is True

    @pytest.mark.parametrize("mode", MODES)
    def test_leaves_the_other_default(self, nnx, mode):
        for value in (True, False):
            nnx.var_defaults(**{other(mode): value})
            for setting in (True, False):
                nnx.var_defaults(**{mode: setting})
                assert dict(nnx.var_defaults()) == {mode: setting, other(mode): value}


@clause(
    "HJX-003",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVarDefaults::test_context_manager_nested",
    needs={"hijax"},
)
class TestScopes:
    """As a context manager, `var_defaults` sets the defaults for its block, and then restores them.

    It restores what was the default before, also if the block raises, and so do blocks within
    blocks. A default that the block doesn't name is left alone.
    """

    @pytest.mark.parametrize("outermost", [False, True])
    @pytest.mark.parametrize("mode", MODES)
    def test_nested(self, nnx, mode, outermost):
        found = []
        nnx.var_defaults(**{mode: outermost})
        with nnx.var_defaults(**{mode: not outermost}):
            found.append(made(nnx)[mode])
            with nnx.var_defaults(**{mode: outermost}):
                found.append(made(nnx)[mode])
                with nnx.var_defaults(**{mode: outermost}):
                    found.append(made(nnx)[mode])
                found.append(made(nnx)[mode])
            found.append(made(nnx)[mode])
        found.append(made(nnx)[mode])
        inner, outer = not outermost, outermost
        assert found == [inner, outer, outer, outer, inner, outer]

    @pytest.mark.parametrize("mode", MODES)
    def test_exception(self, nnx, mode):
        def leave_twice():
            with nnx.var_defaults(**{mode: True}):
                with contextlib.suppress(IndexError), nnx.var_defaults(**{mode: False}):
                    raise IndexError
                assert made(nnx) == modes(mode)
                raise KeyError("planned")

        with pytest.raises(KeyError, match="planned"):
            leave_twice()
        assert dict(nnx.var_defaults()) == made(nnx) == modes()

    def test_one_default_within_the_other(self, nnx):
        with nnx.var_defaults(hijax=True):
            with nnx.var_defaults(ref=True):
                assert dict(nnx.var_defaults()) == modes("hijax", "ref")
            assert dict(nnx.var_defaults()) == made(nnx) == modes("hijax")
        with nnx.var_defaults(hijax=True, ref=True):
            assert dict(nnx.var_defaults()) == modes("hijax", "ref")
        assert dict(nnx.var_defaults()) == modes()

    def test_what_was_set_within_is_undone(self, nnx):
        with nnx.var_defaults(hijax=True):
            nnx.var_defaults(hijax=False)
            assert made(nnx) == modes()
            nnx.var_defaults(hijax=True)
        assert dict(nnx.var_defaults()) == made(nnx) == modes()


@clause(
    "HJX-004",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVarDefaults::test_decorator",
    needs={"hijax"},
)
class TestDecorators:
    """As a decorator, `var_defaults` sets the defaults during each call of the function only.

    Decorating changes no default, nor does a call that has ended, normally or with an exception.
    The function gets its arguments, and its result and its exceptions come out.
    """

    @pytest.mark.parametrize("mode", MODES)
    def test_each_call(self, nnx, mode):
        @nnx.var_defaults(**{mode: True})
        def make(start, *, step):
            return made(nnx), start + step

        assert dict(nnx.var_defaults()) == made(nnx) == modes()
        for start in (1, 2):
            assert make(start, step=10) == (modes(mode), start + 10)
            assert dict(nnx.var_defaults()) == made(nnx) == modes()

    def test_defaults_at_the_call(self, nnx):
        @nnx.var_defaults(hijax=False)
        def plain():
            return made(nnx)

        nnx.var_defaults(hijax=True)
        assert plain() == modes()
        assert made(nnx) == modes("hijax")
        with nnx.var_defaults(ref=True):
            assert plain() == modes("ref")

    def test_functions_within_functions(self, nnx):
        @nnx.var_defaults(hijax=True)
        def countdown(n):
            inner = plain() + countdown(n - 1) if n else []
            return [made(nnx)["hijax"], *inner, made(nnx)["hijax"]]

        @nnx.var_defaults(hijax=False)
        def plain():
            return [made(nnx)["hijax"]]

        assert countdown(2) == [True, False, True, False, True, True, True, True]
        assert made(nnx) == modes()

    def test_exception(self, nnx):
        @nnx.var_defaults(hijax=True)
        def fail():
            raise KeyError("planned")

        for _ in range(2):
            with pytest.raises(KeyError, match="planned"):
                fail()
            assert dict(nnx.var_defaults()) == made(nnx) == modes()


def in_a_thread(f):
    """Calls a function in a new thread and returns what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(f).result()


@clause(
    "HJX-005",
    MUST,
    SOUND,
    source="one thread silently changes the Variables that another makes",
    needs={"hijax"},
)
class TestThreads:
    """Each thread has its own defaults: setting them affects no Variable that another makes."""

    @pytest.mark.parametrize("mode", MODES)
    def test_set_here(self, nnx, mode):
        def elsewhere():
            return dict(nnx.var_defaults()), made(nnx)

        nnx.var_defaults(**{mode: True})
        assert in_a_thread(elsewhere) == (modes(), modes())
        with nnx.var_defaults(**{other(mode): True}):
            assert in_a_thread(elsewhere) == (modes(), modes())
        assert made(nnx) == modes(mode)

    @pytest.mark.parametrize("mode", MODES)
    def test_set_elsewhere(self, nnx, mode):
        def elsewhere():
            nnx.var_defaults(**{mode: True})
            return made(nnx)

        assert in_a_thread(elsewhere) == modes(mode)
        assert dict(nnx.var_defaults()) == made(nnx) == modes()

    def test_at_the_same_time(self, nnx):
        here, there = threading.Event(), threading.Event()

        def elsewhere():
            with nnx.var_defaults(ref=True):
                there.set()
                here.wait(timeout=60)
                return made(nnx)

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(elsewhere)
            there.wait(timeout=60)
            try:
                with nnx.var_defaults(hijax=True):
                    assert made(nnx) == modes("hijax")
            finally:
                here.set()
            assert found.result() == modes("ref")


IN_A_NEW_PROCESS = """
import json, threading
import jax.numpy as jnp

found = {}

def look(name):
    v = nnx.Param(jnp.zeros(()))
    found[name] = [nnx.var_defaults().hijax, v.hijax, nnx.var_defaults().ref, v.ref]

look("start")
thread = threading.Thread(target=look, args=("thread",))
thread.start()
thread.join()
with nnx.var_defaults(hijax=False):
    look("scope")
look("end")
print(json.dumps(found))
"""


@clause(
    "HJX-006",
    SHOULD,
    OURS,
    source="a process can be told its default from outside, as releases let it",
    needs={"hijax"},
)
def test_environment(nnx, run_in_new_process):
    """In a process begun with `FLAX_HIJAX_VARIABLE=true`, Variables are hijax by default.

    So it is in each of its threads. The default can be changed there as anywhere.
    """
    found = json.loads(run_in_new_process(IN_A_NEW_PROCESS, env={"FLAX_HIJAX_VARIABLE": "true"}))
    on, off = [True, True, False, False], [False, False, False, False]
    assert found == {"start": on, "thread": on, "scope": off, "end": on}
    assert dict(nnx.var_defaults()) == modes()


@clause(
    "HJX-007",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestVarDefaults::test_variable_init_override",
    needs={"hijax"},
)
class TestKeywords:
    """The keywords `hijax` and `ref` of a Variable win over the defaults."""

    @pytest.mark.parametrize("default", [False, True])
    @pytest.mark.parametrize("asked", [False, True])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("kind", ["Variable", "Param", "Count"])
    def test_keyword(self, nnx, kind, mode, asked, default):
        own = classes(nnx).Count if kind == "Count" else getattr(nnx, kind)
        with nnx.var_defaults(**{mode: default}):
            v = own(array([1, 2]), **{mode: asked}, tag="t")
            assert getattr(own(array(0)), mode) is default
        assert getattr(v, mode) is asked
        assert (v[...].tolist(), v.tag) == ([1, 2], "t")

    def test_both(self, nnx):
        with nnx.var_defaults(hijax=True, ref=True):
            v = nnx.Param(array(1), hijax=False, ref=False)
        assert (v.hijax, v.ref) == (False, False)
