"""The command line: exit codes, reports, and what it says to wrong use."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from xml.etree import ElementTree

import jsonschema
import pytest

from nnx_conformance import reports
from nnx_conformance.cli import main
from nnx_spec import editions


@pytest.fixture
def run(monkeypatch, miniatures, small_spec):
    """Runs the small specification from the folder of the miniature targets."""
    monkeypatch.chdir(miniatures)
    return lambda *argv: main(["run", *argv, "--jobs", "1"], spec=small_spec)


class TestRun:
    def test_a_deviation(self, run, tmp_path, capsys):
        path = tmp_path / "report.json"
        assert run("namespaces:sharing", "-k", "GRF-011", "--json", str(path)) == 1
        report = json.loads(path.read_text())
        jsonschema.validate(report, reports.schema())
        assert [clause["id"] for clause in report["clauses"]] == ["GRF-011"]
        assert "GRF-011 fail on namespaces:sharing (MUST, documented)" in capsys.readouterr().out

    def test_several_targets_one_of_which_cannot_be_loaded(self, run, tmp_path, capsys):
        json_path, junit_path = tmp_path / "report.json", tmp_path / "report.xml"
        code = run(
            *("faithful", "unimportable", "faithful", "--chapter", "GRF"),
            *("--json", str(json_path), "--junit", str(junit_path)),
        )
        assert code == 3
        document = json.loads(json_path.read_text())
        jsonschema.validate(document, reports.schema())
        names = [report["target"]["name"] for report in document["reports"]]
        assert names == ["faithful", "unimportable"]
        assert [report["summary"]["exit_code"] for report in document["reports"]] == [0, 3]
        suites = ElementTree.parse(junit_path).getroot()
        assert [suite.get("name") for suite in suites] == names
        reason = "target 'unimportable' cannot be loaded: RuntimeError: no luck today\n"
        assert capsys.readouterr().err == reason

    def test_nothing_selected_is_nothing_run(self, run, capsys):
        assert run("faithful", "-k", "ECO-001") == 3
        assert "nothing ran" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "faithfull"], "there is no target or module 'faithfull'"),
        (["run", "flox"], "'flox'; did you mean flax"),
        (["run", "faithful", "-k", "GRF-11"], "there is no clause 'GRF-11'; did you mean GRF-01"),
        (["run", "faithful", "--chapter", "VRA"], "there is no chapter 'VRA'; did you mean VAR"),
        (["run", "faithful", "--profile", "smok"], "no profile 'smok'; did you mean smoke"),
        (["run", "faithful", "--feature", "hijaks=no"], "no feature 'hijaks'; did you mean hijax"),
        (["run", "faithful", "--feature", "hijax"], "no answer ''; there are yes, no"),
        (["run", "faithful", "--job", "2"], "no option '--job'; did you mean --jobs"),
        (["run", "faithful", "--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["run", "faithful", "--jobs", "x"], "invalid int value: 'x'"),
        (["run", "faithful", "--json", "/no/such/folder/x.json"], "x.json cannot be written"),
        (["rum"], "there is no command 'rum'; did you mean run"),
        ([], "arguments are required: COMMAND"),
        (["show", "GRF-1"], "there is no clause 'GRF-1'; did you mean GRF-0"),
        (["list", "--chapter", "FTL"], "there is no chapter 'FTL'; did you mean FLT"),
        (["faults", "everything-skip-array"], "did you mean everything-skips-arrays"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use(argv, said, capsys, monkeypatch, miniatures):
    monkeypatch.chdir(miniatures)
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_an_interrupted_run_reports_what_it_has(tmp_path, miniatures, small_spec):
    path = tmp_path / "report.json"
    code = (
        "import pathlib, sys; from nnx_conformance.cli import main;"
        "sys.exit(main(sys.argv[2:], spec=pathlib.Path(sys.argv[1])))"
    )
    argv = ["run", "endless", "--jobs", "1", "--json", str(path)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, str(small_spec), *argv],
        cwd=miniatures,
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if re.match(r"endless: +60%", line):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait() == 130
    assert "endless: interrupted after 8 of 12 tests" in rest
    report = json.loads(path.read_text())
    jsonschema.validate(report, reports.schema())
    assert report["incomplete"]
    outcomes = {clause["id"]: clause["outcome"] for clause in report["clauses"]}
    assert outcomes["VAR-001"] == "pass"
    assert outcomes["GRF-011"] == "unfinished"


def test_should_decides_if_strict(run, capsys):
    assert run("wrong", "-k", "VAR-002") == 0
    assert "VAR-002 fail on wrong (SHOULD, documented, sound; advice)" in capsys.readouterr().out
    assert run("wrong", "-k", "VAR-002", "--strict") == 1
    assert "advice" not in capsys.readouterr().out


class TestFeatures:
    @pytest.fixture(autouse=True)
    def _here(self, monkeypatch, miniatures):
        monkeypatch.chdir(miniatures)
        monkeypatch.syspath_prepend(miniatures)

    def test_a_table(self, capsys):
        assert main(["features", "partly", "--feature", "training=no"]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = {row[0]: row[1:4] for line in lines if len(row := line.split("│")) == 4}
        found = {name.strip(): [cell.strip() for cell in row[:2]] for name, row in rows.items()}
        assert found["graph-updates"] == ["no", "declared: no graph"]
        assert found["transforms.jit"] == ["yes", "declared"]
        assert found["transforms.scan"] == ["no", "declared: no transforms"]
        assert found["training"] == ["no", "given by the user"]
        assert found["sharding"] == ["yes", "taken for granted"]
        assert found["mutable-flag"] == ["yes", "probed"]

    def test_json(self, capsys):
        assert main(["features", "partly", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        (capture,) = [one for one in listed if one["feature"] == "capture"]
        assert (capture["has"], capture["how"]) == (False, "declared")
        assert capture["meaning"].endswith(".")

    @pytest.mark.parametrize("name", ["unimportable", "boastful"])
    def test_a_target_that_cannot_be_asked(self, name, capsys):
        assert main(["features", name]) == 3
        assert capsys.readouterr().err


class TestClauses:
    def test_list_as_json(self, capsys):
        assert main(["list", "--chapter", "FLT", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        expected = editions.chapters()["FLT"].levels
        assert [clause["id"] for clause in listed] == list(expected)
        assert listed[0]["level"] == "MUST"
        assert listed[0]["url"].startswith("https://")

    def test_list_as_a_table(self, capsys):
        assert main(["list", "-k", "FLT-001"]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FLT-")]
        assert len(rows) == 1

    def test_show(self, capsys):
        assert main(["show", "FLT-001", "VAR-001"]) == 0
        shown = capsys.readouterr().out
        assert re.search(r"FLT-001 \(MUST, (\w+, )?since edition 1\)", shown)
        assert re.search(r"  source  \S+ \(https://", shown)
        assert "everything-skips-arrays" in shown
        assert "nnx_spec.chapters.variables.test_" in shown

    def test_the_faults_are_listed(self, capsys):
        assert main(["faults", "--list", "everything-skips-arrays"]) == 0
        listed = capsys.readouterr().out
        assert listed.startswith("everything-skips-arrays: ")
        assert listed.endswith("Breaks FLT-001.\n")
