"""shard_map and pmap over several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause, needs, stands_on
from nnx_spec.chapters.transforms.axes import counted
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, snapshot
from nnx_spec.plans import classes


def devices():
    """Lists the devices to use: 8, or as many as there are."""
    return jax.devices()[:8]


def model_of(nnx, kernel):
    """Makes a Module with a parameter, a statistic and, in another Module, a count of calls."""
    own = classes(nnx)
    model = own.Net()
    model.kernel = nnx.Param(kernel, tag="red")
    model.mean = nnx.BatchStat(jnp.float32(1))
    model.block = own.Net()
    model.block.calls = own.Count(jnp.int32(0))
    return model


def apply(model, x, mean):
    """Changes the whole model by an input; `mean` averages over all devices."""
    y = x @ model.kernel
    model.mean[...] = model.mean + mean(y.mean())
    model.kernel[...] *= 2
    model.block.calls[...] += 1
    return y + 1


def whole(value):
    """Averages over the one device that there is."""
    return value


def over_data(value):
    """Averages over the axis `data` of a mesh."""
    return jax.lax.pmean(value, "data")


@clause("TRX-026", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.shard_map")
class TestDevices:
    """`shard_map` and `pmap` over several devices give the result, and the state, of one device.

    `shard_map` gives each device the shard of arrays and of all Variables of an object that
    `in_specs` say. `pmap` gives it a slice, as `vmap` does. What the devices leave is put together
    again in the caller's own objects.
    """

    @needs("transforms.shard_map")
    @each_mode
    def test_sharded_data(self, nnx, mode):
        def function(model, x):
            return apply(model, x, over_data)

        mesh = Mesh(devices(), ("data",))
        kernel, x = counted((2, 3)), counted((2 * mesh.size, 2))
        model, plain = model_of(nnx, kernel), model_of(nnx, kernel)
        specs = {"in_specs": (P(), P("data")), "out_specs": P("data")}
        sharded = nnx.jit(nnx.shard_map(function, mesh=mesh, **specs, **mode), **mode)
        for _ in range(2):
            assert array_record(sharded(model, x)) == array_record(apply(plain, x, whole))
        assert snapshot(nnx, model) == snapshot(nnx, plain)

    @needs("transforms.shard_map")
    @each_mode
    def test_sharded_objects(self, nnx, mode):
        def function(params, x):
            y = jax.lax.psum(x @ params["kernel"][...], "model")
            params["kernel"][...] *= 3
            params["bias"][...] *= 2
            return y + params["bias"]

        mesh = Mesh(devices(), ("model",))
        kernel, bias, x = counted((mesh.size, 2)), counted((2,), start=1), counted((mesh.size,))
        params = {"kernel": nnx.Param(kernel), "bias": nnx.BatchStat(bias)}
        sharded = nnx.shard_map(
            function,
            mesh=mesh,
            in_specs=({"kernel": P("model", None), "bias": P()}, P("model")),
            out_specs=P(),
            **mode,
        )
        y, expected = sharded(params, x), x @ kernel + bias * 2
        assert y.tolist() == expected.tolist()
        assert params["kernel"].get_value().tolist() == (kernel * 3).tolist()
        assert params["bias"].get_value().tolist() == [2, 4]

    @needs("transforms.pmap")
    @each_mode
    @pytest.mark.parametrize("axis", [0, 1])
    @stands_on(CONVENTION, "jax.pmap")
    def test_pmap(self, nnx, mode, axis):
        def function(member, shared, x):
            member.total[...] += x
            shared[...] += jax.lax.psum(member.total[...].sum(), "member")
            return member.total * 2

        size = len(devices())
        member = classes(nnx).Net()
        member.total = nnx.BatchStat(jnp.asarray(np.moveaxis(counted((size, 2)), 0, axis)))
        shared = nnx.Param(jnp.float32(5))
        y = nnx.pmap(function, in_axes=(axis, None, 0), out_axes=axis, axis_name="member", **mode)(
            member, shared, counted((size,))
        )
        total = np.arange(2 * size).reshape(size, 2) + np.arange(size)[:, None]
        assert member.total.get_value().tolist() == np.moveaxis(total, 0, axis).tolist()
        assert y.tolist() == np.moveaxis(total * 2, 0, axis).tolist()
        assert shared.get_value().tolist() == 5 + total.sum()

    @needs("transforms.pmap")
    @each_mode
    @stands_on(CONVENTION, "jax.pmap")
    def test_pmap_over_an_initializer(self, nnx, mode):
        def create(seed):
            return model_of(nnx, seed + np.zeros(2, "float32"))

        size = len(devices())
        model = nnx.pmap(create, **mode)(counted((size,)))
        assert type(model).__name__ == "Net"
        assert model.kernel.get_value().tolist() == [[n, n] for n in range(size)]
        assert model.mean.get_value().tolist() == [1] * size
        assert model.block.calls.get_value().tolist() == [0] * size
