"""Split and merge inside JAX's own transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.functional.modes import both_modes
from nnx_spec.oracles import array_record, snapshot
from nnx_spec.plans import classes

passing = pytest.mark.parametrize("closed", [False, True], ids=["argument", "closed-over"])
"""Runs a test with the graphdef as an argument of the transformed function, and closed over."""

INPUTS = jnp.asarray([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])


def model(nnx, w=(1.0, 2.0), n=0):
    """Makes a model of a parameter and a count, the latter one level down."""
    return net(nnx, w=param(nnx, w, tag="red"), inner=net(nnx, n=count(nnx, n)), power=2)


def step(model, x):
    """Computes, and writes to both Variables."""
    model.inner.n[...] += 1
    model.w[...] += x
    return (model.w**model.power * x).sum()


@clause("GRF-018", MUST, DOCUMENTED, source="nnx_basics#split-merge-and-update")
class TestUnderJax:
    """`split` and `merge` work inside `jax.jit`, `jax.grad`, `jax.vmap` and `jax.lax.scan`.

    What is computed and written there is what the same code computes and writes without the
    transform. The graphdef may be an argument of the transformed function or closed over; an equal
    graphdef causes no new trace. Variables of a State that is closed over can be written in a copy,
    which `merge` makes with `copy=True`.
    """

    @both_modes
    @passing
    def test_jit(self, nnx, graph, closed):
        node, twin = model(nnx), model(nnx)
        traces = []

        def call(graphdef, state, x):
            traces.append(None)
            merged = nnx.merge(graphdef, state)
            y = step(merged, x)
            return y, nnx.split(merged, graph=graph)[1]

        graphdef, state = nnx.split(node, graph=graph)
        jitted = jax.jit((lambda state, x: call(graphdef, state, x)) if closed else call)
        for x in INPUTS:
            arguments = () if closed else (nnx.split(model(nnx), graph=graph)[0],)
            y, state = jitted(*arguments, state, x)
            assert array_record(y) == array_record(step(twin, x))
        nnx.update(node, state)
        assert snapshot(nnx, node) == snapshot(nnx, twin)
        assert len(traces) == 1

    @both_modes
    @passing
    def test_grad(self, nnx, graph, closed):
        def loss(graphdef, params, rest):
            merged = nnx.merge(graphdef, params, rest)
            return (merged.w**merged.power * INPUTS[0]).sum()

        graphdef, params, rest = nnx.split(model(nnx), nnx.Param, ..., graph=graph)
        if closed:
            grads = jax.grad(lambda params: loss(graphdef, params, rest))(params)
        else:
            grads = jax.grad(loss, argnums=1)(graphdef, params, rest)
        assert jax.tree.structure(grads) == jax.tree.structure(params)
        np.testing.assert_array_equal(grads["w"][...], [2 * 1 * 3, 2 * 2 * 4])
        np.testing.assert_array_equal(params["w"][...], [1.0, 2.0])

    @both_modes
    @passing
    def test_writes_under_grad(self, nnx, graph, closed):
        def loss(graphdef, params, rest):
            merged = nnx.merge(graphdef, params, rest, copy=True)
            return step(merged, INPUTS[0]), nnx.state(merged, classes(nnx).Count, graph=graph)

        graphdef, params, rest = nnx.split(model(nnx), nnx.Param, ..., graph=graph)
        if closed:
            gradient = jax.grad(lambda params: loss(graphdef, params, rest), has_aux=True)
            grads, counts = gradient(params)
        else:
            grads, counts = jax.grad(loss, argnums=1, has_aux=True)(graphdef, params, rest)
        np.testing.assert_array_equal(grads["w"][...], [2 * (1 + 3) * 3, 2 * (2 + 4) * 4])
        assert array_record(counts["inner"]["n"][...]) == array_record(jnp.int32(1))
        assert array_record(rest["inner"]["n"][...]) == array_record(jnp.int32(0))

    @both_modes
    @passing
    def test_vmap(self, nnx, graph, closed):
        def call(graphdef, state, x):
            merged = nnx.merge(graphdef, state)
            y = step(merged, x)
            return y, nnx.split(merged, graph=graph)[1]

        node = model(nnx, w=INPUTS, n=[0, 10, 20])
        twins = [model(nnx, w=INPUTS[i], n=10 * i) for i in range(3)]
        graphdef, state = nnx.split(node, graph=graph)
        if closed:
            y, state = jax.vmap(lambda state, x: call(graphdef, state, x))(state, INPUTS)
        else:
            y, state = jax.vmap(call, in_axes=(None, 0, 0))(graphdef, state, INPUTS)
        expected = [step(twin, x) for twin, x in zip(twins, INPUTS, strict=True)]
        np.testing.assert_array_equal(y, expected)
        nnx.update(node, state)
        assert snapshot(nnx, node) == snapshot(
            nnx,
            model(nnx, w=[twin.w[...] for twin in twins], n=[twin.inner.n[...] for twin in twins]),
        )

    @both_modes
    @passing
    def test_scan(self, nnx, graph, closed):
        def body(carry, x):
            merged = nnx.merge(*carry)
            y = step(merged, x)
            return nnx.split(merged, graph=graph), y

        def body_closed(state, x):
            (_, state), y = body((graphdef, state), x)
            return state, y

        node, twin = model(nnx), model(nnx)
        graphdef, state = nnx.split(node, graph=graph)
        if closed:
            state, ys = jax.lax.scan(body_closed, state, INPUTS)
        else:
            (after, state), ys = jax.lax.scan(body, (graphdef, state), INPUTS)
            assert after == graphdef
        np.testing.assert_array_equal(ys, [step(twin, x) for x in INPUTS])
        nnx.update(node, state)
        assert snapshot(nnx, node) == snapshot(nnx, twin)

    def test_sharing(self, nnx):
        shared = param(nnx, [1.0, 2.0])
        node = net(nnx, first=shared, inner=net(nnx, second=shared))

        @jax.jit
        def call(graphdef, state):
            merged = nnx.merge(graphdef, state)
            merged.first[...] += 10
            return merged.inner.second[...], nnx.split(merged, graph=True)

        seen, after = call(*nnx.split(node, graph=True))
        np.testing.assert_array_equal(seen, [11.0, 12.0])
        written = param(nnx, [11.0, 12.0])
        expected = net(nnx, first=written, inner=net(nnx, second=written))
        assert snapshot(nnx, nnx.merge(*after)) == snapshot(nnx, expected)
