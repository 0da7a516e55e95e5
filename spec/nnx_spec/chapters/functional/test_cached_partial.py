"""Cached partials: a transformed function with some of its objects bound to it."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.oracles import snapshot
from nnx_spec.plans import classes

MODE = {"graph": True, "graph_updates": True}
"""The one mode that the documents know for cached partials."""

TRANSFORMS = {
    "vmap": lambda nnx, f: nnx.vmap(f, **MODE),
    "jit": lambda nnx, f: nnx.jit(f, **MODE),
}
"""Ways to transform a function of nodes and arrays with a leading axis of 2, by name."""

each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)

ROWS = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])


def model(nnx):
    """Makes a model of two rows of parameters and of counts, with static attributes."""
    inner = net(nnx, n=count(nnx, [0, 10]), name="inner")
    return net(nnx, w=param(nnx, [[0.0, 1.0], [2.0, 3.0]]), inner=inner, size=2)


def step(node, other, x, y):
    """Computes, and writes to Variables of both nodes."""
    node.w[...] += x
    node.inner.n[...] += 1
    other.total[...] += node.w[...].sum() + y
    return node.w[...] * 2


def sow_and_pop(nnx, node, x):
    """Adds an attribute and removes it again."""
    node.seen = nnx.Intermediate(x)
    node.w[...] += nnx.pop(node, nnx.Intermediate)["seen"][...]


CHANGES = {
    "new static attribute": lambda nnx, node, x: setattr(node, "extra", 3),
    "new Variable": lambda nnx, node, x: setattr(node, "extra", nnx.Param(x)),
    "new Variable below": lambda nnx, node, x: setattr(node.inner, "extra", nnx.Param(x)),
    "attribute removed": lambda nnx, node, x: delattr(node, "w"),
    "static value changed": lambda nnx, node, x: setattr(node, "size", 3),
    "static value changed below": lambda nnx, node, x: setattr(node.inner, "name", "other"),
    "Variable of another class": lambda nnx, node, x: setattr(node, "w", nnx.BatchStat(x)),
    "Variable shared": lambda nnx, node, x: setattr(node, "again", node.w),
    "node replaced": lambda nnx, node, x: setattr(node, "inner", net(nnx, n=node.inner.n)),
}
"""Ways to change the structure of a node."""


@clause("GRF-026", MUST, DOCUMENTED, source="guides/performance#caching-graph-node-traversals")
class TestCachedPartial:
    """`cached_partial(f, *nodes)(*args)` is `f(*nodes, *args)` for a transformed function `f`.

    The Variables that `f` writes are the nodes' own, so that their updates are seen outside, and
    later writes from outside are seen by the next call. The nodes that `f` is given are others, so
    that what is done to the nodes' structure from outside does not reach them. A call that leaves
    their structure changed raises ValueError and leaves the nodes outside as they were; a change
    that is undone before the end of the call is none.
    """

    @each_transform
    def test_equals_the_plain_call(self, nnx, transform):
        f = transform(nnx, step)
        node, twin = model(nnx), model(nnx)
        other, other_twin = (net(nnx, total=param(nnx, [0.0, 0.0])) for _ in range(2))
        weights, before = node.w, snapshot(nnx, node)
        partial = nnx.cached_partial(f, node, other)
        for x in (ROWS, ROWS + 1):
            y = jnp.asarray([0.5, 1.5])
            np.testing.assert_array_equal(partial(x, y), f(twin, other_twin, x, y))
            assert snapshot(nnx, node) == snapshot(nnx, twin)
            assert snapshot(nnx, other) == snapshot(nnx, other_twin)
        assert node.w is weights
        assert snapshot(nnx, node) != before

    def test_some_or_none_of_the_nodes(self, nnx):
        f = nnx.vmap(step)
        results = []
        for bound in range(3):
            nodes = (model(nnx), net(nnx, total=param(nnx, [0.0, 0.0])))
            result = nnx.cached_partial(f, *nodes[:bound])(*nodes[bound:], ROWS, ROWS[0])
            results.append((result.tolist(), snapshot(nnx, nodes)))
        assert results[0] == results[1] == results[2]

    def test_sharing_between_nodes(self, nnx):
        shared = param(nnx, [1.0, 2.0])
        first, second = net(nnx, w=shared), net(nnx, v=shared)

        def write_and_read(first, second, x):
            first.w[...] += x
            return second.v[...]

        partial = nnx.cached_partial(nnx.vmap(write_and_read), first, second)
        np.testing.assert_array_equal(partial(ROWS[:, 0]), [2.0, 5.0])
        np.testing.assert_array_equal(shared[...], [2.0, 5.0])
        assert first.w is shared
        assert second.v is shared

    @each_transform
    def test_writes_from_outside_are_seen(self, nnx, transform):
        node = net(nnx, w=param(nnx, [1.0, 2.0]))
        partial = nnx.cached_partial(transform(nnx, lambda node, x: node.w[...] + x), node)
        np.testing.assert_array_equal(partial(jnp.zeros(2)), [1.0, 2.0])
        node.w[...] = jnp.asarray([5.0, 6.0])
        np.testing.assert_array_equal(partial(jnp.zeros(2)), [5.0, 6.0])
        nnx.update(node, {"w": jnp.asarray([7.0, 8.0])})
        np.testing.assert_array_equal(partial(jnp.zeros(2)), [7.0, 8.0])

    @each_transform
    def test_structure_from_outside_is_not_seen(self, nnx, transform):
        node = net(nnx, w=param(nnx, [1.0, 2.0]), size=2)
        weights = node.w
        partial = nnx.cached_partial(
            transform(nnx, lambda node, x: node.w[...] * node.size + x), node
        )
        node.w, node.size, node.extra = param(nnx, [9.0, 9.0]), 3, param(nnx, [9.0, 9.0])
        np.testing.assert_array_equal(partial(jnp.zeros(2)), [2.0, 4.0])
        weights[...] = jnp.asarray([5.0, 6.0])
        np.testing.assert_array_equal(partial(jnp.zeros(2)), [10.0, 12.0])

    @each_transform
    @pytest.mark.parametrize("change", CHANGES)
    def test_changed_structure_is_refused(self, nnx, transform, change):
        node = model(nnx)
        before = snapshot(nnx, node)
        partial = nnx.cached_partial(transform(nnx, functools.partial(CHANGES[change], nnx)), node)
        with pytest.raises(ValueError):  # noqa: PT011
            partial(ROWS)
        assert snapshot(nnx, node) == before

    @each_transform
    def test_changed_metadata_is_refused(self, nnx, transform):
        partial = nnx.cached_partial(
            transform(nnx, lambda node, x: node.w.set_metadata(tag="new")), model(nnx)
        )
        with pytest.raises(ValueError):  # noqa: PT011
            partial(ROWS)

    @each_transform
    def test_change_that_is_undone(self, nnx, transform):
        node = model(nnx)
        partial = nnx.cached_partial(transform(nnx, functools.partial(sow_and_pop, nnx)), node)
        for times in (1, 2):
            partial(ROWS)
            expected = model(nnx)
            expected.w[...] += times * ROWS
            assert snapshot(nnx, node) == snapshot(nnx, expected)

    @each_transform
    def test_exceptions_pass_through(self, nnx, transform):
        node = model(nnx)
        before = snapshot(nnx, node)

        def fail(node, x):
            if fail.planned:
                raise KeyError("planned")
            node.w[...] += x

        fail.planned = True
        partial = nnx.cached_partial(transform(nnx, fail), node)
        with pytest.raises(KeyError, match="planned"):
            partial(ROWS)
        assert snapshot(nnx, node) == before
        fail.planned = False
        partial(ROWS)
        np.testing.assert_array_equal(node.w[...], model(nnx).w[...] + ROWS)
        assert type(node.inner.n) is classes(nnx).Count
