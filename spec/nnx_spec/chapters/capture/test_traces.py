"""Traces: what a capture leaves behind, which is nothing."""

import contextlib

import pytest

from nnx_spec import MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.capture.models import (
    X,
    defaults,
    everything,
    found,
    has_captures,
    own,
    products,
    wanted,
)
from nnx_spec.chapters.functional.making import net
from nnx_spec.chapters.transforms.modes import MODES, each_mode
from nnx_spec.oracles import nodes


class FailureError(Exception):
    """Raised in a function that is captured."""


def fail(model, x):
    """Calls a model and raises."""
    model(x)
    raise FailureError


def classes_of(nnx, model):
    """Describes the classes of a model's objects, with what they define."""
    return [(type(node), dict(vars(type(node)))) for node in nodes(nnx, model)]


OPTIONS = {
    "types": lambda nnx: ([nnx.Intermediate, own(nnx).Metric], {}),
    "method outputs": lambda nnx: ([nnx.Intermediate], {"method_outputs": nnx.Intermediate}),
    "init": lambda nnx: (
        [nnx.Cache],
        {"init": nnx.capture(own(nnx).Stack(), nnx.Intermediate)(X(2))[1]},
    ),
}
"""Types and options of a capture."""


@clause(
    "CAP-003",
    MUST,
    SOUND,
    source="buffers or wrapped methods are left behind in the user's objects",
)
class TestNoTrace:
    """A capture leaves Modules and their classes as they were, whether it returns or raises.

    There is no attribute `__captures__` and no new Variable. (The guide says that the buffers are
    gone at the end of the call.)
    """

    @each_mode
    @pytest.mark.parametrize("options", OPTIONS)
    def test_return(self, nnx, options, mode):
        kinds, keywords = OPTIONS[options](nnx)
        model = own(nnx).Stack()
        before = everything(nnx, model)[1], nnx.graphdef(model, graph=True), classes_of(nnx, model)
        with defaults(nnx, mode):
            nnx.capture(model, *kinds, **keywords)(X(3))
        assert not has_captures(nnx, model), "`__captures__` is left in the model"
        assert everything(nnx, model)[1] == before[0]
        assert nnx.graphdef(model, graph=True) == before[1]
        assert classes_of(nnx, model) == before[2]

    @each_mode
    @pytest.mark.parametrize("options", OPTIONS)
    def test_exception(self, nnx, options, mode):
        kinds, keywords = OPTIONS[options](nnx)
        model = own(nnx).Stack()
        before = everything(nnx, model)[1], nnx.graphdef(model, graph=True), classes_of(nnx, model)
        with defaults(nnx, mode), pytest.raises(FailureError):
            nnx.capture(fail, *kinds, **keywords)(model, X(3))
        assert not has_captures(nnx, model), "`__captures__` is left in the model"
        assert everything(nnx, model)[1] == before[0]
        assert nnx.graphdef(model, graph=True) == before[1]
        assert classes_of(nnx, model) == before[2]
        _, state = nnx.capture(model, nnx.Intermediate)(X(3))
        assert found(state) == wanted(products(3))

    @pytest.mark.parametrize("mode", ["tree-mode", "graph-mode"])
    def test_exception_in_a_transform(self, nnx, mode):
        model = own(nnx).Stack()
        before = everything(nnx, model)

        def failing(model, x):
            return nnx.capture(fail, nnx.Intermediate)(model, x)

        with pytest.raises(FailureError):
            nnx.jit(failing, **MODES[mode])(model, X(3))
        with pytest.raises(FailureError):
            nnx.capture(nnx.jit(fail, **MODES[mode]), nnx.Intermediate)(model, X(3))
        assert everything(nnx, model) == before
        assert not has_captures(nnx, model), "`__captures__` is left in the model"


@clause("CAP-011", SHOULD, OURS, source="a function that captures can be called in a capture")
class TestNesting:
    """A capture within another leaves the Modules as the outer one had prepared them.

    What is sown afterwards goes to the outer one, also if the inner one has raised.
    """

    @pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
    @pytest.mark.parametrize("kind", ["same type", "another type"])
    def test_nesting(self, nnx, kind, raises):
        inner_kind = nnx.Intermediate if kind == "same type" else nnx.Cache

        def inner(child):
            child.sow(nnx.Intermediate, "y", X(2))
            child.sow(nnx.Cache, "z", X(3))
            if raises:
                raise FailureError

        def outer(model):
            model.child.sow(nnx.Intermediate, "y", X(1))
            state = None
            with contextlib.suppress(FailureError):
                _, state = nnx.capture(inner, inner_kind)(model.child)
            model.child.sow(nnx.Intermediate, "y", X(4))
            model.sow(nnx.Intermediate, "y", X(5))
            return state

        model = net(nnx, child=net(nnx))
        before = everything(nnx, model)
        state, collected = nnx.capture(outer, nnx.Intermediate)(model)
        own_values = {("y",): (2,)} if kind == "same type" else {("z",): (3,)}
        if not raises:
            assert found(state) == wanted(own_values)
        assert found(collected) == wanted({("child", "y"): (1, 4), ("y",): (5,)})
        assert everything(nnx, model) == before
        assert not has_captures(nnx, model), "`__captures__` is left in the model"
