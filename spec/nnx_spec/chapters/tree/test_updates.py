"""In tree mode the values of Variables leave a transform, and nothing else does."""

import jax.numpy as jnp
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause, plain
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.applying import APPLY, STRUCTURE_MAY_CHANGE, each_transform
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.chapters.transforms.programs import EDITS, STEPS, programs
from nnx_spec.oracles import (
    array_record,
    assert_no_tracers,
    nodes,
    snapshot,
    value_record,
    variables,
    walk,
)

X = jnp.float32([1, 2])
MODE = MODES["tree-mode"]
TREES = {"tree-mode": MODE}

CHANGES = tuple(line for line in EDITS if "metadata" not in line)
"""Changes of structure; metadata belongs to a Variable."""


def make(nnx):
    """Makes a model with a part, a List, an array and static attributes."""
    part = net(nnx, w=param(nnx, [3, 4], note="red"), n=count(nnx, 5), mode="train")
    items = nnx.List([param(nnx, [6, 7]), param(nnx, [8, 9])])
    return net(nnx, part=part, items=items, table=X + 10, old=param(nnx, 1.0), size=2)


def restructure(nnx, model, x):
    """Changes the structure in every way, and the values of Variables; returns an array like x."""
    y = x * model.part.w[...] + model.table
    model.part.w[...] = y
    model.old[...] += 1
    del model.old
    model.items.append(nnx.Param(x))
    model.items[0][...] = x
    model.items[0], model.items[1] = model.items[1], model.items[0]
    model.table, model.size, model.part.mode = y, 3, "eval"
    model.part.n[...] += 1
    model.part.n = nnx.BatchStat(x)
    model.part.again = model.part.w
    model.extra = net(nnx, w=nnx.Param(y))
    return y


@clause("TREE-002", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#proposal")
class TestWhatPropagates:
    """In tree mode, what a function writes to the Variables that it gets is all that propagates.

    Attributes, items and static values that it adds, deletes or replaces are in the caller's
    objects as they were, and no tracer is in them. A Variable that the function takes out of the
    model, after it has written to it, is updated all the same; one that it puts in its place is
    not the caller's.
    """

    @each_transform(*STRUCTURE_MAY_CHANGE, modes=TREES)
    def test_transforms(self, nnx, transform, mode):
        model, expected = make(nnx), make(nnx)
        parts = [*nodes(nnx, model), *variables(nnx, model), model.table]
        applied = APPLY[transform](nnx, lambda model, x: restructure(nnx, model, x), mode)
        y = applied(model, X)
        assert y.tolist() == [14, 20]
        expected.part.w[...] = y
        expected.part.n[...] += 1
        expected.old[...] += 1
        expected.items[0][...] = X
        assert snapshot(nnx, model) == snapshot(nnx, expected)
        found = [*nodes(nnx, model), *variables(nnx, model), model.table]
        kept = [new is old for new, old in zip(found, parts, strict=True)]
        assert kept == [True] * len(parts), "parts of the model have been replaced"
        assert_no_tracers(nnx, model)

    @given(program=programs(steps=(*CHANGES, *STEPS)))
    def test_generated_changes(self, nnx, program):
        model, twin = program.make(nnx), program.make(plain)
        before = snapshot(nnx, model)
        cells = {p: v for p, v in walk(plain, twin) if isinstance(v, plain.Variable)}
        kept = {p: v for p, v in walk(nnx, model) if p in cells}
        old = {path: v.get_value() for path, v in kept.items()}
        found = nnx.jit(program.function(nnx), **MODE)(model, X)
        assert array_record(found) == array_record(program.function(plain)(twin, X))
        for path, cell in cells.items():
            assert value_record(kept[path].get_value()) == value_record(cell.get_value())
            kept[path].set_value(old[path])
        assert snapshot(nnx, model) == before

    @pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
    def test_the_next_call(self, nnx, graph):
        """A change that stays inside is made again by every call, with one trace."""
        traces = []

        @nnx.jit(graph=graph, graph_updates=False)
        def step(model):
            traces.append(model.size)
            model.size += 1
            model.n[...] += model.size
            model.extra = nnx.Param(model.n[...])
            return model.size

        model = net(nnx, n=count(nnx, 0), size=2)
        assert [int(step(model)), int(step(model))] == [3, 3]
        assert (int(model.n[...]), model.size, hasattr(model, "extra")) == (6, 2, False)
        assert traces == [2]
