"""Transforms of NNX on ref and hijax Variables: right, or refused and unchanged."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, OURS, SHOULD, SOUND, TESTED, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.hijax.cases import EACH_KIND, with_vars
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.chapters.transforms.programs import STEPS, Program, programs
from nnx_spec.oracles import array_record, assert_no_tracers, value_record, variables

X = np.float32([5, 7])

HOW = pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
WRAP = pytest.mark.parametrize("wrap", [False, True], ids=["eager", "jit"])


def values_of(nnx, model):
    """Lists the values of a model's Variables, as what can be compared."""
    return [value_record(v.get_value()) for v in variables(nnx, model)]


def applied(nnx, transform, mode, f, *, wrap, captured):
    """Makes a function of a model and x that calls f in a transform, which may capture the model.

    In the place of a model that is captured, the transform gets another one.
    """

    def call(model, x):
        given = net(nnx, other=param(nnx, 1.0)) if captured else model
        called = APPLY[transform](nnx, (lambda _, x: f(model, x)) if captured else f, mode)
        if wrap:
            called = nnx.jit(called, **mode)
        return called(given, x)

    return call


def check(nnx, f, make, transform, mode, flags, **how):
    """Checks that a call does what f does eagerly to a plain model, or raises and changes nothing.

    Returns what was raised, or None.
    """
    expected = make()
    result = array_record(f(expected, X))
    model = with_vars(nnx, make(), allow_duplicates=True, **flags) if flags else make()
    before = values_of(nnx, model)
    try:
        found = applied(nnx, transform, mode, f, **how)(model, X)
    except Exception as raised:
        refused = raised
    else:
        refused = None
    assert_no_tracers(nnx, model)
    if refused is not None:
        left = {type(refused).__name__: values_of(nnx, model)}
        assert left == {type(refused).__name__: before}
        return refused
    assert array_record(found) == result
    assert values_of(nnx, model) == values_of(nnx, expected)
    return None


def small_model(nnx):
    """Makes a model of a vector and a number."""
    return net(nnx, w=param(nnx, [1.0, 2.0]), n=count(nnx, 3))


def change(model, x):
    """Changes all of a `small_model`, by item and as a whole, and what it returns with it."""
    model.n[...] += 1
    model.w[0] = x[1]
    y = x + model.w[...]
    model.w[...] += x
    return y - model.n[...]


def change_by_itself(model, x):
    """Changes all of a `small_model` by nothing that is differentiated."""
    model.n[...] += 1
    model.w[...] *= 2
    return x * model.w[...] - model.n[...]


MIXED = Program(
    making=(
        "model.a = nnx.Param(jnp.float32([1, 2]))",
        "model.b = Layer(3)",
        "model.c = nnx.List([nnx.BatchStat(jnp.float32([3, 1])), Count(jnp.int32(2))])",
    ),
    steps=(
        "x = model.b(x) - model.c[1][...]",
        "model.c[0][...], model.a[...] = model.a[...], model.c[0][...]",
        "model.c[1][...] += 3",
        "x = model.b(x) + model.a[...]",
    ),
)
"""A program that exchanges values and calls layers that count."""

SOME_MODES = {name: MODES[name] for name in ("graph-mode", "graph-updates")}

DRAWN = st.tuples(st.sampled_from(list(APPLY)), st.sampled_from(list(MODES)))


@clause("HJX-043", MUST, SOUND, source="a write is lost, or left after an error, silently")
class TestRightOrRefused:
    """A transform of a function that uses ref or hijax Variables does what the function does, or it
    raises and leaves every Variable as it was.

    This holds for every transform in every mode, eagerly and under `jit`, for Variables of the
    arguments and for such as the function captures, whatever it reads and writes: never is a write
    lost, done twice or put elsewhere. Of a plain Variable that is captured the same is true.
    """

    @each_transform(modes=SOME_MODES)
    @HOW
    @EACH_KIND
    def test_every_transform(self, nnx, transform, mode, captured, flags):
        def make():
            return small_model(nnx)

        check(nnx, change, make, transform, mode, flags, wrap=False, captured=captured)

    @EACH_KIND
    @given(case=DRAWN, program=programs(steps=STEPS), wrap=st.booleans(), captured=st.booleans())
    def test_generated_programs(self, nnx, flags, case, program, wrap, captured):
        transform, mode = case
        if transform == "cached_partial":
            mode = "graph-updates"
        how = {"wrap": wrap, "captured": captured}

        def make():
            return program.make(nnx)

        check(nnx, program.function(nnx), make, transform, MODES[mode], flags, **how)

    @EACH_KIND
    @pytest.mark.parametrize("transform", ["jit", "remat", "scan", "cond"])
    def test_one_program(self, nnx, transform, flags):
        def make():
            return MIXED.make(nnx)

        mode = MODES["graph-mode"]
        f = MIXED.function(nnx)
        check(nnx, f, make, transform, mode, flags, wrap=True, captured=False)

    @EACH_KIND
    @WRAP
    @pytest.mark.parametrize("axes", [(1, 0), (0, 1), (-1, -2)], ids=str)
    @pytest.mark.parametrize("size", [1, 3])
    @pytest.mark.parametrize("of", ["jax", "nnx"])
    def test_axes_of_squares(self, nnx, of, size, axes, wrap, flags):
        """Maps along another axis where nothing but the values tells the axes apart."""
        x = np.arange(size * size, dtype="float32").reshape(size, size)

        def f(v, x):
            v[...] = x + 1

        v = nnx.Variable(jnp.zeros((size, size)), **flags)
        mapped = (jax if of == "jax" else nnx).vmap(jax.jit(f) if wrap else f, in_axes=axes)
        turned = axes[0] % 2 != axes[1] % 2
        expected = (x.T if turned else x) + 1
        try:
            mapped(v, jnp.asarray(x))
        except Exception:
            expected = np.zeros_like(x)
        assert np.asarray(v[...]).tolist() == expected.tolist()

    @EACH_KIND
    @WRAP
    @HOW
    def test_computed_again(self, nnx, captured, wrap, flags):
        """What is computed again in the backward pass is not written again."""
        v = nnx.Variable(jnp.float32(3), **flags)

        @nnx.remat
        def f(x, *args):
            (own,) = args or (v,)
            y = jnp.sin(x * own[...])
            own[...] += 1
            return y * own[...]

        def call(x, *args):
            return nnx.value_and_grad(f)(x, *args)

        args = () if captured else (v,)
        try:
            value, gradient = (nnx.jit(call) if wrap else call)(jnp.float32(0.5), *args)
        except Exception:
            assert float(v[...]) == 3
            return
        assert float(v[...]) == 4
        np.testing.assert_allclose(value, 4 * np.sin(1.5), rtol=1e-5)
        np.testing.assert_allclose(gradient, 12 * np.cos(1.5), rtol=1e-5)

    @EACH_KIND
    @pytest.mark.parametrize("of", ["jax", "nnx"])
    def test_refused_gradients(self, nnx, of, flags):
        """A write that is refused after another leaves neither of them."""
        v, w = (nnx.Variable(jnp.float32(n), **flags) for n in (3, 4))

        def f(x):
            v[...] += 1
            w[...] = x
            return x * v[...]

        found = (3.0, 4.0)
        with contextlib.suppress(Exception):
            assert float((jax if of == "jax" else nnx).grad(f)(jnp.float32(1))) == 4
            found = (4.0, 1.0)
        assert (float(v[...]), float(w[...])) == found


@clause(
    "HJX-044",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::HijaxTransformCoverageTest",
)
class TestWhatWorks:
    """Under `nnx.jit` and `jax.jit`, in what `jax.grad` differentiates by something else, and
    captured in the body of `jax.lax.scan`, ref and hijax Variables are changed as eagerly.

    `nnx.jit` in graph mode takes one of them at two places. To change hijax Variables that are no
    refs is a feature: releases from 0.12.9 refuse it, as `test_hijax_immutable_error` says.
    """

    @EACH_KIND
    @pytest.mark.parametrize("mode", ["tree-mode", "graph-mode"])
    def test_jit(self, nnx, mode, flags):
        v = nnx.Variable(jnp.float32([1, 2]), **flags)

        @nnx.jit(**MODES[mode])
        def double(v, x):
            v[...] = v[...] * 2 + x
            return v[...] + 1

        for expected in ([3, 5], [7, 11]):
            assert double(v, 1.0).tolist() == [n + 1 for n in expected]
            assert v[...].tolist() == expected

    @EACH_KIND
    def test_twice(self, nnx, flags):
        v = nnx.Variable(jnp.float32(1), **flags)

        @nnx.jit(graph=True, graph_updates=False)
        def f(v, w):
            assert v is w
            v[...] += 1
            return v[...] * 2

        for expected in (2, 3):
            assert float(f(v, v)) == 2 * expected
            assert float(v[...]) == expected

    @EACH_KIND
    @HOW
    def test_gradient(self, nnx, captured, flags):
        v = nnx.Variable(jnp.float32(2), **flags)

        def loss(x, *args):
            (own,) = args or (v,)
            own[...] = jax.lax.stop_gradient(x * 3)
            return x**2 + own[...]

        assert float(jax.grad(loss)(jnp.float32(4), *(() if captured else (v,)))) == 8
        assert float(v[...]) == 12

    @EACH_KIND
    def test_scan(self, nnx, flags):
        v = nnx.Variable(jnp.float32(3), **flags)

        def body(carry, x):
            v[...] += x
            return carry, None

        jax.lax.scan(body, None, jnp.float32([1, 2, 4]))
        assert float(v[...]) == 10


MAPPED = ("vmap",)
"""Transforms in which what is broadcast cannot be written."""

DIFFERENTIATED = ("vjp", "jvp")
"""Transforms that differentiate by the model."""


@clause("HJX-045", SHOULD, OURS, source="what works for plain Variables works for others")
class TestEveryTransform:
    """A transform takes ref and hijax Variables wherever it takes plain ones, reads and changes
    them.

    This is not asked where what is broadcast by `vmap` would be written, nor where the Variables
    are differentiated, which the guide advises to do with views.
    """

    @each_transform(
        *(name for name in APPLY if name not in (*MAPPED, *DIFFERENTIATED)), modes=SOME_MODES
    )
    @EACH_KIND
    def test_arguments(self, nnx, transform, mode, flags):
        self.check(nnx, transform, mode, flags, wrap=False, captured=False)

    @each_transform("jit", "grad", "scan", "fori_loop", "cond", modes=SOME_MODES)
    @EACH_KIND
    def test_captured(self, nnx, transform, mode, flags):
        self.check(nnx, transform, mode, flags, wrap=False, captured=True)

    @staticmethod
    def check(nnx, transform, mode, flags, **how):
        def make():
            return small_model(nnx)

        error = check(nnx, change_by_itself, make, transform, mode, flags, **how)
        if error is not None:
            raise error
