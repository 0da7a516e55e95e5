"""The proofs: what they complain of, and that a fault is gone when its trial is over."""

from __future__ import annotations

import dataclasses

import pytest

import nnx_spec
from nnx_conformance import faults, proofs
from nnx_conformance.outcomes import Outcome
from nnx_conformance.proofs import Finding, Trial

FAULT = "everything-skips-arrays"


def trial(fault, id="VAR-001", test="somewhere"):
    return Trial(fault, {id: test}, "reference")


@pytest.mark.parametrize(
    ("finding", "complaints"),
    [
        (Finding(trial("f"), {"VAR-001": Outcome.FAIL}), []),
        (Finding(trial("f"), {"VAR-001": Outcome.UNSUPPORTED}), []),
        (
            Finding(trial("f"), {"VAR-001": Outcome.ERROR}),
            ["f does not break VAR-001 (error)"],
        ),
        (Finding(trial("f", test=None), {}), ["f: VAR-001 has no tests"]),
        (Finding(trial("f"), {}, "it broke"), ["f: it broke"]),
        (Finding(trial(None), {"VAR-001": Outcome.PASS}), []),
        (
            Finding(trial(None), {"VAR-001": Outcome.FAIL}),
            ["VAR-001 does not hold without a fault either (fail)"],
        ),
    ],
)
def test_complaints(finding, complaints):
    assert list(finding.complaints()) == complaints


def test_the_healthy_trials_come_first_and_cover_every_named_clause():
    known = faults.load()
    trials = proofs.plan(known, "reference")
    healthy = [trial for trial in trials if trial.fault is None]
    assert trials[: len(healthy)] == healthy
    assert [trial.fault for trial in trials[len(healthy) :]] == list(known)
    covered = [id for trial in healthy for id in trial.tests]
    own = {id for id, clause in nnx_spec.load().items() if clause.gathers is None}
    named = {id for fault in known.values() for id in fault.breaks}
    assert sorted(covered) == sorted(named & own)


def test_a_clause_that_gathers_is_tried_on_the_tests_of_what_else_breaks():
    *_, planted = proofs.plan(["vmap-in-tree-mode-works-on-copies"], "reference")
    assert planted.tests["TREE-011"] == planted.tests["TRX-003"] != []


def test_a_trial_without_tests_runs_nothing():
    assert proofs.attempt(trial("f", test=None)).outcomes == {}


def test_a_fault_is_gone_when_its_trial_is_over():
    healthy, planted = proofs.plan([FAULT], "reference")
    findings = list(proofs.run_trials([planted, healthy, planted], jobs=1))
    assert [finding.trouble for finding in findings] == [None] * 3
    assert [finding.outcomes["FLT-001"] for finding in findings] == [
        Outcome.FAIL,
        Outcome.PASS,
        Outcome.FAIL,
    ]


def test_what_breaks_the_session_is_reported():
    (_, planted) = proofs.plan([FAULT], "reference")
    astray = dataclasses.replace(planted, target="no.such.target")
    (finding,) = proofs.run_trials([astray], jobs=1)
    assert "status 3" in finding.trouble
    assert "'no.such.target' cannot be loaded" in finding.trouble


MUTE = """
from nnx_spec import DOCUMENTED, MUST, clause

@clause("VAR-001", MUST, DOCUMENTED, source="nnx_basics")
def test_mute(nnx):
    \"\"\"A rule of which nothing is told.\"\"\"
    assert False
"""


def test_failures_that_tell_nothing_are_noted(tmp_path):
    spec = tmp_path / "test_mute.py"
    spec.write_text(MUTE)
    (finding,) = proofs.run_trials([Trial(None, {"VAR-001": [str(spec)]}, "reference")], jobs=1)
    assert finding.outcomes == {"VAR-001": Outcome.FAIL}
    (mute,) = finding.mute
    assert mute.partition("::")[2] == "test_mute says only 'assert False'"


def test_what_a_few_examples_leave_whole_is_tried_again_on_more(monkeypatch):
    first = Trial("f", {"VAR-001": "one", "VAR-002": "two"}, "reference")
    tried = []

    def run_trials(trials, jobs):
        tried.extend(trials)
        for trial in trials:
            broken = {"VAR-001": Outcome.FAIL, "VAR-002": Outcome.PASS}
            if trial.profile == "default":
                broken = {"VAR-002": Outcome.FAIL}
            yield Finding(trial, {id: broken[id] for id in trial.tests})

    monkeypatch.setattr(proofs, "run_trials", run_trials)
    (finding,) = proofs.try_all([first], jobs=1)
    assert finding == Finding(first, {"VAR-001": Outcome.FAIL, "VAR-002": Outcome.FAIL})
    assert tried == [first, Trial("f", {"VAR-002": "two"}, "reference", "default")]
