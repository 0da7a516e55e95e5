"""Options that say one thing twice: sizes, and static and donated arguments."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import each_mode, each_named
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


@clause("TRX-048", MUST, CONVENTION, source="jax.jit")
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
