"""Outputs: objects that are made inside a transform and returned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from nnx_spec import DOCUMENTED, MUST, SOUND, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import each_graph_mode, each_mode, each_named
from nnx_spec.oracles import assert_no_tracers, snapshot, user_metadata
from nnx_spec.plans import classes


def _shard_map(nnx, make, mode):
    whole = PartitionSpec()
    return nnx.shard_map(make, mesh=mesh_of(1), in_specs=whole, out_specs=whole, **mode)


def _checkify(nnx, make, mode):
    def call(x):
        error, made = nnx.checkify(make, **mode)(x)
        error.throw()
        return made

    return call


def _scan(nnx, make, mode):
    axes = (nnx.Carry, 0)
    scanned = nnx.scan(lambda carry, x: (carry, make(x)), in_axes=axes, out_axes=axes, **mode)
    return lambda x: scanned(0.0, x[None])[1]


def _custom_vjp(nnx, make, mode):
    def call(x):
        ruled = nnx.custom_vjp(make, **mode)
        ruled.defvjp(lambda x: (make(x), None), lambda _, g: (jnp.zeros(2),))
        return nnx.jit(lambda x: ruled(x), **mode)(x)

    return call


RETURN = {
    "jit": lambda nnx, make, mode: nnx.jit(make, **mode),
    "grad": lambda nnx, make, mode: (
        lambda x: nnx.grad(lambda x: (x.sum(), make(x)), has_aux=True, **mode)(x)[1]
    ),
    "value_and_grad": lambda nnx, make, mode: (
        lambda x: nnx.value_and_grad(lambda x: (x.sum(), make(x)), has_aux=True, **mode)(x)[0][1]
    ),
    "vjp": lambda nnx, make, mode: (
        lambda x: nnx.vjp(lambda x: (x.sum(), make(x)), x, has_aux=True, **mode)[2]
    ),
    "jvp": lambda nnx, make, mode: (
        lambda x: nnx.jvp(lambda x: (x.sum(), make(x)), (x,), (x,), has_aux=True, **mode)[2]
    ),
    "vmap": lambda nnx, make, mode: (
        lambda x: nnx.vmap(make, in_axes=None, out_axes=None, axis_size=2, **mode)(x)
    ),
    "remat": lambda nnx, make, mode: nnx.remat(make, **mode),
    "cond": lambda nnx, make, mode: (
        lambda x: nnx.cond(x[0] > 9, lambda x: make(x * 0), make, x, **mode)
    ),
    "switch": lambda nnx, make, mode: (
        lambda x: nnx.switch(1, [lambda x: make(x * 0), make], x, **mode)
    ),
    "shard_map": _shard_map,
    "checkify": _checkify,
    "custom_vjp": _custom_vjp,
    "jit of jit": lambda nnx, make, mode: nnx.jit(lambda x: nnx.jit(make, **mode)(x), **mode),
}
"""Ways to return from a transform what a function makes of an array of shape (2,), by name."""

STACK = {
    "vmap over an axis": lambda nnx, make, mode: (
        lambda x: nnx.vmap(lambda scale: make(x * scale), **mode)(jnp.ones(1))
    ),
    "scan": _scan,
    "pmap": lambda nnx, make, mode: (
        lambda x: nnx.pmap(make, devices=jax.devices()[:1], **mode)(x[None])
    ),
}
"""Ways to return what a function makes with an axis before all others, of size one."""

X = np.float32([2, 3])


def made_of(nnx, x):
    """Makes a Module of Variables and static attributes."""
    w = nnx.Param(x * 2, tag="w")
    inner = net(nnx, n=count(nnx, 3), name="inner")
    return net(nnx, w=w, inner=inner, layers=nnx.List([nnx.BatchStat({"mean": x})]), size=2)


def two_of(nnx, x):
    """Makes two Modules that share a Variable and a Module."""
    w, inner = nnx.Param(x * 2), net(nnx, b=nnx.BatchStat(x))
    first, second = net(nnx, w=w, inner=inner), net(nnx, v=w, other=inner, inner=net(nnx, w=w))
    return {"first": first, "second": [second]}


@clause(
    "TRX-030",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestJIT::test_jit_on_init_functional",
)
class TestOutputs:
    """Objects that are made inside a transform and returned are usable outside.

    They have the classes, attributes, values and metadata that they were given, hold no tracers,
    and can be read, written and passed to transforms; where the transform stacks its outputs, so
    are their arrays. In graph mode, what the outputs share inside they share outside, and with
    graph updates an input that is returned is the caller's own; in tree mode, outputs that share
    raise ValueError.
    """

    @each_mode
    @each_named([*RETURN, *STACK])
    def test_made_inside(self, nnx, mode, transform):
        make = (RETURN | STACK)[transform](nnx, lambda x: made_of(nnx, x), mode)
        made = make(X)
        expected = made_of(nnx, jnp.asarray(X))
        if transform in STACK:
            self.check_stacked(nnx, made, expected)
        else:
            assert snapshot(nnx, made) == snapshot(nnx, expected)
        assert_no_tracers(nnx, made)
        assert user_metadata(made.w)["tag"] == "w"
        made.w[...] += 1
        made.inner.extra = nnx.Param(made.layers[0]["mean"] + 1)
        np.testing.assert_array_equal(made.w[...].reshape(2), X * 2 + 1)
        if transform == "jit":
            assert float(nnx.jit(lambda m: m.inner.extra[...].sum(), **mode)(made)) == 7

    @staticmethod
    def check_stacked(nnx, made, expected):
        """Checks what is made with an axis before all others."""
        assert type(made) is type(expected), f"a {type(made).__name__} came out"
        assert type(made.inner.n).__name__ == "Count"
        assert (made.size, made.inner.name) == (2, "inner")
        assert made.inner.n[...].tolist() == [3]
        assert made.layers[0]["mean"].tolist() == [[2, 3]]
        np.testing.assert_array_equal(made.w[...], expected.w[...][None])

    @each_mode
    @pytest.mark.parametrize("transform", ["jit", "grad", "vmap over an axis", "scan"])
    @stands_on(SOUND, "a tracer is left behind in an attribute")
    def test_arrays_in_attributes(self, nnx, mode, transform):
        """Makes a Module with an array in an attribute, and in a Pytree below."""

        def make(x):
            inner = classes(nnx).Tree()
            inner.constant = x + 1
            return net(nnx, constant=x * 2, inner=inner)

        made = (RETURN | STACK)[transform](nnx, make, mode)(jnp.asarray(X))
        assert_no_tracers(nnx, made)
        shape = (1, 2) if transform in STACK else (2,)
        np.testing.assert_array_equal(made.constant, (X * 2).reshape(shape))
        np.testing.assert_array_equal(made.inner.constant, (X + 1).reshape(shape))

    @each_graph_mode
    @each_named([*RETURN, *STACK])
    def test_sharing(self, nnx, mode, transform):
        made = (RETURN | STACK)[transform](nnx, lambda x: two_of(nnx, x), mode)(X)
        first, (second,) = made["first"], made["second"]
        assert first.w is second.v, "a Variable that was shared is two"
        assert first.w is second.inner.w, "a Variable that was shared is two"
        assert first.inner is second.other, "a Module that was shared is two"
        assert first.inner is not second.inner, "two Modules are one"
        first.w[...] += 1
        np.testing.assert_array_equal(second.v[...].reshape(2), X * 2 + 1)
        assert_no_tracers(nnx, made)

    @pytest.mark.parametrize("transform", ["jit", "remat", "vmap", "cond"])
    @stands_on(TESTED, "tests/nnx/transforms_test.py::TestJIT::test_graph_updates_ref_in_output")
    def test_inputs_come_out(self, nnx, transform):
        """Returns an object that was passed in, beside and in one that is made inside."""

        def wrap(model, x):
            return model, net(nnx, w=model.w, fresh=nnx.Param(x))

        mode = {"graph": True, "graph_updates": True}
        model = net(nnx, w=nnx.Param(jnp.asarray(X)), name="model")
        apply = {
            "jit": lambda: nnx.jit(wrap, **mode)(model, X),
            "remat": lambda: nnx.remat(wrap, **mode)(model, X),
            "vmap": lambda: nnx.vmap(wrap, **mode)(model, X),
            "cond": lambda: nnx.cond(True, wrap, wrap, model, X, **mode),
        }
        again, made = apply[transform]()
        assert again is model, "another object came out than went in"
        assert made.w is model.w, "another Variable came out than went in"
        np.testing.assert_array_equal(made.fresh[...], X)

    @each_named([*RETURN, *STACK])
    @stands_on(DOCUMENTED, "flip/5310-tree-mode-nnx#simple-transforms")
    def test_sharing_in_tree_mode(self, nnx, transform):
        def make(x):
            w = nnx.Param(x)
            return {"first": net(nnx, w=w), "second": [net(nnx, v=w)]}

        mode = {"graph": False, "graph_updates": False}
        with pytest.raises(ValueError):  # noqa: PT011
            (RETURN | STACK)[transform](nnx, make, mode)(X)
