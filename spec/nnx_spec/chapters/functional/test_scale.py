"""Scale: deep and wide objects, and what they cost."""

import functools
import sys

import jax
import jax.numpy as jnp
import pytest

from nnx_spec import MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.modes import both_modes

DEEP = 500
WIDE = 10_000

TOLERANCE = 1.1
"""How much more than twice the function calls an object of twice the size may cost.

Work in proportion to the size n takes `a + b * n` calls, at most twice as many for `2 * n`; work in
proportion to `n ** 2` takes up to four times as many. The counts carry no noise.
"""


def chain(nnx, depth, start=0):
    """Makes Modules inside each other, each with a Param that holds its level plus the start."""
    node = None
    for level in reversed(range(depth)):
        attributes = {"w": param(nnx, start + level), "level": level}
        node = net(nnx, **attributes) if node is None else net(nnx, **attributes, child=node)
    return node


def levels(node):
    """Lists the Modules of a chain from the top."""
    found = [node]
    while hasattr(found[-1], "child"):
        found.append(found[-1].child)
    return found


@functools.cache
def row(nnx, width, kind="List"):
    """Makes a Module of many Variables that share one array, in a List or as attributes."""
    value = jnp.float32(1.0)
    if kind == "List":
        return net(nnx, items=nnx.List([nnx.Param(value, place=i) for i in range(width)]))
    return net(nnx, **{f"w{i}": nnx.Param(value, place=i) for i in range(width)})


@clause("GRF-027", MUST, SOUND, source="an object of a usual size overflows, or loses a part")
@both_modes
@pytest.mark.parametrize("kind", ["List", "attributes"])
def test_wide(nnx, graph, kind):
    """Objects of 10,000 Variables split, merge and flatten."""
    node = row(nnx, WIDE, kind)
    graphdef, state = nnx.split(node, graph=graph)
    merged = nnx.merge(graphdef, state)
    assert sorted(variable.get_metadata("place") for variable in variables(merged, kind)) == list(
        range(WIDE)
    )
    flat = list(nnx.to_flat_state(state))
    assert len({path for path, _ in flat}) == WIDE
    for path, leaf in flat:
        assert path[-1] in (leaf.get_metadata("place"), f"w{leaf.get_metadata('place')}")
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(node)) == WIDE


@clause("GRF-039", SHOULD, OURS, source="deep objects are rare, and nobody should wait for them")
class TestScale:
    """Objects of 500 levels split, merge and flatten, and what that costs is linear in their size.

    This holds under Python's default recursion limit. The number of function calls that `split`,
    `merge`, `state`, `update`, `clone`, `find_duplicates` and JAX's flattening take grows in
    proportion to the size of the object: twice the levels or twice the Variables cost at most twice
    as much, within a tolerance of ten percent.
    """

    @both_modes
    def test_deep(self, nnx, graph):
        node = chain(nnx, DEEP)
        graphdef, state = nnx.split(node, graph=graph)
        merged = levels(nnx.merge(graphdef, state))
        assert [item.level for item in merged] == list(range(DEEP))
        assert [int(item.w[...]) for item in merged] == list(range(DEEP))
        assert not {id(item) for item in merged} & {id(item) for item in levels(node)}
        assert graphdef == nnx.split(chain(nnx, DEEP), graph=graph)[0]
        assert isinstance(hash(graphdef), int)

    @both_modes
    def test_deep_copies_and_updates(self, nnx, graph):
        node = chain(nnx, DEEP)
        copied = levels(nnx.clone(node, graph=graph))
        assert [int(item.w[...]) for item in copied] == list(range(DEEP))
        nnx.update(node, nnx.state(chain(nnx, DEEP, start=7), graph=graph))
        assert [int(item.w[...]) for item in levels(node)] == list(range(7, DEEP + 7))
        assert nnx.find_duplicates(node) == []

    @both_modes
    def test_deep_states(self, nnx, graph):
        node = chain(nnx, DEEP)
        state = nnx.state(node, graph=graph)
        flat = {len(path): int(leaf[...]) for path, leaf in nnx.to_flat_state(state)}
        assert flat == {level + 1: level for level in range(DEEP)}
        again = nnx.to_flat_state(nnx.from_flat_state(nnx.to_flat_state(state)))
        assert {len(path): int(leaf[...]) for path, leaf in again} == flat
        for tree in (node, state):
            leaves, treedef = jax.tree.flatten(tree)
            assert sorted(int(x) for x in leaves) == list(range(DEEP))
            assert jax.tree.structure(jax.tree.unflatten(treedef, leaves)) == treedef

    @both_modes
    @pytest.mark.parametrize("form", ["chain", "List", "attributes"])
    def test_cost(self, nnx, graph, form):
        single, double = {}, {}
        for counts, size in ((single, 100), (double, 200)):
            node = chain(nnx, size) if form == "chain" else row(nnx, size, form)
            for name, function in operations(nnx, node, graph).items():
                function()
                counts[name] = calls(function)
        excess = {
            name: double[name] / single[name]
            for name in single
            if double[name] > 2 * TOLERANCE * single[name]
        }
        assert excess == {}


def operations(nnx, node, graph):
    """Lists the operations whose cost is compared, on an object and its State."""
    graphdef, state = nnx.split(node, graph=graph)
    leaves, treedef = jax.tree.flatten(node)
    return {
        "split": lambda: nnx.split(node, graph=graph),
        "merge": lambda: nnx.merge(graphdef, state),
        "state": lambda: nnx.state(node, graph=graph),
        "update": lambda: nnx.update(node, state),
        "clone": lambda: nnx.clone(node, graph=graph),
        "find_duplicates": lambda: nnx.find_duplicates(node),
        "flatten the object": lambda: jax.tree.flatten(node),
        "flatten the State": lambda: jax.tree.flatten(state),
        "unflatten": lambda: jax.tree.unflatten(treedef, leaves),
    }


def variables(node, kind):
    """Lists the Variables of a row."""
    if kind == "List":
        return list(node.items)
    return [value for name, value in vars(node).items() if name.startswith("w")]


def calls(function):
    """Counts the functions that a function calls, those written in C included."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counted
