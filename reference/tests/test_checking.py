"""checkify: the error, the output and the state."""

import jax.numpy as jnp
import pytest
from jax.experimental import checkify

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["updates", "graph-mode", "tree-mode"])


def f(v, x, *, scale=1):
    """Doubles a Variable and checks that a value is positive."""
    v[...] *= 2
    checkify.check(x > 0, "x is {x}", x=x)
    return v[...] * x * scale


@each_mode
@pytest.mark.parametrize("flags", [{}, {"hijax": True}, {"ref": True}], ids=str)
def test_state_is_carried_out_whether_or_not_a_check_fails(mode, flags):
    v = nnx.Param(jnp.float32(3), **flags)
    checked = nnx.checkify(f, **mode)
    error, out = checked(v, jnp.float32(2), scale=10)
    assert (error.get(), out, v[...]) == (None, 120, 6)
    error, out = nnx.jit(checked, **mode)(v, jnp.float32(-1))
    assert (out, v[...]) == (-12, 12)
    with pytest.raises(checkify.JaxRuntimeError, match=r"x is -1\.0"):
        error.throw()


def test_other_errors():
    error, out = nnx.checkify(lambda v: v[...] / 0, checkify.float_checks)(
        nnx.Param(jnp.float32(1))
    )
    assert "division by zero" in error.get()
    assert out == jnp.inf


def test_structure_and_errors():
    def grow(m, x):
        m.seen = nnx.Cache(x)
        checkify.check(x > 0, "negative")
        return m

    m = nnx.Module()
    error, out = nnx.checkify(grow)(m, -1.0)
    assert (out is m, m.seen[...], "negative" in error.get()) == (True, -1, True)
    with pytest.raises(ValueError, match=r"v \(as passed in\) and <output>"):
        nnx.checkify(lambda v: v, graph=False)(nnx.Param(1.0))
