"""The options of jit, and what it decorates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import assert_no_tracers, snapshot, variables

X = np.float32([1, 2])


def model_of(nnx, size=2):
    """Makes a Module of weights, a count below, and a Variable that nothing changes."""
    w = param(nnx, np.arange(size))
    return net(nnx, w=w, inner=net(nnx, n=count(nnx, 0)), kept=param(nnx, np.ones(size)))


def step(model, x, how="add", *, times=1):
    """Changes a model in a way that is said by static arguments."""
    assert type(how) is str
    assert type(times) is int
    for _ in range(times):
        model.w[...] = model.w[...] + x if how == "add" else model.w[...] * x
    model.inner.n[...] += times
    return model.w[...] + model.kept[...]


STATIC = {
    "position": ({"static_argnums": 2}, lambda f, m: f(m, X, "mul")),
    "negative position": ({"static_argnums": -1}, lambda f, m: f(m, X, "mul")),
    "positions": ({"static_argnums": (1, 2)}, lambda f, m: f(m, 3.0, "mul")),
    "name": ({"static_argnames": "how"}, lambda f, m: f(m, X, how="mul")),
    "names": ({"static_argnames": ("how", "times")}, lambda f, m: f(m, X, how="mul", times=2)),
    "position given by name": ({"static_argnums": 2}, lambda f, m: f(m, X, how="mul")),
    "name given by position": ({"static_argnames": ["how"]}, lambda f, m: f(m, X, "mul")),
    "both": (
        {"static_argnums": 2, "static_argnames": "times"},
        lambda f, m: f(m, X, "mul", times=3),
    ),
}
"""Options for `step`, and calls."""


def shardings():
    """Makes two shardings of vectors over two devices: split and whole."""
    mesh = mesh_of(2)
    return NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())


@clause("TRX-006", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.jit")
class TestOptionsOfJit:
    """`jit` has JAX's options with JAX's meaning, and decorates functions, methods and partials.

    `static_argnums` and `static_argnames` name arguments that are not traced and must be hashable.
    `donate_argnums` and `donate_argnames` name arguments whose arrays, those of Variables among
    them, may be given up: the objects hold the new ones afterwards. `in_shardings` and
    `out_shardings` say how arguments and results are laid out; one that is said of an object holds
    for every Variable in it. Arguments may be given by keyword, objects as well. The compiled
    function has the name and the docstring of the function, which is its `__wrapped__`.
    """

    @each_mode
    @pytest.mark.parametrize("case", STATIC)
    def test_static(self, nnx, mode, case):
        options, call = STATIC[case]
        model, eager = model_of(nnx), model_of(nnx)
        jitted = nnx.jit(step, **options, **mode)
        for _ in range(2):
            np.testing.assert_array_equal(call(jitted, model), call(step, eager))
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_mode
    def test_static_must_be_hashable(self, nnx, mode):
        model = model_of(nnx)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.jit(step, static_argnums=1, **mode)(model, [1.0, 2.0])
        assert snapshot(nnx, model) == snapshot(nnx, model_of(nnx))

    @each_mode
    @pytest.mark.parametrize(
        "options", [{"donate_argnums": 0}, {"donate_argnames": "model"}], ids=str
    )
    def test_donated_object(self, nnx, mode, options):
        model, x = model_of(nnx), jnp.asarray(X)
        held, old = variables(nnx, model), model.w.get_value()
        jitted = nnx.jit(lambda model, x: step(model, x), **options, **mode)
        for times in (1, 2):
            np.testing.assert_array_equal(jitted(model, x), np.arange(2) + times * X + 1)
        assert old.is_deleted()
        assert not x.is_deleted()
        assert all(a is b for a, b in zip(variables(nnx, model), held, strict=True))
        np.testing.assert_array_equal(model.w[...], np.arange(2) + 2 * X)
        np.testing.assert_array_equal(model.kept[...], [1, 1])
        assert int(model.inner.n[...]) == 2

    @each_mode
    def test_donated_array(self, nnx, mode):
        model, x = model_of(nnx), jnp.asarray(X)
        old = model.w.get_value()
        nnx.jit(lambda model, x: step(model, x), donate_argnums=(1,), **mode)(model, x)
        assert x.is_deleted()
        assert not old.is_deleted()

    @each_mode
    def test_shardings(self, nnx, mode):
        split, whole = shardings()
        jitted = nnx.jit(
            lambda model, x: (model.w[...] * 2, x * 2, x + 1),
            in_shardings=(split, whole),
            out_shardings=(whole, split, None),
            **mode,
        )
        model = net(nnx, w=param(nnx, np.arange(4)))
        results = jitted(model, jnp.ones(4))
        expected = jax.jit(
            lambda w, x: (w * 2, x * 2, x + 1),
            in_shardings=(split, whole),
            out_shardings=(whole, split, None),
        )(jnp.arange(4.0), jnp.ones(4))
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, wanted)
            assert result.sharding.is_equivalent_to(wanted.sharding, 1)

    @each_mode
    def test_shardings_of_objects(self, nnx, mode):
        """Splits all Variables of a Module over two devices."""
        split, whole = shardings()
        one = nnx.jit(lambda: model_of(nnx, 4).kept, out_shardings=split, **mode)()
        assert one.get_value().sharding.is_equivalent_to(split, 1)

        @nnx.jit(out_shardings=(split, whole), **mode)
        def make(x):
            made = net(nnx, w=nnx.Param(x), inner=net(nnx, v=nnx.BatchStat(x + 1)))
            return made, {"other": net(nnx, w=nnx.Param(x * 2))}

        made, rest = make(jnp.arange(4.0))
        for variable, sharding, value in (
            (made.w, split, [0, 1, 2, 3]),
            (made.inner.v, split, [1, 2, 3, 4]),
            (rest["other"].w, whole, [0, 2, 4, 6]),
        ):
            np.testing.assert_array_equal(variable[...], value)
            assert variable.get_value().sharding.is_equivalent_to(sharding, 1)

    @each_mode
    def test_shardings_that_do_not_fit(self, nnx, mode):
        """Has an argument that is committed to another sharding, which `jax.jit` refuses."""
        split, whole = shardings()
        model = net(nnx, w=nnx.Param(jax.device_put(jnp.arange(4.0), whole)))
        before = snapshot(nnx, model)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.jit(lambda model: model.w[...] * 2, in_shardings=split, **mode)(model)
        assert snapshot(nnx, model) == before

    @each_mode
    def test_keywords(self, nnx, mode):
        def f(x, *, model, other=1.0):
            model.w[...] += x
            return model.w[...] * other

        model = model_of(nnx)
        jitted = nnx.jit(f, keep_unused=True, inline=True, **mode)
        np.testing.assert_array_equal(jitted(X, model=model), np.arange(2) + X)
        np.testing.assert_array_equal(
            jitted(x=X, other=2.0, model=model), (np.arange(2) + 2 * X) * 2
        )
        np.testing.assert_array_equal(model.w[...], np.arange(2) + 2 * X)

    @each_mode
    def test_method(self, nnx, mode):
        class Counter(nnx.Module):
            """A Module with methods that are compiled."""

            def __init__(self, start):
                self.n = count(nnx, start)

            @functools.partial(nnx.jit, static_argnames=("times",), **mode)
            def add(self, x, times=1):
                """Adds up."""
                self.n[...] += x * times
                return self.n[...] * 10

            @staticmethod
            @nnx.jit(**mode)
            def double(x):
                """Computes without the object."""
                return x * 2

        first, second = Counter(3), Counter(5)
        assert (int(first.add(1)), int(first.add(2, times=3))) == (40, 100)
        assert (int(second.add(1)), int(second.n[...]), int(first.n[...])) == (60, 6, 10)
        assert int(Counter.double(4)) == 8
        assert (Counter.add.__name__, Counter.add.__doc__) == ("add", "Adds up.")
        assert_no_tracers(nnx, first, second)

    @each_mode
    def test_partial(self, nnx, mode):
        model, eager = model_of(nnx), model_of(nnx)
        partial = functools.partial(step, how="mul", times=2)
        np.testing.assert_array_equal(nnx.jit(partial, **mode)(model, X), partial(eager, X))
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        captured = model_of(nnx)
        add = nnx.jit(functools.partial(lambda m, x: m.w[...] + x, captured), **mode)
        np.testing.assert_array_equal(add(X), np.arange(2) + X)

    @each_mode
    def test_wrapped(self, nnx, mode):
        jitted = nnx.jit(step, static_argnames=("how", "times"), **mode)
        assert (jitted.__name__, jitted.__doc__) == ("step", step.__doc__)
        assert jitted.__wrapped__ is step
