"""The commands `list`, `show` and `features`: what is known without a run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.table import Table

from nnx_conformance import commands, faults, features, rendering, targets
from nnx_conformance.describe import grounds
from nnx_conformance.usage import require_known


def add_list(subparsers: Any) -> None:
    """Adds the command `list`."""
    parser = subparsers.add_parser("list", help="list the clauses")
    commands.add_selection(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=list_clauses)


def add_show(subparsers: Any) -> None:
    """Adds the command `show`."""
    parser = subparsers.add_parser("show", help="show all there is to know about clauses")
    parser.add_argument("ids", nargs="+", metavar="ID", help="a clause")
    parser.set_defaults(run=show_clauses)


def add_features(subparsers: Any) -> None:
    """Adds the command `features`."""
    parser = subparsers.add_parser("features", help="list what a target has and what it lacks")
    parser.add_argument("target", metavar="TARGET", help="a name, module or module:attribute")
    commands.add_features(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=list_features)


def list_clauses(args: argparse.Namespace) -> int:
    """Lists the clauses."""
    import nnx_spec

    names = set(commands.selected(args))
    clauses = [
        clause
        for clause in nnx_spec.load().values()
        if not names or names & {clause.id, clause.chapter}
    ]
    if args.json:
        print(json.dumps([record(clause) for clause in clauses], indent=2))
        return 0
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("clause", "level", "basis", "rule"):
        table.add_column(heading, no_wrap=heading != "rule")
    for clause in clauses:
        standing = (clause.level.value, clause.basis.value)
        level, basis = ("view", "") if clause.is_view else standing
        table.add_row(clause.id, level, basis, clause.sentence)
    rendering.console().print(table)
    return 0


def show_clauses(args: argparse.Namespace) -> int:
    """Shows all there is to know about clauses."""
    import nnx_spec

    registry = nnx_spec.load()
    require_known("clause", args.ids, list(registry))
    for id in args.ids:
        known = record(registry[id])
        kind = ["view"] if known["view"] else filter(None, [known["level"], known["basis"]])
        print(f"{id} ({', '.join(kind)}, since edition {known['since']})\n")
        print("\n".join(f"  {line}".rstrip() for line in known["text"].splitlines()), end="\n\n")
        print(f"  source  {_found(known)}")
        print(f"  needs   {', '.join(known['needs']) or 'no feature'}")
        print("  tests   " + "\n          ".join(map(_test, known["tests"])))
        print("  faults  " + ("\n          ".join(known["faults"]) or "none"), end="\n\n")
    return 0


def record(clause: Any) -> dict[str, Any]:
    """Returns what is known of a clause as plain JSON values."""
    from nnx_spec import editions

    return {
        "id": clause.id,
        "chapter": clause.chapter,
        "level": clause.level.value,
        "rule": clause.sentence,
        "text": clause.rule,
        **grounds(clause.basis, clause.source),
        "view": clause.is_view,
        "needs": sorted(editions.needs(clause)),
        "since": clause.since,
        "until": clause.until,
        "tests": tests_of(clause),
        "faults": [name for name, fault in faults.load().items() if clause.id in fault.breaks],
    }


def tests_of(clause: Any) -> list[dict[str, Any]]:
    """Returns a clause's tests: its function, or the methods of its class.

    Returns:
      each with its dotted `name`; and with `basis`, `source` and `url` if these are its own.
    """
    place = f"{clause.test.__module__}.{clause.test.__qualname__}"
    if not isinstance(clause.test, type):
        return [{"name": place}]
    own = clause.grounds
    return [
        {"name": f"{place}.{name}"}
        | (grounds(own[name].basis, own[name].source) if name in own else {})
        for name in vars(clause.test)
        if name.startswith("test")
    ]


def _found(grounds: dict[str, Any]) -> str:
    """Says where something is found, and its address if it has one."""
    source, url = grounds["source"], grounds["url"]
    return f"{source} ({url})" if url else str(source)


def _test(test: dict[str, Any]) -> str:
    own = f" ({test['basis']}: {_found(test)})" if "basis" in test else ""
    return f"{test['name']}{own}"


def list_features(args: argparse.Namespace) -> int:
    """Lists every feature, whether a target has it, and how that was found."""
    from nnx_spec.features import FEATURES

    commands.check_target(args.target)
    overrides = commands.answered(args)
    try:
        answers = features.probe(targets.load(args.target), overrides)
    except (targets.TargetError, features.FeatureError) as error:
        print(error, file=sys.stderr)
        return 3
    if args.json:
        listed = [
            {"feature": name, "has": answer.has, "how": answer.reason, "meaning": FEATURES[name]}
            for name, answer in answers.items()
        ]
        print(json.dumps(listed, indent=2))
        return 0
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("feature", "has", "how", "meaning"):
        table.add_column(heading, no_wrap=heading != "meaning")
    for name, answer in answers.items():
        table.add_row(name, "yes" if answer.has else "no", answer.reason, FEATURES[name])
    rendering.console().print(table)
    return 0
