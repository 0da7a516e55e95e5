"""Streams as state: what the functional API makes of an object that holds some."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.randomness.keys import count_of, nth_key, records, stream_record
from nnx_spec.oracles import array_record, state_items

SEEDS = {"dropout": 3, "params": 4}
"""The seeds of the streams of `model`."""

KEYS = {("rngs", name, "key") for name in SEEDS}
COUNTS = {("rngs", name, "count") for name in SEEDS}

SELECTIONS = {
    "RngState": (lambda nnx: nnx.RngState, KEYS | COUNTS),
    "RngKey": (lambda nnx: nnx.RngKey, KEYS),
    "RngCount": (lambda nnx: nnx.RngCount, COUNTS),
    "name": (lambda nnx: "dropout", {("rngs", "dropout", key) for key in ("key", "count")}),
    "both": (lambda nnx: nnx.All(nnx.RngCount, "params"), {("rngs", "params", "count")}),
    "not": (lambda nnx: nnx.Not(nnx.RngState), {("kernel",)}),
}
"""Filters, and the paths of what they select in `model`."""


def model(nnx, **seeds):
    """Makes a Module with a parameter and streams; each has drawn one key."""
    module = net(nnx, kernel=param(nnx, [1.0, 2.0]), rngs=nnx.Rngs(**(seeds or SEEDS)))
    for name in SEEDS:
        module.rngs[name]()
    return module


@clause("RNG-013", MUST, DOCUMENTED, source="guides/randomness#filtering-random-state")
class TestState:
    """Streams are nodes whose key and count are Variables, like all other state.

    `state` finds them at `(name, 'key')` and `(name, 'count')`, filters select them by `RngState`,
    `RngKey`, `RngCount` and by the stream's name, and `split` and `merge`, `clone`, `update`,
    pytree operations and checkpoints of plain arrays take along keys and counts exactly.
    """

    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_filters(self, nnx, selection):
        selector, expected = SELECTIONS[selection]
        module = model(nnx)
        state = nnx.state(module, selector(nnx))
        assert {path for path, _ in state_items(state)} == expected
        own = {
            ("rngs", name, part): array_record(getattr(module.rngs[name], part).get_value())
            for name in SEEDS
            for part in ("key", "count")
        }
        found = {path: array_record(leaf.get_value()) for path, leaf in state_items(state)}
        assert found == {path: own.get(path, record) for path, record in found.items()}

    def test_classes_and_tags_in_a_state(self, nnx):
        state = dict(state_items(nnx.state(nnx.Rngs(**SEEDS))))
        assert set(state) == {(name, part) for name in SEEDS for part in ("key", "count")}
        for (name, part), leaf in state.items():
            assert type(leaf) is (nnx.RngKey if part == "key" else nnx.RngCount)
            assert leaf.tag == name

    def test_nodes(self, nnx):
        rngs = nnx.Rngs(**SEEDS)
        assert isinstance(rngs, nnx.Pytree)
        assert isinstance(rngs.params, nnx.Pytree)

    @pytest.mark.parametrize(
        "copied",
        [
            lambda nnx, module: nnx.merge(*nnx.split(module)),
            lambda nnx, module: nnx.merge(*nnx.split(module, nnx.RngKey, "params", ...)),
            lambda nnx, module: nnx.clone(module),
            lambda nnx, module: jax.tree.map(lambda leaf: leaf, module),
        ],
        ids=["split", "groups", "clone", "tree-map"],
    )
    def test_copies(self, nnx, copied):
        module = model(nnx)
        copy = copied(nnx, module)
        assert type(copy.rngs) is nnx.Rngs
        for name, seed in SEEDS.items():
            assert stream_record(copy.rngs[name]) == stream_record(module.rngs[name])
            drawn = [copy.rngs[name]() for _ in range(2)]
            expected = [nth_key(seed, n) for n in (1, 2)]
            assert [*map(array_record, drawn)] == [*map(array_record, expected)]
            assert count_of(copy.rngs[name]) == 3

    def test_clone_is_independent(self, nnx):
        module = model(nnx)
        copy = nnx.clone(module)
        for name, seed in SEEDS.items():
            drawn = [copy.rngs[name](), copy.rngs[name](), module.rngs[name]()]
            expected = [nth_key(seed, n) for n in (1, 2, 1)]
            assert [*map(array_record, drawn)] == [*map(array_record, expected)]

    @pytest.mark.parametrize("part", ["RngState", "RngKey", "RngCount"])
    def test_update(self, nnx, part):
        module, other = model(nnx), model(nnx, dropout=7, params=8)
        other.rngs.params()
        streams = [other.rngs[name] for name in SEEDS]
        nnx.update(other, nnx.state(module, getattr(nnx, part)))
        replaced = [n for n, s in zip(SEEDS, streams, strict=True) if other.rngs[n] is not s]
        assert replaced == []
        seeds = {"dropout": 7, "params": 8} if part == "RngCount" else SEEDS
        counts = {"dropout": 1, "params": 2 if part == "RngKey" else 1}
        assert records(other.rngs, SEEDS) == {
            name: (array_record(jax.random.key(seeds[name])), counts[name]) for name in SEEDS
        }

    def test_checkpoint(self, nnx):
        module, other = model(nnx), model(nnx, dropout=7, params=8)
        module.rngs.params()
        saved = {path: saveable(leaf.get_value()) for path, leaf in state_items(nnx.state(module))}
        state = nnx.state(other)
        for path, leaf in state_items(state):
            leaf.set_value(restored(saved[path], leaf.get_value()))
        nnx.update(other, state)
        assert records(other.rngs, SEEDS) == records(module.rngs, SEEDS)
        assert array_record(other.rngs.params()) == array_record(nth_key(4, 2))


def saveable(value):
    """Turns a value into a NumPy array of numbers, as checkpoints hold them."""
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def restored(saved, like):
    """Turns what was saved into a value of the kind of `like`."""
    is_key = jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(saved) if is_key else jax.numpy.asarray(saved)
