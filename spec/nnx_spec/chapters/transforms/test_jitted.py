"""What else a jitted function can do, and other ways to compile calls on objects."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, DOCUMENTED, MUST, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import assert_no_tracers, snapshot, variables
from nnx_spec.plans import classes

X = np.float32([1, 2])


@functools.cache
def stepping_class(nnx):
    """Makes a class of Modules with methods that change them."""

    class Stepping(classes(nnx).Net):
        """A Module that counts its calls."""

        def __call__(self, x, factor=1.0):
            """Computes, and counts."""
            self.n[...] += 1
            return x * self.w[...] * factor

        def grow(self, x):
            """Writes to the weights, and returns nothing."""
            self.w[...] += x

    return Stepping


def model_of(nnx):
    """Makes a Module with methods, and with others like it below."""
    model, model.inner, layer = (stepping_class(nnx)() for _ in range(3))
    model.layers = nnx.List([layer])
    for module, w in ((model, [5.0, 7.0]), (model.inner, [1.0, 1.0]), (layer, [2.0, 3.0])):
        module.w, module.n = param(nnx, w), count(nnx, 0)
    return model


def step(model, x, *, factor=1.0):
    """Calls a model; adds to its weights."""
    y = model(x, factor)
    model.inner.grow(x)
    return y


def method_of(jitted, name):
    """Returns a method of a jitted function, or None where the target has none.

    One that there is none of has to raise AttributeError, whatever is passed on by name.
    """
    try:
        return getattr(jitted, name)
    except AttributeError:
        return None


@clause("TRX-034", MUST, CONVENTION, source="jax.jit")
class TestJitted:
    """`lower`, `trace` and `eval_shape` of a jitted function take what the function takes, objects
    among them, as do `call` and `jit_partial`; or there is no such name.

    The methods run nothing and change nothing; what `lower(...)` compiles to can be called on
    objects and does what the jitted function does. `jit_partial(f, *objects)(*args)` is
    `jit(f)(*objects, *args)`: it reads the objects' present values and writes to them. It may
    refuse graph updates, with ValueError. `call((graphdef, state)).method(*args)` calls a method of
    the object, or of one in it, and returns the result and the (graphdef, state) pair after the
    call. A method that there is none of raises AttributeError.
    """

    @each_mode
    @pytest.mark.parametrize("name", ["lower", "trace", "eval_shape"])
    def test_methods_change_nothing(self, nnx, mode, name):
        jitted, model = nnx.jit(step, **mode), model_of(nnx)
        before = snapshot(nnx, model, identities=True)
        if method := method_of(jitted, name):
            found = method(model, X, factor=2.0)
            is_unchanged = snapshot(nnx, model, identities=True) == before
            assert is_unchanged, f"{name} changes the model"
            assert_no_tracers(nnx, model)
            if name == "eval_shape":
                assert (found.shape, found.dtype) == ((2,), np.float32)
        np.testing.assert_array_equal(jitted(model, X), [5, 14])
        assert int(model.n[...]) == 1

    @each_mode
    @pytest.mark.parametrize("name", ["lower", "trace"])
    def test_compiled(self, nnx, mode, name):
        if (method := method_of(nnx.jit(step, **mode), name)) is None:
            return
        staged = method(model_of(nnx), X)
        lowered = staged if name == "lower" else staged.lower()
        assert "multiply" in lowered.as_text(), "what is lowered does not multiply"
        compiled = lowered.compile()
        model, eager = model_of(nnx), model_of(nnx)
        held = variables(nnx, model)
        for x in (X, X * 3):
            np.testing.assert_array_equal(compiled(model, x), step(eager, x))
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        kept = [a is b for a, b in zip(variables(nnx, model), held, strict=True)]
        assert kept == [True] * len(held), "the model's Variables have been replaced"

    @each_mode
    def test_no_such_method(self, nnx, mode):
        jitted = nnx.jit(step, **mode)
        assert method_of(jitted, "lowered") is None, "there is a method `lowered`"
        with pytest.raises(AttributeError, match="lowered"):
            _ = jitted.lowered

    @each_mode
    @stands_on(
        TESTED, "tests/nnx/transforms_test.py::TestTreeJIT::test_jit_partial_variable_update"
    )
    def test_jit_partial(self, nnx, mode):
        model, eager = model_of(nnx), model_of(nnx)
        if (partial := self.partial_of(nnx, mode, step, model)) is None:
            return
        for x in (X, X + 1):
            np.testing.assert_array_equal(partial(x, factor=3.0), step(eager, x, factor=3.0))
            assert snapshot(nnx, model) == snapshot(nnx, eager)
        for changed in (model, eager):
            changed.w[...] = np.float32([9, 8])
        np.testing.assert_array_equal(partial(X), step(eager, X))
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_mode
    @stands_on(TESTED, "tests/nnx/transforms_test.py::TestTreeJIT::test_jit_partial_no_retrace")
    def test_jit_partial_traces_once(self, nnx, mode):
        traces = []

        def f(first, second, x):
            traces.append(None)
            first.w[...] += second.w[...] * x
            return first.w[...].sum()

        models = net(nnx, w=param(nnx, [1.0, 1.0])), net(nnx, w=param(nnx, [2.0, 3.0]))
        if (partial := self.partial_of(nnx, mode, f, *models)) is None:
            return
        assert [float(partial(x)) for x in (X, X, X)] == [10, 18, 26]
        models[1].w[...] = 0.0
        assert float(partial(X)) == 26
        assert len(traces) == 1
        np.testing.assert_array_equal(models[0].w[...], [7, 19])

    @staticmethod
    def partial_of(nnx, mode, f, *objects):
        """Makes a partial with `jit_partial`; None where that is absent or refused."""
        if not hasattr(nnx, "jit_partial"):
            return None
        try:
            return nnx.jit_partial(f, *objects, **mode)
        except ValueError:
            assert mode["graph_updates"], "jit_partial may refuse graph updates only"
            return None

    @each_mode
    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "under-jax-jit"])
    @stands_on(DOCUMENTED, "api_reference/flax.nnx/graph#flax.nnx.call")
    def test_call(self, nnx, mode, compiled):
        def use(pair, x):
            y, pair = nnx.call(pair)(x, factor=2.0)
            nothing, pair = nnx.call(pair).inner.grow(x)
            z, pair = nnx.call(pair).layers[0](x)
            assert nothing is None, f"a method that returns nothing gave {nothing}"
            return (y, z), pair

        model, eager = model_of(nnx), model_of(nnx)
        pair = nnx.split(model, graph=mode["graph"])
        (y, z), after = jax.jit(use)(pair, X) if compiled else use(pair, X)
        expected = eager(X, factor=2.0), eager.layers[0](X)
        eager.inner.grow(X)
        np.testing.assert_array_equal([y, z], expected)
        assert snapshot(nnx, nnx.merge(*after)) == snapshot(nnx, eager)

    @each_mode
    @stands_on(CONVENTION, "object.__getattribute__")
    def test_call_of_no_method(self, nnx, mode):
        pair = nnx.split(model_of(nnx), graph=mode["graph"])
        with pytest.raises(AttributeError, match="shrink"):
            nnx.call(pair).inner.shrink(X)

    @each_mode
    def test_jitted_method(self, nnx, mode):
        """Lowers a method that is decorated."""

        class Scaled(nnx.Module):
            """A Module with a compiled method."""

            def __init__(self):
                self.w = param(nnx, 3.0)

            @functools.partial(nnx.jit, **mode)
            def scale(self, x):
                """Computes with the weight."""
                return x * self.w[...]

        scaled = Scaled()
        if method := method_of(Scaled.scale, "eval_shape"):
            found = method(scaled, jnp.ones((2, 1)))
            assert found.shape == (2, 1)
        np.testing.assert_array_equal(scaled.scale(X), 3 * X)
