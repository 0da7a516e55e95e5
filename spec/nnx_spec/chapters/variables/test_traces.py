"""Traces: what becomes of a Variable that a transformed function takes from outside."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, TESTED, clause, stands_on
from nnx_spec.chapters.variables.cases import array, inside
from nnx_spec.oracles import user_metadata, value_record
from nnx_spec.plans import classes

SCALAR, VECTOR = np.float32(2), np.float32([2, 3])

TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(SCALAR),
    "jit-of-jit": lambda f: jax.jit(jax.jit(f))(SCALAR),
    "grad": lambda f: jax.grad(f)(SCALAR),
    "value_and_grad": lambda f: jax.value_and_grad(f)(SCALAR),
    "jvp": lambda f: jax.jvp(f, (SCALAR,), (SCALAR,)),
    "vjp": lambda f: jax.vjp(f, SCALAR),
    "linearize": lambda f: jax.linearize(f, SCALAR),
    "vmap": lambda f: jax.vmap(f)(VECTOR),
    "vmap-of-grad": lambda f: jax.vmap(jax.grad(f))(VECTOR),
    "scan": lambda f: jax.lax.scan(lambda c, x: (c, f(x)), 0, VECTOR),
    "scan-carry": lambda f: jax.lax.scan(lambda c, x: (f(c), x), SCALAR, VECTOR),
    "map": lambda f: jax.lax.map(f, VECTOR),
    "cond": lambda f: jax.lax.cond(np.True_, f, lambda x: x, SCALAR),
    "switch": lambda f: jax.lax.switch(1, [lambda x: x, f], SCALAR),
    "while_loop": lambda f: jax.lax.while_loop(lambda x: x < 1, f, SCALAR),
    "while_loop-test": lambda f: jax.lax.while_loop(lambda x: f(x) < 1, lambda x: x, SCALAR),
    "fori_loop": lambda f: jax.lax.fori_loop(0, 2, lambda i, x: f(x), SCALAR),
    "checkpoint": lambda f: jax.checkpoint(f)(SCALAR),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(SCALAR),
    "eval_shape": lambda f: jax.eval_shape(f, SCALAR),
}
"""Transforms, applied to a function of one number, by name."""


def trace(name, f):
    """Applies a transform to a function and, to save time, compiles nothing."""

    def outer():
        TRANSFORMS[name](f)

    jax.eval_shape(outer)


def augment(v, y):
    """Runs `v[...] += y`."""
    v[...] += y


def put(v, key, y):
    """Runs `v[key] = y`."""
    v[key] = y


def delete(v, key):
    """Runs `del v[key]`."""
    del v[key]


VALUES = {
    "array": lambda: array([1, 2]),
    "numpy": lambda: np.float32([1, 2]),
    "dict": lambda: {"k": array(1), "l": 2},
    "list": lambda: [array(1), 2],
    "number": lambda: 5,
}
"""Values of each kind, by name."""

WRITES = {
    "array": {
        "whole": lambda v, y: put(v, ..., y),
        "part": lambda v, y: put(v, 0, y),
        "constant": lambda v, y: put(v, ..., 7.0),
        "augmented": augment,
        "set_value": lambda v, y: v.set_value(y),
        "copy_from": lambda v, y: v.copy_from(type(v)(y)),
        "update_from_state": lambda v, y: v.update_from_state(type(v)(y)),
        "set_metadata": lambda v, y: v.set_metadata("tag", "changed"),
        "del_metadata": lambda v, y: v.del_metadata("tag"),
    },
    "numpy": {
        "whole": lambda v, y: put(v, ..., y),
        "part": lambda v, y: put(v, 0, y),
        "constant": lambda v, y: put(v, 0, 7.0),
        "set_value": lambda v, y: v.set_value(y),
    },
    "dict": {
        "item": lambda v, y: put(v, "k", y),
        "new-item": lambda v, y: put(v, "new", y),
        "constant": lambda v, y: put(v, "k", 7.0),
        "augmented-item": lambda v, y: put(v, "k", v["k"] + y),
        "delete": lambda v, y: delete(v, "k"),
        "set_value": lambda v, y: v.set_value({"k": y}),
    },
    "list": {
        "item": lambda v, y: put(v, 0, y),
        "constant": lambda v, y: put(v, 0, 7.0),
        "delete": lambda v, y: delete(v, 0),
        "set_value": lambda v, y: v.set_value([y]),
    },
    "number": {"set_value": lambda v, y: v.set_value(y)},
}
"""Ways to write a traced number `y`, or a constant, to a Variable of each kind, by name."""

EVERY_WRITE = [
    pytest.param(kind, write, id=f"{kind}-{name}")
    for kind, writes in WRITES.items()
    for name, write in writes.items()
]


def refused_write(v, write):
    """Makes a function that writes to `v`, and keeps the refusals; the value has to stay."""

    def f(x):
        before = jax.tree.leaves(v.get_value())
        with pytest.raises(Exception) as caught:  # noqa: PT011 - VAR-027 says which error
            write(v, x)
        after = jax.tree.leaves(v.get_value())
        kept = [a is b for a, b in zip(after, before, strict=True)]
        assert kept == [True] * len(before), "a refused write has changed the value"
        f.refusals.append(caught.value)
        return x

    f.refusals = []
    return f


FEW_TRANSFORMS = ["make_jaxpr", "grad", "vmap"]

LEVELS = "tests/nnx/rngs_test.py::TestRngs::test_rng_trace_level_constraints"


@clause(
    "VAR-017",
    MUST,
    DOCUMENTED,
    source="guides/transforms#mutable-module-cannot-be-passed-by-closure",
)
class TestCapturedVariables:
    """Writing to the value of a Variable of an outer trace level raises and changes nothing.

    So it is in every transform, for every way to write and whatever is written, a tracer or not.
    For item assignment the error is the documented `TraceContextError`. The Variable keeps its old
    value, never a tracer, may be read inside, and can be written to afterwards where it belongs.
    """

    @staticmethod
    def assert_whole(v, value):
        kinds = {type(x) for x in jax.tree.leaves(v.get_value())}
        assert [kind for kind in kinds if issubclass(kind, jax.core.Tracer)] == []
        assert value_record(v.get_value()) == value_record(value)
        assert user_metadata(v) == {"tag": "t"}
        v.set_value(array([5]))
        assert v.get_value().tolist() == [5]

    @pytest.mark.parametrize("name", TRANSFORMS)
    @pytest.mark.parametrize("write", [WRITES["array"]["whole"], augment], ids=["set", "augment"])
    def test_every_transform(self, nnx, write, name):
        v = classes(nnx).Count(array(3), tag="t")
        f = refused_write(v, write)
        TRANSFORMS[name](f)
        assert len(f.refusals) > 0, "the function was not called"
        self.assert_whole(v, array(3))

    @pytest.mark.parametrize("name", FEW_TRANSFORMS)
    @pytest.mark.parametrize(("kind", "write"), EVERY_WRITE)
    def test_every_write(self, nnx, kind, write, name):
        v = classes(nnx).Count(VALUES[kind](), tag="t")
        f = refused_write(v, write)
        TRANSFORMS[name](f)
        assert len(f.refusals) > 0, "the function was not called"
        self.assert_whole(v, VALUES[kind]())

    @stands_on(TESTED, LEVELS)
    @pytest.mark.parametrize("kind", ["Variable", "Param", "BatchStat", "RngCount"])
    def test_the_error_leaves_the_transform(self, nnx, kind):
        v = getattr(nnx, kind)(array(3), tag="t")
        with pytest.raises(nnx.errors.TraceContextError):
            jax.jit(lambda x: put(v, ..., x))(SCALAR)
        self.assert_whole(v, array(3))

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_between_two_traces(self, nnx, name):
        def outer(x):
            v = nnx.BatchStat(x, tag="t")
            f = refused_write(v, WRITES["array"]["whole"])
            TRANSFORMS[name](f)
            assert len(f.refusals) > 0, "the function was not called"
            assert v.get_value() is x
            v[...] += 1
            return v[...]

        jax.make_jaxpr(outer)(SCALAR)

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_reading_is_allowed(self, nnx, name):
        v = nnx.Param(array(3), tag="t")
        trace(name, lambda x: x * v[...] + v.get_value())
        self.assert_whole(v, array(3))

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_writing_to_what_is_made_inside_is_allowed(self, nnx, name):
        def f(x):
            v = nnx.Param(x)
            v[...] *= 2
            v.set_metadata(tag="t")
            return v[...]

        trace(name, f)

    @stands_on(TESTED, LEVELS)
    @pytest.mark.parametrize("name", ["jit", "vmap", "grad"])
    def test_captured_with_a_method(self, nnx, name):
        class Counter(nnx.Module):
            def __init__(self):
                self.count = nnx.BatchStat(array(0), tag="t")

            def increment(self, x):
                self.count[...] += 1
                return x

        counter = Counter()
        with pytest.raises(nnx.errors.TraceContextError):
            TRANSFORMS[name](counter.increment)
        self.assert_whole(counter.count, array(0))

    @pytest.mark.parametrize("name", ["jit", "vmap", "grad", "scan"])
    def test_captured_through_update(self, nnx, name):
        model = inside(nnx, nnx.Param(array(3), tag="t"))
        with pytest.raises(Exception):  # noqa: B017, PT011 - which error is not ruled
            TRANSFORMS[name](lambda x: nnx.update(model, nnx.state(inside(nnx, nnx.Param(x)))))
        self.assert_whole(model.v, array(3))


@clause("VAR-027", SHOULD, OURS, source="the error says which Variable was captured and by what")
class TestErrorsOfCapturedVariables:
    """A refused write to a captured Variable raises `TraceContextError` that names its class."""

    @pytest.mark.parametrize("name", FEW_TRANSFORMS)
    @pytest.mark.parametrize(("kind", "write"), EVERY_WRITE)
    def test_every_write(self, nnx, kind, write, name):
        f = refused_write(classes(nnx).Count(VALUES[kind](), tag="t"), write)
        TRANSFORMS[name](f)
        kinds = {type(error).__name__ for error in f.refusals}
        assert kinds == {"TraceContextError"}
        assert [str(error) for error in f.refusals if "Count" not in str(error)] == []

    def test_through_update(self, nnx):
        model = inside(nnx, nnx.Param(array(3), tag="t"))
        with pytest.raises(nnx.errors.TraceContextError, match="Param"):
            jax.jit(lambda x: nnx.update(model, nnx.state(inside(nnx, nnx.Param(x)))))(SCALAR)
