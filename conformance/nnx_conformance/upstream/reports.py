"""Reports: a comparison in JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnx_conformance.upstream import judging
from nnx_conformance.upstream.judging import Comparison, Verdict

SCHEMA = "nnx-conformance/upstream/1"


def write(path: Path, comparison: Comparison) -> None:
    """Writes a report."""
    path.write_text(json.dumps(report(comparison), indent=2) + "\n")


def report(comparison: Comparison) -> dict[str, Any]:
    """Returns the report on a comparison, of plain JSON values."""
    verdicts = comparison.verdicts
    return {
        "schema": SCHEMA,
        "target": {"name": comparison.name, "version": comparison.version},
        "release": comparison.release,
        "scope": comparison.scope,
        "environment": dict(comparison.environment),
        "unloadable": comparison.unloadable,
        "incomplete": comparison.interrupted,
        "errors": comparison.errors,
        "files": {file: _file(group) for file, group in judging.by_file(verdicts).items()},
        "missing": dict(judging.missing(verdicts).most_common()),
        "messages": {text: len(group) for text, group in judging.by_message(verdicts).items()},
        "cases": [_case(verdict) for verdict in verdicts],
        "summary": {
            "counted": len(verdicts),
            "passed": sum(not verdict.differs for verdict in verdicts),
            "unexpected": [verdict.case.id for verdict in comparison.unexpected],
            "seconds": comparison.seconds,
            "exit_code": comparison.exit_code,
        },
    }


def _file(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    passed = sum(not verdict.differs for verdict in verdicts)
    return {
        "counted": len(verdicts),
        "passed": passed,
        "failed": len(verdicts) - passed,
        "missing": sorted(judging.missing(verdicts)),
    }


def _case(verdict: Verdict) -> dict[str, Any]:
    known = verdict.known
    return {
        "id": verdict.case.id,
        "outcome": verdict.outcome,
        "message": verdict.message,
        "missing": list(verdict.case.missed),
        "follows": verdict.case.follows,
        "known": known and {"kind": known.kind, "reason": known.reason},
        "unexpected": verdict.unexpected,
        "seconds": round(verdict.case.seconds, 3),
    }
