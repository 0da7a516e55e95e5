"""scan: the loop, layers, and carries that change their type."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, DOCUMENTED, MUST, OURS, SHOULD, SOUND, clause, stands_on
from nnx_spec.chapters.transforms.axes import (
    batched,
    counted,
    model_of,
    slice_of,
    stack,
    values_of,
)
from nnx_spec.chapters.transforms.modes import each_mode, each_named
from nnx_spec.oracles import array_record, assert_no_tracers, names_path, snapshot
from nnx_spec.plans import classes

LENGTH = 3
ELEMENT = (1, 2)


@dataclass(frozen=True)
class Loop:
    """How a scan goes: the axes of layers, inputs and outputs, its direction and unrolling."""

    layers: int = 0
    x: int = 0
    out: int = 0
    reverse: bool = False
    unroll: int | bool = 1
    length: int = LENGTH


LOOPS = {
    "leading axes": Loop(),
    "reverse": Loop(x=1, reverse=True),
    "other axes": Loop(layers=1, x=2, out=1, unroll=2),
    "square arrays": Loop(layers=1, x=2, out=1, length=2),
    "one step": Loop(layers=-1, out=1, length=1),
    "negative axes": Loop(layers=-1, x=-3, out=-2, reverse=True, unroll=True),
}
"""Scans, over three steps if nothing else is said."""


def layers_of(nnx, loop):
    """Makes stacked layers for a scan."""
    shape = batched(ELEMENT, loop.layers, loop.length)
    return model_of(nnx, counted(shape), counted(shape, "int32", 5))


def holder(nnx, value):
    """Makes a Module with a Variable `total` and nothing else."""
    net = classes(nnx).Net()
    net.total = nnx.BatchStat(value, tag="blue")
    return net


def step(carry, layer, shared, x):
    """Reads state that is carried, of the layer and shared, and writes to the first two."""
    y = layer.kernel * 2 + x + carry["x"]
    layer.kernel[...] = y
    layer.block.seen[...] += 1
    carry["net"].total[...] += y
    return {"net": carry["net"], "x": y - x}, y * shared.total


def sharing_step(carry, layer, shared, x):
    """Does the same, and writes to what all steps share."""
    shared.total[...] = shared.total * 2 + 1
    return step(carry, layer, shared, x)


class Case:
    """The arguments of a scan, and what the same steps one after the other make of them."""

    def __init__(self, nnx, loop, step=step):
        self.nnx = nnx
        self.step = step
        self.loop = loop
        self.layers = layers_of(nnx, loop)
        self.shared = holder(nnx, jnp.float32(1))
        self.carry = {"net": holder(nnx, counted(ELEMENT)), "x": counted(ELEMENT, start=3)}
        self.x = counted(batched(ELEMENT, loop.x, loop.length), start=1)

    def scan(self, mode):
        """Scans; returns the last carry and the outputs."""
        scanned = self.nnx.scan(
            self.step,
            in_axes=(self.nnx.Carry, self.loop.layers, None, self.loop.x),
            out_axes=(self.nnx.Carry, self.loop.out),
            reverse=self.loop.reverse,
            unroll=self.loop.unroll,
            length=self.loop.length,
            **mode,
        )
        return scanned(self.carry, self.layers, self.shared, self.x)

    def run(self):
        """Runs the steps one after the other; returns the last carry and the outputs."""
        order = [*range(self.loop.length)]
        values, loop = values_of(self.layers), self.loop
        layers = [model_of(self.nnx, *(slice_of(v, loop.layers, n) for v in values)) for n in order]
        outputs = dict.fromkeys(order)
        carry = self.carry
        for n in reversed(order) if loop.reverse else order:
            x = slice_of(self.x, loop.x, n)
            carry, outputs[n] = self.step(carry, layers[n], self.shared, x)
        stacks = zip(*map(values_of, layers), strict=True)
        self.layers = model_of(self.nnx, *(stack(values, loop.layers) for values in stacks))
        return carry, stack([*outputs.values()], loop.out)

    def state(self):
        """Describes all three kinds of state."""
        return snapshot(self.nnx, [self.layers, self.shared, self.carry["net"]])


@clause("TRX-017", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.scan")
class TestLoop:
    """`scan` equals the loop of its steps, one after the other, in outputs and in state.

    State that has an axis is of the step: it goes in as slices and comes back stacked along
    that axis. State that is carried is at each step what the step before has left. So is state
    that is passed to all steps (None), if it is written to; or else the write is refused.
    `reverse` begins with the last slice, `length` is the number of steps where no argument
    tells, and `unroll` changes nothing.
    """

    @each_mode
    @pytest.mark.parametrize("name", LOOPS)
    def test_steps(self, nnx, mode, name):
        case, plain = Case(nnx, LOOPS[name]), Case(nnx, LOOPS[name])
        (carry, y), (plain_carry, plain_y) = case.scan(mode), plain.run()
        assert array_record(y) == array_record(plain_y)
        assert snapshot(nnx, carry) == snapshot(nnx, plain_carry)
        assert case.state() == plain.state()

    @each_mode
    @pytest.mark.parametrize("name", ["leading axes", "reverse"])
    @stands_on(SOUND, "a write to what all steps share is lost")
    def test_writes_to_what_is_shared(self, nnx, mode, name):
        case, plain = (Case(nnx, LOOPS[name], sharing_step) for _ in range(2))
        before = case.state()
        try:
            (carry, y), (plain_carry, plain_y) = case.scan(mode), plain.run()
        except (TypeError, ValueError):
            assert case.state() == before
            return
        assert array_record(y) == array_record(plain_y)
        assert snapshot(nnx, carry) == snapshot(nnx, plain_carry)
        assert case.state() == plain.state()

    @each_mode
    @stands_on(CONVENTION, "jax.lax.scan")
    def test_no_step(self, nnx, mode):
        case = Case(nnx, Loop(layers=1, out=1, length=0))
        before, carry = case.state(), case.carry["x"]
        last, y = case.scan(mode)
        assert y.shape == batched(ELEMENT, 1, 0)
        assert array_record(last["x"]) == array_record(carry)
        assert case.state() == before

    @each_mode
    def test_carry_alone(self, nnx, mode):
        def double(net):
            net.total[...] *= 2
            return net

        net = holder(nnx, jnp.float32(3))
        scanned = nnx.scan(double, in_axes=nnx.Carry, out_axes=nnx.Carry, length=4, **mode)
        assert scanned(net).total.get_value() == 48
        assert net.total.get_value() == 48

    @each_mode
    def test_no_carry(self, nnx, mode):
        def count(net, x):
            net.total[...] += x
            return net.total[...] * 2

        net = holder(nnx, counted((2, LENGTH)))
        scanned = nnx.scan(count, in_axes=(1, 0), out_axes=1, **mode)
        assert scanned(net, counted((LENGTH,))).tolist() == [[0, 4, 8], [6, 10, 14]]
        assert net.total.get_value().tolist() == [[0, 2, 4], [3, 5, 7]]

    @each_mode
    def test_carry_in_another_place(self, nnx, mode):
        def add(x, net):
            net.total[...] += x
            return x * 10, net

        net = holder(nnx, jnp.float32(3))
        axes = (0, nnx.Carry)
        y, carried = nnx.scan(add, in_axes=axes, out_axes=axes, **mode)(counted((LENGTH,)), net)
        assert y.tolist() == [0, 10, 20]
        assert (carried.total.get_value(), net.total.get_value()) == (6, 6)


DEPTHS, WIDTH, SEED = (2, 5), 2, 4


def layer_class(nnx):
    """Makes a class of layers with parameters, a statistic and noise, which all change in use."""

    class Layer(nnx.Module):
        def __init__(self, key):
            self.rngs = nnx.Rngs(key)
            self.kernel = nnx.Param(self.rngs.uniform((WIDTH,)))
            self.mean = nnx.BatchStat(jnp.zeros(WIDTH))

        def __call__(self, x):
            x = jnp.tanh(x * self.kernel) + self.rngs.uniform((WIDTH,))
            self.mean[...] = 0.75 * self.mean + 0.25 * x
            self.kernel[...] *= 0.5
            return x

    return Layer


def values_of_layer(layer):
    """Reads everything that a layer holds; keys as their data."""
    stream = layer.rngs.default
    key = jax.random.key_data(stream.key.get_value())
    return layer.kernel.get_value(), layer.mean.get_value(), key, stream.count.get_value()


@clause("TRX-018", MUST, DOCUMENTED, source="api_reference/flax.nnx/transforms#flax.nnx.scan")
class TestLayers:
    """`scan` over a stack of layers equals the layers one after the other.

    The parameters, statistics and random streams of each layer are then as those of its own. The
    function of a layer is traced as often for many layers as for few.
    """

    @each_mode
    def test_unrolled(self, nnx, mode):
        layer, x = layer_class(nnx), counted((WIDTH,))
        keys = jax.random.split(jax.random.key(SEED), LENGTH)
        stacked = nnx.vmap(layer, **mode)(keys)
        single = [layer(keys[n]) for n in range(LENGTH)]

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **mode)
        def apply(x, layer):
            return layer(x)

        y, expected = apply(x, stacked), x
        for one in single:
            expected = one(expected)
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        columns = zip(*map(values_of_layer, single), strict=True)
        for found, wanted in zip(values_of_layer(stacked), columns, strict=True):
            exact = jnp.issubdtype(found.dtype, jnp.integer)
            np.testing.assert_allclose(found, np.stack(wanted), rtol=0 if exact else 1e-5)

    @each_mode
    @stands_on(CONVENTION, "jax.lax.scan")
    def test_traces(self, nnx, mode):
        few, many = (self.traces(nnx, mode, depth) for depth in DEPTHS)
        assert few == many < DEPTHS[1]

    def traces(self, nnx, mode, depth):
        """Scans over a number of layers; returns how often the function of a layer is called."""
        calls = []

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, **mode)
        def apply(x, net):
            calls.append(x)
            net.total[...] += x
            return net.total[...]

        net = holder(nnx, counted((depth,)))
        assert apply(jnp.float32(1), net) == 1 + depth * (depth - 1) // 2
        return len(calls)


CHANGES = {
    "shape": lambda nnx, carry: {**carry, "beta": jnp.zeros(2)},
    "dtype": lambda nnx, carry: {**carry, "beta": jnp.int32(1)},
    "absent": lambda nnx, carry: {"alpha": carry["alpha"]},
    "extra": lambda nnx, carry: {**carry, "gamma": jnp.float32(1)},
}
"""What a step may do to a carry of two scalars, `alpha` and `beta`."""

OBJECT_CHANGES = {
    "shape": lambda nnx, net: net.beta.set_value(jnp.zeros(2)),
    "dtype": lambda nnx, net: net.beta.set_value(jnp.int32(1)),
    "absent": lambda nnx, net: delattr(net, "beta"),
    "extra": lambda nnx, net: setattr(net, "gamma", nnx.Param(jnp.float32(1))),
}
"""What a step may do to a carried Module with Variables `alpha` and `beta`."""


def _scan(nnx, body, carry, mode):
    return nnx.scan(lambda c, x: (body(c), x), **mode)(carry, counted((LENGTH,)))


def _while_loop(nnx, body, carry, mode):
    def proceed(state):
        return state["count"] < LENGTH

    def one(state):
        return {"carry": body(state["carry"]), "count": state["count"] + 1}

    return nnx.while_loop(proceed, one, {"carry": carry, "count": jnp.int32(0)}, **mode)


def _fori_loop(nnx, body, carry, mode):
    return nnx.fori_loop(0, LENGTH, lambda n, c: body(c), carry, **mode)


LOOPING = {"scan": _scan, "while_loop": _while_loop, "fori_loop": _fori_loop}
"""Ways to call a function of a carry again and again."""


each_loop = each_named(LOOPING, "loop")


def changing_arrays(nnx, mode, loop, change):
    """Carries arrays that change their types; returns the error's message."""
    carry = {"alpha": jnp.float32(0), "beta": jnp.float32(0)}
    with pytest.raises((TypeError, ValueError)) as caught:
        LOOPING[loop](nnx, lambda c: CHANGES[change](nnx, c), carry, mode)
    return str(caught.value)


def changing_objects(nnx, mode, loop, change):
    """Carries a Module that changes its structure; returns the message, and checks the Module."""

    def body(net):
        net.alpha[...] += 1
        OBJECT_CHANGES[change](nnx, net)
        return net

    net = classes(nnx).Net()
    net.alpha, net.beta = nnx.Param(jnp.float32(0)), nnx.BatchStat(jnp.float32(0))
    before = snapshot(nnx, net)
    with pytest.raises((TypeError, ValueError)) as caught:
        LOOPING[loop](nnx, body, net, mode)
    assert snapshot(nnx, net) == before
    assert_no_tracers(nnx, net)
    return str(caught.value)


@clause("TRX-019", MUST, CONVENTION, source="jax.lax.scan")
class TestChangingCarries:
    """A carry whose structure, shapes or dtypes change from step to step raises an error.

    It is a TypeError or ValueError; the caller's objects are unchanged.
    """

    @each_mode
    @pytest.mark.parametrize("change", CHANGES)
    @each_loop
    def test_arrays(self, nnx, mode, loop, change):
        changing_arrays(nnx, mode, loop, change)

    @each_mode
    @pytest.mark.parametrize("change", OBJECT_CHANGES)
    @each_loop
    def test_objects(self, nnx, mode, loop, change):
        changing_objects(nnx, mode, loop, change)


@clause("TRX-040", SHOULD, OURS, source="an error names the leaf that is wrong")
class TestChangesAreNamed:
    """The error for a carry that changes names the leaf that changes, is missing or is new."""

    @each_mode
    @pytest.mark.parametrize("change", CHANGES)
    @each_loop
    def test_arrays(self, nnx, mode, loop, change):
        self.check(change, changing_arrays(nnx, mode, loop, change))

    @each_mode
    @pytest.mark.parametrize("change", OBJECT_CHANGES)
    @each_loop
    def test_objects(self, nnx, mode, loop, change):
        self.check(change, changing_objects(nnx, mode, loop, change))

    @staticmethod
    def check(change, message):
        """Checks that a message names the leaf that a change is about."""
        leaf = "gamma" if change == "extra" else "beta"
        assert names_path(message, (leaf,)), f"{leaf} is not named in: {message}"
