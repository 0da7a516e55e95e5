"""Variables that leave the trace in which they were made, by a way that is not the output."""

import jax
import jax.numpy as jnp
import pytest

from nnx_spec import CONVENTION, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.hijax.observing import refusal
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.oracles import assert_no_tracers

X = jnp.float32([1, 2])

TRACED = tuple(name for name in APPLY if name not in ("vmap", "pmap", "custom_vjp"))
"""Transforms whose function JAX refuses to leave; of vmap and custom_vjp it lets values go."""


class EscapeError(Exception):
    """Carries a model out of a function."""

    def __init__(self, *things):
        super().__init__("planned")
        self.things = things


class Leaking:
    """A function of a model that lets the model, and a Variable made inside, escape.

    Attributes:
      way: how: into a list, or with an exception.
      escaped: what has escaped: the model and the Variable.
    """

    def __init__(self, nnx, way):
        self.nnx = nnx
        self.way = way
        self.escaped = []

    def __call__(self, model, x):
        """Changes the model; the first time, lets it escape."""
        model.w[...] += x
        made = self.nnx.Param(x * 2)
        if self.way == "exception" and not self.escaped:
            raise EscapeError(model, made)
        if not self.escaped:
            self.escaped += [model, made]
        return model.w[...] * 1.0


USES = {
    "read": lambda nnx, v: v[...] + 1,
    "read under jit": lambda nnx, v: jax.jit(lambda: v[...] + 1)(),
    "write": lambda nnx, v: v.set_value(X),
    "write an item": lambda nnx, v: v.__setitem__(0, 1.0),
    "pass to jit": lambda nnx, v: nnx.jit(lambda v: v[...] + 1)(v),
}
"""Ways to use a Variable that has escaped."""


@clause("TRX-041", MUST, CONVENTION, source="jax.errors.UnexpectedTracerError")
class TestEscapes:
    """A Variable that has escaped from a trace cannot be used: to compute with it, or to write to
    it, raises an error.

    It does not matter how it has escaped: into a list or a closure, or with an exception; and
    whether it was given to the function or made in it. The next call of the function, on a model
    that has not escaped, is right, and what the caller has holds no tracer.
    """

    @each_transform(*TRACED)
    def test_use(self, nnx, transform, mode):
        self.check_use(nnx, transform, mode, Leaking(nnx, "list"))

    @each_transform("jit", "grad", "scan", "cond")
    def test_use_after_an_exception(self, nnx, transform, mode):
        self.check_use(nnx, transform, mode, Leaking(nnx, "exception"))

    @staticmethod
    def check_use(nnx, transform, mode, leaking):
        """Lets a model and a Variable escape, and uses them in every way."""
        transformed = APPLY[transform](nnx, leaking, mode)
        model = net(nnx, w=param(nnx, [3.0, 4.0]))
        try:
            transformed(model, X)
        except EscapeError as error:
            leaking.escaped += error.things
        escaped, made = leaking.escaped
        allowed = [
            f"{use} of the {name}"
            for name, variable in (("model's Variable", escaped.w), ("Variable made inside", made))
            for use, apply in USES.items()
            if refusal(lambda apply=apply, variable=variable: apply(nnx, variable)) is None
        ]
        assert allowed == []
        assert_no_tracers(nnx, model)

    @each_transform(*TRACED)
    def test_next_call(self, nnx, transform, mode):
        leaking = Leaking(nnx, "exception")
        transformed = APPLY[transform](nnx, leaking, mode)
        model = net(nnx, w=param(nnx, [3.0, 4.0]))
        with pytest.raises(EscapeError):
            transformed(model, X)
        assert model.w.get_value().tolist() == [3, 4]
        leaking.escaped.append("escaped")
        assert transformed(model, X).tolist() == [4, 6]
        assert model.w.get_value().tolist() == [4, 6]
        assert_no_tracers(nnx, model)


@clause("TRX-045", SHOULD, OURS, source="who reads the error has to find what has escaped")
@each_transform("jit", "grad", "scan", "cond", "remat")
@pytest.mark.parametrize("use", ["write", "write an item"])
def test_escaped_variables_are_named(nnx, transform, mode, use):
    """The error about a write to a Variable that has escaped from a trace names its class."""
    leaking = Leaking(nnx, "list")
    APPLY[transform](nnx, leaking, mode)(net(nnx, w=nnx.BatchStat(jnp.float32([3, 4]))), X)
    escaped, made = leaking.escaped
    unnamed = [
        type(variable).__name__
        for variable in (escaped.w, made)
        for error in [refusal(lambda variable=variable: USES[use](nnx, variable))]
        if type(variable).__name__ not in str(error)
    ]
    assert unnamed == []
