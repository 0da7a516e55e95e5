"""Threads: what has a state of its own in each thread, run in one that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_a_thread(function: Callable[[], Result]) -> Result:
    """Runs a function in a thread of its own; returns what it returns and raises what it raises.

    An exception that passes through `jax.tree.flatten` leaves Python's count of nested calls too
    high on some versions of JAX. The count is the thread's, so that code that provokes exceptions
    inside a traversal does no harm to later tests when it runs here.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(function).result()
