"""Static values that equality confuses: models that differ in one share no compiled code."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.hijax.observing import refusal
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.chapters.transforms.modes import each_mode

X = jnp.float32([1, 2])

REMEMBERING = (
    "jit",
    "cached_partial",
    "remat",
    "scan",
    "while_loop",
    "fori_loop",
    "cond",
    "switch",
)
"""Transforms that may run a trace again that they have made before."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A static value that is compared by its fields."""

    n: Any


@dataclasses.dataclass(frozen=True)
class Table:
    """A static value with an array, which takes part in `==` and not in the hash."""

    n: int
    array: Any = dataclasses.field(hash=False)


class Unequal:
    """A static value that cannot be compared."""

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        raise LookupError("planned: these cannot be compared")

    def __hash__(self):
        return 1


ZEROS = (0, False, 0.0, -0.0)
ONES = (1, True, 1.0)

CONFUSED = {
    "numbers": ONES,
    "zeros": ZEROS,
    "in tuples": ((1,), (True,), (1.0,), (0.0,), (-0.0,)),
    "deeper": (("a", (1, 0.0)), ("a", (1, -0.0)), ("a", (True, 0.0))),
    "in frozensets": tuple(frozenset({n}) for n in (*ONES, 0.0, -0.0)),
    "in dataclasses": (Config(1), Config(True), Config((0.0,)), Config((-0.0,))),
}
"""Values of which some are equal to others, though none is the same."""


@st.composite
def confused(draw):
    """Draws two static values that are equal, and that a program can tell apart."""
    equal = st.sampled_from([ZEROS, ONES]).flatmap(
        lambda kind: st.tuples(st.sampled_from(kind), st.sampled_from(kind))
    )
    pair = draw(equal.filter(lambda pair: repr(pair[0]) != repr(pair[1])))
    for wrap in draw(st.lists(st.sampled_from([*WRAPS]), max_size=3)):
        pair = tuple(map(WRAPS[wrap], pair))
    return pair


WRAPS = {
    "tuple": lambda x: (x,),
    "second item": lambda x: ("a", x),
    "frozenset": lambda x: frozenset({x, "a"}),
    "dataclass": Config,
}


class Spelled:
    """A function of a model that depends on how its static value `n` is spelled.

    Attributes:
      spellings: how values have been spelled, in the order in which they were met.
    """

    def __init__(self):
        self.spellings = []

    def number(self, value):
        """Returns a number for a value: the same only for those that are spelled alike."""
        spelling = repr(value)
        if spelling not in self.spellings:
            self.spellings.append(spelling)
        return float(self.spellings.index(spelling) + 1)

    def __call__(self, model, x):
        """Multiplies an array, and a Variable, by the number of the model's static value."""
        model.w[...] *= self.number(model.n)
        return x * self.number(model.n)


def check_found(found, function, values):
    """Checks what a function gave for some values, by how they are spelled."""
    wanted = {repr(n): (X * function.number(n)).tolist() for n in values}
    wrong = [f"{n} gave {found[n]}, not {wanted[n]}" for n in wanted if found[n] != wanted[n]]
    assert wrong == []


def model_of(nnx, n):
    """Makes a model with a static value, and with another model below."""
    return net(nnx, w=param(nnx, 1.0), inner=net(nnx, v=param(nnx, 2.0)), n=n)


@clause("TRX-037", MUST, SOUND, source="a call computes with another model's static value")
class TestConfusedValues:
    """Models that differ in a static value are not run with the same compiled code, even if the
    values are equal for `==`.

    1, True and 1.0 are different values, and so are 0.0 and -0.0; so it is inside tuples,
    frozensets and dataclasses, and in metadata of Variables. It does not matter whether these are
    two models, or one that has been given another value between two calls.
    """

    @each_transform(*REMEMBERING)
    def test_transforms(self, nnx, transform, mode):
        self.check(nnx, APPLY[transform], mode, (*CONFUSED["in tuples"], *CONFUSED["zeros"]))

    @each_mode
    @pytest.mark.parametrize("kind", CONFUSED)
    def test_jit(self, nnx, mode, kind):
        self.check(nnx, APPLY["jit"], mode, CONFUSED[kind])

    @staticmethod
    def check(nnx, apply, mode, values):
        """Calls a transformed function on a model for each of the values, twice."""
        function = Spelled()
        transformed = apply(nnx, function, mode)
        found = {repr(n): transformed(model_of(nnx, n), X).tolist() for n in (*values, *values)}
        check_found(found, function, values)

    @each_mode
    @given(pair=confused())
    def test_any_value(self, nnx, mode, pair):
        function = Spelled()
        transformed = nnx.jit(function, **mode)
        found = [transformed(model_of(nnx, n), X).tolist() for n in pair]
        assert found == [(X * function.number(n)).tolist() for n in pair]

    @each_mode
    def test_one_model(self, nnx, mode):
        """Gives one model the values, one after the other."""
        function, model, found, expected = Spelled(), model_of(nnx, None), [], []
        transformed = nnx.jit(function, **mode)
        for n in (*CONFUSED["in tuples"], *ZEROS, *ONES, *ZEROS):
            model.n = n
            found.append(transformed(model, X).tolist())
            expected.append((X * function.number(n)).tolist())
        assert found == expected

    @each_mode
    @pytest.mark.parametrize("kind", CONFUSED)
    def test_metadata(self, nnx, mode, kind):
        function = Spelled()
        transformed = nnx.jit(lambda model: X * function.number(model.w.get_metadata("n")), **mode)
        values = CONFUSED[kind]
        found = {repr(n): transformed(net(nnx, w=param(nnx, 1.0, n=n))).tolist() for n in values}
        check_found(found, function, values)

    def test_jax_jit(self, nnx):
        function = Spelled()
        transformed = jax.jit(lambda model: X * function.number(model.n))
        values = [n for kind in CONFUSED.values() for n in kind]
        found = {repr(n): transformed(model_of(nnx, n)).tolist() for n in values}
        check_found(found, function, values)

    @each_mode
    @pytest.mark.parametrize("kind", ["array", "error"])
    def test_incomparable(self, nnx, mode, kind):
        """Has values whose `==` gives an array, or raises: it is right, or there is an error."""
        values = [Table(1, np.full(2, n)) if kind == "array" else Unequal(n) for n in (1, 2, 3)]

        def function(model, x):
            return x * (model.n.array if kind == "array" else model.n.n)

        transformed, found = nnx.jit(function, **mode), []
        for value in values:

            def call(value=value):
                found.append(transformed(model_of(nnx, value), X).tolist())

            if refusal(call) is not None:
                found.append("refused")
        expected = [(X * n).tolist() for n in (1, 2, 3)]
        assert [y for y in found if y != "refused"] == [
            y for y, said in zip(expected, found, strict=True) if said != "refused"
        ]


@clause(
    "TRX-039",
    SHOULD,
    OURS,
    source="a value that cannot be compared still has an identity to look compiled code up by",
)
@each_mode
@pytest.mark.parametrize("kind", ["array", "error"])
def test_incomparable_values(nnx, mode, kind):
    """A model may have a static value whose `==` gives an array or raises an error.

    Two such values that are not the same object are different ones, and the same object is found
    again without a trace.
    """
    traces = []

    def function(model, x):
        traces.append(None)
        return x * (model.n.array if kind == "array" else model.n.n)

    transformed = nnx.jit(function, **mode)
    values = [Table(1, np.full(2, n)) if kind == "array" else Unequal(n) for n in (1, 2)]
    found = [transformed(model_of(nnx, n), X).tolist() for n in (*values, *values)]
    assert found == [(X * n).tolist() for n in (1, 2, 1, 2)]
    assert len(traces) == 2, f"two values were traced {len(traces)} times"
