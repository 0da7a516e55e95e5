"""Fixtures: what a test of the specification is given."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nnx_conformance.session import SESSION
from nnx_conformance.targets import Target


@pytest.fixture(scope="session")
def nnx(pytestconfig: pytest.Config) -> Target:
    """The target: a namespace with the NNX names, and its error classes under `errors`."""
    session: Any = pytestconfig.pluginmanager.get_plugin(SESSION)
    opened: Target = session.open()
    return opened


@pytest.fixture
def run_in_new_process(pytestconfig: pytest.Config) -> Callable[..., str]:
    """Runs code in a new process in which `nnx` is the same target, and returns what it prints."""
    name, fault = pytestconfig.getoption("--nnx-target"), pytestconfig.getoption("--nnx-fault")
    prelude = (
        "import pytest\n"
        "from nnx_conformance.session import open_target\n"
        f"nnx = open_target({name!r}, {fault!r}, pytest.MonkeyPatch())\n"
    )

    def run(code: str, env: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-c", prelude + textwrap.dedent(code)],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
