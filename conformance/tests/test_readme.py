"""The README's example of a target of one's own does what the README says."""

import json
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return block


def test_the_target_has_about_ten_lines():
    assert len(example().splitlines()) <= 10


def test_its_fault_is_caught_and_named(tmp_path):
    (tmp_path / "my_nnx.py").write_text(example())
    command = ["run", "my_nnx", "-k", "GRF-011", "-k", "GRF-013", "--profile", "smoke"]
    done = subprocess.run(
        [sys.executable, "-m", "nnx_conformance.cli", *command, "--json", "report.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "GRF-011" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    outcomes = {clause["id"]: clause["outcome"] for clause in report["clauses"]}
    assert outcomes == {"GRF-011": "fail", "GRF-013": "pass"}
