"""The algebra of States: flat and nested, parts and wholes, plain dicts, JAX's tree functions."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param, records
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import (
    array_record,
    graph_items,
    leaf_record,
    snapshot,
    state_items,
    state_paths,
    user_metadata,
)
from nnx_spec.plans import build
from nnx_spec.strategies import filter_groups, filters, graphs, trees

STATES = "api_reference/flax.nnx/state"


def states_of(nnx, plan):
    """Gives the State of what a plan describes."""
    return nnx.state(build(nnx, plan))


@clause("GRF-020", MUST, DOCUMENTED, source="api_reference/flax.nnx/state")
class TestAlgebra:
    """States are taken apart and put together without loss, and no operation changes its operands.

    `from_flat_state` inverts `to_flat_state`, whose items are paths and leaves in order;
    `merge_state` inverts `split_state`. `split_state` gives each leaf to the first filter that
    selects it and raises ValueError if one is left over; `filter_state` gives the same groups and
    drops what is left. `map_state` replaces each leaf by `f(path, leaf)`. `a | b` has the leaves of
    both, `b`'s where both have one; `a - b` has those leaves of `a` whose path `b` lacks. One
    filter gives a State, several give a tuple of them.
    """

    @given(plan=graphs(sharing=True), order=st.randoms(use_true_random=False))
    def test_flat_round_trip(self, nnx, plan, order):
        state = states_of(nnx, plan)
        flat = nnx.to_flat_state(state)
        assert [path for path, _ in flat] == state_paths(plan)
        assert {path: leaf_record(nnx, leaf) for path, leaf in flat} == records(nnx, state)
        shuffled = list(flat)
        order.shuffle(shuffled)
        for source in (flat, dict(flat), shuffled):
            again = nnx.from_flat_state(source)
            assert isinstance(again, nnx.State)
            assert records(nnx, again) == records(nnx, state)
            assert jax.tree.structure(again) == jax.tree.structure(state)

    @given(plan=graphs(sharing=True), groups=filter_groups())
    def test_split_and_merge(self, nnx, plan, groups):
        state = states_of(nnx, plan)
        before = records(nnx, state)
        parts = nnx.split_state(state, *(build_filter(nnx, item) for item in groups))
        parts = (parts,) if len(groups) == 1 else parts
        assert isinstance(parts, tuple)
        for n, part in enumerate(parts):
            assert isinstance(part, nnx.State)
            selected = [path for path, x in graph_items(plan) if group_of(groups, path, x) == n]
            assert [path for path, _ in state_items(part)] == selected
        for order in (parts, parts[::-1]):
            assert records(nnx, nnx.merge_state(*order)) == before
        assert records(nnx, state) == before

    @given(plan=graphs(sharing=True), groups=st.lists(filters(), min_size=1, max_size=3))
    def test_filters_that_are_not_exhaustive(self, nnx, plan, groups):
        state = states_of(nnx, plan)
        built = [build_filter(nnx, item) for item in groups]
        assume(not any(item in (..., True) for item in built[:-1]))
        found = nnx.filter_state(state, *built)
        found = (found,) if len(groups) == 1 else found
        for n, part in enumerate(found):
            selected = [path for path, x in graph_items(plan) if group_of(groups, path, x) == n]
            assert [path for path, _ in state_items(part)] == selected
        left = [path for path, item in graph_items(plan) if group_of(groups, path, item) is None]
        if left:
            with pytest.raises(ValueError):  # noqa: PT011
                nnx.split_state(state, *built)
        else:
            parts = nnx.split_state(state, *built)
            parts = (parts,) if len(groups) == 1 else parts
            assert [records(nnx, x) for x in parts] == [records(nnx, x) for x in found]

    @given(plan=graphs(sharing=True))
    def test_map(self, nnx, plan):
        state = states_of(nnx, plan)
        before = records(nnx, state)
        leaves = dict(state_items(state))
        seen = []

        def replace(path, leaf):
            seen.append(path)
            assert type(path) is tuple
            assert leaf is leaves[path]
            return nnx.Param(jnp.asarray(len(path)), path=path)

        mapped = nnx.map_state(replace, state)
        assert isinstance(mapped, nnx.State)
        assert sorted(seen, key=repr) == sorted(leaves, key=repr)
        for path, leaf in state_items(mapped):
            assert leaf.get_metadata("path") == path
        assert [path for path, _ in state_items(mapped)] == list(leaves)
        assert records(nnx, state) == before

    @given(plan=graphs(sharing=True), one=filters(), other=filters())
    def test_union_and_difference(self, nnx, plan, one, other):
        state = states_of(nnx, plan)
        built = [build_filter(nnx, item) for item in (one, other)]
        first, second = (nnx.filter_state(state, item) for item in built)
        second = nnx.map_state(lambda path, leaf: nnx.Cache(jnp.zeros(()), new=True), second)
        whole, a, b = (records(nnx, x) for x in (state, first, second))
        union, difference = first | second, first - second
        assert isinstance(union, nnx.State)
        assert isinstance(difference, nnx.State)
        assert records(nnx, union) == {**a, **b}
        assert records(nnx, nnx.merge_state(first, second)) == {**a, **b}
        assert records(nnx, difference) == {path: a[path] for path in a if path not in b}
        assert records(nnx, (state - first) | first) == whole
        assert records(nnx, state - state) == {}
        assert (records(nnx, state), records(nnx, first), records(nnx, second)) == (whole, a, b)

    def test_parts_of_nested_states(self, nnx):
        inner = net(nnx, a=param(nnx, 1.0), b=net(nnx, c=param(nnx, 2.0), d=param(nnx, 3.0)))
        whole = nnx.state(net(nnx, inner=inner, x=param(nnx, 4.0)))
        part = nnx.state(net(nnx, inner=net(nnx, b=net(nnx, c=param(nnx, 9.0)))))
        union, difference = whole | part, whole - part
        values = {path: float(leaf[...]) for path, leaf in state_items(union)}
        assert list(values.items()) == [
            (("inner", "a"), 1.0),
            (("inner", "b", "c"), 9.0),
            (("inner", "b", "d"), 3.0),
            (("x",), 4.0),
        ]
        del values["inner", "b", "c"]
        assert {path: float(leaf[...]) for path, leaf in state_items(difference)} == values
        assert records(nnx, part - whole) == {}
        assert records(nnx, difference | (whole - difference)) == records(nnx, whole)

    def test_nothing(self, nnx):
        empty = nnx.State({})
        state = nnx.state(net(nnx, w=param(nnx, 1.0)))
        assert list(nnx.to_flat_state(empty)) == []
        assert records(nnx, nnx.from_flat_state([])) == {}
        assert records(nnx, nnx.merge_state(empty, empty)) == {}
        assert records(nnx, nnx.split_state(empty, nnx.Param)) == {}
        for same in (state | empty, empty | state, state - empty, nnx.merge_state(empty, state)):
            assert records(nnx, same) == records(nnx, state)
        assert records(nnx, empty - state) == {}


def with_string_keys(pure):
    """Does to a pure dict what a checkpoint does: all keys come back as strings."""
    if not isinstance(pure, dict):
        return pure
    return {str(key): with_string_keys(item) for key, item in pure.items()}


def changed(pure):
    """Gives a pure dict of the same form with other arrays."""
    return jax.tree.map(lambda x: jnp.ones_like(x) if x.dtype == bool else x + 1, pure)


def check_plain(pure):
    """Checks that a pure dict consists of dicts and arrays."""
    if type(pure) is dict:
        for item in pure.values():
            check_plain(item)
    else:
        assert isinstance(pure, jax.Array)


def layered(nnx, start=0.0):
    """Makes a model with integer and string keys, Variables of two classes, and metadata."""
    layers = [param(nnx, [start + i, i], tag="red") for i in range(11)]
    return net(nnx, layers=nnx.List(layers), inner=net(nnx, mean=nnx.BatchStat(jnp.zeros((2,)))))


@clause("GRF-021", MUST, DOCUMENTED, source="guides/checkpointing#restore-as-a-pure-dictionary")
class TestPureDicts:
    """`to_pure_dict` gives the arrays of a State in plain nested dicts with the same keys.

    `replace_by_pure_dict` writes such a dict back into a State in place and keeps the classes and
    metadata of its Variables, so that the two round-trip a State, also an abstract one that is to
    be filled. A store that turns integer keys into strings is undone by `restore_int_paths`.
    `extract_fn` and `replace_fn` say how a leaf becomes what stands in the dict, and back.
    """

    @both_modes
    def test_round_trip(self, nnx, graph):
        state = nnx.state(layered(nnx), graph=graph)
        pure = nnx.to_pure_dict(state)
        check_plain(pure)
        assert set(pure) == {"inner", "layers"}
        assert set(pure["layers"]) == set(range(11))
        assert array_record(pure["layers"][10]) == array_record(jnp.asarray([10.0, 10.0]))
        nnx.replace_by_pure_dict(state, nnx.to_pure_dict(nnx.state(layered(nnx, 5.0), graph=graph)))
        assert records(nnx, state) == records(nnx, nnx.state(layered(nnx, 5.0)))

    @given(plan=graphs(sharing=True))
    def test_any_state(self, nnx, plan):
        source = states_of(nnx, plan)
        pure = nnx.to_pure_dict(source)
        check_plain(pure)
        expected = jax.tree.map(lambda x: x, source)
        target = jax.tree.map(jnp.zeros_like, source)
        nnx.replace_by_pure_dict(target, pure)
        assert records(nnx, target) == records(nnx, expected)
        nnx.replace_by_pure_dict(target, changed(pure))
        after = nnx.to_pure_dict(target)
        assert jax.tree.structure(after) == jax.tree.structure(pure)
        for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(changed(pure)), strict=True):
            assert array_record(new) == array_record(old)

    def test_string_keys(self, nnx):
        state = nnx.state(layered(nnx))
        stored = with_string_keys(nnx.to_pure_dict(nnx.state(layered(nnx, 5.0))))
        assert set(stored["layers"]) == {str(i) for i in range(11)}
        restored = nnx.restore_int_paths(stored)
        assert set(restored["layers"]) == set(range(11))
        assert set(restored) == {"inner", "layers"}
        assert set(stored["layers"]) == {str(i) for i in range(11)}
        nnx.replace_by_pure_dict(state, restored)
        assert records(nnx, state) == records(nnx, nnx.state(layered(nnx, 5.0)))

    def test_restored_paths(self, nnx):
        stored = {"10": {"a": 1, "9": {"0": 2}}, "a1": 3, "layer9": {"2": 4}}
        restored = {10: {"a": 1, 9: {0: 2}}, "a1": 3, "layer9": {2: 4}}
        assert nnx.restore_int_paths(stored) == restored
        assert nnx.restore_int_paths(restored) == restored

    @both_modes
    def test_abstract_state_is_filled(self, nnx, graph):
        abstract = jax.eval_shape(lambda: layered(nnx))
        graphdef, state = nnx.split(abstract, graph=graph)
        nnx.replace_by_pure_dict(state, nnx.to_pure_dict(nnx.state(layered(nnx, 5.0), graph=graph)))
        assert snapshot(nnx, nnx.merge(graphdef, state)) == snapshot(nnx, layered(nnx, 5.0))

    def test_functions_of_the_leaves(self, nnx):
        state = nnx.state(layered(nnx))
        names = nnx.to_pure_dict(state, lambda leaf: type(leaf).__name__)
        assert names["inner"] == {"mean": "BatchStat"}
        assert names["layers"] == dict.fromkeys(range(11), "Param")
        scales = {"inner": {"mean": 0.0}, "layers": {i: float(i) for i in range(11)}}

        def scaled(leaf, scale):
            return leaf.replace(leaf[...] + scale)

        nnx.replace_by_pure_dict(state, scales, scaled)
        for i in range(11):
            leaf = state["layers"][i]
            assert leaf_record(nnx, leaf) == leaf_record(nnx, param(nnx, [2 * i] * 2, tag="red"))


@clause("GRF-023", MUST, CONVENTION, source="jax.tree.map")
class TestTreeFunctions:
    """`jax.tree.map` over a State keeps the classes and metadata of its Variables.

    The function is given the arrays. States of equal structure combine leaf by leaf; States that
    differ in a path, in the class of a Variable or in its metadata are refused with ValueError.
    """

    @both_modes
    @given(plan=trees())
    def test_classes_and_metadata_are_kept(self, nnx, graph, plan):
        state = nnx.state(build(nnx, plan), graph=graph)
        before = dict(state_items(state))
        shapes = jax.tree.map(lambda x: x.shape, state)
        assert isinstance(shapes, nnx.State)
        after = dict(state_items(jax.tree.map(lambda x: jnp.stack([x, x]), state)))
        assert list(after) == list(before)
        for path, leaf in before.items():
            if isinstance(leaf, nnx.Variable):
                assert type(after[path]) is type(leaf)
                assert user_metadata(after[path]) == user_metadata(leaf)
                assert after[path] is not leaf
            old, new = (jax.tree.leaves(x) for x in (leaf, after[path]))
            for x, y in zip(old, new, strict=True):
                assert array_record(y) == array_record(jnp.stack([x, x]))

    @given(plan=trees())
    def test_leaf_by_leaf(self, nnx, plan):
        first, second = states_of(nnx, plan), jax.tree.map(jnp.zeros_like, states_of(nnx, plan))
        chosen = jax.tree.map(lambda x, y: x, first, second)
        assert records(nnx, chosen) == records(nnx, first)
        chosen = jax.tree.map(lambda x, y: y, first, second)
        assert records(nnx, chosen) == records(nnx, second)

    @pytest.mark.parametrize(
        "other",
        [
            lambda nnx: net(nnx, w=param(nnx, tag="red"), b=param(nnx), c=param(nnx)),
            lambda nnx: net(nnx, w=param(nnx, tag="red")),
            lambda nnx: net(nnx, w=param(nnx, tag="red"), c=param(nnx)),
            lambda nnx: net(nnx, w=param(nnx, tag="red"), b=nnx.BatchStat(jnp.zeros(()))),
            lambda nnx: net(nnx, w=param(nnx, tag="blue"), b=param(nnx)),
            lambda nnx: net(nnx, w=param(nnx), b=param(nnx)),
            lambda nnx: net(nnx, w=param(nnx, tag="red"), b=net(nnx, b=param(nnx))),
        ],
        ids=["more", "less", "name", "class", "metadata", "no metadata", "nesting"],
    )
    def test_other_structures_are_refused(self, nnx, other):
        state = nnx.state(net(nnx, w=param(nnx, tag="red"), b=param(nnx)))
        jax.tree.map(jnp.add, state, jax.tree.map(jnp.ones_like, state))
        with pytest.raises(ValueError):  # noqa: PT011
            jax.tree.map(jnp.add, state, nnx.state(other(nnx)))
