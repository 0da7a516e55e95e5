"""Modules as arguments of JAX's own transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import array_record, snapshot, user_metadata
from nnx_spec.plans import build
from nnx_spec.strategies import trees


def model_of(nnx):
    """Makes a Module of Modules with two Params, a count, an array and a static attribute."""
    return net(
        nnx,
        kernel=param(nnx, [[1, 2], [3, 4]], tag="red"),
        layers=nnx.List([net(nnx, bias=param(nnx, [5, 6]), name="last")]),
        table=counted((2,), 7),
        calls=count(nnx, 0),
        width=2,
    )


def stacked(nnx):
    """Makes a Module like `model_of` whose arrays have a leading axis of size 2."""
    return jax.tree.map(lambda x: jnp.asarray(np.stack([x, 2 * x + 1])), model_of(nnx))


def apply(model, x):
    """Applies a `model_of` to an array of shape (2,)."""
    return x @ model.kernel + model.layers[0].bias * model.table


def stepped(model, x):
    """Applies a `model_of`, and counts the call in it."""
    model.calls[...] += 1
    model.layers[0].bias[...] = model.layers[0].bias + x
    return apply(model, x)


def check_equal(one, other):
    """Checks that two arrays are equal to the bit."""
    assert array_record(one) == array_record(other), f"{one} is not {other}"


X = counted((2,))


@clause("TREE-010", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#proposal")
class TestUnderJAX:
    """`jax.jit`, `jax.vmap`, `jax.grad` and `jax.lax.scan` take and give Modules as any pytree.

    Results equal those of the same function called eagerly, on slices, or of its leaves; Modules
    that come out have the class, static attributes and metadata of those that went in, or were made
    inside. What the function changes is in what it returns; the caller's own Module is as it was.
    """

    def test_jit(self, nnx):
        model, eager = model_of(nnx), model_of(nnx)
        before = snapshot(nnx, model, identities=True)

        @jax.jit
        def step(model, x):
            return stepped(model, x), model, net(nnx, w=model.kernel, n=nnx.Cache(x))

        after = model
        for _ in range(2):
            y, after, made = step(after, X)
            check_equal(y, stepped(eager, X))
        assert snapshot(nnx, after) == snapshot(nnx, eager)
        assert snapshot(nnx, made) == snapshot(nnx, net(nnx, w=model.kernel, n=nnx.Cache(X)))
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    def test_jit_knows_structures(self, nnx):
        traces = []

        @jax.jit
        def width(model):
            traces.append(model.width)
            return model.width * model.kernel

        model = model_of(nnx)
        for wide, tag in ((2, "red"), (3, "red"), (2, "blue"), (2, "red")):
            model.width = wide
            model.kernel.set_metadata(tag=tag)
            check_equal(width(model), wide * model.kernel[...])
        assert traces == [2, 3, 2]

    @pytest.mark.parametrize("way", ["in_axes", "prefix", "out_axes"])
    def test_vmap(self, nnx, way):
        models = stacked(nnx)
        slices = [jax.tree.map(lambda x, n=n: x[n], models) for n in range(2)]
        if way == "in_axes":
            found = jax.vmap(apply, in_axes=(0, None))(models, X)
            check_equal(found, np.stack([apply(model, X) for model in slices]))
        elif way == "prefix":
            axes = jax.tree.map(lambda x: 0 if x.ndim > 2 else None, models)
            mixed = jax.tree.map(lambda a, b: a if a.ndim > 2 else b, models, slices[0])
            found = jax.vmap(apply, in_axes=(axes, None))(mixed, X)
            kernels = [m.kernel for m in slices]
            expected = [X @ w + slices[0].layers[0].bias * slices[0].table for w in kernels]
            check_equal(found, np.stack(expected))
        else:
            found = jax.vmap(lambda x: net(nnx, w=param(nnx, x, tag="t"), n=3), out_axes=1)
            made = found(counted((2, 3)))
            assert (made.w.get_value().tolist(), made.n) == ([[1, 4], [2, 5], [3, 6]], 3)
            assert (type(made.w), user_metadata(made.w)) == (nnx.Param, {"tag": "t"})

    def test_vmap_gives_what_was_changed(self, nnx):
        models = stacked(nnx)
        before = snapshot(nnx, models, identities=True)

        def step(model):
            y = stepped(model, X)
            return y, model

        y, after = jax.vmap(step)(models)
        slices = [jax.tree.map(lambda x, n=n: x[n], models) for n in range(2)]
        check_equal(y, np.stack([stepped(model, X) for model in slices]))
        expected = jax.tree.map(lambda *xs: np.stack(xs), *slices)
        assert snapshot(nnx, after) == snapshot(nnx, expected)
        is_unchanged = snapshot(nnx, models, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    @given(plan=trees())
    def test_vmap_of_any_module(self, nnx, plan):
        models = jax.tree.map(lambda x: np.stack([x, x]), build(nnx, plan))
        if jax.tree.leaves(models):
            assert snapshot(nnx, jax.vmap(lambda m: m)(models)) == snapshot(nnx, models)

    def test_grad(self, nnx):
        def loss(model, x):
            return jnp.sum(model.kernel**2) + jnp.sum(model.layers[0].bias * model.table * x)

        model = model_of(nnx)
        model.calls = param(nnx, 0.0)
        value, gradient = jax.value_and_grad(loss)(model, X)
        check_equal(value, jnp.float32(1 + 4 + 9 + 16 + 5 * 7 + 6 * 8 * 2))
        assert (type(gradient), gradient.width) == (type(model), 2)
        assert jax.tree.structure(gradient) == jax.tree.structure(model)
        assert gradient.kernel.get_value().tolist() == [[2, 4], [6, 8]]
        assert gradient.layers[0].bias.get_value().tolist() == [7, 16]
        assert gradient.table.tolist() == [5, 12]
        assert float(gradient.calls[...]) == 0
        assert user_metadata(gradient.kernel) == {"tag": "red"}

    def test_grad_refuses_integers(self, nnx):
        with pytest.raises(TypeError):
            jax.grad(lambda model: jnp.sum(model.kernel[...]))(model_of(nnx))

    def test_scan_over_slices(self, nnx):
        def step(x, model):
            y = stepped(model, x)
            return y, model

        models = stacked(nnx)
        y, after = jax.lax.scan(step, X, models)
        x, slices = X, [jax.tree.map(lambda x, n=n: x[n], models) for n in range(2)]
        for model in slices:
            x = stepped(model, x)
        check_equal(y, x)
        expected = jax.tree.map(lambda *xs: np.stack(xs), *slices)
        assert snapshot(nnx, after) == snapshot(nnx, expected)

    def test_scan_that_carries(self, nnx):
        def step(model, x):
            y = stepped(model, x)
            return model, y

        model, eager, xs = model_of(nnx), model_of(nnx), counted((3, 2))
        before = snapshot(nnx, model, identities=True)
        after, ys = jax.lax.scan(step, model, xs)
        check_equal(ys, np.stack([stepped(eager, x) for x in xs]))
        assert snapshot(nnx, after) == snapshot(nnx, eager)
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"
