"""Captured objects: what a transformed function may do to objects that it is not given."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import assert_no_tracers, snapshot
from nnx_spec.plans import classes

X = np.float32([2, 3])

TRACING = [name for name in APPLY if name != "custom_vjp"]
"""The transforms that trace their function whether or not another is around them."""


def set_item(captured, x):
    """Writes what is traced to a captured Variable."""
    captured.w[...] = x


def set_constant(captured, x):
    """Writes a constant to a captured Variable below a Module."""
    captured.inner.n[...] += 1


def set_attribute(captured, x):
    """Sets an attribute of a captured Module."""
    captured.name = "changed"


WRITES = {"set_item": set_item, "set_constant": set_constant, "set_attribute": set_attribute}
"""Ways to change a captured Module, or a Variable in it, by name."""


def new_variable(captured, x):
    """Gives a captured Module another Variable."""
    captured.extra = type(captured.w)(x)


def delete(captured, x):
    """Takes an attribute from a captured Module."""
    del captured.inner


def append(captured, x):
    """Makes a captured list longer."""
    captured.layers.append(type(captured.w)(x))


MORE_WRITES = {
    "new Variable": new_variable,
    "attribute deleted": delete,
    "list longer": append,
    "item of a list": lambda captured, x: captured.layers[0].set_value(x[0]),
    "set_value": lambda captured, x: captured.w.set_value(x),
    "metadata": lambda captured, x: captured.w.set_metadata("tag", "new"),
    "method": lambda captured, x: captured.step(x),
}
"""Further ways, by name."""

ELSEWHERE = {
    "test of while_loop": lambda nnx, f, mode: nnx.while_loop(
        lambda x: f(x)[0] < 0, lambda x: x, X, **mode
    ),
    "branch that is not chosen": lambda nnx, f, mode: nnx.cond(False, f, lambda x: x, X, **mode),
    "last branch": lambda nnx, f, mode: nnx.switch(0, [lambda x: x, f], X, **mode),
    "eval_shape": lambda nnx, f, mode: nnx.eval_shape(f, X, **mode),
    "make_jaxpr": lambda nnx, f, mode: nnx.make_jaxpr(f, graph=mode["graph"], graph_updates=False)(
        X
    ),
    "loss": lambda nnx, f, mode: nnx.grad(lambda x: f(x).sum(), **mode)(X),
    "mapped": lambda nnx, f, mode: nnx.vmap(lambda x: f(x * jnp.ones(2)), **mode)(X),
    "custom_vjp in jit": lambda nnx, f, mode: nnx.jit(ruled(nnx, mode, f, lambda x: x), **mode)(X),
    "forward rule in jit": lambda nnx, f, mode: nnx.jit(
        nnx.grad(lambda x: ruled(nnx, mode, lambda x: x, f)(x).sum(), **mode), **mode
    )(X),
    "vmap in jit": lambda nnx, f, mode: nnx.jit(
        lambda x: nnx.vmap(lambda x: f(x * jnp.ones(2)), **mode)(x), **mode
    )(X),
    "cond in grad": lambda nnx, f, mode: nnx.grad(
        lambda x: nnx.cond(True, f, lambda x: x, x, **mode).sum(), **mode
    )(X),
}
"""Other places where a function of an array of shape (2,) may stand in a transform, by name."""


def ruled(nnx, mode, f, forward):
    """Makes a function with a rule for its derivative; `forward` is called in the rule."""
    g = nnx.custom_vjp(f, **mode)
    g.defvjp(lambda x: (forward(x), None), lambda _, g: (X,))
    return lambda x: g(x)


def captured_of(nnx):
    """Makes a Module to be captured."""

    class Stepping(classes(nnx).Net):
        """A Module with a method that changes it."""

        def step(self, x):
            """Writes to a Variable."""
            self.w[...] = self.w[...] + x

    module = Stepping()
    module.w, module.name = param(nnx, [5.0, 7.0], tag="w"), "name"
    module.inner = net(nnx, n=count(nnx, 3))
    module.layers = nnx.List([param(nnx, 1.0), param(nnx, 2.0)])
    return module


def model_of(nnx):
    """Makes a Module to be passed."""
    return net(nnx, v=param(nnx, 10.0))


@clause(
    "TRX-007",
    MUST,
    DOCUMENTED,
    source="guides/transforms#mutable-module-cannot-be-passed-by-closure",
)
class TestCapturedObjects:
    """To change a Module or Variable that the function captured raises `TraceContextError`.

    So it is in every transform, for Variables and for attributes, whatever is written or taken
    away, also where an outer transform was given the object; it stays as it was, and can be changed
    where it belongs. To read it is allowed. A function with a rule of its own, of `custom_vjp`, is
    traced inside other transforms only.
    """

    @each_transform(*TRACING)
    @pytest.mark.parametrize("write", WRITES)
    def test_every_transform(self, nnx, mode, transform, write):
        def use(captured):
            def f(model, x):
                WRITES[write](captured, x)
                return x

            APPLY[transform](nnx, f, mode)(model_of(nnx), X)

        self.check_refused(nnx, use)

    @each_mode
    @pytest.mark.parametrize("place", ELSEWHERE)
    def test_every_place(self, nnx, mode, place):
        def use(captured):
            def f(x):
                set_item(captured, x)
                return x

            ELSEWHERE[place](nnx, f, mode)

        self.check_refused(nnx, use)

    @each_mode
    @pytest.mark.parametrize("write", MORE_WRITES)
    def test_every_write(self, nnx, mode, write):
        self.check_refused(
            nnx,
            lambda captured: nnx.vmap(
                lambda x: MORE_WRITES[write](captured, x * jnp.ones(2)), **mode
            )(X),
        )

    @each_mode
    @pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "scan", "cond"])
    def test_object_of_an_outer_transform(self, nnx, mode, transform):
        """Captures what the function around it was given, which may change it by itself."""

        @nnx.jit(**mode)
        def outer(captured, model, x):
            captured.w[...] += x

            def f(model, x):
                set_item(captured, x)
                return x

            with pytest.raises(nnx.errors.TraceContextError):
                APPLY[transform](nnx, f, mode)(model, x)
            return captured.w[...]

        captured = captured_of(nnx)
        assert outer(captured, model_of(nnx), X).tolist() == [7, 10]
        assert captured.w[...].tolist() == [7, 10]

    @staticmethod
    def check_refused(nnx, use):
        """Checks that a use of a captured object raises, and leaves the object as it was."""
        captured = captured_of(nnx)
        before = snapshot(nnx, captured, identities=True)
        with pytest.raises(nnx.errors.TraceContextError):
            use(captured)
        assert snapshot(nnx, captured, identities=True) == before
        assert_no_tracers(nnx, captured)
        captured.w[...] += 1
        captured.name = "new"
        assert captured.w[...].tolist() == [6, 8]

    @each_transform()
    def test_reading(self, nnx, mode, transform):
        captured, model = captured_of(nnx), model_of(nnx)
        before = snapshot(nnx, captured, identities=True)

        def f(model, x):
            assert captured.name == "name"
            return x * captured.w[...] + captured.inner.n[...] + model.v[...]

        result = APPLY[transform](nnx, f, mode)(model, X)
        np.testing.assert_array_equal(result, [10 + 13, 21 + 13])
        assert snapshot(nnx, captured, identities=True) == before
        captured.w[...] = 1.0
        np.testing.assert_array_equal(captured.w[...], [1, 1])
