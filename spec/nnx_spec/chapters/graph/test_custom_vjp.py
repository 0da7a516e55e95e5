"""Derivative rules of one's own in graph mode with graph updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param, records
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.oracles import snapshot, variable_record

UPDATES = MODES["graph-updates"]


def model_of(nnx):
    """Makes a Module with the Params `x` and `inner.y` and the BatchStat `s`, of shape (2,)."""
    inner = net(nnx, y=param(nnx, [3, 4], tag="red"))
    return net(nnx, x=param(nnx, [1, 2]), inner=inner, s=nnx.BatchStat(counted((2,), 5), note="n"))


def product(m, z):
    """Computes an array of shape (2,) of a `model_of` and an array, and scales the statistic."""
    m.s[...] = m.s * m.x * z
    return m.x * m.inner.y * z


def loss(f, m, z):
    """Computes a scalar of what f returns and of what it leaves of the statistic."""
    return jnp.sum(f(m, z) + 10 * m.s)


class Ruled:
    """`product` with a rule, which notes what its backward part gets.

    Attributes:
      f: the function, with its rule.
      given: what the backward part got.
    """

    def __init__(self, nnx, custom_vjp):
        self.given = []
        self.f = custom_vjp(product)

        def forward(m, z):
            before = m.x[...], m.inner.y[...], m.s[...], z
            return self.f(m, z), before

        def backward(residuals, g):
            self.given.append(g)
            (update, _), cotangent = g
            x, y, s, z = residuals
            moved = update["s"][...]
            tangent = nnx.clone(update, graph=True)
            tangent["x"][...] = cotangent * y * z + moved * s * z
            tangent["inner"]["y"][...] = cotangent * x * z
            tangent["s"][...] = moved * x * z
            return tangent, cotangent * x * y + moved * s * x

        self.f.defvjp(forward, backward)


FORMS = {
    "compat": lambda nnx: nnx.compat.custom_vjp,
    "options": lambda nnx: nnx.custom_vjp(**UPDATES),
}
"""The two ways to ask for the rule of compat mode."""

Z = np.float32([7, 2])


@clause("GRA-010", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#nnxcustom_vjp")
class TestCustomVJP:
    """In graph mode with graph updates, the backward rule of `custom_vjp` gets a pair: the
    gradients of what the function has left of its arguments, and the output's cotangent.

    The first has an entry for each argument: for a Module a State of its Variables, with the
    gradient with respect to their values after the call, for another argument None. The rule
    returns a tangent for each argument, for a Module a State of that structure, and this is the
    gradient.
    """

    @pytest.mark.parametrize("form", FORMS)
    def test_what_the_rule_gets(self, nnx, form):
        model, ruled = model_of(nnx), Ruled(nnx, FORMS[form](nnx))
        nnx.grad(lambda m: loss(ruled.f, m, Z), **UPDATES)(model)
        (((state, array), cotangent),) = ruled.given
        assert (array, cotangent.tolist()) == (None, [1, 1])
        assert isinstance(state, nnx.State), f"the rule got a {type(state).__name__}"
        expected = {("s",): [10, 10], ("x",): [0, 0], ("inner", "y"): [0, 0]}
        variables = {("s",): model.s, ("x",): model.x, ("inner", "y"): model.inner.y}
        assert records(nnx, state) == {
            path: variable_record(variables[path].replace(jnp.float32(expected[path])))
            for path in expected
        }

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("jitted", [False, True], ids=["eagerly", "under jit"])
    def test_gradients(self, nnx, form, jitted):
        model, twin, ruled = model_of(nnx), model_of(nnx), Ruled(nnx, FORMS[form](nnx))
        argnums = (nnx.DiffState(0, ...), 1)

        def gradients(f):
            return nnx.grad(lambda m, z: loss(f, m, z), argnums=argnums, **UPDATES)

        found = gradients(ruled.f)
        state, array = (nnx.jit(found, **UPDATES) if jitted else found)(model, Z)
        expected, expected_array = gradients(product)(twin, Z)
        assert isinstance(state, nnx.State), f"the gradient is a {type(state).__name__}"
        assert records(nnx, state) == records(nnx, expected)
        assert array.tolist() == expected_array.tolist()
        assert snapshot(nnx, model) == snapshot(nnx, twin)
        assert len(ruled.given) == 1

    def test_the_rule_decides(self, nnx):
        f = nnx.compat.custom_vjp(product)
        f.defvjp(
            lambda m, z: (f(m, z), None),
            lambda _, g: (jax.tree.map(lambda x: jnp.full_like(x, 7), g[0][0]), g[1] * 9),
        )
        argnums = (0, 1)
        state, array = nnx.compat.grad(lambda m, z: loss(f, m, z), argnums=argnums)(
            model_of(nnx), Z
        )
        assert sorted(records(nnx, state)) == [("inner", "y"), ("x",)]
        assert [x.tolist() for x in jax.tree.leaves(state)] == [[7, 7], [7, 7]]
        assert array.tolist() == [9, 9]

    def test_several_modules(self, nnx):
        given = []

        def add(a, b, z):
            a.s[...] = a.s + z
            b.s[...] = b.s * z
            return {"sum": a.x + b.x * z}

        def backward(_, g):
            given.append(g)
            (first, second, _), _ = g
            return first, second, jnp.zeros(2)

        f = nnx.compat.custom_vjp(add)
        f.defvjp(lambda a, b, z: (f(a, b, z), None), backward)

        def total(a, b, z):
            return jnp.sum(3 * f(a, b, z)["sum"] + 2 * a.s + 5 * b.s)

        nnx.grad(total, argnums=(0, 1), **UPDATES)(model_of(nnx), model_of(nnx), Z)
        (((first, second, array), cotangent),) = given
        assert [s["s"].get_value().tolist() for s in (first, second)] == [[2, 2], [5, 5]]
        assert array is None, f"an argument that is no Module has the update {array}"
        assert jax.tree.map(lambda x: x.tolist(), cotangent) == {"sum": [3, 3]}

    def test_the_proposals_example(self, nnx):
        @nnx.compat.custom_vjp
        def f(m):
            return jnp.sin(m.x) * m.y

        def forward(m):
            return f(m), (jnp.cos(m.x), jnp.sin(m.x), m)

        def backward(residuals, g):
            (update,), cotangent = g
            cosine, sine, m = residuals
            tangent = nnx.clone(update, graph=True)
            tangent["x"][...] = cosine * cotangent * m.y
            tangent["y"][...] = sine * cotangent
            return (tangent,)

        f.defvjp(forward, backward)
        model = net(nnx, x=param(nnx, 0.5), y=param(nnx, 2.0))
        gradient = nnx.compat.grad(f)(model)
        assert isinstance(gradient, nnx.State), f"the gradient is a {type(gradient).__name__}"
        found = [gradient["x"][...], gradient["y"][...]]
        np.testing.assert_allclose(found, [2 * np.cos(0.5), np.sin(0.5)], rtol=1e-6)
