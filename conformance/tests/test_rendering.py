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
        "VAR-002 fail on made-up (MAY, tested; advice)\n"
        "  It is so.\n"
        "  source: tests/nnx/a_test.py (https://example.org)\n"
        "  1 of 1 test, such as c\n"
        "    n=1\n"
    ) in text


def test_a_failure_stands_on_what_the_tests_that_failed_do(made_up, out):
    rendering.show([made_up.mixed], {}, out)
    assert (
        "VAR-001 fail on made-up (MUST, sound)\n"
        "  It is so.\n"
        "  source: a write is lost\n"
        "  1 of 2 tests, such as b\n"
    ) in shown(out)


def test_large_numbers_are_grouped(made_up, out):
    events = [made_up.failed(f"test {n}") for n in range(1057)]
    rendering.show([made_up.of(*events)], {}, out)
    assert "1,057 of 1,057 tests, such as test 0" in shown(out)
    assert "made-up: 1,057 tests in 0.0 s, 1 clause deviating" in shown(out)


def test_what_fails_is_counted_by_level_and_basis(made_up, out):
    rendering.show([made_up.mixed, made_up.broken], {}, out)
    rows = [line.split("│") for line in shown(out).splitlines() if "│ tested" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["MUST", "tested", "1 of 2", "1 of 1"],
        ["MAY", "tested", "1 of 1", "0 of 0"],
    ]


def test_views_are_shown_apart(gathered, out):
    rendering.show([gathered], {}, out)
    assert "views of made-up: TREE-011 1 of 2 clauses fail\n" in shown(out)
    assert "TREE-011 fail" not in shown(out)
    assert "made-up: 3 tests in 0.0 s, 1 clause deviating" in shown(out)


def test_advice_is_no_deviation(made_up, out):
    rendering.show([made_up.of(made_up.failed("a"), level="SHOULD")], {}, out)
    assert "1 test in 0.0 s, no clause deviating, 1 clause giving advice" in shown(out)


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
        "made-up: 100%, 4 of 4 tests, 1 clause deviating, 1 clause giving advice",
    ]


def test_a_terminal_gets_a_bar(made_up):
    out = Console(file=io.StringIO(), force_terminal=True, width=120)
    with rendering.progress("made-up", out) as watch:
        watch(made_up.partial)
    assert "1/2" in shown(out)
