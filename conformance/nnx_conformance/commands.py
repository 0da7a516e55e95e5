"""Commands: what `nnx-conformance run`, `list` and `show` do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nnx_conformance import faults, rendering, reports, running, targets
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
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        metavar="NAME=yes|no",
        help="take it as given that the target has, or lacks, a feature",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report in JSON")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write a report in JUnit XML")
    parser.set_defaults(run=run)


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


def add_list(subparsers: Any) -> None:
    """Adds the command `list`."""
    parser = subparsers.add_parser("list", help="list the clauses")
    add_selection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=list_clauses)


def add_show(subparsers: Any) -> None:
    """Adds the command `show`."""
    parser = subparsers.add_parser("show", help="show all there is to know about clauses")
    parser.add_argument("ids", nargs="+", metavar="ID", help="a clause")
    parser.set_defaults(run=show_clauses)


def default_jobs() -> int:
    """Returns the number of processors that this process may use, at most 4."""
    available = getattr(os, "process_cpu_count", None) or (lambda: len(os.sched_getaffinity(0)))
    return max(1, min(4, available() or 1))


def run(args: argparse.Namespace) -> int:
    """Runs the clauses on targets, shows the results, and returns the exit code."""
    names = list(dict.fromkeys(args.targets))
    for name in names:
        _check_target(name)
    options = _options(args)
    for path in filter(None, (args.json, args.junit)):
        _check_writable(path)
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
    from nnx_spec.features import FEATURES, GROUPS
    from nnx_spec.profiles import PROFILES

    require_known("profile", [args.profile], PROFILES)
    if args.jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {args.jobs}")
    features = {}
    for answer in args.feature:
        name, _, has = answer.partition("=")
        require_known("feature", [name], [*FEATURES, *GROUPS])
        require_known("answer", [has], ("yes", "no"))
        features[name] = has == "yes"
    return running.Options(selected(args), args.profile, args.jobs, features, args.spec)


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


def _check_target(name: str) -> None:
    try:
        targets.locate(name)
    except targets.UnknownTargetError as error:
        raise UsageError(str(error)) from None


def _check_writable(path: Path) -> None:
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path} cannot be written")


def list_clauses(args: argparse.Namespace) -> int:
    """Lists the clauses."""
    import nnx_spec

    names = set(selected(args))
    clauses = [
        clause
        for clause in nnx_spec.load().values()
        if not names or names & {clause.id, clause.chapter}
    ]
    if args.json:
        print(json.dumps([record(clause) for clause in clauses], indent=2))
        return 0
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("clause", "level", "rule"):
        table.add_column(heading, no_wrap=heading != "rule")
    for clause in clauses:
        table.add_row(clause.id, clause.level.value, clause.sentence)
    rendering.console().print(table)
    return 0


def show_clauses(args: argparse.Namespace) -> int:
    """Shows all there is to know about clauses."""
    import nnx_spec

    registry = nnx_spec.load()
    require_known("clause", args.ids, list(registry))
    for id in args.ids:
        known = record(registry[id])
        print(f"{id} ({known['level']}, since edition {known['since']})\n")
        print("\n".join(f"  {line}".rstrip() for line in known["text"].splitlines()), end="\n\n")
        print(f"  source  {known['source']}")
        print(f"  needs   {', '.join(known['needs']) or 'no feature'}")
        print("  tests   " + "\n          ".join(known["tests"]))
        print("  faults  " + ("\n          ".join(known["faults"]) or "none"), end="\n\n")
    return 0


def record(clause: Any) -> dict[str, Any]:
    """Returns what is known of a clause as plain JSON values."""
    from nnx_spec import editions
    from nnx_spec.sources import url

    return {
        "id": clause.id,
        "chapter": clause.chapter,
        "level": clause.level.value,
        "rule": clause.sentence,
        "text": clause.rule,
        "source": url(clause.source),
        "needs": sorted(editions.needs(clause)),
        "since": clause.since,
        "until": clause.until,
        "tests": tests_of(clause.test),
        "faults": [name for name, fault in faults.load().items() if clause.id in fault.breaks],
    }


def tests_of(test: Any) -> list[str]:
    """Returns the dotted names of a clause's tests: the function, or the methods of the class."""
    place = f"{test.__module__}.{test.__qualname__}"
    if not isinstance(test, type):
        return [place]
    return [f"{place}.{name}" for name in vars(test) if name.startswith("test")]
