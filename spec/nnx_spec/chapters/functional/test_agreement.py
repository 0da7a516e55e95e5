"""Agreement: different views of one object say the same about it."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.edits import revalued
from nnx_spec.chapters.functional.making import net, param, records
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.oracles import (
    array_record,
    at,
    children,
    graph_items,
    is_node,
    snapshot,
    sort_key,
    state_items,
    state_paths,
)
from nnx_spec.plans import ArrayPlan, build, classes, is_array
from nnx_spec.strategies import graphs, trees


def duplicates(nnx, root):
    """Finds the nodes and Variables that stand at several places, without the target's functions.

    What is shared is entered where it is met first, in the order of the keys.
    """
    paths, pending = {}, [((), root)]
    while pending:
        path, value = pending.pop()
        if not (is_node(nnx, value) or isinstance(value, nnx.Variable)):
            continue
        paths.setdefault(id(value), []).append(path)
        if len(paths[id(value)]) == 1 and not isinstance(value, nnx.Variable):
            inner = [((*path, key), child) for key, child in children(nnx, value)]
            pending.extend(reversed(inner))
    return sorted(found for found in paths.values() if len(found) > 1)


SHARED = {
    "Variable": lambda nnx: [param(nnx)] * 2,
    "Module": lambda nnx: [net(nnx, w=param(nnx))] * 2,
    "Module without Variables": lambda nnx: [net(nnx, n=1)] * 2,
    "empty List": lambda nnx: [nnx.List([])] * 2,
    "Pytree of arrays": lambda nnx: [pytree_of_arrays(nnx)] * 2,
}
"""Two references to one thing."""


def pytree_of_arrays(nnx):
    """Makes a Pytree that holds an array and no Variable."""
    tree = classes(nnx).Tree()
    tree.x = jnp.zeros(2)
    return tree


@clause("GRF-029", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.find_duplicates")
class TestDuplicates:
    """`find_duplicates` lists what graph mode keeps shared, and is empty where it keeps nothing so.

    It gives a list for each node and each Variable that stands at more than one place, with all its
    paths; it enters what is shared once. A reference back to an ancestor is sharing, too.
    """

    @given(plan=trees())
    def test_trees_have_none(self, nnx, plan):
        node = build(nnx, plan)
        assert nnx.find_duplicates(node) == []

    @given(plan=graphs(sharing=True, cycles=True))
    def test_lists_what_is_shared(self, nnx, plan):
        node = build(nnx, plan)
        found = [sorted(paths) for paths in nnx.find_duplicates(node)]
        assert sorted(found) == [sorted(paths) for paths in duplicates(nnx, node)]
        merged = nnx.merge(*nnx.split(node, graph=True))
        again = [sorted(paths) for paths in nnx.find_duplicates(merged)]
        assert sorted(again) == sorted(found)
        for first, *others in found:
            assert all(at(nnx, merged, path) is at(nnx, merged, first) for path in others)

    @pytest.mark.parametrize("kind", SHARED)
    def test_kinds_of_sharing(self, nnx, kind):
        first, second = SHARED[kind](nnx)
        node = net(nnx, a=first, inner=net(nnx, b=second))
        assert [sorted(paths) for paths in nnx.find_duplicates(node)] == [[("a",), ("inner", "b")]]

    def test_cycles(self, nnx):
        node = net(nnx, inner=net(nnx, w=param(nnx)))
        node.inner.parent = node
        assert [sorted(paths) for paths in nnx.find_duplicates(node)] == [[(), ("inner", "parent")]]


def key_of(entry):
    """Returns the key that an entry of one of JAX's key paths stands for."""
    for name in ("name", "idx", "key"):
        if hasattr(entry, name):
            return getattr(entry, name)
    raise TypeError(f"not an entry of a key path: {entry!r}")


def tree_data(nnx, node):
    """Lists where JAX finds Variables and arrays, abstract or not, in an object."""
    found = jax.tree.leaves_with_path(node, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return [
        tuple(map(key_of, path))
        for path, leaf in found
        if isinstance(leaf, nnx.Variable) or hasattr(leaf, "dtype")
    ]


def state_data(nnx, states):
    """Lists where some States together hold Variables and arrays, abstract or not."""
    return sorted(
        (
            path
            for state in states
            for path, leaf in state_items(state)
            if isinstance(leaf, nnx.Variable) or hasattr(leaf, "dtype")
        ),
        key=lambda path: list(map(sort_key, path)),
    )


def views(nnx, node, graph):
    """Lists the paths of the data that each view finds in an object."""
    return {
        "jax.tree": tree_data(nnx, node),
        "state": state_data(nnx, [nnx.state(node, graph=graph)]),
        "split": state_data(nnx, nnx.split(node, graph=graph)[1:]),
        "split in groups": state_data(nnx, nnx.split(node, nnx.Param, ..., graph=graph)[1:]),
    }


def check_views(nnx, node, graph, expected):
    """Checks that all views find the data at the expected paths."""
    found = views(nnx, node, graph)
    assert found == dict.fromkeys(found, expected)


def abstract_twin(nnx, plan, graph):
    """Makes the abstract twin of what a plan describes, and checks the views of what is traced."""

    def make():
        node = build(nnx, plan)
        check_views(nnx, node, graph, state_paths(plan))
        return node

    return jax.eval_shape(make)


def with_annotations(nnx):
    """Makes a Module whose attributes are data and static by annotation, inference and change."""
    node = net(
        nnx,
        array=jnp.zeros(2),
        number=7,
        optional=nnx.data(None),
        pair=nnx.data([jnp.zeros(1), param(nnx)]),
        table=nnx.data({"k": [jnp.zeros(3)]}),
        text="x",
        was_data=jnp.zeros(2),
        was_text="x",
    )
    node.optional = jnp.ones(2)
    node.was_text = nnx.data(jnp.ones(2))
    node.was_data = nnx.static("now static")
    return node


ANNOTATED = [
    ("array",),
    ("optional",),
    ("pair", 0),
    ("pair", 1),
    ("table", "k", 0),
    ("was_text",),
]
"""Where `with_annotations` holds data."""


@clause("GRF-031", MUST, DOCUMENTED, source="guides/pytree#nnx-pytree")
class TestViews:
    """`is_data`, JAX's tree functions, `split` and `state` agree on what in an object is data.

    They find the same arrays and Variables at the same paths: in an object, in its abstract twin
    from `jax.eval_shape`, in one made and looked at inside `jax.jit`, after an `update`, and after
    an attribute has changed between data and static. An object and its abstract twin have equal
    graphdefs.
    """

    @both_modes
    @given(plan=trees())
    def test_concrete(self, nnx, graph, plan):
        node = build(nnx, plan)
        check_views(nnx, node, graph, state_paths(plan))
        in_order = [leaf for _, leaf in state_items(nnx.state(node, graph=graph))]
        arrays = jax.tree.leaves(in_order)
        assert [id(x) for x in jax.tree.leaves(node)] == [id(x) for x in arrays]

    @given(plan=trees())
    def test_is_data(self, nnx, plan):
        pending = [build(nnx, plan)]
        while pending:
            for _, child in children(nnx, pending.pop()):
                is_object = is_node(nnx, child)
                assert nnx.is_data(child) is (
                    is_object or is_array(child) or isinstance(child, nnx.Variable)
                )
                if is_object:
                    pending.append(child)

    @both_modes
    @given(plan=trees())
    def test_after_an_update(self, nnx, graph, plan):
        node, source = build(nnx, plan), build(nnx, revalued(plan))
        nnx.update(node, nnx.state(source, graph=graph))
        check_views(nnx, node, graph, state_paths(plan))
        assert snapshot(nnx, node) == snapshot(nnx, source)

    @both_modes
    @given(plan=trees())
    def test_abstract(self, nnx, graph, plan):
        twin = abstract_twin(nnx, plan, graph)
        check_views(nnx, twin, graph, state_paths(plan))
        items = dict(graph_items(plan))
        for path, leaf in state_items(nnx.state(twin, graph=graph)):
            assert isinstance(leaf, nnx.Variable) is not isinstance(items[path], ArrayPlan)
            assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(leaf))
        node = build(nnx, plan)
        assert nnx.graphdef(twin, graph=graph) == nnx.graphdef(node, graph=graph)

    @both_modes
    @given(plan=trees())
    def test_abstract_after_an_update(self, nnx, graph, plan):
        twin, node = abstract_twin(nnx, plan, graph), build(nnx, plan)
        nnx.update(twin, nnx.state(node, graph=graph))
        check_views(nnx, twin, graph, state_paths(plan))
        assert snapshot(nnx, twin) == snapshot(nnx, node)

    @both_modes
    def test_abstract_of_variables(self, nnx, graph):
        def make():
            inner = net(nnx, b=param(nnx, [1.0], tag="red"), n=3)
            return net(nnx, layers=nnx.List([inner, param(nnx)]))

        twin, expected = jax.eval_shape(make), [("layers", 0, "b"), ("layers", 1)]
        check_views(nnx, twin, graph, expected)
        nnx.update(twin, nnx.state(make(), graph=graph))
        check_views(nnx, twin, graph, expected)
        assert snapshot(nnx, twin) == snapshot(nnx, make())

    @both_modes
    def test_made_inside_jit(self, nnx, graph):
        def make():
            return net(nnx, w=param(nnx, [1.0]), x=jnp.arange(2.0), n=3)

        node = jax.jit(make)()
        check_views(nnx, node, graph, [("w",), ("x",)])
        assert snapshot(nnx, node) == snapshot(nnx, make())

    @both_modes
    def test_traced(self, nnx, graph):
        def look(x):
            assert nnx.is_data(x)
            node = net(nnx, w=nnx.Param(x), x=x)
            check_views(nnx, node, graph, [("w",), ("x",)])
            return nnx.split(node, graph=graph)[1]

        state = jax.jit(look)(jnp.arange(2.0))
        assert records(nnx, state)["x",] == array_record(jnp.arange(2.0))

    @both_modes
    def test_annotations(self, nnx, graph):
        check_views(nnx, with_annotations(nnx), graph, ANNOTATED)
        graphdef, state = nnx.split(with_annotations(nnx), graph=graph)
        merged = nnx.merge(graphdef, state)
        check_views(nnx, merged, graph, ANNOTATED)
        nnx.update(merged, state)
        check_views(nnx, merged, graph, ANNOTATED)
        assert merged.was_data == "now static"

    @both_modes
    def test_attributes_that_go_and_come_back(self, nnx, graph):
        node = net(nnx, a=jnp.zeros(2), b="x", c=param(nnx))
        nnx.pop(node, nnx.Param)
        del node.a, node.b
        check_views(nnx, node, graph, [])
        node.a, node.b, node.c = "x", jnp.zeros(2), 3
        check_views(nnx, node, graph, [("b",)])
        assert nnx.graphdef(node, graph=graph) == nnx.graphdef(
            net(nnx, a="x", b=jnp.zeros(2), c=3), graph=graph
        )
