"""Tracing: when jit traces a function."""

import contextlib

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import CONVENTION, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.changes import (
    ALIKE,
    ANEW,
    DIFFERENT,
    SHARING,
    model_of,
    structure,
)
from nnx_spec.chapters.transforms.modes import each_graph_mode, each_mode
from nnx_spec.oracles import value_record, variables
from nnx_spec.plans import is_array


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
        return model.w.get_value(), x

    def __call__(self, *args, **kwargs):
        """Calls the function; returns how often it has been traced so far."""
        self._jitted(*args, **kwargs)
        return self.traces


class Numbered:
    """A jitted function of a model, which tells the number of the trace that runs.

    It returns what the model's Variables hold, and writes a number to the float scalars.

    Attributes:
      seen: the structure of the model in each trace.
      known: the number of the trace for each structure that it has been called with.
    """

    def __init__(self, nnx, mode):
        self.seen = []
        self.known = {}
        self._nnx = nnx
        self._jitted = nnx.jit(self._run, **mode)

    def _run(self, model, x):
        number = len(self.seen)
        self.seen.append(structure(self._nnx, model))
        values = values_of(self._nnx, model)
        for variable in scalars_of(self._nnx, model):
            variable.set_value(x)
        return number, values

    def call(self, model, x):
        """Calls the function; returns the number of the trace and the values before the call."""
        number, values = self._jitted(model, x)
        return int(number), values


def values_of(nnx, model):
    """Lists what a model's Variables hold."""
    return [variable.get_value() for variable in variables(nnx, model)]


def scalars_of(nnx, model):
    """Lists a model's Variables that hold a float32 scalar."""
    found = variables(nnx, model)
    return [
        v for v in found if is_array(x := v.get_value()) and (x.shape, x.dtype) == ((), np.float32)
    ]


@clause("TRX-005", MUST, CONVENTION, source="jax.jit")
class TestTracing:
    """`jit` traces once for the same structure, shapes, dtypes and static values.

    Whatever the values are, and whether it is the same object or another, a further call runs what
    is compiled. If any of these is another, it traces again: a static attribute or argument, a
    class, metadata, an attribute or an item more or less, or what is shared. So it is for changes
    that the caller makes to an object between two calls, by whatever way. What it has traced before
    it does not trace again.
    """

    @each_mode
    def test_once(self, nnx, mode):
        traced = Traced(nnx, mode)
        traced(model_of(nnx), 1.5)
        traces = {case: traced(make(nnx, model_of(nnx)), -2.5) for case, make in ANEW.items()}
        model = model_of(nnx)
        for case, change in ALIKE.items():
            change(nnx, model)
            traces[case] = traced(model, -2.5)
        assert traces == dict.fromkeys([*ANEW, *ALIKE], 1)

    @each_mode
    def test_again(self, nnx, mode):
        traced = Traced(nnx, mode)
        traces = []
        for change in DIFFERENT.values():
            model = model_of(nnx)
            traced(model)
            before = structure(nnx, model)
            change(nnx, model)
            assert structure(nnx, model) != before
            traces += [traced(model), traced(model)]
        numbers = [number for number, _ in enumerate(DIFFERENT, start=2) for _ in range(2)]
        assert traces == numbers, [*DIFFERENT]
        assert traced(model_of(nnx)) == len(DIFFERENT) + 1

    @each_mode
    @given(data=st.data())
    def test_any_changes(self, nnx, mode, data):
        """Has a trace for each structure, and with each call the values that are there now."""
        changes = ALIKE | DIFFERENT | (SHARING if mode["graph"] else {})
        names = data.draw(st.lists(st.sampled_from([*changes]), max_size=3), "changes")
        numbered, model = Numbered(nnx, mode), model_of(nnx)
        for name in ["nothing", *names]:
            with contextlib.suppress(AttributeError, IndexError):  # what is no more
                changes[name](nnx, model)
            for x in (jnp.float32(1), jnp.float32(2)):
                values = values_of(nnx, model)
                number, found = numbered.call(model, x)
                assert numbered.known.setdefault(structure(nnx, model), number) == number
                assert numbered.seen[number] == structure(nnx, model)
                assert value_record(found) == value_record(values)
                assert {float(v[...]) for v in scalars_of(nnx, model)} <= {float(x)}

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
