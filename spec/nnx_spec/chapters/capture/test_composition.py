"""Capturing together with transforms, and the documented steps that need it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.capture.models import (
    defaults,
    everything,
    found,
    has_captures,
    wanted,
)
from nnx_spec.chapters.functional.making import count
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.modes import MODES, each_mode
from nnx_spec.oracles import snapshot, value_record

SOURCE = "guides/extracting_intermediates#nnx-transforms-and-capturing"

UPDATES = MODES["graph-updates"]

pytestmark = pytest.mark.filterwarnings("ignore:(?s).*outside of 'nnx.capture:DeprecationWarning")


@functools.cache
def neuron(nnx):
    """Makes the class of a Module that multiplies vectors with weights, perturbs, sows, counts."""

    class Neuron(nnx.Module):
        def __init__(self, start=1):
            self.w = nnx.Param(counted((2,), start))
            self.calls = count(nnx, 0)

        def __call__(self, x):
            self.calls[...] += 1
            y = self.perturb("product", self.perturb("input", x) * self.w)
            self.sow(nnx.Intermediate, "y", y)
            return jnp.sum(y)

    return Neuron


def call(model, x):
    """Calls a model."""
    return model(x)


def stacked(nnx):
    """Makes a Neuron whose arrays have a leading axis of size 3."""
    neurons = [neuron(nnx)(start) for start in (1, 2, 3)]
    return jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *neurons)


W = np.float32([1, 2])
"""The weights of a Neuron."""

BATCH = np.float32([[1, 2], [3, 4], [5, 6]])


@clause("CAP-008", MUST, DOCUMENTED, source=SOURCE)
class TestComposition:
    """A capture works in a transformed function, and around a call of one.

    Within `jit`, `grad` with `has_aux`, `vmap` and `scan`, what it returns is an output as any
    other: batched, stacked or beside a gradient. Around a transform it has what is sown inside.
    The Modules are left as they are without capturing.
    """

    def check(self, nnx, model, state, y, calls=1):
        assert found(state, nnx.Intermediate) == wanted({("y",): y})
        assert set(np.ravel(model.calls[...]).tolist()) == {calls}
        assert not has_captures(nnx, model), "`__captures__` is left in the model"

    @each_mode
    def test_in_jit(self, nnx, mode):
        model = neuron(nnx)()
        with defaults(nnx, mode):
            jitted = nnx.jit(nnx.capture(nnx.Intermediate)(call), **mode)
            for calls, x in enumerate(BATCH, 1):
                result, state = jitted(model, x)
                assert float(result) == x @ W
                self.check(nnx, model, state, (x * W,), calls)

    @each_mode
    def test_around_jit(self, nnx, mode):
        model = neuron(nnx)()
        with defaults(nnx, mode):
            capturing = nnx.capture(nnx.jit(call, **mode), nnx.Intermediate)
            for calls, x in enumerate(BATCH, 1):
                result, state = capturing(model, x)
                assert float(result) == x @ W
                self.check(nnx, model, state, (x * W,), calls)

    @each_mode
    def test_in_grad(self, nnx, mode):
        model, capturing = neuron(nnx)(), nnx.capture(nnx.Intermediate)(call)
        with defaults(nnx, mode):
            transform = nnx.value_and_grad(
                lambda x, model: capturing(model, x), has_aux=True, **mode
            )
            (value, state), gradient = transform(BATCH[0], model)
        assert (float(value), gradient.tolist()) == (5, [1, 2])
        self.check(nnx, model, state, (BATCH[0] * W,))

    @each_mode
    def test_around_grad(self, nnx, mode):
        model = neuron(nnx)()

        def differentiate(model, x):
            return nnx.grad(lambda x, model: model(x), **mode)(x, model)

        with defaults(nnx, mode):
            gradient, state = nnx.capture(differentiate, nnx.Intermediate)(model, BATCH[0])
        assert gradient.tolist() == [1, 2]
        self.check(nnx, model, state, (BATCH[0] * W,))

    @each_mode
    def test_in_vmap(self, nnx, mode):
        model, capturing = neuron(nnx)(), nnx.capture(nnx.Intermediate)(call)
        with defaults(nnx, mode):
            mapped = nnx.vmap(capturing, in_axes=(None, 0), **mode)
            result, state = mapped(model, BATCH)
        assert result.tolist() == (BATCH @ W).tolist()
        self.check(nnx, model, state, (BATCH * W,))

    @each_mode
    @pytest.mark.parametrize("place", ["in", "around"])
    def test_vmap_of_models(self, nnx, place, mode):
        model, capturing = stacked(nnx), nnx.capture(nnx.Intermediate)
        with defaults(nnx, mode):
            mapped = nnx.vmap(capturing(call) if place == "in" else call, **mode)
            result, state = (mapped if place == "in" else capturing(mapped))(model, BATCH)
        products = BATCH * np.float32([[1, 2], [2, 3], [3, 4]])
        assert result.tolist() == products.sum(1).tolist()
        self.check(nnx, model, state, (products,))

    @each_mode
    def test_in_scan_that_carries(self, nnx, mode):
        def step(model, x):
            return model, nnx.capture(model, nnx.Intermediate)(x)

        model, axes = neuron(nnx)(), (nnx.Carry, 0)
        with defaults(nnx, mode):
            scanned = nnx.scan(step, in_axes=axes, out_axes=axes, **mode)
            _, (results, state) = scanned(model, BATCH)
        assert results.tolist() == (BATCH @ W).tolist()
        self.check(nnx, model, state, (BATCH * W,), calls=3)

    @each_mode
    @pytest.mark.parametrize("place", ["in", "around"])
    def test_scan_over_layers(self, nnx, place, mode):
        capturing = nnx.capture(nnx.Intermediate)

        def scan(model, x):
            axes = (nnx.Carry, 0)
            return nnx.scan(step, in_axes=axes, out_axes=axes, **mode)(x, model)

        def step(x, model):
            output = (capturing(call) if place == "in" else call)(model, x)
            return x + (output[0] if place == "in" else output), output

        model = stacked(nnx)
        with defaults(nnx, mode):
            if place == "in":
                last, (_, state) = scan(model, BATCH[0])
            else:
                (last, _), state = capturing(scan)(model, BATCH[0])
        x, products = BATCH[0], []
        for w in ([1, 2], [2, 3], [3, 4]):
            products.append(x * np.float32(w))
            x = x + products[-1].sum()
        assert last.tolist() == x.tolist()
        self.check(nnx, model, state, (np.stack(products),))

    @each_mode
    def test_the_guides_step(self, nnx, mode):
        @nnx.capture(nnx.Perturbation)
        def init(model, x):
            graphdef, perturbations, rest = nnx.split(
                model, nnx.Intermediate, ..., graph=mode["graph"]
            )

            def forward(perturbations, rest, x):
                return nnx.merge(graphdef, perturbations, rest)(x)

            return nnx.vmap(forward, in_axes=(0, None, 0), **mode)(perturbations, rest, x)

        def loss(w, perturbations, x, model):
            model.w[...] = w
            return nnx.capture(model, nnx.Intermediate, init=perturbations)(x)

        def gradients(model, perturbations, x):
            transform = nnx.grad(loss, argnums=(0, 1), has_aux=True, **mode)
            (by_w, by_perturbations), sown = transform(model.w[...], perturbations, x, model)
            return by_w, nnx.merge_state(by_perturbations, sown)

        @nnx.jit(**mode)
        def step(model, x):
            _, perturbations = init(model, x)
            mapped = nnx.vmap(gradients, in_axes=(None, 0, 0), **mode)
            return mapped(model, perturbations, x)

        model = neuron(nnx)()
        with defaults(nnx, mode):
            by_w, state = step(model, BATCH)
        assert by_w.tolist() == BATCH.tolist()
        ones = np.ones_like(BATCH)
        values = {("input",): ones * W, ("product",): ones, ("y",): (BATCH * W,)}
        assert found(state) == wanted(values)
        assert not has_captures(nnx, model), "`__captures__` is left in the model"


@functools.cache
def regression(nnx):
    """Makes the class of a Module with two layers of weights, that perturbs what is in between."""

    class Regression(nnx.Module):
        def __init__(self):
            self.first = nnx.Param(counted((2, 3)) / 4)
            self.second = nnx.Param(counted((3,)) / 8)

        def __call__(self, x):
            hidden = self.perturb("hidden", jnp.tanh(self.perturb("x", x) @ self.first))
            return hidden @ self.second

    return Regression


def step_with_diff_state(nnx, mode):
    """Makes the old step: perturbations in the model, differentiated with respect to by DiffState.

    It has graph updates, whatever the mode.
    """

    @nnx.jit(**UPDATES)
    def step(model, optimizer, x, y):
        model(x)
        selected = nnx.DiffState(0, (nnx.Param, nnx.Perturbation))

        def loss(model):
            return jnp.mean((model(x) - y) ** 2)

        gradient = nnx.grad(loss, argnums=selected, **UPDATES)(model)
        gradient, by_perturbations = nnx.split_state(gradient, nnx.Param, nnx.Perturbation)
        optimizer.update(model, gradient)
        nnx.pop(model, nnx.Perturbation)
        return by_perturbations

    return step


def step_with_capture(nnx, mode):
    """Makes the new step: perturbations captured, and an argument of what is differentiated."""

    @nnx.jit(**mode)
    def step(model, optimizer, x, y):
        _, perturbations = nnx.capture(model, nnx.Perturbation)(x)

        def loss(model, perturbations):
            return jnp.mean((nnx.capture(model, init=perturbations)(x) - y) ** 2)

        transform = nnx.grad(loss, argnums=(0, 1), **mode)
        gradient, by_perturbations = transform(model, perturbations)
        optimizer.update(model, gradient)
        return by_perturbations

    return step


Y = np.float32([1, -1, 0.5])


def train(nnx, make_step, mode):
    """Trains a Regression for two steps; returns the gradients on the way and what is left."""
    with defaults(nnx, mode):
        model = regression(nnx)()
        optimizer = nnx.Optimizer(model, optax.sgd(0.125), wrt=nnx.Param)
        step = make_step(nnx, mode)
        gradients = [step(model, optimizer, BATCH / 8, Y) for _ in range(2)]
    return gradients, model, optimizer


@clause("CAP-010", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#moduleperturb")
class TestTrainStep:
    """A train step that captures perturbations gives the gradients with respect to intermediate
    values, and leaves model and optimizer, as the one that uses a DiffState with graph updates.

    So it is in every mode. Both give the derivatives that the pure functions of what comes after
    have, and neither leaves anything in the model.
    """

    def test_old_and_new(self, nnx):
        gradients, model, optimizer = train(nnx, step_with_diff_state, UPDATES)
        self.check_values(gradients[0])
        for mode in MODES.values():
            new = train(nnx, step_with_capture, mode)
            for gradient, expected in zip(new[0], gradients, strict=True):
                assert found(gradient, nnx.Perturbation) == found(expected, nnx.Perturbation)
            assert snapshot(nnx, new[1]) == snapshot(nnx, model)
            states = [value_record(jax.tree.leaves(state)) for state in (new[2], optimizer)]
            assert states[0] == states[1]
            names = [everything(nnx, left)[1] for left in (model, new[1], regression(nnx)())]
            assert names[0] == names[1] == names[2]

    def check_values(self, gradient):
        x, first, second = BATCH / 8, counted((2, 3)) / 4, counted((3,)) / 8

        def after(hidden):
            return jnp.mean((hidden @ second - Y) ** 2)

        expected = {
            "hidden": jax.grad(after)(jnp.tanh(x @ first)),
            "x": jax.grad(lambda x: after(jnp.tanh(x @ first)))(x),
        }
        assert sorted(gradient) == ["hidden", "x"]
        for name, value in expected.items():
            np.testing.assert_allclose(gradient[name][...], value, rtol=1e-5)
