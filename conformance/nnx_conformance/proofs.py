"""Proofs: each fault, planted in a conforming target, breaks each clause that it names.

A clause is broken when one of its tests fails; an error of the harness proves nothing. Before
anything is planted the same clauses must hold, or their failing would prove nothing either. Faults
are tried one after another in a few long-lived processes, in which imports and compiled functions
stay warm; each gets a pytest session and a target of its own, and is taken out at the session's
end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nnx_conformance import faults, running
from nnx_conformance.outcomes import Outcome, join
from nnx_conformance.usage import UsageError, require_known


@dataclass(frozen=True)
class Trial:
    """A fault, or None for none, and the clauses to run with it in the target."""

    fault: str | None
    clauses: tuple[str, ...]
    tests: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class Finding:
    """What a trial has shown: each clause's outcome, or why there is none."""

    trial: Trial
    outcomes: Mapping[str, Outcome]
    trouble: str | None = None

    def complaints(self) -> Iterator[str]:
        """Yields one line for everything that is not as it must be."""
        if self.trouble is not None:
            yield f"{self.trial.fault or 'no fault'}: {self.trouble}"
            return
        for id in self.trial.clauses:
            outcome = self.outcomes.get(id)
            if outcome is None:
                yield f"{id} has no tests"
            elif self.trial.fault is None and outcome in (Outcome.FAIL, Outcome.ERROR):
                yield f"{id} does not hold without a fault either ({outcome.value})"
            elif self.trial.fault is not None and outcome not in (
                Outcome.FAIL,
                Outcome.UNSUPPORTED,
            ):
                yield f"{self.trial.fault} does not break {id} ({outcome.value})"


class Jury:
    """A pytest plugin that notes outcomes and spares a clause further tests once it is broken."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips the tests of a clause that is broken already."""
        marker = item.get_closest_marker("clause")
        if marker and Outcome.FAIL in self.outcomes[marker.args[0]]:
            pytest.skip("broken already")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a verdict."""
        verdict = getattr(report, "nnx", None)
        if verdict and verdict["clause"] and Outcome.FAIL not in self.outcomes[verdict["clause"]]:
            self.outcomes[verdict["clause"]].append(Outcome(verdict["outcome"]))

    def decide(self) -> dict[str, Outcome]:
        """Returns each clause's outcome: a failure if one of its tests fails."""
        return {
            id: Outcome.FAIL if Outcome.FAIL in noted else join(noted)
            for id, noted in self.outcomes.items()
        }


def attempt(trial: Trial) -> Finding:
    """Runs a trial in this process."""
    if not trial.tests:
        return Finding(trial, {})
    options = running.Options(select=trial.clauses)
    arguments = [*running.arguments(trial.target, options), "-q", "--nnx-no-shrink", *trial.tests]
    if trial.fault:
        arguments += ["--nnx-fault", trial.fault]
    jury, output = Jury(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[jury])
    if status not in (0, 1, 5):
        lines = output.getvalue().strip().splitlines()
        return Finding(
            trial, {}, f"pytest ended with status {int(status)}: {' / '.join(lines[-3:])}"
        )
    return Finding(trial, jury.decide())


def run_trials(trials: Sequence[Trial], jobs: int) -> Iterator[Finding]:
    """Yields what trials show, as it comes; they share `jobs` processes."""
    with tempfile.TemporaryDirectory(prefix="nnx-conformance-") as folder:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, context, _prepare, (folder,)) as pool:
            pending = {pool.submit(attempt, trial): trial for trial in trials}
            for future in as_completed(pending):
                try:
                    yield future.result()
                except BrokenProcessPool:
                    yield Finding(
                        pending[future], {}, "the interpreter died in this trial or beside it"
                    )


def _prepare(folder: str) -> None:
    """Gives a new process the environment of a run, and the user's modules."""
    settings = running.environment(Path(folder))
    for name in os.environ.keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)
    sys.path.insert(0, os.getcwd())


def plan(names: Iterable[str], target: str) -> list[Trial]:
    """Returns the trials for faults, and first those that show that the clauses hold without."""
    import nnx_spec

    registry, known = nnx_spec.load(), faults.load()
    planted = [known[name] for name in names]
    tests = {id: location(clause.test) for id, clause in registry.items()}

    def trial(fault: str | None, ids: Iterable[str]) -> Trial:
        named = tuple(ids)
        return Trial(fault, named, tuple(tests[id] for id in named if id in tests), target)

    modules: dict[str, set[str]] = defaultdict(set)
    for id in {id for fault in planted for id in fault.breaks} & tests.keys():
        modules[tests[id].partition("::")[0]].add(id)
    healthy = [trial(None, sorted(ids)) for _, ids in sorted(modules.items())]
    return healthy + [trial(fault.name, fault.breaks) for fault in planted]


def location(test: Any) -> str:
    """Returns a test function's or class' name as pytest takes it: `file::name`."""
    return f"{sys.modules[test.__module__].__file__}::{test.__qualname__}"


def unproven() -> list[str]:
    """Lists the clauses that no fault names."""
    import nnx_spec

    named = {id for fault in faults.load().values() for id in fault.breaks}
    return [id for id in nnx_spec.load() if id not in named]


def add_faults(subparsers: Any) -> None:
    """Adds the command `faults`."""
    parser = subparsers.add_parser(
        "faults", help="prove that the faults break the clauses they name"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault (default: all)")
    parser.add_argument("--list", action="store_true", help="list the faults and prove nothing")
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
    broken = 0
    for finding in run_trials(plan(names, args.on), args.jobs):
        complaints += finding.complaints()
        if finding.trial.fault is not None:
            broken += sum(outcome is Outcome.FAIL for outcome in finding.outcomes.values())
    for complaint in complaints:
        print(complaint)
    print(f"{len(names)} faults, {broken} times a clause broken; {len(complaints)} complaints")
    return 1 if complaints else 0
