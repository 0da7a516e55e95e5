"""Sowing: how values are collected, within a capture and without one."""

import jax
import jax.numpy as jnp
import pytest

from nnx_spec import DOCUMENTED, MUST, SHOULD, clause
from nnx_spec.chapters.capture.models import X, everything, found, own, products, wanted
from nnx_spec.chapters.functional.making import net, param, records
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.oracles import snapshot, state_items, variable_record

UPDATES = MODES["graph-updates"]

pytestmark = pytest.mark.filterwarnings("ignore:(?s).*outside of 'nnx.capture:DeprecationWarning")

REDUCTIONS = {
    "sum": (lambda: 0.0, lambda total, x: total + x, 9.0),
    "last": (lambda: None, lambda _, x: x, 4.0),
    "first": (lambda: None, lambda kept, x: x if kept is None else kept, 2.0),
    "largest": (lambda: -jnp.inf, jnp.maximum, 4.0),
    "dict": (dict, lambda kept, x: {**kept, len(kept): x}, {0: 2.0, 1: 3.0, 2: 4.0}),
}
"""Ways to collect values: what to begin with, what to do with each, and what 2, 3 and 4 give."""


def sow_all(nnx, module, **options):
    """Sows 2, 3 and 4 under the name `y`."""
    for value in (2, 3, 4):
        module.sow(nnx.Intermediate, "y", X(value), **options)


@clause("CAP-002", MUST, DOCUMENTED, source="guides/extracting_intermediates#how-nnx-capture-works")
class TestSow:
    """In a capture, `sow(Type, name, value)` appends the value to a tuple, and returns True.

    With `init_fn` and `reduce_fn` what is held begins with `init_fn()`, and each value makes it
    `reduce_fn(held, value)`. Names are collected apart, and so are Modules and Types. A value of a
    Type that is not captured is ignored: `sow` returns False, and nothing is changed.
    """

    def test_appends(self, nnx):
        def f(module):
            for x in (1.0, 2.0, 3.0):
                module.sow(nnx.Intermediate, "x", X(x))
                module.child.sow(nnx.Intermediate, "x", X(10 * x))
            module.sow(nnx.Intermediate, "other", X(7))

        _, state = nnx.capture(f, nnx.Intermediate)(net(nnx, child=net(nnx)))
        expected = {("x",): (1, 2, 3), ("child", "x"): (10, 20, 30), ("other",): (7,)}
        assert found(state, nnx.Intermediate) == wanted(expected)

    @pytest.mark.parametrize("name", REDUCTIONS)
    def test_reductions(self, nnx, name):
        init, reduce, expected = REDUCTIONS[name]
        options = {"init_fn": init, "reduce_fn": reduce}
        capturing = nnx.capture(lambda m: sow_all(nnx, m, **options), nnx.Intermediate)
        assert found(capturing(net(nnx))[1], nnx.Intermediate) == wanted({("y",): expected})

    def test_begins_once(self, nnx):
        begun = []

        def init():
            begun.append("begun")
            return 0.0

        options = {"init_fn": init, "reduce_fn": lambda total, x: total + x}
        nnx.capture(lambda m: sow_all(nnx, m, **options), nnx.Intermediate)(net(nnx))
        assert begun == ["begun"]

    @pytest.mark.parametrize("value", [{"k": jnp.ones(2)}, (1.0, [2.0]), jnp.int32(3)])
    def test_any_value(self, nnx, value):
        capturing = nnx.capture(lambda m: m.sow(nnx.Intermediate, "y", value), nnx.Intermediate)
        returned, state = capturing(net(nnx))
        ((path, leaf),) = state_items(state)
        assert (returned, path) == (True, ("y",))
        assert jax.tree.structure(leaf.get_value()) == jax.tree.structure((value,))
        pairs = zip(jax.tree.leaves(leaf), jax.tree.leaves(value), strict=True)
        assert [one is other for one, other in pairs].count(False) == 0, "values are replaced"

    def test_types_that_are_not_captured(self, nnx):
        class First(nnx.Intermediate):
            """A kind of intermediate value."""

        class Second(nnx.Intermediate):
            """Another kind."""

        def f(module):
            kinds = (First, Second, nnx.BatchStat, First)
            return [module.sow(kind, "y", X(n)) for n, kind in enumerate(kinds)]

        module = net(nnx, w=param(nnx, 1.0))
        before = everything(nnx, module)
        returned, state = nnx.capture(f, First)(module)
        assert returned == [True, False, False, True]
        assert found(state, First) == wanted({("y",): (0, 3)})
        returned, second, stats = nnx.capture(f, Second, nnx.BatchStat)(module)
        assert returned == [False, True, True, False]
        assert found(second, Second) == wanted({("y",): (1,)})
        assert found(stats, nnx.BatchStat) == wanted({("y",): (2,)})
        assert everything(nnx, module) == before


def popped(nnx, model, kind=None):
    """Pops all of a kind, Intermediates if nothing is said, and describes it."""
    return found(nnx.pop(model, kind or nnx.Intermediate), kind)


def after(*calls):
    """Lists what a Stack has sown as Intermediates in calls with some numbers, by path."""
    parts = [products(x) for x in calls]
    return {path: sum((part[path] for part in parts), ()) for path in parts[0]}


WAYS = {
    "eagerly": lambda nnx, model, x: model(x),
    "jit": lambda nnx, model, x: nnx.jit(lambda model, x: model(x), **UPDATES)(model, x),
    "remat": lambda nnx, model, x: nnx.remat(lambda model, x: model(x), **UPDATES)(model, x),
    "grad": lambda nnx, model, x: nnx.grad(lambda model, x: model(x), **UPDATES)(model, x),
}
"""Ways to call a Stack such that changes of structure reach it."""


@clause("CAP-009", SHOULD, DOCUMENTED, source="flip/5310-tree-mode-nnx#modulesow")
class TestWithoutCapture:
    """With graph updates, what is sown outside a capture stays in the Module until `pop` takes it.

    Values gather from call to call, in eager calls as in transforms with graph updates. `pop`
    returns a State of them and leaves the Module as it was before; another `pop` finds nothing. (To
    sow outside a capture is deprecated.)
    """

    @pytest.mark.parametrize("way", WAYS)
    def test_sow_and_pop(self, nnx, way):
        model = own(nnx).Stack()
        graphdef = nnx.graphdef(model, graph=True)
        with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
            WAYS[way](nnx, model, X(3))
            kept = nnx.pop(model, own(nnx).Metric)
            assert sorted(path[-1] for path, _ in state_items(kept)) == ["negative"] * 4
            assert popped(nnx, model) == wanted(products(3))
            assert len(nnx.pop(model, nnx.Intermediate)) == 0
        assert nnx.graphdef(model, graph=True) == graphdef
        assert int(model.tail.calls[...]) == 2

    def test_values_gather(self, nnx):
        model = own(nnx).Stack()
        with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
            for way, x in (("eagerly", 3), ("jit", 4), ("eagerly", 5)):
                WAYS[way](nnx, model, X(x))
            nnx.pop(model, own(nnx).Metric)
            assert popped(nnx, model) == wanted(after(3, 4, 5))
            WAYS["jit"](nnx, model, X(6))
            nnx.pop(model, own(nnx).Metric)
            assert popped(nnx, model) == wanted(products(6))
            assert popped(nnx, model) == {}

    @pytest.mark.parametrize("name", REDUCTIONS)
    def test_reductions(self, nnx, name):
        init, reduce, expected = REDUCTIONS[name]
        module = net(nnx, w=param(nnx, 1.0))
        before = snapshot(nnx, module)
        with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
            sow_all(nnx, module, init_fn=init, reduce_fn=reduce)
            assert popped(nnx, module) == wanted({("y",): expected})
        assert snapshot(nnx, module) == before

    def test_what_is_kept_is_state(self, nnx):
        module = net(nnx, w=param(nnx, 1.0))
        with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
            assert module.sow(nnx.Intermediate, "y", X(3)) is True
            state = nnx.state(module, nnx.Intermediate)
            assert found(state, nnx.Intermediate) == wanted({("y",): (3,)})
            popped = nnx.pop(module, nnx.Intermediate)
            assert records(nnx, popped) == records(nnx, state)
            params = {("w",): variable_record(module.w)}
            assert records(nnx, nnx.state(module)) == params
