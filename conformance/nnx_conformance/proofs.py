"""Proofs: each fault, planted in a conforming target, breaks each clause that it names.

A clause is broken when one of its tests fails; an error of the harness proves nothing. Without a
fault the same clauses must hold, or their failing would prove nothing either. Faults are tried one
after another in a few long-lived processes, in which imports and compiled functions stay warm; each
gets a pytest session and a target of its own, and is taken out at the session's end. A few examples
of each property are tried first; what they don't break is tried again, in new processes, on as many
as a run tries by default.

The failures that faults provoke are looked at, too: an assertion that tells nothing of what was
expected and found, or shows an address, is *mute*.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import multiprocessing
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nnx_conformance import faults, rendering, running
from nnx_conformance.failures import muteness
from nnx_conformance.outcomes import Outcome, join
from nnx_conformance.plugin import clauses_of
from nnx_conformance.usage import UsageError, require_known


@dataclass(frozen=True)
class Trial:
    """A fault, or None for none, and the clauses to test on a target that has it.

    Attributes:
      fault: the fault's name.
      tests: where each clause's tests are, by the clause's id; empty for a clause without any.
      target: the target in which it is planted.
      profile: on how many examples properties are tried.
    """

    fault: str | None
    tests: Mapping[str, Sequence[str]]
    target: str
    profile: str = "smoke"


@dataclass(frozen=True)
class Finding:
    """What a trial has shown.

    Attributes:
      trial: the trial.
      outcomes: each clause's outcome.
      trouble: why there are none, if so.
      mute: the tests whose failures tell nothing, each with what is wrong with what it tells.
    """

    trial: Trial
    outcomes: Mapping[str, Outcome]
    trouble: str | None = None
    mute: tuple[str, ...] = ()

    @property
    def survivors(self) -> list[str]:
        """The clauses that have tests and were not broken by a fault that should have."""
        tested = [id for id, tests in self.trial.tests.items() if tests]
        harmless = self.trial.fault is None or self.trouble is not None
        return [] if harmless else [id for id in tested if not self.breaks(id)]

    def breaks(self, id: str) -> bool:
        """Tells whether the clause is broken, or does not apply to the target at all."""
        return self.outcomes.get(id) in (Outcome.FAIL, Outcome.UNSUPPORTED)

    def complaints(self) -> Iterator[str]:
        """Yields one line for everything that is not as it must be."""
        if self.trouble is not None:
            yield f"{self.trial.fault or 'no fault'}: {self.trouble}"
            return
        for id, tests in self.trial.tests.items():
            outcome = self.outcomes.get(id)
            if not tests or outcome is None:
                yield f"{self.trial.fault or 'no fault'}: {id} has no tests"
            elif self.trial.fault is None and outcome in (Outcome.FAIL, Outcome.ERROR):
                yield f"{id} does not hold without a fault either ({outcome.value})"
            elif self.trial.fault is not None and not self.breaks(id):
                yield f"{self.trial.fault} does not break {id} ({outcome.value})"


class Jury:
    """A pytest plugin that notes outcomes and ends a trial once its clauses are broken."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.outcomes: dict[str, list[Outcome]] = {id: [] for id in ids}
        self.mute: list[str] = []

    @property
    def decided(self) -> bool:
        """Whether every clause is broken."""
        return all(Outcome.FAIL in noted for noted in self.outcomes.values())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips the tests of clauses that are broken already."""
        if not self._undecided(clauses_of(item)):
            pytest.skip("broken already")

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Notes a failure that tells nothing."""
        complaint = muteness(call.excinfo.value) if call.excinfo is not None else None
        if complaint:
            self.mute.append(f"{item.nodeid} {complaint}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a verdict."""
        verdict = getattr(report, "nnx", None) or {"clauses": []}
        for id in self._undecided(verdict["clauses"]):
            self.outcomes[id].append(Outcome(verdict["outcome"]))

    def _undecided(self, ids: Iterable[str]) -> list[str]:
        return [id for id in ids if Outcome.FAIL not in self.outcomes.get(id, [Outcome.FAIL])]

    def pytest_runtest_logfinish(self) -> None:
        """Ends the session if there is nothing left to decide."""
        if self.decided:
            pytest.exit("all broken", returncode=0)

    def decide(self) -> dict[str, Outcome]:
        """Returns each clause's outcome: a failure if one of its tests fails."""
        return {
            id: Outcome.FAIL if Outcome.FAIL in noted else join(noted)
            for id, noted in self.outcomes.items()
            if noted
        }


def attempt(trial: Trial) -> Finding:
    """Runs a trial in this process."""
    tests = {id: where for id, where in trial.tests.items() if where}
    if not tests:
        return Finding(trial, {})
    options = running.Options(select=list(tests), profile=trial.profile)
    arguments = running.arguments(trial.target, options)
    arguments += ["-q", "--nnx-no-shrink", "-p", "no:unraisableexception"]
    arguments += dict.fromkeys(test for where in tests.values() for test in where)
    if trial.fault:
        arguments += ["--nnx-fault", trial.fault]
    jury, output = Jury(tests), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[jury])
    if status not in (0, 1):
        lines = output.getvalue().strip().splitlines()
        ending = " / ".join(line.strip() for line in lines[-3:])
        return Finding(trial, {}, f"pytest ended with status {int(status)}: {ending}")
    return Finding(trial, jury.decide(), mute=tuple(jury.mute))


def try_all(trials: Sequence[Trial], jobs: int) -> Iterator[Finding]:
    """Yields what each trial shows in the end, as it comes."""
    first: dict[str | None, Finding] = {}
    again: list[Trial] = []
    for finding in run_trials(trials, jobs):
        trial, survivors = finding.trial, finding.survivors
        if survivors:
            first[trial.fault] = finding
            tests = {id: trial.tests[id] for id in survivors}
            again.append(dataclasses.replace(trial, tests=tests, profile="default"))
        else:
            yield finding
    for finding in run_trials(again, jobs):
        before = first[finding.trial.fault]
        outcomes = {**before.outcomes, **finding.outcomes}
        yield Finding(before.trial, outcomes, finding.trouble, before.mute + finding.mute)


def run_trials(trials: Sequence[Trial], jobs: int) -> Iterator[Finding]:
    """Yields what trials show, as it comes; they share `jobs` new processes."""
    if not trials:
        return
    with tempfile.TemporaryDirectory(prefix="nnx-conformance-") as folder:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, _prepare, (folder,)) as pool:
            pending = {pool.submit(attempt, trial): trial for trial in trials}
            for future in as_completed(pending):
                try:
                    yield future.result()
                except BrokenProcessPool:
                    trouble = "the interpreter died in this trial or beside it"
                    yield Finding(pending[future], {}, trouble)


def _prepare(folder: str) -> None:
    """Gives a new process the environment of a run, and the user's modules."""
    settings = running.environment(Path(folder))
    for name in os.environ.keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)
    sys.path.insert(0, os.getcwd())


def plan(names: Iterable[str], target: str) -> list[Trial]:
    """Returns the trials for faults, and first those that show that the clauses hold without.

    A clause that gathers others' tests is tried on those of the clauses that the fault also breaks.
    """
    import nnx_spec

    known = faults.load()
    planted = [known[name] for name in names]
    clauses = nnx_spec.load()
    where = {id: location(clause.test) for id, clause in clauses.items() if not clause.gathers}
    modules: dict[str, set[str]] = defaultdict(set)
    for id in {id for fault in planted for id in fault.breaks} & where.keys():
        modules[where[id].partition("::")[0]].add(id)

    def tests(id: str, ids: Collection[str]) -> list[str]:
        clause = clauses.get(id)
        if clause is None or not clause.gathers:
            return [where[id]] if id in where else []
        return [where[other] for other in ids if clause.gathers.chapter == other.split("-")[0]]

    def trial(fault: str | None, ids: Collection[str]) -> Trial:
        return Trial(fault, {id: tests(id, ids) for id in ids}, target)

    healthy = [trial(None, sorted(ids)) for _, ids in sorted(modules.items())]
    return healthy + [trial(fault.name, fault.breaks) for fault in planted]


def location(test: Any) -> str:
    """Returns a test function's or class' name as pytest takes it: `file::name`."""
    return f"{sys.modules[test.__module__].__file__}::{test.__qualname__}"


def unproven() -> list[str]:
    """Lists the clauses that no fault names, but for views."""
    import nnx_spec

    named = {id for fault in faults.load().values() for id in fault.breaks}
    clauses = nnx_spec.load().items()
    return [id for id, clause in clauses if not clause.is_view and id not in named]


def add_faults(subparsers: Any) -> None:
    """Adds the command `faults`."""
    parser = subparsers.add_parser(
        "faults", help="prove that the faults break the clauses they name"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults and prove nothing")
    parser.add_argument(
        "--list-mute", action="store_true", help="list the failures that tell nothing"
    )
    parser.add_argument(
        "--on", default="reference", metavar="TARGET", help="where to plant (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="worker processes (default: %(default)s)"
    )
    parser.set_defaults(run=prove)


def prove(args: argparse.Namespace) -> int:
    """Proves that faults break what they name, says where they don't, and returns the exit code."""
    known = faults.load()
    require_known("fault", args.names, known)
    if args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {args.jobs}")
    names = args.names or list(known)
    if args.list:
        for name in names:
            print(f"{name}: {known[name].sentence} Breaks {', '.join(known[name].breaks)}.")
        return 0
    complaints = [] if args.names else [f"{id} has no fault" for id in unproven()]
    trials, broken, mute = plan(names, args.on), 0, set[str]()
    out = rendering.console()
    with rendering.meter("faults", out, "trials") as show:
        for done, finding in enumerate(try_all(trials, args.jobs), 1):
            complaints += finding.complaints()
            mute |= set(finding.mute)
            broken += sum(outcome is Outcome.FAIL for outcome in finding.outcomes.values())
            show(done, len(trials), f"{len(complaints)} complaints" if complaints else "")
    for line in [*complaints, *(sorted(mute) if args.list_mute else [])]:
        out.print(line, soft_wrap=True)
    told = f"; {len(mute)} failures tell nothing" if mute else ""
    counts = f"{broken} times a clause broken, {len(complaints)} complaints"
    out.print(f"{len(names)} faults, {counts}{told}")
    return 1 if complaints else 0
