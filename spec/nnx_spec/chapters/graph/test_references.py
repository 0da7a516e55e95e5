"""Shared references and cycles go into transforms and come out of them."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.hijax.observing import refusal
from nnx_spec.chapters.transforms.applying import ANY_OUTPUT, APPLY, each_transform
from nnx_spec.chapters.transforms.modes import GRAPH_MODES, MODES, each_graph_mode
from nnx_spec.chapters.transforms.programs import programs
from nnx_spec.oracles import array_record, nodes, snapshot, variables

X = jnp.float32([1, 2])
GRAPHS = {name: MODES[name] for name in GRAPH_MODES}
UPDATES = {"graph-updates": MODES["graph-updates"]}


def make(nnx):
    """Makes a model with a Variable and a Module that stand twice, and with circles."""
    shared = param(nnx, [3, 4])
    part = net(nnx, w=shared, n=count(nnx, 5))
    model = net(nnx, first=part, again=nnx.List([part, shared]), tied=shared, up=net(nnx))
    part.root = model
    model.up.down = model.up
    return model


def change(model, x):
    """Writes by one way and reads by the other; returns an array like x."""
    shared = {
        "again[0]": model.again[0] is model.first,
        "again[1]": model.again[1] is model.first.w,
        "first.root": model.first.root is model,
        "up.down": model.up.down is model.up,
    }
    assert shared == dict.fromkeys(shared, True)
    model.first.w[...] += x
    y = model.tied[...] * model.again[1][...]
    model.again[0].root.first.n[...] += 1
    model.tied[0] = y[1]
    return y - model.first.n[...] + model.first.w[...]


@clause("GRA-001", MUST, DOCUMENTED, source="guides/transforms#graph-updates-propagation")
class TestSharing:
    """In graph mode, what is shared goes shared into a transform and comes out of it so.

    Whatever the transform, a Variable or a Module that can be reached in several ways, among them
    circles, is one object in the function, and the caller's are still shared as before.
    `custom_vjp` may refuse what is shared, with ValueError, and changes nothing then.
    """

    @each_transform(*(name for name in APPLY if name != "custom_vjp"), modes=GRAPHS)
    def test_transforms(self, nnx, transform, mode):
        self.check(nnx, APPLY[transform](nnx, change, mode), make(nnx))

    @each_transform("custom_vjp", modes=GRAPHS)
    @stands_on(
        TESTED,
        "tests/nnx/transforms_test.py::TestCustomVJP::test_custom_vjp_inconsistent_aliasing",
    )
    def test_custom_vjp(self, nnx, transform, mode):
        model, applied = make(nnx), APPLY[transform](nnx, change, mode)
        before = snapshot(nnx, model, identities=True)
        if (error := refusal(lambda: applied(model, X))) is None:
            self.check(nnx, applied, make(nnx))
        else:
            assert type(error) is ValueError, f"it raised {type(error).__name__}"
            is_unchanged = snapshot(nnx, model, identities=True) == before
            assert is_unchanged, "what was passed in has changed"

    def check(self, nnx, applied, model):
        """Checks what a transformed `change` does to a model against what happens eagerly."""
        eager = make(nnx)
        parts = [*nodes(nnx, model), *variables(nnx, model)]
        assert applied(model, X).tolist() == change(eager, X).tolist()
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        found = [*nodes(nnx, model), *variables(nnx, model)]
        kept = [new is old for new, old in zip(found, parts, strict=True)]
        assert kept == [True] * len(parts), "parts of the model have been replaced"

    @each_graph_mode
    @given(data=st.data())
    def test_generated_models(self, nnx, mode, data):
        program = data.draw(programs(sharing=True, cycles=True), "program")
        model, eager = program.make(nnx), program.make(nnx)
        found = nnx.remat(program.function(nnx), **mode)(model, X)
        assert array_record(found) == array_record(program.function(nnx)(eager, X))
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_graph_mode
    def test_between_arguments(self, nnx, mode):
        def step(first, second, w):
            assert (first.w is second[0].w, second[1] is first, w is first.w) == (True,) * 3
            w[...] += 1
            return first.w[...] + second[0].w[...]

        w = param(nnx, 3.0)
        first, second = net(nnx, w=w), net(nnx, w=w)
        assert float(nnx.jit(step, **mode)(first, [second, first], w=w)) == 8
        assert float(w[...]) == 4
        assert (first.w is w, second.w is w) == (True, True)

    @each_graph_mode
    def test_other_pairs(self, nnx, mode):
        """What two arguments share says nothing of others that share nothing, nor the reverse."""

        def step(first, second):
            first.w[...] += 1
            second.w[...] *= 10

        v, w = param(nnx, 1.0), param(nnx, 2.0)
        (a, b), (c, d) = [(net(nnx, w=shared), net(nnx, w=shared)) for shared in (v, w)]
        jitted = nnx.jit(step, **mode)
        for first, second in [(a, b), (c, d), (a, b), (c, d), (a, d), (a, b), (c, b)]:
            jitted(first, second)
        assert (float(v[...]), float(w[...])) == (21200.0, 3101.0)

    @each_transform(*ANY_OUTPUT, modes=GRAPHS)
    def test_new_objects(self, nnx, transform, mode):
        """Sharing among objects that the function makes and returns comes out, in circles too."""

        def build(model, x):
            new = make(nnx)
            return new, {"also": new.tied, "part": new.first}

        new, parts = APPLY[transform](nnx, build, mode)(net(nnx, w=param(nnx, 1.0)), X)
        assert snapshot(nnx, new) == snapshot(nnx, make(nnx))
        assert (parts["also"] is new.tied, parts["part"] is new.first) == (True, True)


@clause(
    "GRA-003",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestJIT::test_graph_updates_ref_in_output",
)
class TestReturnedInputs:
    """With graph updates, an input object that the function returns is the caller's own object.

    So are the parts of an input that it returns, and those that are part of a new object.
    """

    @each_transform(*ANY_OUTPUT, modes=UPDATES)
    def test_transforms(self, nnx, transform, mode):
        def step(model, x):
            model.part.w[...] += x
            return model, (model.items[0], x), net(nnx, old=model.part, w=model.part.w)

        part, item = net(nnx, w=param(nnx, [3, 4])), param(nnx, [5, 6])
        model = net(nnx, part=part, items=nnx.List([item]))
        w, items = part.w, model.items
        same, (first, y), new = APPLY[transform](nnx, step, mode)(model, X)
        own = {
            "model": same is model,
            "item": first is item,
            "part": new.old is part,
            "w": new.w is w,
            "model.items": model.items is items,
            "items[0]": items[0] is item,
        }
        assert own == dict.fromkeys(own, True)
        assert (w.get_value().tolist(), y.tolist()) == ([4, 6], [1, 2])

    @pytest.mark.parametrize("name", ["scan", "while_loop", "fori_loop", "cond", "switch"])
    def test_control_flow(self, nnx, name):
        """A model that is carried, or handed on by a branch, is the caller's."""
        mode = MODES["graph-updates"]

        def step(model, n=None):
            model.n[...] += 1
            return model

        def apply(model):
            match name:
                case "scan":
                    scanned = nnx.scan(
                        lambda model, n: (step(model), n),
                        in_axes=(nnx.Carry, 0),
                        out_axes=(nnx.Carry, 0),
                        **mode,
                    )
                    return scanned(model, jnp.zeros(2))[0]
                case "while_loop":
                    return nnx.while_loop(lambda model: model.n[...] < 2, step, model, **mode)
                case "fori_loop":
                    return nnx.fori_loop(0, 2, lambda n, model: step(model), model, **mode)
                case "cond":
                    return nnx.cond(True, step, lambda model: model, model, **mode)
                case "switch":
                    return nnx.switch(1, [lambda model: model, step], model, **mode)

        model = net(nnx, n=count(nnx, 0))
        n = model.n
        assert (apply(model) is model, model.n is n) == (True, True)
        assert int(n[...]) == (1 if name in ("cond", "switch") else 2)
