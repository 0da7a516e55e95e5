"""Forking and splitting: new streams of a stream's next key."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, SOUND, clause, stands_on
from nnx_spec.chapters.randomness.keys import (
    PlainRngs,
    PlainStream,
    count_of,
    key_of,
    nth_key,
    slices,
    stream_record,
)
from nnx_spec.oracles import array_record

# Some releases say that `fork(split=...)` is to be replaced by `split`; both are in the documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*split.*:DeprecationWarning")

SPLITS = {
    "split": lambda streams, shape: streams.split(shape),
    "fork": lambda streams, shape: streams.fork(split=shape),
}
"""The two ways to split a stream, or all of an `Rngs`."""

MAPPINGS = {
    "one": (lambda nnx: {"params": 2}, {"params": (2,)}),
    "two": (lambda nnx: {"params": (1, 2), "noise": 2}, {"params": (1, 2), "noise": (2,)}),
    "rest": (
        lambda nnx: {"params": 2, "dropout": None, ...: (1, 2)},
        {"params": (2,), "noise": (1, 2)},
    ),
    "filter": (lambda nnx: {nnx.Not("params"): 2}, {"dropout": (2,), "noise": (2,)}),
    "several": (lambda nnx: {("noise", "params"): 2}, {"noise": (2,), "params": (2,)}),
}
"""Mappings of filters to shapes, and the shapes of the streams `dropout`, `noise` and `params`."""


def check_split(stream, seed, count, shape):
    """Checks a stream that was split off one of that seed, which had drawn `count` keys before."""
    assert key_of(stream) == array_record(jax.random.split(nth_key(seed, count), shape))
    assert stream.count.get_value().shape == shape
    assert np.count_nonzero(count_of(stream)) == 0
    found = slices(stream.key.get_value())
    assert len(set(found)) == len(found) == np.prod(shape)


@clause("RNG-007", MUST, DOCUMENTED, source="guides/randomness#split-random-state")
class TestSplit:
    """`split(n)` and `fork(split=n)` give streams with n different keys, and n counts of zero.

    They are the slices of one key that is drawn from each stream, `jax.random.split(stream(), n)`;
    the stream itself goes on with its next key. A tuple gives as many leading axes. A mapping of
    filters to sizes splits the streams that it selects, each as the first filter says that takes
    it. What the others become, also those that it maps to None, is not ruled, but no stream gives a
    key that another one has given; neither does it after `broadcast`.
    """

    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("shape", [3, (2, 3)], ids=["int", "tuple"])
    def test_rngs(self, nnx, split, shape):
        rngs = nnx.Rngs(3, params=4)
        rngs.params()
        batched = SPLITS[split](rngs, shape)
        axes = shape if isinstance(shape, tuple) else (shape,)
        assert type(batched) is nnx.Rngs
        check_split(batched.default, 3, 0, axes)
        check_split(batched.params, 4, 1, axes)
        assert (batched.params.key.tag, batched.params.count.tag) == ("params", "params")
        assert stream_record(rngs.default) == (array_record(jax.random.key(3)), 1)
        assert stream_record(rngs.params) == (array_record(jax.random.key(4)), 2)

    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("shape", [3, (2, 3)], ids=["int", "tuple"])
    def test_stream(self, nnx, split, shape):
        stream = nnx.Rngs(noise=4).noise
        batched = SPLITS[split](stream, shape)
        assert type(batched) is nnx.RngStream
        check_split(batched, 4, 0, shape if isinstance(shape, tuple) else (shape,))
        assert array_record(stream()) == array_record(nth_key(4, 1))

    @pytest.mark.parametrize("split", SPLITS)
    @pytest.mark.parametrize("mapping", MAPPINGS)
    def test_mappings(self, nnx, split, mapping):
        shapes, expected = MAPPINGS[mapping]
        seeds = {"dropout": 3, "noise": 4, "params": 5}
        rngs = nnx.Rngs(**seeds)
        made = SPLITS[split](rngs, shapes(nnx))
        for name, seed in seeds.items():
            if name in expected:
                check_split(made[name], seed, 0, expected[name])
                assert stream_record(rngs[name]) == (array_record(jax.random.key(seed)), 1)

    @stands_on(SOUND, "two draws give the same numbers, silently")
    @pytest.mark.parametrize("way", [*SPLITS, "broadcast"])
    @pytest.mark.parametrize("mapping", MAPPINGS)
    def test_no_key_twice(self, nnx, way, mapping):
        shapes, expected = MAPPINGS[mapping]
        rngs = nnx.Rngs(dropout=3, noise=4, params=5)
        derive = SPLITS.get(way) or (lambda streams, shape: streams.broadcast(shape))
        made = derive(rngs, shapes(nnx))
        for name in ("dropout", "noise", "params"):
            owners = [rngs] if name in expected else [rngs, made]
            keys = [array_record(owner[name]()) for _ in range(3) for owner in owners]
            if name in expected:
                first = jax.numpy.ravel(made[name].key.get_value())[0]
                keys += [array_record(jax.random.fold_in(first, n)) for n in range(3)]
            repeated = len(keys) - len(set(keys))
            assert repeated == 0, f"{name}: {repeated} of {len(keys)} keys are given again"


programs = st.lists(
    st.tuples(st.sampled_from(["draw", "fork", "fork-all"]), st.integers(0, 5)),
    min_size=1,
    max_size=10,
)
"""Programs that draw from, or fork, one of the streams that there are."""


@clause("RNG-008", MUST, DOCUMENTED, source="api_reference/flax.nnx/rnglib#flax.nnx.fork_rngs")
class TestFork:
    """`fork()` gives an independent stream, whose root is the next key of its parent.

    The stream and its forks go on by themselves, and never draw the same key.
    """

    @given(program=programs)
    def test_family_of_streams(self, nnx, program):
        keys, states = family(program, nnx.Rngs(3))
        expected_keys, expected = family(program, PlainRngs.of(default=3))
        assert keys == expected_keys
        assert len(set(keys)) == len(keys)
        assert [*map(stream_record, states)] == [
            (array_record(stream.key), stream.count) for stream in expected
        ]

    def test_nothing_is_shared(self, nnx):
        rngs = nnx.Rngs(3, params=4)
        forks = [rngs.fork(), rngs.fork(), rngs.fork().fork()]
        kept = [item for owner in (rngs, *forks) for item in parts(owner)]
        assert len({*map(id, kept)}) == len(kept)

    def test_both_go_on(self, nnx):
        rngs = nnx.Rngs(noise=3)
        fork = rngs.fork()
        assert type(fork) is nnx.Rngs
        assert type(rngs.noise.fork()) is nnx.RngStream
        drawn = [*itertools.chain(*((rngs.noise(), fork.noise()) for _ in range(3)))]
        assert len(set(map(array_record, drawn))) == 6
        root = PlainStream(nth_key(3, 0))
        assert [*map(array_record, drawn[1::2])] == [array_record(root()) for _ in range(3)]
        assert [*map(array_record, drawn[::2])] == [array_record(nth_key(3, n)) for n in (2, 3, 4)]
        assert (fork.noise.key.tag, fork.noise.count.tag) == ("noise", "noise")


def family(program, first):
    """Runs a program on one `Rngs` with a stream `default`; returns the keys and the streams."""
    owners, streams, keys = [first], [first["default"]], []
    for action, member in program:
        stream = streams[member % len(streams)]
        if action == "draw":
            keys.append(array_record(stream()))
        elif action == "fork":
            streams.append(stream.fork())
        else:
            owners.append(owners[member % len(owners)].fork())
            streams.append(owners[-1]["default"])
    return keys + [array_record(stream()) for stream in streams], streams


def parts(rngs):
    """Lists the objects that an `Rngs` with streams `default` and `params` consists of."""
    streams = [rngs.default, rngs.params]
    return [rngs, *streams, *(s.key for s in streams), *(s.count for s in streams)]
