"""Transforms of the target and of JAX in one another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.derivatives import (
    VALUES,
    arrays_of,
    at_places,
    loss_of,
    model_of,
)
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import snapshot, state_items

RATE = np.float32(0.125)


def with_count(nnx):
    """Makes the model with a count beside it, which is no Param."""
    model = model_of(nnx)
    model.calls = count(nnx, 0)
    return model


def arrays_in(state):
    """Returns what a State holds, each array by its path."""
    pairs = state_items(state)
    return {path: leaf.get_value() if hasattr(leaf, "get_value") else leaf for path, leaf in pairs}


def descend(params, grads):
    """Takes a step along a gradient, both by path."""
    return {path: value - RATE * grads[path] for path, value in params.items()}


def expected(nnx, steps, x=1.5):
    """Does what `train` does, with JAX alone."""
    values = VALUES
    for _ in range(steps):
        grads = jax.grad(lambda values: loss_of(model_of(nnx, values), x))(values)
        values = descend(values, grads)
    return at_places(values)


def check(nnx, model, steps):
    """Checks a model that has been trained for some steps."""
    found = arrays_of(nnx, model)
    assert int(found.pop(("calls",))) == steps
    wanted = expected(nnx, steps)
    assert found.keys() == wanted.keys()
    for path, value in wanted.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-6)


def apply_gradient(nnx, model, grads):
    """Writes to a model's Params what a step along a gradient gives, and counts the step."""
    params = arrays_in(nnx.state(model, nnx.Param))
    model.calls[...] += 1
    for path, value in descend(params, grads).items():
        variable = model
        for key in path:
            variable = variable[key] if isinstance(key, int) else getattr(variable, key)
        variable[...] = value


@clause(
    "TRX-028",
    MUST,
    DOCUMENTED,
    source="guides/jax_and_nnx_transforms#mixing-flax-nnx-and-jax-transforms",
)
class TestMixing:
    """Transforms of NNX and of JAX work in one another, where the function that JAX transforms is
    pure.

    Inside an NNX transform an object is split, JAX transforms a function of its State, and the
    object is merged again in it. Inside a transform of JAX a merged object is passed to an NNX
    transform, and its State is returned.
    """

    @each_mode
    def test_jax_grad_in_nnx_jit(self, nnx, mode):
        @nnx.jit(**mode)
        def train(model, x):
            graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=mode["graph"])

            def loss(params):
                return loss_of(nnx.merge(graphdef, params, rest), x)

            value, grads = jax.value_and_grad(loss)(params)
            apply_gradient(nnx, model, arrays_in(grads))
            return value

        model = with_count(nnx)
        first = train(model, 1.5)
        train(model, 1.5)
        np.testing.assert_allclose(first, loss_of(model_of(nnx), 1.5), rtol=1e-6)
        check(nnx, model, 2)

    @each_mode
    def test_nnx_grad_in_jax_jit(self, nnx, mode):
        @jax.jit
        def train(graphdef, params, rest, x):
            model = nnx.merge(graphdef, params, rest)
            merged = nnx.merge(graphdef, params, rest)
            if mode["graph_updates"]:
                grads = nnx.grad(loss_of, **mode)(merged, x)
            else:
                split = nnx.split(merged, nnx.Param, ..., graph=mode["graph"])
                grads = nnx.grad(lambda p: loss_of(nnx.merge(split[0], p, split[2]), x), **mode)(
                    split[1]
                )
            apply_gradient(nnx, model, arrays_in(grads))
            return nnx.split(model, nnx.Param, ..., graph=mode["graph"])

        parts = nnx.split(with_count(nnx), nnx.Param, ..., graph=mode["graph"])
        for _ in range(2):
            parts = train(*parts, 1.5)
        check(nnx, nnx.merge(*parts), 2)

    @each_mode
    @pytest.mark.parametrize("inner", ["nnx.vmap", "nnx.scan", "nnx.jit", "nnx.remat"])
    def test_nnx_in_jax_vmap(self, nnx, mode, inner):
        """Maps with JAX over the State of a model that an NNX transform changes inside."""

        def step(model, x):
            model.n[...] += 1
            return model.w[...] * x

        def stepped(model, x):
            return model, step(model, x)

        use = {
            "nnx.vmap": lambda: nnx.vmap(step, in_axes=(None, 0), **mode),
            "nnx.scan": lambda: lambda model, x: nnx.scan(stepped, **mode)(model, x)[1],
            "nnx.jit": lambda: nnx.jit(step, **mode),
            "nnx.remat": lambda: nnx.remat(step, **mode),
        }[inner]()

        def pure(state, x):
            model = nnx.merge(graphdef, state)
            y = use(model, x)
            return y, nnx.state(model, graph=mode["graph"])

        stack = net(nnx, w=param(nnx, [2.0, 3.0]), n=count(nnx, [0, 5]))
        graphdef, state = nnx.split(stack, graph=mode["graph"])
        x = jnp.asarray([[1.0, 2.0, 4.0], [3.0, 5.0, 7.0]])
        y, state = jax.vmap(pure)(state, x)
        np.testing.assert_array_equal(y, x * np.float32([[2], [3]]))
        times = 3 if inner == "nnx.scan" else 1
        assert {path: x.tolist() for path, x in arrays_in(state).items()} == {
            ("n",): [times, 5 + times],
            ("w",): [2, 3],
        }

    @each_mode
    def test_jax_loops_in_nnx_jit(self, nnx, mode):
        """Carries a State through `jax.lax.scan`, and writes it back."""

        @nnx.jit(**mode)
        def run(model, x):
            graphdef, state = nnx.split(model, graph=mode["graph"])

            def step(state, x):
                merged = nnx.merge(graphdef, state)
                merged.w[...] += x
                merged.n[...] += 1
                return nnx.state(merged, graph=mode["graph"]), merged.w[...] * 2

            state, y = jax.lax.scan(step, state, x)
            nnx.update(model, state)
            return y

        model = net(nnx, w=param(nnx, 1.0), n=count(nnx, 0))
        assert run(model, jnp.arange(3.0)).tolist() == [2, 4, 8]
        assert run(model, jnp.arange(2.0)).tolist() == [8, 10]
        assert snapshot(nnx, model) == snapshot(nnx, net(nnx, w=param(nnx, 5.0), n=count(nnx, 5)))
