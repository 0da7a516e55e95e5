"""What the reference promises of graphs beyond the clauses: cost, the memo, how its errors read."""

import gc
import pickle
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx
from nnx_reference.tables import _walk, flatten


class Net(nnx.Module):
    """A Module with whatever attributes it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def model(layers=3):
    value = jnp.ones(1)
    return Net(
        layers=nnx.List([Net(w=nnx.Param(value), b=nnx.Cache(value), n=n) for n in range(layers)]),
        table=nnx.Dict(scale=nnx.Param(value), mode="fast"),
        plain=nnx.data([value, {"k": nnx.Param(value)}, (value, None)]),
        offset=value,
    )


class TestCost:
    @pytest.mark.parametrize(
        "use",
        [
            lambda m: _walk(m),
            lambda m: nnx.clone(m),
            lambda m: nnx.split(m, nnx.Param, ...),
            lambda m: nnx.merge(*nnx.split(m)),
            lambda m: nnx.update(m, nnx.state(m)),
            lambda m: nnx.find_duplicates(m),
            lambda m: list(nnx.iter_graph(m)),
            lambda m: nnx.recursive_map(lambda path, node: node, m),
        ],
        ids=["walk", "clone", "split", "merge", "update", "find_duplicates", "iter_graph", "map"],
    )
    def test_grows_in_proportion_to_size(self, use, python_calls):
        use(model(1))  # abstract base classes remember what they were asked
        models = [model(n) for n in (20, 40, 60)]
        small, medium, large = (python_calls(use, m) for m in models)
        assert large - medium == medium - small

    def test_recalling_takes_no_call_per_object(self, python_calls):
        counts = []
        for layers in (20, 60):
            m = model(layers)
            flatten(m)
            counts.append(python_calls(flatten, m))
        assert counts[0] == counts[1]

    def test_depth(self):
        root = inner = Net()
        for _ in range(600):
            inner.child = Net()
            inner = inner.child
        inner.w = nnx.Param(jnp.ones(1))
        graphdef, state = nnx.split(root)
        assert graphdef == nnx.graphdef(nnx.merge(graphdef, state))
        assert isinstance(hash(graphdef), int)
        assert graphdef.paths == (("child",) * 600 + ("w",),)
        mapped = nnx.recursive_map(lambda path, node: node, root)
        assert len(list(nnx.iter_modules(mapped))) == 601


CHANGES = {
    "attribute replaced": lambda m: setattr(m, "offset", m.offset + 1),
    "attribute added": lambda m: setattr(m, "new", 1),
    "attribute deleted": lambda m: delattr(m, "offset"),
    "static value below": lambda m: setattr(m.layers[1], "n", 7),
    "static value of another type": lambda m: setattr(m.layers[1], "n", True),
    "Variable replaced": lambda m: setattr(m.layers[1], "w", nnx.Param(jnp.zeros(1))),
    "Variable shared": lambda m: setattr(m.layers[1], "w", m.layers[0].w),
    "metadata": lambda m: m.layers[1].w.set_metadata(tag="t"),
    "status": lambda m: setattr(m.layers[1], "n", nnx.data(m.layers[1].n)),
    "List appended": lambda m: m.layers.append(Net()),
    "List permuted": lambda m: m.layers.reverse(),
    "Dict item": lambda m: m.table.update(mode="slow"),
    "plain list": lambda m: m.plain.append(5),
    "plain list item": lambda m: m.plain.__setitem__(0, jnp.zeros(1)),
    "plain dict": lambda m: m.plain[1].update(j=nnx.Param(1.0)),
    "vars": lambda m: vars(m.layers[1]).update(w=nnx.Cache(jnp.zeros(1))),
    "vars, key alone": lambda m: vars(m).update(z=vars(m).pop("offset")),
}


class TestMemo:
    @pytest.mark.parametrize("name", CHANGES)
    def test_every_change_is_seen(self, name):
        m = model()
        before = flatten(m)
        assert flatten(m).graphdef is before.graphdef
        CHANGES[name](m)
        found, expected = flatten(m), _walk(m)
        assert found.graphdef == expected.graphdef
        assert found.graphdef.paths == expected.graphdef.paths
        assert list(map(id, found.leaves)) == list(map(id, expected.leaves))
        assert list(map(id, found.nodes)) == list(map(id, expected.nodes))

    @pytest.mark.parametrize("name", CHANGES)
    def test_also_by_a_graph_that_holds_the_changed_one(self, name):
        m = model()
        outer = Net(m=m)
        flatten(m), flatten(outer), flatten(m)
        CHANGES[name](m)
        assert flatten(outer).graphdef == _walk(outer).graphdef

    def test_value_changes_keep_it(self):
        m = model()
        before = flatten(m).graphdef
        m.layers[0].w[...] += 1
        nnx.update(m, jax.tree.map(lambda x: x + 1, nnx.state(m, nnx.Variable)))
        assert flatten(m).graphdef is before
        assert nnx.state(m)["layers"][0]["w"][...] == 3.0

    def test_static_containers_that_can_change_inside(self):
        m = Net(sizes=[1], w=nnx.Param(1.0))
        before = nnx.graphdef(m)
        m.sizes.append(2)
        assert before != nnx.graphdef(m)
        assert nnx.clone(m).sizes is not m.sizes

    def test_it_keeps_nothing_alive(self):
        m = model()
        flatten(m)
        removed = weakref.ref(m.layers[1].w)
        del m.layers[1].w
        assert removed() is None

    def test_a_root_does_not_refer_to_itself(self):
        gc.collect()
        gc.disable()
        try:
            m = model()
            flatten(m)
            gone = weakref.ref(m)
            del m
            assert gone() is None
        finally:
            gc.enable()


class TestGraphDef:
    def test_static_values_differ_by_type(self):
        kinds = [nnx.graphdef(Net(n=n)) for n in (1, 1.0, True)]
        assert len(set(kinds)) == 3

    def test_is_a_pytree_without_leaves(self):
        graphdef = nnx.graphdef(model())
        assert jax.tree.leaves(graphdef) == []
        assert jax.tree.map(lambda x: x, graphdef) == graphdef

    def test_pickle(self):
        graphdef = nnx.graphdef(model())
        assert pickle.loads(pickle.dumps(graphdef)) == graphdef

    def test_order_of_assignment_does_not_matter(self):
        one, other = Net(a=nnx.Param(1.0), b=2), Net(b=2, a=nnx.Param(1.0))
        assert nnx.graphdef(one) == nnx.graphdef(other)
        assert jax.tree.structure(one) == jax.tree.structure(other)

    def test_unhashable_metadata_is_named_with_its_path(self):
        m = Net(inner=Net(w=nnx.Param(1.0, axes=["a"])))
        with pytest.raises(TypeError, match=r"\('inner', 'w'\).*'axes'"):
            hash(nnx.graphdef(m))


class TestRoots:
    @pytest.mark.parametrize("leaf", [nnx.Param(1.0), jnp.ones(2)], ids=["Variable", "array"])
    def test_a_leaf_is_its_own_state(self, leaf):
        graphdef, state = nnx.split(leaf)
        assert type(state) is type(leaf)
        assert type(nnx.merge(graphdef, state)) is type(leaf)

    def test_containers_judge_value_by_value(self):
        node = [1, jnp.ones(1), "s", {"a": None, "b": (2, nnx.Param(1.0))}, np_shape := (1, 2)]
        graphdef, state = nnx.split(node)
        assert graphdef.paths == ((1,), (3, "b", 1))
        merged = nnx.merge(graphdef, state)
        assert merged[::2] == [1, "s", np_shape]
        assert merged[3]["b"][0] == 2

    def test_all_of_a_data_attribute_is_data(self):
        assert nnx.state(Net(x=nnx.data([1, "s", None]))).raw_mapping == {"x": {0: 1, 1: "s"}}

    def test_containers_that_only_jax_knows(self):
        class Pair:
            def __init__(self, a, b):
                self.a, self.b = a, b

        jax.tree_util.register_dataclass(Pair, data_fields=["a", "b"], meta_fields=[])
        shared = nnx.Param(1.0)
        merged = nnx.clone(Net(x=nnx.data(Pair(shared, [shared]))))
        assert merged.x.a is merged.x.b[0]

    def test_a_list_that_contains_itself(self):
        items = [nnx.Param(1.0)]
        items.append(items)
        node = nnx.Object()
        vars(node)["items"] = items
        with pytest.raises(ValueError, match=r"list at \('items', 1\) contains itself"):
            nnx.split(node)


class TestErrors:
    def test_tree_mode_names_every_shared_object_and_path(self):
        shared, layer = nnx.Param(1.0), Net(w=nnx.Param(1.0))
        m = Net(a=shared, b=Net(c=shared), l1=layer, l2=layer)
        with pytest.raises(ValueError, match=r"nnx\.split") as caught:
            nnx.split(m, graph=False)
        text = str(caught.value)
        assert "Param at ('a',), ('b', 'c')" in text
        assert "Net at ('l1',), ('l2',)" in text
        assert "graph=True" in text

    def test_merge_names_what_does_not_fit(self):
        graphdef, state = nnx.split(Net(a=nnx.Param(1.0), b=nnx.Cache(1.0), c=jnp.ones(1)))
        with pytest.raises(ValueError, match=r"no leaf at \('b',\)"):
            nnx.merge(graphdef, nnx.filter_state(state, (nnx.Param, jax.Array)))
        with pytest.raises(ValueError, match=r"surplus leaf at \('z',\)"):
            nnx.merge(graphdef, state, {"z": 1.0})
        with pytest.raises(ValueError, match=r"more than one .* \('a',\)"):
            nnx.merge(graphdef, state, {"a": 1.0})
        with pytest.raises(ValueError, match=r"Cache at \('a',\).*Param"):
            nnx.merge(graphdef, state | {"a": nnx.Cache(1.0)})
        with pytest.raises(ValueError, match=r"Param at \('c',\)"):
            nnx.merge(graphdef, state | {"c": nnx.Param(1.0)})

    def test_update_names_what_does_not_fit(self):
        m = Net(a=nnx.Param(1.0), n=3, inner=Net(), pair=nnx.data((jnp.ones(1),)))
        for state, words in [
            ({"a": nnx.Cache(1.0)}, r"Cache at \('a',\).*Param"),
            ({"n": 4}, r"int \(static\) at \('n',\)"),
            ({"inner": {"z": 1.0}}, r"nothing at \('inner', 'z'\)"),
            ({"inner": 1.0}, r"Net \(node\) at \('inner',\)"),
            ({"pair": {1: jnp.zeros(1)}}, r"nothing at \('pair', 1\)"),
        ]:
            with pytest.raises(ValueError, match=words):
                nnx.update(m, {"a": 5.0}, state)
            assert m.a[...] == 1.0

    def test_update_rebuilds_containers_that_cannot_change(self):
        class Moments(NamedTuple):
            mean: Any
            count: Any

        inner = [jnp.ones(1), nnx.Param(2.0)]
        m = Net(x=nnx.data((Moments(jnp.ones(1), inner), nnx.Param(3.0))))
        nnx.update(m, jax.tree.map(lambda x: x + 1, nnx.state(m)))
        (moments, variable) = m.x
        assert type(moments) is Moments
        assert moments.count is inner
        assert [*moments.mean, *inner[0], inner[1][...], variable[...]] == [2.0, 2.0, 3.0, 4.0]

    def test_several_states_for_one_container_that_cannot_change(self):
        m = Net(x=nnx.data((jnp.ones(()), jnp.ones(()))))
        nnx.update(m, {"x": {0: 2.0}}, {"x": {1: 3.0}})
        assert m.x == (2.0, 3.0)

    def test_copies_share_no_numpy_buffers(self):
        m = Net(a=np.ones(1), b=nnx.Param(np.ones(1)))
        for other in (nnx.merge(*nnx.split(m), copy=True), nnx.clone(m)):
            other.a[0] = other.b.get_raw_value()[0] = 5.0
        nnx.clone(m, variables=False).a[0] = 5.0
        assert (m.a[0], m.b[0]) == (1.0, 1.0)

    def test_pop_from_a_tuple_changes_nothing(self):
        m = Net(a=nnx.Param(1.0), pair=nnx.data((nnx.Param(2.0),)))
        with pytest.raises(ValueError, match=r"tuple at \('pair',\)"):
            nnx.pop(m, nnx.Param)
        assert m.a[...] == 1.0
        with pytest.raises(ValueError, match="at least one filter"):
            nnx.pop(m)

    def test_with_vars_names_duplicates(self):
        shared = nnx.Param(1.0)
        with pytest.raises(ValueError, match=r"Param at \('a',\), \('b',\)"):
            nnx.with_vars(Net(a=shared, b=shared), mutable=False)


class TestTrees:
    def test_sharing_across_arguments(self):
        m = model()
        tree = nnx.to_tree(({"m": m}, m.layers[0], 5, m.offset))
        assert len(jax.tree.leaves(tree)) == len(jax.tree.leaves(m)) + 2
        (first, second, number, _) = nnx.from_tree(jax.tree.map(lambda x: x, tree))
        assert first["m"].layers[0] is second
        assert number == 5

    def test_part_of_a_tree_is_refused(self):
        tree = nnx.to_tree((model(), model()))
        with pytest.raises(ValueError, match="one to_tree"):
            nnx.from_tree(tree[0])


class TestTraversal:
    def test_recursive_map_keeps_cycles_and_sharing(self):
        shared = nnx.Param(1.0)
        root = Net(a=shared, b=nnx.List([shared]))
        root.b.append(root)
        again = nnx.recursive_map(lambda path, node: node, root)
        assert again is not root
        assert again.b[1] is again
        assert again.a is again.b[0] is shared

    def test_recursive_map_replaces_bottom_up(self):
        def double(path, node):
            return node * 2 if isinstance(node, int) else node

        m = nnx.recursive_map(double, Net(n=1, inner=Net(n=2)))
        assert (m.n, m.inner.n) == (2, 4)

    def test_iter_graph_checks_at_once(self):
        shared = Net()
        with pytest.raises(ValueError, match="shared"):
            nnx.iter_graph(Net(a=shared, b=shared), graph=False)


def test_a_structure_is_applied_to_states():
    class Model(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
            self.count = nnx.BatchStat(jnp.array(0))

        def __call__(self, x):
            self.count[...] += 1
            return self.linear(x)

    model = Model()
    x = jnp.arange(2.0)
    expected, bare = model.linear(x), model.linear(x) - model.linear.bias[...]
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    y, (after, state) = graphdef.apply(params, rest)(x)
    assert jnp.array_equal(y, expected)
    assert after == graphdef
    assert state["count"][...] == 1
    y, _ = graphdef.apply(params, rest).linear.dot_general(
        x, params["linear"]["kernel"][...], (((0,), (0,)), ((), ()))
    )
    assert jnp.allclose(y, bare)


class TestTreeMode:
    class Box(nnx.Object):
        def __init__(self):
            self.w = nnx.Param(1)

    @pytest.mark.parametrize("function", ["iter_graph", "iter_children", "split", "flatten"])
    def test_takes_no_object_that_is_no_pytree(self, function):
        node = nnx.List([self.Box()])
        with pytest.raises(
            ValueError, match=r"Box is made with pytree=False\. Found at path \(0,\)"
        ):
            getattr(nnx, function)(node, graph=False)
        getattr(nnx, function)(node, graph=True)

    def test_recursive_map_takes_no_object_that_is_no_pytree(self):
        with pytest.raises(ValueError, match="pytree=False"):
            nnx.recursive_map(lambda path, value: value, self.Box(), graph=False)


@pytest.mark.parametrize("graph", [True, False])
def test_map_puts_in_variables_of_another_class(graph):
    node = nnx.Dict(a=nnx.Param(jnp.ones(2)), b=nnx.BatchStat(3))
    zeros = nnx.map(lambda path, v: nnx.Variable(v.get_value() * 0), node, graph=graph)
    assert [type(zeros[key]) for key in "ab"] == [nnx.Variable, nnx.Variable]
    assert zeros["a"].get_value().tolist() == [0, 0]
    assert [type(node[key]) for key in "ab"] == [nnx.Param, nnx.BatchStat]
