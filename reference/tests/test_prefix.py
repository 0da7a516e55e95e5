"""prefix: trees of axes and specs in the place of objects."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import nnx_reference as nnx

MODES = [
    {"graph": False},
    {"graph": True, "graph_updates": False},
    {"graph": True, "graph_updates": True},
]
MODE_IDS = ["tree-mode", "graph-mode", "graph-updates"]
in_every_mode = pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
AXES = {nnx.Param: 0, ...: None}


class Net(nnx.Module):
    def __init__(self, n=3):
        self.w = nnx.Param(jnp.arange(2.0 * n).reshape(n, 2), note="w")
        self.count = nnx.BatchStat(jnp.float32(0))
        self.layers = nnx.List([nnx.Dict(b=nnx.Param(jnp.arange(1.0 * n)))])
        self.array = nnx.data(jnp.ones(5))
        self.name = "net"


def step(net):
    net.count[...] += 1
    net.w[...] += 1
    return net.w.sum() + net.layers[0]["b"] + net.array.sum()


@pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
def test_it_has_the_structure_and_what_is_said(graph):
    net = Net()
    made = nnx.prefix(net, AXES, graph=graph)
    assert type(made) is Net
    assert (made.w, made.count, made.layers[0]["b"], made.array) == (0, None, 0, None)
    assert made.name == "net"
    assert nnx.prefix(net.w, AXES, graph=graph) == 0
    tree = nnx.prefix({"m": [net.count, net.w], "x": jnp.ones(3)}, AXES, graph=graph)
    assert tree == {"m": [None, 0], "x": None}
    state = nnx.prefix(nnx.state(net), {nnx.PathContains("w"): P("d"), ...: P()}, graph=graph)
    assert isinstance(state, nnx.State)
    assert (state["w"], state["count"], state["layers"][0]["b"]) == (P("d"), P(), P())
    paths = nnx.prefix((net, {"y": net.array}), lambda path, leaf: path, graph=graph)
    assert paths[0].layers[0]["b"] == (0, "layers", 0, "b")
    assert paths[1] == {"y": (1, "y")}
    first = nnx.prefix(net, {nnx.PathContains("w"): 1, nnx.Param: 0, ...: None}, graph=graph)
    assert (first.w, first.layers[0]["b"]) == (1, 0)


def test_every_variable_must_be_selected():
    with pytest.raises(ValueError, match=r"BatchStat at \('count',\)"):
        nnx.prefix(Net(), {nnx.Param: 0, nnx.OfType(jax.Array): None})
    shared = nnx.Dict(a=nnx.Param(jnp.ones(2)))
    shared["b"] = shared["a"]
    with pytest.raises(ValueError, match=r"node.*'?a'?.*'?b'?"):
        nnx.prefix(shared, AXES, graph=False)
    assert dict(nnx.prefix(shared, AXES, graph=True).items()) == {"a": 0, "b": 0}


@in_every_mode
def test_vmap_maps_each_variable_its_own_way(mode):
    net, w = Net(), Net().w[...]
    y = nnx.vmap(step, in_axes=(nnx.prefix(net, AXES, graph=mode["graph"]),), **mode)(net)
    assert y.tolist() == ((w + 1).sum(1) + jnp.arange(3) + 5).tolist()
    assert net.w.value.tolist() == (w + 1).tolist()
    assert net.count.value == 1


@in_every_mode
def test_scan_maps_each_variable_its_own_way(mode):
    net, w = Net(), Net().w[...]
    axes = nnx.prefix(net, AXES, graph=mode["graph"])
    y = nnx.scan(step, in_axes=(axes,), out_axes=0, **mode)(net)
    assert y.tolist() == ((w + 1).sum(1) + jnp.arange(3) + 5).tolist()
    assert net.w.value.tolist() == (w + 1).tolist()
    assert net.count.value == 3


@in_every_mode
def test_shard_map_and_pmap_take_it(mode):
    net = Net(8)
    specs = nnx.prefix(net, {nnx.Param: P("d"), ...: P()}, graph=mode["graph"])
    mesh = Mesh(jax.devices()[:8], ("d",))
    y = nnx.shard_map(step, mesh=mesh, in_specs=(specs,), out_specs=P("d"), **mode)(net)
    w = Net(8).w[...]
    expected = ((w + 1).sum(1) + jnp.arange(8) + 5).tolist()
    assert y.tolist() == expected
    assert net.w.value.tolist() == (w + 1).tolist()
    net = Net(8)
    axes = nnx.prefix(net, AXES, graph=mode["graph"])
    assert nnx.pmap(step, in_axes=(axes,), **mode)(net).tolist() == expected
    assert (net.w.value.tolist(), net.count.value) == ((w + 1).tolist(), 1)


def test_jax_takes_it_for_a_module():
    net = Net()
    f = jax.vmap(lambda net: net.w.sum(), in_axes=(nnx.prefix(net, AXES, graph=False),))
    assert f(net).tolist() == net.w.sum(1).tolist()
    state = nnx.state(net)
    f = jax.vmap(lambda state: state["w"].sum(), in_axes=(nnx.prefix(state, AXES),))
    assert f(state).tolist() == net.w.sum(1).tolist()


@in_every_mode
def test_out_axes_take_it(mode):
    axes = nnx.prefix(Net(), {nnx.PathContains("w"): 1, nnx.Param: 0, ...: None}, graph=False)
    made = nnx.vmap(lambda: Net(), out_axes=axes, axis_size=4, **mode)()
    assert (made.w.shape, made.layers[0]["b"].shape) == ((3, 4, 2), (4, 3))
    assert (made.count.shape, made.array.shape) == ((), (5,))


@pytest.mark.parametrize("updates", [False, True])
def test_shared_and_cyclic_objects(updates):
    net = Net()
    net.me, net.again = net, net.w
    axes = nnx.prefix(net, AXES, graph=True)
    assert axes.me is axes
    mode = {"graph": True, "graph_updates": updates}
    y = nnx.vmap(lambda net: step(net) + net.me.again.sum(), in_axes=(axes,), **mode)(net)
    w = Net().w[...]
    assert y.tolist() == ((w + 1).sum(1) * 2 + jnp.arange(3) + 5).tolist()
    nnx.vmap(lambda a, b: None, in_axes=(axes, axes), **mode)(net, net)
    with pytest.raises(ValueError, match=r"a\.\w+, with 0, and at b\[0\], with 1"):
        nnx.vmap(lambda a, b: None, in_axes=(axes, (1,)), **mode)(net, (net.again,))


def test_trees_that_do_not_fit_are_refused():
    net = Net()
    f = nnx.vmap(lambda net: 0, in_axes=(nnx.prefix(nnx.Dict(w=net.w), AXES),))
    with pytest.raises(ValueError, match=r"Dict .* nothing of the .*nnx\.prefix"):
        f(net)
    with pytest.raises(TypeError, match="ints, None"):
        nnx.vmap(lambda net: 0, in_axes=(nnx.prefix(net, {...: "0"}),))(net)
    with pytest.raises(ValueError, match="no Module or Variable"):
        nnx.vmap(lambda x: 0, in_axes=(nnx.prefix(net, AXES),))(jnp.ones(3))
    by_hand = jax.tree.map(lambda _: 0, nnx.Dict(w=net.w))
    assert nnx.vmap(lambda m: m["w"].sum(), in_axes=(by_hand,))(nnx.Dict(w=net.w)).shape == (3,)


def test_what_aliases_and_shared_references_are_called():
    v = nnx.Param(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match=r"Inconsistent aliasing.*one Param stands at a.*b"):
        nnx.vmap(lambda a, b: None, in_axes=(0, 1), graph=True, graph_updates=False)(v, v)
    with pytest.raises(ValueError, match=r"found at paths:\n  Duplicate Param: a and b"):
        nnx.vmap(lambda a, b: None, graph=False)(v, v)


def test_scan_refuses_outputs_of_which_some_are_not_stacked():
    with pytest.raises(ValueError, match="does not broadcast"):
        nnx.scan(lambda c, x: (c, x), out_axes=(nnx.Carry, nnx.StateAxes({...: None})))
