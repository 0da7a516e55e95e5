"""Judging: what counts, how it came out, and what of it is unexpected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nnx_conformance.upstream import prints
from nnx_conformance.upstream.baseline import Baseline
from nnx_conformance.upstream.cases import FAILED, PASSED, SKIPPED, Case, Record, file_of
from nnx_conformance.upstream.known import Difference, first

NUMBERS = "numbers"
"""The outcome of a cell that runs, but prints other numbers than on Flax."""


@dataclass(frozen=True)
class Verdict:
    """What is found about one case that counts.

    Attributes:
      case: what came out.
      outcome: passed, failed, or numbers.
      message: what went wrong.
      known: the difference that it is known by, if it is.
    """

    case: Case
    outcome: str
    message: str
    known: Difference | None

    @property
    def differs(self) -> bool:
        """Whether the target does not do what Flax does."""
        return self.outcome != PASSED

    @property
    def unexpected(self) -> bool:
        """Whether it differs and isn't known to, or the other way round."""
        if self.differs:
            return self.known is None and not self.case.follows
        return self.known is not None


@dataclass
class Comparison:
    """What is found about a target, beside Flax.

    Attributes:
      name: the target as it was asked for.
      release: the release of Flax that tests and documents are of.
      scope: the scope of the tests.
      environment: the releases that everything ran on.
      version: the target's version.
      verdicts: what was found about each case that counts.
      unloadable: why the target could not be loaded, if so.
      errors: what went wrong outside of any case.
      interrupted: whether the user ended it.
      seconds: how long it took, without the baselines.
    """

    name: str
    release: str
    scope: str
    environment: Mapping[str, str]
    version: str | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    unloadable: str | None = None
    errors: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0

    def add(self, record: Record, baseline: Baseline, known: Sequence[Difference]) -> None:
        """Judges a run of a part of what there is."""
        self.version = self.version or record.version
        self.unloadable = self.unloadable or record.unloadable
        self.errors += record.errors
        self.interrupted |= record.interrupted
        if not record.unloadable:
            self.verdicts += judge(record, baseline, known)

    @property
    def unexpected(self) -> list[Verdict]:
        """The verdicts that make it fail."""
        return [verdict for verdict in self.verdicts if verdict.unexpected]

    @property
    def exit_code(self) -> int:
        """The exit code: 130 if interrupted, 3 if nothing ran, 1 if unexpected, else 0."""
        if self.interrupted:
            return 130
        if self.unloadable is not None or not (self.verdicts or self.errors):
            return 3
        return 1 if self.unexpected or self.errors else 0


def judge(record: Record, baseline: Baseline, known: Sequence[Difference]) -> list[Verdict]:
    """Judges each case that Flax passes.

    What has no outcome because the user ended the run is not judged.
    """
    verdicts = []
    for id, expected in baseline.items():
        case = record.cases.get(id) or Case(id)
        if case.outcome is None and record.interrupted:
            continue
        outcome, message = _outcome(case, expected, record)
        verdicts.append(Verdict(case, outcome, message, first(known, id)))
    return verdicts


def _outcome(case: Case, expected: Sequence[str | None], record: Record) -> tuple[str, str]:
    if case.outcome is None:
        reason = record.uncollected.get(case.file)
        return FAILED, f"not collected: {reason}" if reason else "not among what was collected"
    if case.outcome == SKIPPED:
        return FAILED, f"skipped: {case.message}"
    if case.outcome == FAILED:
        return FAILED, case.message
    if difference := prints.difference(case.prints, expected):
        return NUMBERS, difference
    return PASSED, ""


def by_file(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Groups verdicts by file, in order of the files' names."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.case.file):
        groups.setdefault(verdict.case.file, []).append(verdict)
    return groups


def missing(verdicts: Iterable[Verdict]) -> Counter[str]:
    """Counts, for each name that is missing, the cases that missed it."""
    return Counter(name for verdict in verdicts for name in verdict.case.missed)


def by_message(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Groups failures that no missing name explains by what they say, the most frequent first."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome == FAILED and not verdict.case.missed and not verdict.case.follows:
            text = (verdict.message.splitlines() or ["(no message)"])[0]
            groups.setdefault(text, []).append(verdict)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def is_document(verdict: Verdict) -> bool:
    """Tells whether a verdict is about a cell of a document."""
    return file_of(verdict.case.id) != verdict.case.id and "#" in verdict.case.id
