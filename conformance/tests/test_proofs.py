"""The proofs: what they complain of, and that a fault is gone when its trial is over."""

from __future__ import annotations

import pytest

from nnx_conformance import faults, proofs
from nnx_conformance.outcomes import Outcome
from nnx_conformance.proofs import Finding, Trial

FAULT = "everything-skips-arrays"


def trial(fault, *ids):
    return Trial(fault, ids, ("somewhere",), "reference")


@pytest.mark.parametrize(
    ("finding", "complaints"),
    [
        (Finding(trial("f", "VAR-001"), {"VAR-001": Outcome.FAIL}), []),
        (Finding(trial("f", "VAR-001"), {"VAR-001": Outcome.UNSUPPORTED}), []),
        (
            Finding(
                trial("f", "VAR-001", "VAR-002"),
                {"VAR-001": Outcome.PASS, "VAR-002": Outcome.ERROR},
            ),
            ["f does not break VAR-001 (pass)", "f does not break VAR-002 (error)"],
        ),
        (Finding(trial("f", "VAR-001"), {}), ["VAR-001 has no tests"]),
        (Finding(trial("f", "VAR-001"), {}, "it broke"), ["f: it broke"]),
        (Finding(trial(None, "VAR-001"), {"VAR-001": Outcome.PASS}), []),
        (
            Finding(trial(None, "VAR-001"), {"VAR-001": Outcome.FAIL}),
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
    covered = [id for trial in healthy for id in trial.clauses]
    assert sorted(covered) == sorted({id for fault in known.values() for id in fault.breaks})


def test_a_trial_without_tests_runs_nothing():
    assert proofs.attempt(Trial("f", ("VAR-001",), (), "reference")).outcomes == {}


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
    astray = Trial(planted.fault, planted.clauses, planted.tests, "no.such.target")
    (finding,) = proofs.run_trials([astray], jobs=1)
    assert "status 3" in finding.trouble
    assert "'no.such.target' cannot be loaded" in finding.trouble
