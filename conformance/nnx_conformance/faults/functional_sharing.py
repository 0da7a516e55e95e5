"""Faults of what States share with their objects, and what copies do not share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.functional_structure import around, nested, split_with, state_items


@fault(breaks="GRF-010")
def split_copies_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables in the States that `split` gives are copies of the object's."""
    split_with(nnx, patch, lambda state: _with_copies(nnx, state))


@fault(breaks="GRF-010")
def state_of_a_filter_copies_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables in the State that `state` gives for a filter are copies of the object's."""

    def state(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        found = original(node, *filters, **kwargs)
        return _with_copies(nnx, found) if len(filters) == 1 else found

    around(nnx, patch, "state", state)


@fault(breaks="GRF-010")
def merge_always_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` makes copies of the Variables that it is given, without being asked to."""

    def merge(original: Any, graphdef: Any, *states: Any, **kwargs: Any) -> Any:
        return original(graphdef, *states, **{**kwargs, "copy": True})

    around(nnx, patch, "merge", merge)


def _with_copies(nnx: Any, state: Any) -> Any:
    if not isinstance(state, Mapping):
        return state
    items = state_items(state)
    copied = [(p, x.copy() if isinstance(x, nnx.Variable) else x) for p, x in items]
    return nnx.State(nested(copied))


@fault(breaks="GRF-018 GRF-032")
def merge_never_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` uses the Variables that it is given, and passes over `copy=True`."""

    def merge(original: Any, graphdef: Any, *states: Any, copy: bool = False, **kwargs: Any) -> Any:
        return original(graphdef, *states, **kwargs)

    around(nnx, patch, "merge", merge)
