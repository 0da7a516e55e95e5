"""Tracing: when jit traces a function."""

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.modes import each_graph_mode, each_mode
from nnx_spec.oracles import snapshot
from nnx_spec.plans import classes


def model_of(nnx, w=(1.0, 2.0), **attributes):
    """Makes a Module of some Variables, an array, and static attributes."""
    inner = net(nnx, n=count(nnx, 0, tag="n"), size=3)
    layers = nnx.List([param(nnx, 5.0), param(nnx, 6.0)])
    return net(nnx, w=param(nnx, w), inner=inner, layers=layers, constant=jnp.ones(2), **attributes)


class Traced:
    """A jitted function of a model and other arguments that counts its traces.

    Attributes:
      traces: how often it has been traced.
    """

    def __init__(self, nnx, mode, **options):
        self.traces = 0
        self._jitted = nnx.jit(self._run, **options, **mode)

    def _run(self, model, x=0.0, *args, **kwargs):
        self.traces += 1
        w = model if isinstance(model, dict) else model.w
        w[...] += x
        return w[...] * 2

    def __call__(self, *args, **kwargs):
        """Calls the function; returns how often it has been traced so far."""
        self._jitted(*args, **kwargs)
        return self.traces


def write_values(nnx, model):
    """Writes to the Variables of a model in several ways."""
    model.w[...] = 7.0
    model.inner.n.set_value(jnp.int32(9))
    nnx.update(model, {"layers": {0: jnp.float32(4)}})


def change_and_undo(nnx, model):
    """Changes the structure of a model, and changes it back."""
    model.extra = param(nnx)
    del model.extra
    model.layers.append(param(nnx))
    del model.layers[2]


def rename(node, old, new):
    """Gives an attribute of a node another name."""
    value = getattr(node, old)
    delattr(node, old)
    setattr(node, new, value)


def tree_of(nnx, module):
    """Makes a Pytree of the attributes of `inner` in `model_of`."""
    tree = classes(nnx).Tree()
    tree.n, tree.size = module.n, module.size
    return tree


SAME = {
    "the same again": lambda nnx, model: model,
    "another like it": lambda nnx, model: model_of(nnx),
    "other values": lambda nnx, model: model_of(nnx, w=(-3.0, np.nan)),
    "a clone": lambda nnx, model: nnx.clone(model, graph=True),
    "merged": lambda nnx, model: nnx.merge(*nnx.split(model, graph=True)),
    "written": lambda nnx, model: write_values(nnx, model) or model,
    "another Variable": lambda nnx, model: setattr(model, "w", param(nnx, [8.0, 9.0])) or model,
    "another node": lambda nnx, model: setattr(model, "inner", model_of(nnx).inner) or model,
    "changed and undone": lambda nnx, model: change_and_undo(nnx, model) or model,
}
"""Models that are of the same structure as `model_of`, made of one or anew."""

CHANGES = {
    "shape": lambda nnx, model: model.w.set_value(jnp.ones(3)),
    "rank": lambda nnx, model: model.w.set_value(jnp.ones((1, 2))),
    "dtype": lambda nnx, model: model.inner.n.set_value(jnp.int16(1)),
    "shape of an array": lambda nnx, model: setattr(model, "constant", jnp.ones(3)),
    "static attribute": lambda nnx, model: setattr(model.inner, "size", 4),
    "new static attribute": lambda nnx, model: setattr(model, "name", "name"),
    "new Variable": lambda nnx, model: setattr(model, "extra", param(nnx)),
    "Variable removed": lambda nnx, model: delattr(model.inner, "n"),
    "Variable renamed": lambda nnx, model: rename(model.inner, "n", "m"),
    "longer list": lambda nnx, model: model.layers.append(param(nnx)),
    "Variable of another class": lambda nnx, model: setattr(
        model.inner, "n", nnx.BatchStat(jnp.int32(0), tag="n")
    ),
    "node of another class": lambda nnx, model: setattr(model, "inner", tree_of(nnx, model.inner)),
    "metadata": lambda nnx, model: model.inner.n.set_metadata("tag", "other"),
    "value of another structure": lambda nnx, model: model.layers[0].set_value(
        {"a": jnp.float32(1)}
    ),
}
"""Ways to change a model so that its structure, a shape, a dtype or a static value is another."""


@clause("TRX-005", MUST, source="guides/transforms#graph-updates-propagation")
class TestTracing:
    """`jit` traces once for the same structure, shapes, dtypes and static values.

    Whatever the values are, and whether it is the same object or another, a further call runs what
    is compiled. If any of these is another, it traces again: a static attribute or argument, a
    class, metadata, an attribute more or less, or what is shared. What it has traced before it does
    not trace again.
    """

    @each_mode
    def test_once(self, nnx, mode):
        traced = Traced(nnx, mode)
        traced(model_of(nnx), 1.5)
        traces = {case: traced(make(nnx, model_of(nnx)), -2.5) for case, make in SAME.items()}
        assert traces == dict.fromkeys(SAME, 1)

    @each_mode
    def test_again(self, nnx, mode):
        traced = Traced(nnx, mode)
        traces = []
        for change in CHANGES.values():
            model = model_of(nnx)
            traced(model)
            before = snapshot(nnx, model)
            change(nnx, model)
            assert snapshot(nnx, model) != before
            traces.append(traced(model))
        named = dict(zip(CHANGES, traces, strict=True))
        assert named == {change: n for n, change in enumerate(CHANGES, start=2)}
        assert traced(model_of(nnx)) == len(CHANGES) + 1

    @each_mode
    def test_arguments(self, nnx, mode):
        traced = Traced(nnx, mode)
        model = model_of(nnx)
        traces = [traced(model, jnp.float32(1)), traced(model, np.float32(3))]
        traces += [traced(model, jnp.ones(2)), traced(model, jnp.float16(1))]
        traces += [traced(model, jnp.float32(1), other={"a": 1}), traced(model, jnp.float32(5))]
        assert traces == [1, 1, 2, 3, 4, 4]

    @each_mode
    @pytest.mark.parametrize("how", ["position", "name"])
    def test_static_arguments(self, nnx, mode, how):
        options = {"static_argnums": 2} if how == "position" else {"static_argnames": "how"}
        traced, model = Traced(nnx, mode, **options), model_of(nnx)

        def call(value):
            args, kwargs = ([value], {}) if how == "position" else ([], {"how": value})
            return traced(model, 1.0, *args, **kwargs)

        assert [*map(call, ["a", "a", "b", ("a", 1), "a", "b", ("a", 1)])] == [1, 1, 2, 3, 3, 3, 3]

    @each_graph_mode
    def test_sharing(self, nnx, mode):
        traced = Traced(nnx, mode)
        apart = net(nnx, w=param(nnx, 1.0), v=param(nnx, 1.0))
        shared = net(nnx, w=param(nnx, 1.0))
        shared.v = shared.w
        assert [*map(traced, [apart, shared, apart, shared])] == [1, 2, 2, 2]

    @each_mode
    def test_output_says_nothing(self, nnx, mode):
        """Returns what it was given, so that the second call is with an output of the first."""
        traces = []

        @nnx.jit(**mode)
        def f(model, x):
            traces.append(x)
            model.w[...] += x
            return model.w[...] * 2

        model = model_of(nnx)
        x = f(model, jnp.zeros(2))
        f(model, x)
        assert len(traces) == 1
