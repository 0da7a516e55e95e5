"""Counters: figures that are the same on every run and every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax

from nnx_perf.sampling import garbage_kept


def python_calls(call: Callable[[], Any]) -> int:
    """Counts the Python functions that a call enters, itself not included.

    The call is made twice and the second is counted, so that what happens only once does not show.
    Nor do the functions that garbage collection enters.
    """
    call()
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    try:
        with garbage_kept():
            sys.setprofile(profile)
            call()
            sys.setprofile(None)
    finally:
        sys.setprofile(before)
    return count - 1


def leaves(tree: Any) -> int:
    """Counts the leaves of a pytree."""
    return len(jax.tree.leaves(tree))
