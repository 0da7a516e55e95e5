"""vmap: axes, initializers, broadcast Variables, names and sizes of axes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import CONVENTION, DOCUMENTED, MUST, OURS, SHOULD, clause, stands_on
from nnx_spec.chapters.transforms.axes import (
    Axis,
    batched,
    counted,
    model_of,
    slice_of,
    stack,
    values_of,
)
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import array_record, assert_no_tracers, names_path, snapshot
from nnx_spec.plans import classes

SIZE = 3
KERNEL, X = (1, 2), (2,)


@dataclass(frozen=True)
class Axes:
    """The axes of three arguments, a Module, a scalar Variable and an array, and of the output.

    Of a size of two, arrays are square; of a size of one, they look like what is not mapped.
    """

    model: Axis = 0
    scale: Axis = 0
    x: Axis = 0
    out: int = 0
    size: int = SIZE


any_axes = st.builds(
    Axes,
    model=st.sampled_from([0, 1, 2, -1, -2, -3, None]),
    scale=st.sampled_from([0, -1, None]),
    x=st.sampled_from([0, 1, -1, -2, None]),
    out=st.sampled_from([0, 1, 2, -1, -2, -3]),
    size=st.sampled_from([SIZE, 2, 1]),
).filter(lambda axes: (axes.model, axes.scale, axes.x) != (None, None, None))


def arguments(nnx, axes):
    """Makes the three arguments, stacked along the axes."""
    kernel = batched(KERNEL, axes.model, axes.size)
    model = model_of(nnx, counted(kernel), counted(kernel, "int32", 5))
    scale = nnx.Param(counted(batched((), axes.scale, axes.size), start=2), tag="blue")
    return model, scale, counted(batched(X, axes.x, axes.size), start=1)


def part_of(nnx, axes, number):
    """Makes the three arguments as the function sees them in one slice."""
    model, scale, x = arguments(nnx, axes)
    kernel, seen = (slice_of(value, axes.model, number) for value in values_of(model))
    part = nnx.Param(slice_of(scale.get_value(), axes.scale, number), tag="blue")
    return model_of(nnx, kernel, seen), part, slice_of(x, axes.x, number)


def visit_with(axes):
    """Makes a function that reads three arguments and writes to those that are mapped."""

    def visit(model, scale, x):
        y = model.kernel[...] * 2 + (x + scale[...])
        tripled = scale[...] * 3
        if axes.model is not None:
            model.kernel[...] = y
            model.block.seen[...] += 1
        if axes.scale is not None:
            scale[...] = x.sum() - scale[...]
        return y, tripled

    return visit


def loop(nnx, axes):
    """Calls the function for each slice, and stacks what it returns and leaves."""
    parts = [part_of(nnx, axes, number) for number in range(axes.size)]
    outputs = [visit_with(axes)(*part) for part in parts]
    models = zip(*(values_of(model) for model, _, _ in parts), strict=True)
    model = model_of(nnx, *(stack(values, axes.model) for values in models))
    scale = stack([scale.get_value() for _, scale, _ in parts], axes.scale)
    ys, tripled = zip(*outputs, strict=True)
    return (stack(ys, axes.out), stack(tripled, axes.scale)), (model, nnx.Param(scale, tag="blue"))


def records(arrays):
    """Describes arrays to the bit."""
    return [*map(array_record, arrays)]


@clause("TRX-013", MUST, DOCUMENTED, source="guides/transforms#basic-example")
class TestAxes:
    """`vmap` equals a Python loop over the slices along `in_axes`, and a stack along `out_axes`.

    An axis of an object is the axis of every Variable in it; what the function writes there comes
    back along the same axis. Axes count from the front or, if negative, from the back of the whole
    array. None passes the whole of an argument to every slice, and takes an output that is the same
    for all once.
    """

    @each_mode
    @given(axes=any_axes)
    def test_any_axes(self, nnx, mode, axes):
        args = arguments(nnx, axes)
        mapped = nnx.vmap(
            visit_with(axes),
            in_axes=(axes.model, axes.scale, axes.x),
            out_axes=(axes.out, axes.scale),
            **mode,
        )
        outputs, state = loop(nnx, axes)
        assert records(mapped(*args)) == records(outputs)
        assert snapshot(nnx, args[:2]) == snapshot(nnx, state)

    @each_mode
    @pytest.mark.parametrize("axis", [0, -1])
    @stands_on(CONVENTION, "jax.vmap")
    def test_an_empty_axis(self, nnx, mode, axis):
        axes = Axes(model=axis, scale=None, x=axis, out=axis, size=0)
        model, scale, x = arguments(nnx, axes)
        before = snapshot(nnx, model)
        mapped = nnx.vmap(
            lambda model, x: visit_with(axes)(model, scale, x)[0],
            in_axes=axis,
            out_axes=axis,
            **mode,
        )
        assert mapped(model, x).shape == batched(KERNEL, axis, 0)
        assert snapshot(nnx, model) == before

    @each_mode
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_one_axis_for_all(self, nnx, mode, axis):
        axes = Axes(model=axis, scale=None, x=axis, out=axis)
        model, scale, x = arguments(nnx, axes)
        (y, _), (expected, _) = loop(nnx, axes)
        mapped = nnx.vmap(
            lambda model, x: visit_with(axes)(model, scale, x)[0],
            in_axes=axis,
            out_axes=axis,
            **mode,
        )
        assert array_record(mapped(model, x)) == array_record(y)
        assert snapshot(nnx, model) == snapshot(nnx, expected)

    @each_mode
    def test_axes_in_a_tree(self, nnx, mode):
        def function(tree, x):
            tree["pair"][0][...] += x
            return {"sum": tree["pair"][0][...] + tree["pair"][1][...], "net": tree["net"].w * x}

        first, second = nnx.Param(counted((2, SIZE))), nnx.BatchStat(counted((2,)))
        net = classes(nnx).Net()
        net.w = nnx.Param(counted((SIZE, 2)))
        x = counted((SIZE,), start=1)
        output = nnx.vmap(
            function,
            in_axes=({"pair": (1, None), "net": 0}, 0),
            out_axes={"sum": -1, "net": 0},
            **mode,
        )({"pair": (first, second), "net": net}, x)
        added = np.arange(6).reshape(2, 3) + np.arange(1, 4)
        assert first.get_value().tolist() == added.tolist()
        assert output["sum"].tolist() == (added + np.arange(2)[:, None]).tolist()
        assert output["net"].tolist() == [[0, 1], [4, 6], [12, 15]]
        assert (net.w.get_value().shape, second.get_value().shape) == ((SIZE, 2), (2,))

    @each_mode
    def test_methods(self, nnx, mode):
        class Weights(nnx.Module):
            def __init__(self):
                self.kernel = nnx.Param(counted((SIZE, 2)))
                self.calls = nnx.BatchStat(counted((SIZE,), "int32"))

            @nnx.vmap(in_axes=0, out_axes=1, **mode)
            def __call__(self, x):
                self.calls[...] += 1
                return self.kernel * x

        weights = Weights()
        assert weights(counted((SIZE,), start=1)).tolist() == [[0, 4, 12], [1, 6, 15]]
        assert weights.calls.get_value().tolist() == [1, 2, 3]


def creator(nnx):
    """Makes a function that creates a Module from an integer and a vector of two elements."""
    own = classes(nnx)

    def create(seed, start):
        model = own.Net()
        model.kernel = nnx.Param(start * seed, tag="red")
        model.blocks = nnx.List([own.Net()])
        model.blocks[0].count = own.Count(seed + np.zeros(1, "int32"))
        model.size = 2
        return model

    return create


@clause("TRX-014", MUST, DOCUMENTED, source="guides/transforms#basic-example")
class TestInitializers:
    """`vmap` over a function that creates a Module gives one Module whose Variables are stacks.

    Slice by slice it equals the Modules that the function creates from the slices of its arguments,
    in values, classes, metadata and static attributes.
    """

    @each_mode
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_slices(self, nnx, mode, axis):
        create, seeds, starts = creator(nnx), counted((SIZE,), "int32", 4), counted((2, SIZE))
        made = [create(seeds[n], starts[:, n]) for n in range(SIZE)]
        stacked = nnx.vmap(create, in_axes=(0, 1), out_axes=axis, **mode)(seeds, starts)
        expected = create(seeds[0], starts[:, 0])
        expected.kernel = nnx.Param(stack([m.kernel.get_value() for m in made], axis), tag="red")
        counts = [model.blocks[0].count.get_value() for model in made]
        expected.blocks[0].count = classes(nnx).Count(stack(counts, axis))
        assert snapshot(nnx, stacked) == snapshot(nnx, expected)

    def test_methods(self, nnx):
        class Weights(nnx.Module):
            @nnx.vmap(graph=True, graph_updates=True)
            def __init__(self, seed):
                self.kernel = nnx.Param(seed + np.arange(2, dtype="float32"))

        weights = Weights(counted((SIZE,)))
        assert weights.kernel.get_value().tolist() == [[0, 1], [1, 2], [2, 3]]


WRITES = {
    "item": lambda v, x: v.__setitem__(..., x),
    "augmented item": lambda v, x: v.__setitem__(..., v[...] + x),
    "set_value": lambda v, x: v.set_value(x),
}
"""Ways to write to a scalar Variable what depends on a value."""


@clause("TRX-015", MUST, DOCUMENTED, source="guides/transforms#transforming-sub-states-lift-types")
class TestBroadcast:
    """A Variable that is not mapped (None) is updated once with what is the same for all slices.

    A write of a value that differs from slice to slice raises ValueError and changes nothing.
    """

    @each_mode
    @pytest.mark.parametrize("write", WRITES)
    @pytest.mark.parametrize("nested", [False, True], ids=["Variable", "Module"])
    @stands_on(CONVENTION, "jax.vmap")
    def test_batched_values(self, nnx, mode, write, nested):
        own = classes(nnx)
        shared = own.Count(jnp.float32(3))
        if nested:
            net = own.Net()
            net.v = shared
        mapped = own.Count(counted((SIZE,)))

        def function(holder, mapped, x):
            mapped[...] += 1
            WRITES[write](holder.v if nested else holder, x)

        call = nnx.vmap(function, in_axes=(None, 0, 0), **mode)
        with pytest.raises(ValueError):  # noqa: PT011
            call(net if nested else shared, mapped, counted((SIZE,)))
        assert shared.get_value().tolist() == 3
        assert mapped.get_value().tolist() == [0, 1, 2]
        assert_no_tracers(nnx, shared, mapped)

    @each_mode
    @pytest.mark.parametrize("write", WRITES)
    def test_unbatched_values(self, nnx, mode, write):
        shared, other = nnx.BatchStat(jnp.float32(3)), nnx.Param(jnp.float32(4))

        def function(shared, other, x):
            WRITES[write](shared, other[...])
            return shared[...] * x

        y = nnx.vmap(function, in_axes=(None, None, 0), **mode)(shared, other, counted((SIZE,)))
        expected = 7 if write == "augmented item" else 4
        assert shared.get_value().tolist() == expected
        assert y.tolist() == [0, expected, 2 * expected]
        assert other.get_value().tolist() == 4

    @each_mode
    def test_sums_over_the_axis(self, nnx, mode):
        shared = nnx.BatchStat(jnp.float32(3))

        def function(shared, x):
            shared[...] += jax.lax.psum(x, "batch")

        nnx.vmap(function, in_axes=(None, 0), axis_name="batch", **mode)(shared, counted((SIZE,)))
        assert shared.get_value().tolist() == 6


HOLDERS = {
    "array": lambda nnx, value: value,
    "Variable": lambda nnx, value: nnx.Param(value),
    "Module": lambda nnx, value: model_of(nnx, value, value),
}
"""What may hold an array among arguments."""


each_mismatch = pytest.mark.parametrize(
    ("first", "second"), [("array", "array"), ("Module", "array"), ("Variable", "Module")]
)


def mismatch(nnx, mode, first, second):
    """Maps over sizes that differ; returns the error's message, and checks what it leaves."""
    weights = HOLDERS[first](nnx, counted((SIZE,)))
    batch = HOLDERS[second](nnx, counted((SIZE + 1,)))
    before = snapshot(nnx, (weights, batch))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        nnx.vmap(lambda weights, batch: None, **mode)(weights, batch)
    assert snapshot(nnx, (weights, batch)) == before
    return str(caught.value)


@clause("TRX-016", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.vmap")
class TestNamesAndSizes:
    """In a function that `vmap` maps, collectives work over the axis that `axis_name` names.

    `axis_size` gives its size where no argument does. Arguments of different sizes raise JAX's
    ValueError.
    """

    @each_mode
    def test_collectives(self, nnx, mode):
        def function(v, x):
            v[...] -= jax.lax.pmean(v[...], "batch")
            total = jax.lax.psum(x, axis_name="batch")
            return total, jax.lax.axis_index("batch"), jax.lax.all_gather(x, "batch")

        v, x = nnx.Param(counted((2, SIZE))), counted((SIZE,), start=1)
        out_axes = (None, 0, None)
        total, index, gathered = nnx.vmap(
            function, in_axes=(1, 0), out_axes=out_axes, axis_name="batch", **mode
        )(v, x)
        assert v.get_value().tolist() == [[-1, 0, 1], [-1, 0, 1]]
        assert (total.tolist(), index.tolist()) == (6, [0, 1, 2])
        assert gathered.tolist() == [1, 2, 3]

    @each_mode
    def test_size_without_arguments(self, nnx, mode):
        def create():
            index = jax.lax.axis_index("member")
            return nnx.Param(index + np.zeros(2, "int32"))

        made = nnx.vmap(create, out_axes=-1, axis_name="member", axis_size=SIZE, **mode)()
        assert isinstance(made, nnx.Param)
        assert made.get_value().tolist() == [[0, 1, 2], [0, 1, 2]]

    @each_mode
    def test_size_without_mapped_arguments(self, nnx, mode):
        def function(v):
            v[...] += jax.lax.psum(1, "batch")
            return v[...]

        v = nnx.BatchStat(jnp.int32(4))
        y = nnx.vmap(function, in_axes=None, axis_name="batch", axis_size=SIZE, **mode)(v)
        assert (y.tolist(), v.get_value().tolist()) == ([7, 7, 7], 7)

    @each_mode
    @each_mismatch
    @stands_on(CONVENTION, "jax.vmap")
    def test_mismatch(self, nnx, mode, first, second):
        mismatch(nnx, mode, first, second)


@clause("TRX-038", SHOULD, OURS, source="an error names the arguments that do not fit together")
@each_mode
@each_mismatch
def test_sizes_that_differ_are_named(nnx, mode, first, second):
    """The error of `vmap` for arguments of different sizes names them."""
    message = mismatch(nnx, mode, first, second)
    named = [name for name in ("weights", "batch") if names_path(message, (name,))]
    assert named == ["weights", "batch"], message
