"""Isolation: each test runs in a thread of its own.

What a test leaves behind in its thread ends with it: defaults that hold for a thread, JAX's
contexts, and the interpreter's recursion budget. The last is not an idle worry. A `RecursionError`
raised while JAX flattens a deep object leaves the thread without any budget, and pytest itself
could not go on there.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any


def in_own_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function run in a new thread, while its caller waits for its value or exception."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        outcome: dict[str, Any] = {"error": None, "value": None}

        def run() -> None:
            try:
                outcome["value"] = function(*args, **kwargs)
            except BaseException as error:
                outcome["error"] = error

        thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
        thread.start()
        thread.join()
        if outcome["error"] is not None:
            raise outcome["error"]
        return outcome["value"]

    return wrapper
