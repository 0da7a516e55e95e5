"""Outcomes: what became of a test, of a clause, and how one follows from the other."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

from nnx_conformance.targets import MissingNameError


class Outcome(enum.Enum):
    """What became of a test or a clause; of several that are joined, the last here prevails."""

    PASS = "pass"
    UNSUPPORTED = "unsupported"
    UNFINISHED = "unfinished"
    FAIL = "fail"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Where the outcome stands among the others, counted from the mildest."""
        return list(Outcome).index(self)


def join(outcomes: Iterable[Outcome]) -> Outcome:
    """Joins the outcomes of a clause's tests into the clause's.

    A clause passes only if all its tests pass; an error is never hidden by a failure, which may be
    excused; and a clause without a finished test is unfinished.
    """
    return max(outcomes, key=lambda outcome: outcome.rank, default=Outcome.UNFINISHED)


def judge(error: BaseException, phase: str, own: Collection[str]) -> Outcome:
    """Tells whether an exception is the target's failure or the harness's own error.

    The target's are: what a test asserts or raises while it runs, and a name that the target lacks,
      wherever it is
    first used. The harness's are: every other exception of a fixture, hypothesis' complaints about
    the test, and a name or module that the specification's own code does not find.

    Args:
      error: the exception.
      phase: `setup`, `call` or `teardown`.
      own: the root packages whose frames are the specification's own.
    """
    from hypothesis.errors import HypothesisException

    if isinstance(error, MissingNameError):
        return Outcome.FAIL
    if phase != "call" or isinstance(error, HypothesisException):
        return Outcome.ERROR
    if isinstance(error, BaseExceptionGroup):
        return join(judge(inner, phase, own) for inner in error.exceptions)
    if isinstance(error, (NameError, ImportError)) and raised_in(error) in own:
        return Outcome.ERROR
    return Outcome.FAIL


def raised_in(error: BaseException) -> str:
    """Returns the root package of the code that raised an exception, "" if it was never raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    name = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return str(name).split(".")[0]
