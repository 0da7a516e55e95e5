"""Other forms of an object: raw values without Variables, and trees that keep the sharing."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.oracles import (
    array_record,
    at,
    children,
    graph_items,
    is_node,
    snapshot,
    state_items,
    state_paths,
)
from nnx_spec.plans import ArrayPlan, build, build_value, is_array
from nnx_spec.strategies import graphs, trees


def raw_record(value):
    """Describes a raw value, an array or a mapping of them, exactly."""
    if isinstance(value, Mapping):
        return {key: raw_record(item) for key, item in value.items()}
    assert is_array(value), type(value)
    return array_record(value)


def planned_value(item):
    """Builds the raw value of a Variable's or an array's plan."""
    return build_value(item if isinstance(item, ArrayPlan) else item.value)


def at_state(state, path):
    """Returns what a State holds at a path."""
    for key in path:
        state = state[key]
    return state


@clause("GRF-022", MUST, DOCUMENTED, source="guides/view#other-nnx-views")
class TestForms:
    """`as_pure` replaces every Variable by its raw value, and keeps everything else.

    It takes a State, a Module, any pytree of them, or a Variable, gives a new one of the same form,
    and leaves its argument alone. `to_tree` gives a pytree of arrays, in which what is shared
    stands once, however many containers it is shared between; JAX's transforms take and return it;
    and `from_tree` makes of it new objects equal to the first, with the same sharing. What is no
    object of the target stays what it is.
    """

    @given(plan=graphs(sharing=True))
    def test_pure_state(self, nnx, plan):
        state = nnx.state(build(nnx, plan))
        before = [(path, id(leaf)) for path, leaf in state_items(state)]
        pure = nnx.as_pure(state)
        assert isinstance(pure, nnx.State)
        for path, item in graph_items(plan):
            assert raw_record(at_state(pure, path)) == raw_record(planned_value(item))
        assert len(jax.tree.leaves(pure)) == len(jax.tree.leaves(state))
        assert [(path, id(leaf)) for path, leaf in state_items(state)] == before

    @given(plan=trees())
    def test_pure_module(self, nnx, plan):
        node = build(nnx, plan)
        before = snapshot(nnx, node, identities=True)
        pure = nnx.as_pure(node)
        check_form(nnx, pure, node)
        assert snapshot(nnx, node, identities=True) == before

    def test_pure_pytree(self, nnx):
        x = jnp.arange(2.0)
        pure = nnx.as_pure({"a": (param(nnx, [1.0], tag="red"), x), "b": [net(nnx, w=param(nnx))]})
        assert type(pure) is dict
        assert type(pure["a"]) is tuple
        assert array_record(pure["a"][0]) == array_record(jnp.asarray([1.0]))
        assert pure["a"][1] is x
        assert array_record(pure["b"][0].w) == array_record(jnp.asarray(0.0))
        assert not has_variables(nnx, pure)

    def test_pure_variable(self, nnx):
        assert array_record(nnx.as_pure(param(nnx, [1.0, 2.0]))) == array_record(
            jnp.array([1.0, 2])
        )
        pure = nnx.as_pure(nnx.Param({"k": jnp.zeros(2)}))
        assert raw_record(pure) == raw_record({"k": jnp.zeros(2)})

    @given(plan=graphs(sharing=True, cycles=True))
    def test_tree_and_back(self, nnx, plan):
        node = build(nnx, plan)
        before = snapshot(nnx, node, identities=True)
        tree = nnx.to_tree(node)
        leaves = jax.tree.leaves(tree)
        assert all(is_array(leaf) for leaf in leaves)
        assert len(leaves) == len(jax.tree.leaves([planned_value(x) for _, x in graph_items(plan)]))
        again = nnx.from_tree(jax.tree.map(lambda leaf: leaf, tree))
        assert snapshot(nnx, again) == snapshot(nnx, node)
        assert snapshot(nnx, node, identities=True) == before
        old = {id(item) for item in objects_in(nnx, node)}
        assert not any(id(item) in old for item in objects_in(nnx, again))

    @given(plan=graphs(sharing=True), key=st.sampled_from(["k", "l"]))
    def test_sharing_between_members(self, nnx, plan, key):
        node, x = build(nnx, plan), jnp.arange(2.0)
        first = node if not state_paths(plan) else at(nnx, node, state_paths(plan)[0][:1])
        members = {key: [node, x], "rest": (net(nnx, inner=first), 2.5, None)}
        again = nnx.from_tree(nnx.to_tree(members))
        assert snapshot(nnx, again) == snapshot(nnx, members)
        assert again["rest"][1] == 2.5
        assert array_record(again[key][1]) == array_record(x)

    def test_through_a_transform(self, nnx):
        shared = param(nnx, [1.0, 2.0], tag="red")
        members = (net(nnx, w=shared), {"k": net(nnx, w=shared)})

        @jax.jit
        def double(tree):
            first, rest = nnx.from_tree(tree)
            assert first.w is rest["k"].w
            first.w[...] *= 2
            return nnx.to_tree((first, rest))

        after = nnx.from_tree(double(nnx.to_tree(members)))
        doubled = param(nnx, [2.0, 4.0], tag="red")
        expected = (net(nnx, w=doubled), {"k": net(nnx, w=doubled)})
        assert snapshot(nnx, after) == snapshot(nnx, expected)
        assert array_record(shared[...]) == array_record(jnp.asarray([1.0, 2.0]))


def objects_in(nnx, root):
    """Lists the nodes and Variables of an object graph."""
    found, pending = {}, [root]
    while pending:
        value = pending.pop()
        is_object = isinstance(value, (nnx.Variable, nnx.Pytree))
        if is_object and id(value) in found:
            continue
        if is_object:
            found[id(value)] = value
        if not isinstance(value, nnx.Variable):
            pending.extend(child for _, child in children(nnx, value))
    return list(found.values())


def has_variables(nnx, root):
    """Tells whether some Variable is left in an object graph."""
    return any(isinstance(item, nnx.Variable) for item in objects_in(nnx, root))


def check_form(nnx, pure, original):
    """Checks that a pure object is the original with raw values in place of the Variables."""
    if isinstance(original, nnx.Variable):
        assert raw_record(pure) == raw_record(original.get_value())
    elif is_array(original):
        assert array_record(pure) == array_record(original)
    elif is_node(nnx, original):
        assert type(pure) is type(original)
        new, old = dict(children(nnx, pure)), dict(children(nnx, original))
        assert list(new) == list(old)
        for key, child in old.items():
            check_form(nnx, new[key], child)
    else:
        assert pure == original
