"""The second witness on a miniature of Flax: what runs, what counts, and what comes out."""

from __future__ import annotations

import json
import os
import textwrap
from types import SimpleNamespace

import pytest

from nnx_conformance.cli import main
from nnx_conformance.upstream import baseline, distribution, documents, reading, scope

TESTS = """
    import unittest

    import absent
    from flax import nnx
    from flax.nnx import halve
    from flax.nnx.inner import thing


    class TestFirst(unittest.TestCase):
        def test_same(self):
            self.assertEqual(nnx.double(2), 4)

        def test_wrong(self):
            self.assertEqual(nnx.total([1, 2]), 3)

        def test_missing(self):
            self.assertEqual(nnx.halve(4), 2)

        def test_missing_at_the_top(self):
            self.assertEqual(halve(4), 2)

        def test_hidden(self):
            try:
                nnx.halve(4)
            except AttributeError:
                pass

        def test_not_even_flax(self):
            self.assertEqual(nnx.double(2), 5)

        def test_absent(self):
            absent.use()

        @nnx.decorate(fast=True)
        def test_decorated(self):
            pass

        @nnx.switch(True)
        def test_switched(self):
            pass

        def test_beyond(self):
            self.assertEqual(nnx.double(3), 6)


    class Inherits(nnx.Box, option=1):
        x: nnx.Unknown[int] | None = None


    class TestSecond(unittest.TestCase):
        def test_of_a_wider_scope(self):
            Inherits(3)
"""

SLOW = """
    from flax import nnx

    def test_hangs():
        assert nnx.steps(3) == 3

    def test_dies():
        assert nnx.steps(4) == 4

    def test_goes_on():
        assert nnx.steps(5) == 5
"""

GUIDE = """
    # A guide

    ```{code-cell}
    from flax import nnx
    loss = nnx.double(1.5)
    print("loss", loss)
    ```

    ```{code-cell}
    print("total", nnx.total([1, 2]), "of", nnx.Box(1))
    ```

    ```{code-cell}
    half = nnx.halve(4)
    ```

    ```{code-cell}
    print(half)
    ```

    ```{code-cell}
    :tags: [raises-exception]
    nnx.total(None)
    ```

    ```{code-cell}
    :tags: [skip-execution]
    nnx.nothing()
    ```

    ```{code-cell}
    undefined_on_flax_too
    ```

    ```{code-cell}
    import random
    print("luck", id(object()), random.SystemRandom().random())
    nnx.double(loss)
    ```
"""

EXAMPLE = """
    from flax import nnx
    print(nnx.double(4))
"""

SCOPES = {
    "core": ["first_test.py", "slow_test.py"],
    "tests": [
        {
            "file": "first_test.py",
            "scope": "extended",
            "reason": "not asked for",
            "names": ["TestSecond::*"],
        }
    ],
}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


@pytest.fixture
def upstream(monkeypatch, tmp_path, miniatures, capsys):
    """Runs the command on a miniature of Flax, and gives exit code, report and output."""
    monkeypatch.chdir(miniatures)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(baseline, "ORIGINAL", "nnx_original")
    monkeypatch.setattr(scope, "load", lambda: scope.read(SCOPES))
    source = tmp_path / "source"
    (source / "tests" / "nnx").mkdir(parents=True)

    def run(*argv, target="nnx_other"):
        report = tmp_path / "report.json"
        given = ["upstream", target, "--source", str(source), "--release", "1.2"]
        code = main([*given, "--jobs", "1", "--json", str(report), *argv])
        document = json.loads(report.read_text())
        cases = {case["id"].rpartition("::")[2]: case for case in document["cases"]}
        outcomes = {id: case["outcome"] for id, case in cases.items()}
        return SimpleNamespace(
            code=code, report=document, cases=cases, outcomes=outcomes, **_read(capsys)
        )

    run.source = source
    return run


def _read(capsys):
    captured = capsys.readouterr()
    return {"out": captured.out, "err": captured.err}


class TestTests:
    @pytest.fixture
    def ran(self, upstream):
        write(upstream.source / "tests/nnx/first_test.py", TESTS.replace("import absent", ""))
        return upstream("--only", "tests")

    def test_only_what_flax_passes_counts(self, ran):
        assert "test_not_even_flax" not in ran.outcomes
        assert "test_absent" not in ran.outcomes
        assert "test_of_a_wider_scope" not in ran.outcomes

    def test_what_the_target_does_decides(self, ran):
        assert ran.outcomes == {
            "test_same": "passed",
            "test_wrong": "failed",
            "test_missing": "failed",
            "test_missing_at_the_top": "failed",
            "test_hidden": "failed",
            "test_decorated": "failed",
            "test_switched": "failed",
            "test_beyond": "passed",
        }
        assert ran.code == 1

    def test_names_that_are_missing_are_told(self, ran):
        assert ran.report["missing"] == {"nnx.halve": 3, "nnx.decorate": 1, "nnx.switch": 1}
        assert ran.report["messages"] == {"AssertionError: 4 != 3": 1}
        assert "    3  nnx.halve" in ran.out

    def test_the_error_of_a_missing_name_is_no_way_to_pass(self, ran):
        assert "caught the error for nnx.halve" in ran.cases["test_hidden"]["message"]

    def test_it_says_how_many(self, ran):
        assert "nnx_other: 2 of 8 tests as on Flax (25.0%)" in ran.out
        assert ran.report["files"]["first_test.py"] == {
            "counted": 8,
            "passed": 2,
            "failed": 6,
            "missing": ["nnx.decorate", "nnx.halve", "nnx.switch"],
        }


def test_a_dependency_that_is_not_installed_costs_only_what_uses_it(upstream):
    write(upstream.source / "tests/nnx/first_test.py", TESTS)
    ran = upstream("--only", "tests", "-k", "test_same", "-k", "test_absent", target="nnx_original")
    assert (ran.code, ran.outcomes) == (0, {"test_same": "passed"})


def test_what_is_not_nnx_comes_from_flax(upstream):
    text = "from flax.training import train_state\ndef test_it(): assert train_state.TrainState\n"
    write(upstream.source / "tests/nnx/first_test.py", text)
    assert upstream("--only", "tests").outcomes == {"test_it": "passed"}


def test_a_wider_scope_has_more(upstream):
    write(upstream.source / "tests/nnx/first_test.py", TESTS)
    ran = upstream("--only", "tests", "--scope", "extended", "-k", "Second", target="nnx_original")
    assert ran.outcomes == {"test_of_a_wider_scope": "passed"}


def test_what_hangs_or_dies_costs_itself(upstream):
    write(upstream.source / "tests/nnx/slow_test.py", SLOW)
    ran = upstream("--only", "tests", "--timeout", "2")
    assert ran.outcomes == {"test_hangs": "failed", "test_dies": "failed", "test_goes_on": "passed"}
    assert "took longer than 2 s" in ran.cases["test_hangs"]["message"]
    assert "crashed" in ran.cases["test_dies"]["message"]


def test_a_file_that_cannot_be_imported_costs_its_tests(upstream):
    text = "from flax import nnx\nassert nnx.total([1]) == 1\ndef test_it(): pass\n"
    write(upstream.source / "tests/nnx/first_test.py", text)
    ran = upstream("--only", "tests")
    assert ran.outcomes == {"test_it": "failed"}
    assert ran.cases["test_it"]["message"].startswith("not collected: AssertionError")


@pytest.fixture
def guide(upstream):
    write(upstream.source / "docs_nnx/guides/guide.md", GUIDE)
    return upstream


class TestDocuments:
    def test_cells_run_one_after_the_other_and_print_the_same_numbers(self, guide):
        ran = guide("--only", "guides")
        cells = {id.partition("#")[2]: case for id, case in ran.cases.items()}
        assert {n: cell["outcome"] for n, cell in cells.items()} == {
            "1": "passed",
            "2": "numbers",
            "3": "failed",
            "4": "failed",
            "5": "passed",
            "7": "passed",
        }
        expected = "prints 'total 4 of <object>', Flax 'total 3 of <object>'"
        assert cells["2"]["message"] == expected
        assert cells["3"]["missing"] == ["nnx.halve"]
        assert cells["4"]["follows"]
        unexpected = [id.partition("#")[2] for id in ran.report["summary"]["unexpected"]]
        assert (ran.code, unexpected) == (1, ["2", "3"])
        assert expected in ran.out

    def test_flax_itself_does_what_flax_does(self, guide):
        ran = guide("--only", "guides", target="nnx_original")
        assert (ran.code, set(ran.outcomes.values())) == (0, {"passed"})

    def test_a_cell_that_hangs_or_dies_does_not_hold_up_the_others(self, upstream):
        cells = ["from flax import nnx", "nnx.steps(3)", "nnx.steps(5)", "nnx.steps(4)", "nnx"]
        text = "".join(f"```python\n{cell}\n```\n" for cell in cells)
        write(upstream.source / "docs_nnx/guide.md", text)
        ran = upstream("--only", "guides", "--timeout", "2")
        outcomes = ["passed", "failed", "passed", "failed", "failed"]
        assert list(ran.outcomes.values()) == outcomes
        messages = [case["message"] for case in ran.cases.values()]
        assert "took longer than 2 s" in messages[1]
        assert "status 9" in messages[3]
        assert "not reached" in messages[4]

    def test_an_example_is_one_cell(self, upstream):
        write(upstream.source / "examples/nnx_toy_examples/01_first.py", EXAMPLE)
        ran = upstream("--only", "examples")
        assert ran.outcomes == {"examples/nnx_toy_examples/01_first.py#1": "passed"}


KNOWN = """
    [[difference]]
    kind = "ours by ruling"
    reason = "a total has one more"
    cases = ["docs_nnx/guides/guide.md#2"]

    [[difference]]
    kind = "private name"
    reason = "there are no halves"
    cases = ["docs_nnx/guides/guide.md#3"]
    releases = "{releases}"
"""


class TestKnownDifferences:
    @pytest.fixture
    def ran(self, guide, tmp_path):
        def run(releases, *argv, target="nnx_other"):
            write(tmp_path / "known.toml", KNOWN.replace("{releases}", releases))
            known = ["--known", str(tmp_path / "known.toml")]
            return guide("--only", "guides", *known, *argv, target=target)

        return run

    def test_what_is_known_is_as_expected(self, ran):
        found = ran(">=1.2")
        assert (found.code, found.report["summary"]["unexpected"]) == (0, [])
        assert "ours by ruling: a total has one more" in found.out

    def test_what_is_known_of_another_release_is_not(self, ran):
        found = ran(">=1.3")
        assert (found.code, found.report["summary"]["unexpected"]) == (
            1,
            ["docs_nnx/guides/guide.md#3"],
        )

    def test_what_passes_though_it_is_known_to_differ_is_unexpected(self, ran):
        found = ran(">=1.3", target="nnx_original")
        assert (found.code, found.report["summary"]["unexpected"]) == (
            1,
            ["docs_nnx/guides/guide.md#2"],
        )
        assert "passed, though it is known to differ" in found.out


class TestBaseline:
    def test_it_is_kept_and_renewed_on_demand(self, guide, monkeypatch):
        first = guide("--only", "guides")
        monkeypatch.setattr(baseline, "ORIGINAL", "nnx_no_more")
        second = guide("--only", "guides")
        assert second.outcomes == first.outcomes
        assert "nnx_no_more" not in second.out
        third = guide_code(guide, "--only", "guides", "--renew")
        assert third == 3

    def test_it_is_of_the_very_files(self, guide, monkeypatch):
        guide("--only", "guides")
        monkeypatch.setattr(baseline, "ORIGINAL", "nnx_no_more")
        write(guide.source / "docs_nnx/guides/guide.md", f"{GUIDE}\n.")
        assert guide_code(guide, "--only", "guides") == 3

    def test_a_part_of_it_is_not_kept(self, guide, tmp_path):
        guide("--only", "guides", "-k", "guide.md#1")
        assert not list((tmp_path / "cache").rglob("*.json"))


def guide_code(guide, *argv):
    source = str(guide.source)
    return main(["upstream", "nnx_other", "--source", source, "--jobs", "1", *argv])


class TestUse:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["--scope", "corr"], "there is no scope 'corr'; did you mean core?"),
            (["--only", "guide"], "there is no part 'guide'; did you mean guides?"),
            (["--jobs", "0"], "--jobs must be at least 1"),
            (["--timeout", "0"], "--timeout must be positive"),
            (["--source", "/"], "is no source of Flax"),
            (["--release", "new"], "'new' is no release such as 0.12.8"),
        ],
    )
    def test_wrong_use(self, argv, said, capsys):
        assert main(["upstream", "reference", *argv]) == 2
        assert said in capsys.readouterr().err

    def test_a_target_that_cannot_be_loaded(self, guide):
        ran = guide("--only", "guides", target="unimportable")
        assert ran.code == 3
        assert "RuntimeError: no luck today" in ran.err

    def test_a_target_that_takes_the_interpreter_down(self, upstream):
        write(upstream.source / "tests/nnx/first_test.py", "def test_it(): pass")
        assert upstream(target="deadly").code == 3

    def test_nothing_selected_is_nothing_run(self, guide):
        ran = guide("-k", "no_such_thing")
        assert ran.code == 3
        assert "nothing ran" in ran.out


def test_an_interrupt_ends_the_processes(monkeypatch, tmp_path, miniatures):
    monkeypatch.chdir(miniatures)
    noted = tmp_path / "noted"
    source = f"import os, pathlib\nfrom flax import nnx\npathlib.Path({str(noted)!r}).write_text("
    source += "str(os.getpid()))\nnnx.steps(3)\n"
    cut = documents.Document("guide.md", (documents.Cell("guide.md#1", source),))

    def interrupt(record):
        if noted.exists() and noted.read_text():
            raise KeyboardInterrupt

    given = distribution.Distribution(tmp_path, "1.2")
    record = reading.run("nnx_other", given, [cut], jobs=1, limit=60, watch=interrupt)
    assert record.interrupted
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
