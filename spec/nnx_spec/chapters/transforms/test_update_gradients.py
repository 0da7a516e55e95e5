"""Gradients through writes: those of the program that the writes stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, SOUND, clause, plain
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.chapters.transforms.programs import SMOOTH, programs
from nnx_spec.oracles import state_items, walk

X = np.float32([1, 2])
STEP = 1e-30


def values(namespace, model):
    """Returns the values of a model's Variables, or of gradients of its class, by their paths."""
    found = {p: v for p, v in walk(namespace, model) if isinstance(v, namespace.Variable)}
    return {path: np.asarray(variable.get_value()) for path, variable in found.items()}


def gradients(nnx, found):
    """Returns the gradients that `nnx.grad` gives, a State or an object, by their paths."""
    if isinstance(found, nnx.State):
        return {path: np.asarray(leaf) for path, leaf in state_items(found)}
    return values(nnx, found)


def differences(program):
    """Differentiates a program's sum by each element of each parameter, in plain Python.

    An imaginary step, of which powers vanish, gives the derivative of a polynomial to the last bit.
    Returns the derivatives of Variables by their paths, and the largest number in sight.
    """
    size = len(values(plain, program.make(plain)))
    derivatives, scale = {}, 1.0
    for number in range(size):
        for element in range(2):
            model = program.make(plain)
            cells = [cell for cell in walk(plain, model) if isinstance(cell[1], plain.Variable)]
            for _, cell in cells:
                cell.set_value(np.asarray(cell.get_value(), "complex128"))
            path, chosen = cells[number]
            chosen[element] += STEP * 1j
            total = program.function(plain)(model, X.astype("complex128")).sum()
            derivatives.setdefault(path, np.zeros(2))[element] = total.imag / STEP
            scale = max(scale, abs(total), *(abs(cell[...]).max() for _, cell in cells))
    return derivatives, scale


@clause("TRX-012", MUST, SOUND, source="a derivative leaves out what was written")
class TestWrites:
    """Differentiating through writes gives the derivative of the program without writes.

    A value that is read from a Variable depends on what was last written there, whole or in part,
    and through it on the parameters; a parameter that is overwritten counts up to that moment. The
    gradient is with respect to the values that Variables have before the call; after it they hold
    what was written.
    """

    @each_mode
    @given(data=st.data())
    def test_generated_programs(self, nnx, mode, data):
        program = data.draw(programs(steps=SMOOTH, sharing=mode["graph"]), "program")
        model, eager = program.make(nnx), program.make(plain)
        function = program.function(nnx)
        found = nnx.grad(lambda model, x: function(model, x).sum(), **mode)(model, X)
        expected, scale = differences(program)
        if mode["graph_updates"]:
            params = [p for p, v in walk(nnx, model) if isinstance(v, nnx.Param)]
            expected = {path: expected[path] for path in params}
        found = gradients(nnx, found)
        assert found.keys() == expected.keys()
        for path, gradient in found.items():
            np.testing.assert_allclose(gradient, expected[path], rtol=1e-5, atol=1e-6 * scale)
        program.function(plain)(eager, X)
        after, written = values(nnx, model), values(plain, eager)
        assert {path: after[path].tolist() for path in written} == {
            path: written[path].tolist() for path in written
        }

    @each_mode
    @pytest.mark.parametrize("name", ["value_and_grad", "jax.grad"])
    def test_one_program(self, nnx, mode, name):
        """Writes whose program without them is written out below, with functions of JAX."""

        def steps(a, b):
            for _ in range(2):
                a = jnp.sin(a)
                b = a * b
            return jnp.sum(a * b)

        def loss(model):
            for _ in range(2):
                model.a[...] = jnp.sin(model.a[...])
                model.b[...] *= model.a[...]
            return jnp.sum(model.a[...] * model.b[...])

        a, b = jnp.float32([0.5, 1.25]), jnp.float32([2, -1])
        model = net(nnx, a=param(nnx, a), b=param(nnx, b))
        if name == "jax.grad":
            graphdef, state = nnx.split(model, graph=mode["graph"])
            found = jax.grad(lambda state: loss(nnx.merge(graphdef, state)))(state)
        else:
            _, found = nnx.value_and_grad(loss, **mode)(model)
        expected = jax.grad(steps, argnums=(0, 1))(a, b)
        for gradient, wanted in zip(gradients(nnx, found).values(), expected, strict=True):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5)
