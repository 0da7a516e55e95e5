"""Mutability: views whose Variables are immutable, and what refuses to write to them."""

import jax
import numpy as np
import optax
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.hijax.cases import assert_copies, assert_holds, with_vars
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import (
    assert_no_tracers,
    nodes,
    snapshot,
    variables,
)

MODES = pytest.mark.parametrize("hijax", [False, True], ids=["plain", "hijax"])
TRACED = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "traced"])


def holder(nnx, hijax):
    """Makes a Module with Variables of several kinds and values, and a raw array."""
    return net(
        nnx,
        kernel=nnx.Param(array([[1, 2]]), hijax=hijax, tag="t"),
        stats=nnx.Dict({"mean": nnx.BatchStat(array(3), hijax=hijax)}),
        layers=nnx.List([nnx.Cache({"k": array([4, 5]), "l": array(6)}, hijax=hijax)]),
        raw=array([7]),
    )


def picture(nnx, *roots):
    """Describes what no error and no view may change: objects' contents, and which they are."""
    objects = [x for root in roots for x in (*nodes(nnx, root), *variables(nnx, root))]
    return [snapshot(nnx, root) for root in roots], list(map(id, objects))


@clause(
    "HJX-017",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#mutability",
    needs={"hijax", "mutable-flag"},
)
class TestImmutableViews:
    """`with_vars(x, mutable=False)` returns a copy of `x` whose Variables are immutable.

    Their flag `mutable` is False, that of the originals stays True. The copies have the class and
    metadata of the originals and share their values: arrays are not copied. What is written to the
    originals later shows in the originals only.
    """

    @MODES
    def test_variable(self, nnx, hijax):
        v = nnx.Param(array([1, 2]), hijax=hijax, tag="t")
        view = with_vars(nnx, v, mutable=False)
        assert (view.mutable, v.mutable) == (False, True)
        assert (view.hijax, v.hijax) == (hijax, hijax)
        assert_holds(nnx, view, nnx.Param, np.float32([1, 2]), tag="t")
        assert_copies(nnx, view, v)

    @MODES
    def test_module(self, nnx, hijax):
        model = holder(nnx, hijax)
        before = picture(nnx, model)
        view = with_vars(nnx, model, mutable=False)
        assert [v.mutable for v in variables(nnx, view)] == [False] * 3
        assert [v.mutable for v in variables(nnx, model)] == [True] * 3
        assert picture(nnx, model) == before
        assert type(view) is type(model)
        assert view is not model
        assert_copies(nnx, view, model)
        assert view.raw is model.raw

    @MODES
    def test_original_stays_writable(self, nnx, hijax):
        v = nnx.Variable(array(1), hijax=hijax)
        view = with_vars(nnx, v, mutable=False)
        v[...] = 2.0
        assert (float(v[...]), float(view[...])) == (2, 1)


def put(v, key, value):
    """Runs `v[key] = value`."""
    v[key] = value


def add(v, key):
    """Runs `v[key] += 1`."""
    v[key] += 1


def delete(v, key):
    """Runs `del v[key]`."""
    del v[key]


def update(nnx, v):
    """Updates a Module that holds the Variable from a State with another value."""
    nnx.update(net(nnx, v=v), nnx.state(net(nnx, v=nnx.Param(array([8, 9]), hijax=v.hijax))))


WRITES = {
    "item": lambda nnx, v: put(v, ..., 5.0),
    "part": lambda nnx, v: put(v, 0, 5.0),
    "key": lambda nnx, v: put(v, "k", 5.0),
    "new-key": lambda nnx, v: put(v, "new", 5.0),
    "set_value": lambda nnx, v: v.set_value(array([8, 9])),
    "augmented": lambda nnx, v: add(v, ...),
    "augmented-part": lambda nnx, v: add(v, 0),
    "augmented-key": lambda nnx, v: add(v, "k"),
    "deletion": lambda nnx, v: delete(v, "k"),
    "update": update,
    "copy_from": lambda nnx, v: v.copy_from(nnx.Param(array([8, 9]), hijax=v.hijax)),
}
"""Ways to write to a Param, by name; those with "key", and the deletion, to one of a dict."""


def trainable(nnx, hijax):
    """Makes a model of two Params, an optimizer for it, and gradients."""
    with nnx.var_defaults(hijax=hijax):
        model = net(nnx, a=nnx.Param(array(1)), b=nnx.Param(array(2)))
        optimizer = nnx.Optimizer(model, optax.sgd(0.5, momentum=0.5), wrt=nnx.Param)
        grads = nnx.state(net(nnx, a=nnx.Param(array(3)), b=nnx.Param(array(4))))
    return model, optimizer, grads


@clause(
    "HJX-018",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#mutability",
    needs={"hijax", "mutable-flag"},
)
class TestImmutableVariables:
    """A write to an immutable Variable raises `ImmutableVariableError` and changes nothing.

    It does not matter how the write is spelled (item, part, `set_value`, augmented assignment,
    deletion, `update`, `copy_from`, `Optimizer.update`), whether it would change the value, nor
    whether the code is traced. Where several Variables are to be written of which one is immutable,
    none is.
    """

    @TRACED
    @MODES
    @pytest.mark.parametrize("name", WRITES)
    def test_write(self, nnx, name, hijax, transform):
        def value():
            in_a_dict = "key" in name or name == "deletion"
            return {"k": array(1), "l": array(2)} if in_a_dict else array([1, 2])

        write = transform(lambda v: WRITES[name](nnx, v))
        v = with_vars(nnx, nnx.Param(value(), hijax=hijax, tag="t"), mutable=False)
        with pytest.raises(nnx.errors.ImmutableVariableError):
            write(v)
        assert_holds(nnx, v, nnx.Param, value(), tag="t")
        assert v.mutable is False

    @MODES
    @pytest.mark.parametrize("immutable", ["a", "b"])
    def test_update_of_several(self, nnx, immutable, hijax):
        model, _, grads = trainable(nnx, hijax)
        view = with_vars(nnx, model, mutable=False, only=nnx.PathContains(immutable))
        before = picture(nnx, view)
        with pytest.raises(nnx.errors.ImmutableVariableError):
            nnx.update(view, grads)
        assert picture(nnx, view) == before

    @TRACED
    @MODES
    @pytest.mark.parametrize("immutable", ["a", "b"])
    def test_optimizer(self, nnx, immutable, hijax, transform):
        model, optimizer, grads = trainable(nnx, hijax)
        view = with_vars(nnx, model, mutable=False, only=nnx.PathContains(immutable))
        before = picture(nnx, view, optimizer)

        step = transform(lambda view, optimizer, grads: optimizer.update(view, grads))
        with pytest.raises(nnx.errors.ImmutableVariableError):
            step(view, optimizer, grads)
        assert_no_tracers(nnx, view, optimizer)
        assert picture(nnx, view, optimizer) == before


@clause(
    "HJX-019",
    MUST,
    DOCUMENTED,
    source="hijax/hijax#mutability",
    needs={"hijax", "mutable-flag"},
)
class TestMutableAgain:
    """`with_vars(x, mutable=True)` of an immutable view gives a copy that can be written again.

    Writing to it leaves the view and the original alone.
    """

    @MODES
    def test_module(self, nnx, hijax):
        model = holder(nnx, hijax)
        view = with_vars(nnx, model, mutable=False)
        again = with_vars(nnx, view, mutable=True)
        before = picture(nnx, model, view)
        assert [v.mutable for v in variables(nnx, again)] == [True] * 3
        assert [v.hijax for v in variables(nnx, again)] == [hijax] * 3
        assert_copies(nnx, again, view)
        again.kernel[...] *= 3
        again.stats["mean"].set_value(array(0))
        again.layers[0].set_value({"new": array(9)})
        assert_holds(nnx, again.kernel, nnx.Param, np.float32([[3, 6]]), tag="t")
        assert_holds(nnx, again.stats["mean"], nnx.BatchStat, np.float32(0))
        assert_holds(nnx, again.layers[0], nnx.Cache, {"new": np.float32(9)})
        assert picture(nnx, model, view) == before
        assert [v.mutable for v in variables(nnx, view)] == [False] * 3

    def test_one_kind_only(self, nnx):
        view = with_vars(nnx, holder(nnx, False), mutable=False)
        again = with_vars(nnx, view, mutable=True, only=nnx.BatchStat)
        assert (again.stats["mean"].mutable, again.kernel.mutable) == (True, False)
        again.stats["mean"][...] += 1
        assert float(again.stats["mean"][...]) == 4
