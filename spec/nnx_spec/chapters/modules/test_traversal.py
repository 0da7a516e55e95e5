"""Traversal: visiting all of a model, and rebuilding it on the way."""

import jax
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.edits import revalued
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.chapters.modules.models import layers
from nnx_spec.oracles import at, children, is_node, nodes, snapshot, variables, walk
from nnx_spec.plans import ArrayPlan, build, classes, is_array
from nnx_spec.strategies import graphs, trees


def visits(iterator):
    """Lists (path, value) pairs but for what stands at private names."""
    return [
        (path, value)
        for path, value in iterator
        if not any(str(key).startswith("_") for key in path)
    ]


def has_identity(nnx, value):
    """Tells whether a value is a node or a Variable."""
    return isinstance(value, nnx.Variable) or is_node(nnx, value)


def is_static(nnx, value):
    """Tells whether a value is neither a node nor a Variable nor an array."""
    return not has_identity(nnx, value) and not is_array(value)


def identities(values):
    """Lists the identities of objects, sorted."""
    return sorted(map(id, values))


@clause("MOD-016", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.iter_graph")
class TestIteration:
    """`iter_graph` visits every node, Variable and array once, with a path that leads to it.

    Children come before their parents, the root with the path () last. In graph mode static values
    are visited as well, and cycles end where they come back. `iter_modules` visits the Modules
    among all these, and `iter_children` the nodes and Variables right below a node, under their
    keys.
    """

    @given(plan=graphs(sharing=True, cycles=True))
    def test_graphs(self, nnx, plan):
        root = build(nnx, plan)
        self.check(nnx, root, visits(nnx.iter_graph(root, graph=True)), statics=True)

    @given(plan=trees())
    def test_trees(self, nnx, plan):
        root = build(nnx, plan)
        found = visits(nnx.iter_graph(root, graph=False))
        dynamic = [visit for visit in found if not is_static(nnx, visit[1])]
        self.check(nnx, root, dynamic, statics=False)

    def check(self, nnx, root, found, statics):
        places = [path for path, _ in found]
        assert all(at(nnx, root, path) is value for path, value in found)
        assert len(set(places)) == len(places)
        assert all(places.index(path) < places.index(path[:-1]) for path in places if path)
        assert places[-1] == ()
        objects = [*nodes(nnx, root), *variables(nnx, root)]
        assert identities(v for _, v in found if has_identity(nnx, v)) == identities(objects)
        self.check_values(nnx, dict(found), statics)

    def check_values(self, nnx, found, statics):
        """Checks that arrays, and static values too if told so, are found in every node."""
        expected = {
            (*path, key)
            for path, node in found.items()
            if is_node(nnx, node)
            for key, child in children(nnx, node)
            if is_array(child) or (statics and is_static(nnx, child))
        }
        values = {path for path, value in found.items() if not has_identity(nnx, value)}
        assert {path for path in values if is_node(nnx, found[path[:-1]])} == expected

    @given(plan=trees())
    def test_modules_of_trees(self, nnx, plan):
        self.check_modules(nnx, build(nnx, plan), graph=False)

    @given(plan=graphs(sharing=True, cycles=True))
    def test_modules_of_graphs(self, nnx, plan):
        self.check_modules(nnx, build(nnx, plan), graph=True)

    def check_modules(self, nnx, root, graph):
        found = list(nnx.iter_modules(root, graph=graph))
        places = [path for path, _ in found]
        assert all(at(nnx, root, path) is module for path, module in found)
        modules = [node for node in nodes(nnx, root) if isinstance(node, nnx.Module)]
        assert identities(module for _, module in found) == identities(modules)
        assert places[-1] == ()
        for number, path in enumerate(places):
            above = [place for place in places if place == path[: len(place)] and place != path]
            assert all(places.index(place) > number for place in above)

    @given(plan=trees())
    def test_children_of_trees(self, nnx, plan):
        self.check_children(nnx, build(nnx, plan), graph=False)

    @given(plan=graphs(sharing=True, cycles=True))
    def test_children_of_graphs(self, nnx, plan):
        self.check_children(nnx, build(nnx, plan), graph=True)

    def check_children(self, nnx, root, graph):
        for node in nodes(nnx, root):
            found = list(nnx.iter_children(node, graph=graph))
            below = dict(children(nnx, node))
            assert all(below[key] is child for key, child in found)
            wanted = {id(child) for child in below.values() if has_identity(nnx, child)}
            assert {id(child) for _, child in found} == wanted
            assert len({key for key, _ in found}) == len(found)

    @both_modes
    def test_order(self, nnx, graph):
        linear, dropout = layers(nnx).Linear, layers(nnx).Dropout
        model = net(nnx, linear=linear(2, 2), drop=dropout(), w=param(nnx, 1.0), n=1)
        model.inner = net(nnx, b=linear(1, 1), a=linear(1, 1))
        model.blocks = nnx.List([dropout() for _ in range(11)])
        expected = [("blocks", n) for n in range(11)]
        expected += [("blocks",), ("drop",), ("inner", "a"), ("inner", "b"), ("inner",)]
        found = [path for path, _ in nnx.iter_modules(model, graph=graph)]
        assert found == [*expected, ("linear",), ()]
        names = [name for name, _ in nnx.iter_children(model, graph=graph)]
        assert names == ["blocks", "drop", "inner", "linear", "w"]

    def test_containers(self, nnx):
        module = net(nnx, w=param(nnx, 1.0), n=5)
        found = visits(nnx.iter_graph([module, module], graph=True))
        assert [path for path, _ in found] == [(0, "n"), (0, "w"), (0,), ()]
        assert [value for _, value in found[:3]] == [5, module.w, module]
        assert visits(nnx.iter_graph(module.w)) == [((), module.w)]

    def test_replacing_on_the_way(self, nnx):
        model = net(nnx, a=layers(nnx).Linear(1, 1), b=net(nnx, c=layers(nnx).Linear(1, 1)))
        for path, module in nnx.iter_modules(model):
            if path:
                module.visited = path
        assert (model.a.visited, model.b.c.visited) == (("a",), ("b", "c"))


def array_plans(plan, path=()):
    """Lists the plans of arrays outside of Variables, with their paths."""
    if isinstance(plan, ArrayPlan):
        return [(path, plan)]
    below = getattr(plan, "children", ())
    return [item for key, child in below for item in array_plans(child, (*path, key))]


class Recorder:
    """A function for `recursive_map` that notes its calls, and replaces what it is told to."""

    def __init__(self, replace):
        self.replace = replace
        self.calls = []
        self.results = []

    def __call__(self, path, value):
        result = value if any(str(key).startswith("_") for key in path) else self.replace(value)
        self.calls.append((path, value))
        self.results.append(result)
        return result


@clause("MOD-017", MUST, DOCUMENTED, source="guides/view#using-recursive-map")
class TestRecursiveMap:
    """`recursive_map` rebuilds a model bottom-up with what `f(path, value)` gives for each part.

    `f` is called once for every node, Variable and array, for children first, and a node that it
    gets holds the results for its children. Where it gives back what it got, the new model has new
    nodes of the same classes, with the same Variables and arrays as the original. The original is
    unchanged.
    """

    @given(plan=trees())
    def test_nothing_replaced_in_trees(self, nnx, plan):
        self.check_nothing_replaced(nnx, plan, graph=False)

    @given(plan=graphs(sharing=True))
    def test_nothing_replaced_in_graphs(self, nnx, plan):
        self.check_nothing_replaced(nnx, plan, graph=True)

    def check_nothing_replaced(self, nnx, plan, graph):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        record = Recorder(lambda value: value)
        copy = nnx.recursive_map(record, original, graph=graph)
        assert snapshot(nnx, original, identities=True) == before
        assert snapshot(nnx, copy) == snapshot(nnx, build(nnx, plan))
        assert [*map(id, variables(nnx, copy))] == [*map(id, variables(nnx, original))]
        assert not {*map(id, nodes(nnx, copy))} & {*map(id, nodes(nnx, original))}
        self.check_calls(nnx, original, copy, visits(record.calls))

    def check_calls(self, nnx, original, copy, calls):
        places = [path for path, _ in calls]
        assert places[-1] == ()
        assert all(places.index(path) < places.index(path[:-1]) for path in places if path)
        assert all(at(nnx, copy, path) is value for path, value in calls if path)
        objects = [value for _, value in calls if has_identity(nnx, value)]
        assert identities(objects) == identities([*nodes(nnx, copy), *variables(nnx, copy)])

    @both_modes
    @given(plan=trees())
    def test_other_arrays(self, nnx, graph, plan):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        changed = revalued(plan)
        others = {path: build(nnx, item) for path, item in array_plans(changed)}
        copy = nnx.recursive_map(lambda path, x: others.get(path, x), original, graph=graph)
        assert snapshot(nnx, original, identities=True) == before
        for path, value in walk(nnx, original):
            if is_array(value):
                assert at(nnx, copy, path) is others[path]
            elif isinstance(value, nnx.Variable):
                assert at(nnx, copy, path) is value

    @both_modes
    @given(plan=trees())
    def test_other_variables(self, nnx, graph, plan):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        made = []

        def replace(value):
            if not isinstance(value, nnx.Variable):
                return value
            made.append(nnx.OptState(value.get_value(), tag="new"))
            return made[-1]

        copy = nnx.recursive_map(Recorder(replace), original, graph=graph)
        assert identities(variables(nnx, copy)) == identities(made)
        assert snapshot(nnx, original, identities=True) == before

    @both_modes
    def test_new_values(self, nnx, graph):
        original = net(nnx, w=param(nnx, [1, 2]), inner=net(nnx, b=param(nnx, 3.0)))

        def double(path, value):
            is_variable = isinstance(value, nnx.Variable)
            return value.replace(value.get_value() * 2) if is_variable else value

        copy = nnx.recursive_map(double, original, graph=graph)
        assert copy.w.get_value().tolist() == [2, 4]
        assert float(copy.inner.b.get_value()) == 6
        assert [leaf.tolist() for leaf in jax.tree.leaves(original)] == [3, [1, 2]]

    @both_modes
    def test_wrapped_modules(self, nnx, graph):
        class Wrapper(nnx.Module):
            def __init__(self, inner, path):
                self.inner = inner
                self.path = path

        def wrap(path, value):
            return Wrapper(value, path) if isinstance(value, layers(nnx).Linear) else value

        original = net(nnx, a=layers(nnx).Linear(1, 1), b=nnx.List([layers(nnx).Linear(1, 1)]))
        copy = nnx.recursive_map(wrap, original, graph=graph)
        assert type(copy.a) is type(copy.b[0]) is Wrapper
        assert (copy.a.path, copy.b[0].path) == (("a",), ("b", 0))
        assert type(copy.a.inner) is layers(nnx).Linear
        assert copy.a.inner.kernel is original.a.kernel
        assert copy.b[0].inner.bias is original.b[0].bias
        assert type(original.a) is type(original.b[0]) is layers(nnx).Linear

    @both_modes
    def test_nodes_get_the_results_for_their_children(self, nnx, graph):
        def count(path, value):
            if isinstance(value, classes(nnx).Net):
                value.total = 1 + sum(
                    x.total for _, x in children(nnx, value) if hasattr(x, "total")
                )
            return value

        original = net(nnx, a=net(nnx, b=net(nnx, w=param(nnx, 1.0)), c=net(nnx)))
        copy = nnx.recursive_map(count, original, graph=graph)
        assert (copy.total, copy.a.total, copy.a.b.total) == (4, 3, 1)
        assert not hasattr(original, "total")

    def test_shared_modules_are_mapped_once(self, nnx):
        shared = net(nnx, w=param(nnx, 1.0))
        record = Recorder(lambda value: nnx.List([value]) if hasattr(value, "w") else value)
        copy = nnx.recursive_map(record, net(nnx, a=shared, b=shared), graph=True)
        assert copy.a is copy.b
        assert copy.a[0].w is shared.w
        assert len([value for _, value in record.calls if hasattr(value, "w")]) == 1

    @both_modes
    def test_the_root(self, nnx, graph):
        w = param(nnx, 1.0)
        assert nnx.recursive_map(lambda path, value: value, w, graph=graph) is w
        replaced = nnx.recursive_map(
            lambda path, value: "root" if path == () else value, net(nnx, w=w), graph=graph
        )
        assert replaced == "root"

    def test_shared_references_in_tree_mode(self, nnx):
        shared = net(nnx, w=param(nnx, 1.0))
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            nnx.recursive_map(lambda path, x: x, net(nnx, a=shared, b=shared), graph=False)
