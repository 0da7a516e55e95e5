"""remat: what is computed, how often, and what is stored."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.transforms.axes import counted
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, assert_no_tracers
from nnx_spec.plans import classes

KERNEL, X = np.float32([0.25, -0.5, 1]), np.float32([1, 2, -1])


def model_of(nnx, kernel):
    """Makes a Module with a parameter, the last output and a count of calls."""
    own = classes(nnx)
    model = own.Net()
    model.kernel = nnx.Param(kernel)
    model.last = nnx.BatchStat(jnp.zeros(3))
    model.calls = own.Count(jnp.float32(0))
    return model


def apply(model, x):
    """Computes two layers with one parameter; counts the call and remembers the output."""
    y = jnp.tanh(model.kernel * x)
    model.calls[...] += 1
    model.last[...] = jax.lax.stop_gradient(y)
    return jnp.tanh(model.kernel * y)


def loss_with(nnx, function):
    """Makes the loss of a parameter array; a function that applies a model computes it."""

    def loss(kernel, x):
        model = model_of(nnx, kernel)
        y = function(model, x)
        return (y * X).sum(), (y, model.last.get_value(), model.calls.get_value())

    return loss


def count_tanh(function, *args):
    """Counts how often a function computes tanh, subexpressions of its jaxpr included."""
    return len(re.findall(r"= tanh\b", str(jax.make_jaxpr(function)(*args))))


@clause("TRX-020", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.remat")
class TestRemat:
    """A function under `remat` gives the same values and gradients, and its writes count once.

    Of what it computes nothing is stored for the backward pass, which computes it again, except
    what `policy` tells to store.
    """

    @each_mode
    def test_values(self, nnx, mode):
        model, plain = model_of(nnx, jnp.asarray(KERNEL)), model_of(nnx, jnp.asarray(KERNEL))
        rematted = nnx.remat(apply, **mode)
        for calls in (1, 2):
            y, expected = rematted(model, jnp.asarray(X)), apply(plain, X)
            np.testing.assert_allclose(y, expected, rtol=1e-6)
            np.testing.assert_allclose(model.last.get_value(), plain.last.get_value(), rtol=1e-6)
            assert model.calls.get_value() == calls
        assert array_record(model.kernel.get_value()) == array_record(KERNEL)
        assert_no_tracers(nnx, model)

    @each_mode
    def test_gradients(self, nnx, mode):
        loss, plain = loss_with(nnx, nnx.remat(apply, **mode)), loss_with(nnx, apply)
        found, kept = jax.grad(loss, argnums=(0, 1), has_aux=True)(KERNEL, X)
        expected, plainly_kept = jax.grad(plain, argnums=(0, 1), has_aux=True)(KERNEL, X)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        np.testing.assert_allclose(kept[0], plainly_kept[0], rtol=1e-6)
        np.testing.assert_allclose(kept[1], plainly_kept[1], rtol=1e-6)
        assert kept[2] == 1

    @each_mode
    def test_gradients_of_objects(self, nnx, mode):
        def loss(model, x):
            return (rematted(model, x) * X).sum()

        rematted, model = nnx.remat(apply, **mode), model_of(nnx, jnp.asarray(KERNEL))
        gradient = nnx.grad(loss, argnums=1, **mode)(model, jnp.asarray(X))
        expected = jax.grad(lambda x: loss_with(nnx, apply)(KERNEL, x)[0])(X)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
        np.testing.assert_allclose(model.last.get_value(), np.tanh(KERNEL * X), rtol=1e-6)
        assert model.calls.get_value() == 1

    @each_mode
    def test_recomputation(self, nnx, mode):
        def gradient(function):
            return jax.grad(loss_with(nnx, function), has_aux=True)

        plain = count_tanh(gradient(apply), KERNEL, X)
        rematted = count_tanh(gradient(nnx.remat(apply, **mode)), KERNEL, X)
        assert (plain, rematted) == (2, 4)

    @each_mode
    def test_policy(self, nnx, mode):
        def gradient(policy):
            function = nnx.remat(apply, policy=policy, **mode)
            return jax.grad(loss_with(nnx, function), has_aux=True)

        policies = jax.checkpoint_policies
        stored = count_tanh(gradient(policies.everything_saveable), KERNEL, X)
        again = count_tanh(gradient(policies.nothing_saveable), KERNEL, X)
        assert (stored, again) == (2, 4)

    @each_mode
    def test_nothing_is_stored(self, nnx, mode):
        def kept_for(function):
            _, pull, _ = jax.vjp(loss_with(nnx, function), KERNEL, X, has_aux=True)
            given = {array_record(KERNEL), array_record(X), array_record(np.float32([0, 0, 0]))}
            kept = {array_record(leaf) for leaf in jax.tree.leaves(pull) if np.ndim(leaf)}
            return kept - given

        assert kept_for(apply)
        assert not kept_for(nnx.remat(apply, **mode))

    @each_mode
    def test_static_arguments(self, nnx, mode):
        def shift(model, up, x):
            model.calls[...] += 1
            return x + 1 if up else x - 1

        model = model_of(nnx, counted((3,)))
        rematted = nnx.remat(shift, static_argnums=1, **mode)
        results = [rematted(model, up, jnp.float32(4)).tolist() for up in (True, False)]
        assert (results, model.calls.get_value().tolist()) == ([5, 3], 2)
