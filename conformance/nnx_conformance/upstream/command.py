"""The command `upstream`: Flax's own tests, guides and examples on a target."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nnx_conformance import rendering as terminal
from nnx_conformance.commands import check_target, check_writable, default_jobs
from nnx_conformance.upstream import (
    baseline,
    citations,
    distribution,
    documents,
    known,
    reading,
    rendering,
    reports,
    scope,
    testing,
)
from nnx_conformance.upstream.cases import Record
from nnx_conformance.upstream.distribution import EXAMPLES, GUIDES, Distribution, UnreachableError
from nnx_conformance.upstream.documents import Document
from nnx_conformance.upstream.judging import Comparison
from nnx_conformance.upstream.known import Difference
from nnx_conformance.upstream.testing import Selection
from nnx_conformance.usage import UsageError, require_known

PARTS = ("tests", "guides", "examples")


def add_upstream(subparsers: Any) -> None:
    """Adds the command `upstream`."""
    parser = subparsers.add_parser(
        "upstream", help="run Flax's own tests, guides and examples on a target"
    )
    parser.add_argument(
        "target", nargs="?", default="reference", metavar="TARGET", help="as for `run`"
    )
    parser.add_argument("--release", metavar="0.12.8", help="of Flax (default: the installed one)")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="a source of Flax's, instead of fetching one"
    )
    parser.add_argument(
        "--scope", default="core", help="which tests: core, extended or all (default: core)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="tests, guides or examples; repeatable (default: all three)",
    )
    parser.add_argument(
        "-k",
        action="append",
        default=[],
        dest="texts",
        metavar="TEXT",
        help="only tests and cells that have this in their ids; repeatable",
    )
    parser.add_argument(
        "--known", type=Path, metavar="FILE", help="the differences that are known, in TOML"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=default_jobs(),
        metavar="N",
        help="worker processes (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="for a test, or a cell (default: %(default)g)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report in JSON")
    parser.add_argument("--renew", action="store_true", help="run Flax anew for what counts")
    parser.add_argument(
        "--check-sources",
        action="store_true",
        help="run nothing; tell which tests and places cited by clauses are not there",
    )
    parser.add_argument(
        "--skip-offline",
        action="store_true",
        help="exit with 0 if the package index cannot be reached",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compares a target with Flax, shows what is found, and returns the exit code."""
    selection = _selection(args)
    if args.json:
        check_writable(args.json)
    out = terminal.console()
    try:
        source = _source(args)
    except UnreachableError as error:
        reason = f"the package index cannot be reached: {error}"
        if args.skip_offline:
            out.print(f"skipped: {reason}", soft_wrap=True)
            return 0
        raise UsageError(f"{reason}; try --source DIR") from None
    if args.check_sources:
        return citations.check(source, out)
    check_target(args.target)
    try:
        comparison = Witness(args, source, selection, out).compare()
    except baseline.BrokenBaselineError as error:
        print(f"Flax itself cannot be run: {error}", file=sys.stderr)
        return 3
    rendering.show(comparison, out)
    if comparison.unloadable is not None:
        print(comparison.unloadable, file=sys.stderr)
    if args.json:
        reports.write(args.json, comparison)
    return comparison.exit_code


def _selection(args: argparse.Namespace) -> Selection:
    require_known("scope", [args.scope], scope.SCOPES)
    require_known("part", args.only, PARTS)
    if args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {args.jobs}")
    if not args.timeout > 0:
        raise UsageError(f"--timeout must be positive, not {args.timeout:g}")
    return Selection(args.scope, args.only or PARTS, args.texts)


def _source(args: argparse.Namespace) -> Distribution:
    if args.source:
        return distribution.unpacked(args.source, args.release)
    return distribution.fetch(args.release)


class Witness:
    """One run of the command: a target, beside Flax, on what is selected of a distribution."""

    def __init__(
        self, args: argparse.Namespace, source: Distribution, selection: Selection, out: Console
    ) -> None:
        self.target: str = args.target
        self.renew: bool = args.renew
        self.jobs: int = args.jobs
        self.limit: float = args.timeout
        self.source = source
        self.selection = selection
        self.out = out
        self.scopes = scope.load()
        self.environment = baseline.environment()
        file = args.known or known.shipped(args.target)
        release, jax = source.release, self.environment["jax"]
        self.known: list[Difference] = known.load(file, release, jax) if file else []

    def compare(self) -> Comparison:
        """Runs what is selected, on Flax where that is not known, then on the target."""
        comparison = Comparison(
            self.target, self.source.release, self.selection.scope, self.environment
        )
        for part in self.selection.parts:
            counts, cut = self._baseline(part)
            started = time.monotonic()
            if counts:
                comparison.add(self._run(part, self.target, cut), counts, self.known)
            comparison.seconds += time.monotonic() - started
            if comparison.interrupted or comparison.unloadable:
                break
        return comparison

    def _baseline(self, part: str) -> tuple[baseline.Baseline, Sequence[Document]]:
        """Returns what counts of a part, and the documents that have it."""
        if part == "tests":
            everything = Selection(self.selection.scope, self.selection.parts)
            files = testing.files_of(self.source, self.scopes, everything)
            paths = [f"{distribution.TESTS}/{file}" for file in files]
            place = baseline.place(
                self.source, f"tests-{self.selection.scope}", paths, repr(self.scopes)
            )
            return self._counting(place, part, ()), ()
        cut = documents.guides(self.source) if part == "guides" else documents.examples(self.source)
        chosen = set(self.selection.files([document.path for document in cut]))
        wanted = [document for document in cut if document.path in chosen]
        folder = GUIDES if part == "guides" else EXAMPLES
        place = baseline.place(self.source, part, self.source.files(folder, "*.md", "*.py"))
        counts = self._counting(place, part, wanted)
        return counts, [d for d in wanted if any(cell.id in counts for cell in d.cells)]

    def _counting(self, place: Path, part: str, cut: Sequence[Document]) -> baseline.Baseline:
        """Returns what Flax passes of what is selected."""
        if self.renew:
            place.unlink(missing_ok=True)
        partial = bool(self.selection.texts) and not place.is_file()
        found = baseline.of(
            None if partial else place,
            lambda target: self._run(part, target, cut),
            times=1 if part == "tests" else 2,
        )
        return {id: printed for id, printed in found.items() if self.selection.takes(id)}

    def _run(self, part: str, target: str, cut: Sequence[Document]) -> Record:
        unit = "tests" if part == "tests" else "cells"
        with terminal.meter(f"{target}: {part}", self.out, unit) as show:

            def watch(record: Record) -> None:
                show(record.done, record.total, f"{record.failed} fail" if record.failed else "")

            if part != "tests":
                return reading.run(
                    target, self.source, cut, jobs=self.jobs, limit=self.limit, watch=watch
                )
            return testing.run(
                target,
                self.source,
                self.scopes,
                self.selection,
                jobs=self.jobs,
                limit=self.limit,
                watch=watch,
            )
