"""How often transforms call the functions that they are given."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.counting import APPLY, Counted
from nnx_spec.chapters.transforms.modes import case, each_mode
from nnx_spec.chapters.transforms.namesakes import of_jax, of_target

INPUTS = [np.float32([1, 2]), np.float32([3, 4])]


def wrapped_anew(t, functions, name, model_of):
    """Applies a transform twice and calls each result on a model of its own."""
    for x in INPUTS:
        APPLY[name](t, functions)(model_of(), x)


def under_jit(t, functions, name, model_of):
    """Calls a function twice that applies a transform inside `jit`."""

    @t.jit
    def outer(model, x):
        APPLY[name](t, functions)(model, x)

    for x in INPUTS:
        outer(model_of(), x)


HOW = {"wrapped-anew": wrapped_anew, "under-jit": under_jit}

ONCE_IN_EACH_CALL = [
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "custom_vjp",
    "custom_vjp under grad",
    "vmap",
    "shard_map",
    "checkify",
]
"""Transforms that call their function in each call, unless they are under `jit`."""

CASES = [
    *((name, "wrapped-anew") for name in APPLY),
    *((name, "under-jit") for name in [*ONCE_IN_EACH_CALL, "fori_loop"]),
]


def read_arrays(model):
    """Reads the model that JAX is given, a dict."""
    return model["w"] * 2


def touch(model):
    """Reads a Variable of a model and writes to another, with the result of reading."""
    w = model.w[...] * 2
    model.inner.n[...] += 1
    return w


@functools.cache
def expected(name, how):
    """Returns how often JAX's own transform calls each of its functions."""
    functions = Counted(read_arrays)
    HOW[how](of_jax(), functions, name, lambda: {"n": jnp.int32(0), "w": jnp.float32(3)})
    return functions.calls


@clause(
    "TRX-035",
    SHOULD,
    OURS,
    source="a call that is traced again costs seconds; JAX's namesakes remember such traces",
)
class TestTracedOnce:
    """Every transform calls the functions that it is given as often as its namesake in JAX does.

    Where JAX traces once for two calls of equal structures, dtypes and static values, so does the
    target: branches, the tests and bodies of loops, and what is compiled; whether the function is
    wrapped once or anew for each call. The others call their function once in each call, and inside
    `jit` once in all.
    """

    @each_mode
    @pytest.mark.parametrize(
        ("name", "how"),
        [case(name, how, id=f"{name}-{how}", transform=name) for name, how in CASES],
    )
    def test_as_often_as_jax(self, nnx, mode, name, how):
        functions = Counted(touch)
        models = []

        def model_of():
            models.append(net(nnx, w=param(nnx, 3.0), inner=net(nnx, n=count(nnx, 0))))
            return models[-1]

        HOW[how](of_target(nnx, mode), functions, name, model_of)
        assert functions.calls == expected(name, how)
        assert len({int(model.inner.n[...]) for model in models}) == 1

    @each_mode
    @pytest.mark.parametrize("name", ["jit", "scan", "cond", "while_loop"])
    def test_again_for_another_structure(self, nnx, mode, name):
        functions, t = Counted(touch), of_target(nnx, mode)
        calls = []
        for kind in (nnx.BatchStat, nnx.Param, nnx.BatchStat):
            model = net(nnx, w=param(nnx, 3.0), inner=net(nnx, n=kind(jnp.int32(0))))
            APPLY[name](t, functions)(model, INPUTS[0])
            calls.append(max(functions.calls.values()))
        assert calls[1] > calls[0], "another class of a Variable was not traced anew"
        assert calls[2] == calls[1], "a structure that is known was traced again"

    @each_mode
    def test_nested(self, nnx, mode):
        """Steps a model through two loops, one in the other, under `jit`."""
        calls = []

        def inner(model, x):
            calls.append("inner")
            model.inner.n[...] += 1
            return model, model.w[...] * x

        def outer(model, x):
            calls.append("outer")
            return nnx.scan(inner, **mode)(model, x)

        @nnx.jit(**mode)
        def step(model, x):
            return nnx.scan(outer, **mode)(model, x)[1]

        model = net(nnx, w=param(nnx, 3.0), inner=net(nnx, n=count(nnx, 0)))
        for times in (1, 2):
            np.testing.assert_array_equal(step(model, jnp.full((2, 3), times)), 3.0 * times)
            assert int(model.inner.n[...]) == 6 * times
        assert sorted(calls) == ["inner", "outer"]
