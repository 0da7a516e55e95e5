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
        lambda report: report.update(schema="nnx-conformance/report/1"),
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


@pytest.mark.parametrize(
    ("level", "strict", "code"),
    [
        ("MUST", False, 1),
        ("SHOULD", False, 0),
        ("SHOULD", True, 1),
        ("MAY", False, 0),
        ("MAY", True, 0),
    ],
)
def test_a_must_decides_and_the_rest_is_advice(made_up, level, strict, code):
    run = made_up.of(made_up.failed("a"), level=level)
    run.strict = strict
    assert run.clauses["VAR-001"].outcome is Outcome.FAIL
    assert run.exit_code == code
    figures = reports.report(run)["summary"]
    assert (figures["deviations"], figures["advice"]) == (code, 1 - code)
    assert reports.report(run)["strict"] is strict


def test_clauses_are_counted_by_level_and_basis(made_up):
    standing = reports.report(made_up.mixed)["summary"]["standing"]
    rows = {(row["level"], row["basis"]): row for row in standing}
    assert list(rows) == [("MUST", "tested"), ("MAY", "tested")]
    assert (rows["MUST", "tested"]["fail"], rows["MUST", "tested"]["unsupported"]) == (1, 1)


def test_a_clause_says_what_it_and_its_tests_stand_on(made_up):
    clause = reports.report(made_up.mixed)["clauses"][0]
    assert (clause["basis"], clause["source"]) == ("tested", "tests/nnx/a_test.py")
    assert clause["broken"] == 1
    assert clause["tests"] == [
        {"name": "a", "outcome": "pass"},
        {
            "name": "b",
            "outcome": "fail",
            "basis": "sound",
            "source": "a write is lost",
            "url": None,
        },
    ]


def test_a_broken_may_clause_is_an_error_all_the_same(made_up):
    assert made_up.of(made_up.failed("a", "error"), level="MAY").exit_code == 1


def test_nothing_run_is_not_a_success(made_up):
    assert made_up.of().exit_code == 3


def test_a_teardown_that_breaks_is_not_hidden_by_the_pass_before(made_up):
    assert made_up.broken.clauses["VAR-001"].outcome is Outcome.ERROR


def test_a_view_is_shown_and_not_counted(validator, gathered, tmp_path):
    assert (gathered.total, gathered.done) == (3, 3)
    assert [clause.id for clause in gathered.deviations] == ["TRX-001"]
    report = reports.report(gathered)
    validator.validate(report)
    assert [clause["id"] for clause in report["clauses"]] == ["TRX-001", "TRX-002"]
    assert report["summary"]["clauses"] == 2
    (view,) = report["views"]
    assert (view["id"], view["clauses"], view["failing"]) == ("TREE-011", 2, ["TRX-001"])
    assert (view["tests"], view["broken"]) == (2, 1)
    reports.write_junit(tmp_path / "report.xml", [gathered])
    (suite,) = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert [case.get("classname") for case in suite] == ["TRX-001", "TRX-001", "TRX-002"]


def test_what_decides_no_clause_is_an_error_of_the_run(made_up):
    assert made_up.broken.errors == [
        "test_it.py cannot be collected: SyntaxError",
        "stray, which decides no clause: fail",
    ]


def test_an_interrupted_run_is_incomplete(made_up):
    report = reports.report(made_up.partial)
    assert report["incomplete"]
    assert report["clauses"][0]["outcome"] == "unfinished"
    outcomes = {test["name"]: test["outcome"] for test in report["clauses"][0]["tests"]}
    assert outcomes == {"a": "pass", "b": "unfinished"}


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
