"""Drawing: the next key, the samplers, and the same numbers from the same seed."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.randomness.keys import (
    PlainRngs,
    Step,
    count_of,
    key_of,
    nth_key,
    run,
    steps,
)
from nnx_spec.chapters.randomness.samplers import SAMPLERS
from nnx_spec.oracles import array_record

RNGS = "guides/randomness#rngs-rngstream-and-rngstate"
COUNTS = st.sampled_from([0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 2])


@clause("RNG-002", MUST, DOCUMENTED, source=RNGS)
class TestDraws:
    """A call of a stream gives `jax.random.fold_in(key, count)` and then adds one to the count.

    The root key never changes.
    """

    @given(seed=st.integers(0, 2**31 - 1), count=COUNTS)
    def test_any_seed_and_count(self, nnx, seed, count):
        stream = nnx.Rngs(noise=seed).noise
        stream.count.set_value(jnp.asarray(count, stream.count.get_value().dtype))
        drawn = stream()
        assert array_record(drawn) == array_record(nth_key(seed, count))
        assert count_of(stream) == count + 1
        assert key_of(stream) == array_record(jax.random.key(seed))

    def test_one_stream_after_another(self, nnx):
        rngs = nnx.Rngs(3, noise=4)
        key, count = rngs.noise.key, rngs.noise.count
        drawn = [rngs.noise(), rngs.default(), rngs.noise(), rngs.noise()]
        expected = [nth_key(4, 0), nth_key(3, 0), nth_key(4, 1), nth_key(4, 2)]
        assert [*map(array_record, drawn)] == [*map(array_record, expected)]
        assert (rngs.noise.key is key, rngs.noise.count is count) == (True, True)
        assert (count_of(rngs.noise), count_of(rngs.default)) == (3, 1)

    def test_the_key_may_be_replaced(self, nnx):
        stream = nnx.Rngs(noise=3).noise
        stream()
        stream.key.set_value(jax.random.key(7))
        assert array_record(stream()) == array_record(nth_key(7, 1))


def from_rngs(nnx):
    """Returns what draws from the stream `default` of seed 3."""
    return nnx.Rngs(3, params=4)


def from_stream(nnx):
    """Returns a stream of seed 3."""
    return nnx.Rngs(4, noise=3).noise


@clause("RNG-005", MUST, DOCUMENTED, source="guides/randomness#jax-random-shorthand-methods")
class TestSamplers:
    """`rngs` and each stream have the samplers of `jax.random` as methods, without the key.

    A sampler is a function that takes a key first and draws. `stream.normal(...)` equals
    `jax.random.normal(stream(), ...)`, and takes all other arguments as that does;
    `rngs.normal(...)` draws from the stream `default`.
    """

    @pytest.mark.parametrize("source", [from_rngs, from_stream], ids=["rngs", "stream"])
    @pytest.mark.parametrize("name", SAMPLERS)
    def test_every_sampler(self, nnx, name, source):
        if not hasattr(jax.random, name):
            return
        args, kwargs = SAMPLERS[name]

        def by_method():
            return getattr(source(nnx), name)(*args, **kwargs)

        def by_function():
            return getattr(jax.random, name)(source(nnx)(), *args, **kwargs)

        assert same_numbers(by_method, by_function)

    def test_numbers(self, nnx):
        rngs = nnx.Rngs(3, noise=4)
        for n in range(2):
            expected = jax.random.normal(nth_key(3, n), (3,))
            assert array_record(rngs.normal((3,))) == array_record(expected)
        expected = jax.random.bernoulli(nth_key(4, 0), 0.25, (8,))
        assert array_record(rngs.noise.bernoulli(0.25, (8,))) == array_record(expected)
        expected = jax.random.normal(nth_key(3, 2), shape=(3,))
        assert array_record(rngs.dropout.normal(shape=(3,))) == array_record(expected)
        assert (count_of(rngs.default), count_of(rngs.noise)) == (3, 1)


def same_numbers(left, right):
    """Tells whether two functions without arguments compute the same, to the bit.

    Equal jaxprs are proof enough, and cost no compilation; others are evaluated.
    """
    jaxprs = [jax.make_jaxpr(function)() for function in (left, right)]
    codes = [(str(jaxpr), [*map(array_record, jaxpr.consts)]) for jaxpr in jaxprs]
    return codes[0] == codes[1] or array_record(left()) == array_record(right())


PROGRAM = [
    Step("draw", 0, "noise"),
    Step("sample", 0, "params"),
    Step("fork-all", 0, "noise"),
    Step("draw", 1, "params"),
    Step("fork", 1, "noise"),
    Step("draw", 0, "noise"),
]

IN_A_NEW_PROCESS = f"""
from nnx_spec.chapters.randomness.keys import Step, run

drawn = run({PROGRAM!r}, nnx.Rngs(noise=3, params=4))
drawn += run({PROGRAM!r}, nnx.clone(nnx.Rngs(noise=3, params=4)))
print(drawn)
"""


@clause("RNG-006", MUST, DOCUMENTED, source="guides/randomness")
class TestReproducibility:
    """The same seeds and the same order of draws give the same numbers.

    So they do in another process, under `jax.jit`, and in tree mode as in graph mode. No two draws
    of one stream use the same key.
    """

    @given(program=steps("draw", "sample", "fork", "fork-all"))
    def test_eager(self, nnx, program):
        drawn = run(program, nnx.Rngs(noise=3, params=4))
        assert drawn == run(program, PlainRngs.of(noise=3, params=4))

    @given(program=steps("draw", "sample", "fork"))
    def test_no_key_twice(self, nnx, program):
        keys = run(program, nnx.Rngs(noise=3, params=4))
        assert len(set(keys)) == len(keys)

    def test_under_jit(self, nnx):
        def draw(rngs):
            return [rngs.noise(), rngs.params.bits((2,)), rngs.fork().noise(), rngs.noise()], rngs

        expected, after = draw(nnx.Rngs(noise=3, params=4))
        drawn, after_jit = jax.jit(draw)(nnx.Rngs(noise=3, params=4))
        assert [*map(array_record, drawn)] == [*map(array_record, expected)]
        for name in ("noise", "params"):
            assert count_of(after_jit[name]) == count_of(after[name])
            assert array_record(after_jit[name]()) == array_record(after[name]())

    def test_in_a_new_process(self, nnx, run_in_new_process):
        env = {"NNX_GRAPH_MODE": "false", "NNX_GRAPH_UPDATES": "false", "PYTHONHASHSEED": "7"}
        output = run_in_new_process(IN_A_NEW_PROCESS, env)
        assert output.strip() == str(run(PROGRAM, nnx.Rngs(noise=3, params=4)) * 2)
