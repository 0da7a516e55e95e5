"""Metadata of many Variables at once."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.filter_plans import build_filter, matches
from nnx_spec.oracles import at, graph_items, snapshot, user_metadata
from nnx_spec.plans import VariablePlan, build, classes
from nnx_spec.strategies import filters, graphs

new_metadata = st.dictionaries(
    st.sampled_from(["tag", "note", "zone"]),
    st.sampled_from(["green", 2, None, ("a", 1)]),
    min_size=1,
)
"""Metadata to set: names that a drawn Variable may have already, and one that it never has."""


def expected(plan, selected, metadata):
    """Lists the metadata that each Variable of a plan has after those selected are given some."""
    return {
        path: {**dict(item.metadata), **(metadata if selected(path, item) else {})}
        for path, item in graph_items(plan)
        if isinstance(item, VariablePlan)
    }


def found(nnx, node, paths):
    """Lists the metadata of the Variables at the given paths."""
    return {path: user_metadata(at(nnx, node, path)) for path in paths}


@clause("GRF-030", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.set_metadata")
class TestSetMetadata:
    """`set_metadata(m, only=f, **meta)` sets the metadata of the Variables that `f` selects.

    It sets exactly the names given, in place: other names, other Variables, values, identities and
    sharing stay as they are. Without `only` it sets those of every Variable; it returns nothing.
    """

    @given(plan=graphs(sharing=True), only=filters(), metadata=new_metadata)
    def test_selected_variables(self, nnx, plan, only, metadata):
        node = build(nnx, plan)
        wanted = expected(plan, lambda path, item: matches(only, path, item), metadata)
        assert nnx.set_metadata(node, only=build_filter(nnx, only), **metadata) is None
        assert found(nnx, node, wanted) == wanted

    @given(plan=graphs(sharing=True, cycles=True), metadata=new_metadata)
    def test_every_variable(self, nnx, plan, metadata):
        node = build(nnx, plan)
        nnx.set_metadata(node, **metadata)
        wanted = expected(plan, lambda path, item: True, metadata)
        assert found(nnx, node, wanted) == wanted

    @given(plan=graphs(sharing=True), only=filters(), metadata=new_metadata)
    def test_nothing_else_changes(self, nnx, plan, only, metadata):
        node = build(nnx, plan)
        before = snapshot(nnx, node, identities=True)
        variables = [
            at(nnx, node, path) for path, x in graph_items(plan) if isinstance(x, VariablePlan)
        ]
        originals = [user_metadata(variable) for variable in variables]
        nnx.set_metadata(node, only=build_filter(nnx, only), **metadata)
        for variable, original in zip(variables, originals, strict=True):
            for name in metadata.keys() - original.keys():
                if name in variable.get_metadata():
                    variable.del_metadata(name)
            if original:
                variable.set_metadata(**original)
        assert snapshot(nnx, node, identities=True) == before

    @pytest.mark.parametrize(
        ("only", "selected"),
        [
            (lambda nnx: nnx.Param, {"w", "special"}),
            (lambda nnx: classes(nnx).SpecialParam, {"special"}),
            (lambda nnx: nnx.Variable, {"w", "special", "mean"}),
            (lambda nnx: nnx.Not(nnx.Param), {"mean"}),
            (lambda nnx: (nnx.BatchStat, "red"), {"mean", "w"}),
            (lambda nnx: lambda path, value: path == ("mean",), {"mean"}),
            (lambda nnx: ..., {"w", "special", "mean"}),
            (lambda nnx: None, set()),
        ],
        ids=["class", "subclass", "base", "Not", "tuple", "callable", "everything", "nothing"],
    )
    def test_filters_of_every_kind(self, nnx, only, selected):
        special = classes(nnx).SpecialParam(jnp.zeros(2))
        mean = nnx.BatchStat(jnp.zeros(2))
        node = net(nnx, w=param(nnx, tag="red"), special=special, mean=mean, x=jnp.zeros(2))
        nnx.set_metadata(node, only=only(nnx), zone=1)
        marked = {
            name
            for name in ("w", "special", "mean")
            if "zone" in user_metadata(at(nnx, node, (name,)))
        }
        assert marked == selected

    @pytest.mark.parametrize(
        "container",
        [
            lambda nnx, node: node,
            lambda nnx, node: (node, 3),
            lambda nnx, node: {"k": [node]},
            lambda nnx, node: nnx.List([node]),
        ],
        ids=["module", "tuple", "dict of list", "List"],
    )
    def test_containers(self, nnx, container):
        node = net(nnx, w=param(nnx, tag="red"), b=nnx.BatchStat(jnp.zeros(())), x=jnp.zeros(2))
        nnx.set_metadata(container(nnx, node), only=nnx.Param, tag="blue", zone=1)
        assert user_metadata(node.w) == {"tag": "blue", "zone": 1}
        assert user_metadata(node.b) == {}

    def test_mappings_stay_apart(self, nnx):
        node = net(nnx, a=param(nnx), b=param(nnx))
        nnx.set_metadata(node, zone=1)
        node.a.set_metadata(zone=2, more=3)
        assert user_metadata(node.b) == {"zone": 1}
