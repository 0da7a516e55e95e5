"""The command `perf run`: the table, the file it keeps, and its exit codes."""

import json
import subprocess
import sys

import pytest

TARGET = '''
"""A target whose Modules are dicts, for want of anything better; its clone fails."""
from types import SimpleNamespace


import jax


class Module(dict):
    def __init_subclass__(cls):
        jax.tree_util.register_pytree_node(
            cls,
            lambda module: (tuple(module.values()), tuple(module)),
            lambda names, values: SimpleNamespace(**dict(zip(names, values))),
        )

    def __setattr__(self, name, value):
        self[name] = value


List = list
Param = Variable = lambda value: value
split = lambda module: jax.tree.flatten(module)[::-1]
merge = jax.tree.unflatten
state = dict
update = dict.update


def clone(module):
    raise RuntimeError("no clones")
'''


def perf(*arguments, cwd):
    program = "import sys; from nnx_conformance.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, "perf", "run", *arguments],
        cwd=cwd,
        env={"PATH": "", "PYTHONPATH": str(cwd), "COLUMNS": "120", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perf")
    (folder / "small_target.py").write_text(TARGET)
    options = ["--rounds", "2", "--size", "9", "--json", "kept.json"]
    done = perf("reference", "small_target", *options, cwd=folder)
    return done, json.loads((folder / "kept.json").read_text())


OPERATIONS = ["flatten", "split", "split+flatten", "merge", "state", "update", "clone"]


def test_the_table_has_a_line_for_each_operation(measured):
    done, _ = measured
    lines = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
    assert [line[:2] for line in cells] == [[name, "9"] for name in OPERATIONS]
    assert all(line[3].endswith("]") for line in cells)
    assert [line[5] == "failed" for line in cells] == [name == "clone" for name in OPERATIONS]


def test_the_file_keeps_samples_ratios_and_counts(measured):
    _, stored = measured
    kept = {entry["extra_info"]["operation"]: entry["extra_info"] for entry in stored["benchmarks"]}
    assert list(kept) == OPERATIONS
    for name, info in kept.items():
        contestants = {"floor", "reference"} | ({"small_target"} if name != "clone" else set())
        for figures in ("seconds", "repeats", "python_calls"):
            assert set(info[figures]) == contestants, figures
        assert all(len(samples) == 2 for samples in info["seconds"].values())
        assert set(info["ratios"]) == contestants - {"floor"}
        pairs = zip(info["seconds"]["reference"], info["seconds"]["floor"], strict=True)
        low, high = sorted(seconds / floor for seconds, floor in pairs)
        assert info["ratios"]["reference"]["median"] == pytest.approx((low + high) / 2)
        assert info["size"] == 9


def test_the_file_names_what_decides_the_figures(measured):
    _, stored = measured
    assert set(stored["machine_info"]["jax"]) >= {"jax", "jaxlib", "platform", "device_kind"}
    assert set(stored["machine_info"]["targets"]) == {"reference", "small_target"}


def test_a_target_that_fails_is_named_and_the_rest_is_measured(measured):
    done, stored = measured
    assert done.returncode == 1
    assert "small_target: clone of 9 Variables: RuntimeError: no clones" in done.stdout
    errors = [entry["extra_info"]["errors"] for entry in stored["benchmarks"]]
    assert errors == [{}] * 6 + [{"small_target": "RuntimeError: no clones"}]


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["refrence"], 3, "'refrence'"),
        (["broken_target"], 3, "broken on purpose"),
        (["--suite", "functonal"], 2, "functional"),
        (["--size", "10"], 2, "9, 65, 257, 1025"),
        (["--rounds", "0"], 2, "--rounds"),
        (["--json", "nowhere/kept.json"], 2, "nowhere"),
    ],
    ids=["target", "import", "suite", "size", "rounds", "json"],
)
def test_wrong_use_is_one_line(tmp_path, arguments, code, named):
    (tmp_path / "broken_target.py").write_text("raise RuntimeError('broken on purpose')")
    done = perf(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert named in done.stderr
