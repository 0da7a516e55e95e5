"""Aliases: one Variable in two arguments that are to be transformed in different ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import each_graph_mode, each_mode, each_named
from nnx_spec.oracles import names_path, snapshot


def specs():
    """Makes two partition specs that differ."""
    return PartitionSpec("x"), PartitionSpec()


def named():
    """Makes two shardings that differ."""
    return tuple(NamedSharding(mesh_of(1), spec) for spec in specs())


def with_carry(nnx, f, mode):
    """Makes a scan that carries the first argument and has an axis of the second."""
    axes = (nnx.Carry, 0)

    def step(first, second):
        return first, f(first, second)

    return nnx.scan(step, in_axes=axes, out_axes=axes, **mode)


DIFFERENT = {
    "vmap": lambda nnx, f, mode: nnx.vmap(f, in_axes=(0, 1), out_axes=None, **mode),
    "vmap-None": lambda nnx, f, mode: nnx.vmap(f, in_axes=(0, None), out_axes=None, **mode),
    "vmap-prefix": lambda nnx, f, mode: nnx.vmap(
        f, in_axes=({"here": 0}, {"there": 1}), out_axes=None, **mode
    ),
    "pmap": lambda nnx, f, mode: nnx.pmap(
        f, in_axes=(0, None), out_axes=None, devices=jax.devices()[:1], **mode
    ),
    "scan": lambda nnx, f, mode: nnx.scan(f, in_axes=(0, 1), out_axes=0, **mode),
    "scan-Carry": with_carry,
    "shard_map": lambda nnx, f, mode: nnx.shard_map(
        f, mesh=mesh_of(1), in_specs=specs(), out_specs=PartitionSpec(), **mode
    ),
    "jit": lambda nnx, f, mode: nnx.jit(f, in_shardings=named(), **mode),
}
"""Transforms of a function of two arguments, each to be transformed in a way of its own."""

ALIKE = {
    "vmap": lambda nnx, f, mode: nnx.vmap(f, in_axes=(0, 0), out_axes=None, **mode),
    "vmap-one": lambda nnx, f, mode: nnx.vmap(f, in_axes=0, out_axes=None, **mode),
    "vmap-None": lambda nnx, f, mode: nnx.vmap(f, in_axes=None, out_axes=None, axis_size=2, **mode),
    "scan": lambda nnx, f, mode: nnx.scan(f, in_axes=(0, 0), out_axes=0, **mode),
    "shard_map": lambda nnx, f, mode: nnx.shard_map(
        f, mesh=mesh_of(1), in_specs=specs()[:1] * 2, out_specs=PartitionSpec(), **mode
    ),
    "jit": lambda nnx, f, mode: nnx.jit(f, in_shardings=named()[:1] * 2, **mode),
}
"""Transforms of a function of two arguments, which are transformed in the same way."""


def add(first, second):
    """Writes to the Variable that both arguments hold."""
    first["here"].w[...] += 1
    second["there"].inner.v[...] *= 2
    return jnp.float32(0)


def arguments(nnx):
    """Makes two arguments that hold one Variable; no axis of it has a size of one."""
    v = param(nnx, np.arange(4).reshape(2, 2))
    return {"here": net(nnx, w=v)}, {"there": net(nnx, inner=net(nnx, v=v))}


@clause("TRX-029", MUST, DOCUMENTED, source="guides/transforms#consistent-aliasing")
class TestAliases:
    """A Variable that is passed twice, with different axes or shardings, raises ValueError.

    Nothing is run or changed. So it is in every mode; in tree mode it may not be passed twice at
    all. In the others, a Variable that is passed twice with one axis or sharding is one Variable
    inside, too.
    """

    @each_mode
    @each_named(DIFFERENT)
    def test_different(self, nnx, mode, transform):
        calls = []
        first, second = arguments(nnx)
        before = snapshot(nnx, (first, second), identities=True)
        f = DIFFERENT[transform](nnx, lambda first, second: calls.append(None), mode)
        with pytest.raises(ValueError):  # noqa: PT011
            f(first, second)
        assert calls == []
        assert snapshot(nnx, (first, second), identities=True) == before, (
            "what was passed in has changed"
        )

    @each_mode
    def test_bare_variables(self, nnx, mode):
        v = param(nnx, np.zeros((2, 2)))
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.vmap(lambda first, second: None, in_axes=(0, 1), **mode)(v, v)

    @each_mode
    def test_input_and_output(self, nnx, mode):
        """Returns a Variable along another axis than that on which it came in."""
        node = net(nnx, w=param(nnx, np.zeros((2, 2))))
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.vmap(lambda node: {"again": node}, in_axes=0, out_axes=1, **mode)(node)

    @each_graph_mode
    @each_named(ALIKE)
    def test_alike(self, nnx, mode, transform):
        first, second = arguments(nnx)
        ALIKE[transform](nnx, add, mode)(first, second)
        assert first["here"].w is second["there"].inner.v
        np.testing.assert_array_equal(first["here"].w[...], [[2, 4], [6, 8]])


@clause("TRX-043", SHOULD, OURS, source="who reads the error has to find both places")
@each_mode
@pytest.mark.parametrize("transform", DIFFERENT)
def test_both_places_are_named(nnx, mode, transform):
    """The error about a Variable that is passed twice, with different axes, names both paths."""
    f = DIFFERENT[transform](nnx, lambda first, second: None, mode)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        f(*arguments(nnx))
    unnamed = [
        path
        for path in (("here", "w"), ("there", "inner", "v"))
        if not names_path(str(caught.value), path)
    ]
    assert unnamed == []
