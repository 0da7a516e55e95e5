"""custom_vjp: rules for the derivative of a function of objects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, DOCUMENTED, MUST, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.hijax.observing import refusal
from nnx_spec.chapters.transforms.derivatives import arrays_of
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import snapshot


def model_of(nnx):
    """Makes a Module of two Params, one of them below."""
    return net(nnx, w=param(nnx, [1.0, 2.0]), inner=net(nnx, b=param(nnx, 3.0)), n=2)


def product(model, x):
    """Computes a number of a model and an array of shape (2,)."""
    return (model.w[...] * x).sum() * model.inner.b[...]


def tangent_of(nnx, model, w, b, **mode):
    """Makes the tangent of a model: an object of its class, or a State with graph updates."""
    if mode["graph_updates"]:
        tangent = nnx.clone(nnx.state(model, nnx.Param, graph=True), graph=True)
        tangent["w"][...], tangent["inner"]["b"][...] = w, b
    else:
        tangent = nnx.clone(model, graph=mode["graph"])
        tangent.w[...], tangent.inner.b[...] = w, b
    return tangent


def cotangent_of(g, mode):
    """Returns the cotangent of the output, of what a backward rule is given."""
    return g[1] if mode["graph_updates"] else g


def ruled(nnx, mode, note=None):
    """Makes `product` with a rule that is wrong on purpose: 100 w, 10 b and -x."""
    f = nnx.custom_vjp(product, **mode)

    def forward(model, x):
        return f(model, x), (model, x)

    def backward(residuals, g):
        model, x = residuals
        g = cotangent_of(g, mode)
        if note is not None:
            note(model, g)
        w, b = 100 * g * model.w[...], 10 * g * model.inner.b[...]
        return tangent_of(nnx, model, w, b, **mode), -g * x

    f.defvjp(forward, backward)
    return f


X = np.float32([5, 7])
BY_MODEL = {("w",): [100, 200], ("inner", "b"): 30}


def lists(nnx, gradient):
    """Returns what a gradient holds, by path."""
    return {path: value.tolist() for path, value in arrays_of(nnx, gradient).items()}


@clause("TRX-023", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#nnxcustom_vjp")
class TestCustomVjp:
    """`custom_vjp` differentiates a function by the backward rule that it is given.

    The rule gets the residuals of the forward rule, objects among them, and the cotangent of the
    output, and returns a tangent for each argument: of a Module, an object of the Module's class.
    With graph updates it gets a pair instead, the cotangents of what the arguments are updated to
    and that of the output, and the tangent of a Module is a State. The arguments in
    `nondiff_argnums` come first in the backward rule and have no tangent; what the function changes
    in them reaches the caller. To change a differentiable Variable is refused and changes nothing,
    or the change reaches the caller; without graph updates, the rule gets its gradients then, as
    the argument `updates_g`. (The proposal says that such a change is not allowed; releases allow
    it.)
    """

    @each_mode
    def test_value(self, nnx, mode):
        model = model_of(nnx)
        before = snapshot(nnx, model)
        assert float(ruled(nnx, mode)(model, X)) == float(product(model, X)) == 57
        assert snapshot(nnx, model) == before

    @each_mode
    @pytest.mark.parametrize("outer", ["nnx", "nnx.jit"])
    def test_rule_is_used(self, nnx, mode, outer):
        def differentiate(model, x):
            return nnx.grad(lambda m, x: 2 * f(m, x), argnums=(0, 1), **mode)(model, x)

        f = ruled(nnx, mode)
        if outer == "nnx.jit":
            differentiate = nnx.jit(differentiate, **mode)
        model = model_of(nnx)
        by_model, by_x = differentiate(model, X)
        kind = nnx.State if mode["graph_updates"] else type(model)
        assert isinstance(by_model, kind), f"the gradient is a {type(by_model).__name__}"
        assert lists(nnx, by_model) == {
            path: (2 * np.float32(v)).tolist() for path, v in BY_MODEL.items()
        }
        assert by_x.tolist() == [-10, -14]
        assert snapshot(nnx, model) == snapshot(nnx, model_of(nnx))

    @each_mode
    def test_residuals(self, nnx, mode):
        """Sees the classes and static attributes of what a rule gets."""
        seen = []
        f = ruled(nnx, mode, note=lambda model, g: seen.append((type(model), model.n, g.shape)))
        model = model_of(nnx)
        nnx.grad(f, **mode)(model, X)
        assert seen == [(type(model), 2, ())]

    @each_mode
    def test_nondiff_argnums(self, nnx, mode):
        f = nnx.custom_vjp(lambda n, model, x: n * product(model, x), nondiff_argnums=(0,), **mode)

        def backward(n, residuals, g):
            model, x = residuals
            g = cotangent_of(g, mode)
            w, b = g * n * model.w[...], g * model.inner.b[...]
            return tangent_of(nnx, model, w, b, **mode), g * x

        f.defvjp(lambda n, model, x: (f(n, model, x), (model, x)), backward)
        model = model_of(nnx)
        assert float(f(4, model, X)) == 4 * 57
        by_model, by_x = nnx.grad(lambda m, x: f(4, m, x), argnums=(0, 1), **mode)(model, X)
        assert lists(nnx, by_model) == {("w",): [4, 8], ("inner", "b"): 3}
        assert by_x.tolist() == [5, 7]

    @each_mode
    @stands_on(
        TESTED,
        "tests/nnx/transforms_test.py::TestCustomVJP::test_custom_vjp_diff_arg_mutation",
    )
    def test_changed_inside(self, nnx, mode):
        def write(model, x):
            model.w[...] *= 2
            return product(model, x)

        f, given = nnx.custom_vjp(write, **mode), []

        def backward(residuals, g, updates_g=None):
            given.append(updates_g is not None)
            w, b = residuals
            return tangent_of(nnx, model, w, b, **mode), cotangent_of(g, mode) * X

        def forward(model, x):
            return f(model, x), (model.w[...], model.inner.b[...])

        f.defvjp(forward, backward)
        model = model_of(nnx)
        if mode["graph_updates"]:
            assert float(f(model, X)) == 2 * 57
            assert model.w[...].tolist() == [2, 4]
        else:
            refused = refusal(lambda: nnx.grad(f, **mode)(model, X)) is not None
            w = model.w.get_value().tolist()
            found = {"refused": refused, "w": w, "updates given": not refused and given}
            assert found in (
                {"refused": True, "w": [1, 2], "updates given": False},
                {"refused": False, "w": [2, 4], "updates given": [True]},
            )

    @each_mode
    @pytest.mark.parametrize("differentiated", [False, True], ids=["value", "gradient"])
    def test_updates(self, nnx, mode, differentiated):
        """Counts in an argument that is not differentiated, or where that may be in one that is."""
        calls = count(nnx, 3)
        if mode["graph_updates"]:
            params = (nnx.DiffState(0, nnx.Param),)
            f = nnx.custom_vjp(
                lambda model: self.counting(model, model.calls), nondiff_argnums=params, **mode
            )
            f.defvjp(
                lambda model: (f(model), model),
                lambda model, g: (tangent_of(nnx, model, g[1] * 4, 5.0, **mode),),
            )
            args = (net(nnx, w=param(nnx, [1.0, 2.0]), inner=model_of(nnx).inner, calls=calls),)
        else:
            f = nnx.custom_vjp(self.counting, nondiff_argnums=(1,), **mode)
            f.defvjp(
                lambda model, calls: (f(model, calls), model),
                lambda calls, model, g: (tangent_of(nnx, model, g * 4, 5.0, **mode),),
            )
            args = (model_of(nnx), calls)
        if differentiated:
            gradient = nnx.grad(f, **mode)(*args)
            assert lists(nnx, gradient) == {("w",): [4, 4], ("inner", "b"): 5}
        else:
            assert float(f(*args)) == 57
        assert (int(calls[...]), calls.get_value().dtype) == (4, jnp.int32)

    @staticmethod
    def counting(model, calls):
        """Computes `product`, and counts."""
        calls[...] += 1
        return product(model, X)

    @each_mode
    @stands_on(CONVENTION, "jax.custom_vjp")
    def test_under_jax_grad(self, nnx, mode):
        f = ruled(nnx, mode)

        def loss(w, x):
            return f(net(nnx, w=nnx.Param(w), inner=net(nnx, b=param(nnx, 3.0)), n=2), x)

        by_w, by_x = jax.grad(loss, argnums=(0, 1))(np.float32([1, 2]), X)
        assert (by_w.tolist(), by_x.tolist()) == ([100, 200], [-5, -7])
