"""pmap and shard_map over eight devices, against one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import nnx_reference as nnx

MODES = [
    {"graph": False},
    {"graph": True, "graph_updates": False},
    {"graph": True, "graph_updates": True},
]
MODE_IDS = ["tree-mode", "graph-mode", "graph-updates"]
in_every_mode = pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
UPDATES = MODES[2]


class Net(nnx.Module):
    def __init__(self, w, mean):
        self.w = nnx.Param(w, note="weights")
        self.mean = nnx.BatchStat(mean)
        self.layers = nnx.List([nnx.Dict(b=nnx.Param(jnp.ones(2)))])


def array(*shape):
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)


def mesh():
    return Mesh(jax.devices()[:8], ("d",))


def weights(path, value):
    return value.get_metadata("note", None) == "weights"


def specs():
    return nnx.StateSharding({weights: P("d"), ...: None})


# --- shard_map ---


@in_every_mode
def test_shards_of_objects_go_in_and_out(mode):
    model, twin, x = Net(array(8, 2), jnp.float32(1)), Net(array(8, 2), jnp.float32(1)), array(8)

    def f(params, mean, x):
        y = params["w"] * x[:, None]
        params["w"][...] += 1
        mean[...] += jax.lax.psum(y.sum(), "d")
        return y

    def over_mesh(f):
        return nnx.shard_map(
            f, mesh=mesh(), in_specs=({"w": P("d")}, None, P("d")), out_specs=P("d"), **mode
        )

    y = over_mesh(f)({"w": model.w}, model.mean, x)
    assert jnp.array_equal(y, twin.w * x[:, None])
    assert jnp.array_equal(model.w[...], twin.w + 1)
    assert model.mean[...] == 1 + y.sum()
    assert model.w.note == "weights"
    assert model.w.sharding.is_equivalent_to(NamedSharding(mesh(), P("d")), 2)
    assert model.mean.sharding.is_fully_replicated


@in_every_mode
def test_a_model_is_made_and_returned_under_specs(mode):
    made = nnx.shard_map(
        lambda x: Net(x, jnp.float32(2)),
        mesh=mesh(),
        in_specs=P("d"),
        out_specs=nnx.prefix(Net(0, 0), {nnx.PathContains("w"): P("d"), ...: P()}, graph=False),
        **mode,
    )(array(8, 2))
    assert isinstance(made, Net)
    assert jnp.array_equal(made.w[...], array(8, 2))
    assert made.mean[...] == 2


def test_state_sharding_shards_each_variable_its_own_way():
    model, shapes = Net(array(8, 2), jnp.float32(1)), []

    @nnx.shard_map(mesh=mesh(), in_specs=(specs(),), out_specs=(specs(), P()), **UPDATES)
    def f(model):
        shapes.append((model.w.shape, model.layers[0]["b"].shape))
        model.new = nnx.Param(model.w[...] * 2)
        model.w[...] *= 2
        return model, jax.lax.psum(model.w[...].sum(), "d")

    with pytest.raises(ValueError, match="replicat"):
        f(model)
    assert not hasattr(model, "new")
    assert jnp.array_equal(model.w[...], array(8, 2))

    @nnx.shard_map(mesh=mesh(), in_specs=(specs(),), out_specs=(specs(), P()), **UPDATES)
    def g(model):
        model.new_w = model.w
        model.w[...] *= 2
        return model, jax.lax.psum(model.w[...].sum(), "d")

    same, total = g(model)
    assert same is model
    assert model.new_w is model.w
    assert jnp.array_equal(model.w[...], array(8, 2) * 2)
    assert total == model.w[...].sum()
    assert shapes == [((1, 2), (2,))]


def test_the_mesh_may_be_that_of_the_context():
    with jax.set_mesh(mesh()):
        shard = nnx.shard_map(lambda x: x * 2, in_specs=P("d"), out_specs=P("d"))
        assert shard(array(8)).tolist() == (2 * array(8)).tolist()


def test_state_sharding_takes_a_state_of_specs():
    spec = nnx.StateSharding(nnx.State({"w": P("d"), "mean": P(), "layers": {0: {"b": P()}}}))
    model = Net(array(8, 2), jnp.float32(1))
    f = nnx.shard_map(
        lambda m: m.w[...], mesh=mesh(), in_specs=(spec,), out_specs=P("d"), **UPDATES
    )
    assert jnp.array_equal(f(model), array(8, 2))
    assert spec == nnx.StateSharding(
        nnx.State({"layers": {0: {"b": P()}}, "mean": P(), "w": P("d")})
    )
    assert dict(specs()) == {weights: P("d"), ...: None}
    assert specs().shardings == (P("d"), None)
    assert specs() != nnx.StateAxes({weights: 0, ...: None})
    with pytest.raises(TypeError, match="StateSharding maps filters to shardings"):
        nnx.StateSharding({nnx.Param: "d"})


def test_specs_that_do_not_fit_are_refused():
    model = Net(array(8, 2), jnp.float32(1))

    def over_mesh(*in_specs, f=lambda *_: None, **mode):
        return nnx.shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=P(), **mode)

    with pytest.raises(ValueError, match=r"no sharding for the BatchStat at \('mean'"):
        over_mesh(nnx.StateSharding({nnx.Param: P()}), **UPDATES)(model)
    with pytest.raises(ValueError, match=r"one Param stands at a\.w.*and at b\b.*'d'"):
        over_mesh(None, P("d"), f=lambda a, b: None, **UPDATES)(model, model.w)
    over_mesh(P("d"), P("d", None), f=lambda a, b: None, **UPDATES)(model.w, model.w)
    for mode in MODES[:2]:
        with pytest.raises(ValueError, match=r"nnx\.split .* nnx\.merge"):
            over_mesh(specs(), **mode)(model)
    with pytest.raises(ValueError, match="2 entries for 1"):
        over_mesh(P(), P(), **UPDATES)(model)
    with pytest.raises(TypeError, match="PartitionSpecs"):
        over_mesh(0, **UPDATES)(model)
    with pytest.raises(ValueError, match="no Module or Variable"):
        over_mesh(specs(), **UPDATES)(array(8))


def test_tree_mode_refuses_what_is_shared():
    v = nnx.Param(array(8))
    f = nnx.shard_map(lambda a, b: None, mesh=mesh(), in_specs=P("d"), out_specs=P(), graph=False)
    with pytest.raises(ValueError, match=r"a and b"):
        f(v, v)
    f = nnx.shard_map(lambda a: a, mesh=mesh(), in_specs=P("d"), out_specs=P("d"), graph=False)
    with pytest.raises(ValueError, match=r"a .*<output>"):
        f(v)


@pytest.mark.parametrize("flags", [{"hijax": True}, {"ref": True}], ids=["hijax", "ref"])
@pytest.mark.parametrize("in_jit", [False, True], ids=["eager", "jit"])
def test_shards_of_hijax_variables_are_written(flags, in_jit):
    value = jax.device_put(array(8), NamedSharding(mesh(), P("d"))) if in_jit else array(8)
    v = nnx.Variable(value, note="n", **flags)

    def f(v):
        v[...] += 1
        return v[...] * 2

    f = nnx.shard_map(f, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    y = (nnx.jit(f) if in_jit else f)(v)
    assert jnp.array_equal(v[...], array(8) + 1)
    assert jnp.array_equal(y, (array(8) + 1) * 2)
    assert (v.hijax, v.ref, v.note) == (flags.get("hijax", False), flags.get("ref", False), "n")


def test_shard_map_calls_as_often_as_jax():
    calls = []

    def f(x):
        calls.append(1)
        return x * 2

    options = {"mesh": mesh(), "in_specs": P("d"), "out_specs": P("d")}
    counts = []
    for transform, x in ((jax.shard_map, array(8)), (nnx.shard_map, nnx.Param(array(8)))):
        calls.clear()
        mapped = transform(f, **options)
        mapped(x), mapped(x), transform(f, **options)(x)
        counts.append(len(calls))
    assert counts[0] == counts[1]


# --- pmap ---


@in_every_mode
@pytest.mark.parametrize("axis", [0, 1])
def test_slices_of_objects_go_in_and_out(mode, axis):
    w = array(8, 2) if axis == 0 else array(2, 8)
    members, shared, x = nnx.Dict(w=nnx.Param(w, note="n")), nnx.BatchStat(jnp.float32(1)), array(8)

    def f(members, shared, x, power, *, bias):
        members["w"][...] += x
        shared[...] += jax.lax.psum(x, "i")
        return members["w"] ** power + bias

    f = nnx.pmap(
        f,
        in_axes=(axis, None, 0),
        out_axes=1,
        axis_name="i",
        static_broadcasted_argnums=3,
        **mode,
    )
    y = f(members, shared, x, 2, bias=x)
    expected = np.moveaxis(np.asarray(w), axis, 0) + np.asarray(x)[:, None]
    assert jnp.array_equal(y, (expected**2 + np.asarray(x)[:, None]).T)
    assert jnp.array_equal(members["w"][...], np.moveaxis(expected, 0, axis))
    assert members["w"].note == "n"
    assert shared[...] == 1 + 28


def test_state_axes_in_pmap():
    model, axes = (
        Net(array(8, 2), jnp.float32(1)),
        nnx.StateAxes({weights: 0, ...: None}),
    )

    @nnx.pmap(in_axes=(axes,), out_axes=(axes, 0), axis_name="i", **UPDATES)
    def f(model):
        model.first = model.w
        model.w[...] *= 2
        model.mean[...] += jax.lax.psum(1.0, "i")
        return model, model.layers[0]["b"].sum() + model.w.sum()

    same, y = f(model)
    assert same is model
    assert model.first is model.w
    assert jnp.array_equal(model.w[...], array(8, 2) * 2)
    assert model.mean[...] == 9
    assert jnp.array_equal(y, array(8, 2).sum(1) * 2 + 2)
    with pytest.raises(ValueError, match="no axis for the BatchStat"):
        nnx.pmap(lambda m: 0, in_axes=(nnx.StateAxes({nnx.Param: 0}),), **UPDATES)(model)
    for mode in MODES[:2]:
        with pytest.raises(ValueError, match=r"nnx\.split .* nnx\.merge"):
            nnx.pmap(lambda m: 0, in_axes=(axes,), **mode)(Net(array(8, 2), 0.0))


@in_every_mode
def test_pmap_donates_and_carries_what_it_donated(mode):
    sharded = nnx.pmap(lambda x: x + 0)(array(8))
    model, before = nnx.Dict(w=nnx.Param(sharded)), sharded
    y = nnx.pmap(lambda m: m["w"] * 2, donate_argnums=0, **mode)(model)
    assert before.is_deleted()
    assert jnp.array_equal(model["w"][...], array(8))
    assert jnp.array_equal(y, array(8) * 2)


@in_every_mode
def test_errors_leave_everything_as_it_was(mode):
    v, seen = nnx.Param(array(8)), []

    def f(v):
        v[...] += 1
        if not seen:
            seen.append(1)
            raise RuntimeError("first")

    for transform in (
        nnx.pmap(f, **mode),
        nnx.shard_map(f, mesh=mesh(), in_specs=P("d"), out_specs=P(), **mode),
    ):
        v[...] = array(8)
        seen.clear()
        with pytest.raises(RuntimeError, match="first"):
            transform(v)
        assert jnp.array_equal(v[...], array(8))
        transform(v)
        assert jnp.array_equal(v[...], array(8) + 1)


@pytest.mark.parametrize("flags", [{"hijax": True}, {"ref": True}], ids=["hijax", "ref"])
def test_slices_of_hijax_variables_are_written(flags):
    v, count = nnx.Variable(array(8), **flags), nnx.Variable(jnp.float32(0), **flags)

    def f(v, count):
        v[...] += 1
        count[...] += 1
        return v[...] * 2

    y = nnx.pmap(f, in_axes=(0, None))(v, count)
    assert jnp.array_equal(v[...], array(8) + 1)
    assert count[...] == 1
    assert jnp.array_equal(y, (array(8) + 1) * 2)
    assert (v.hijax, v.ref) == (flags.get("hijax", False), flags.get("ref", False))


def test_pmap_calls_as_often_as_jax():
    calls = []

    def f(x, power):
        calls.append(1)
        return x**power

    found = []
    for transform, x in ((jax.pmap, array(8)), (nnx.pmap, nnx.Param(array(8)))):
        mapped = transform(f, static_broadcasted_argnums=1)
        counts = []
        for power in (2, 2, 3, 2):
            mapped(x, power)
            counts.append(len(calls))
        transform(f, static_broadcasted_argnums=1)(x, 2)
        counts.append(len(calls))
        found.append([n - counts[0] for n in counts])
    assert found == [[0, 0, 1, 1, 1]] * 2
