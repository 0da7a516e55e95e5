"""StateAxes, prefixes that contradict each other, and names of axes in graph mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, SOUND, clause, stands_on
from nnx_spec.chapters.transforms.axes import batched, counted, slice_of, stack
from nnx_spec.chapters.transforms.axis_names import (
    SIZE,
    UPDATES,
    annotated,
    keyword,
    named,
    names_of,
)
from nnx_spec.chapters.transforms.modes import each_graph_mode
from nnx_spec.oracles import array_record, names_path, snapshot
from nnx_spec.plans import classes

KINDS = ("Param", "BatchStat", "Cache")
WIDTH = 2


def model_of(nnx, values):
    """Makes a Module with a Variable of each kind, one of them in another Module."""
    own = classes(nnx)
    model = own.Net()
    model.block = own.Net()
    param, stat, cache = values
    model.param, model.block.stat = nnx.Param(param, tag="t"), nnx.BatchStat(stat)
    model.cache = nnx.Cache(cache)
    return model


def variables_of(model):
    """Lists the Variables of `model_of`."""
    return model.param, model.block.stat, model.cache


def values_for(axes, size):
    """Makes values of the three Variables, stacked along their axes."""
    shapes = [batched((WIDTH,), axis, size) for axis in axes]
    return [counted(shape, start=number) for number, shape in enumerate(shapes)]


def visit_with(axes):
    """Makes a function that reads all Variables, and writes to each what it can take."""

    def visit(model, x):
        variables = variables_of(model)
        total = sum(v[...] for v in variables) + x
        for axis, variable in zip(axes, variables, strict=True):
            variable[...] = variable * 2 + 1 if axis is None else variable + total
        return total

    return visit


def in_a_loop(nnx, axes, values, x):
    """Calls the function for each slice; returns the stacked output and the stacked model."""
    outputs, left = [], []
    for number in range(len(x)):
        parts = [slice_of(v, axis, number) for v, axis in zip(values, axes, strict=True)]
        model = model_of(nnx, parts)
        outputs.append(visit_with(axes)(model, x[number]))
        left.append([v.get_value() for v in variables_of(model)])
    columns = zip(zip(*left, strict=True), axes, strict=True)
    return stack(outputs, 0), model_of(nnx, [stack(column, axis) for column, axis in columns])


def state_axes(nnx, axes):
    """Makes StateAxes that give each kind its axis, the last one by `...`."""
    kinds = [nnx.Param, nnx.BatchStat, ...]
    return nnx.StateAxes(dict(zip(kinds, axes, strict=True)))


any_axes = st.tuples(*[st.sampled_from([0, 1, -1, None])] * 3)


@clause("GRA-004", MUST, DOCUMENTED, source="guides/transforms#transforming-sub-states-lift-types")
class TestStateAxes:
    """`StateAxes({filter: axis, ...})` gives each Variable of an object the axis of its filter.

    The first filter that selects it decides. Under `vmap` and `pmap` the axis is an int, or None
    for what is not mapped; under `scan` it may be Carry, for state that goes from step to step. A
    Variable that no filter selects raises ValueError.
    """

    @given(axes=any_axes)
    def test_vmap(self, nnx, axes):
        self.check(nnx, axes, lambda f, **options: nnx.vmap(f, **options, **UPDATES), SIZE)

    @pytest.mark.parametrize("axes", [(0, None, 1), (None, 1, 0)])
    def test_pmap(self, nnx, axes):
        size = len(jax.devices())
        self.check(nnx, axes, lambda f, **options: nnx.pmap(f, **options, **UPDATES), size)

    def check(self, nnx, axes, mapping, size):
        values, x = values_for(axes, size), counted((size,), start=1)
        model = model_of(nnx, values)
        expected, left = in_a_loop(nnx, axes, values, x)
        y = mapping(visit_with(axes), in_axes=(state_axes(nnx, axes), 0))(model, x)
        assert array_record(y) == array_record(expected)
        assert snapshot(nnx, model) == snapshot(nnx, left)

    def test_outputs(self, nnx):
        def create(start):
            return model_of(nnx, [start + np.zeros(WIDTH, "float32")] * 2 + [jnp.ones(WIDTH)])

        axes = nnx.StateAxes({nnx.Param: 1, nnx.BatchStat: 0, ...: None})
        model = nnx.vmap(create, out_axes=axes, **UPDATES)(counted((SIZE,)))
        assert model.param.get_value().tolist() == [[0, 1, 2], [0, 1, 2]]
        assert model.block.stat.get_value().tolist() == [[0, 0], [1, 1], [2, 2]]
        assert model.cache.get_value().tolist() == [1, 1]

    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_scan(self, nnx, axis):
        def step(total, model):
            model.param[...] += total
            model.block.stat[...] = model.block.stat * 2 + model.param
            return total + 1, model.block.stat * model.cache

        axes = nnx.StateAxes({nnx.Param: axis, nnx.BatchStat: nnx.Carry, nnx.Cache: None})
        values = values_for((axis, None, None), SIZE)
        model = model_of(nnx, values)
        in_axes, out_axes = (nnx.Carry, axes), (nnx.Carry, 0)
        total, y = nnx.scan(step, in_axes=in_axes, out_axes=out_axes, **UPDATES)(
            jnp.float32(5), model
        )
        rows = np.moveaxis(np.asarray(values[0]), axis, 0) + np.arange(5, 8)[:, None]
        stats = [np.asarray(values[1])]
        for row in rows:
            stats.append(stats[-1] * 2 + row)
        assert float(total) == 8
        assert y.tolist() == (np.stack(stats[1:]) * np.asarray(values[2])).tolist()
        assert model.param.get_value().tolist() == np.moveaxis(rows, 0, axis).tolist()
        assert model.block.stat.get_value().tolist() == stats[-1].tolist()
        assert array_record(model.cache.get_value()) == array_record(values[2])

    def test_first_filter_decides(self, nnx):
        axes = nnx.StateAxes(
            {nnx.PathContains("block"): None, (nnx.Param, nnx.BatchStat): 0, ...: 1}
        )
        model = model_of(nnx, values_for((0, None, 1), SIZE))
        y = nnx.vmap(
            lambda model: model.param + model.block.stat + model.cache, in_axes=(axes,), **UPDATES
        )(model)
        assert y.tolist() == [[3, 8], [6, 11], [9, 14]]

    @pytest.mark.parametrize("name", ["vmap", "scan", "pmap"])
    @stands_on(SOUND, "a Variable is silently left out, or mapped where nobody said so")
    def test_what_no_filter_selects(self, nnx, name):
        axes = nnx.StateAxes({nnx.Param: 0, nnx.Cache: 0})
        model = model_of(nnx, [counted((len(jax.devices()), WIDTH))] * 3)
        before = snapshot(nnx, model)
        options = {"in_axes": (axes,), "out_axes": 0, **UPDATES}
        with pytest.raises(ValueError):  # noqa: PT011
            getattr(nnx, name)(lambda model: model.param + 1, **options)(model)
        assert snapshot(nnx, model) == before


def shared(nnx):
    """Makes two arguments that share a Module, in different places."""
    net = classes(nnx).Net()
    net.w = nnx.Param(counted((SIZE, SIZE)))
    return {"left": {"deep": net}}, [nnx.Param(counted((SIZE, SIZE))), {"right": net}]


CLASHES = {
    "two ints": lambda nnx: (0, 1),
    "int and None": lambda nnx: (0, None),
    "int and Carry": lambda nnx: (nnx.Carry, 0),
}
"""Axes for two arguments that contradict each other."""


def two_arguments(nnx, mode, name, clash):
    """Makes arguments that share a Module, and a transform with two axes for it."""
    axes = CLASHES[clash](nnx)
    out_axes = (nnx.Carry, 0) if clash == "int and Carry" else 0
    options = {"in_axes": axes, "out_axes": out_axes, **mode}
    return shared(nnx), getattr(nnx, name)(lambda *args: (args[0], 0), **options)


def argument_and_output(nnx, mode):
    """Makes an argument, and a transform that returns it along another axis."""

    def function(first):
        return {"right": first["left"]["deep"]}

    return shared(nnx)[:1], nnx.vmap(function, in_axes=0, out_axes=1, **mode)


def two_outputs(nnx, mode):
    """Makes an argument, and a transform that makes one object and returns it along two axes."""

    def function(x):
        net = classes(nnx).Net()
        net.w = nnx.Param(x)
        return {"left": {"deep": net}}, {"right": net}

    return (counted((SIZE, SIZE)),), nnx.vmap(function, in_axes=0, out_axes=(0, 1), **mode)


CONTRADICTIONS = {
    "two axes of vmap": lambda nnx, mode: two_arguments(nnx, mode, "vmap", "two ints"),
    "an axis and None": lambda nnx, mode: two_arguments(nnx, mode, "vmap", "int and None"),
    "two axes of scan": lambda nnx, mode: two_arguments(nnx, mode, "scan", "two ints"),
    "an axis and Carry": lambda nnx, mode: two_arguments(nnx, mode, "scan", "int and Carry"),
    "two axes of pmap": lambda nnx, mode: two_arguments(nnx, mode, "pmap", "two ints"),
    "argument and output": argument_and_output,
    "two outputs": two_outputs,
}
"""Arguments, and a transform that is to give one object two axes."""

each_contradiction = pytest.mark.parametrize("kind", CONTRADICTIONS)


@clause("GRA-007", MUST, DOCUMENTED, source="guides/transforms#consistent-aliasing")
class TestContradictions:
    """Prefixes that say two different things of one object raise ValueError.

    So they do for an object in two arguments, in two outputs, or in an argument and the output. The
    caller's objects are unchanged.
    """

    @each_graph_mode
    @each_contradiction
    def test_axes(self, nnx, mode, kind):
        self.check(nnx, *CONTRADICTIONS[kind](nnx, mode))

    def test_state_axes(self, nnx):
        axes = (nnx.StateAxes({nnx.Param: 0}), nnx.StateAxes({...: 1}))
        in_axes = ({"left": {"deep": axes[0]}}, [1, {"right": axes[1]}])
        self.check(nnx, shared(nnx), nnx.vmap(lambda *args: 0, in_axes=in_axes, **UPDATES))

    def check(self, nnx, args, call):
        before = snapshot(nnx, args)
        with pytest.raises(ValueError):  # noqa: PT011
            call(*args)
        assert snapshot(nnx, args) == before


@clause("GRA-013", SHOULD, OURS, source="who reads the error has to find the object")
class TestPathsAreNamed:
    """Errors about axes that contradict each other, or are missing, name the paths to the object.

    So do that for an object that is to have two axes, with both paths, and that for a Variable
    that no filter of StateAxes selects.
    """

    @each_graph_mode
    @each_contradiction
    def test_contradictions(self, nnx, mode, kind):
        args, call = CONTRADICTIONS[kind](nnx, mode)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            call(*args)
        said = str(caught.value)
        unnamed = [p for p in (("left", "deep"), ("right",)) if not names_path(said, p)]
        assert unnamed == []

    @pytest.mark.parametrize("name", ["vmap", "scan", "pmap"])
    def test_what_no_filter_selects(self, nnx, name):
        axes = nnx.StateAxes({nnx.Param: 0, nnx.Cache: 0})
        model = model_of(nnx, [counted((len(jax.devices()), WIDTH))] * 3)
        options = {"in_axes": (axes,), "out_axes": 0, **UPDATES}
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            getattr(nnx, name)(lambda model: model.param + 1, **options)(model)
        said = str(caught.value)
        assert names_path(said, ("block", "stat")), f"the error does not name block.stat: {said}"


@clause("GRA-011", MUST, DOCUMENTED, source="guides/transforms#axis-metadata")
class TestPartitionNames:
    """`transform_metadata={PARTITION_NAME: name}` keeps the names of axes in step in graph mode.

    Inside of `vmap` and `scan` a Variable lacks the name of the axis that is mapped away; outside
    it has it again, and what is created inside gets it at the new axis, by an int or by StateAxes.
    What is carried or not mapped keeps its names.
    """

    @pytest.mark.parametrize("name", ["vmap", "scan"])
    @pytest.mark.parametrize(("axis", "out"), [(0, 1), (1, 2), (2, 0)])
    def test_names(self, nnx, name, axis, out):
        def function(v):
            inside.append(names_of(v))
            v[...] += 1
            return named(nnx, v * 2, ("c", "d"))

        inside = []
        v = annotated(nnx, ("a", "b"), 2, axis, "x")
        value, before = v.get_value(), names_of(v)
        made = keyword(nnx, name, function, {"in_axes": axis, "out_axes": out}, "x")(v)
        expected = [("x", "c", "d"), ("c", "x", "d"), ("c", "d", "x")][out]
        assert (set(inside), names_of(v), names_of(made)) == ({("a", "b")}, before, expected)
        assert (v.get_value() == value + 1).all()

    def test_carry_and_broadcast(self, nnx):
        def function(carry, layer, shared):
            inside.append((names_of(carry), names_of(layer), names_of(shared)))
            carry[...] += layer + shared
            return carry, named(nnx, layer * 2, ("b",))

        inside = []
        axes = {"in_axes": (nnx.Carry, 1, None), "out_axes": (nnx.Carry, 0)}
        carry, shared = (annotated(nnx, ("a",), 1, None, None) for _ in range(2))
        layer = annotated(nnx, ("a",), 1, 1, "x")
        carried, made = keyword(nnx, "scan", function, axes, "x")(carry, layer, shared)
        assert set(inside) == {(("a",), ("a",), ("a",))}
        assert [*map(names_of, (carry, carried, shared))] == [("a",)] * 3
        assert (names_of(layer), names_of(made)) == (("a", "x"), ("x", "b"))

    def test_state_axes(self, nnx):
        def function(model):
            inside.append([names_of(v) for v in variables_of(model)])

        inside = []
        axes = nnx.StateAxes({nnx.Param: 1, ...: None})
        model = model_of(nnx, values_for((1, None, None), SIZE))
        model.param = annotated(nnx, ("a",), 1, 1, "x")
        model.block.stat = nnx.BatchStat(
            counted((WIDTH,)), out_sharding=("b",), eager_sharding=False
        )
        keyword(nnx, "vmap", function, {"in_axes": (axes,), "out_axes": 0}, "x")(model)
        assert inside == [[("a",), ("b",), None]]
        assert [*map(names_of, variables_of(model))] == [("a", "x"), ("b",), None]

    def test_initializers(self, nnx):
        def create():
            model = classes(nnx).Net()
            model.w = nnx.Param(jnp.ones((3, 5)), out_sharding=("a", None))
            return model

        devices = np.array(jax.devices()[:1]).reshape(1, 1)
        with jax.set_mesh(jax.sharding.Mesh(devices, ("a", "b"))):
            model = nnx.vmap(
                create,
                out_axes=1,
                axis_size=4,
                transform_metadata={nnx.PARTITION_NAME: "b"},
                **UPDATES,
            )()
        assert (names_of(model.w), model.w.get_value().shape) == (("a", "b", None), (3, 4, 5))
