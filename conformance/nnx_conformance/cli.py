"""The command line: the commands of `nnx-conformance`.

Exit codes: 0 nothing unexpected; 1 a MUST fails, with `--strict` a SHOULD, or something broke;
2 wrong use; 3 a target could not be loaded, or nothing ran; 130 interrupted.

Other packages add commands through the entry-point group `nnx_conformance.commands`: each entry is
a function that is given argparse's subparsers, adds one to them and sets its default `run`, a
function from the parsed arguments to an exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nnx_conformance import commands, listing, proofs, running
from nnx_conformance.upstream import command as upstream
from nnx_conformance.usage import Parser, UsageError, require_known, suggestion

COMMANDS_GROUP = "nnx_conformance.commands"

COMMANDS = (
    commands.add_run,
    listing.add_list,
    listing.add_show,
    listing.add_features,
    proofs.add_faults,
    upstream.add_upstream,
)


def main(argv: Sequence[str] | None = None, *, spec: Path | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
      argv: the command and its arguments; by default the process' own.
      spec: the folder that holds the clauses for `run`; by default the installed specification.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        args.spec = spec or running.installed_spec()
        with _terminable():
            code: int = args.run(args)
    except UsageError as error:
        print(f"nnx-conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treats a request to terminate as an interrupt: what is known by then is reported."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a command line.

    Raises:
      UsageError: a command, option or argument is wrong.
    """
    parser = Parser(
        prog="nnx-conformance", description="Tests implementations of the Flax NNX API."
    )
    version = importlib.metadata.version("nnx-conformance")
    parser.add_argument("--version", action="version", version=f"nnx-conformance {version}")
    subparsers: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(subparsers)
    if not (argv and argv[0] in subparsers.choices):
        for entry in importlib.metadata.entry_points(group=COMMANDS_GROUP):
            entry.load()(subparsers)
    if argv and not argv[0].startswith("-"):
        require_known("command", argv[:1], subparsers.choices)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        options = subparsers.choices[args.command].options
        raise UsageError(f"there is no option {unknown[0]!r}{suggestion(unknown[0], options)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
