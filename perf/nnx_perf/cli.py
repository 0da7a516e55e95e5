"""The command `nnx-conformance perf`: running the benchmarks and printing what came of them.

Exit codes: 0 measured; 1 a target failed a benchmark; 2 wrong use; 3 a target could not be loaded,
or nothing ran.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from nnx_conformance import targets
from nnx_perf import report, suites

PLAIN_WIDTH = 200
"""Columns of the table where the output is no terminal."""


def command(subparsers: Any) -> None:
    """Adds the command to a command line, given argparse's subparsers."""
    perf = subparsers.add_parser("perf", help="measure what targets cost against plain JAX")
    actions = perf.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_arguments(actions.add_parser("run", help="run benchmarks and print the ratios"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `perf run` to a parser."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a registered name, module or module:attribute; by default the reference",
    )
    parser.add_argument("--suite", default="functional", help="the benchmarks to run")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="rounds of each")
    parser.add_argument(
        "--size",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="only models of N Variables; may be given several times",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the samples in a file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs a suite on targets, prints the table and returns the exit code."""
    names = list(dict.fromkeys(args.targets)) or ["reference"]
    if problem := _misuse(args):
        return _complain(problem, 2)
    try:
        for name in names:
            targets.locate(name)
    except targets.TargetError as error:
        return _complain(str(error), 3)
    with tempfile.TemporaryDirectory(prefix="nnx-perf-") as folder:
        stored = args.json or Path(folder, "benchmarks.json")
        stored.unlink(missing_ok=True)
        done = _measure(args, names, stored)
        return _judge(done, names, stored)


def _misuse(args: argparse.Namespace) -> str | None:
    """Says what is wrong with the arguments, if anything is."""
    known = suites.paths()
    if args.suite not in known:
        near = difflib.get_close_matches(args.suite, known, cutoff=0.4) or sorted(known)
        return f"there is no suite {args.suite!r}; did you mean {' or '.join(near)}?"
    if args.rounds < 1:
        return f"--rounds must be at least 1, not {args.rounds}"
    if unknown := set(args.size) - set(_sizes()) if args.size else set():
        return f"--size: models have {', '.join(map(str, _sizes()))} Variables, not {min(unknown)}"
    if args.json and not args.json.absolute().parent.is_dir():
        return f"--json: there is no folder {str(args.json.parent)!r}"
    return None


def _sizes() -> tuple[int, ...]:
    from nnx_perf import models  # here because it imports JAX, which other commands do without

    return models.SIZES


def _measure(
    args: argparse.Namespace, names: Sequence[str], stored: Path
) -> subprocess.CompletedProcess[str]:
    """Runs pytest on a suite, in a process of its own that nothing but the targets shares."""
    options = [
        *("-c", str(resources.files("nnx_perf") / "pytest.ini"), "-q", "--tb=short"),
        *("-p", "pytest_benchmark.plugin", "-p", "nnx_perf.plugin", "-p", "no:cacheprovider"),
        *(f"--nnx-perf-target={name}" for name in names),
        *(f"--nnx-perf-size={size}" for size in args.size),
        *(f"--nnx-perf-rounds={args.rounds}", f"--benchmark-json={stored.absolute()}"),
    ]
    place = suites.paths()[args.suite]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(place.parent), str(place)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def _judge(done: subprocess.CompletedProcess[str], names: Sequence[str], stored: Path) -> int:
    """Prints what a run gave, and returns the exit code."""
    if done.returncode == 3:
        return _complain(done.stderr.strip().splitlines()[-1].removeprefix("Exit: "), 3)
    rows = report.read(stored) if stored.exists() and stored.stat().st_size else []
    if not rows:
        return _complain(f"nothing ran: {' '.join(done.stdout.split()[-20:])}", 3)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(report.table(rows, names))
    failures = {
        f"{name}: {row.operation} of {row.size} Variables: {error}"
        for row in rows
        for name, error in row.errors.items()
    }
    for failure in sorted(failures):
        console.print(escape(failure), style="red", soft_wrap=True)
    return 1 if done.returncode else 0


def _complain(message: str, code: int) -> int:
    print(f"nnx-conformance: {message}", file=sys.stderr)
    return code
