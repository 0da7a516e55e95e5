"""What a transform writes back, what it leaves alone, and what it does when the function raises."""

import jax
import jax.numpy as jnp
import pytest

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.chapters.transforms.modes import MODES, each_mode, each_of
from nnx_spec.oracles import assert_no_tracers, nodes, snapshot, variables, walk

X = jnp.float32([1, 2])


class StopError(Exception):
    """Raised by the functions of these tests."""


def make(nnx):
    """Makes a model of several kinds of parts, two levels deep."""
    inner = net(nnx, w=param(nnx, [3, 4], note="red"), n=count(nnx, 5))
    items = nnx.List([param(nnx, [6, 7])])
    stat = nnx.BatchStat({"mean": jnp.float32([8, 9]), "var": jnp.float32(1)})
    return net(nnx, inner=inner, items=items, stat=stat, rngs=nnx.Rngs(0), kept=param(nnx, 2.0))


def change(model, x):
    """Writes to a Variable of each kind in one way each; returns an array like x."""
    y = x * model.inner.w[...] + model.kept[...]
    model.inner.w[...] = y
    model.inner.n[...] += 1
    model.items[0][1] = y[0]
    model.stat.set_value({"mean": x, "var": model.stat["mean"][1]})
    model.rngs.default.count[...] += 1
    return y


@clause("TRX-003", MUST, DOCUMENTED, source="guides/transforms#state-propagation")
class TestWritesReachTheCaller:
    """What a function writes to Variables is written to those that the caller holds, themselves.

    Whatever the transform, the caller's objects and Variables are in their places afterwards, and
    who holds one of them from elsewhere sees the new value.
    """

    @each_transform()
    def test_transforms(self, nnx, transform, mode):
        model, eager = make(nnx), make(nnx)
        parts = [*nodes(nnx, model), *variables(nnx, model)]
        applied = APPLY[transform](nnx, change, mode)
        for x in (X, X + 1):
            assert applied(model, x).tolist() == change(eager, x).tolist()
        assert snapshot(nnx, model) == snapshot(nnx, eager)
        found = [*nodes(nnx, model), *variables(nnx, model)]
        assert [*map(id, found)] == [*map(id, parts)]

    @each_mode
    def test_variables_as_arguments(self, nnx, mode):
        def step(variables, x):
            variables["w"][...] += x
            variables["n"][...] += 1

        w, n = param(nnx, [1, 2]), count(nnx, 3)
        nnx.jit(step, **mode)({"n": n, "w": w}, X)
        assert (w.get_value().tolist(), int(n.get_value())) == ([2, 4], 4)


def update(model, x):
    """Writes to one Variable, and reads the others."""
    model.inner.w[...] += x
    return x + model.kept[...] + model.items[0][...] + model.inner.n[...]


@clause("TRX-004", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#simple-transforms")
class TestUnchangedVariables:
    """A Variable that the function does not write to keeps its value, and is no output of what is
    compiled.

    The second half holds without graph updates: the compiled function gives what the function
    returns, and the new values of the Variables that it writes to.
    """

    @each_transform()
    def test_values(self, nnx, transform, mode):
        model, expected = make(nnx), make(nnx)
        y = APPLY[transform](nnx, update, mode)(model, X)
        assert y.tolist() == [14, 16]
        expected.inner.w[...] = jnp.float32([4, 6])
        assert snapshot(nnx, model) == snapshot(nnx, expected)

    @each_of({name: mode for name, mode in MODES.items() if not mode["graph_updates"]})
    @pytest.mark.parametrize(("f", "outputs"), [(update, 2), (lambda m, x: x * m.kept[...], 1)])
    def test_outputs(self, nnx, mode, f, outputs):
        lowered = nnx.jit(f, **mode).lower(make(nnx), X)
        assert lowered.out_tree.num_leaves == outputs


@clause("TRX-036", SHOULD, OURS, source="no copy is made of what has not changed")
class TestUnchangedArrays:
    """A Variable that the function does not write to holds the same array object as before."""

    @each_transform()
    def test_transforms(self, nnx, transform, mode):
        model = make(nnx)
        before = held_arrays(nnx, model)
        APPLY[transform](nnx, update, mode)(model, X)
        after = held_arrays(nnx, model)
        changed = [path for path, arrays in after.items() if arrays != before[path]]
        assert changed == [("inner", "w")]

    @each_mode
    def test_each_call_by_itself(self, nnx, mode):
        """What one call changes does not count as changed by the next, which runs the same code."""

        @nnx.jit(**mode)
        def swap(model, first):
            model.a[...], model.b[...] = model.b[...], model.a[...]
            return model.c[...]

        model = net(nnx, a=param(nnx, 1.0), b=param(nnx, 2.0), c=param(nnx, 3.0))
        array = model.c.get_value()
        for expected in ((2, 1), (1, 2)):
            swap(model, 0.0)
            assert (float(model.a[...]), float(model.b[...])) == expected
            assert model.c.get_value() is array, "c holds another array"
        model.c.set_value(new := jnp.float32(4))
        assert float(swap(model, 0.0)) == 4
        assert model.c.get_value() is new, "c holds another array than the new one"


def held_arrays(nnx, model):
    """Returns the identities of the arrays that a model's Variables hold, by path."""
    return {
        path: [*map(id, jax.tree.leaves(variable.get_value()))]
        for path, variable in walk(nnx, model)
        if isinstance(variable, nnx.Variable)
    }


@clause("TRX-008", MUST, SOUND, source="an exception leaves tracers behind, or half of an update")
class TestExceptions:
    """An exception in the function reaches the caller and leaves the inputs as they were.

    All objects, Variables and arrays are in their places, none holds a tracer, and the next call
    does what it would have done otherwise.
    """

    @each_transform()
    def test_transforms(self, nnx, transform, mode):
        def step(model, x):
            y = change(model, x)
            if failing:
                raise StopError
            return y

        model, eager = make(nnx), make(nnx)
        before = snapshot(nnx, model, identities=True)
        applied, failing = APPLY[transform](nnx, step, mode), True
        for _ in range(2):
            with pytest.raises(StopError):
                applied(model, X)
            assert_no_tracers(nnx, model)
            assert snapshot(nnx, model, identities=True) == before
        failing = False
        assert applied(model, X).tolist() == change(eager, X).tolist()
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_transform("jit", "grad", "vmap", "remat", "scan")
    def test_changes_of_structure(self, nnx, transform, mode):
        """A half-made change of structure, or of the order of a List, does not show either."""

        def step(model, x):
            model.inner.w[...] = x
            model.extra = model.inner.w
            model.kept, model.items = model.items[0], nnx.List([model.kept])
            model.stat.set_metadata("note", "changed")
            del model.inner
            raise StopError

        model = make(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises(StopError):
            APPLY[transform](nnx, step, mode)(model, X)
        assert_no_tracers(nnx, model)
        assert snapshot(nnx, model, identities=True) == before

    @each_mode
    @pytest.mark.parametrize("inner", ["grad", "scan", "vmap"])
    def test_inside_another_transform(self, nnx, mode, inner):
        """The inner transform's inputs are as they were, too, for an outer one that goes on."""

        def fail(model, x):
            change(model, x)
            raise StopError

        @nnx.jit(**mode)
        def step(model, x):
            before = snapshot_of_tracers(nnx, model)
            with pytest.raises(StopError):
                APPLY[inner](nnx, fail, mode)(model, x)
            assert snapshot_of_tracers(nnx, model) == before
            return change(model, x)

        model, eager = make(nnx), make(nnx)
        assert step(model, X).tolist() == change(eager, X).tolist()
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_mode
    def test_errors_of_jax(self, nnx, mode):
        @nnx.jit(**mode)
        def step(model, x):
            y = change(model, x)
            return -y if y.sum() > 0 else y

        model = make(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises(jax.errors.TracerBoolConversionError):
            step(model, X)
        assert_no_tracers(nnx, model)
        assert snapshot(nnx, model, identities=True) == before


def snapshot_of_tracers(nnx, model):
    """Lists the identities of what a model's Variables hold."""
    return [id(leaf) for v in variables(nnx, model) for leaf in jax.tree.leaves(v.get_value())]
