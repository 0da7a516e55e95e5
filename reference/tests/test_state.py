"""What the reference promises of States beyond the clauses, and how its errors read."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

DEPTH = 600


def deep_state(leaf):
    return nnx.from_flat_state({("a",) * DEPTH: leaf})


class TestState:
    def test_nested_states_are_themselves(self):
        state = nnx.State({"a": {"b": 1}})
        inner = state["a"]
        inner["c"] = 2
        assert state["a"] is inner
        assert state.raw_mapping == {"a": {"b": 1, "c": 2}}

    def test_attributes(self):
        state = nnx.State({"a": {"b": 1}})
        state.a.c = {"d": 2}
        assert state.a.c.d == 2
        del state.a.b
        assert list(state.a) == ["c"]
        with pytest.raises(AttributeError, match="no key 'zzz'"):
            _ = state.zzz

    def test_key_paths_and_mixed_keys(self):
        state = nnx.State({"b": 1, 10: 2, "a": {9: 3, "9": 4}, 9: 5})
        found, _ = jax.tree_util.tree_flatten_with_path(state)
        assert [(jax.tree_util.keystr(path), leaf) for path, leaf in found] == [
            ("[9]", 5),
            ("[10]", 2),
            ("['a'][9]", 3),
            ("['a']['9']", 4),
            ("['b']", 1),
        ]
        assert list(jax.tree.map(lambda x: x, state)) == [9, 10, "a", "b"]

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies(self, copied):
        state = nnx.State({"a": {"b": nnx.Param(1.0, tag="t")}})
        other = copied(state)
        other["a"]["b"][...] = 2.0
        assert (state["a"]["b"][...], other["a"]["b"].tag) == (1.0, "t")

    def test_unflatten_takes_any_leaves(self):
        structure = jax.tree.structure(nnx.State({"a": {"b": 1}, "c": 2}))
        marker = object()
        assert jax.tree.unflatten(structure, [marker, None]).a.b is marker

    def test_depth(self):
        state = deep_state(nnx.Param(jnp.ones(1)))
        assert nnx.to_flat_state(state).paths == (("a",) * DEPTH,)
        assert nnx.map_state(lambda path, leaf: len(path), state).flat_state().leaves == [DEPTH]
        pure = nnx.to_pure_dict(nnx.split_state(state, nnx.Param))
        nnx.replace_by_pure_dict(state, pure)
        assert len(jax.tree.leaves(state)) == 1


class TestFlatState:
    def test_pairs_in_canonical_order(self):
        flat = nnx.FlatState([(("b",), 1), (("a", 10), 2), (("a", 9), 3)], sort=True)
        assert list(flat) == [(("a", 9), 3), (("a", 10), 2), (("b",), 1)]
        assert flat[0] == (("a", 9), 3)
        assert list(flat[1:]) == [(("a", 10), 2), (("b",), 1)]
        assert list(jax.tree.map(lambda x: -x, flat)) == [
            (("a", 9), -3),
            (("a", 10), -2),
            (("b",), -1),
        ]

    def test_split_filter_and_merge(self):
        flat = nnx.State({"a": nnx.Param(1.0), "b": nnx.Cache(2.0)}).flat_state()
        params, rest = flat.split(nnx.Param, ...)
        assert (params.paths, rest.paths) == ((("a",),), (("b",),))
        assert flat.filter(nnx.Cache).paths == (("b",),)
        assert nnx.FlatState.merge(rest, params).paths == flat.paths


class TestErrors:
    def test_left_over_leaves_are_named(self):
        state = nnx.State({"a": {1: nnx.Cache(1.0)}, "b": nnx.Param(1.0)})
        with pytest.raises(ValueError, match=r"\('a', 1\): Cache") as caught:
            nnx.split_state(state, nnx.Param)
        assert "`...`" in str(caught.value)

    def test_many_left_over_leaves_are_counted(self):
        state = nnx.State({str(n): nnx.Cache(1.0) for n in range(25)})
        with pytest.raises(ValueError, match="and 15 more"):
            nnx.split_state(state, nnx.Param)

    def test_greedy_filter_before_the_last(self):
        with pytest.raises(ValueError, match="filter 0 of 2"):
            nnx.filter_state(nnx.State({}), ..., nnx.Param)

    @pytest.mark.parametrize(
        "pairs",
        [[(("a",), 1), (("a", "b"), 2)], [(("a", "b"), 2), (("a",), 1)], [((), 1)]],
        ids=["through a leaf", "leaf over a State", "empty path"],
    )
    def test_paths_that_contradict_each_other(self, pairs):
        with pytest.raises(ValueError, match="path"):
            nnx.from_flat_state(pairs)

    def test_replacing_what_is_not_there_changes_nothing(self):
        state = nnx.State({"a": nnx.Param(1.0), "b": {"c": nnx.Param(2.0)}})
        with pytest.raises(ValueError, match=r"\('b', 'zzz'\)"):
            nnx.replace_by_pure_dict(state, {"a": 5.0, "b": {"zzz": 1.0}})
        assert nnx.to_pure_dict(state) == {"a": 1.0, "b": {"c": 2.0}}


class TestPureDicts:
    def test_digits_stand_for_integers_where_the_state_has_them(self):
        state = nnx.State({"a": {1: nnx.Param(1.0)}, "7": nnx.Param(7.0)})
        nnx.replace_by_pure_dict(state, {"a": {"1": 2.0}, "7": 8.0})
        assert nnx.to_pure_dict(state) == {"a": {1: 2.0}, "7": 8.0}

    def test_functions(self):
        state = nnx.State({"a": nnx.Param(1.0), "b": 2.0})
        assert nnx.to_pure_dict(state, extract_fn=lambda leaf: type(leaf).__name__) == {
            "a": "Param",
            "b": "float",
        }
        nnx.replace_by_pure_dict(
            state, {"a": 3.0}, replace_fn=lambda leaf, value: leaf.replace(-value)
        )
        assert state.a[...] == -3.0

    def test_dict_valued_variable(self):
        state = nnx.State({"m": nnx.Variable({"x": 1.0})})
        nnx.replace_by_pure_dict(state, {"m": {"y": 2.0}})
        assert nnx.to_pure_dict(state) == {"m": {"y": 2.0}}
