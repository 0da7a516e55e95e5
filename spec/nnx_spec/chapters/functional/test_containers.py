"""Containers: what holds several objects, what holds none, and the keys of both."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

from nnx_spec import DOCUMENTED, MAY, MUST, OURS, SOUND, clause
from nnx_spec.chapters.functional.making import count, net, param, records
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.oracles import array_record, is_node, snapshot, state_items
from nnx_spec.plans import classes

PACKS = {
    "tuple": lambda model, optimizer, metrics: (model, optimizer, metrics),
    "list": lambda model, optimizer, metrics: [model, optimizer, metrics],
    "dict": lambda model, optimizer, metrics: {
        "model": model,
        "optimizer": optimizer,
        "metrics": metrics,
    },
    "nested": lambda model, optimizer, metrics: {"a": [model, (optimizer,)], "b": {"c": metrics}},
}
"""Containers of a model, an optimizer and metrics."""

UNPACK = {
    "tuple": lambda pack: pack,
    "list": lambda pack: pack,
    "dict": lambda pack: (pack["model"], pack["optimizer"], pack["metrics"]),
    "nested": lambda pack: (pack["a"][0], pack["a"][1][0], pack["b"]["c"]),
}
"""What `PACKS` packed."""


@functools.cache
def momentum():
    """Returns the one transformation that all optimizers here have, since it equals only itself."""
    return optax.sgd(0.5, momentum=0.5)


def training_state(nnx):
    """Makes a model, an optimizer with momentum, and metrics."""
    model = net(nnx, w=param(nnx, [1.0, 2.0]), n=count(nnx))
    optimizer = nnx.Optimizer(model, momentum(), wrt=nnx.Param)
    return model, optimizer, net(nnx, total=nnx.Variable(jnp.zeros(())), steps=count(nnx))


def train(nnx, pack, unpack):
    """Trains one step on the loss `sum(w ** 2)` and returns the loss."""
    model, optimizer, metrics = unpack(pack)
    model.n[...] += 1
    grads = jax.tree.map(lambda w: 2 * w, nnx.state(model, nnx.Param))
    loss = (model.w**2).sum()
    optimizer.update(model, grads)
    metrics.total[...] += loss
    metrics.steps[...] += 1
    return loss


@clause("GRF-019", MUST, DOCUMENTED, source="guides/performance#functional-training-loop")
class TestTrainingState:
    """A tuple, list or dict of Modules, however nested, splits, merges and updates as one object.

    The containers keep their types, and in graph mode an object that stands in several of them
    stays one. The entries need not be of one kind: a model, its optimizer and its metrics go
    together.
    """

    @both_modes
    @pytest.mark.parametrize("pack", PACKS)
    def test_split_and_merge(self, nnx, graph, pack):
        original = PACKS[pack](*training_state(nnx))
        graphdef, state = nnx.split(original, graph=graph)
        merged = nnx.merge(graphdef, state)
        assert snapshot(nnx, merged) == snapshot(nnx, PACKS[pack](*training_state(nnx)))
        for new, old in zip(UNPACK[pack](merged), UNPACK[pack](original), strict=True):
            assert type(new) is type(old)
            assert new is not old

    @both_modes
    @pytest.mark.parametrize("pack", PACKS)
    def test_groups(self, nnx, graph, pack):
        original = PACKS[pack](*training_state(nnx))
        graphdef, params, rest = nnx.split(original, nnx.Param, ..., graph=graph)
        assert [leaf.shape for _, leaf in state_items(params)] == [(2,)]
        assert len(state_items(rest)) == len(state_items(nnx.state(original, graph=graph))) - 1
        assert snapshot(nnx, nnx.merge(graphdef, rest, params)) == snapshot(nnx, original)

    @both_modes
    @pytest.mark.parametrize("pack", PACKS)
    def test_update(self, nnx, graph, pack):
        target, source = PACKS[pack](*training_state(nnx)), PACKS[pack](*training_state(nnx))
        train(nnx, source, UNPACK[pack])
        members = UNPACK[pack](target)
        weights = members[0].w
        nnx.update(target, nnx.state(source, graph=graph))
        assert snapshot(nnx, target) == snapshot(nnx, source)
        after = UNPACK[pack](target)
        assert all(new is old for new, old in zip(after, members, strict=True))
        assert after[0].w is weights
        assert array_record(weights[...]) == array_record(jnp.asarray([0.0, 0.0]))

    @both_modes
    @pytest.mark.parametrize("pack", ["tuple", "dict"])
    def test_training_loop_under_jit(self, nnx, graph, pack):
        original, twin = PACKS[pack](*training_state(nnx)), PACKS[pack](*training_state(nnx))
        graphdef, state = nnx.split(original, graph=graph)

        @jax.jit
        def train_step(graphdef, state):
            merged = nnx.merge(graphdef, state)
            loss = train(nnx, merged, UNPACK[pack])
            return loss, nnx.state(merged, graph=graph)

        for _ in range(2):
            loss, state = train_step(graphdef, state)
            assert array_record(loss) == array_record(train(nnx, twin, UNPACK[pack]))
        nnx.update(original, state)
        assert snapshot(nnx, original) == snapshot(nnx, twin)

    def test_sharing_between_members(self, nnx):
        weights, block = param(nnx, 1.0), net(nnx, b=param(nnx, 2.0))
        original = (net(nnx, w=weights), {"k": [block, net(nnx, w=weights)]}, block)
        graphdef, state = nnx.split(original, graph=True)
        assert len(state_items(state)) == 2
        merged = nnx.merge(graphdef, state)
        assert snapshot(nnx, merged) == snapshot(nnx, original)
        assert merged[2] is merged[1]["k"][0]
        assert merged[0].w is merged[1]["k"][1].w


KEPT = {
    "None": lambda nnx: net(nnx, a=None, w=param(nnx)),
    "None as data": lambda nnx: net(nnx, a=nnx.data(None), w=param(nnx)),
    "empty List": lambda nnx: net(nnx, a=nnx.List([]), w=param(nnx)),
    "empty Dict": lambda nnx: net(nnx, a=nnx.Dict({}), w=param(nnx)),
    "empty Module": lambda nnx: net(nnx, a=net(nnx), w=param(nnx)),
    "empty Pytree": lambda nnx: net(nnx, a=classes(nnx).Tree(), w=param(nnx)),
    "empty Module at the root": net,
    "Module of static values": lambda nnx: net(nnx, n=3, name="x", inner=net(nnx, pair=(1, "y"))),
    "List of empty things": lambda nnx: nnx.List([nnx.List([]), nnx.Dict({}), net(nnx)]),
    "empty containers as data": lambda nnx: net(
        nnx, a=nnx.data([]), b=nnx.data({}), c=nnx.data(()), w=param(nnx)
    ),
    "empty containers as static": lambda nnx: net(nnx, c=(), s="", n=0, w=param(nnx)),
    "plain containers": lambda nnx: ([], {}, (), None, net(nnx), {"k": [None, ()]}),
    "empty tuple": lambda nnx: (),
    "empty dict": lambda nnx: {},
    "array without elements": lambda nnx: net(nnx, a=jnp.zeros((0, 2)), w=param(nnx, [])),
}
"""Objects with parts that hold nothing."""


@clause("GRF-024", MUST, SOUND, source="a part of the object is lost silently")
@both_modes
@pytest.mark.parametrize("case", KEPT)
class TestNothing:
    """`None`, empty containers and Modules without Variables are kept by `split` and `merge`.

    They take no part in the State, and `merge` and `clone` give them back as what they were: the
    same classes, with the same static values.
    """

    def test_split_and_merge(self, nnx, graph, case):
        original = KEPT[case](nnx)
        graphdef, state = nnx.split(original, graph=graph)
        merged = nnx.merge(graphdef, state)
        assert snapshot(nnx, merged) == snapshot(nnx, KEPT[case](nnx))
        if is_node(nnx, original):
            assert merged is not original

    def test_state_holds_values_only(self, nnx, graph, case):
        original = KEPT[case](nnx)
        arrays = jax.tree.leaves(original)
        items = state_items(nnx.state(original, graph=graph))
        assert len(items) == sum(hasattr(leaf, "dtype") for leaf in arrays)

    def test_clone(self, nnx, graph, case):
        copied = nnx.clone(KEPT[case](nnx), graph=graph)
        assert snapshot(nnx, copied) == snapshot(nnx, KEPT[case](nnx))


MIXED = ("b", 10, "a", 9, 1, "1", 2)
"""Keys of both kinds, out of order, and among them a number as an integer and as a string."""

STATE_OPERATIONS = {
    "flat": lambda nnx, state: nnx.from_flat_state(nnx.to_flat_state(state)),
    "split_state": lambda nnx, state: nnx.merge_state(*nnx.split_state(state, nnx.Param, ...)),
    "filter_state": lambda nnx, state: nnx.filter_state(state, nnx.Param),
    "map_state": lambda nnx, state: nnx.map_state(lambda path, leaf: leaf, state),
    "merge_state": lambda nnx, state: nnx.merge_state(nnx.State({}), state),
    "union": lambda nnx, state: nnx.State({}) | state,
    "difference": lambda nnx, state: state - nnx.State({"z": param(nnx)}),
    "tree.map": lambda nnx, state: jax.tree.map(lambda x: x, state),
    "as_pure": lambda nnx, state: jax.tree.map(nnx.Param, nnx.as_pure(state)),
    "to_pure_dict": lambda nnx, state: nnx.State(jax.tree.map(nnx.Param, nested_pure(nnx, state))),
}
"""Operations that give back an equal State, of a State that holds Params without metadata."""


def nested_pure(nnx, state):
    """Gives the pure dict as nested States, since JAX itself sorts the keys of a plain dict."""
    return nnx.State(nnx.to_pure_dict(state))


def mixed_items(nnx, keys):
    """Makes the items of a State with the keys, once at its root and once below."""
    inner = {key: param(nnx, place) for place, key in enumerate(MIXED)}
    outer = {key: param(nnx, -place) for place, key in enumerate(MIXED)}
    return {**{key: outer[key] for key in keys}, "in": {key: inner[key] for key in keys}}


@clause("GRF-025", MUST, DOCUMENTED, source="nnx_basics#state-and-graphdef")
class TestKeys:
    """Integers and strings both are keys, and integers are in order of their size.

    A List has integer keys, attributes and Dicts have strings. 10 comes after 9.
    """

    @both_modes
    def test_lists_are_in_order(self, nnx, graph):
        node = net(nnx, layers=nnx.List([param(nnx, i) for i in range(12)]))
        graphdef, state = nnx.split(node, graph=graph)
        assert [path for path, _ in nnx.to_flat_state(state)] == [("layers", i) for i in range(12)]
        assert [float(x) for x in jax.tree.leaves(state)] == list(range(12))
        assert [float(x) for x in jax.tree.leaves(node)] == list(range(12))
        assert [float(x[...]) for x in nnx.merge(graphdef, state).layers] == list(range(12))
        assert [float(state["layers"][i][...]) for i in (9, 10, 11)] == [9, 10, 11]
        found = [path for path, _ in nnx.iter_graph(node, graph=graph)]
        layers = [("layers", i) for i in range(12)]
        assert [path for path in found if path in layers] == layers

    @both_modes
    def test_plain_dicts_with_integer_keys(self, nnx, graph):
        node = {key: net(nnx, w=param(nnx, key)) for key in (10, 9, 100, 1)}
        graphdef, state = nnx.split(node, graph=graph)
        assert [path for path, _ in nnx.to_flat_state(state)] == [(k, "w") for k in (1, 9, 10, 100)]
        assert snapshot(nnx, nnx.merge(graphdef, state)) == snapshot(nnx, node)


@clause("GRF-038", MAY, OURS, source="JAX refuses dicts of mixed keys, and a State could do more")
class TestMixedKeys:
    """In a State, and in a plain dict in graph mode, integers and strings may stand together.

    `1` and `"1"` are different keys, and the order of the leaves depends on the keys alone.
    """

    def test_plain_dicts_with_mixed_keys(self, nnx):
        node = {key: net(nnx, w=param(nnx, place)) for place, key in enumerate(MIXED)}
        graphdef, state = nnx.split(node, graph=True)
        assert {path[0]: float(leaf[...]) for path, leaf in state_items(state)} == {
            key: place for place, key in enumerate(MIXED)
        }
        assert snapshot(nnx, nnx.merge(graphdef, state)) == snapshot(nnx, node)

    def test_mixed_keys_are_read(self, nnx):
        state = nnx.State(mixed_items(nnx, MIXED))
        assert set(state) == {*MIXED, "in"}
        assert set(state["in"]) == set(MIXED)
        for place, key in enumerate(MIXED):
            assert float(state["in"][key][...]) == place
        assert 3 not in state
        del state["in"][1]
        assert set(state["in"]) == set(MIXED) - {1}

    @pytest.mark.parametrize("operation", STATE_OPERATIONS)
    def test_mixed_keys_are_kept(self, nnx, operation):
        state = nnx.State(mixed_items(nnx, MIXED))
        after = STATE_OPERATIONS[operation](nnx, state)
        assert records(nnx, after) == records(nnx, nnx.State(mixed_items(nnx, MIXED)))

    def test_order_of_mixed_keys(self, nnx):
        one, other = (nnx.State(mixed_items(nnx, keys)) for keys in (MIXED, MIXED[::-1]))
        assert jax.tree.structure(one) == jax.tree.structure(other)
        leaves = [float(x) for x in jax.tree.leaves(one)]
        assert leaves == [float(x) for x in jax.tree.leaves(other)]
        paths = [path for path, _ in nnx.to_flat_state(one)]
        assert paths == [path for path, _ in nnx.to_flat_state(other)]
        for depth in (1, 2):
            keys = [path[-1] for path in paths if len(path) == depth]
            assert [key for key in keys if isinstance(key, int)] == [1, 2, 9, 10]
            assert [key for key in keys if isinstance(key, str)] == ["1", "a", "b"]
