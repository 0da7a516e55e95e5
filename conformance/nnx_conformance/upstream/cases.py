"""Cases: what came out of a run, test by test and cell by cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nnx_conformance.events import Event

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
SEVERITY = (None, PASSED, SKIPPED, FAILED)
"""Outcomes of a case, from none yet to the one that outweighs all others."""


@dataclass
class Case:
    """A test, or a cell of a document, and what came out.

    Attributes:
      id: `file::Class::test`, or `document#number`.
      outcome: passed, skipped or failed; None while it isn't known.
      message: what was said of a failure, or of the reason for skipping.
      missed: the names that were missing.
      follows: whether it failed only for want of what an earlier cell would have made.
      prints: what a cell printed, call by call; None where runs don't agree on it.
      seconds: how long it took.
    """

    id: str
    outcome: str | None = None
    message: str = ""
    missed: tuple[str, ...] = ()
    follows: bool = False
    prints: list[str | None] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def file(self) -> str:
        """The file of the test, or the document of the cell."""
        return file_of(self.id)


def file_of(id: str) -> str:
    """Returns the file of a case."""
    return id.partition("::")[0].partition("#")[0]


@dataclass
class Record:
    """What is known of a run of tests or documents on one target, at any moment of it.

    Attributes:
      cases: the cases by id, as they came.
      total: how many there will be, once that is known.
      version: the target's version.
      unloadable: why the target could not be loaded, if so.
      uncollected: why files could not be imported, by file.
      errors: what went wrong outside of any case.
      finished: whether the run came to its end.
      interrupted: whether it was the user who ended it.
    """

    cases: dict[str, Case] = field(default_factory=dict)
    total: int = 0
    version: str | None = None
    unloadable: str | None = None
    uncollected: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    finished: bool = False
    interrupted: bool = False
    _loaded: bool = False

    @property
    def done(self) -> int:
        """How many cases have an outcome."""
        return sum(case.outcome is not None for case in self.cases.values())

    @property
    def failed(self) -> int:
        """How many cases failed."""
        return sum(case.outcome == FAILED for case in self.cases.values())

    def take(self, event: Event) -> None:
        """Takes an event in."""
        match event:
            case {"event": "target", "version": version}:
                self.version, self._loaded = version, True
            case {"event": "unloadable", "reason": reason}:
                self.unloadable = reason
            case {"event": "total", "tests": total}:
                self.total = total
            case {"event": "uncollected", "file": file, "reason": reason}:
                self.uncollected[file] = reason
            case {"event": "start", "case": id}:
                self.cases.setdefault(id, Case(id))
            case {"event": "case"}:
                self._record(event)
            case {"event": "crash"} if not self._loaded:
                self.unloadable = self.unloadable or "the interpreter died of loading the target"
            case {"event": "finish"}:
                self.finished = True

    def _record(self, event: dict[str, Any]) -> None:
        known = self.cases.setdefault(event["case"], Case(event["case"]))
        known.seconds += event.get("seconds", 0.0)
        known.missed = tuple(sorted({*known.missed, *event.get("missed", ())}))
        known.follows = known.follows or event.get("follows", False)
        known.prints += event.get("prints", [])
        outcome = event["outcome"]
        if event.get("phase") in ("setup", "teardown") and outcome == PASSED:
            return
        if SEVERITY.index(outcome) > SEVERITY.index(known.outcome):
            known.outcome, known.message = outcome, event.get("message", "")

    def close(self, reason: str) -> None:
        """Counts every case that has no outcome by now as failed, for one reason."""
        for case in self.cases.values():
            if case.outcome is None:
                case.outcome, case.message = FAILED, reason


def joined(records: Iterable[Record]) -> Record:
    """Returns several records as one."""
    whole = Record(finished=True)
    for record in records:
        whole.cases |= record.cases
        whole.total += record.total
        whole.version = whole.version or record.version
        whole.unloadable = whole.unloadable or record.unloadable
        whole.uncollected |= record.uncollected
        whole.errors += record.errors
        whole.finished &= record.finished
        whole.interrupted |= record.interrupted
    return whole
