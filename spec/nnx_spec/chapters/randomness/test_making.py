"""Making streams: seeds, names, the stream that serves for all others, and bad seeds."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.randomness.keys import (
    NAMES,
    as_seed,
    count_of,
    key_of,
    nth_key,
    root_of,
    seeds,
    stream_record,
)
from nnx_spec.oracles import array_record, variables

# Some releases say that `fork(split=...)` is to be replaced by `split`; both are in the documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*split.*:DeprecationWarning")

RNGS = "guides/randomness#rngs-rngstream-and-rngstate"


@clause("RNG-001", MUST, DOCUMENTED, source=RNGS)
class TestMaking:
    """`Rngs` makes a stream of each seed: of the positional one `default`, of keyword ones by name.

    A seed is an integer or a key. The stream is an `RngStream` that holds its root key as the
    `RngKey` called `key`, and the number of its draws, zero, as the `RngCount` called `count`; both
    Variables are tagged with the stream's name.
    """

    @given(
        default=st.none() | seeds, named=st.dictionaries(st.sampled_from(NAMES), seeds, max_size=3)
    )
    def test_seeds_and_mixtures(self, nnx, default, named):
        plans = dict(named)
        if default is not None:
            plans["default"] = default
            named.pop("default", None)
        keywords = {name: as_seed(plan) for name, plan in named.items()}
        rngs = nnx.Rngs(*([] if default is None else [as_seed(default)]), **keywords)
        for name, plan in plans.items():
            self.check_stream(nnx, getattr(rngs, name), name)
            assert key_of(getattr(rngs, name)) == array_record(root_of(plan))
        assert len(variables(nnx, rngs)) == 2 * len(plans)

    def check_stream(self, nnx, stream, name):
        assert type(stream) is nnx.RngStream
        assert type(stream.key) is nnx.RngKey
        assert type(stream.count) is nnx.RngCount
        assert (stream.key.tag, stream.count.tag) == (name, name)
        assert (stream.count.get_value().shape, count_of(stream)) == ((), 0)

    def test_classes(self, nnx):
        assert issubclass(nnx.RngKey, nnx.RngState)
        assert issubclass(nnx.RngCount, nnx.RngState)
        assert issubclass(nnx.RngState, nnx.Variable)

    def test_a_stream_by_itself(self, nnx):
        stream = nnx.RngStream(jax.random.key(3), tag="noise")
        self.check_stream(nnx, stream, "noise")
        assert key_of(stream) == array_record(jax.random.key(3))


MISSING = pytest.mark.parametrize(
    ("missing", "use"),
    [
        ("noise", lambda rngs: rngs.noise),
        ("noise", lambda rngs: rngs.noise()),
        ("default", lambda rngs: rngs()),
        ("default", lambda rngs: rngs.uniform((2,))),
    ],
    ids=["read", "draw", "call", "sample"],
)


@clause("RNG-003", MUST, DOCUMENTED, source="guides/randomness#default-prng-key-stream")
class TestUnknownStreams:
    """A name that `Rngs` does not have stands for its stream `default`.

    Without a stream `default` asking for it raises `AttributeError`.
    """

    def test_default_serves(self, nnx):
        rngs = nnx.Rngs(3, params=4)
        drawn = [rngs.noise(), rngs(), rngs.dropout(), rngs.noise(), rngs["carry"]()]
        assert [*map(array_record, drawn)] == [array_record(nth_key(3, n)) for n in range(5)]
        assert count_of(rngs.default) == 5
        assert count_of(rngs.params) == 0

    def test_no_stream_is_added(self, nnx):
        rngs = nnx.Rngs(3, params=4)
        rngs.noise()
        assert len(variables(nnx, rngs)) == 4
        assert rngs.noise is rngs.dropout is rngs.default

    @MISSING
    def test_without_default(self, nnx, missing, use):
        rngs = nnx.Rngs(params=4)
        with pytest.raises(AttributeError):
            use(rngs)
        assert not hasattr(rngs, "noise")
        assert count_of(rngs.params) == 0


@clause("RNG-004", MUST, DOCUMENTED, source="guides/randomness#default-prng-key-stream")
class TestSpellings:
    """`rngs()` draws from the stream `default`; `rngs.name` and `rngs['name']` are one stream."""

    def test_call(self, nnx):
        rngs = nnx.Rngs(params=4, default=3, aaa=5)
        drawn = [rngs(), rngs.default(), rngs()]
        assert [*map(array_record, drawn)] == [array_record(nth_key(3, n)) for n in range(3)]
        assert [count_of(rngs[name]) for name in ("aaa", "default", "params")] == [0, 3, 0]

    @pytest.mark.parametrize("name", ["default", "params", "noise"])
    def test_item_and_attribute(self, nnx, name):
        rngs = nnx.Rngs(3, params=4)
        assert rngs[name] is getattr(rngs, name)
        assert getattr(rngs, name) is getattr(rngs, name)

    def test_name_of_an_unknown_stream(self, nnx):
        rngs = nnx.Rngs(3, params=4)
        assert rngs["noise"] is rngs.default


BAD_SEEDS = {
    "float": (lambda: 1.5, "1.5"),
    "string": (lambda: "three", "three"),
    "list": (lambda: [17], "17"),
    "complex": (lambda: 2.5j, "2.5j"),
    "float32": (lambda: np.float32(2.5), "2.5"),
    "function": (lambda: max, "max"),
}
"""What is no seed, and what a message must show of it."""


MAKES = pytest.mark.parametrize(
    "make",
    [
        lambda nnx, seed: nnx.Rngs(seed),
        lambda nnx, seed: nnx.Rngs(3, noise=seed),
        lambda nnx, seed: nnx.RngStream(seed, tag="noise"),
    ],
    ids=["default", "named", "stream"],
)


def refused_reseed(nnx, seed):
    """Reseeds a stream with what is no seed; gives the message of the refusal."""
    rngs = nnx.Rngs(noise=3)
    rngs.noise()
    before = stream_record(rngs.noise)
    with pytest.raises((TypeError, ValueError)) as raised:
        nnx.reseed(rngs, noise=seed)
    assert stream_record(rngs.noise) == before
    return str(raised.value)


@clause("RNG-015", MUST, SOUND, source="what is no seed gives numbers all the same")
class TestBadSeeds:
    """A seed that is neither an integer nor a key raises `TypeError` or `ValueError`.

    So does an array of keys where a single key is wanted. Streams that there are keep their keys
    and counts.
    """

    @pytest.mark.parametrize("seed", BAD_SEEDS)
    @MAKES
    def test_making(self, nnx, seed, make):
        with pytest.raises((TypeError, ValueError)):
            make(nnx, BAD_SEEDS[seed][0]())

    @pytest.mark.parametrize("seed", BAD_SEEDS)
    def test_reseed(self, nnx, seed):
        refused_reseed(nnx, BAD_SEEDS[seed][0]())

    def test_reseed_with_several_keys(self, nnx):
        refused_reseed(nnx, jax.random.split(jax.random.key(3), 5))

    @pytest.mark.parametrize(
        "use",
        [lambda stream: stream(), lambda stream: stream.fork(), lambda stream: stream.bits()],
        ids=["draw", "fork", "sample"],
    )
    def test_drawing_with_several_keys(self, nnx, use):
        stream = nnx.Rngs(noise=3).fork(split=5).noise
        before = stream_record(stream)
        with pytest.raises((TypeError, ValueError)):
            use(stream)
        assert stream_record(stream) == before


@clause("RNG-017", SHOULD, OURS, source="who passes something else by mistake looks for it")
class TestMessages:
    """The error for a stream that is missing names it, and the error for a bad seed shows it."""

    @MISSING
    def test_missing_streams(self, nnx, missing, use):
        with pytest.raises(AttributeError, match=rf"\b{missing}\b"):
            use(nnx.Rngs(params=4))

    @pytest.mark.parametrize("seed", BAD_SEEDS)
    @MAKES
    def test_making(self, nnx, seed, make):
        bad, shown = BAD_SEEDS[seed]
        with pytest.raises((TypeError, ValueError), match=re.escape(shown)):
            make(nnx, bad())

    @pytest.mark.parametrize("seed", BAD_SEEDS)
    def test_reseed(self, nnx, seed):
        bad, shown = BAD_SEEDS[seed]
        message = refused_reseed(nnx, bad())
        assert message[message.find(shown) :].startswith(shown), message

    def test_reseed_with_several_keys(self, nnx):
        message = refused_reseed(nnx, jax.random.split(jax.random.key(3), 5))
        assert message[message.find("(5,)") :].startswith("(5,)"), message
