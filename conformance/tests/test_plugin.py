"""The plugin in a plain pytest session."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def session(pytester, monkeypatch, miniatures, small_spec):
    """Runs pytest on the small specification, in a process of its own, in another folder."""
    monkeypatch.setenv("PYTHONPATH", str(miniatures))
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib")

    def run(*argv):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *argv, str(small_spec))

    return run


def test_the_header_names_target_versions_and_features(session):
    result = session("--nnx-target", "lacking", "--nnx-profile", "smoke", "-k", "optional")
    result.assert_outcomes(passed=1, deselected=11)
    result.stdout.re_match_lines(
        [r"nnx target: lacking \(no version\) with jax .*, jaxlib .*; features: hijax$"]
    )


def test_selection_features_and_workers(session):
    result = session(
        *("--nnx-target", "faithful", "--nnx-select", "VAR-001,VAR-003"),
        *("--nnx-features", "hijax.ref=no", "-n", "1"),
    )
    result.assert_outcomes(passed=3, skipped=1)


def test_a_target_that_cannot_be_loaded_ends_the_session(session):
    result = session("--nnx-target", "unimportable", "-q")
    assert result.ret == 3
    result.stdout.fnmatch_lines(["*'unimportable' cannot be loaded: RuntimeError: no luck today*"])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "*these tests need a target: give --nnx-target*"),
        (["--nnx-target", "faithful", "--nnx-profile", "smok"], "*did you mean smoke*"),
        (["--nnx-target", "faithful", "--nnx-fault", "no-such-fault"], "*there is no fault*"),
    ],
    ids=["no-target", "profile", "fault"],
)
def test_wrong_use(session, argv, said):
    result = session(*argv)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_the_plugin_imports_neither_jax_nor_the_specification():
    code = (
        "import sys, nnx_conformance.plugin;"
        "print(sorted({'jax', 'nnx_spec', 'hypothesis', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
