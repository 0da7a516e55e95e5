"""Failures: what is told of a test that failed, so that a reader need not run it again.

Nothing in the telling changes from run to run: addresses of objects are left out. An assertion is
asked to tell what was expected and what was found; `muteness` says what is wrong with one that
does not.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection
from types import TracebackType

ADDRESS = re.compile(r"( at )?\b0x[0-9a-f]{6,}\b")
"""An address as objects show it."""

IDENTITY = re.compile(r"\b(?:9[34]\d{12}|1(?:39|40)\d{12})\b")
"""An integer that `id` gives on a 64-bit system, where programs and libraries put their objects."""

BARE = re.compile(r"assert (?:not )?\(?(?:(?:not )?(?:True|False|None)(?: and | or )?)+\)?")
"""The first line of an assertion that shows nothing but a truth value."""

WHERE = re.compile(r"\s*\+\s+where ")
"""The beginning of a line in which pytest tells how it came to a value."""

LINES = 12
"""How many lines of an exception's message are told."""

TAIL = 40
"""How many lines of a traceback are told."""


def failure(
    test: str,
    phase: str,
    error: BaseException,
    *,
    parameters: str | None = None,
    own: Collection[str] = (),
) -> dict[str, str | None]:
    """Tells of a failure, in plain JSON values.

    Args:
      test: the test's name.
      phase: `setup`, `call` or `teardown`.
      error: the exception.
      parameters: the test's parameters, if it has any.
      own: the root packages of the specification; the traceback starts in one of them.
    """
    main = principal(error)
    return {
        "test": test,
        "phase": phase,
        "example": example_of(main) or parameters,
        "error": message_of(main),
        "traceback": traceback_of(error, own),
    }


def principal(error: BaseException) -> BaseException:
    """Returns the first exception in a group, of a group in a group; what is no group, itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def message_of(error: BaseException) -> str:
    """Returns an exception's class and the first lines of its message."""
    described = traceback.TracebackException(type(error), error, None)
    described.__notes__ = None
    lines = "".join(described.format_exception_only()).strip().splitlines()
    return _steady("\n".join([*lines[:LINES], *(["..."] if len(lines) > LINES else [])]))


def example_of(error: BaseException) -> str | None:
    """Returns the failing example that hypothesis notes on an exception, None if there is none."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(("Failing", "Falsifying")):
            lines = _steady(note).splitlines()
            return "\n".join(line for line in lines if not _is_fixture(line))
    return None


def traceback_of(error: BaseException, own: Collection[str]) -> str:
    """Returns the last lines of an exception's traceback, without what led to the test."""
    start = error.__traceback__
    while start is not None and _package(start) not in own:
        start = start.tb_next
    lines = traceback.format_exception(type(error), error, start or error.__traceback__)
    return _steady("\n".join("".join(lines).splitlines()[-TAIL:]))


def gist(message: str) -> str:
    """Returns the first line of a message, and of a bare assertion how it came to its value."""
    first, *rest = message.splitlines()
    if BARE.fullmatch(first.removeprefix("AssertionError: ")):
        return "\n".join([first, *list(filter(WHERE.match, rest))[:2]])
    return first


def muteness(error: BaseException) -> str | None:
    """Says what is wrong with what a failed assertion tells, if anything is.

    Returns:
      the complaint; None of an error that is no assertion's, or of one that tells what was found.
    """
    error = principal(error)
    if not isinstance(error, AssertionError):
        return None
    lines = str(error).splitlines() or [""]
    told = [line for line in lines if not WHERE.match(line)]
    if any(ADDRESS.search(line) or IDENTITY.search(line) for line in told):
        return "shows an address"
    reasons = [line for line in lines if WHERE.match(line) and "<generator object" not in line]
    if not lines[0] or (BARE.fullmatch(lines[0]) and not reasons):
        return f"says only {lines[0]!r}"
    return None


def _package(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", "")).split(".")[0]


def _is_fixture(line: str) -> bool:
    return line.startswith(("    self=<", "    nnx=<"))


def _steady(text: str) -> str:
    text = ADDRESS.sub(lambda found: "" if found[1] else "0x...", text)
    return IDENTITY.sub("<id>", text)
