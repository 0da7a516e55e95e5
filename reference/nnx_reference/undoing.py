"""Undoing: what Refs held before a function wrote to them that then fails.

Under `jax.jit` a function that raises has written nothing: it was only traced. Not so in `jax.grad`
and its kin, outside of `jax.jit`: there the function is computed while it is traced, and what it
writes to a Ref is written at once. So the values of before are kept, for as long as the trace
lives, and put back where a write is refused; transforms of this package put them back whatever is
raised (`all_or_nothing`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import jax

from nnx_reference.jax_private import eagerly, read_buffer, running_trace, write_buffer

Journal = dict[int, tuple[Any, jax.Array]]
"""Refs and their values of before, by the Refs' ids."""


class _Open(threading.local):
    """The journals of the calls that a thread is in."""

    def __init__(self) -> None:
        self.journals: list[Journal] = []


_open = _Open()
_by_trace: WeakKeyDictionary[Any, Journal] = WeakKeyDictionary()


def remember(ref: Any) -> None:
    """Notes what a concrete Ref holds, before it is written to inside a transform."""
    trace = running_trace()
    if trace is None:
        return
    for journal in (*_open.journals, _by_trace.setdefault(trace, {})):
        if id(ref) not in journal:
            journal[id(ref)] = _noted(ref)


def _noted(ref: Any) -> tuple[Any, jax.Array]:
    with eagerly():
        return ref, read_buffer(ref)


def undo() -> None:
    """Puts back what was written to concrete Refs inside the outermost transform."""
    trace = running_trace()
    if trace is not None:
        _put_back(_by_trace.pop(trace, {}))


def _put_back(journal: Journal) -> None:
    with eagerly():
        for ref, value in journal.values():
            write_buffer(ref, value)


@contextlib.contextmanager
def all_or_nothing(values: Iterable[Any]) -> Iterator[None]:
    """Puts back, if something is raised, what Refs held.

    Args:
      values: the values that a transformed function is given; those that it captures are noted when
        it writes to them.
    """
    refs = [leaf for leaf in jax.tree.leaves(list(values)) if type(leaf) is jax.Ref]
    journal: Journal = {id(ref): _noted(ref) for ref in refs}
    _open.journals.append(journal)
    try:
        yield
    except BaseException:
        _put_back(journal)
        raise
    finally:
        _open.journals.pop()
