"""Training: the guide's block of normalization and dropout under `jax.jit`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.hijax.cases import Counted, with_vars
from nnx_spec.chapters.hijax.models import layers
from nnx_spec.oracles import assert_no_tracers

MOMENTUM, EPSILON = 0.99, 1e-5
"""What `nnx.BatchNorm` uses if nothing is said."""

RATE = 0.25
STEPS = 12
OPTIMIZER = optax.adam(3e-2)


def batches():
    """Draws a few batches, each of 6 inputs of size 2 and targets of size 3."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS, 6, 2)).astype(np.float32)
    target = np.stack([x[..., 0], x[..., 1], x[..., 0] * x[..., 1]], axis=-1)
    return x, target.astype(np.float32)


def apply(weights, stats, mask, x):
    """Computes the block on arrays; returns the output and the new statistics."""
    y = x @ weights["linear"]
    mean, var = y.mean(0), y.var(0)
    stats = {
        "mean": MOMENTUM * stats["mean"] + (1 - MOMENTUM) * mean,
        "var": MOMENTUM * stats["var"] + (1 - MOMENTUM) * var,
    }
    y = (y - mean) / jnp.sqrt(var + EPSILON) * weights["scale"] + weights["bias"]
    return jax.nn.gelu(y * mask) @ weights["linear_out"], stats


@jax.jit
def expected_step(weights, stats, state, mask, x, target):
    """Trains the arrays for one step: what `train_step` must do to the model."""

    def loss(weights):
        y, new = apply(weights, stats, mask, x)
        return ((y - target) ** 2).mean(), new

    (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(weights)
    updates, state = OPTIMIZER.update(grads, state, weights)
    return value, optax.apply_updates(weights, updates), stats, state


def weights_of(model):
    """Reads a block's parameters."""
    return {
        "linear": model.linear.kernel[...],
        "scale": model.norm.scale[...],
        "bias": model.norm.bias[...],
        "linear_out": model.linear_out.kernel[...],
    }


def stats_of(model):
    """Reads a block's running statistics."""
    return {"mean": model.norm.mean[...], "var": model.norm.var[...]}


def train_step_of(nnx):
    """Makes the guide's training step, with split and merge inside."""

    def train_step(model, optimizer, x, target):
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)

        def loss_fn(params):
            merged = nnx.merge(graphdef, params, rest)
            return ((merged(x) - target) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(with_vars(nnx, params, hijax=False))
        optimizer.update(model, grads)
        return loss

    return train_step


def assert_close(found, expected):
    """Asserts that two trees of arrays agree as closely as float32 lets them."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


@clause("HJX-029", MUST, DOCUMENTED, source="hijax/hijax#training-loop", needs={"hijax.updates"})
class TestTraining:
    """A model with BatchNorm and Dropout trains under `jax.jit`, with split and merge inside, as
    the same model in plain JAX does, step by step.

    Model and optimizer are arguments that change in place: the loss falls, the parameters, running
    statistics, the dropout's count and the optimizer's are after each step those of a function of
    arrays. The step is traced once.
    """

    def test_every_step(self, nnx):
        with nnx.var_defaults(hijax=True):
            model = layers(nnx).Block(2, 8, 3, nnx.Rngs(0), rate=RATE)
            optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
        dropout = with_vars(nnx, model.dropout, hijax=False)
        train_step = Counted(train_step_of(nnx))
        weights, stats = weights_of(model), stats_of(model)
        state, losses = OPTIMIZER.init(weights), []
        start = int(dropout.rngs.count[...])
        for step, (x, target) in enumerate(zip(*batches(), strict=True), start=1):
            mask = dropout(jnp.ones((6, 8)))
            loss, weights, stats, state = expected_step(weights, stats, state, mask, x, target)
            losses.append(float(train_step(model, optimizer, x, target)))
            np.testing.assert_allclose(losses[-1], loss, rtol=1e-4)
            assert_close(weights_of(model), weights)
            assert_close(stats_of(model), stats)
            assert int(model.dropout.rngs.count[...]) == start + step
            assert int(optimizer.step[...]) == step
        assert np.mean(losses[-3:]) < np.mean(losses[:3]) / 2
        assert train_step.traces == 1
        assert_no_tracers(nnx, model, optimizer)
