"""What the tests of this chapter share: views, functions that count traces, and observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import pytest

from nnx_spec import needs
from nnx_spec.oracles import assert_no_tracers, user_metadata, value_record, variables


def with_vars(nnx: Any, node: Any, **flags: Any) -> Any:
    """Calls the target's `with_vars`, or `vars_as`, the older name, if there is no other.

    The guide has both names; that both exist is a clause of its own.
    """
    view = getattr(nnx, "with_vars", None) or nnx.vars_as
    return view(node, **flags)


class Counted:
    """A function under `jax.jit` that counts how often it is traced.

    Attributes:
      traces: how often the function has been traced.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        self.traces = 0

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return f(*args, **kwargs)

        self._jitted = jax.jit(counting)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)


def assert_holds(nnx: Any, variable: Any, kind: type, value: Any, **metadata: Any) -> None:
    """Asserts a Variable's class, its value to the bit, its user metadata, and no tracer in it."""
    assert_no_tracers(nnx, variable)
    assert value_record(variable.get_value()) == value_record(value)
    assert user_metadata(variable) == metadata
    assert isinstance(variable, kind)


def assert_copies(nnx: Any, view: Any, original: Any) -> None:
    """Asserts that a view's Variables are other objects than the original's, with their values.

    Plain Variables share them; how a hijax Variable holds its value is its own affair.
    """
    pairs = list(zip(variables(nnx, view), variables(nnx, original), strict=True))
    for copy, variable in pairs:
        assert copy is not variable
        assert value_record(copy.get_value()) == value_record(variable.get_value())
        assert user_metadata(copy) == user_metadata(variable)
        if not (copy.hijax or variable.hijax):
            arrays = (jax.tree.leaves(v.get_value()) for v in (copy, variable))
            assert all(a is b for a, b in zip(*arrays, strict=True))
    assert pairs


KINDS: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    {"hijax": {"hijax": True}, "ref": {"ref": True}}
)
"""The kinds of Variables that carry out what is written to them, as keywords, by name."""

EACH_KIND = pytest.mark.parametrize(
    "flags",
    [
        pytest.param(KINDS["hijax"], id="hijax", marks=needs("hijax.updates")),
        pytest.param(KINDS["ref"], id="ref", marks=needs("hijax.ref")),
    ],
)
"""Runs a test with each kind of them: `nnx.Variable(value, **flags)`."""

PLAIN: Mapping[str, bool] = MappingProxyType({"hijax": False, "ref": False})
"""What makes a view plain."""
