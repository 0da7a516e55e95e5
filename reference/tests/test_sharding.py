"""Partitioned Variables: where their values are placed, and what the annotations say."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import nnx_reference as nnx

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_flag = pytest.mark.parametrize("flags", [{}, {"hijax": True}, {"ref": True}], ids=str)


def mesh_of(*types):
    types = types or (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=types)


def spec_of(variable):
    """Returns the spec of a value, without trailing axes that are not partitioned."""
    entries = list(variable.get_value().sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)


@every_flag
@every_kind
@pytest.mark.parametrize("said", [("a", "b"), (None, "a"), (("a", "b"), None), ("b",)], ids=str)
def test_a_new_variable_is_placed(kind, flags, said):
    value = jnp.arange(16.0).reshape(4, 4)
    expected = tuple(said) if said[-1] is not None else said[:-1]
    with jax.set_mesh(mesh_of(KINDS[kind], KINDS[kind])):
        for form in (tuple(said), PartitionSpec(*said)):
            v = nnx.Param(value, out_sharding=form, **flags)
            assert spec_of(v) == expected
            assert np.array_equal(v[...], value)


@every_kind
def test_it_is_placed_in_a_traced_function(kind):
    mesh = mesh_of(KINDS[kind], KINDS[kind])

    @jax.jit
    def make():
        return nnx.Param(jnp.ones((4, 4)), out_sharding=("a", "b"))

    with jax.set_mesh(mesh):
        v = make()
    assert v.get_value().sharding.shard_shape((4, 4)) == (2, 2)


@every_kind
def test_the_mesh_is_given(kind):
    mesh = mesh_of(KINDS[kind], KINDS[kind])
    sharding = NamedSharding(mesh, PartitionSpec("a"))
    for metadata in ({"out_sharding": ("a",), "mesh": mesh}, {"out_sharding": sharding}):
        v = nnx.Param(jnp.ones((4, 4)), **metadata)
        assert v.get_value().sharding.is_equivalent_to(sharding, 2)


def test_a_layout_is_given():
    sharding = NamedSharding(mesh_of(), PartitionSpec("a"))
    v = nnx.Param(jnp.ones((4, 4)), out_sharding=Format(Layout(major_to_minor=(1, 0)), sharding))
    assert v.get_value().sharding == sharding


def test_meshes_that_do_not_do():
    value = jnp.ones((4, 4))
    with pytest.raises(ValueError, match=r"out_sharding=.*'a'.* there is none: make it under"):
        nnx.Param(value, out_sharding=("a",))
    with pytest.raises(ValueError, match="all of type Auto, or all of type Explicit"):
        nnx.Param(value, out_sharding=("a",), mesh=mesh_of(AxisType.Auto, AxisType.Explicit))
    other = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
    with pytest.raises(ValueError, match="give it one of them"):
        nnx.Param(value, out_sharding=NamedSharding(other, PartitionSpec("a")), mesh=mesh_of())


def test_it_is_not_placed_if_it_shall_not_be():
    value = jnp.ones((4, 4))
    with nnx.use_eager_sharding(False):
        first = nnx.Param(value, out_sharding=("a",))
        second = nnx.Param(value, out_sharding=("a",), eager_sharding=False)
    third = nnx.Param(value, out_sharding=("a",), eager_sharding=False)
    assert all(v.get_value() is value for v in (first, second, third))
    assert [v.eager_sharding for v in (first, second, third)] == [False] * 3
    assert first.get_metadata("eager_sharding") is False
    with jax.set_mesh(mesh_of()):
        assert nnx.Param(first).get_value() is value
        assert nnx.Param(value, out_sharding=()).get_value() is value


def test_what_is_no_array_is_left_alone():
    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    assert nnx.Param(shape, out_sharding=("a",)).get_value() is shape
    assert nnx.Param(2.0, out_sharding=()).get_value() == 2.0


def test_logical_names_are_translated():
    rules = (("rows", "a"), ("all", ("a", "b")), ("none", None))
    with jax.set_mesh(mesh_of()):
        with nnx.logical_axis_rules(rules):
            made = [
                spec_of(nnx.Param(jnp.ones((4, 4)), out_sharding=said))
                for said in (("rows", "b"), ("all",), ("none", "rows"), (("rows", "b"),))
            ]
            with nnx.logical_axis_rules((("rows", "b"),)):
                made.append(spec_of(nnx.Param(jnp.ones(4), out_sharding=("rows",))))
            own = nnx.Param(jnp.ones(4), out_sharding=("x",), sharding_rules=(("x", "b"),))
            with pytest.raises(ValueError, match=r"'rows' stands for 'a' .* and for 'b'"):
                nnx.Param(jnp.ones(4), out_sharding=("rows",), sharding_rules=(("rows", "b"),))
        with pytest.raises(ValueError, match="rows"):
            nnx.Param(jnp.ones(4), out_sharding=("rows",))
    assert made == [("a", "b"), (("a", "b"),), (None, "a"), (("a", "b"),), ("b",)]
    assert spec_of(own) == ("b",)
    assert own.out_sharding == ("x",)


def model_of(**metadata):
    return nnx.Linear(4, 4, rngs=nnx.Rngs(0), kernel_metadata=metadata)


def test_an_initializer_brings_the_annotation():
    initializer = nnx.with_partitioning(nnx.initializers.ones, ("a", None), note=1)
    with jax.set_mesh(mesh_of()):
        model = nnx.Linear(4, 4, kernel_init=initializer, rngs=nnx.Rngs(0))
    assert spec_of(model.kernel) == ("a",)
    assert (model.kernel.out_sharding, model.kernel.note) == (("a", None), 1)
    given = nnx.with_partitioning(nnx.initializers.ones, ("a", None), mesh_of())
    assert spec_of(nnx.Param(given(jax.random.key(0), (4, 4)))) == ("a",)


def test_annotations_as_specs_and_as_shardings():
    mesh = mesh_of()
    model = model_of(out_sharding=("a", None), eager_sharding=False)
    tree = {"model": nnx.state(model), "array": jnp.ones(2), "text": "x"}
    specs = nnx.get_partition_spec(tree)
    assert specs["model"]["kernel"].get_value() == PartitionSpec("a", None)
    assert specs["model"]["kernel"].out_sharding == ("a", None)
    assert specs["model"]["bias"].get_value() == specs["array"] == PartitionSpec()
    assert specs["text"] is None
    placed = nnx.get_named_sharding(tree, mesh)
    assert placed["model"]["kernel"].get_value() == NamedSharding(mesh, PartitionSpec("a", None))
    assert placed["array"] == NamedSharding(mesh, PartitionSpec())
    state = jax.tree.map(jax.device_put, nnx.state(model), placed["model"])
    assert spec_of(state["kernel"]) == ("a",)


@every_kind
def test_abstract_values_get_a_sharding(kind):
    mesh = mesh_of(KINDS[kind], KINDS[kind])
    with jax.set_mesh(mesh):
        model = nnx.eval_shape(lambda: model_of(out_sharding=("a", "b")))
        made = nnx.as_abstract(model)
    assert made.kernel.get_value().sharding.spec == PartitionSpec("a", "b")
    assert made.kernel.get_value().sharding.mesh.axis_names == ("a", "b")
    assert made.kernel is not model.kernel
    own = nnx.as_abstract(nnx.eval_shape(lambda: model_of(out_sharding=("a",), mesh=mesh)))
    assert own.kernel.get_value().sharding.spec[0] == "a"
    bare = nnx.as_abstract(nnx.eval_shape(model_of))
    assert bare.kernel.get_value().sharding is None


def test_an_abstract_model_is_made_on_its_mesh():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    _, state = nnx.get_abstract_model(lambda: model_of(out_sharding=("a", "b")), mesh)
    found = {path: leaf.get_value().sharding for path, leaf in nnx.to_flat_state(state)}
    assert found == {
        ("bias",): NamedSharding(mesh, PartitionSpec()),
        ("kernel",): NamedSharding(mesh, PartitionSpec("a", "b")),
    }


def test_an_optimizer_is_sharded_like_the_model():
    with jax.set_mesh(mesh_of()):
        model = model_of(out_sharding=("a", "b"))
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    for moments in (optimizer.opt_state[0].mu, optimizer.opt_state[0].nu):
        assert spec_of(moments["kernel"]) == ("a", "b")
