"""Stacks: hijax Variables with a leading axis for the layers or members of a model."""

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec import MUST, SOUND, clause
from nnx_spec.chapters.hijax.cases import assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import assert_no_tracers

LAYERS, SIZE, RATE = 3, 2, 0.5
INPUT = np.float32([1, 2])


def layer_class(nnx):
    """Makes a class of layers that count their calls and remember their last output."""

    class Layer(nnx.Module):
        def __init__(self, key):
            self.kernel = nnx.Param(jax.random.normal(key, (SIZE, SIZE)))
            self.last = nnx.BatchStat(jnp.zeros(SIZE))
            self.calls = nnx.BatchStat(jnp.int32(0))

        def __call__(self, x):
            x = jnp.tanh(x @ self.kernel)
            self.calls[...] += 1
            self.last[...] = jax.lax.stop_gradient(x)
            return x

    return Layer


def stack_of(nnx):
    """Makes a stack of layers: `vmap` over the initializer, as the guide outlines it.

    Returns None if the target refuses to.
    """
    layer = layer_class(nnx)

    @jax.vmap
    def create(key):
        with nnx.var_defaults(hijax=True):
            return with_vars(nnx, layer(key), hijax=False)

    try:
        return with_vars(nnx, create(jax.random.split(jax.random.key(0), LAYERS)), hijax=True)
    except Exception:
        return None


def apply(kernels, x):
    """Applies the layers one after another, on arrays; returns all outputs."""
    outputs = []
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
        outputs.append(x)
    return outputs


def call_layer(x, layer):
    """Applies a layer, as the body of a scan."""
    return layer(x), None


def states(stack):
    """Reads the values of a stack."""
    return stack.kernel[...], stack.last[...], stack.calls[...].tolist()


@clause(
    "HJX-035",
    MUST,
    SOUND,
    source="a layer silently computes with, or keeps, another's state",
    needs={"hijax"},
)
class TestScanOverLayers:
    """A stack of layers that `vmap` makes by an initializer, applied with `scan`, computes and
    trains as the layers one after another do, with the states of every layer.

    A target that cannot do so raises, and leaves the stack as it was.
    """

    @staticmethod
    def assert_states(stack, kernels, last, calls):
        found = states(stack)
        np.testing.assert_allclose(found[0], kernels, rtol=1e-5)
        np.testing.assert_allclose(found[1], last, rtol=1e-5)
        assert found[2] == [calls] * LAYERS

    def test_forward(self, nnx):
        if (stack := stack_of(nnx)) is None:
            return
        start = stack.kernel[...]
        assert start.shape == (LAYERS, SIZE, SIZE)
        assert len({tuple(kernel.ravel().tolist()) for kernel in start}) == LAYERS
        forward = jax.jit(lambda stack, x: jax.lax.scan(call_layer, x, stack)[0])
        last, x = np.zeros((LAYERS, SIZE)), jnp.asarray(INPUT)
        for calls in (1, 2):
            try:
                y = forward(stack, x)
            except Exception:
                self.assert_states(stack, start, last, calls - 1)
                return
            last = np.stack(apply(start, x))
            np.testing.assert_allclose(y, last[-1], rtol=1e-5)
            self.assert_states(stack, start, last, calls)
            x = y
        assert_no_tracers(nnx, stack)

    def test_training(self, nnx):
        if (stack := stack_of(nnx)) is None:
            return

        @jax.jit
        def step(stack, x):
            graphdef, params, rest = nnx.split(stack, nnx.Param, ...)

            def loss(params):
                merged = nnx.merge(graphdef, params, rest)
                return (jax.lax.scan(call_layer, x, merged)[0] ** 2).sum()

            value, grads = jax.value_and_grad(loss)(with_vars(nnx, params, hijax=False))
            stack.kernel[...] -= RATE * grads["kernel"][...]
            return value

        kernels, last = stack.kernel[...], np.zeros((LAYERS, SIZE))
        losses = []
        for calls in range(1, 4):
            try:
                losses.append(step(stack, INPUT))
            except Exception:
                self.assert_states(stack, kernels, last, calls - 1)
                return
            last = np.stack(apply(kernels, INPUT))
            loss, grads = expected_gradient(kernels)
            kernels = kernels - RATE * grads
            np.testing.assert_allclose(losses[-1], loss, rtol=1e-5)
            self.assert_states(stack, kernels, last, calls)
        assert losses[0] > losses[1] > losses[2]
        assert_no_tracers(nnx, stack)


@jax.jit
def expected_gradient(kernels):
    """Returns the loss of the layers, one after another, and its gradient."""
    return jax.value_and_grad(lambda k: (apply(k, INPUT)[-1] ** 2).sum())(kernels)


@clause(
    "HJX-036",
    MUST,
    SOUND,
    source="a slice is silently read or written for another",
    needs={"hijax"},
)
class TestVmap:
    """`jax.vmap` over a hijax Variable's leading axis reads and updates each slice, or raises and
    changes nothing.
    """

    VALUE = np.float32([[1, 2], [3, 4], [5, 6]])

    def check(self, nnx, call, result, after):
        v = nnx.Param(array(self.VALUE), hijax=True, tag="t")
        try:
            found = call(v)
        except Exception:
            assert_holds(nnx, v, nnx.Param, self.VALUE, tag="t")
            return
        np.testing.assert_array_equal(found, result)
        assert_holds(nnx, v, nnx.Param, np.float32(after), tag="t")

    def test_reading(self, nnx):
        call = jax.vmap(lambda v: v[0] * 10 + v[1])
        self.check(nnx, call, [12, 34, 56], self.VALUE)

    def test_reading_under_jit(self, nnx):
        call = jax.jit(jax.vmap(lambda v: v[...].sum()))
        self.check(nnx, call, [3, 7, 11], self.VALUE)

    def test_updating(self, nnx):
        def update(v):
            v[...] *= 2
            v[1] += v[0]
            return v[...].sum()

        after = [[2, 6], [6, 14], [10, 22]]
        self.check(nnx, jax.vmap(update), [8, 20, 32], after)
        self.check(nnx, jax.jit(jax.vmap(update)), [8, 20, 32], after)

    def test_updating_with_another_argument(self, nnx):
        def update(v, x):
            v[...] += x
            return v[0] + 0

        x = array([10, 20, 30])
        after = [[11, 12], [23, 24], [35, 36]]
        self.check(nnx, lambda v: jax.vmap(update)(v, x), [11, 23, 35], after)

    def test_another_axis(self, nnx):
        def update(v):
            v[...] = v[::-1] * 2
            return v[0] + 0

        call = jax.vmap(update, in_axes=1)
        self.check(nnx, call, [10, 12], [[10, 12], [6, 8], [2, 4]])

    def test_captured(self, nnx):
        """Reads all of the Variable in each of the slices' functions."""
        self.check(
            nnx,
            lambda v: jax.vmap(lambda x: (v[...] * x).sum())(array([1, 2])),
            [21, 42],
            self.VALUE,
        )
