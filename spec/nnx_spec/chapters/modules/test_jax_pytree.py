"""Modules as pytrees: what `jax.tree` sees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import GetAttrKey, SequenceKey

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.edits import edits, reordered, revalued
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import (
    array_record,
    is_node,
    leaves,
    nodes,
    snapshot,
    value_record,
    variables,
    walk,
)
from nnx_spec.plans import ArrayPlan, VariablePlan, build, build_value, classes, is_array
from nnx_spec.strategies import trees


def expected_leaves(plan):
    """Lists a plan's arrays with the paths of what holds them, in canonical order."""
    found = []
    for path, item in leaves(plan):
        if isinstance(item, (ArrayPlan, VariablePlan)):
            value = item if isinstance(item, ArrayPlan) else item.value
            found += [(path, array_record(x)) for x in jax.tree.leaves(build_value(value))]
    return found


def plain(key):
    """Returns the name or index that an entry of a key path holds."""
    match key:
        case GetAttrKey(name=name):
            return name
        case SequenceKey(idx=index):
            return index
        case _:
            return key.key


def pair(x):
    """Stacks an array on itself; NumPy does it without compiling anything."""
    return np.stack([x, x])


REFUSALS = (ValueError, AttributeError)
"""What JAX raises for different structures; the second where 0.10 fails to describe them."""


@clause("MOD-002", MUST, DOCUMENTED, source="guides/pytree#nnx-pytree")
class TestPytree:
    """A Module is a JAX pytree: flattening and unflattening give back an equal, new object.

    Its leaves are the arrays in its data, those of nested Modules, Pytrees, Lists, Dicts and
    Variables included. They are ordered by attribute name, by index in a List, by key in a Dict,
    whatever the order of assignment, and their key paths start with these names and indexes.
    `jax.tree.map` gives an object of the same class with the mapped leaves. Structure is everything
    else. Leaves may be anything at all.
    """

    @given(plan=trees())
    def test_round_trip(self, nnx, plan):
        node = build(nnx, plan)
        found, treedef = jax.tree.flatten(node)
        again = jax.tree.unflatten(treedef, found)
        assert snapshot(nnx, again) == snapshot(nnx, node) == snapshot(nnx, build(nnx, plan))
        old = {id(x) for x in (*nodes(nnx, node), *variables(nnx, node))}
        assert not old & {id(x) for x in (*nodes(nnx, again), *variables(nnx, again))}

    @given(plan=trees())
    def test_leaves_with_key_paths(self, nnx, plan):
        expected = expected_leaves(plan)
        for way in (plan, reordered(plan)):
            found, _ = jax.tree_util.tree_flatten_with_path(build(nnx, way))
            assert [array_record(leaf) for _, leaf in found] == [record for _, record in expected]
            for (keys, _), (path, _) in zip(found, expected, strict=True):
                assert tuple(map(plain, keys))[: len(path)] == path

    def test_spelling_of_key_paths(self, nnx):
        model = net(nnx, w=counted((2,)), layers=nnx.List([net(nnx, b=counted((1,)))]))
        found, _ = jax.tree_util.tree_flatten_with_path(model)
        assert [jax.tree_util.keystr(path) for path, _ in found] == [".layers[0].b", ".w"]

    def test_eleven_elements(self, nnx):
        items = nnx.List([counted((1,), n) for n in range(12)])
        assert [int(leaf[0]) for leaf in jax.tree.leaves(net(nnx, items=items))] == [*range(12)]

    @given(plan=trees())
    def test_map(self, nnx, plan):
        node = build(nnx, plan)
        mapped = jax.tree.map(pair, node)
        pairs = zip(walk(nnx, node), walk(nnx, mapped), strict=True)
        for (path, old), (mapped_path, new) in pairs:
            assert path == mapped_path
            assert type(old) is type(new) or is_array(old)
            if is_array(old):
                assert array_record(new) == array_record(pair(old))
            elif isinstance(old, nnx.Variable):
                doubled = jax.tree.map(pair, old.get_value())
                assert value_record(new.get_value()) == value_record(doubled)
            elif not is_node(nnx, old) and not isinstance(old, (list, tuple)):
                assert new == old
        assert snapshot(nnx, node) == snapshot(nnx, build(nnx, plan))

    @given(plan=trees())
    def test_structure_depends_on_no_value(self, nnx, plan):
        structures = [
            jax.tree.structure(build(nnx, way)) for way in (plan, revalued(plan), reordered(plan))
        ]
        assert structures[0] == structures[1] == structures[2]
        assert len({hash(structure) for structure in structures}) == 1

    @given(plan=trees())
    def test_any_leaves(self, nnx, plan):
        found, treedef = jax.tree.flatten(build(nnx, plan))
        for others in ([object() for _ in found], [None] * len(found), found[::-1]):
            filled = jax.tree.unflatten(treedef, others)
            flat = jax.tree.leaves(filled, is_leaf=lambda x: x is None)
            assert [id(leaf) for leaf in flat] == [id(leaf) for leaf in others]

    def test_pytrees_and_attributes_of_a_rebuilt_object(self, nnx):
        model = net(nnx, child=classes(nnx).Tree(), name="n", w=param(nnx, 1.0))
        rebuilt = jax.tree.map(lambda x: x + 1, model)
        rebuilt.name = "other"
        rebuilt.extra = counted((1,))
        assert (model.name, hasattr(model, "extra")) == ("n", False)
        assert [leaf.tolist() for leaf in jax.tree.leaves(rebuilt)] == [[1], 2]


DIFFERENCES = {
    "static value": lambda nnx: net(nnx, w=param(nnx, 1.0), n=2),
    "name": lambda nnx: net(nnx, v=param(nnx, 1.0), n=1),
    "kind of Variable": lambda nnx: net(nnx, w=nnx.BatchStat(counted(())), n=1),
    "metadata": lambda nnx: net(nnx, w=param(nnx, 1.0, tag="red"), n=1),
    "static for data": lambda nnx: net(nnx, w=param(nnx, 1.0), n=nnx.data(1)),
}
"""Modules that differ in one thing from one with a Param `w` and a static `n`."""


@clause("MOD-022", MUST, CONVENTION, source="jax.tree.map")
class TestMapOverSeveral:
    """`jax.tree.map` combines Modules of equal structure, and raises if their structures differ.

    The result has the structure of the first. Classes, attribute names, static values, which
    attributes are data, and the classes and metadata of Variables belong to the structure.
    """

    @given(plan=trees(), by=st.integers(1, 9))
    def test_equal_structures(self, nnx, plan, by):
        one, other = build(nnx, plan), build(nnx, revalued(plan, by))
        combined = jax.tree.map(lambda a, b: (a, b), one, other)
        swapped = jax.tree.map(lambda a, b: b, one, other)
        assert snapshot(nnx, swapped) == snapshot(nnx, other)
        found = jax.tree.leaves(combined)
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        assert [id(x) for x in found] == [id(x) for both in pairs for x in both]
        assert type(combined) is type(one)

    def test_sum(self, nnx):
        one = net(nnx, w=param(nnx, [1, 2], tag="t"), a=counted((2,)), n=1)
        other = net(nnx, w=param(nnx, [10, 20], tag="t"), a=counted((2,), 5), n=1)
        added = jax.tree.map(jnp.add, one, other)
        assert (added.w.get_value().tolist(), added.a.tolist(), added.n) == ([11, 22], [6, 8], 1)
        assert (type(added.w), added.w.tag) == (nnx.Param, "t")

    @pytest.mark.parametrize("difference", DIFFERENCES)
    def test_different_structures(self, nnx, difference):
        one = net(nnx, w=param(nnx, 1.0), n=1)
        with pytest.raises(REFUSALS):
            jax.tree.map(lambda a, b: a, one, DIFFERENCES[difference](nnx))

    @given(plan=trees(), choice=st.integers(0, 999))
    def test_any_difference(self, nnx, plan, choice):
        for kind, versions in edits(plan, choice, sharing=False).items():
            one, other = (build(nnx, version) for version in versions)
            assert jax.tree.structure(one) != jax.tree.structure(other), kind
            with pytest.raises(REFUSALS):
                jax.tree.map(lambda a, b: a, one, other)
