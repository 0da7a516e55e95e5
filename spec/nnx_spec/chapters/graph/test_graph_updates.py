"""Changes of structure inside a transform, in the mode of graph updates."""

import jax.numpy as jnp
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.applying import APPLY, STRUCTURE_MAY_CHANGE, each_transform
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.chapters.transforms.programs import EDITS, STEPS, programs
from nnx_spec.oracles import array_record, nodes, snapshot, variables

X = jnp.float32([1, 2])
MODE = MODES["graph-updates"]
UPDATES = {"graph-updates": MODE}


def make(nnx):
    """Makes a model with a part, a List, static values and a Variable that stands twice."""
    shared = param(nnx, [3, 4], note="red")
    part = net(nnx, w=shared, n=count(nnx, 5), mode="train")
    items = nnx.List([param(nnx, [6, 7]), net(nnx, w=param(nnx, [8, 9]))])
    return net(nnx, part=part, items=items, tied=shared, old=param(nnx, 1.0), size=2)


def edit(nnx, model, x):
    """Changes the structure in every way; returns an array like x."""
    y = model.old[...] * x
    del model.old
    model.new = nnx.BatchStat(y)
    model.part.layer = net(nnx, w=nnx.Param(x), back=model)
    model.part.w = nnx.Cache(x + 1)
    model.again = model.items[1]
    model.items[0], model.items[1] = model.items[1], model.items[0]
    model.items.append(model.tied)
    model.part.n.set_metadata("note", "counted")
    model.tied.set_metadata("note", "blue")
    model.tied[...] *= 2
    model.part.mode, model.size = "eval", nnx.data(x + 2)
    return y


def parts(nnx, model):
    """Lists a model's nodes and Variables, in order."""
    return [*nodes(nnx, model), *variables(nnx, model)]


def known(nnx, model, kept):
    """Lists which of the objects that there were before each part of a model is, or None."""
    numbers = {id(part): number for number, part in enumerate(kept)}
    return [numbers.get(id(part)) for part in parts(nnx, model)]


STRUCTURAL = {
    "add": lambda nnx, model: setattr(model, "extra", nnx.Param(jnp.float32(7))),
    "delete": lambda nnx, model: delattr(model, "old"),
    "share": lambda nnx, model: setattr(model, "old", model.w),
    "class": lambda nnx, model: setattr(model, "old", nnx.BatchStat(model.old[...])),
    "static": lambda nnx, model: setattr(model, "size", 3),
    "metadata": lambda nnx, model: model.w.set_metadata("note", "blue"),
}
"""Changes of structure, one of each kind, which may be made once to `small`."""


def small(nnx):
    """Makes a model for `STRUCTURAL`."""
    return net(nnx, w=param(nnx, 3.0, note="red"), old=param(nnx, 4.0), size=2)


@clause("GRA-002", MUST, DOCUMENTED, source="guides/transforms#graph-updates-propagation")
class TestEdits:
    """With graph updates, the caller's objects get the structure that the function gives them.

    Attributes, items and references that it adds, deletes, replaces or shares, static values and
    metadata that it sets are so outside, with classes and sharing, as if it had run eagerly. What
    was there before and still is are the same objects. Under `jit` the next call is one on the new
    structure, which is traced if it is not known yet. In the carry of `scan` a change raises, and
    the model is as before.
    """

    @given(program=programs(steps=(*EDITS, *STEPS), sharing=True, cycles=True))
    def test_generated_edits(self, nnx, program):
        model, eager = program.make(nnx), program.make(nnx)
        kept = parts(nnx, model), parts(nnx, eager)
        found = nnx.jit(program.function(nnx), **MODE)(model, X)
        assert array_record(found) == array_record(program.function(nnx)(eager, X))
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        assert known(nnx, model, kept[0]) == known(nnx, eager, kept[1])

    @given(program=programs(steps=(*EDITS, *STEPS), sharing=True))
    def test_generated_edits_in_remat(self, nnx, program):
        model, eager = program.make(nnx), program.make(nnx)
        nnx.remat(program.function(nnx), **MODE)(model, X)
        program.function(nnx)(eager, X)
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_transform(*STRUCTURE_MAY_CHANGE, modes=UPDATES)
    def test_transforms(self, nnx, transform, mode):
        model, eager = make(nnx), make(nnx)
        kept = parts(nnx, model), parts(nnx, eager)
        applied = APPLY[transform](nnx, lambda model, x: edit(nnx, model, x), mode)
        assert applied(model, X).tolist() == edit(nnx, eager, X).tolist()
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        assert known(nnx, model, kept[0]) == known(nnx, eager, kept[1])

    @pytest.mark.parametrize("kind", STRUCTURAL)
    def test_jit(self, nnx, kind):
        traces = []

        @nnx.jit(**MODE)
        def step(model):
            traces.append(None)
            if len(traces) == 1:
                STRUCTURAL[kind](nnx, model)
            model.w[...] += 1
            return model.w[...]

        model, eager = small(nnx), small(nnx)
        found = [(float(step(model)), len(traces)) for _ in range(4)]
        assert found == [(4, 1), (5, 2), (6, 2), (7, 2)]
        STRUCTURAL[kind](nnx, eager)
        eager.w[...] += 4
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    def test_there_and_back(self, nnx):
        """A structure that comes back, of this model or another, is known."""
        traces = []

        @nnx.jit(**MODE)
        def toggle(model):
            traces.append(model.size)
            model.size = 5 - model.size
            model.w[...] += 1

        one, other = small(nnx), small(nnx)
        for model in (one, one, one, other, other, one):
            toggle(model)
        assert traces == [2, 3]
        assert (one.size, other.size) == (2, 2)
        assert (float(one.w[...]), float(other.w[...])) == (7, 5)

    def test_changes_outside(self, nnx):
        traces = []

        @nnx.jit(**MODE)
        def step(model):
            traces.append(model.size)

        model = small(nnx)
        step(model)
        model.w[...] += 1
        step(model)
        assert traces == [2]
        model.size = 3
        step(model)
        step(model)
        assert traces == [2, 3]

    @pytest.mark.parametrize("kind", ["add", "delete", "share", "class"])
    def test_scan(self, nnx, kind):
        def step(model, x):
            STRUCTURAL[kind](nnx, model)
            return model, x

        axes = (nnx.Carry, 0)
        model = small(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises((TypeError, ValueError)):
            nnx.scan(step, in_axes=axes, out_axes=axes, **MODE)(model, jnp.zeros(3))
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"
