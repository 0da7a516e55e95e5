"""Runs of a miniature specification on miniature targets: what each clause comes out as."""

from __future__ import annotations

import shutil

import pytest

from nnx_conformance import reports, running
from nnx_conformance.outcomes import Outcome


def outcomes(results):
    return {id: clause.outcome.value for id, clause in results.clauses.items()}


ALL_PASS = dict.fromkeys(
    ["GRF-011", "GRF-012", "VAR-001", "VAR-002", "VAR-003", "VAR-004", "VAR-005"], "pass"
)


def test_a_faithful_target_passes(results_of):
    results = results_of("faithful")
    assert outcomes(results) == ALL_PASS
    assert (results.total, results.done, results.finished) == (12, 12, True)
    assert results.exit_code == 0


def test_the_description_says_what_ran_on_what(results_of):
    import jax

    description = results_of("faithful").description
    assert description["target"]["name"] == "faithful"
    assert description["target"]["version"] == "1.2.3"
    assert description["environment"]["jax"] == jax.__version__
    assert description["environment"]["devices"] >= 1


def test_a_wrong_target_fails_and_each_failure_tells_its_reason(results_of):
    results = results_of("wrong")
    assert outcomes(results) == {
        "GRF-011": "fail",
        "GRF-012": "error",
        "VAR-001": "pass",
        "VAR-002": "fail",
        "VAR-003": "fail",
        "VAR-004": "fail",
        "VAR-005": "error",
    }
    assert results.exit_code == 1
    assert [clause.id for clause in results.deviations] == [
        "GRF-011",
        "GRF-012",
        "VAR-003",
        "VAR-005",
    ]
    assert [clause.id for clause in results.advice] == ["VAR-002", "VAR-004"]
    assert results.clauses["VAR-003"].failure["error"].startswith("NotImplementedError: references")
    assert results.clauses["VAR-005"].failure["phase"] == "setup"


def test_hypothesis_trouble_unknown_names_and_skips_are_errors(results_of):
    clause = results_of("wrong").clauses["GRF-012"]
    errors = {failure["test"].rpartition("::")[2]: failure["error"] for failure in clause.failures}
    assert set(clause.tests.values()) == {Outcome.ERROR}
    assert "FailedHealthCheck" in errors["test_unsatisfiable"]
    assert "undefined_name" in errors["test_unknown_name"]
    assert errors["test_skipped"] == "Skipped: no reason"


def test_a_property_reports_its_smallest_failing_example(results_of):
    clause = results_of("wrong").clauses["VAR-002"]
    examples = {
        failure["test"].rpartition("::")[2]: failure["example"] for failure in clause.failures
    }
    assert "n=101," in examples["test_is_the_sum"]
    assert "nnx=" not in examples["test_is_the_sum"]
    assert examples["test_large"] is None


def test_smoke_tries_one_case_of_a_parametrised_test(results_of):
    failures = results_of("lacking", profile="smoke").clauses["VAR-001"].failures
    assert [failure["example"] for failure in failures] == ["1"]


def test_a_parametrised_test_reports_its_parameters(results_of):
    failures = results_of("lacking").clauses["VAR-001"].failures
    assert [failure["example"] for failure in failures] == ["0", "1", "12"]


def test_a_missing_name_is_a_failure_and_an_undeclared_feature_unsupported(results_of):
    results = results_of("lacking")
    assert outcomes(results) == {
        "GRF-011": "fail",
        "GRF-012": "pass",
        "VAR-001": "fail",
        "VAR-002": "fail",
        "VAR-003": "unsupported",
        "VAR-004": "pass",
        "VAR-005": "fail",
    }
    assert results.clauses["VAR-003"].reason == "the target lacks hijax.ref"
    assert "'lacking' has no name 'clone'" in results.clauses["GRF-011"].failure["error"]


def test_what_is_denied_is_unsupported_and_what_is_missing_besides_fails(results_of):
    results = results_of("partly", partial=True)
    assert outcomes(results) == {
        "CAP-001": "unsupported",
        "GRF-011": "fail",
        "TRX-001": "unsupported",
        "TRX-002": "fail",
    }
    reasons = {id: clause.reason for id, clause in results.clauses.items()}
    assert reasons["CAP-001"] == "the target lacks capture"
    cases = results.clauses["TRX-001"].tests
    assert {name.partition("[")[2]: outcome.value for name, outcome in cases.items()} == {
        "scan]": "unsupported",
        "graph-updates]": "unsupported",
        "jit]": "pass",
        "uses-scan]": "unsupported",
    }


def test_what_it_and_its_tests_stand_on_is_known_of_a_clause(results_of):
    clauses = results_of("wrong").clauses
    assert (clauses["VAR-001"].basis, clauses["VAR-001"].source) == ("documented", "nnx_basics")
    assert clauses["VAR-001"].url.endswith("nnx_basics.html")
    own = {name.rpartition("::")[2]: on for name, on in clauses["VAR-002"].grounds.items()}
    assert own == {"test_large": {"basis": "sound", "source": "a number is lost", "url": None}}


def test_a_crash_costs_the_test_that_crashed(results_of):
    results = results_of("crashing", jobs=2)
    assert outcomes(results) == {**ALL_PASS, "GRF-011": "error"}
    assert results.finished
    assert "interpreter died" in results.clauses["GRF-011"].failure["error"]


def test_noise_on_import_changes_nothing(results_of):
    assert outcomes(results_of("noisy")) == ALL_PASS


def test_an_object_in_a_module_is_a_target(results_of):
    results = results_of("namespaces:sharing")
    assert outcomes(results) == {**ALL_PASS, "GRF-011": "fail"}
    assert results.clauses["GRF-011"].rule == "`clone` shares nothing with the original."


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("unimportable", "target 'unimportable' cannot be loaded: RuntimeError: no luck today"),
        ("leaving", "target 'leaving' cannot be loaded: SystemExit: bye"),
        ("deadly", "target 'deadly' cannot be loaded: the interpreter died of it"),
        ("boastful", "target 'boastful' cannot run: hijaks: no such feature; there are"),
    ],
)
def test_a_target_that_cannot_be_loaded(results_of, name, reason):
    results = results_of(name)
    assert results.unloadable.startswith(reason)
    assert "\n" not in results.unloadable
    assert results.exit_code == 3


def test_selection_runs_the_union_of_clauses_and_chapters(results_of):
    assert list(results_of("wrong", select=("GRF", "VAR-001")).clauses) == [
        "GRF-011",
        "GRF-012",
        "VAR-001",
    ]


def test_the_same_run_twice_gives_the_same_report(results_of):
    first, second = results_of("wrong"), results_of("wrong", jobs=2)
    one, two = reports.report(first), reports.report(second)
    del one["summary"]["seconds"], two["summary"]["seconds"]
    for clause in (*one["clauses"], *two["clauses"]):
        clause["failures"].sort(key=lambda failure: failure["test"])
    assert one == two


def test_a_module_that_cannot_be_collected_costs_its_clauses(
    monkeypatch, tmp_path, miniatures, small_spec
):
    monkeypatch.chdir(miniatures)
    spec = shutil.copytree(small_spec, tmp_path / "small_spec")
    (spec / "test_broken.py").write_text("import no_such_module")
    options = running.Options(spec=spec, profile="smoke", select=("VAR-001",))
    results = running.run("faithful", options, lambda results: None)
    assert outcomes(results) == {"VAR-001": "pass"}
    (error,) = results.errors
    assert error.startswith("small_spec/test_broken.py cannot be collected: ")
    assert "no_such_module" in error
    assert results.exit_code == 1


def test_a_configuration_of_the_users_own_changes_nothing(
    monkeypatch, tmp_path, miniatures, small_spec
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(miniatures))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_functions = nothing")
    (tmp_path / "conftest.py").write_text("raise RuntimeError")
    options = running.Options(spec=small_spec, profile="smoke", select=("VAR-001",))
    results = running.run("faithful", options, lambda results: None)
    assert (outcomes(results), results.errors) == ({"VAR-001": "pass"}, [])
