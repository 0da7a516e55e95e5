"""Gradients: what can be differentiated, and what the loss changes meanwhile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MUST, SOUND, TESTED, clause, needs
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_holds, with_vars
from nnx_spec.chapters.hijax.observing import kinds, record, refusal
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import assert_no_tracers, user_metadata, value_record
from nnx_spec.plans import classes

VIEWS = {"immutable": {"mutable": False}, "plain": {"hijax": False}}
"""Views that can be differentiated, as `with_vars` makes them, by name."""

EACH_VIEW = pytest.mark.parametrize(
    "view", [pytest.param("immutable", marks=needs("mutable-flag")), "plain"]
)


def model_of(nnx):
    """Makes a Module of three hijax Variables, one of them with a dict as its value."""
    return net(
        nnx,
        w=nnx.Param(array([1, 2]), hijax=True, tag="red"),
        inner=net(nnx, scale=classes(nnx).SpecialParam(array(3), hijax=True)),
        pair=nnx.Param({"a": array(4), "b": array([5, 6])}, hijax=True),
    )


def loss_of(w, scale, pair):
    """Computes a number of the values of `model_of`, in Variables or not."""
    return (w[...] ** 2).sum() * scale[...] + pair["a"] * pair["b"].sum()


FORMS = {
    "Module": (lambda nnx, model: model, lambda m: (m.w, m.inner.scale, m.pair)),
    "State": (
        lambda nnx, model: nnx.split(model, nnx.Param, ...)[1],
        lambda s: (s["w"], s["inner"]["scale"], s["pair"]),
    ),
    "list": (lambda nnx, model: [model.w, model.inner.scale, model.pair], tuple),
}
"""What can hold Variables that are differentiated, and how they are read from it, by name."""


@clause(
    "HJX-026",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_no_qdd_grad",
    needs={"hijax"},
)
class TestGradients:
    """`jax.grad` and `jax.value_and_grad` with respect to an immutable view, or one that is not
    hijax, give gradients of the view's structure and classes.

    They are equal to those of the same function of the arrays alone. The view may be of a Variable
    or of a Module, State or container of them; the original and its values stay as they are. It
    makes no difference whether `jax.jit` is around it.
    """

    @staticmethod
    def expected(model):
        """Differentiates the function of the arrays alone."""
        arrays = (v.get_value() for v in (model.w, model.inner.scale, model.pair))
        return jax.value_and_grad(loss_of, argnums=(0, 1, 2))(*arrays)

    @EACH_VIEW
    @pytest.mark.parametrize("form", FORMS)
    def test_eager(self, nnx, form, view):
        model = model_of(nnx)
        _, expected = self.expected(model)
        make, read = FORMS[form]
        differentiable = with_vars(nnx, make(nnx, model), **VIEWS[view])
        grads = jax.grad(lambda x: loss_of(*read(x)))(differentiable)
        assert jax.tree.structure(grads) == jax.tree.structure(differentiable)
        for grad, v, value in zip(read(grads), read(differentiable), expected, strict=True):
            assert record(nnx, grad) == record(nnx, v.replace(value))
        assert_holds(nnx, model.w, nnx.Param, np.float32([1, 2]), tag="red")

    @EACH_VIEW
    @pytest.mark.parametrize("form", FORMS)
    def test_under_jit(self, nnx, form, view):
        make, read = FORMS[form]

        @jax.jit
        def differentiate(x):
            differentiable = with_vars(nnx, x, **VIEWS[view])
            loss, grads = jax.value_and_grad(lambda x: loss_of(*read(x)))(differentiable)
            for grad, v in zip(read(grads), read(differentiable), strict=True):
                assert kinds(nnx, grad) == kinds(nnx, v)
                assert user_metadata(grad) == user_metadata(v)
            return loss, tuple(grad.get_value() for grad in read(grads))

        model = model_of(nnx)
        assert value_record(differentiate(make(nnx, model))) == value_record(self.expected(model))
        assert_no_tracers(nnx, model)

    @EACH_VIEW
    def test_variable(self, nnx, view):
        v = nnx.Param(array([1, 2]), hijax=True, tag="t")
        differentiable = with_vars(nnx, v, **VIEWS[view])
        loss, grad = jax.value_and_grad(lambda v: (v[...] ** 3).sum())(differentiable)
        assert float(loss) == 9
        assert_holds(nnx, grad, nnx.Param, np.float32([3, 12]), tag="t")

    @EACH_VIEW
    def test_read_twice(self, nnx, view):
        v = nnx.Param(array([1, 2]), hijax=True)
        grad = jax.grad(lambda v: (v[...] * v[...]).sum())(with_vars(nnx, v, **VIEWS[view]))
        assert_holds(nnx, grad, nnx.Param, np.float32([2, 4]))

    @EACH_VIEW
    def test_auxiliary_output(self, nnx, view):
        v = nnx.Param(array([1, 2]), hijax=True)

        def loss(v, x):
            return (v[...] * x).sum(), v[...] + x

        gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (value, aux), grads = gradient(with_vars(nnx, v, **VIEWS[view]), array([3, 4]))
        assert (float(value), aux.tolist()) == (11, [4, 6])
        assert_holds(nnx, grads[0], nnx.Param, np.float32([3, 4]))
        assert grads[1].tolist() == [1, 2]


def square(v):
    """Computes a number of which the gradient is not zero."""
    return (v[...] ** 2).sum()


@clause(
    "HJX-027",
    MUST,
    SOUND,
    source="a gradient of zeros trains nothing, and says nothing",
    needs={"hijax"},
)
class TestRefusals:
    """To differentiate with respect to a mutable hijax Variable raises an error with a message, or
    gives the gradient; it never gives zeros.

    The Variable keeps its value and can be used afterwards.
    """

    @staticmethod
    def check(nnx, differentiate):
        model = net(nnx, v=nnx.Param(array([1, 2]), hijax=True, tag="t"))
        found = []
        error = refusal(lambda: found.append(differentiate(model)))
        if error is None:
            arrays = [np.asarray(x).tolist() for x in jax.tree.leaves(found)]
            assert [2, 4] in arrays, f"the gradient is [2, 4], not {arrays}"
        else:
            assert str(error).strip(), f"a {type(error).__name__} without a message"
        assert_holds(nnx, model.v, nnx.Param, np.float32([1, 2]), tag="t")
        model.v[...] += 1
        assert model.v[...].tolist() == [2, 3]

    @pytest.mark.parametrize("transform", ["grad", "value_and_grad"])
    def test_variable(self, nnx, transform):
        differentiated = getattr(jax, transform)(square)
        self.check(nnx, lambda model: differentiated(model.v))

    def test_module(self, nnx):
        self.check(nnx, jax.grad(lambda model: square(model.v)))

    def test_state(self, nnx):
        differentiated = jax.grad(lambda state: square(state["v"]))
        self.check(nnx, lambda model: differentiated(nnx.split(model)[1]))

    def test_under_jit(self, nnx):
        self.check(nnx, jax.jit(lambda model: jax.grad(square)(model.v)[...]))

    def test_that_is_written(self, nnx):
        def write(v):
            v[...] = v[...] * 1
            return square(v)

        self.check(nnx, lambda model: jax.grad(write)(model.v))


@clause(
    "HJX-028",
    MUST,
    TESTED,
    source="tests/nnx/integration_test.py::TestIntegration::test_example_mutable_arrays",
    needs={"hijax.updates"},
)
class TestChanges:
    """What the loss changes besides its differentiated argument shows outside of
    `jax.value_and_grad` inside `jax.jit`.

    So it is with Variables that the loss captures and with those of a model that it merges,
    statistics and counts of random streams among them. The loss sees its own changes.
    """

    def test_captured(self, nnx):
        count = nnx.BatchStat(array(0, "int32"), hijax=True, tag="t")

        @jax.jit
        def step(w):
            def loss(w):
                count[...] += 1
                return w**2 * count[...]

            return jax.value_and_grad(loss)(w)

        assert [float(x) for x in step(3.0)] == [9, 6]
        assert [float(x) for x in step(3.0)] == [18, 12]
        assert_holds(nnx, count, nnx.BatchStat, np.int32(2), tag="t")

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_merged(self, nnx, captured):
        """Keeps a running mean of an activation, as a normalization does."""
        model = net(
            nnx,
            w=nnx.Param(array([2, 3]), hijax=True),
            mean=nnx.BatchStat(array(0), hijax=True),
            counts=nnx.Dict(calls=classes(nnx).Count(array(5, "int32"), hijax=True)),
        )

        @jax.jit
        def step(x, *args):
            (own,) = args or (model,)
            graphdef, params, rest = nnx.split(own, nnx.Param, ...)

            def loss(params):
                merged = nnx.merge(graphdef, params, rest)
                y = merged.w[...] * x
                merged.mean[...] = (merged.mean[...] + jax.lax.stop_gradient(y.mean())) / 2
                merged.counts["calls"][...] += 1
                return y.sum() + merged.mean[...]

            value, grads = jax.value_and_grad(loss)(with_vars(nnx, params, hijax=False))
            return value, grads["w"][...]

        args = () if captured else (model,)
        value, grads = step(array([2, 4]), *args)
        assert (float(value), grads.tolist()) == (16 + 4, [2, 4])
        value, grads = step(array([4, 0]), *args)
        assert (float(value), grads.tolist()) == (8 + 4, [4, 0])
        assert_holds(nnx, model.mean, nnx.BatchStat, np.float32(4))
        assert_holds(nnx, model.counts["calls"], classes(nnx).Count, np.int32(7))
        assert_holds(nnx, model.w, nnx.Param, np.float32([2, 3]))

    def test_auxiliary_output(self, nnx):
        total = nnx.Variable({"sum": array(0), "n": array(0, "int32")}, hijax=True)

        @jax.jit
        def step(w, x):
            def loss(w):
                total["sum"] += x
                total["n"] += 1
                return w * total["sum"], total["n"] + 0

            return jax.value_and_grad(loss, has_aux=True)(w)

        step(2.0, 10.0)
        (value, n), grad = step(2.0, 5.0)
        assert (float(value), int(n), float(grad)) == (30, 2, 15)
        assert_holds(nnx, total, nnx.Variable, {"sum": np.float32(15), "n": np.int32(2)})

    def test_random_streams(self, nnx):
        with nnx.var_defaults(hijax=True):
            rngs = nnx.Rngs(0, noise=1)
        twin = nnx.Rngs(0, noise=1)

        @jax.jit
        def step(w, rngs):
            def loss(w):
                return w * jax.random.uniform(rngs.noise())

            return jax.value_and_grad(loss)(w)

        for _ in range(3):
            expected = jax.random.uniform(twin.noise())
            value, grad = step(1.0, rngs)
            assert value == grad
            np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert int(rngs.noise.count[...]) == int(twin.noise.count[...]) == 3
        assert int(rngs.default.count[...]) == 0

    def test_twice_in_one_step(self, nnx):
        count = nnx.BatchStat(array(1), hijax=True)

        def loss(w):
            count[...] *= 2
            return w * count[...]

        @jax.jit
        def step(w):
            first = jax.grad(loss)(w)
            count[...] += 1
            return jnp.stack([first, jax.grad(loss)(w)])

        assert step(1.0).tolist() == [2, 6]
        assert step(1.0).tolist() == [12, 26]
        assert_holds(nnx, count, nnx.BatchStat, np.float32(26))
