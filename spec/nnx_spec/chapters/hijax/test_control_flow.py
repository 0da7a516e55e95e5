"""Control flow: hijax Variables that the branches and bodies of `jax.lax` change."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MUST, SOUND, clause
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import value_record


def python_scan(f, init, xs):
    """Does with Python what `jax.lax.scan` does."""
    carry, ys = init, []
    for x in xs:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, jax.tree.map(lambda *items: jnp.stack(items), *ys)


def python_while(condition, body, value):
    """Does with Python what `jax.lax.while_loop` does."""
    while condition(value):
        value = body(value)
    return value


def python_fori(lower, upper, body, value):
    """Does with Python what `jax.lax.fori_loop` does."""
    for i in range(lower, upper):
        value = body(i, value)
    return value


PYTHON = SimpleNamespace(
    cond=lambda condition, yes, no, *args: (yes if condition else no)(*args),
    switch=lambda index, branches, *args: branches[int(index)](*args),
    while_loop=python_while,
    fori_loop=python_fori,
    scan=python_scan,
)
"""The control flow of `jax.lax`, run eagerly."""


def one_branch(lax, v, x):
    """Changes the Variable in one branch of two, and reads it in both."""

    def yes(y):
        v["a"] = v["a"] * 2 + y
        return v["b"] * y

    return lax.cond(x > 2, yes, lambda y: v["a"] - y, x), v["a"] + 0


def both_branches(lax, v, x):
    """Changes another item in each branch."""

    def yes():
        v["a"] += x

    def no():
        v["b"] *= x

    lax.cond(x > 2, yes, no)
    return v["a"] + v["b"]


def one_of_three(lax, v, x):
    """Changes the Variable in two branches of three."""

    def double():
        v["a"] *= 2
        return v["b"] + 0

    def swap():
        v["a"], v["b"] = v["b"] + 0, v["a"] + 0
        return x

    return lax.switch(jnp.int32(x), [lambda: x, double, swap, lambda: v["a"] + 0])


def counted_loop(lax, v, x):
    """Accumulates in the Variable over a number of turns that is known beforehand."""

    def body(i, y):
        v["a"] = v["a"] * 2 + y
        v["b"] += 1
        return y + v["b"]

    return lax.fori_loop(0, 3, body, x)


def conditional_loop(lax, v, x):
    """Accumulates in the Variable until the carried value is large."""

    def body(y):
        v["a"] += y
        return y * 2

    return lax.while_loop(lambda y: y < 20, body, x + 1)


def loop_with_a_condition_that_counts(lax, v, x):
    """Counts in the condition how often it is asked."""

    def condition(y):
        v["b"] += 1
        return y < 20

    return lax.while_loop(condition, lambda y: y * 2, x + 1)


def nested_scans(lax, v, x):
    """Changes the Variable in a scan and in a scan within it."""

    def inner(carry, y):
        v["a"] += carry * y
        return carry + 1, v["a"] + 0

    def outer(carry, y):
        v["b"] += y
        carry, seen = lax.scan(inner, carry, array([1, 2]) * y)
        return carry, (seen, v["b"] + 0)

    return lax.scan(outer, x, array([1, 0, 2]))


def branch_in_a_loop(lax, v, x):
    """Changes the Variables in a scan, and in a branch within it."""

    def add(y):
        v["a"] += y * v["b"]

    def body(carry, y):
        v["b"] *= 2
        lax.cond(y > 1, add, lambda y: None, y)
        return carry + v["a"], None

    total, _ = lax.scan(body, x, array([0, 2, 3]))
    return total


PROGRAMS = {
    program.__name__.replace("_", "-"): program
    for program in (
        one_branch,
        both_branches,
        one_of_three,
        counted_loop,
        conditional_loop,
        loop_with_a_condition_that_counts,
        nested_scans,
        branch_in_a_loop,
    )
}
"""Programs that change values under the keys `a` and `b`, by name."""

SOME = ("one-branch", "one-of-three", "conditional-loop", "nested-scans")

INPUTS = (1.0, 3.0)


class Pair:
    """Two Variables, read and written by name as the items of one would be."""

    def __init__(self, nnx, **metadata):
        self.variables = {
            "a": nnx.Variable(array(3), **metadata),
            "b": nnx.BatchStat(array(5), **metadata),
        }

    def __getitem__(self, name):
        return self.variables[name][...]

    def __setitem__(self, name, value):
        self.variables[name][...] = value


def single(nnx, **metadata):
    """Makes one Variable with two items."""
    return nnx.Variable({"a": array(3), "b": array(5)}, **metadata)


def check(nnx, program, make, transform):
    """Runs a program with `jax.lax`, and compares with Python's control flow on each input."""
    plain, hijax = make(nnx), make(nnx, hijax=True)
    run = transform(lambda x: program(jax.lax, hijax, x))

    def held(v):
        return value_record((v["a"], v["b"]))

    for x in map(jnp.float32, INPUTS):
        before = held(hijax)
        try:
            result = run(x)
        except Exception:
            assert held(hijax) == before
            return
        expected = program(PYTHON, plain, x)
        jax.tree.map(np.testing.assert_array_equal, result, expected)
        assert held(hijax) == held(plain)


@clause(
    "HJX-034", MUST, SOUND, source="a change in a branch or loop is lost silently", needs={"hijax"}
)
class TestControlFlow:
    """A captured hijax Variable that is changed in a branch or body of `jax.lax.cond`, `switch`,
    `while_loop`, `fori_loop` or nested `scan` ends with the value that Python's own control flow
    gives it, or there is an error; no change is lost.

    After an error it has the value of before. So it is under `jax.jit` and without, whether the
    Variable is changed as a whole or by item.
    """

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_under_jit(self, nnx, name):
        check(nnx, PROGRAMS[name], Pair, jax.jit)

    @pytest.mark.parametrize("name", SOME)
    def test_items(self, nnx, name):
        check(nnx, PROGRAMS[name], single, jax.jit)

    @pytest.mark.parametrize("name", SOME)
    def test_eagerly(self, nnx, name):
        check(nnx, PROGRAMS[name], Pair, lambda f: f)
