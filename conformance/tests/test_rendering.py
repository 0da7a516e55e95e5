"""What people see of a run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from nnx_conformance import rendering


@pytest.fixture
def out():
    return Console(file=io.StringIO(), width=200, markup=False, highlight=False)


def shown(out):
    return out.file.getvalue()


def test_targets_stand_side_by_side(made_up, out):
    rendering.show(
        [made_up.mixed, made_up.broken], {"VAR": "Variables", "GRF": "Functional API"}, out
    )
    rows = [line.split("│") for line in shown(out).splitlines() if "│" in line]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert cells["VAR"] == ["Variables", "2 fail", "1 error"]
    assert cells["GRF"] == ["Functional API", "1 unsupported", ""]
    assert cells["all"] == ["", "1 unsupported, 2 fail", "1 error"]


def test_a_failure_has_rule_example_and_error(made_up, out):
    rendering.show([made_up.mixed], {}, out)
    text = shown(out)
    assert (
        "VAR-002 fail on made-up (MAY)\n  It is so.\n  1 of 1 tests, such as c\n    n=1\n" in text
    )


def test_it_says_what_ran_on_what(made_up, out):
    rendering.show([made_up.mixed], {}, out)
    assert "made-up (no version) with jax 0.10.2" in shown(out)
    assert "features: hijax" in shown(out)


def test_errors_outside_of_clauses_are_shown(made_up, out):
    rendering.show([made_up.broken], {}, out)
    assert "made-up: error: test_it.py cannot be collected: SyntaxError" in shown(out)


def test_an_interrupted_run_says_how_far_it_came(made_up, out):
    rendering.show([made_up.partial], {}, out)
    assert "made-up: interrupted after 1 of 2 tests" in shown(out)


def test_a_target_that_cannot_be_loaded_is_one_line_of_complaint(made_up, out, capsys):
    rendering.show([made_up.unloadable], {}, out)
    assert shown(out) == ""
    assert capsys.readouterr().err == "target 'x' cannot be loaded: no\n"


def test_a_log_gets_a_line_for_each_tenth(made_up, out):
    with rendering.progress("made-up", out) as watch:
        watch(made_up.partial)
        watch(made_up.partial)
        watch(made_up.mixed)
    assert shown(out).splitlines() == [
        "made-up:  50%, 1 of 2 tests",
        "made-up: 100%, 4 of 4 tests, 1 clause deviating",
    ]


def test_a_terminal_gets_a_bar(made_up):
    out = Console(file=io.StringIO(), force_terminal=True, width=120)
    with rendering.progress("made-up", out) as watch:
        watch(made_up.partial)
    assert "1/2" in shown(out)
