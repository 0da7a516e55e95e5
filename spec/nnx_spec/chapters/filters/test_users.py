"""Users of filters: a filter means the same wherever one is taken."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.filters.selection import MODEL, expected, items, paths_in
from nnx_spec.filter_plans import (
    AllPlan,
    AnyPlan,
    CallablePlan,
    EverythingPlan,
    NothingPlan,
    NotPlan,
    PathPlan,
    TagPlan,
    TypePlan,
    build_filter,
)
from nnx_spec.plans import build

FILTERS = {
    "class": TypePlan("Param"),
    "OfType": TypePlan("BatchStat", literal=False),
    "tag": TagPlan("red"),
    "path": PathPlan("first"),
    "tuple": AnyPlan((TagPlan("blue"), TypePlan("Count")), "tuple"),
    "All": AllPlan((TypePlan("Param"), NotPlan(TypePlan("SpecialParam")))),
    "Not": NotPlan(PathPlan("block")),
    "callable": CallablePlan("annotated"),
    "everything": AnyPlan((EverythingPlan("..."),), "tuple"),
    "nothing": NothingPlan("False"),
}


MODULE_FILTERS = {
    "class": (lambda nnx, parts: parts.Part, "left right"),
    "OfType": (lambda nnx, parts: nnx.OfType(parts.SpecialPart), "right"),
    "tag": (lambda nnx, parts: "red", "right"),
    "path": (lambda nnx, parts: nnx.PathContains("left"), "left inner"),
    "tuple": (lambda nnx, parts: ("red", parts.Whole), "root right"),
    "All": (lambda nnx, parts: nnx.All(parts.Part, nnx.Not("red")), "left"),
    "Not": (lambda nnx, parts: nnx.Not(parts.Part), "root inner"),
    "callable": (lambda nnx, parts: lambda path, value: len(path) == 1, "left right"),
    "everything": (lambda nnx, parts: ..., "root left inner right"),
    "nothing": (lambda nnx, parts: None, ""),
}
"""Filters of Modules, and the names of those that each selects."""

STREAM_FILTERS = {
    "tag": (lambda nnx: "dropout", "dropout"),
    "WithTag": (lambda nnx: nnx.WithTag("params"), "params"),
    "tuple": (lambda nnx: ("params", "noise"), "params noise"),
    "Not": (lambda nnx: nnx.Not("noise"), "params dropout"),
    "All": (lambda nnx: nnx.All(nnx.Variable, nnx.Not("params")), "dropout noise"),
    "path": (lambda nnx: nnx.PathContains("noise"), "noise"),
    "class": (lambda nnx: nnx.RngState, "params dropout noise"),
    "other class": (lambda nnx: nnx.Param, ""),
    "callable": (lambda nnx: lambda path, value: value.tag == "params", "params"),
    "everything": (lambda nnx: ..., "params dropout noise"),
    "nothing": (lambda nnx: False, ""),
}
"""Filters of random streams, and the names of those that each selects."""


def lookup(model, path):
    """Returns the Variable at a path of the common model."""
    for key in path:
        model = model[key] if hasattr(model, "keys") else getattr(model, key)
    return model


def where(selected):
    """Lists the common model's paths for which a function of the path is true."""
    return [path for path, _ in items(MODEL) if selected(path)]


def by_split(nnx, model, select):
    """Lists what `split` puts in the filter's group."""
    return paths_in(nnx.split(model, select, ...)[1])


def by_state(nnx, model, select):
    """Lists what `state` returns."""
    return paths_in(nnx.state(model, select))


def by_pop(nnx, model, select):
    """Lists what `pop` takes, having checked that it leaves the rest."""
    popped = paths_in(nnx.pop(model, select))
    assert paths_in(nnx.state(model)) == where(lambda path: path not in popped)
    return popped


def by_state_axes(nnx, model, select):
    """Lists what `vmap` maps over when the filter's axis is 0."""
    ranks = {}

    @nnx.vmap(in_axes=(nnx.StateAxes({select: 0, ...: None}), 0), graph=True)
    def look(model, x):
        ranks.update((path, lookup(model, path)[...].ndim) for path, _ in items(MODEL))
        return x

    look(model, jnp.zeros(2))
    return where(lambda path: ranks[path] == 0)


def by_optimizer(nnx, model, select):
    """Lists what an Optimizer updates, by a step that takes one off each element."""
    optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=select)
    optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, select)))
    return where(lambda path: lookup(model, path)[...].tolist() == [0, 1])


def by_with_vars(nnx, model, select):
    """Lists the Variables that `with_vars` replaces."""
    flags = {"mutable": False} if hasattr(nnx.Variable(0), "mutable") else {"ref": True}
    changed = nnx.with_vars(model, only=select, **flags)
    return where(lambda path: lookup(changed, path) is not lookup(model, path))


@clause("FLT-010", MUST, DOCUMENTED, source="guides/filters_guide")
class TestUsers:
    """A filter selects the same wherever one is taken.

    `split`, `state`, `pop`, `StateAxes`, the `wrt` of an Optimizer and the `only` of `with_vars`
    show it the Variables of the object, each with its path from there. `set_attributes` shows it
    the Modules, and the `only` of `split_rngs` a stream's key and count.
    """

    @pytest.mark.parametrize("filter_plan", FILTERS.values(), ids=FILTERS)
    @pytest.mark.parametrize(
        "use",
        [by_split, by_state, by_pop, by_state_axes, by_optimizer, by_with_vars],
        ids=["split", "state", "pop", "StateAxes", "Optimizer", "with_vars"],
    )
    def test_variables(self, nnx, use, filter_plan):
        selected = use(nnx, build(nnx, MODEL), build_filter(nnx, filter_plan))
        assert selected == expected(MODEL, filter_plan)

    @pytest.mark.parametrize(("make", "names"), MODULE_FILTERS.values(), ids=MODULE_FILTERS)
    def test_modules(self, nnx, make, names):
        parts = module_classes(nnx)
        model = parts.Whole()
        model.set_attributes(make(nnx, parts), raise_if_not_found=False, mode="new")
        modules = {
            "root": model,
            "left": model.left,
            "inner": model.left.inner,
            "right": model.right,
        }
        assert [name for name, module in modules.items() if module.mode == "new"] == names.split()

    @pytest.mark.parametrize(("make", "names"), STREAM_FILTERS.values(), ids=STREAM_FILTERS)
    def test_random_streams(self, nnx, make, names):
        streams = ("params", "dropout", "noise")
        rngs = nnx.Rngs(**{name: seed for seed, name in enumerate(streams)})
        nnx.split_rngs(rngs, splits=3, only=make(nnx))
        assert [name for name in streams if rngs[name].key[...].shape == (3,)] == names.split()


def module_classes(nnx):
    """Makes the classes of a model of four Modules: root, left, inner, which is in left, right."""

    class Mode(nnx.Module):
        def __init__(self):
            self.mode = "old"

    class Part(Mode):
        pass

    class SpecialPart(Part):
        def __init__(self):
            super().__init__()
            self.tag = "red"

    class Whole(Mode):
        def __init__(self):
            super().__init__()
            self.left = Part()
            self.left.inner = Mode()
            self.right = SpecialPart()

    return SimpleNamespace(Part=Part, SpecialPart=SpecialPart, Whole=Whole)
