"""Options that say one thing twice: sizes, places of derivatives, static and donated arguments."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, MUST, TESTED, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import each_graph_mode, each_mode, each_named
from nnx_spec.oracles import snapshot


def stepped(model):
    """Changes a model, and returns what is in it."""
    model.w[...] += 1
    return model.w[...] * 2


SAID_TWICE = {
    "vmap": lambda nnx, size, mode: nnx.vmap(stepped, axis_size=size, **mode),
    "scan": lambda nnx, size, mode: nnx.scan(stepped, in_axes=0, out_axes=0, length=size, **mode),
}
"""Transforms of `stepped` over the leading axis, whose size is said as well."""


@clause("TRX-047", MUST, CONVENTION, source="jax.vmap")
@each_mode
@each_named(SAID_TWICE)
def test_sizes_said_twice(nnx, mode, transform):
    """A size that is said beside arguments that have one must agree with theirs.

    It is `axis_size` of `vmap` and `length` of `scan`. If it does not, that raises ValueError, as
    in JAX, and changes nothing.
    """
    model = net(nnx, w=param(nnx, [1.0, 2.0]))
    before = snapshot(nnx, model)
    for size in (1, 3):
        with pytest.raises(ValueError):  # noqa: PT011
            SAID_TWICE[transform](nnx, size, mode)(model)
        assert snapshot(nnx, model) == before
    y = SAID_TWICE[transform](nnx, 2, mode)(model)
    assert (y.tolist(), model.w[...].tolist()) == ([4, 6], [2, 3])


@clause(
    "TRX-048",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestCustomVJP::test_grad_inconsistent_aliasing",
)
class TestSharedArguments:
    """An object that is passed where a function is differentiated, and also where it is not, raises
    ValueError.

    So it is for a Variable and for a Module, wherever the places are. Where all of them are
    differentiated, or none is, the object may be shared.
    """

    @each_graph_mode
    @pytest.mark.parametrize("argnums", [0, 1, -2, (0, 2), (-2, 2)], ids=str)
    @pytest.mark.parametrize("bare", [False, True], ids=["Module", "Variable"])
    def test_refused(self, nnx, mode, argnums, bare):
        v = param(nnx, [1.0, 2.0])
        shared = v if bare else net(nnx, w=v)

        def loss(first, second, x):
            held = (first, second) if bare else (first.w, second.w)
            return (held[0][...] * held[1][...]).sum() * x

        before = snapshot(nnx, shared)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.grad(loss, argnums=argnums, **mode)(shared, shared, 2.0)
        assert snapshot(nnx, shared) == before
        by_x = nnx.grad(loss, argnums=2, **mode)(shared, shared, 2.0)
        assert float(by_x) == 5


@clause("TRX-049", MUST, CONVENTION, source="jax.jit")
@each_mode
@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1, "donate_argnums": 1},
        {"static_argnums": 1, "donate_argnums": (0, 1)},
        {"static_argnames": "n", "donate_argnames": "n"},
        {"static_argnums": 1, "donate_argnames": "n"},
    ],
    ids=str,
)
def test_static_and_donated(nnx, mode, options):
    """An argument of `jit` that is said to be static and to be donated raises ValueError."""

    def f(x, n):
        return x * n

    with pytest.raises(ValueError):  # noqa: PT011
        nnx.jit(f, **options, **mode)(jnp.ones(2), 3)
    apart = nnx.jit(f, static_argnums=1, donate_argnums=0, **mode)
    np.testing.assert_array_equal(apart(jnp.ones(2), 3), [3, 3])
