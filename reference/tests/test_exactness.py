"""What static values are told apart that `==` takes for the same."""

import dataclasses
import decimal
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_reference.exactness import Exact, exactly_equal


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration with a table that is left out of its hash."""

    n: Any
    table: Any = dataclasses.field(default=None, hash=False)
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Own:
    """A dataclass that compares in its own way."""

    n: Any

    def __eq__(self, other):
        return isinstance(other, Own) and round(self.n) == round(other.n)

    def __hash__(self):
        return round(self.n)


class Pair(NamedTuple):
    """A pair of values."""

    one: Any
    other: Any


class Raising:
    """A value that cannot be compared."""

    def __eq__(self, other):
        raise LookupError

    def __hash__(self):
        return 1


class Listed:
    """A value whose comparison gives an array."""

    def __eq__(self, other):
        return np.array([True, True])

    def __hash__(self):
        return 1


TABLE = jnp.ones(2)

SAME = [
    (1000, 999 + 1),
    ((1, "a"), (1, "a")),
    (frozenset({1, (2.0,)}), frozenset({(2.0,), 1})),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Config(1, note="a"), Config(1, note="b")),
    (Config(1, TABLE), Config(1, TABLE)),
    (Own(1), Own(1.0)),
    (Pair(1, 2), Pair(1, 2)),
    (np.float32(1), np.float32(1)),
    (range(3), range(3)),
    (2j, 2j),
]

DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    (np.float32(0.0), np.float32(-0.0)),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ((1,), (True,)),
    (((0.0,),), ((-0.0,),)),
    (frozenset({1}), frozenset({1.0})),
    ({1: "a"}, {True: "a"}),
    ([0.0], [-0.0]),
    (Config(1), Config(True)),
    (Config(1, np.zeros(2)), Config(1, np.ones(2))),
    (Pair(1, 2), (1, 2)),
    (range(0, 3, 2), range(0, 4, 2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (Raising(), Raising()),
    (Listed(), Listed()),
    ((1,), (1, 2)),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_same(one, other):
    assert exactly_equal(one, other)
    try:
        hash(one)
    except TypeError:
        return
    assert hash(Exact(one)) == hash(Exact(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda value: type(value).__name__)
def test_different(one, other):
    assert not exactly_equal(one, other)
    assert not exactly_equal(other, one)
    assert exactly_equal(one, one)
