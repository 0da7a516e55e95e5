"""Deadlines: ending what takes too long, gently first."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
from collections.abc import Iterator

STDERR = 2
"""Where a process that is ended says at what it was: its own output, whatever pytest captures."""

GRACE = 1.5
"""After how many times its limit a process is ended that does not react."""


class TookTooLong(BaseException):
    """What runs has reached its limit; no `except Exception` is to hold this up."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in the block once so many seconds are over.

    Compiled code that doesn't return does not notice; after half that time again, the process ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise TookTooLong(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    faulthandler.dump_traceback_later(seconds * GRACE, exit=True, file=STDERR)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
