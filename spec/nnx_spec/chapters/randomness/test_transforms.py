"""Streams in transforms: what a draw inside does to the caller's streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, SOUND, TESTED, clause, needs, stands_on
from nnx_spec.chapters.randomness.keys import count_of, nth_key, records, stream_record
from nnx_spec.oracles import array_record

MODES = {"default": {}, "tree-mode": {"graph": False}}
"""The options of a transform in the default mode and in tree mode."""

both_modes = pytest.mark.parametrize("mode", MODES)

# Some releases say that `fork(split=...)` is to be replaced by `split`; both are in the documents.
pytestmark = pytest.mark.filterwarnings("ignore:.*split.*:DeprecationWarning")


def draw(rngs):
    """Draws twice from the stream `default`, once of it under another name, and from `noise`."""
    return rngs(), rngs.params(), rngs.noise()


def batched_draws(nnx, rngs):
    """Draws from every slice of a batched `Rngs`, which has not drawn yet, one after the other."""
    names, width = ("default", "noise"), rngs.noise.key.get_value().shape[0]
    slices = [
        nnx.Rngs(**{name: rngs[name].key.get_value()[n] for name in names}) for n in range(width)
    ]
    return [jnp.stack(column) for column in zip(*map(draw, slices), strict=True)]


def equal(left, right):
    """Tells whether two sequences of arrays are equal to the bit."""
    return [*map(array_record, left)] == [*map(array_record, right)]


CAPTURING = {
    "jit": lambda nnx, use: nnx.jit(use)(0.0),
    "vmap": lambda nnx, use: nnx.vmap(use)(jnp.zeros(2)),
    "scan": lambda nnx, use: nnx.scan(
        lambda c, x: (c, use(x)), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0)
    )(0.0, jnp.zeros(2)),
    "grad": lambda nnx, use: nnx.grad(use)(0.0),
    "remat": lambda nnx, use: nnx.remat(use)(0.0),
    "jax.jit": lambda nnx, use: jax.jit(use)(0.0),
    "jax.vmap": lambda nnx, use: jax.vmap(use)(jnp.zeros(2)),
}
"""Ways to call a function of a scalar inside a transform."""

USES = {
    "draw": lambda rngs, x: x * jax.random.normal(rngs()),
    "sample": lambda rngs, x: x * rngs.noise.normal(),
    "fork": lambda rngs, x: x * rngs.fork().normal(),
    "split": lambda rngs, x: x * jax.random.normal(rngs.fork(split=2).noise.key[0]),
}
"""Ways to draw from `Rngs` in a function of a scalar."""


@clause("RNG-014", MUST, DOCUMENTED, source="guides/randomness#transforming-implicit-state")
class TestTransforms:
    """A draw from `Rngs` that are passed to a transform counts for the caller as it does eagerly.

    Under `jit`, `grad`, `remat`, and in `scan` that carries the streams, the numbers are those of
    the same calls one after the other; under `vmap` and `scan` over split streams those of each
    slice by itself. In `scan` that broadcasts them so they are in tree mode, while with graph
    updates each step draws the same keys. A draw from `Rngs` that the function captured raises
    `TraceContextError` and draws nothing.
    """

    @both_modes
    def test_jit(self, nnx, mode):
        rngs, eager = nnx.Rngs(3, noise=4), nnx.Rngs(3, noise=4)
        drawing = nnx.jit(draw, **MODES[mode])
        for _ in range(2):
            assert equal(drawing(rngs), draw(eager))
        assert records(rngs, ["default", "noise"]) == records(eager, ["default", "noise"])

    @both_modes
    def test_vmap(self, nnx, mode):
        rngs = nnx.Rngs(3, noise=4).fork(split=2)
        expected = batched_draws(nnx, rngs)
        before = stream_record(rngs.noise)[0]
        assert equal(nnx.vmap(draw, **MODES[mode])(rngs), expected)
        assert stream_record(rngs.noise) == (before, [1, 1])
        assert count_of(rngs.default) == [2, 2]

    @both_modes
    def test_scan_over_slices(self, nnx, mode):
        def step(carry, rngs):
            return carry + 1, draw(rngs)

        axes = (nnx.Carry, 0)
        rngs = nnx.Rngs(3, noise=4).fork(split=2)
        expected = batched_draws(nnx, rngs)
        before = stream_record(rngs.noise)[0]
        carry, drawn = nnx.scan(step, in_axes=axes, out_axes=axes, **MODES[mode])(0, rngs)
        assert (int(carry), equal(drawn, expected)) == (2, True)
        assert stream_record(rngs.noise) == (before, [1, 1])
        assert count_of(rngs.default) == [2, 2]

    @both_modes
    def test_scan_that_carries(self, nnx, mode):
        def step(rngs, x):
            return rngs, rngs.noise()

        axes = (nnx.Carry, 0)
        rngs = nnx.Rngs(3, noise=4)
        scanning = nnx.scan(step, in_axes=axes, out_axes=axes, **MODES[mode])
        carried, drawn = scanning(rngs, jnp.zeros(3))
        assert equal(drawn, [nth_key(4, n) for n in range(3)])
        expected = {
            "default": stream_record(nnx.Rngs(3).default),
            "noise": (array_record(jax.random.key(4)), 3),
        }
        assert records(rngs, expected) == records(carried, expected) == expected

    @stands_on(TESTED, "tests/nnx/transforms_test.py::TestScan::test_broadcast_variable_mutation")
    def test_scan_that_broadcasts_in_tree_mode(self, nnx):
        rngs = nnx.Rngs(noise=4)
        drawn = self.broadcast(nnx, rngs, graph=False, graph_updates=False)
        assert [*map(array_record, drawn)] == [array_record(nth_key(4, n)) for n in range(3)]
        assert stream_record(rngs.noise) == (array_record(jax.random.key(4)), 3)

    @needs("graph-updates")
    @stands_on(TESTED, "tests/nnx/transforms_test.py::TestScan::test_scan_broadcast_keys")
    def test_scan_that_broadcasts_with_graph_updates(self, nnx):
        drawn = self.broadcast(nnx, nnx.Rngs(noise=4), graph=True, graph_updates=True)
        assert [*map(array_record, drawn)] == [array_record(nth_key(4, 0))] * 3

    def broadcast(self, nnx, rngs, **mode):
        def step(carry, x, rngs):
            return carry, rngs.noise()

        axes = (nnx.Carry, 0)
        scanning = nnx.scan(step, in_axes=(*axes, None), out_axes=axes, **mode)
        return scanning(0, jnp.zeros(3), rngs)[1]

    @both_modes
    @pytest.mark.parametrize("name", ["grad", "value_and_grad"])
    def test_grad(self, nnx, mode, name):
        rngs = nnx.Rngs(3)
        transform = getattr(nnx, name)
        function = transform(lambda x, rngs: x * rngs.normal(), **MODES[mode])
        for n in range(2):
            found, expected = function(2.0, rngs), jax.random.normal(nth_key(3, n))
            wanted = expected if name == "grad" else (2.0 * expected, expected)
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert stream_record(rngs.default) == (array_record(jax.random.key(3)), 2)

    @both_modes
    def test_remat(self, nnx, mode):
        rngs, eager = nnx.Rngs(3, noise=4), nnx.Rngs(3, noise=4)
        drawing = nnx.remat(draw, **MODES[mode])
        for _ in range(2):
            assert equal(drawing(rngs), draw(eager))
        assert records(rngs, ["default", "noise"]) == records(eager, ["default", "noise"])

    @pytest.mark.parametrize("transform", CAPTURING)
    def test_captured(self, nnx, transform):
        self.check_captured(nnx, transform, "draw")

    @pytest.mark.parametrize("use", ["sample", "fork", "split"])
    def test_captured_in_other_ways(self, nnx, use):
        self.check_captured(nnx, "jit", use)

    def check_captured(self, nnx, transform, use):
        rngs = nnx.Rngs(3, noise=4)
        with pytest.raises(nnx.errors.TraceContextError):
            CAPTURING[transform](nnx, lambda x: USES[use](rngs, x))
        assert (count_of(rngs.default), count_of(rngs.noise)) == (0, 0)
        assert array_record(rngs()) == array_record(nth_key(3, 0))


@clause("RNG-016", MUST, SOUND, source="the derivative is that of another mask than the value")
class TestRemat:
    """A draw inside `remat` is the same in the forward pass and when it is recomputed.

    So the gradient is that of the numbers that were drawn, and the streams count the draw once.
    """

    def test_jax_grad(self, nnx):
        def loss(w):
            rngs = nnx.Rngs(3)
            value, mask = nnx.remat(masked)(rngs, w)
            return value, (mask, rngs.default.count.get_value())

        gradient, (mask, count) = jax.grad(loss, has_aux=True)(WEIGHTS)
        check_gradient(gradient, mask, int(count))

    @both_modes
    def test_nnx_grad(self, nnx, mode):
        def loss(w, rngs):
            return rematted(rngs, w)

        rngs = nnx.Rngs(3)
        rematted = nnx.remat(masked, **MODES[mode])
        gradient, mask = nnx.grad(loss, has_aux=True, **MODES[mode])(WEIGHTS, rngs)
        check_gradient(gradient, mask, count_of(rngs.default))

    def test_two_calls(self, nnx):
        def loss(w):
            rngs = nnx.Rngs(3)
            first, mask = rematted(rngs, w)
            second, other = rematted(rngs, w)
            return first + second, (mask, other)

        rematted = nnx.remat(masked)
        gradient, (mask, other) = jax.grad(loss, has_aux=True)(WEIGHTS)
        assert mask.tolist() != other.tolist()
        kept = np.where(mask, np.cos(WEIGHTS), 0.0) + np.where(other, np.cos(WEIGHTS), 0.0)
        np.testing.assert_allclose(gradient, kept, rtol=1e-6)


WEIGHTS = np.linspace(0.25, 1.25, 16, dtype="float32")


def masked(rngs, w):
    """Sums the sines of w under a random mask; returns the sum and the mask, of the shape of w."""
    mask = rngs.bernoulli(0.5, w.shape)
    return jnp.where(mask, jnp.sin(w), 0.0).sum(), mask


def check_gradient(gradient, mask, count):
    """Checks the gradient of `masked`, its mask, and how often the stream of seed 3 has drawn."""
    assert mask.tolist() == jax.random.bernoulli(nth_key(3, 0), 0.5, WEIGHTS.shape).tolist()
    np.testing.assert_allclose(gradient, np.where(mask, np.cos(WEIGHTS), 0.0), rtol=1e-6)
    assert count == 1
