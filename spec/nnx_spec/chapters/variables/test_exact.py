"""Exactness: metadata that Python's equality confuses, and that computations tell apart."""

import jax
import numpy as np
import pytest

from nnx_spec import MUST, SOUND, clause
from nnx_spec.chapters.variables.cases import SECONDS, array

CONFUSED = {
    "int-bool": (1, True),
    "int-float": (1, 1.0),
    "bool-float": (False, 0.0),
    "zeros": (0.0, -0.0),
    "tuple": ((1, "a"), (True, "a")),
    "nested": (("a", (0.0,)), ("a", (-0.0,))),
    "frozenset": (frozenset({1}), frozenset({True})),
}
"""Pairs of values that are equal and have one hash, and that are not the same."""


class Undecided:
    """A value whose `==` says neither yes nor no."""

    def __eq__(self, other):
        raise TypeError("cannot be compared")

    def __hash__(self):
        return 7


@clause("VAR-029", MUST, SOUND, source="what was compiled for one value runs for another one")
class TestExactMetadata:
    """Metadata is kept and told apart exactly, also where `==` takes two values for the same.

    1 is not True or 1.0, and 0.0 is not -0.0, by themselves or inside tuples and frozensets: a copy
    has the very value, the treedefs of two Variables that differ so are unequal, and `jax.jit` does
    not run for one what it has compiled for the other.
    """

    @pytest.mark.parametrize("way", SECONDS)
    @pytest.mark.parametrize("pair", CONFUSED)
    def test_copies(self, nnx, pair, way):
        for value in (*CONFUSED[pair], *CONFUSED[pair]):
            copy = SECONDS[way](nnx, nnx.Param(array(1), tag=value))
            assert repr(copy.get_metadata("tag")) == repr(value)

    @pytest.mark.parametrize("pair", CONFUSED)
    def test_treedefs(self, nnx, pair):
        one, other = (jax.tree.structure(nnx.Param(array(1), tag=x)) for x in CONFUSED[pair])
        same = "equal" if one == other else "unequal"
        assert same == "unequal", f"treedefs of Variables with tags {CONFUSED[pair]!r}"

    @pytest.mark.parametrize("pair", CONFUSED)
    def test_jit(self, nnx, pair):
        jitted = jax.jit(lambda v: (v.get_value(), seen.append(repr(v.tag)))[0])
        seen = []
        for value in CONFUSED[pair]:
            jitted(nnx.Param(np.float32(1), tag=value))
        assert seen == [repr(value) for value in CONFUSED[pair]]

    def test_values_that_cannot_be_compared(self, nnx):
        value = Undecided()
        v = nnx.Param(array([1, 2]), tag=value)
        w = jax.tree.map(lambda x, y: x + y, v, v.copy())
        assert w[...].tolist() == [2, 4]
        assert w.tag is value, "another object has taken the place of the metadata"
