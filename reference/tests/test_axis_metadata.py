"""transform_metadata and `transform_metadata=`: sharding metadata in step with the axes."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import nnx_reference as nnx
from nnx_reference.metadata import SHOWN

MODES = {
    "tree-mode": {"graph": False},
    "graph-mode": {"graph": True, "graph_updates": False},
    "graph-updates": {"graph": True, "graph_updates": True},
}
UPDATES = MODES["graph-updates"]
FORMS = [*MODES, "keyword"]
in_every_form = pytest.mark.parametrize("form", FORMS)


def apply(transform, f, form, partition, in_axes=0, out_axes=0, **options):
    """Maps a function whose metadata is kept in step, by the transform's keyword or by its own."""
    axes = {"in_axes": in_axes, "out_axes": out_axes}
    if form == "keyword":
        metadata = {nnx.PARTITION_NAME: partition}
        return transform(f, transform_metadata=metadata, **axes, **options, **UPDATES)
    mode = MODES[form]
    kept = nnx.transform_metadata(f, **axes, partition=partition, graph=mode["graph"])
    return transform(kept, **axes, **options, **mode)


def param(shape, **metadata):
    """Makes a Param that is annotated only, and not placed on a mesh."""
    return nnx.Param(jnp.ones(shape), eager_sharding=False, **metadata)


@in_every_form
@pytest.mark.parametrize(
    ("axis", "outside", "inside"),
    [
        (0, ("n", "a", None), ("a", None)),
        (1, ("a", "n", None), ("a", None)),
        (-1, ("a", None, "n"), ("a", None)),
        (-3, P("n", None, "b"), P(None, "b")),
        (None, ("a", "b", None), ("a", "b", None)),
        (0, P("n"), P(None, None)),
        (2, P("a", None, "n"), P("a", None)),
    ],
    ids=str,
)
def test_metadata_loses_the_axis_inside_and_has_it_outside(form, axis, outside, inside):
    v, seen = param((2, 2, 2), out_sharding=outside, note="v"), []

    def f(v):
        seen.append((v.out_sharding, v.note))
        if axis is not None:
            v[...] = v[...] * 2

    apply(nnx.vmap, f, form, "n", (axis,), axis_size=2)(v)
    assert seen == [(inside, "v")]
    assert v.get_metadata() == {**v.get_metadata(), "out_sharding": outside, "note": "v"}
    assert type(v.out_sharding) is type(outside)


@in_every_form
@pytest.mark.parametrize("partition", ["n", None])
@pytest.mark.parametrize(
    ("axis", "shape", "inside", "outside"),
    [
        (0, (3,), ("a",), ("?", "a")),
        (1, (3,), ("a",), ("a", "?")),
        (-1, (3,), ("a",), ("a", "?")),
        (-2, (3,), ("a",), ("?", "a")),
        (None, (3,), ("a",), ("a",)),
        (0, (), (), ("?",)),
        (-1, (), P(), P("?")),
        (2, (3, 4), P("a"), P("a", None, "?")),
        (1, (3,), None, None),
    ],
    ids=str,
)
def test_metadata_of_new_variables_gets_the_axis(form, partition, axis, shape, inside, outside):
    made = apply(
        nnx.vmap,
        lambda: [param(shape, out_sharding=inside), param(shape)],
        form,
        partition,
        out_axes=axis,
        axis_size=2,
    )()
    if outside is not None:
        names = [partition if name == "?" else name for name in outside]
        outside = P(*names) if isinstance(outside, P) else tuple(names)
    assert made[0].out_sharding == outside
    assert outside is None or len(outside) == made[0].ndim
    assert made[1].get_metadata() == SHOWN | {"eager_sharding": False}


@in_every_form
def test_scan_keeps_metadata_in_step(form):
    stacked = nnx.Dict(w=param((3, 2), out_sharding=("n", "a")))
    carried, broadcast = param((2,), out_sharding=("c",)), param((2,), out_sharding=("b",))
    seen = []

    def step(carry, layer, broadcast):
        seen.append((carry.out_sharding, layer["w"].out_sharding, broadcast.out_sharding))
        layer["w"][...] *= 2
        carry[...] += layer["w"][...]
        return carry, param((2,), out_sharding=("y",))

    scanned = apply(nnx.scan, step, form, "n", (nnx.Carry, 0, None), (nnx.Carry, 1), length=3)
    same, made = scanned(carried, stacked, broadcast)
    assert same is carried
    assert set(seen) == {(("c",), ("a",), ("b",))}
    assert carried.out_sharding == ("c",)
    assert broadcast.out_sharding == ("b",)
    assert stacked["w"].out_sharding == ("n", "a")
    assert (made.shape, made.out_sharding) == ((2, 3), ("y", "n"))
    assert stacked["w"].sum() == 12


def test_pmap_keeps_metadata_in_step():
    v = param((8, 2), out_sharding=("n", "a"))
    made = apply(
        nnx.pmap, lambda v: param((2,), out_sharding=v.out_sharding), "keyword", "n", 0, 0
    )(v)
    assert made.out_sharding == ("n", "a") == v.out_sharding
    with pytest.raises(ValueError, match=r"nnx\.transform_metadata"):
        nnx.pmap(lambda v: v, transform_metadata={nnx.PARTITION_NAME: "n"}, graph=False)(v)


def test_jax_vmap_does_as_well():
    class Net(nnx.Module):
        def __init__(self, w):
            self.w = nnx.Param(w, out_sharding=("a",), eager_sharding=False)

    @jax.vmap
    @nnx.transform_metadata(partition="n", graph=False)
    def make(w):
        return Net(w)

    net = make(jnp.ones((4, 2)))
    assert net.w.out_sharding == ("n", "a")

    @jax.vmap
    @nnx.transform_metadata(partition="n", graph=False)
    def use(net):
        assert net.w.out_sharding == ("a",)
        return Net(net.w * 2)

    assert use(net).w.out_sharding == ("n", "a")
    back = jax.vmap(nnx.transform_metadata(lambda net: net, partition="n", graph=True))(net)
    assert back.w.out_sharding == ("n", "a")


@pytest.mark.parametrize("axis", [0, -1])
def test_hooks_run_once_the_metadata_is_changed(axis):
    log = []
    v = nnx.Param(
        jnp.ones((2, 2)),
        out_sharding=("n", "n"),
        eager_sharding=False,
        on_add_axis=lambda v, axis, name: log.append(("add", axis, name, v.out_sharding)),
        on_remove_axis=lambda v, axis, name: log.append(("remove", axis, name, v.out_sharding)),
    )
    apply(nnx.vmap, lambda v: None, "keyword", "n", axis)(v)
    place = axis % 2
    assert log == [("remove", place, "n", ("n",)), ("add", place, "n", ("n", "n"))]
    log.clear()
    apply(nnx.vmap, lambda v: None, "keyword", "n", (None,), axis_size=2)(v)
    assert log == []


def test_state_axes_and_new_attributes():
    model = nnx.Dict(w=param((2, 3), out_sharding=("a", "n")), b=nnx.BatchStat(jnp.ones(3)))
    axes = nnx.StateAxes({nnx.Param: 1, ...: None})

    def f(model):
        assert model["w"].out_sharding == ("a",)
        model["w"].set_metadata(out_sharding=("z",))
        model["new"] = param((2,), out_sharding=("c",))

    apply(nnx.vmap, f, "keyword", "n", (axes,))(model)
    assert model["w"].out_sharding == ("z", "n")
    assert (model["new"].shape, model["new"].out_sharding) == ((2, 3), ("c", "n"))


def test_nested_maps_name_both_axes():
    inner = apply(
        nnx.vmap, lambda: param((2,), out_sharding=("a",)), "keyword", "i", out_axes=1, axis_size=3
    )
    made = apply(nnx.vmap, inner, "keyword", "o", out_axes=0, axis_size=4)()
    assert (made.shape, made.out_sharding) == ((4, 2, 3), ("o", "a", "i"))


def test_immutable_and_hijax_variables():
    frozen = nnx.with_vars(param((2, 2), out_sharding=("n", "a")), mutable=False)
    box = param((2, 2), out_sharding=("n", "a"), hijax=True)

    def f(frozen, box):
        assert frozen.out_sharding == box.out_sharding == ("a",)
        box[...] *= 2

    apply(nnx.vmap, f, "keyword", "n")(frozen, box)
    assert frozen.out_sharding == box.out_sharding == ("n", "a")
    assert box.sum() == 8


def test_errors_name_the_variable_and_change_nothing():
    model = nnx.Dict(a=param((2,), out_sharding=("n",)), w=param((2, 2), out_sharding=("a", "b")))
    kept = nnx.transform_metadata(lambda model: None, partition="n")
    with pytest.raises(ValueError, match=r"model\['?w'?\]|model\.w") as error:
        kept(model)
    assert "'a'" in str(error.value)
    assert (model["a"].out_sharding, model["w"].out_sharding) == (("n",), ("a", "b"))
    with pytest.raises(ValueError, match="more than its"):
        nnx.vmap(kept)(nnx.Dict(w=param((2,), out_sharding=("n", "b"))))

    def fail(v):
        raise RuntimeError("n" in v.out_sharding)

    v = param((2,), out_sharding=("n",))
    with pytest.raises(RuntimeError, match="False"):
        nnx.transform_metadata(fail, partition="n")(v)
    assert v.out_sharding == ("n",)
    with pytest.raises(ValueError, match="a and b"):
        nnx.transform_metadata(lambda a, b: 0, partition="n", graph=False)(v, v)


@pytest.mark.parametrize("transform", [nnx.vmap, nnx.scan], ids=["vmap", "scan"])
@pytest.mark.parametrize("form", ["tree-mode", "graph-mode"])
def test_the_keyword_needs_graph_updates(transform, form):
    v = param((2,), out_sharding=("n",))
    options = {"in_axes": 0, "out_axes": 0, **MODES[form]}
    with pytest.raises(ValueError, match=r"nnx\.transform_metadata"):
        transform(lambda v: 0, transform_metadata={nnx.PARTITION_NAME: "n"}, **options)(v)
    transform(lambda v: 0, transform_metadata={}, **options)(v)


def test_it_is_traced_as_often_as_without():
    calls = []

    def f(v):
        calls.append(1)
        return v * 2

    mapped = nnx.jit(nnx.vmap(f, transform_metadata={nnx.PARTITION_NAME: "n"}))
    v = param((2,), out_sharding=("n",))
    mapped(v), mapped(v)
    assert len(calls) == 1
