"""Counters: figures that are the same on every run and every machine."""

from __future__ import annotations

import gc
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


def arrays_kept(call: Callable[[], Any], times: int) -> int:
    """Counts the arrays that are alive after so many calls, and were not after the first."""
    call()
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(times):
        call()
    gc.collect()
    return len(jax.live_arrays()) - before


def leaves(tree: Any) -> int:
    """Counts the leaves of a pytree."""
    return len(jax.tree.leaves(tree))
