"""Objects that are no JAX pytrees."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import at, leaf_record, state_items

KINDS = ("Pytree", "Module", "Object")


def thing_class(nnx, kind):
    """Makes a class that is no pytree."""
    if kind == "Object":
        return type("Thing", (nnx.Object,), {})
    return type(nnx.Module)("Thing", (getattr(nnx, kind),), {}, pytree=False)


def thing(nnx, kind="Object"):
    """Makes an object that is no pytree, with arrays in a list, and a shared Variable."""
    node = thing_class(nnx, kind)()
    node.arrays = [counted((2,)), {"k": counted((1,), 5)}]
    node.name = "name"
    node.weight = node.again = nnx.Param(counted((2,), 7))
    node.me = node
    return node


PATHS = [("arrays", 0), ("arrays", 1, "k"), ("weight",)]
SHARED = [("again",), ("arrays", 0), ("arrays", 1, "k")]


@clause("MOD-009", MUST, DOCUMENTED, source="guides/pytree#turning-off-pytree-registration")
class TestObjects:
    """A class with `pytree=False`, or derived from `Object`, is no JAX pytree and checks nothing.

    To `jax.tree` an instance is a leaf. Any attribute may hold any value, data in containers too.
    The functional API and transforms in graph mode take it as they take a Module.
    """

    @pytest.mark.parametrize("kind", KINDS)
    def test_leaf(self, nnx, kind):
        node = thing(nnx, kind)
        assert jax.tree_util.all_leaves([node])
        assert jax.tree.leaves([node, 1]) == [node, 1]
        assert isinstance(node, nnx.Pytree)
        assert nnx.is_data(node) is True

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_checks(self, nnx, kind):
        class Filled(thing_class(nnx, kind)):
            pass

        node = thing(nnx, kind)
        node.name = counted((1,))
        node.name = [param(nnx, 1.0)]
        node.number = nnx.data(3)
        node.text = nnx.static("text")
        assert (node.number, node.text) == (3, "text")
        assert float(node.name[0].get_value()) == 1

    def test_nothing_is_checked_after_init(self, nnx):
        class Filled(nnx.Object):
            def __init__(self):
                self.items = []
                self.items.append(counted((2,)))

        class Other(nnx.Pytree, pytree=False):
            def __init__(self):
                self.table = {"k": counted((2,))}

        for node in (Filled(), Other(), type("Derived", (Filled,), {})()):
            assert len(state_items(nnx.state(node))) == 1
            assert jax.tree_util.all_leaves([node])

    @pytest.mark.parametrize("kind", KINDS)
    def test_split_and_merge(self, nnx, kind):
        node = thing(nnx, kind)
        graphdef, state = nnx.split(node)
        assert [path for path, _ in state_items(state)] == SHARED
        for path, leaf in state_items(state):
            assert leaf_record(nnx, leaf) == leaf_record(nnx, at(nnx, node, path))
        for copy in (nnx.merge(graphdef, state), nnx.clone(node)):
            assert type(copy) is type(node)
            assert copy.me is copy
            assert copy.weight is copy.again
            assert type(copy.arrays) is list
            assert copy.arrays[1]["k"].tolist() == [5]
            assert copy.name == "name"

    @pytest.mark.parametrize("kind", KINDS)
    def test_update(self, nnx, kind):
        node = thing(nnx, kind)
        weight = node.weight
        nnx.update(node, jax.tree.map(lambda x: x * 2, nnx.state(node)))
        assert [leaf.tolist() for leaf in node.arrays[:1]] == [[2, 4]]
        assert (node.arrays[1]["k"].tolist(), node.name) == ([10], "name")
        assert node.again is node.weight is weight
        assert weight.get_value().tolist() == [14, 16]

    def test_in_a_module(self, nnx):
        model = net(nnx, inner=thing(nnx), w=param(nnx, 1.0))
        found = [path for path, _ in state_items(nnx.state(model, nnx.Param))]
        assert found == [("inner", "again"), ("w",)]
        assert jax.tree_util.tree_structure(model).num_leaves == 2
        assert nnx.merge(*nnx.split(model)).inner.arrays[0].tolist() == [1, 2]

    def test_vmap(self, nnx):
        node = thing_class(nnx, "Object")()
        node.arrays = [counted((2, 3))]
        node.weight = node.again = nnx.Param(counted((2,)))
        node.name = "name"

        @nnx.vmap(in_axes=(0, 0))
        def step(node, x):
            node.weight[...] += x
            node.arrays = [array * 2 for array in node.arrays]
            node.made = nnx.Param(x)
            return node.again.get_value()

        result = step(node, np.float32([10, 20]))
        assert result.tolist() == [11, 22]
        assert node.weight is node.again
        assert node.weight.get_value().tolist() == [11, 22]
        assert node.arrays[0].tolist() == [[2, 4, 6], [8, 10, 12]]
        assert (node.name, node.made.get_value().tolist()) == ("name", [10, 20])

    def test_vmap_over_a_part(self, nnx):
        node = thing_class(nnx, "Object")()
        node.weight = node.again = nnx.Param(counted((2,)))
        node.scale = nnx.BatchStat(counted((), 3))
        axes = nnx.StateAxes({nnx.Param: 0, ...: None})

        @nnx.vmap(in_axes=(axes,))
        def step(node):
            node.again[...] *= node.scale.get_value()
            return node.weight.get_value()

        assert step(node).tolist() == [3, 6]
        assert node.weight.get_value().tolist() == [3, 6]
        assert node.weight is node.again
        assert float(node.scale.get_value()) == 3
