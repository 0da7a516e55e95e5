"""Results: what is known of a run on one target, at any moment of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nnx_conformance.events import Event
from nnx_conformance.outcomes import Outcome, join

BINDING = ("MUST", "SHOULD")
"""The levels at which a failing clause is a deviation."""


@dataclass
class ClauseResult:
    """What is known of one clause.

    Attributes:
      id: the clause's id.
      chapter: its chapter's letters.
      level: MUST, SHOULD or MAY.
      rule: the rule in one sentence.
      source: the address of the document that states it.
      tests: the outcome of each of its tests, by name; UNFINISHED before it is known.
      failures: one record for each phase of a test that failed or broke, as reports hold them.
      reason: why the clause is unsupported, if it is.
    """

    id: str
    chapter: str
    level: str
    rule: str
    source: str
    tests: dict[str, Outcome]
    failures: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The clause's outcome: its tests' outcomes, joined."""
        return join(self.tests.values())

    @property
    def deviates(self) -> bool:
        """Whether the outcome makes the run fail."""
        broken = self.outcome is Outcome.FAIL and self.level in BINDING
        return broken or self.outcome is Outcome.ERROR

    @property
    def failure(self) -> dict[str, Any] | None:
        """The failure to show first: errors before failures, short examples before long ones."""
        return min(self.failures, key=_simplicity, default=None)


@dataclass
class Results:
    """What is known of a run on one target.

    Attributes:
      name: the target as it was asked for.
      description: what it is and what it runs on, once that is known.
      unloadable: why it could not be loaded, if so.
      clauses: the clauses under test, by id.
      errors: what went wrong in the harness outside of any clause.
      finished: whether the run came to its end.
      interrupted: whether it was the user who ended it.
      seconds: how long it took.
    """

    name: str
    description: dict[str, Any] | None = None
    unloadable: str | None = None
    clauses: dict[str, ClauseResult] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    finished: bool = False
    interrupted: bool = False
    seconds: float = 0.0
    _clauses_of: dict[str, list[str]] = field(default_factory=dict, repr=False)
    _decided: set[str] = field(default_factory=set, repr=False)

    @property
    def total(self) -> int:
        """The number of tests."""
        return len(self._clauses_of)

    @property
    def done(self) -> int:
        """The number of tests that have an outcome."""
        return len(self._decided)

    @property
    def deviations(self) -> list[ClauseResult]:
        """The clauses that make the run fail."""
        return [clause for clause in self.clauses.values() if clause.deviates]

    @property
    def exit_code(self) -> int:
        """The exit code: 130 if interrupted, 3 if nothing ran, 1 if something deviates, else 0."""
        if self.interrupted:
            return 130
        if self.unloadable is not None or (self.done == 0 and not self.errors):
            return 3
        return 1 if self.deviations or self.errors else 0

    def count(self, chapter: str | None = None) -> Counter[Outcome]:
        """Counts the clauses, or one chapter's, by outcome."""
        return Counter(
            clause.outcome for clause in self.clauses.values() if chapter in (None, clause.chapter)
        )

    def take(self, event: Event) -> None:
        """Takes an event of the session in."""
        match event:
            case {"event": "target", **description}:
                self.description = description
            case {"event": "unloadable", "reason": reason}:
                self.unloadable = reason
            case {"event": "collection", "clauses": clauses}:
                self._expect(clauses)
            case {"event": "uncollected", "where": where, "reason": reason}:
                self.errors.append(f"{where} cannot be collected: {reason}")
            case {"event": "test"}:
                self._record(event)
            case {"event": "crash"} if self.description is None:
                self.unloadable = self.unloadable or (
                    f"target {self.name!r} cannot be loaded: the interpreter died of it"
                )
            case {"event": "finish"}:
                self.finished = True

    def _expect(self, clauses: Iterable[dict[str, Any]]) -> None:
        for clause in clauses:
            tests = dict.fromkeys(clause["tests"], Outcome.UNFINISHED)
            self.clauses[clause["id"]] = ClauseResult(**{**clause, "tests": tests})
            for test in tests:
                self._clauses_of.setdefault(test, []).append(clause["id"])

    def _record(self, event: Event) -> None:
        test, outcome = event["test"], Outcome(event["outcome"])
        ids = self._clauses_of.get(test, [])
        if not ids and outcome is not Outcome.PASS:
            self.errors.append(f"{test}, which decides no clause: {outcome.value}")
        self._decided.update([test] if ids else [])
        for clause in map(self.clauses.__getitem__, ids):
            known = clause.tests[test]
            clause.tests[test] = outcome if known is Outcome.UNFINISHED else join([known, outcome])
            clause.reason = event.get("reason", clause.reason)
            if "failure" in event:
                clause.failures.append({"outcome": outcome.value, **event["failure"]})


def _simplicity(failure: dict[str, Any]) -> tuple[bool, int]:
    return failure["outcome"] != Outcome.ERROR.value, len(failure["example"] or "")
