"""Reports: results as JSON, in a versioned format, and as JUnit XML.

The format is `report_2.schema.json`. One target gives one report, several give `{"schema": ...,
"reports": [...]}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nnx_conformance.outcomes import Outcome
from nnx_conformance.results import ClauseResult, Results

SCHEMA = "nnx-conformance/report/2"


def schema() -> dict[str, Any]:
    """Returns the JSON Schema that every report conforms to."""
    text = (resources.files("nnx_conformance") / "report_2.schema.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def to_json(runs: Sequence[Results]) -> dict[str, Any]:
    """Returns the report on one run, or on several."""
    reports = [report(results) for results in runs]
    return reports[0] if len(reports) == 1 else {"schema": SCHEMA, "reports": reports}


def report(results: Results) -> dict[str, Any]:
    """Returns the report on one run, of plain JSON values."""
    unknown: dict[str, Any] = {"name": results.name, "version": None, "features": []}
    description = results.description or {"target": unknown, "environment": None}
    return {
        "schema": SCHEMA,
        "target": description["target"],
        "environment": description["environment"],
        "strict": results.strict,
        "incomplete": not results.finished,
        "unloadable": results.unloadable,
        "errors": results.errors,
        "clauses": [clause_record(clause) for clause in results.counted],
        "views": [view_record(view, results) for view in results.views],
        "summary": summary(results),
    }


def clause_record(clause: ClauseResult) -> dict[str, Any]:
    """Returns a clause's part of a report."""
    return {
        "id": clause.id,
        "chapter": clause.chapter,
        "level": clause.level,
        "basis": clause.basis,
        "rule": clause.rule,
        "source": clause.source,
        "url": clause.url,
        "outcome": clause.outcome.value,
        "reason": clause.reason,
        "broken": len(clause.broken),
        "tests": [
            {"name": name, "outcome": outcome.value, **clause.grounds.get(name, {})}
            for name, outcome in clause.tests.items()
        ],
        "failures": clause.failures,
    }


def view_record(view: ClauseResult, results: Results) -> dict[str, Any]:
    """Returns a view's part of a report: figures only, as its tests are those of clauses."""
    return {
        "id": view.id,
        "chapter": view.chapter,
        "rule": view.rule,
        "clauses": len(results.gathered(view)),
        "failing": results.failing(view),
        "tests": len(view.tests),
        "broken": len(view.broken),
    }


def summary(results: Results) -> dict[str, Any]:
    """Returns a report's figures."""
    counts = results.count()
    return {
        "clauses": len(results.counted),
        "tests": results.total,
        **{outcome.value: counts[outcome] for outcome in Outcome},
        "standing": [
            {
                "level": level,
                "basis": basis or None,
                **{outcome.value: count[outcome] for outcome in Outcome},
            }
            for (level, basis), count in results.standing().items()
        ],
        "deviations": len(results.deviations),
        "advice": len(results.advice),
        "exit_code": results.exit_code,
        "seconds": round(results.seconds, 3),
    }


def write_json(path: Path, runs: Sequence[Results]) -> None:
    """Writes the report to a file, whole or not at all."""
    with _replacing(path) as file:
        file.write_text(json.dumps(to_json(runs), indent=2) + "\n")


def write_junit(path: Path, runs: Sequence[Results]) -> None:
    """Writes JUnit XML: a suite for each target, a case for each test, its class the clause."""
    root = ElementTree.Element("testsuites")
    for results in runs:
        root.append(_suite(results))
    ElementTree.indent(root)
    with _replacing(path) as file:
        ElementTree.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _suite(results: Results) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=results.name, time=f"{results.seconds:.3f}")
    tally = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for clause in results.counted:
        for name, outcome in clause.tests.items():
            suite.append(_case(clause, name, outcome))
            tally["tests"] += 1
            if outcome in JUNIT:
                tally[JUNIT[outcome][1]] += 1
    problems = [*results.errors, *([results.unloadable] if results.unloadable else [])]
    for problem in problems:
        case = ElementTree.SubElement(suite, "testcase", classname="nnx-conformance", name="run")
        ElementTree.SubElement(case, "error", message=_clean(problem))
        tally["tests"] += 1
        tally["errors"] += 1
    suite.attrib |= {name: str(count) for name, count in tally.items()}
    return suite


JUNIT = {
    Outcome.FAIL: ("failure", "failures"),
    Outcome.ERROR: ("error", "errors"),
    Outcome.UNSUPPORTED: ("skipped", "skipped"),
    Outcome.UNFINISHED: ("skipped", "skipped"),
}
"""What marks a case that did not pass: its element, and the suite's attribute that counts it."""


def _case(clause: ClauseResult, name: str, outcome: Outcome) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=clause.id, name=_clean(name))
    if outcome is Outcome.PASS:
        return case
    failures = [failure for failure in clause.failures if failure["test"] == name]
    reason = failures[0]["error"] if failures else clause.reason or outcome.value
    mark = ElementTree.SubElement(case, JUNIT[outcome][0], message=_clean(reason))
    mark.text = _clean("\n\n".join(failure["traceback"] for failure in failures)) or None
    return case


def _clean(text: str) -> str:
    """Replaces the control characters that XML has no way to hold."""
    return "".join(
        c if c in "\t\n\r" or ord(c) >= 32 else "\N{REPLACEMENT CHARACTER}" for c in text
    )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Gives a file to write that takes another's place once it is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
