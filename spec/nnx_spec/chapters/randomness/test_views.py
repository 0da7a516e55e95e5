"""`with_rngs`: views of an object with split, broadcast or forked streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.randomness.keys import nth_key, records
from nnx_spec.oracles import array_record, nodes, variables

SEEDS = {"dropout": 3, "noise": 4, "params": 5}
"""The seeds of the streams of `model`."""

MODES = {"tree-mode": {"graph": False}, "graph-mode": {"graph": True, "graph_updates": False}}

kept, forked = "kept", "forked"

VIEWS = {
    "nothing": (lambda nnx: {}, (kept, kept, kept)),
    "split": (lambda nnx: {"split": 2}, (("split", 2), ("split", 2), ("split", 2))),
    "split-some": (lambda nnx: {"split": {"noise": (1, 2)}}, (kept, ("split", 1, 2), kept)),
    "first-filter": (
        lambda nnx: {"split": {"noise": 2, ...: (1, 2)}},
        (("split", 1, 2), ("split", 2), ("split", 1, 2)),
    ),
    "fork": (lambda nnx: {"fork": ...}, (forked, forked, forked)),
    "fork-some": (lambda nnx: {"fork": ["noise", "params"]}, (kept, forked, forked)),
    "broadcast": (lambda nnx: {"broadcast": 2}, (("same", 2),) * 3),
    "broadcast-some": (lambda nnx: {"broadcast": {"noise": (1, 2)}}, (kept, ("same", 1, 2), kept)),
    "split-and-fork": (
        lambda nnx: {"split": {"params": 2}, "fork": nnx.Not("params")},
        (forked, forked, ("split", 2)),
    ),
    "split-before-fork": (
        lambda nnx: {"split": {"params": 2}, "fork": ...},
        (forked, forked, ("split", 2)),
    ),
    "all-three": (
        lambda nnx: {"split": {"params": 2}, "broadcast": {"noise": 3}, "fork": "dropout"},
        (forked, ("same", 3), ("split", 2)),
    ),
    "only": (lambda nnx: {"split": 2, "only": "noise"}, (kept, ("split", 2), kept)),
    "only-not": (
        lambda nnx: {"fork": ..., "only": nnx.Not("noise")},
        (forked, kept, forked),
    ),
    "by-path": (
        lambda nnx: {"fork": nnx.PathContains("noise"), "broadcast": {nnx.Not("noise"): 2}},
        (("same", 2), forked, ("same", 2)),
    ),
}
"""Arguments of `with_rngs`, and what becomes of the streams `dropout`, `noise` and `params`."""


def model(nnx):
    """Makes a Module with a parameter and three streams, which have drawn nothing."""
    return net(nnx, kernel=param(nnx, [1.0, 2.0]), block=net(nnx, rngs=nnx.Rngs(**SEEDS)))


def streams_of(module):
    """Describes the streams of a `model` by name."""
    return records(module.block.rngs, SEEDS)


def root(name, count=0):
    """Describes a stream of `model` that has drawn that many keys."""
    return array_record(jax.random.key(SEEDS[name])), count


def derived(name, fate):
    """Describes what becomes of a stream of `model`."""
    if fate == kept:
        return root(name)
    key = nth_key(SEEDS[name], 0)
    if fate == forked:
        return array_record(key), 0
    how, *shape = fate
    keys = jax.random.split(key, shape) if how == "split" else jnp.broadcast_to(key, shape)
    return array_record(keys), np.zeros(shape).tolist()


@clause("RNG-011", MUST, DOCUMENTED, source="api_reference/flax.nnx/rnglib#flax.nnx.with_rngs")
class TestWithRngs:
    """`with_rngs` gives a view of an object in which streams are split, broadcast or forked.

    Of the streams that `only` selects, `split` and `broadcast` take those that they have a size
    for, one for all or one by filter, where the first filter that selects a stream decides; `fork`
    selects among those that remain. A stream that nothing selects is the original's own, and so is
    every other Variable. The original keeps its objects and keys; a stream that was split,
    broadcast or forked has drawn one key. Without an object `with_rngs` is a decorator that gives
    a function views of its arguments.
    """

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("view", VIEWS)
    def test_view(self, nnx, view, mode):
        options, fates = VIEWS[view]
        module = model(nnx)
        before = identities(nnx, module)
        made = nnx.with_rngs(module, **options(nnx), **MODES[mode])
        assert identities(nnx, module) == before
        assert type(made) is type(module)
        assert made.kernel is module.kernel
        for name, fate in zip(SEEDS, fates, strict=True):
            stream, original = made.block.rngs[name], module.block.rngs[name]
            is_own = (stream.key is original.key, stream.count is original.count)
            assert is_own == ((True, True) if fate == kept else (False, False))
        expected = {n: derived(n, fate) for n, fate in zip(SEEDS, fates, strict=True)}
        assert streams_of(made) == expected
        drawn = {name: int(fate != kept) for name, fate in zip(SEEDS, fates, strict=True)}
        assert streams_of(module) == {name: root(name, drawn[name]) for name in SEEDS}

    @pytest.mark.parametrize("mode", MODES)
    def test_decorator(self, nnx, mode):
        @nnx.with_rngs(split={"noise": 2}, fork="params", **MODES[mode])
        def call(given, *, factor):
            given.kernel.set_value(given.kernel.get_value() * factor)
            return streams_of(given)

        module = model(nnx)
        before = identities(nnx, module)
        fates = (kept, ("split", 2), forked)
        expected = {name: derived(name, fate) for name, fate in zip(SEEDS, fates, strict=True)}
        assert call(module, factor=3.0) == expected
        assert identities(nnx, module) == before
        assert module.kernel.get_value().tolist() == [3.0, 6.0]
        drawn = {"dropout": 0, "noise": 1, "params": 1}
        assert streams_of(module) == {name: root(name, count) for name, count in drawn.items()}

    def test_rngs_in_the_default_mode(self, nnx):
        rngs = nnx.Rngs(**SEEDS)
        made = nnx.with_rngs(rngs, split={"params": 4}, fork=...)
        fates = (forked, forked, ("split", 4))
        expected = {name: derived(name, fate) for name, fate in zip(SEEDS, fates, strict=True)}
        assert records(made, SEEDS) == expected
        assert records(rngs, SEEDS) == {name: root(name, 1) for name in SEEDS}


def identities(nnx, module):
    """Lists the identities of a Module's nodes and Variables."""
    return [*map(id, (*nodes(nnx, module), *variables(nnx, module)))]
