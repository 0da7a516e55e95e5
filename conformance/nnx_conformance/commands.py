"""The command `run`, and what other commands share with it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from nnx_conformance import rendering, reports, running, targets
from nnx_conformance.results import Results
from nnx_conformance.usage import UsageError, require_known

DEFAULT_TARGETS = ("reference", "flax")


def add_run(subparsers: Any) -> None:
    """Adds the command `run`."""
    parser = subparsers.add_parser("run", help="run the clauses on targets")
    parser.add_argument(
        "targets",
        nargs="*",
        default=list(DEFAULT_TARGETS),
        metavar="TARGET",
        help="a registered name, module or module:attribute (default: reference flax)",
    )
    add_selection(parser)
    parser.add_argument(
        "--profile", default="default", help="smoke, default or thorough: how many examples to try"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=default_jobs(),
        metavar="N",
        help="worker processes (default: %(default)s)",
    )
    add_features(parser)
    parser.add_argument(
        "--strict", action="store_true", help="let a SHOULD that fails decide the exit code, too"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report in JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a report in JUnit XML")
    parser.set_defaults(run=run)


def add_features(parser: argparse.ArgumentParser) -> None:
    """Adds the option that answers for a target's features."""
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME=yes|no",
        help="take it as given that the target has, or lacks, a feature",
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select clauses; what either selects is taken."""
    parser.add_argument(
        "-k",
        action="append",
        default=[],
        dest="ids",
        metavar="ID",
        help="only this clause; repeatable",
    )
    parser.add_argument(
        "--chapter",
        action="append",
        default=[],
        metavar="ABC",
        help="only this chapter; repeatable",
    )


def default_jobs() -> int:
    """Returns the number of processors that this process may use, at most 4."""
    available = getattr(os, "process_cpu_count", None) or (lambda: len(os.sched_getaffinity(0)))
    return max(1, min(4, available() or 1))


def run(args: argparse.Namespace) -> int:
    """Runs the clauses on targets, shows the results, and returns the exit code."""
    names = list(dict.fromkeys(args.targets))
    for name in names:
        check_target(name)
    options = _options(args)
    for path in filter(None, (args.json, args.junit)):
        check_writable(path)
    out = rendering.console()
    runs = _run_all(names, options, out)
    rendering.show(runs, chapter_titles(), out)
    if args.json:
        reports.write_json(args.json, runs)
    if args.junit:
        reports.write_junit(args.junit, runs)
    return max(results.exit_code for results in runs)


def _run_all(names: Iterable[str], options: running.Options, out: Console) -> list[Results]:
    runs: list[Results] = []
    for name in names:
        with rendering.progress(name, out) as watch:
            runs.append(running.run(name, options, watch))
        if runs[-1].interrupted:
            break
    return runs


def _options(args: argparse.Namespace) -> running.Options:
    from nnx_spec.profiles import PROFILES

    require_known("profile", [args.profile], PROFILES)
    if args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {args.jobs}")
    select, features = selected(args), answered(args)
    return running.Options(select, args.profile, args.jobs, features, args.spec, args.strict)


def answered(args: argparse.Namespace) -> dict[str, bool]:
    """Returns the features for which the user answers.

    Raises:
      UsageError: one of them is unknown, or an answer is neither yes nor no.
    """
    from nnx_spec.features import FEATURES, GROUPS

    features = {}
    for answer in args.feature:
        name, _, has = answer.partition("=")
        require_known("feature", [name], [*FEATURES, *GROUPS])
        require_known("answer", [has], ("yes", "no"))
        features[name] = has == "yes"
    return features


def selected(args: argparse.Namespace) -> list[str]:
    """Returns the ids and chapters that the user selects.

    Raises:
      UsageError: one of them is unknown.
    """
    from nnx_spec import editions

    chapters = editions.chapters()
    require_known(
        "clause", args.ids, [id for chapter in chapters.values() for id in chapter.levels]
    )
    require_known("chapter", args.chapter, chapters)
    for name in (*args.chapter, *(id.split("-")[0] for id in args.ids)):
        if not chapters[name].finished:
            print(f"chapter {name} is reserved; its clauses may have no tests yet", file=sys.stderr)
    return [*args.ids, *args.chapter]


def chapter_titles() -> dict[str, str]:
    """Returns the chapters' titles by their letters, in the edition's order."""
    from nnx_spec import editions

    return {name: chapter.title for name, chapter in editions.chapters().items()}


def check_target(name: str) -> None:
    """Checks that a target's name leads to a module.

    Raises:
      UsageError: it does not.
    """
    try:
        targets.locate(name)
    except targets.UnknownTargetError as error:
        raise UsageError(str(error)) from None


def check_writable(path: Path) -> None:
    """Checks that a report can be written.

    Raises:
      UsageError: it cannot.
    """
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written")
