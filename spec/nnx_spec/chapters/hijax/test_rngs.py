"""Random streams of hijax Variables."""

import jax
import numpy as np
import pytest

from nnx_spec import MUST, TESTED, clause
from nnx_spec.chapters.hijax.cases import Counted
from nnx_spec.chapters.hijax.observing import record
from nnx_spec.oracles import array_record, assert_no_tracers


def streams(nnx, **seeds):
    """Makes random streams twice: of hijax Variables and of plain ones."""
    with nnx.var_defaults(hijax=True):
        hijax = nnx.Rngs(0, **seeds)
    return hijax, nnx.Rngs(0, **seeds)


def key_of(key):
    """Reads a key's bits."""
    return array_record(jax.random.key_data(key))


@clause(
    "HJX-040",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_hijax_rngs",
    needs={"hijax.updates"},
)
class TestRngs:
    """Rngs of hijax Variables draw another key on each call of one `jax.jit` function, the keys
    that they draw eagerly.

    They may be an argument or captured. The count outside is the number of keys drawn.
    """

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_keys(self, nnx, captured):
        rngs, twin = streams(nnx, noise=1)

        @Counted
        def draw(*args):
            (own,) = args or (rngs,)
            return own.noise(), own.default(), own.noise(), own.params()

        drawn = []
        for _ in range(3):
            found = draw(*(() if captured else (rngs,)))
            expected = (twin.noise(), twin.default(), twin.noise(), twin.params())
            assert [key_of(key) for key in found] == [key_of(key) for key in expected]
            drawn += map(key_of, found)
        assert len(set(drawn)) == 12
        assert draw.traces == 1
        assert int(rngs.noise.count[...]) == 6
        assert int(rngs.default.count[...]) == 6
        for stream, other in ((rngs.noise, twin.noise), (rngs.default, twin.default)):
            assert record(nnx, stream.count) == record(nnx, other.count)
            assert key_of(stream.key[...]) == key_of(other.key[...])
        assert_no_tracers(nnx, rngs)

    def test_between_calls(self, nnx):
        rngs, twin = streams(nnx)
        draw = jax.jit(lambda rngs: rngs())
        for _ in range(2):
            assert key_of(draw(rngs)) == key_of(twin())
            assert key_of(rngs()) == key_of(twin())
        assert int(rngs.default.count[...]) == 4

    def test_numbers(self, nnx):
        rngs, twin = streams(nnx)
        draw = jax.jit(lambda rngs: (rngs.uniform((2,)), rngs.normal((2,))))
        for _ in range(2):
            found, expected = draw(rngs), (twin.uniform((2,)), twin.normal((2,)))
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert int(rngs.default.count[...]) == 4
