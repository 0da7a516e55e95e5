"""`StateSharding`: how `jit` shards the parts of an object over devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.oracles import array_record, snapshot

UPDATES = MODES["graph-updates"]


def sharding(*names):
    """Makes a sharding over a mesh of two by two devices with the axes `x` and `y`."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    return NamedSharding(mesh, PartitionSpec(*names))


def model_of(nnx):
    """Makes a Module with a matrix, a vector, a statistic and a count."""
    inner = net(nnx, vector=param(nnx, [1, 2, 3, 4]), mean=nnx.BatchStat(counted((4,), 5)))
    return net(nnx, matrix=param(nnx, np.arange(8).reshape(4, 2)), inner=inner, n=count(nnx, 0))


def pairs(nnx):
    """Lists filters and shardings, the first that selects a Variable being its own."""
    return [
        (nnx.PathContains("matrix"), sharding("x", "y")),
        (nnx.Param, sharding("y")),
        (nnx.BatchStat, sharding("x")),
        (..., sharding()),
    ]


def is_expected(name, found, ndim):
    """Tells whether a sharding is the one that `pairs` give a Variable of `model_of`."""
    axes = {"matrix": ("x", "y"), "vector": ("y",), "mean": ("x",), "n": ()}
    return sharding(*axes[name]).is_equivalent_to(found, ndim)


def arrays(model):
    """Reads the arrays of a `model_of` by name."""
    inner = {"vector": model.inner.vector, "mean": model.inner.mean}
    return {k: v.get_value() for k, v in (inner | {"matrix": model.matrix, "n": model.n}).items()}


def wrongly_sharded(model):
    """Lists the names of those arrays of a model that have another sharding than expected."""
    return [
        name
        for name, array in arrays(model).items()
        if not is_expected(name, array.sharding, array.ndim)
    ]


def step(model, x):
    """Changes all Variables of a model, and computes a scalar."""
    model.matrix[...] *= 2
    model.inner.vector[...] += x
    model.inner.mean[...] = model.inner.mean - model.inner.vector
    model.n[...] += 1
    return jnp.sum(model.matrix)


@clause("GRA-006", MUST, DOCUMENTED, source="guides/transforms#transforming-sub-states-lift-types")
class TestStateSharding:
    """`StateSharding({filter: sharding, ...})` in `in_shardings` and `out_shardings` of `jit` gives
    each Variable of an argument or output the sharding of the first filter that selects it.

    So an input is sharded inside, and what the function changes of it is sharded so outside; a
    Module that comes out has its Variables sharded so. Values are as without. A committed array
    that is sharded in another way is refused with ValueError, as by `jax.jit`.
    """

    @pytest.mark.parametrize("form", [dict, list])
    def test_in(self, nnx, form):
        model, eager = model_of(nnx), model_of(nnx)
        in_shardings = (nnx.StateSharding(form(pairs(nnx))), None)
        stepping = nnx.jit(step, in_shardings=in_shardings, **UPDATES)
        for _ in range(2):
            found = stepping(model, 3.0)
            assert array_record(found) == array_record(step(eager, 3.0))
            assert snapshot(nnx, model) == snapshot(nnx, eager)
            assert wrongly_sharded(model) == []

    def test_inside(self, nnx):
        seen = {}

        def note(name, ndim, found):
            seen[name] = is_expected(name, found, ndim)

        def look(model):
            for name, array in arrays(model).items():
                jax.debug.inspect_array_sharding(array, callback=partial(note, name, array.ndim))
            return step(model, 1.0)

        shardings = nnx.StateSharding(dict(pairs(nnx)))
        nnx.jit(look, in_shardings=(shardings,), **UPDATES)(model_of(nnx))
        assert seen == dict.fromkeys(["matrix", "vector", "mean", "n"], True)

    def test_out(self, nnx):
        shardings = nnx.StateSharding(dict(pairs(nnx)))
        out_shardings = (shardings, sharding("x"))

        def make():
            return model_of(nnx), jnp.zeros(4)

        model, zeros = nnx.jit(make, out_shardings=out_shardings, **UPDATES)()
        assert snapshot(nnx, model) == snapshot(nnx, model_of(nnx))
        assert wrongly_sharded(model) == []
        assert zeros.sharding.is_equivalent_to(sharding("x"), 1)

    def test_in_and_out(self, nnx):
        def stepped(model):
            step(model, 1.0)
            return model, model.n[...]

        shardings = nnx.StateSharding(dict(pairs(nnx)))
        options = {"in_shardings": (shardings,), "out_shardings": (shardings, None)}
        model, eager = model_of(nnx), model_of(nnx)
        result, n = nnx.jit(stepped, **options, **UPDATES)(model)
        step(eager, 1.0)
        assert result is model, "another object was returned than the one passed in"
        assert (int(n), wrongly_sharded(model)) == (1, [])
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @pytest.mark.parametrize("name", ["matrix", "mean"])
    @stands_on(CONVENTION, "jax.jit")
    def test_committed_arrays(self, nnx, name):
        model = model_of(nnx)
        variable = model.matrix if name == "matrix" else model.inner.mean
        variable.set_value(jax.device_put(variable.get_value(), sharding()))
        before = snapshot(nnx, model, identities=True)
        in_shardings = (nnx.StateSharding(dict(pairs(nnx))), None)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.jit(step, in_shardings=in_shardings, **UPDATES)(model, 1.0)
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"
