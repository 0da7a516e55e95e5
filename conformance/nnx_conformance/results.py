"""Results: what is known of a run on one target, at any moment of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nnx_conformance.events import Event
from nnx_conformance.outcomes import Outcome, join

BROKEN = (Outcome.FAIL, Outcome.ERROR)
"""What a test that did not hold comes out as."""


@dataclass
class ClauseResult:
    """What is known of one clause.

    Attributes:
      id: the clause's id.
      chapter: its chapter's letters.
      level: MUST, SHOULD or MAY.
      rule: the rule in one sentence.
      basis: what kind of thing the rule stands on; None if that is not said.
      source: where that is found.
      url: the address of the source, if it has one.
      view: whether it gathers tests of other clauses: it is shown, and not counted.
      grounds: `basis`, `source` and `url` of those tests that stand on something else.
      tests: the outcome of each of its tests, by name; UNFINISHED before it is known.
      failures: one record for each phase of a test that failed or broke, as reports hold them.
      reason: why the clause is unsupported, if it is.
    """

    id: str
    chapter: str
    level: str
    rule: str
    basis: str | None
    source: str
    url: str | None
    view: bool
    grounds: dict[str, dict[str, str | None]]
    tests: dict[str, Outcome]
    failures: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The clause's outcome: its tests' outcomes, joined."""
        return join(self.tests.values())

    @property
    def broken(self) -> list[str]:
        """The tests that failed or broke."""
        return [name for name, outcome in self.tests.items() if outcome in BROKEN]

    @property
    def broken_grounds(self) -> list[dict[str, str | None]]:
        """What the tests that failed or broke stand on, each of it once."""
        own = {"basis": self.basis, "source": self.source, "url": self.url}
        found = [self.grounds.get(name, own) for name in self.broken]
        return [one for n, one in enumerate(found) if one not in found[:n]]

    @property
    def failure(self) -> dict[str, Any] | None:
        """The failure to show first: errors before failures, short examples before long ones."""
        return min(self.failures, key=_simplicity, default=None)


@dataclass
class Results:
    """What is known of a run on one target.

    Attributes:
      name: the target as it was asked for.
      strict: whether a SHOULD decides as a MUST does.
      description: what it is and what it runs on, once that is known.
      unloadable: why it could not be loaded, if so.
      clauses: the clauses under test, by id.
      errors: what went wrong in the harness outside of any clause.
      finished: whether the run came to its end.
      interrupted: whether it was the user who ended it.
      seconds: how long it took.
    """

    name: str
    strict: bool = False
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
    def counted(self) -> list[ClauseResult]:
        """The clauses under test that are no views."""
        return [clause for clause in self.clauses.values() if not clause.view]

    @property
    def views(self) -> list[ClauseResult]:
        """The clauses that gather tests of others."""
        return [clause for clause in self.clauses.values() if clause.view]

    @property
    def deviations(self) -> list[ClauseResult]:
        """The clauses that make the run fail: errors, and failures that decide."""
        return [
            clause
            for clause in self.counted
            if (outcome := clause.outcome) is Outcome.ERROR
            or (outcome is Outcome.FAIL and self.decides(clause))
        ]

    @property
    def advice(self) -> list[ClauseResult]:
        """The clauses that fail and decide nothing."""
        return [
            clause
            for clause in self.counted
            if clause.outcome is Outcome.FAIL and not self.decides(clause)
        ]

    def decides(self, clause: ClauseResult) -> bool:
        """Tells whether the run fails if a clause does."""
        return clause.level == "MUST" or (self.strict and clause.level == "SHOULD")

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
            clause.outcome for clause in self.counted if chapter in (None, clause.chapter)
        )

    def standing(self) -> dict[tuple[str, str], Counter[Outcome]]:
        """Counts the clauses by outcome for each level and basis, in the order of both."""
        counts: dict[tuple[str, str], Counter[Outcome]] = {}
        for clause in self.counted:
            counts.setdefault((clause.level, clause.basis or ""), Counter())[clause.outcome] += 1
        return dict(sorted(counts.items(), key=lambda entry: rank(entry[0])))

    def gathered(self, view: ClauseResult) -> dict[str, list[str]]:
        """Returns the tests that a view gathers, by the clause that each is part of."""
        tests: dict[str, list[str]] = {}
        for test in view.tests:
            for id in self._clauses_of[test]:
                if not self.clauses[id].view:
                    tests.setdefault(id, []).append(test)
        return tests

    def failing(self, view: ClauseResult) -> list[str]:
        """Lists the clauses of which a view gathers a test that failed or broke."""
        broken = set(view.broken)
        return [id for id, tests in self.gathered(view).items() if broken.intersection(tests)]

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


def rank(standing: tuple[str, str]) -> tuple[int, int]:
    """Ranks a level and a basis, the most binding first, for sorting."""
    from nnx_spec.clauses import Level
    from nnx_spec.sources import Basis

    level, basis = standing
    bases = [known.value for known in Basis]
    return (
        [known.value for known in Level].index(level),
        bases.index(basis) if basis in bases else len(bases),
    )


def _simplicity(failure: dict[str, Any]) -> tuple[bool, int]:
    return failure["outcome"] != Outcome.ERROR.value, len(failure["example"] or "")
