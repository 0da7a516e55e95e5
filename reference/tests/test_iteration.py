"""nnx.scan: carries, axes, state of every kind, against a loop; and what is refused."""

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
both = pytest.mark.parametrize("mode", MODES, ids=["updates", "graph-mode", "tree-mode"])

XS = jnp.array([1.0, 2.0, 3.0])


class Layer(nnx.Module):
    """A layer, or a stack of layers, of which each has a weight and a count of its calls."""

    def __init__(self, w):
        self.w = nnx.Param(jnp.asarray(w))
        self.calls = nnx.BatchStat(jnp.zeros(self.w.shape, jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return x * self.w[...] + 1


@both
def test_over_layers(mode):
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry, **mode)
    def forward(layer, x):
        return layer(x)

    layers = Layer([2.0, 3.0, 4.0])
    w, calls, buffer = layers.w, layers.calls, layers.w[...]
    assert forward(layers, 1.0) == ((1 * 2 + 1) * 3 + 1) * 4 + 1
    assert forward(layers, jnp.array([0.0, 1.0])).tolist() == [17.0, 41.0]
    assert (layers.w is w, layers.calls is calls, layers.w[...] is buffer) == (True,) * 3
    assert calls[...].tolist() == [2, 2, 2]


@both
def test_over_time(mode):
    def step(carry, x, layer):
        return carry + layer(x), {"y": carry, "new": nnx.Cache(x)}

    layer = Layer(2.0)
    scanned = nnx.scan(step, in_axes=(nnx.Carry, 0, None), **mode)
    total, outputs = scanned(0.0, XS, layer)
    assert total == 3.0 + 5.0 + 7.0
    assert outputs["y"].tolist() == [0.0, 3.0, 8.0]
    assert type(outputs["new"]) is nnx.Cache
    assert outputs["new"][...].tolist() == [1.0, 2.0, 3.0]
    assert layer.calls[...] == 3


@both
@pytest.mark.parametrize("reverse", [False, True])
def test_a_broadcast_variable_that_is_written_goes_along(mode, reverse):
    @nnx.scan(in_axes=(0, None), out_axes=0, reverse=reverse, **mode)
    def running(x, total):
        traces.append(x)
        total[...] = total[...] * 2 + x
        return total[...]

    traces, total = [], nnx.BatchStat(jnp.asarray(0.0))
    expected = [17.0, 8.0, 3.0] if reverse else [1.0, 4.0, 11.0]
    assert running(XS, total).tolist() == expected
    assert total[...] == (17.0 if reverse else 11.0)
    assert running(XS, total).shape == (3,)
    assert len(traces) == 1


@both
def test_a_broadcast_variable_that_is_read_only_stays_and_is_traced_once(mode):
    @nnx.scan(in_axes=(0, None), out_axes=0, **mode)
    def scaled(x, layer):
        traces.append(x)
        return x * layer.w[...]

    traces, layer = [], Layer(2.0)
    buffer = layer.w[...]
    assert scaled(XS, layer).tolist() == [2.0, 4.0, 6.0]
    assert (len(traces), layer.w[...] is buffer) == (1, True)


@both
def test_objects_in_the_carry(mode):
    @nnx.scan(out_axes=(0, nnx.Carry), **mode)
    def step(carry, x):
        carry["layer"].w[...] += x
        carry["n"] = carry["n"] + 1
        return carry["layer"](x), carry

    layer = Layer(0.0)
    outputs, carry = step({"layer": layer, "n": 0}, XS)
    assert outputs.tolist() == [1 * 1 + 1, 2 * 3 + 1, 3 * 6 + 1]
    assert carry["layer"] is layer
    assert (carry["n"], layer.w[...], layer.calls[...]) == (3, 6.0, 3)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_axes_in_and_out(axis):
    x = jnp.arange(6.0).reshape(2, 3)
    layers = Layer(x)
    scanned = nnx.scan(lambda layer: layer(jnp.float32(2)), in_axes=axis, out_axes=axis)
    assert scanned(layers).tolist() == (x * 2 + 1).tolist()
    assert layers.calls[...].tolist() == jnp.ones((2, 3)).tolist()
    moved = nnx.scan(lambda x: (x, x), in_axes=axis, out_axes=(0, 1))(x)
    sliced = jnp.moveaxis(x, axis, 0)
    assert moved[0].tolist() == sliced.tolist()
    assert moved[1].tolist() == sliced.T.tolist()


def test_state_axes():
    axes = nnx.StateAxes({nnx.Param: 1, nnx.BatchStat: None})
    layers = Layer(jnp.arange(6.0).reshape(2, 3))
    layers.calls = nnx.BatchStat(jnp.zeros(2, jnp.int32))
    sums = nnx.scan(lambda layer: layer(1.0).sum(), in_axes=(axes,), out_axes=0)(layers)
    assert sums.tolist() == [0 + 3 + 2, 1 + 4 + 2, 2 + 5 + 2]
    assert layers.calls[...].tolist() == [3, 3]
    with pytest.raises(ValueError, match="no axis for the BatchStat"):
        nnx.scan(lambda m: 0, in_axes=(nnx.StateAxes({nnx.Param: 0}),), out_axes=0)(layers)
    with pytest.raises(ValueError, match=r"nnx\.split"):
        nnx.scan(lambda m: 0, in_axes=(axes,), out_axes=0, graph=False)(layers)


def test_length_unroll_and_keyword_arguments():
    double = nnx.scan(lambda x: x * 2, in_axes=nnx.Carry, out_axes=nnx.Carry, length=5)
    assert double(1.0) == 32.0
    unrolled = nnx.scan(lambda c, x: (c + x, c), unroll=3, _split_transpose=True)
    assert unrolled(0.0, x=XS)[0] == 6.0
    jaxpr = jax.make_jaxpr(lambda: unrolled(0.0, XS))()
    assert "unroll=3" in str(jaxpr)


def test_graph_updates_of_what_has_an_axis():
    def grow(layer, x):
        layer.seen = nnx.Intermediate(x)
        return layer(x)

    layers = Layer([1.0, 2.0, 3.0])
    assert nnx.scan(grow, in_axes=(0, 0), out_axes=0)(layers, XS).tolist() == [2.0, 5.0, 10.0]
    assert layers.seen[...].tolist() == XS.tolist()
    layers = Layer([1.0, 2.0, 3.0])
    nnx.scan(grow, in_axes=(0, 0), out_axes=0, graph_updates=False)(layers, XS)
    assert not hasattr(layers, "seen")
    layer = Layer(1.0)
    with pytest.raises(ValueError, match=r"layer\.seen.*no axis"):
        nnx.scan(grow, in_axes=(None, 0), out_axes=0)(layer, XS)
    with pytest.raises(ValueError, match=r"carry\.seen was not there"):
        nnx.scan(lambda layer, x: (layer, grow(layer, x)))(layer, XS)
    assert not hasattr(layer, "seen")
    assert layer.calls[...] == 0


@both
def test_it_differentiates_and_nests(mode):
    @nnx.jit(**mode)
    def gradient(w, xs, calls):
        @nnx.scan(in_axes=(nnx.Carry, 0, None, None), out_axes=nnx.Carry, **mode)
        def power(y, x, w, calls):
            calls[...] += 1
            return y * w * x

        return nnx.grad(lambda w, calls: power(1.0, xs, w, calls), **mode)(w, calls)

    calls = nnx.BatchStat(jnp.asarray(0))
    assert gradient(2.0, XS, calls) == 3 * 2.0**2 * 6
    assert calls[...] == 3


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"in_axes": (nnx.Carry, nnx.Carry)}, "one Carry at most"),
        ({"in_axes": (nnx.Carry, [nnx.Carry])}, "one Carry at most"),
        ({"out_axes": 0}, "both"),
        ({"in_axes": 0}, "both"),
        ({"out_axes": (nnx.Carry, None)}, "None"),
    ],
    ids=str,
)
def test_bad_axes_are_refused(axes, message):
    with pytest.raises(ValueError, match=message):
        nnx.scan(lambda c, x: (c, x), **axes)


def test_bad_calls_are_refused():
    layer, layers = Layer(1.0), Layer(XS)
    with pytest.raises(ValueError, match="3 entries for 2"):
        nnx.scan(lambda c, x: (c, x), in_axes=(nnx.Carry, 0, 0))(0, XS)
    with pytest.raises(ValueError, match="carries one argument"):
        nnx.scan(lambda c, x: c, in_axes=nnx.Carry, out_axes=nnx.Carry, length=2)(0, 1)
    with pytest.raises(TypeError, match="tuple of as many outputs"):
        nnx.scan(lambda c, x: c)(0, XS)
    with pytest.raises(TypeError, match="structure"):
        nnx.scan(lambda c, x: ((c, c), x))(0, XS)
    with pytest.raises(TypeError, match="float32"):
        nnx.scan(lambda c, x: (c + 0.5, x))(jnp.int32(0), XS)
    with pytest.raises(ValueError, match=r"the carry\.calls is another BatchStat"):
        nnx.scan(lambda c, x: (nnx.clone(c), x))(layer, XS)
    with pytest.raises(ValueError, match=r"at a\.calls, with 0.*at b\.calls, with None"):
        nnx.scan(lambda a, b: 0, in_axes=(0, None), out_axes=0)(layers, layers)
    with pytest.raises(TypeError, match="keyword"):
        nnx.scan(lambda c, *, x: (c, x))(0, x=XS)
    with pytest.raises(nnx.errors.TraceContextError, match="BatchStat"):
        nnx.scan(lambda c, x: (c, layer(x)))(0, XS)
    assert layer.calls[...] == 0
