"""Independence: what a copy and its original have in common, and what they have not."""

import copy

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param, records
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.oracles import array_record, children, is_node, snapshot, state_items
from nnx_spec.plans import build
from nnx_spec.strategies import graphs

COPIES = {
    "clone in tree mode": lambda nnx, node: nnx.clone(node, graph=False),
    "clone in graph mode": lambda nnx, node: nnx.clone(node, graph=True),
    "clone with arrays": lambda nnx, node: nnx.clone(node, arrays=True),
    "merge with copy in tree mode": lambda nnx, node: nnx.merge(
        *nnx.split(node, graph=False), copy=True
    ),
    "merge with copy in graph mode": lambda nnx, node: nnx.merge(
        *nnx.split(node, graph=True), copy=True
    ),
    "deepcopy": lambda nnx, node: copy.deepcopy(node),
    "flatten and unflatten": lambda nnx, node: jax.tree.unflatten(*jax.tree.flatten(node)[::-1]),
}
"""Ways to make an object of an object, Variables included."""

OWN_BUFFERS = {
    "clone in tree mode": lambda nnx, node: nnx.clone(node, arrays=True, graph=False),
    "clone in graph mode": lambda nnx, node: nnx.clone(node, arrays=True, graph=True),
    "deepcopy": lambda nnx, node: copy.deepcopy(node),
}
"""Those that copy the arrays, too."""

VARIABLE_COPIES = {
    "copy": lambda variable: variable.copy(),
    "replace": lambda variable: variable.replace(variable.get_value()),
    "deepcopy": copy.deepcopy,
    "tree.map": lambda variable: jax.tree.map(lambda x: x, variable),
}
"""Ways to make a Variable of a Variable."""


def model(nnx):
    """Makes a model with every kind of record: metadata, values, containers, static values."""
    table = nnx.Param({"k": jnp.arange(2.0), "deep": {"l": jnp.zeros(1)}}, tag="red")
    layers = nnx.List([param(nnx, [1.0, 2.0], tag="red"), net(nnx, n=count(nnx, 1))])
    named = nnx.Dict({"first": param(nnx, 3.0)})
    plain = nnx.data({"items": [jnp.ones(2)], "more": {}})
    return net(nnx, table=table, layers=layers, named=named, plain=plain, x=jnp.ones(2), size=3)


CHANGES = {
    "value": lambda nnx, node: node.layers[0].set_value(jnp.zeros(2)),
    "part of a value": lambda nnx, node: node.layers[0].__setitem__(0, 9.0),
    "item of a value": lambda nnx, node: node.table.__setitem__("k", jnp.zeros(2)),
    "new item of a value": lambda nnx, node: node.table.__setitem__("new", jnp.zeros(2)),
    "metadata": lambda nnx, node: node.table.set_metadata(tag="blue"),
    "new metadata": lambda nnx, node: node.named["first"].set_metadata(zone=1),
    "removed metadata": lambda nnx, node: node.table.del_metadata("tag"),
    "attribute": lambda nnx, node: setattr(node, "size", 4),
    "array attribute": lambda nnx, node: setattr(node, "x", jnp.zeros(2)),
    "new attribute": lambda nnx, node: setattr(node, "zone", param(nnx)),
    "new attribute below": lambda nnx, node: setattr(node.layers[1], "zone", param(nnx)),
    "removed attribute": lambda nnx, node: delattr(node, "table"),
    "list": lambda nnx, node: node.layers.append(param(nnx)),
    "dict": lambda nnx, node: node.named.__setitem__("second", param(nnx)),
    "plain list": lambda nnx, node: node.plain["items"].append(jnp.zeros(1)),
    "plain dict": lambda nnx, node: node.plain["more"].__setitem__("zone", jnp.zeros(1)),
    "pop": lambda nnx, node: nnx.pop(node.layers[1], nnx.Variable),
    "update": lambda nnx, node: nnx.update(node, {"named": {"first": jnp.zeros(())}}),
    "set_metadata": lambda nnx, node: nnx.set_metadata(node, zone=1),
}
"""Ways to change a model."""


@clause("GRF-032", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.clone")
class TestIndependence:
    """A copy and its original share no mutable record: a change to either is not seen in the other.

    Copies are what `clone`, `merge` with `copy=True`, `deepcopy` and JAX's tree functions make of
    an object, and `copy` and `replace` of a Variable. Records are values, metadata, attributes,
    containers, States and graphdefs. Arrays may be shared, for they do not change; those of
    `clone(m, arrays=True)` and of a deep copy are not, so that one side's can be donated while the
    other side stays in use. `clone(m, variables=False)` shares the Variables and nothing else.
    """

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("way", COPIES)
    def test_changes_stay_on_their_side(self, nnx, way, change):
        untouched = snapshot(nnx, model(nnx))
        for changed_side in (0, 1):
            original = model(nnx)
            sides = (original, COPIES[way](nnx, original))
            CHANGES[change](nnx, sides[changed_side])
            assert snapshot(nnx, sides[changed_side]) != untouched
            assert snapshot(nnx, sides[1 - changed_side]) == untouched

    @pytest.mark.parametrize("way", COPIES)
    @given(plan=graphs())
    def test_no_object_in_common(self, nnx, way, plan):
        node = build(nnx, plan)
        copied = COPIES[way](nnx, node)
        assert snapshot(nnx, copied) == snapshot(nnx, node)
        assert common(nnx, node, copied) == []

    @pytest.mark.parametrize("way", VARIABLE_COPIES)
    def test_variables(self, nnx, way):
        def make():
            return nnx.Param({"k": jnp.arange(2.0), "deep": {"l": jnp.zeros(1)}}, tag="red")

        for change in ("item of a value", "new item of a value", "metadata", "removed metadata"):
            for changed_side in (0, 1):
                original = make()
                sides = (original, VARIABLE_COPIES[way](original))
                CHANGES[change](nnx, net(nnx, table=sides[changed_side]))
                assert snapshot(nnx, sides[changed_side]) != snapshot(nnx, make())
                assert snapshot(nnx, sides[1 - changed_side]) == snapshot(nnx, make())

    @both_modes
    def test_states_and_graphdefs(self, nnx, graph):
        node = model(nnx)
        graphdef, state = nnx.split(node, graph=graph)
        before, again = records(nnx, state), nnx.split(model(nnx), graph=graph)[0]
        node.size, node.layers[1].zone = 4, param(nnx)
        node.layers.append(param(nnx))
        nnx.pop(node.layers[1], nnx.Variable)
        assert graphdef == again
        assert hash(graphdef) == hash(again)
        assert records(nnx, state) == before
        merged = nnx.merge(graphdef, state, copy=True)
        assert snapshot(nnx, merged) == snapshot(nnx, model(nnx))
        nnx.set_metadata(merged, zone=1)
        merged.size = 5
        assert graphdef == again
        assert records(nnx, state) == before
        del state["layers"][1]
        assert snapshot(nnx, nnx.merge(*nnx.split(model(nnx)))) == snapshot(nnx, model(nnx))
        assert [path for path, _ in state_items(nnx.state(merged))] == list(before)

    @both_modes
    def test_graphdef_outlives_metadata(self, nnx, graph):
        node = net(nnx, w=param(nnx, tag="red"))
        graphdef = nnx.split(node, graph=graph)[0]
        again = nnx.split(net(nnx, w=param(nnx, tag="red")), graph=graph)[0]
        node.w.set_metadata(tag="blue", zone=1)
        assert graphdef == again
        assert hash(graphdef) == hash(again)
        assert nnx.graphdef(node, graph=graph) != graphdef

    @both_modes
    def test_variables_shared_on_demand(self, nnx, graph):
        node = model(nnx)
        copied = nnx.clone(node, variables=False, graph=graph)
        assert copied.layers[0] is node.layers[0]
        assert copied.table is node.table
        copied.layers[0].set_value(jnp.zeros(2))
        assert array_record(node.layers[0][...]) == array_record(jnp.zeros(2))
        node.layers[0].set_value(jnp.asarray([1.0, 2.0]))
        copied.size, copied.x, copied.zone = 4, jnp.zeros(2), param(nnx)
        copied.layers.append(param(nnx))
        copied.named["second"] = param(nnx)
        copied.plain["more"]["zone"] = jnp.zeros(1)
        assert snapshot(nnx, node) == snapshot(nnx, model(nnx))

    @pytest.mark.parametrize("donated_side", [0, 1], ids=["original", "copy"])
    @pytest.mark.parametrize("way", OWN_BUFFERS)
    def test_donation(self, nnx, way, donated_side):
        original = model(nnx)
        sides = (original, OWN_BUFFERS[way](nnx, original))
        add_one = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
        add_one(sides[donated_side])
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(sides[donated_side]))
        assert snapshot(nnx, sides[1 - donated_side]) == snapshot(nnx, model(nnx))

    @pytest.mark.parametrize("way", OWN_BUFFERS)
    def test_donation_of_both(self, nnx, way):
        original = model(nnx)
        both = (original, OWN_BUFFERS[way](nnx, original))
        add_one = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
        first, second = add_one(both)
        assert snapshot(nnx, first) == snapshot(nnx, second)


def common(nnx, original, copied):
    """Lists where in a copy there are nodes, Variables and containers of the original."""
    own = mutable_ids(nnx, original)
    return [path for identity, path in mutable_ids(nnx, copied).items() if identity in own]


def mutable_ids(nnx, root):
    """Finds an object's nodes, Variables and containers, inside values, too; gives their paths."""
    found, pending = {}, [((), root)]
    while pending:
        path, value = pending.pop()
        if id(value) in found:
            continue
        if isinstance(value, nnx.Variable):
            found[id(value)] = path
            pending.append(((*path, "value"), value.get_raw_value()))
        elif is_node(nnx, value) or isinstance(value, (list, dict)):
            found[id(value)] = path
            pending.extend(((*path, key), child) for key, child in children(nnx, value))
    return found
