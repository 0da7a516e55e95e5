"""Derivative rules of one's own in tree mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.tree.calls import TREE
from nnx_spec.oracles import snapshot, user_metadata, value_record


def product(m, x):
    """Computes an array of shape (2,) of a model with `x`, `inner.y` and an array of that shape."""
    return m.x * m.inner.y * x


def model_of(nnx):
    """Makes a Module with a Param `x` and a BatchStat `inner.y`, each of shape (2,)."""
    stat = nnx.BatchStat(counted((2,), 3), note="running")
    return net(nnx, x=param(nnx, [1, 2], tag="red"), inner=net(nnx, y=stat, name="inner"), n=3)


class Ruled:
    """`product` with a rule whose derivatives are ten times too large, which notes what it gets.

    Attributes:
      f: the function, with its rule.
      cotangents: what the backward rule was given.
    """

    def __init__(self, nnx, output=lambda y: y, cotangent=lambda g: g):
        self.cotangents = []
        self.f = nnx.custom_vjp(lambda m, x: output(product(m, x)), **TREE)

        def forward(m, x):
            return self.f(m, x), (m, x)

        def backward(residuals, g):
            self.cotangents.append(g)
            (m, x), scaled = residuals, 10 * cotangent(g)
            tangent = nnx.clone(m, graph=False)
            tangent.x[...] = scaled * m.inner.y * x
            tangent.inner.y[...] = scaled * m.x * x
            return tangent, scaled * m.x * m.inner.y

        self.f.defvjp(forward, backward)


X = np.float32([5, 7])


@clause("TREE-007", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#nnxcustom_vjp")
class TestCustomVJP:
    """In tree mode the backward rule of `custom_vjp` gets the output's cotangent and nothing else,
    and returns one tangent for each argument, of the argument's own class.

    What it returns is the gradient: for a Module a Module of its class, structure and metadata. The
    cotangent has the structure of the output.
    """

    def check(self, model, gradient, scale=10.0):
        assert jax.tree.structure(gradient) == jax.tree.structure(model)
        assert type(gradient).__name__ == type(model).__name__
        assert gradient.x.get_value().tolist() == [scale * 15, scale * 28]
        assert gradient.inner.y.get_value().tolist() == [scale * 5, scale * 14]
        assert user_metadata(gradient.inner.y) == {"note": "running"}
        assert (gradient.n, gradient.inner.name) == (3, "inner")

    @pytest.mark.parametrize("function", ["grad", "value_and_grad", "vjp", "jax.grad"])
    def test_tangents(self, nnx, function):
        model, ruled = model_of(nnx), Ruled(nnx)
        before = snapshot(nnx, model, identities=True)

        def loss(m, x):
            return jnp.sum(ruled.f(m, x))

        match function:
            case "vjp":
                value, pull = nnx.vjp(loss, model, X, **TREE)
                gradient = pull(jnp.float32(1))
            case "jax.grad":
                value, gradient = jax.value_and_grad(loss, argnums=(0, 1))(model, X)
            case "grad":
                value, gradient = 71.0, nnx.grad(loss, argnums=(0, 1), **TREE)(model, X)
            case _:
                value, gradient = nnx.value_and_grad(loss, argnums=(0, 1), **TREE)(model, X)
        assert float(value) == 71
        self.check(model, gradient[0])
        assert gradient[1].tolist() == [30, 80]
        assert [value_record(g) for g in ruled.cotangents] == [value_record(jnp.ones(2))]
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"

    def test_cotangent(self, nnx):
        model, ruled = model_of(nnx), Ruled(nnx)
        value, pull = nnx.vjp(ruled.f, model, X, **TREE)
        self.check(model, pull(np.float32([0.5, 0.5]))[0], scale=5.0)
        assert value.tolist() == [15, 56]
        assert [value_record(g) for g in ruled.cotangents] == [value_record(np.float32([0.5] * 2))]

    def test_cotangent_of_a_pytree(self, nnx):
        ruled = Ruled(nnx, lambda y: {"y": y, "pair": (y, 2 * y)}, lambda g: g["pair"][1])
        model = model_of(nnx)
        gradient = nnx.grad(lambda m: jnp.sum(ruled.f(m, X)["pair"][1]), **TREE)(model)
        self.check(model, gradient)
        expected = {"y": jnp.zeros(2), "pair": (jnp.zeros(2), jnp.ones(2))}
        assert [value_record(g) for g in ruled.cotangents] == [value_record(expected)]

    def test_in_jit(self, nnx):
        model, ruled = model_of(nnx), Ruled(nnx)
        gradient = nnx.jit(nnx.grad(lambda m: jnp.sum(ruled.f(m, X)), **TREE), **TREE)(model)
        self.check(model, gradient)
        assert [g.shape for g in ruled.cotangents] == [(2,)]

    def test_the_proposals_example(self, nnx):
        @nnx.custom_vjp(**TREE)
        def f(m):
            return jnp.sin(m.x) * m.y

        def forward(m):
            return f(m), (jnp.cos(m.x), jnp.sin(m.x), m)

        def backward(residuals, g):
            cosine, sine, m = residuals
            tangent = nnx.clone(m, graph=False)
            tangent.x[...] = cosine * g * m.y
            tangent.y[...] = sine * g
            return (tangent,)

        f.defvjp(forward, backward)
        model = net(nnx, x=param(nnx, 0.5), y=param(nnx, 2.0))
        gradient = nnx.grad(f, **TREE)(model)
        assert type(gradient).__name__ == type(model).__name__
        found = [gradient.x[...], gradient.y[...]]
        np.testing.assert_allclose(found, [2 * np.cos(0.5), np.sin(0.5)], rtol=1e-6)
