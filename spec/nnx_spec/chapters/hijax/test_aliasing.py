"""Aliasing: one hijax Variable at several places."""

import jax
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, SOUND, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_holds
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import at, objects, snapshot
from nnx_spec.plans import VariablePlan, build
from nnx_spec.strategies import shared_graphs, trees


def put(v, value):
    """Runs `v[...] = value`."""
    v[...] = value


def increment_both(a, b):
    """Adds to a Variable by each of its names."""
    a[...] += 1
    b[...] += 10


WRITES = {
    "first": (lambda a, b: put(a, 5.0), 5),
    "second": (lambda a, b: put(b, 5.0), 5),
    "both-in-turn": (increment_both, 14),
    "one-from-the-other": (lambda a, b: put(a, b[...] * 2), 6),
    "over-and-back": (lambda a, b: (put(a, 8.0), put(b, b[...] + 1)), 9),
}
"""Functions that write to a Variable that holds 3, and what it holds after them, by name."""

CALLS = {
    "arguments": lambda f, nnx, v: jax.jit(f)(v, v),
    "items": lambda f, nnx, v: jax.jit(lambda pair: f(*pair))([v, v]),
    "attributes": lambda f, nnx, v: jax.jit(lambda m: f(m.a, m.b))(net(nnx, a=v, b=v)),
    "apart": lambda f, nnx, v: jax.jit(lambda a, m: f(a, m.inner.b))(
        v, net(nnx, inner=net(nnx, b=v))
    ),
}
"""Calls of a function of two Variables with one at both places, by name."""


@clause(
    "HJX-031",
    MUST,
    SOUND,
    source="one of two places of a Variable silently keeps what is gone",
    needs={"hijax"},
)
class TestArguments:
    """If one hijax Variable stands at two places of a `jax.jit` call's arguments, there is an
    error, or the places agree afterwards: every write shows or none.

    Never is one of them updated and another not. After an error no write shows.
    """

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("write", WRITES)
    def test_all_or_none(self, nnx, write, call):
        f, after = WRITES[write]
        v = nnx.Param(array(3), hijax=True, tag="t")
        allowed = {3.0, float(after)}
        try:
            CALLS[call](f, nnx, v)
        except Exception:
            allowed = {3.0}
        assert float(v[...]) in allowed
        assert_holds(nnx, v, nnx.Param, v[...], tag="t")

    def test_attributes_agree(self, nnx):
        v = nnx.Param(array(3), hijax=True)
        model = net(nnx, a=v, b=v)
        try:
            jax.jit(lambda model: put(model.a, 5.0))(model)
        except Exception:
            assert float(v[...]) == 3
        assert model.a is model.b is v
        assert float(model.a[...]) == float(model.b[...])
        model.b[...] = array(7)
        assert float(model.a[...]) == 7


@clause(
    "HJX-032", MUST, DOCUMENTED, source="hijax/hijax#reference-sharing-aliasing", needs={"hijax"}
)
class TestDuplicates:
    """`find_duplicates` lists, for each hijax Variable or node that stands at several places, its
    paths.

    It gives `[]` for a tree. With `only`, a filter, it looks at what the filter selects. It changes
    nothing.
    """

    def test_the_guides_example(self, nnx):
        v = nnx.Variable(array(0), hijax=True)
        assert list(map(sorted, nnx.find_duplicates(net(nnx, a=v, b=v)))) == [[("a",), ("b",)]]

    def test_tree(self, nnx):
        model = net(nnx, a=nnx.Variable(array(0), hijax=True), b=nnx.Variable(array(0), hijax=True))
        assert nnx.find_duplicates(model) == []

    @given(plan=shared_graphs())
    def test_any_graph(self, nnx, plan):
        with nnx.var_defaults(hijax=True):
            node = build(nnx, plan)
        before = snapshot(nnx, node)
        found = sorted(map(sorted, nnx.find_duplicates(node)))
        assert found == sorted(map(sorted, nnx.find_duplicates(build(nnx, plan))))
        assert found
        for first, *others in found:
            assert all(at(nnx, node, path) is at(nnx, node, first) for path in others)
        assert snapshot(nnx, node) == before

    @given(plan=trees())
    def test_any_tree(self, nnx, plan):
        with nnx.var_defaults(hijax=True):
            node = build(nnx, plan)
        assert nnx.find_duplicates(node) == []

    def test_only(self, nnx):
        with nnx.var_defaults(hijax=True):
            w, n = nnx.Param(array(0)), nnx.BatchStat(array(0))
        inner = net(nnx, width=2)
        model = net(nnx, a=w, b=w, c=n, d=n, e=inner, f=inner)
        for only, expected in {
            "everything": (..., [["a", "b"], ["c", "d"], ["e", "f"]]),
            "class": (nnx.Param, [["a", "b"]]),
            "other-class": (nnx.BatchStat, [["c", "d"]]),
            "variables": (nnx.Variable, [["a", "b"], ["c", "d"]]),
            "nothing": (nnx.Cache, []),
        }.values():
            found = nnx.find_duplicates(model, only=only)
            assert sorted(sorted(key for (key,) in paths) for paths in found) == expected


@clause(
    "HJX-033",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#reference-sharing-aliasing",
    needs={"hijax.updates"},
)
class TestSplit:
    """A hijax Variable that stands at several places is one Variable inside a `jax.jit` function
    that merges it of `split`'s results, and what is written to it there shows at all its places
    outside.
    """

    @pytest.mark.parametrize("write", WRITES)
    def test_two_places(self, nnx, write):
        v = nnx.Variable(array(3), hijax=True, tag="t")
        model = net(nnx, a=v, inner=net(nnx, b=v))
        f, after = WRITES[write]

        @jax.jit
        def call(graphdef, state):
            merged = nnx.merge(graphdef, state)
            f(merged.a, merged.inner.b)
            assert nnx.find_duplicates(merged) == nnx.find_duplicates(model)
            return merged.a[...], merged.inner.b[...]

        seen = call(*nnx.split(model))
        assert [float(x) for x in seen] == [after, after]
        assert model.a is model.inner.b is v
        assert_holds(nnx, v, nnx.Variable, np.float32(after), tag="t")

    def test_groups(self, nnx):
        with nnx.var_defaults(hijax=True):
            w, n = nnx.Param(array([1, 2])), nnx.BatchStat(array(0, "int32"))
        model = net(nnx, layers=nnx.List([net(nnx, w=w, n=n), net(nnx, w=w, n=n)]), head=w)

        @jax.jit
        def call(graphdef, params, rest):
            merged = nnx.merge(graphdef, params, rest)
            for layer in merged.layers:
                layer.w[...] *= 3
                layer.n[...] += 1
            return merged.head[...]

        for times in (9, 81):
            seen = call(*nnx.split(model, nnx.Param, ...))
            assert seen.tolist() == [times, 2 * times]
        assert_holds(nnx, model.head, nnx.Param, np.float32([81, 162]))
        assert_holds(nnx, n, nnx.BatchStat, np.int32(4))

    @given(plan=shared_graphs())
    def test_any_graph_stays_one(self, nnx, plan):
        with nnx.var_defaults(hijax=True):
            node = build(nnx, plan)
        merged = nnx.merge(*nnx.split(node))
        for item, paths in objects(plan):
            if isinstance(item, VariablePlan):
                assert all(at(nnx, merged, path) is at(nnx, merged, paths[0]) for path in paths)
