"""All streams of an object at once: `split_rngs`, `fork_rngs`, `restore_rngs`, `reseed`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, TESTED, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.randomness.keys import (
    count_of,
    key_of,
    nth_key,
    records,
    slices,
    stream_record,
)
from nnx_spec.oracles import array_record, nodes, variables

# Some releases say that `fork(split=...)` is to be replaced by `split`; both are in the documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*split.*:DeprecationWarning")

SEEDS = {"dropout": 3, "noise": 4, "params": 5}
"""The seeds of the streams of `model`."""


def model(nnx):
    """Makes a Module with a parameter and three streams, which have drawn nothing."""
    return net(nnx, kernel=param(nnx, [1.0, 2.0]), block=net(nnx, rngs=nnx.Rngs(**SEEDS)))


def streams_of(module):
    """Describes the streams of a `model` by name."""
    return records(module.block.rngs, SEEDS)


def single(name, count):
    """Describes a stream of `model` that has drawn that many keys."""
    return array_record(jax.random.key(SEEDS[name])), count


def split(name, shape, count=0):
    """Describes a stream that was split off one of `model` that had drawn `count` keys."""
    keys = jax.random.split(nth_key(SEEDS[name], count), shape)
    return array_record(keys), np.zeros(shape).tolist()


SELECTIONS = {
    "all": (lambda nnx: ..., set(SEEDS)),
    "name": (lambda nnx: "noise", {"noise"}),
    "not": (lambda nnx: nnx.Not("noise"), {"dropout", "params"}),
    "either": (lambda nnx: ("noise", "params"), {"noise", "params"}),
    "type": (lambda nnx: nnx.RngState, set(SEEDS)),
    "none": (lambda nnx: nnx.Param, set()),
}
"""Filters of random state, and the streams of `model` that they select."""

COPYING = {"tree-mode": {"graph": False}, "graph-mode": {"graph": True, "graph_updates": False}}
"""Options with which a function changes a copy."""


class OwnError(Exception):
    """What a test's own code raises."""


@clause("RNG-009", MUST, DOCUMENTED, source="api_reference/flax.nnx/rnglib#flax.nnx.split_rngs")
class TestSplitRngs:
    """`split_rngs(node, splits=n, only=f)` splits the streams that the filter selects.

    Each of them draws the key whose slices become its keys, as `split(n)` has it. In graph mode
    with graph updates the streams are split in place; the result gives them back their own keys by
    `restore_rngs`, or at the end of a `with` block, and they go on after the key that was split.
    Otherwise the result is a copy with split streams. As a decorator it splits the streams of a
    call's arguments, and gives them back when the call returns or raises. `squeeze=True` with
    `splits=1` leaves the new axis out.
    """

    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_in_place_and_back(self, nnx, selection):
        only, selected = SELECTIONS[selection]
        module = model(nnx)
        before = identities(nnx, module)
        backups = nnx.split_rngs(module, splits=2, only=only(nnx))
        assert streams_of(module) == self.split_streams(selected)
        nnx.restore_rngs(backups)
        assert streams_of(module) == self.after(selected)
        assert identities(nnx, module) == before

    def split_streams(self, selected, shape=(2,), count=0):
        return {n: split(n, shape, count) if n in selected else single(n, 0) for n in SEEDS}

    def after(self, selected, count=1):
        return {name: single(name, count if name in selected else 0) for name in SEEDS}

    def test_several_axes(self, nnx):
        module = model(nnx)
        nnx.restore_rngs(nnx.split_rngs(module, splits=(2, 3)))
        with nnx.split_rngs(module, splits=(2, 3)):
            assert streams_of(module) == self.split_streams(SEEDS, (2, 3), count=1)
        assert streams_of(module) == self.after(SEEDS, count=2)

    def test_with_block_that_raises(self, nnx):
        module = model(nnx)
        with pytest.raises(OwnError), nnx.split_rngs(module, splits=2, only="noise"):
            raise OwnError
        assert streams_of(module) == self.after({"noise"})

    @pytest.mark.parametrize("mode", [{}, *COPYING.values()], ids=["in-place", *COPYING])
    def test_decorator(self, nnx, mode):
        @nnx.split_rngs(splits=2, only=("noise", "params"), **mode)
        def call(given, flag):
            seen.append(streams_of(given))
            if flag == "raise":
                raise OwnError
            return flag

        seen, module = [], model(nnx)
        assert call(module, "first") == "first"
        with pytest.raises(OwnError):
            call(module, "raise")
        assert call(module, "third") == "third"
        assert seen == [self.split_streams({"noise", "params"}, count=n) for n in range(3)]
        assert streams_of(module) == self.after({"noise", "params"}, count=3)
        drawn = module.block.rngs.noise()
        assert array_record(drawn) == array_record(nth_key(SEEDS["noise"], 3))

    @pytest.mark.parametrize("mode", COPYING)
    def test_copy(self, nnx, mode):
        module = model(nnx)
        copy = nnx.split_rngs(module, splits=2, only="noise", **COPYING[mode])
        assert streams_of(copy) == self.split_streams({"noise"})
        assert streams_of(module) == self.after({"noise"})
        assert copy.kernel is module.kernel
        assert copy.block is not module.block

    def test_squeeze(self, nnx):
        @nnx.split_rngs(splits=1, squeeze=True)
        def draw(given):
            return given.block.rngs.noise(), given.block.rngs.noise.key.get_value()

        module = model(nnx)
        for count in range(2):
            drawn, root = draw(module)
            (expected,) = jax.random.split(nth_key(SEEDS["noise"], count), 1)
            assert array_record(root) == array_record(expected)
            assert array_record(drawn) == array_record(jax.random.fold_in(expected, 0))
        assert streams_of(module) == self.after(SEEDS, count=2)

    def test_squeeze_in_place(self, nnx):
        module = model(nnx)
        backups = nnx.split_rngs(module, splits=1, squeeze=True, only="noise")
        assert module.block.rngs.noise.key.get_value().shape == ()
        nnx.restore_rngs(backups)
        assert streams_of(module) == self.after({"noise"})


def identities(nnx, module):
    """Lists the identities of a Module's nodes and Variables."""
    return [*map(id, (*nodes(nnx, module), *variables(nnx, module)))]


def draw_a_lot(nnx, streams):
    """Draws from every stream that is single."""
    for name in SEEDS:
        if streams[name].key.get_value().shape == ():
            streams[name]()
            streams[name].bits((2,))


def write_by_hand(nnx, streams):
    """Writes to every key and count."""
    for name in SEEDS:
        streams[name].count.set_value(streams[name].count.get_value() + jnp.uint32(7))
        streams[name].key.set_value(jax.random.key(17))


def reseed_all(nnx, streams):
    """Seeds every stream anew."""
    nnx.reseed(streams, policy="match_shape", dropout=7, noise=8, params=9)


WAYS_IN = {
    "split_rngs": lambda nnx, module: nnx.split_rngs(module, splits=2),
    "squeezed": lambda nnx, module: nnx.split_rngs(module, splits=1, squeeze=True),
    "fork_rngs": lambda nnx, module: nnx.fork_rngs(module),
}
"""The documented ways to a backup; each draws once from every stream."""


@clause("RNG-012", MUST, TESTED, source="tests/nnx/rngs_test.py::TestRngs::test_fork_rngs")
class TestRestoreRngs:
    """`restore_rngs(backups)` gives every stream the very key and count that were backed up.

    `split_rngs` and `fork_rngs` give the backups; a stream goes on after the key that they drew
    from it, whatever has been done to it meanwhile.
    """

    @pytest.mark.parametrize("change", [draw_a_lot, write_by_hand, reseed_all])
    @pytest.mark.parametrize("way", WAYS_IN)
    def test_state_comes_back(self, nnx, way, change):
        module = model(nnx)
        draw_a_lot(nnx, module.block.rngs)
        backups = WAYS_IN[way](nnx, module)
        change(nnx, module.block.rngs)
        nnx.restore_rngs(backups)
        assert streams_of(module) == {name: single(name, 3) for name in SEEDS}
        for name, seed in SEEDS.items():
            drawn = module.block.rngs[name]()
            assert array_record(drawn) == array_record(nth_key(seed, 3))

    @pytest.mark.parametrize("way", WAYS_IN)
    def test_twice(self, nnx, way):
        module = model(nnx)
        backups = WAYS_IN[way](nnx, module)
        nnx.restore_rngs(backups)
        draw_a_lot(nnx, module.block.rngs)
        nnx.restore_rngs(backups)
        assert streams_of(module) == {name: single(name, 1) for name in SEEDS}

    def test_nested(self, nnx):
        module = model(nnx)
        with nnx.fork_rngs(module):
            draw_a_lot(nnx, module.block.rngs)
            inside = streams_of(module)
            with nnx.split_rngs(module, splits=2, only="noise"):
                draw_a_lot(nnx, module.block.rngs)
            key, count = inside["noise"]
            assert stream_record(module.block.rngs.noise) == (key, count + 1)
        assert streams_of(module) == {name: single(name, 1) for name in SEEDS}

    def test_other_streams_stay(self, nnx):
        module = model(nnx)
        backups = nnx.split_rngs(module, splits=2, only="noise")
        module.block.rngs.params()
        nnx.restore_rngs(backups)
        expected = {"dropout": 0, "noise": 1, "params": 1}
        assert streams_of(module) == {name: single(name, n) for name, n in expected.items()}


@clause("RNG-010", MUST, DOCUMENTED, source="guides/randomness#reseeding")
class TestReseed:
    """`reseed(node, name=seed)` gives each stream of that name a new key and the count zero.

    The seed is an integer or a key. A dropout layer that was made with it repeats its first masks.
    Streams of other names stay as they are. A batched stream is refused unless the policy is
    `match_shape`, which splits its new key into as many, or a function of path, new key and old
    shape, which gives the keys.
    """

    @pytest.mark.parametrize("seed", [lambda: 3, lambda: jax.random.key(3)], ids=["int", "key"])
    def test_dropout_masks_repeat(self, nnx, seed):
        layer = nnx.Dropout(0.5, rngs=nnx.Rngs(params=5, dropout=3))
        masks = [array_record(layer(jnp.ones((16,)))) for _ in range(2)]
        nnx.reseed(net(nnx, layer=layer), dropout=seed())
        assert [array_record(layer(jnp.ones((16,)))) for _ in range(2)] == masks
        assert masks[0] != masks[1]

    def test_keys_and_counts(self, nnx):
        modules = [model(nnx), model(nnx)]
        draw_a_lot(nnx, modules[0].block.rngs)
        for module in modules:
            nnx.reseed(module, noise=8, dropout=9)
        first, second = (module.block.rngs for module in modules)
        assert stream_record(first.params) == single("params", 2)
        assert stream_record(second.params) == single("params", 0)
        for name in ("noise", "dropout"):
            assert stream_record(first[name]) == stream_record(second[name])
            assert key_of(first[name]) != single(name, 0)[0]
            assert count_of(first[name]) == 0
        assert key_of(first.noise) != key_of(first.dropout)

    def test_pytree_of_objects(self, nnx):
        modules = [model(nnx), {"inner": model(nnx)}]
        streams = [modules[0].block.rngs, modules[1]["inner"].block.rngs]
        for rngs in streams:
            draw_a_lot(nnx, rngs)
        nnx.reseed(modules, noise=8)
        for rngs in streams:
            assert (count_of(rngs.noise), count_of(rngs.dropout)) == (0, 2)
            assert key_of(rngs.noise) != single("noise", 0)[0]

    def test_objects_stay(self, nnx):
        module = model(nnx)
        before = identities(nnx, module)
        nnx.reseed(module, noise=8, dropout=9)
        assert identities(nnx, module) == before

    def test_unknown_names(self, nnx):
        module = model(nnx)
        nnx.reseed(module, other=7)
        assert streams_of(module) == {name: single(name, 0) for name in SEEDS}

    @pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
    def test_split_shapes(self, nnx, shape):
        batched = nnx.Rngs(noise=3, params=4).fork(split=shape)
        batched.noise.count.set_value(batched.noise.count.get_value() + jnp.uint32(2))
        others = stream_record(batched.params)
        with pytest.raises(ValueError, match="noise"):
            nnx.reseed(batched, noise=8)
        nnx.reseed(batched, policy="match_shape", noise=8)
        expected = jax.random.split(self.scalar_key(nnx, 8), shape)
        assert stream_record(batched.noise) == (array_record(expected), np.zeros(shape).tolist())
        assert len(set(slices(batched.noise.key.get_value()))) == np.prod(shape)
        assert stream_record(batched.params) == others

    def scalar_key(self, nnx, seed):
        rngs = nnx.Rngs(noise=0)
        nnx.reseed(rngs, noise=seed)
        return rngs.noise.key.get_value()

    def test_function_as_policy(self, nnx):
        asked = []

        def policy(path, key, shape):
            asked.append((path, array_record(key), shape))
            return jnp.broadcast_to(jax.random.fold_in(key, 5), shape)

        node = {"a": nnx.Rngs(noise=3).fork(split=2), "b": nnx.Rngs(params=3)}
        nnx.reseed(node, policy=policy, noise=8)
        key = self.scalar_key(nnx, 8)
        assert asked == [(("a", "noise"), array_record(key), (2,))]
        expected = jnp.stack([jax.random.fold_in(key, 5)] * 2)
        assert stream_record(node["a"].noise) == (array_record(expected), [0, 0])
