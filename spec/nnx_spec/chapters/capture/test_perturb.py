"""Perturbations: zeros added on the way, so that gradients by values on the way can be taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.capture.models import (
    X,
    defaults,
    everything,
    found,
    has_captures,
    wanted,
)
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.modes import MODES, each_mode
from nnx_spec.oracles import array_record, state_items

TREE = MODES["tree-mode"]

SOURCE = "guides/extracting_intermediates#extracting-gradients-of-intermediate-values"

ARRAYS = {
    "scalar": np.float32(3),
    "vector": np.float32([1, 2]),
    "matrix": np.float32([[1, 2, 3]]),
    "bfloat16": np.ones((2,), jnp.bfloat16),
    "complex64": np.complex64([1 + 2j]),
    "int32": np.int32([4]),
    "empty": np.zeros((0, 2), "float32"),
}
"""Arrays of several shapes and dtypes."""


def perturb(module, x):
    """Perturbs an array under the name `p`."""
    return module.perturb("p", x)


@clause("CAP-004", MUST, DOCUMENTED, source=SOURCE)
class TestPerturb:
    """`perturb(name, value)` returns the value plus the perturbation that is stored by that name.

    A capture of Perturbation gives, for each name, zeros of the value's shape and dtype; with
    `init` those given there are the stored ones. In a capture without Perturbations the value comes
    back as it is, and nothing is stored. Another kind of Variable can be named by `variable_type`.
    """

    @pytest.mark.parametrize("array", ARRAYS)
    def test_zeros(self, nnx, array):
        x = jnp.asarray(ARRAYS[array])
        result, state = nnx.capture(perturb, nnx.Perturbation)(net(nnx), x)
        assert array_record(result) == array_record(x)
        assert found(state, nnx.Perturbation) == wanted({("p",): jnp.zeros_like(x)})

    @pytest.mark.parametrize("array", ARRAYS)
    def test_stored_perturbations(self, nnx, array):
        x, module = jnp.asarray(ARRAYS[array]), net(nnx)
        _, state = nnx.capture(perturb, nnx.Perturbation)(module, x)
        state["p"].set_value(2 * x)
        assert array_record(nnx.capture(perturb, init=state)(module, x)) == array_record(3 * x)

    def test_paths_and_names(self, nnx):
        def f(model, x):
            return model.child.perturb("a", model.perturb("b", model.perturb("a", x)) * 2)

        model = net(nnx, child=net(nnx))
        _, state = nnx.capture(f, nnx.Perturbation)(model, X(3))
        assert found(state) == wanted({("a",): 0.0, ("b",): 0.0, ("child", "a"): 0.0})
        for n, (_, leaf) in enumerate(state_items(state), 1):
            leaf.set_value(X(10**n))
        assert float(nnx.capture(f, init=state)(model, X(3))) == (3 + 10 + 100) * 2 + 1000

    @pytest.mark.parametrize("kinds", [[], ["Intermediate"]])
    def test_other_captures(self, nnx, kinds):
        model = net(nnx, w=param(nnx, 1.0))
        before = everything(nnx, model)
        capturing = nnx.capture(perturb, *(getattr(nnx, kind) for kind in kinds))
        result = capturing(model, X(3))
        if kinds:
            result, state = result
            assert len(state) == 0
        assert array_record(result) == array_record(X(3))
        assert everything(nnx, model) == before

    def test_variable_type(self, nnx):
        class Nudge(nnx.Perturbation):
            """A kind of perturbation of the user's own."""

        def f(model, x):
            return model.perturb("q", model.perturb("p", x), variable_type=Nudge)

        model = net(nnx)
        result, state = nnx.capture(f, Nudge)(model, X(3))
        assert (float(result), found(state, Nudge)) == (3, wanted({("q",): 0.0}))
        state["q"].set_value(X(5))
        assert float(nnx.capture(f, init=state)(model, X(3))) == 8


STEPS = {
    "square": lambda x: x * x,
    "sine": jnp.sin,
    "scale": lambda x: 3 * x,
    "shift": lambda x: x - 0.5,
    "tanh": jnp.tanh,
}
"""Differentiable functions, by name."""


def chain(steps, x, perturbed=lambda n, x: x):
    """Applies some steps, after `perturbed` has had each value."""
    for n, step in enumerate(steps):
        x = STEPS[step](perturbed(n, x))
    return x


def gradient_by_perturbations(nnx, f, module, x):
    """Calls a function of a module and x; returns its value and gradient by the perturbations."""

    def loss(module, perturbations):
        return nnx.capture(f, init=perturbations)(module, x)

    value, perturbations = nnx.capture(f, nnx.Perturbation)(module, x)
    return value, nnx.grad(loss, argnums=1, **TREE)(module, perturbations)


@clause("CAP-005", MUST, DOCUMENTED, source=SOURCE)
class TestGradients:
    """The gradient with respect to a captured perturbation is the one with respect to the value
    that it is added to.

    It has the value's shape and dtype. If several values are perturbed by one name of one Module,
    it is the sum of their gradients.
    """

    @each_mode
    def test_guide(self, nnx, mode):
        def loss(model, perturbations):
            return nnx.capture(model, init=perturbations)(X(2))

        class Model(nnx.Module):
            def __init__(self):
                self.w = nnx.Param(X(4))

            def __call__(self, x):
                hidden = self.perturb("hidden", x * self.w)
                return self.perturb("output", 3 * hidden**2)

        model = Model()
        with defaults(nnx, mode):
            _, perturbations = nnx.capture(model, nnx.Perturbation)(X(2))
            gradients = nnx.grad(loss, argnums=(0, 1), **mode)(model, perturbations)
        assert float(gradients[0].w[...]) == 2 * 6 * 8
        assert found(gradients[1], nnx.Perturbation) == wanted({("hidden",): 48, ("output",): 1})

    @given(steps=st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=5))
    def test_any_chain(self, nnx, steps):
        def apply(module, x):
            return chain(steps, x, lambda n, x: module.perturb(f"p{n}", x))

        module, x = net(nnx), X(0.75)
        value, gradient = gradient_by_perturbations(nnx, apply, module, x)
        assert array_record(value) == array_record(chain(steps, x))
        assert len(state_items(gradient)) == len(steps)
        expected = 1.0
        for n, step in reversed([*enumerate(steps)]):
            expected *= jax.grad(STEPS[step])(chain(steps[:n], x))
            np.testing.assert_allclose(gradient[f"p{n}"][...], expected, rtol=1e-5)

    def test_several_values(self, nnx):
        def apply(module, x):
            return jnp.sum(module.perturb("p", x) ** 2 + 5 * module.perturb("p", x + 1))

        module, x = net(nnx), counted((2,))
        _, gradient = gradient_by_perturbations(nnx, apply, module, x)
        assert gradient["p"].get_value().tolist() == [2 + 5, 4 + 5]

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_dtypes(self, nnx, dtype):
        def apply(module, x):
            return jnp.sum(module.perturb("p", x).astype("float32") * 3)

        module, x = net(nnx), counted((2, 1)).astype(dtype)
        _, gradient = gradient_by_perturbations(nnx, apply, module, x)
        assert array_record(gradient["p"][...]) == array_record(jnp.full((2, 1), 3, dtype))


@clause("CAP-006", MUST, DOCUMENTED, source=SOURCE)
class TestInit:
    """`init=state` lets a capture begin with what another one gave, module by module.

    Perturbations are taken from it and sown values are appended to it. Types to capture may be
    given besides; only of these States are returned. The given State is not changed.
    """

    @pytest.fixture
    def model(self, nnx):
        class Part(nnx.Module):
            def __call__(self, x):
                y = self.perturb("p", x) * 2
                self.sow(nnx.Intermediate, "y", y)
                return y

        return net(nnx, parts=nnx.List([Part(), Part()]))

    @staticmethod
    def call(model, x):
        for part in model.parts:
            x = part(x)
        return x

    def perturbations(self, nnx, model):
        """Captures a model's perturbations, and makes them 10 and 100."""
        _, state = nnx.capture(self.call, nnx.Perturbation)(model, X(3))
        for (_, leaf), value in zip(state_items(state), (10, 100), strict=True):
            leaf.set_value(X(value))
        return state

    @each_mode
    def test_with_other_types(self, nnx, model, mode):
        before = everything(nnx, model)
        with defaults(nnx, mode):
            state = self.perturbations(nnx, model)
            held = found(state)
            result, sown = nnx.capture(self.call, nnx.Intermediate, init=state)(model, X(3))
        values = {("parts", 0, "y"): (26,), ("parts", 1, "y"): (252,)}
        assert (float(result), found(sown, nnx.Intermediate)) == (252, wanted(values))
        assert found(state) == held
        assert everything(nnx, model) == before
        assert not has_captures(nnx, model), "`__captures__` is left in the model"

    def test_alone(self, nnx, model):
        state = self.perturbations(nnx, model)
        assert float(nnx.capture(self.call, init=state)(model, X(3))) == 252

    def test_with_its_own_type(self, nnx, model):
        state = self.perturbations(nnx, model)
        _, again = nnx.capture(self.call, nnx.Perturbation, init=state)(model, X(3))
        assert found(again) == found(state)

    def test_of_a_part(self, nnx, model):
        state = self.perturbations(nnx, model)
        del state["parts"][1]
        result, again = nnx.capture(self.call, nnx.Perturbation, init=state)(model, X(3))
        assert float(result) == 52
        expected = {("parts", 0, "p"): 10, ("parts", 1, "p"): 0}
        assert found(again, nnx.Perturbation) == wanted(expected)

    def test_sown_values_are_appended_to(self, nnx, model):
        first = nnx.capture(self.call, nnx.Intermediate)(model, X(3))[1]
        held = found(first)
        second = nnx.capture(self.call, nnx.Intermediate, init=first)(model, X(5))[1]
        expected = {("parts", 0, "y"): (6, 10), ("parts", 1, "y"): (12, 20)}
        assert found(second, nnx.Intermediate) == wanted(expected)
        assert found(first) == held

    def test_several_kinds(self, nnx, model):
        capturing = nnx.capture(self.call, nnx.Intermediate, nnx.Perturbation)
        _, sown, perturbations = capturing(model, X(3))
        init = nnx.merge_state(sown, perturbations)
        result, sown = nnx.capture(self.call, nnx.Intermediate, init=init)(model, X(5))
        expected = {("parts", 0, "y"): (6, 10), ("parts", 1, "y"): (12, 20)}
        assert (float(result), found(sown, nnx.Intermediate)) == (20, wanted(expected))
