"""Reports and their schema, on made-up runs."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import jsonschema
import pytest

from nnx_conformance import reports
from nnx_conformance.outcomes import Outcome

RUNS = ("mixed", "broken", "partial", "unloadable")


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(reports.schema())
    return jsonschema.Draft202012Validator(reports.schema())


@pytest.mark.parametrize("name", RUNS)
def test_a_report_conforms_to_the_schema(validator, made_up, name):
    validator.validate(reports.to_json([getattr(made_up, name)]))


def test_several_reports_conform_to_the_schema(validator, made_up):
    document = reports.to_json([getattr(made_up, name) for name in RUNS])
    validator.validate(document)
    assert [report["target"]["name"] for report in document["reports"]] == ["made-up"] * 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: report.pop("clauses"),
        lambda report: report.update(schema="nnx-conformance/report/2"),
        lambda report: report["clauses"][0].update(outcome="fine"),
        lambda report: report["clauses"][0].update(id="VAR-1"),
        lambda report: report["clauses"][0]["failures"].append({}),
        lambda report: report["summary"].update(extra=1),
    ],
)
def test_the_schema_refuses_damage(validator, made_up, damage):
    report = reports.report(made_up.mixed)
    damage(report)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(report)


def test_outcomes_and_figures(made_up):
    report = reports.report(made_up.mixed)
    assert [(clause["id"], clause["outcome"]) for clause in report["clauses"]] == [
        ("VAR-001", "fail"),
        ("VAR-002", "fail"),
        ("GRF-001", "unsupported"),
    ]
    assert report["clauses"][2]["reason"] == "the target lacks it"
    assert report["summary"]["fail"] == 2
    assert report["summary"]["deviations"] == 1
    assert report["summary"]["tests"] == 4
    assert not report["incomplete"]


@pytest.mark.parametrize(
    ("name", "code"), [("mixed", 1), ("broken", 1), ("partial", 130), ("unloadable", 3)]
)
def test_exit_codes(made_up, name, code):
    assert getattr(made_up, name).exit_code == code


def test_a_failing_may_clause_deviates_from_nothing(made_up):
    run = made_up.of(made_up.failed("a"), level="MAY")
    assert run.clauses["VAR-001"].outcome is Outcome.FAIL
    assert run.exit_code == 0


def test_a_broken_may_clause_is_an_error_all_the_same(made_up):
    assert made_up.of(made_up.failed("a", "error"), level="MAY").exit_code == 1


def test_nothing_run_is_not_a_success(made_up):
    assert made_up.of().exit_code == 3


def test_a_teardown_that_breaks_is_not_hidden_by_the_pass_before(made_up):
    assert made_up.broken.clauses["VAR-001"].outcome is Outcome.ERROR


def test_one_test_may_decide_several_clauses(gathered):
    assert (gathered.total, gathered.done) == (2, 2)
    outcomes = {id: clause.outcome.value for id, clause in gathered.clauses.items()}
    assert outcomes == {"TRX-001": "fail", "TREE-011": "fail"}
    assert len(gathered.clauses["TREE-011"].failures) == 1


def test_what_decides_no_clause_is_an_error_of_the_run(made_up):
    assert made_up.broken.errors == [
        "test_it.py cannot be collected: SyntaxError",
        "stray, which decides no clause: fail",
    ]


def test_an_interrupted_run_is_incomplete(made_up):
    report = reports.report(made_up.partial)
    assert report["incomplete"]
    assert report["clauses"][0]["outcome"] == "unfinished"
    assert report["clauses"][0]["tests"] == [
        {"name": "a", "outcome": "pass"},
        {"name": "b", "outcome": "unfinished"},
    ]


def test_the_failure_to_show_has_the_shortest_example(made_up):
    run = made_up.of(
        made_up.failed("a", example="n=1000"),
        made_up.failed("b", example="n=1"),
        made_up.failed("c", "error", example="n=100000"),
    )
    assert run.clauses["VAR-001"].failure["test"] == "c"
    run.clauses["VAR-001"].failures.pop()
    assert run.clauses["VAR-001"].failure["test"] == "b"


def test_json_replaces_a_file_whole(made_up, tmp_path):
    path = tmp_path / "report.json"
    path.write_text("before")
    reports.write_json(path, [made_up.mixed])
    assert json.loads(path.read_text()) == reports.report(made_up.mixed)
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_junit_counts_and_marks(made_up, tmp_path):
    path = tmp_path / "report.xml"
    reports.write_junit(path, [made_up.mixed, made_up.unloadable])
    mixed, unloadable = ElementTree.parse(path).getroot()
    assert {name: mixed.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in mixed}
    assert cases["b"].get("classname") == "VAR-001"
    assert cases["b"].find("failure").text == "line"
    assert cases["b"].find("failure").get("message") == "E\N{REPLACEMENT CHARACTER}[1m: no"
    assert cases["d"].find("skipped").get("message") == "the target lacks it"
    assert len(cases["a"]) == 0
    assert unloadable.get("errors") == "1"
