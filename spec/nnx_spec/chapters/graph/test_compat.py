"""`nnx.compat`: the functions and transforms as they are in graph mode with graph updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from nnx_spec import DOCUMENTED, MUST, clause, needs
from nnx_spec.chapters.functional.making import count, net, param, records
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.derivatives import zero_tangent_of
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.oracles import array_record, snapshot, state_items, value_record

GRAPH, UPDATES = {"graph": True}, {"graph": True, "graph_updates": True}


def model_of(nnx):
    """Makes a Module in which a Module and a Param stand at two places each."""
    block, tied = net(nnx, w=param(nnx, [1, 2])), param(nnx, [3, 4], tag="red")
    return net(nnx, first=block, second=block, tied=tied, again=tied, n=count(nnx, 0))


def random_model(nnx):
    """Makes a `model_of` in which random streams stand at two places."""
    model = model_of(nnx)
    model.rngs = model.first.rngs = nnx.Rngs(0)
    return model


def step(model):
    """Changes the values of a model's Variables; returns a scalar."""
    model.n[...] += 1
    model.first.w[...] *= 2
    model.again[...] = model.tied - model.second.w
    return jnp.sum(model.tied * model.first.w)


def change(model):
    """Changes a model's values and its structure; returns a scalar."""
    value = step(model)
    model.third, model.second = model.first, model.tied
    model.note = "changed"
    return value


def ruled(api, model, **options):
    """Calls a function with a derivative rule."""
    f = api.custom_vjp(change, **options)
    f.defvjp(lambda model: (f(model), None), lambda _, g: g[0])
    return f(model)


def merged(nnx, parts):
    """Describes the object that a GraphDef and a State stand for."""
    return snapshot(nnx, nnx.merge(*parts))


def carried(nnx, api, model, **options):
    """Scans two steps that carry a model."""
    axes = {"in_axes": (nnx.Carry, 0), "out_axes": (nnx.Carry, 0)}
    scanning = api.scan(lambda model, x: (model, x * step(model)), **axes, **options)
    return scanning(model, counted((2,)))[1]


def abstract(nnx, api, **options):
    """Describes what `get_abstract_model` gives for `model_of`."""
    graphdef, state = api.get_abstract_model(lambda: model_of(nnx), mesh_of(1), **options)
    leaves = [(path, leaf.get_value().shape) for path, leaf in state_items(state)]
    model = nnx.merge(graphdef, state)
    return leaves, model.first is model.second, model.tied is model.again


def whole(f, api, model, **options):
    """Calls a function that `shard_map` runs on one device."""
    spec = PartitionSpec()
    specs = {"mesh": mesh_of(1), "in_specs": (spec,), "out_specs": spec}
    return api.shard_map(f, **specs, **options)(model)


FUNCTIONS = {
    "split": lambda nnx, api, m, **o: merged(nnx, api.split(m, **o)),
    "state": lambda nnx, api, m, **o: records(nnx, api.state(m, nnx.Param, **o)),
    "clone": lambda nnx, api, m, **o: snapshot(nnx, api.clone(m, **o)),
    "graphdef": lambda nnx, api, m, **o: api.graphdef(m, **o),
    "flatten": lambda nnx, api, m, **o: api.flatten(m, **o)[0],
    "iter_graph": lambda nnx, api, m, **o: [path for path, _ in api.iter_graph(m, **o)],
    "iter_modules": lambda nnx, api, m, **o: [path for path, _ in api.iter_modules(m, **o)],
    "recursive_map": lambda nnx, api, m, **o: snapshot(
        nnx, api.recursive_map(lambda path, value: value, m, **o)
    ),
    "view": lambda nnx, api, m, **o: snapshot(nnx, api.view(m, raise_if_not_found=False, **o)),
    "reseed": lambda nnx, api, m, **o: api.reseed(m, default=7, **o),
    "get_abstract_model": lambda nnx, api, m, **o: abstract(nnx, api, **o),
}
"""Uses of functions that take `graph=` on an object with sharing, with what they show."""

TRANSFORMS = {
    "cached_partial": lambda nnx, api, m, **o: api.cached_partial(
        nnx.jit(step, **UPDATES), m, **o
    )(),
    "split_rngs": lambda nnx, api, m, **o: [api.split_rngs(m, splits=2, **o), None][1],
    "fork_rngs": lambda nnx, api, m, **o: [api.fork_rngs(m, split=2, **o), None][1],
    "jit": lambda nnx, api, m, **o: api.jit(change, **o)(m),
    "shard_map": lambda nnx, api, m, **o: whole(change, api, m, **o),
    "grad": lambda nnx, api, m, **o: records(nnx, api.grad(change, **o)(m)),
    "value_and_grad": lambda nnx, api, m, **o: api.value_and_grad(change, **o)(m)[0],
    "custom_vjp": lambda nnx, api, m, **o: ruled(api, m, **o),
    "vjp": lambda nnx, api, m, **o: api.vjp(change, m, **o)[0],
    "jvp": lambda nnx, api, m, **o: api.jvp(change, (m,), (zero_tangent_of(nnx, m),), **o)[0],
    "remat": lambda nnx, api, m, **o: api.remat(change, **o)(m),
    "vmap": lambda nnx, api, m, **o: api.vmap(
        change, in_axes=None, out_axes=None, axis_size=2, **o
    )(m),
    "scan": lambda nnx, api, m, **o: carried(nnx, api, m, **o),
    "pmap": lambda nnx, api, m, **o: api.pmap(
        lambda m, x: x * step(m), in_axes=(None, 0), devices=jax.devices()[:1], **o
    )(m, jnp.ones(1)),
    "while_loop": lambda nnx, api, m, **o: api.while_loop(
        lambda m: m.n[...] < 2, lambda m: [step(m), m][1], m, **o
    ).first.w[...],
    "fori_loop": lambda nnx, api, m, **o: api.fori_loop(
        0, 2, lambda _, m: [step(m), m][1], m, **o
    ).first.w[...],
    "eval_shape": lambda nnx, api, m, **o: api.eval_shape(change, m, **o).shape,
    "cond": lambda nnx, api, m, **o: api.cond(True, change, change, m, **o),
    "switch": lambda nnx, api, m, **o: api.switch(0, [change, change], m, **o),
    "checkify": lambda nnx, api, m, **o: api.checkify(change, **o)(m)[1],
}
"""Uses of transforms on an object with sharing, with what they return."""


def needed(name):
    """Lists the features that a use of a transform needs."""
    own = {"value_and_grad": "grad", "cached_partial": "jit"}.get(name, name)
    areas = ["graph-updates"]
    return areas if name.endswith("rngs") else [*areas, f"transforms.{own}"]


def plain(result):
    """Describes a result so that equal ones compare equal."""
    return array_record(result) if isinstance(result, jax.Array) else result


@clause("GRA-008", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#backward-compatibility")
class TestCompat:
    """`nnx.compat` has the functions and transforms as they are with `graph=True`, and with
    `graph_updates=True` where they take it, whatever the defaults.

    So they take objects with sharing, transforms let changes of structure reach the caller, and the
    gradient of a Module is a State. What is done besides is what the name alone does with these
    options.
    """

    def check(self, nnx, use, options, make):
        model, twin = make(nnx), make(nnx)
        expected = use(nnx, nnx, twin, **options)
        with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
            found = use(nnx, nnx.compat, model)
        assert plain(found) == plain(expected)
        assert snapshot(nnx, model) == snapshot(nnx, twin)

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_functions(self, nnx, name):
        self.check(nnx, FUNCTIONS[name], GRAPH, random_model)

    @pytest.mark.parametrize("name", [pytest.param(n, marks=needs(*needed(n))) for n in TRANSFORMS])
    def test_transforms(self, nnx, name):
        make = random_model if name.endswith("rngs") else model_of
        self.check(nnx, TRANSFORMS[name], UPDATES, make)

    @pytest.mark.parametrize("name", ["jit", "vmap", "grad", "remat", "cond"])
    def test_structure_changes(self, nnx, name):
        model, twin = model_of(nnx), model_of(nnx)
        with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
            TRANSFORMS[name](nnx, nnx.compat, model)
        change(twin)
        assert snapshot(nnx, model) == snapshot(nnx, twin)
        assert (model.note, model.third is model.first) == ("changed", True)

    @pytest.mark.parametrize("name", ["grad", "value_and_grad", "grad as a decorator"])
    def test_gradients_are_states(self, nnx, name):
        model = model_of(nnx)
        with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
            if name == "grad as a decorator":
                gradient = nnx.compat.grad(argnums=0)(step)(model)
            else:
                gradient = getattr(nnx.compat, name)(step)(model)
                gradient = gradient[1] if name == "value_and_grad" else gradient
        assert isinstance(gradient, nnx.State), f"the gradient is a {type(gradient).__name__}"
        found = {path: value_record(leaf.get_value()) for path, leaf in state_items(gradient)}
        first, again = np.float32([-2, -8]), np.float32([2, 4])
        assert found == {("again",): value_record(again), ("first", "w"): value_record(first)}

    def test_filters(self, nnx):
        model = model_of(nnx)
        axes = nnx.StateAxes({...: None})
        with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
            gradient = nnx.compat.grad(step, argnums=nnx.DiffState(0, "red"))(model)
            mapped = nnx.compat.vmap(lambda model, x: x * step(model), in_axes=(axes, 0))
            assert mapped(model, counted((2,))).shape == (2,)
        assert [path for path, _ in state_items(gradient)] == [("again",)]
        assert int(model.n[...]) == 2

    def test_backup_keys(self, nnx):
        model = random_model(nnx)
        key = model.rngs.default.key.get_value()
        with nnx.set_graph_mode(False):
            backups = nnx.compat.backup_keys(model)
            nnx.compat.reseed(model, default=7)
        nnx.restore_rngs(backups)
        assert array_record(model.first.rngs.default.key.get_value()) == array_record(key)
