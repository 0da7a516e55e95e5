"""Reading: which Variables of outer trace levels a function reads while it is traced.

Their values are constants of the trace. Whoever uses a trace again has to know whether they are
still the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from nnx_reference.jax_private import outer_traces


class Reads:
    """What a thread reads that belongs to trace levels further out than the one it is at.

    Attributes:
      variables: the Variables, by id.
    """

    def __init__(self) -> None:
        self.variables: dict[int, Any] = {}
        self._levels = outer_traces()
        self._thread = get_ident()

    def note(self, variable: Any) -> None:
        """Notes that the calling thread reads a Variable."""
        if self._thread == get_ident() and any(variable._trace is x for x in self._levels):
            self.variables[id(variable)] = variable


ACTIVE: list[Reads] = []
"""Those that reads are to be noted in; mostly none, and then Variables note nothing."""


def note_read(variable: Any) -> None:
    """Notes everywhere that a Variable is read."""
    for reads in list(ACTIVE):
        reads.note(variable)


@contextmanager
def noted_reads() -> Iterator[Reads]:
    """Notes what is read inside the context."""
    reads = Reads()
    ACTIVE.append(reads)
    try:
        yield reads
    finally:
        ACTIVE.remove(reads)
