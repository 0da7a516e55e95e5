"""Outputs: hijax Variables that a function under `jax.jit` makes."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause, needs
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_holds, with_vars
from nnx_spec.chapters.hijax.models import layers
from nnx_spec.chapters.hijax.observing import description, refusal
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import variables

MAKERS = {
    "Variable": lambda nnx: nnx.Param(array([1, 2]), tag="t"),
    "Module": lambda nnx: net(nnx, w=nnx.Param(array(1)), b=net(nnx, n=nnx.BatchStat(array(2)))),
    "dict": lambda nnx: {"a": nnx.Param(array(1)), "b": nnx.Cache({"k": array(3)})},
}
"""Functions that make Variables, by name."""


def roots(made):
    """Lists the Variables and Modules in what a maker returns."""
    return list(made.values()) if isinstance(made, dict) else [made]


def describe(nnx, made):
    """Describes what a maker returns."""
    return [description(nnx, root) for root in roots(made)]


@clause("HJX-030", MUST, DOCUMENTED, source="hijax/hijax#mutable-outputs", needs={"hijax"})
class TestOutputs:
    """A `jax.jit` function that returns a hijax Variable made inside raises an error before it
    runs, or returns what it made.

    The way around works: with `with_vars(..., hijax=False)` on the output, the Variables come out,
    with their classes, values and metadata, and `with_vars(..., hijax=True)` outside gives hijax
    Variables that can be changed again.
    """

    @pytest.mark.parametrize("make", MAKERS)
    def test_refused(self, nnx, make):
        @jax.jit
        def create():
            with nnx.var_defaults(hijax=True):
                return MAKERS[make](nnx)

        if refusal(create.lower) is None:
            made = create()
            assert describe(nnx, made) == describe(nnx, MAKERS[make](nnx))
            assert {v.hijax for root in roots(made) for v in variables(nnx, root)} == {True}
        else:
            error = refusal(create)
            assert error is not None, "refused when lowered, but not when called"
            assert str(error).strip(), f"a {type(error).__name__} without a message"

    @pytest.mark.parametrize("make", MAKERS)
    def test_way_around(self, nnx, make):
        @jax.jit
        def create():
            with nnx.var_defaults(hijax=True):
                return with_vars(nnx, MAKERS[make](nnx), hijax=False)

        plain = create()
        expected = describe(nnx, MAKERS[make](nnx))
        assert describe(nnx, plain) == expected
        assert [v.hijax for root in roots(plain) for v in variables(nnx, root)].count(True) == 0

        made = with_vars(nnx, plain, hijax=True)
        assert describe(nnx, made) == expected
        assert [v.hijax for root in roots(made) for v in variables(nnx, root)].count(False) == 0

    @needs("hijax.updates")
    def test_is_mutable_again(self, nnx):
        """Makes the guide's layer inside and changes it inside of another function."""

        @jax.jit
        def create(rngs):
            return with_vars(nnx, layers(nnx).Linear(2, 3, rngs), hijax=False)

        with nnx.var_defaults(hijax=True):
            rngs, twin = nnx.Rngs(0), nnx.Rngs(0)
            layer = with_vars(nnx, create(rngs), hijax=True)
            expected = layers(nnx).Linear(2, 3, twin).kernel[...]
        np.testing.assert_allclose(layer.kernel[...], expected, rtol=1e-5)
        assert int(rngs.default.count[...]) == int(twin.default.count[...]) == 1

        @jax.jit
        def fill(layer, x):
            layer.kernel[...] = layer.kernel[...] * 0 + x

        fill(layer, 7.0)
        assert_holds(nnx, layer.kernel, nnx.Param, np.full((2, 3), 7, np.float32))
