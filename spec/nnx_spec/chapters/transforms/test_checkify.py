"""checkify: checks inside Modules."""

import jax.numpy as jnp
import pytest
from jax.experimental import checkify

from nnx_spec import CONVENTION, MUST, TESTED, clause, stands_on
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import assert_no_tracers


def model_of(nnx):
    """Makes a Module that checks its argument, and counts and remembers calls before and after."""

    class Model(nnx.Module):
        def __init__(self):
            self.calls = nnx.BatchStat(jnp.int32(0))
            self.last = nnx.Param(jnp.float32(7))

        def __call__(self, x):
            self.calls[...] += 1
            checkify.check(x > 0, "argument {x} is not positive", x=x)
            self.last[...] = x
            return x * 2

    return Model()


def call(model, x):
    """Calls the model."""
    return model(x)


def logarithm(model, x):
    """Computes what is NaN for negative numbers."""
    model.last[...] = jnp.log(x)
    return model.last + model.calls


PLACES = {
    "alone": lambda nnx, f, mode: nnx.checkify(f, **mode),
    "in jit": lambda nnx, f, mode: nnx.jit(nnx.checkify(f, **mode), **mode),
    "around jit": lambda nnx, f, mode: nnx.checkify(nnx.jit(f, **mode), **mode),
}
"""Where `checkify` stands."""


@clause(
    "TRX-024",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestCheckify::test_checkify_stateful",
)
class TestCheckify:
    """A function under `checkify` returns an error and its output, and its updates are made.

    The error is JAX's: `throw` raises JaxRuntimeError and `get` tells what failed if a check failed
    in the function or in a Module that it calls, and they do nothing if none did. `errors` are the
    kinds of errors that are looked for, failed checks if nothing is said. Updates are made whether
    or not a check fails.
    """

    @each_mode
    @pytest.mark.parametrize("place", PLACES)
    def test_checks(self, nnx, mode, place):
        model, checked = model_of(nnx), PLACES[place](nnx, call, mode)
        for calls, x in enumerate([3.0, -5.0, 4.0], start=1):
            error, y = checked(model, jnp.float32(x))
            assert (float(y), float(model.last.get_value())) == (2 * x, x)
            assert model.calls.get_value().tolist() == calls
            self.check_error(error, "argument -5.0 is not positive" if x < 0 else None)
        assert_no_tracers(nnx, model)

    @each_mode
    @stands_on(CONVENTION, "jax.experimental.checkify.checkify")
    def test_errors(self, nnx, mode):
        model = model_of(nnx)
        for errors, text in ((checkify.nan_checks, "nan"), (checkify.user_checks, None)):
            model.last[...] = jnp.float32(1)
            error, y = nnx.checkify(logarithm, errors=errors, **mode)(model, jnp.float32(-1))
            assert jnp.isnan(y)
            assert jnp.isnan(model.last.get_value())
            self.check_error(error, text)

    @each_mode
    @stands_on(CONVENTION, "jax.experimental.checkify.checkify")
    def test_other_errors(self, nnx, mode):
        model = model_of(nnx)
        error, _ = nnx.checkify(call, errors=checkify.nan_checks, **mode)(model, jnp.float32(-1))
        self.check_error(error, None)
        assert model.calls.get_value() == 1

    def check_error(self, error, text):
        """Checks that an error tells a text, or that there is none."""
        if text is None:
            assert error.get() is None, f"no check failed, but there is the error {error.get()}"
            error.throw()
        else:
            said = error.get() or ""
            assert text in said, f"the error is to say {text!r}, and says {said!r}"
            with pytest.raises(checkify.JaxRuntimeError, match=text):
                error.throw()
