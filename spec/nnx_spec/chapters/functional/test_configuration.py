"""Configuration: the defaults of `graph` and `graph_updates`, and how they are set."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnx_spec import DOCUMENTED, MUST, TESTED, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.threads import in_a_thread

SWITCHES = ("set_graph_mode", "set_graph_updates")

READS = {
    "split": lambda nnx, node, **graph: nnx.split(node, **graph),
    "state": lambda nnx, node, **graph: nnx.state(node, **graph),
    "graphdef": lambda nnx, node, **graph: nnx.graphdef(node, **graph),
    "clone": lambda nnx, node, **graph: nnx.clone(node, **graph),
    "variables": lambda nnx, node, **graph: nnx.variables(node, **graph),
    "iter_graph": lambda nnx, node, **graph: list(nnx.iter_graph(node, **graph)),
    "iter_modules": lambda nnx, node, **graph: list(nnx.iter_modules(node, **graph)),
    "map": lambda nnx, node, **graph: nnx.map(lambda path, leaf: leaf, node, **graph),
    "recursive_map": lambda nnx, node, **graph: nnx.recursive_map(lambda path, x: x, node, **graph),
}
"""Functions that take `graph`; on shared references they raise in tree mode and in no other."""

IN_A_NEW_PROCESS = """
import json, threading
import jax.numpy as jnp

switches = (nnx.set_graph_mode, nnx.set_graph_updates)
found = {}

def read(name):
    found[name] = [switch.current_value() for switch in switches]

read("start")
thread = threading.Thread(target=read, args=("thread",))
thread.start()
thread.join()

shared = nnx.List([nnx.Param(jnp.ones(()))])
shared.append(shared[0])
try:
    nnx.split(shared)
    found["shared references"] = "split"
except ValueError:
    found["shared references"] = "refused"

with nnx.set_graph_mode(not found["start"][0]), nnx.set_graph_updates(not found["start"][1]):
    read("scope")
read("end")
print(json.dumps(found))
"""


@pytest.fixture
def _defaults(nnx):
    """Leaves the defaults as they were."""
    before = {switch: getattr(nnx, switch).current_value() for switch in SWITCHES}
    yield
    for switch, value in before.items():
        getattr(nnx, switch)(value)


@clause("GRF-017", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#implementation")
@pytest.mark.usefixtures("_defaults")
class TestDefaults:
    """`graph=None` takes the default that `set_graph_mode` sets, and says with `current_value()`.

    `set_graph_mode` and `set_graph_updates` are two independent switches of one form. Called, they
    set the default until it is set again. As context managers they set it within the block, in this
    thread only, and give back the value before, also when blocks are nested and when one raises. In
    a new process they start from the environment variables `NNX_GRAPH_MODE` and
    `NNX_GRAPH_UPDATES`, `true` or `false`.
    """

    @pytest.mark.parametrize("value", [False, True])
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_setting_lasts(self, nnx, switch, value):
        set_default, other = self.switches(nnx, switch)
        set_default(not value)
        untouched = other.current_value()

        def elsewhere():
            set_default(value)

        elsewhere()
        assert set_default.current_value() is value
        nnx.clone(net(nnx, w=param(nnx)))
        assert set_default.current_value() is value
        assert other.current_value() is untouched

    @pytest.mark.parametrize("outermost", [False, True])
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_scopes_nest(self, nnx, switch, outermost):
        set_default, other = self.switches(nnx, switch)
        set_default(outermost)
        untouched = other.current_value()
        with set_default(not outermost):
            assert set_default.current_value() is not outermost
            with set_default(outermost):
                assert set_default.current_value() is outermost
                with set_default(outermost):
                    assert set_default.current_value() is outermost
                assert set_default.current_value() is outermost
            assert set_default.current_value() is not outermost
            assert other.current_value() is untouched
        assert set_default.current_value() is outermost

    @pytest.mark.parametrize("switch", SWITCHES)
    def test_scope_ends_with_an_exception(self, nnx, switch):
        set_default, _ = self.switches(nnx, switch)
        before = set_default.current_value()

        def leave_twice():
            with set_default(not before):
                with contextlib.suppress(IndexError), set_default(before):
                    raise IndexError
                assert set_default.current_value() is not before
                raise KeyError("planned")

        with pytest.raises(KeyError, match="planned"):
            leave_twice()
        assert set_default.current_value() is before

    @pytest.mark.parametrize("switch", SWITCHES)
    def test_scope_is_of_one_thread(self, nnx, switch):
        set_default, _ = self.switches(nnx, switch)
        before = set_default.current_value()
        with set_default(not before):
            assert in_a_thread(set_default.current_value) is before
            assert set_default.current_value() is not before
        entered, leave = threading.Event(), threading.Event()

        def stay_within():
            with set_default(not before):
                entered.set()
                leave.wait(timeout=60)
                return set_default.current_value()

        with ThreadPoolExecutor(max_workers=1) as pool:
            inside = pool.submit(stay_within)
            try:
                assert entered.wait(timeout=60)
                assert set_default.current_value() is before
                with set_default(before):
                    pass
            finally:
                leave.set()
        assert inside.result() is not before
        assert set_default.current_value() is before

    @pytest.mark.parametrize("read", READS)
    def test_graph_none_takes_the_default(self, nnx, read):
        def check():
            node = self.shared(nnx)
            for value in (False, True, False):
                nnx.set_graph_mode(value)
                assert succeeds(nnx, read, node) is value
                assert succeeds(nnx, read, node, graph=None) is value
                with nnx.set_graph_mode(not value):
                    assert succeeds(nnx, read, node) is not value

        in_a_thread(check)

    @pytest.mark.parametrize("read", READS)
    def test_graph_given_wins(self, nnx, read):
        def check():
            node = self.shared(nnx)
            for default in (False, True):
                with nnx.set_graph_mode(default):
                    assert succeeds(nnx, read, node, graph=True)
                    assert not succeeds(nnx, read, node, graph=False)

        in_a_thread(check)

    def shared(self, nnx):
        """Makes a Module in which a Variable stands at two places."""
        variable = param(nnx, 1.0)
        return net(nnx, first=variable, second=variable)

    @pytest.mark.parametrize(("mode", "updates"), [(False, True), (True, False)])
    def test_environment(self, run_in_new_process, mode, updates):
        env = {"NNX_GRAPH_MODE": str(mode).lower(), "NNX_GRAPH_UPDATES": str(updates).lower()}
        found = json.loads(run_in_new_process(IN_A_NEW_PROCESS, env=env))
        assert found == {
            "start": [mode, updates],
            "thread": [mode, updates],
            "shared references": "split" if mode else "refused",
            "scope": [not mode, not updates],
            "end": [mode, updates],
        }

    def switches(self, nnx, switch):
        """Returns the switch and the other one."""
        first, second = nnx.set_graph_mode, nnx.set_graph_updates
        return (first, second) if switch == "set_graph_mode" else (second, first)


@clause(
    "GRF-033",
    MUST,
    TESTED,
    source="tests/nnx/graph_utils_test.py::TestGraphUtils::test_split_graph_error",
)
@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("switch", SWITCHES)
class TestDecorators:
    """As decorators of functions and methods, the switches set the default during each call only.

    Decorating leaves the default as it is, and so does a call that has ended, normally or with an
    exception. Within nested calls the innermost decorator decides. Arguments, results and
    exceptions pass through.
    """

    def test_decorating_changes_nothing(self, nnx, switch):
        set_default = getattr(nnx, switch)
        found = {}
        for before in (False, True):
            set_default(before)
            for value in (False, True):
                set_default(value)(set_default.current_value)
                found[before, value] = set_default.current_value()
        assert found == {(before, value): before for before, value in found}

    @pytest.mark.parametrize("before", [False, True])
    @pytest.mark.parametrize("value", [False, True])
    def test_functions(self, nnx, switch, before, value):
        set_default = getattr(nnx, switch)

        @set_default(value)
        def read(*args, **options):
            return set_default.current_value(), args, options

        set_default(before)
        found = [(read(1, a=2), set_default.current_value()) for _ in range(2)]
        assert found == [((value, (1,), {"a": 2}), before)] * 2

    @pytest.mark.parametrize("before", [False, True])
    def test_methods(self, nnx, switch, before):
        set_default = getattr(nnx, switch)
        set_default(before)

        class Model(nnx.Module):
            def __init__(self, bias):
                self.bias = bias

            @set_default(not before)
            def __call__(self, x):
                return x + self.bias, set_default.current_value()

            @classmethod
            @set_default(not before)
            def make(cls, bias):
                return cls(bias), set_default.current_value()

        model, while_made = Model.make(2)
        found = {
            "class method": while_made,
            "method": model(3),
            "after": set_default.current_value(),
        }
        assert found == {"class method": not before, "method": (5, not before), "after": before}

    @pytest.mark.parametrize("before", [False, True])
    def test_calls_nest(self, nnx, switch, before):
        set_default = getattr(nnx, switch)
        set_default(before)

        @set_default(before)
        def inner(depth):
            return [set_default.current_value(), *(outer(depth - 1) if depth else ())]

        @set_default(not before)
        def outer(depth):
            inside = inner(depth)
            return [set_default.current_value(), *inside, set_default.current_value()]

        @set_default(not before)
        @set_default(before)
        def twice():
            return set_default.current_value()

        assert outer(0) == [not before, before, not before]
        assert outer(1) == [not before, before, *outer(0), not before]
        assert twice() is before
        assert set_default.current_value() is before

    @pytest.mark.parametrize("before", [False, True])
    def test_exceptions_end_it(self, nnx, switch, before):
        set_default = getattr(nnx, switch)
        set_default(before)
        seen = []

        @set_default(not before)
        def fail():
            seen.append(set_default.current_value())
            raise KeyError("planned")

        @set_default(not before)
        def fail_inside():
            with contextlib.suppress(KeyError):
                fail()
            seen.append(set_default.current_value())
            fail()

        with pytest.raises(KeyError, match="planned"):
            fail_inside()
        assert seen == [not before] * 3
        assert set_default.current_value() is before


def succeeds(nnx, read, node, **graph):
    """Tells whether a read of a node with shared references succeeds, or raises ValueError."""
    try:
        READS[read](nnx, node, **graph)
    except ValueError:
        return False
    return True
