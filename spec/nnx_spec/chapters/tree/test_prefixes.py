"""Prefix filters: `StateAxes`, `DiffState` and `StateSharding` where nothing takes them."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnx_spec import DOCUMENTED, MAY, MUST, OURS, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.oracles import snapshot

WITHOUT_UPDATES = {name: mode for name, mode in MODES.items() if not mode["graph_updates"]}
"""The modes without graph updates."""


def model_of(nnx):
    """Makes a Module with a Param and a BatchStat, each of shape (2,)."""
    return net(nnx, w=nnx.Param(counted((2,))), n=nnx.BatchStat(counted((2,), 3)))


def total(model):
    """Computes a scalar."""
    return jnp.sum(model.w * model.n)


def axes(nnx):
    """Makes StateAxes that map the Params alone."""
    return nnx.StateAxes({nnx.Param: 0, ...: None})


def differentiable(nnx):
    """Makes a DiffState that selects the Params of the first argument."""
    return nnx.DiffState(0, nnx.Param)


def specs(nnx):
    """Makes a StateSharding that shards the Params alone."""
    return nnx.StateSharding({nnx.Param: PartitionSpec("x"), ...: PartitionSpec()})


def shardings(nnx):
    """Makes a StateSharding of shardings that shards the Params alone."""
    mesh = mesh_of(1)
    sharded, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("x",), ()))
    return nnx.StateSharding({nnx.Param: sharded, ...: whole})


def scanned(nnx, step, xs, in_axes, out_axes, mode):
    """Scans a step that carries a number."""
    axes = {"in_axes": (nnx.Carry, in_axes), "out_axes": (nnx.Carry, out_axes)}
    return nnx.scan(step, **axes, **mode)(jnp.float32(0), xs)


def ruled(nnx, model, mode):
    """Calls a function with a rule of its own and a DiffState among its `nondiff_argnums`."""
    f = nnx.custom_vjp(total, nondiff_argnums=(differentiable(nnx),), **mode)
    f.defvjp(lambda model: (f(model), model), lambda model, g: (model,))
    return nnx.grad(f, **mode)(model)


def mapped_over_devices(nnx, f, in_specs, out_specs, mode):
    """Makes the function that `shard_map` makes of f, over one device."""
    specs = {"in_specs": (in_specs,), "out_specs": out_specs}
    return nnx.shard_map(f, mesh=mesh_of(1), **specs, **mode)


USES = {
    "vmap in_axes": lambda nnx, m, mode: nnx.vmap(total, in_axes=axes(nnx), **mode)(m),
    "vmap in_axes of several": lambda nnx, m, mode: nnx.vmap(
        lambda m, x: total(m), in_axes=(axes(nnx), 0), **mode
    )(m, jnp.ones(2)),
    "vmap out_axes": lambda nnx, m, mode: nnx.vmap(
        lambda x: model_of(nnx), out_axes=axes(nnx), **mode
    )(jnp.ones(2)),
    "pmap in_axes": lambda nnx, m, mode: nnx.pmap(total, in_axes=(axes(nnx),), **mode)(m),
    "pmap out_axes": lambda nnx, m, mode: nnx.pmap(
        lambda x: model_of(nnx), out_axes=axes(nnx), **mode
    )(jnp.ones(2)),
    "scan in_axes": lambda nnx, m, mode: scanned(
        nnx, lambda c, m: (c, total(m)), m, axes(nnx), 0, mode
    ),
    "scan out_axes": lambda nnx, m, mode: scanned(
        nnx, lambda c, x: (c, model_of(nnx)), jnp.ones(2), 0, axes(nnx), mode
    ),
    "grad": lambda nnx, m, mode: nnx.grad(total, argnums=differentiable(nnx), **mode)(m),
    "grad of several": lambda nnx, m, mode: nnx.grad(
        lambda m, x: total(m) * x, argnums=(differentiable(nnx), 1), **mode
    )(m, jnp.float32(2)),
    "value_and_grad": lambda nnx, m, mode: nnx.value_and_grad(
        total, argnums=differentiable(nnx), **mode
    )(m),
    "custom_vjp": ruled,
    "jit in_shardings": lambda nnx, m, mode: nnx.jit(total, in_shardings=(shardings(nnx),), **mode)(
        m
    ),
    "jit in_shardings of several": lambda nnx, m, mode: nnx.jit(
        lambda m, x: total(m), in_shardings=(shardings(nnx), None), **mode
    )(m, 1.0),
    "jit out_shardings": lambda nnx, m, mode: nnx.jit(
        lambda: model_of(nnx), out_shardings=shardings(nnx), **mode
    )(),
    "shard_map in_specs": lambda nnx, m, mode: mapped_over_devices(
        nnx, lambda m: m.w[...], specs(nnx), PartitionSpec("x"), mode
    )(m),
    "shard_map out_specs": lambda nnx, m, mode: mapped_over_devices(
        nnx, lambda x: model_of(nnx), PartitionSpec("x"), specs(nnx), mode
    )(jnp.ones(2)),
}
"""Uses of a prefix filter, by the argument that takes it."""


each_use = pytest.mark.parametrize("use", USES)
each_mode_without = pytest.mark.parametrize("mode", WITHOUT_UPDATES)


@clause("TREE-003", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#prefix-filters")
class TestPrefixFilters:
    """Without graph updates, a transform that is given a prefix filter raises TypeError or
    ValueError, and `split` and `merge` do instead.

    Prefix filters are `StateAxes` in the axes of `vmap`, `pmap` and `scan`, `DiffState` in `grad`,
    `value_and_grad` and `custom_vjp`, and `StateSharding` in the shardings and specs of `jit` and
    `shard_map`; for outputs as for inputs, and alone as in a tuple.
    """

    @each_mode_without
    @each_use
    def test_refusal(self, nnx, use, mode):
        model = model_of(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises((TypeError, ValueError)):
            USES[use](nnx, model, WITHOUT_UPDATES[mode])
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    def test_the_way(self, nnx):
        model = model_of(nnx)
        graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=False)

        def f(params, rest):
            return total(nnx.merge(graphdef, params, rest))

        mode = WITHOUT_UPDATES["tree-mode"]
        totals = nnx.vmap(f, in_axes=(0, None), **mode)(params, rest)
        assert totals.tolist() == [7, 14]
        assert jax.tree.leaves(nnx.grad(f, **mode)(params, rest))[0].tolist() == [3, 4]


@clause("TREE-014", MAY, OURS, source="the error can name what takes the place of the filter")
@each_mode_without
@each_use
def test_the_error_names_the_way(nnx, use, mode):
    """The error for a prefix filter without graph updates names `split` and `merge` as the way."""
    with pytest.raises((TypeError, ValueError)) as raised:
        USES[use](nnx, model_of(nnx), WITHOUT_UPDATES[mode])
    message = str(raised.value)
    assert [word for word in ("split", "merge") if word not in message] == []
