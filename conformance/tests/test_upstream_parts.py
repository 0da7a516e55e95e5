"""The second witness, part by part: placeholders, cells, prints, scopes, differences, citations."""

from __future__ import annotations

import ast
import textwrap

import pytest

from nnx_conformance.upstream import citations, documents, known, notebook, prints, scope
from nnx_conformance.upstream.cases import Case, Record
from nnx_conformance.upstream.judging import judge
from nnx_conformance.upstream.placeholders import Ledger, Missing
from nnx_conformance.usage import UsageError


class TestPlaceholders:
    @pytest.fixture
    def ledger(self):
        return Ledger(lenient=True)

    @pytest.fixture
    def name(self, ledger):
        return Missing("nnx.name", ledger)

    def test_at_first_they_can_be_used_for_whatever_a_file_does(self, name, ledger):
        class Inherits(name.Inner, option=1):
            field: name[int] | None

        assert Inherits.__name__ == "Inherits"
        for made in (name(1, key=2), name.inner, name[0], name | int, int | name, Inherits(1)):
            assert isinstance(made, Missing)
        assert ledger.missed == set()

    def test_later_each_use_is_an_error_and_noted(self, name, ledger):
        def inherit():
            class Inherits(name):
                pass

        ledger.lenient = False
        uses = [lambda: name(), lambda: name.inner, lambda: name[0], lambda: name | int, inherit]
        uses += [lambda: list(name), lambda: len(name), lambda: isinstance(1, name)]
        for use in uses:
            ledger.missed.clear()
            with pytest.raises(AttributeError, match=r"the target has no nnx\.name"):
                use()
            assert {missed.removesuffix(".inner") for missed in ledger.missed} == {"nnx.name"}

    def test_a_test_that_is_decorated_with_one_fails(self, name, ledger):
        @name(option=1)
        def test_it():
            """Would pass."""

        ledger.lenient = False
        with pytest.raises(AttributeError):
            test_it()
        assert ledger.missed == {"nnx.name"}

    def test_what_is_made_from_one_fails_too(self, name, ledger):
        class Inherits(name):
            pass

        ledger.lenient = False
        with pytest.raises(AttributeError):
            Inherits()


class TestDocuments:
    def cells(self, text, path="docs_nnx/guide.md"):
        cut = documents.cut(path, textwrap.dedent(text))
        return [(cell.source.strip(), cell.raises) for cell in cut.cells]

    def test_cells_of_a_notebook(self):
        text = """
            ```{code-cell} ipython3
            ---
            tags: [raises-exception]
            ---
            1 / 0
            ```

            ```{code-cell}
            :tags: [skip-execution]
            wait()
            ```

            ```python
            only_shown()
            ```

            ```{code-cell}
            !pip install x
            x = 1
            ```
        """
        assert self.cells(text) == [("1 / 0", True), ("pass\nx = 1", False)]

    def test_blocks_of_a_page(self):
        text = "```python\na = 1\n```\n\n```bash\nls\n```\n\n```py\nb = 2\n```\n"
        assert self.cells(text) == [("a = 1", False), ("b = 2", False)]

    def test_parts_of_a_script(self):
        text = "# only a remark\n# %%\na = 1\n# %% [markdown]\nb = 2\n"
        cells = [source.splitlines()[-1] for source, _ in self.cells(text, "examples/a.py")]
        assert cells == ["a = 1", "b = 2"]

    def test_proposals_get_their_imports(self):
        assert "nnx" in documents.cut("docs_nnx/flip/1.md", "").preamble
        assert not documents.cut("docs_nnx/guides/1.md", "").preamble

    def test_names_that_a_cell_binds(self):
        source = "import a.b, c as d\nfor e in f:\n  g = [h for i in j]\ndef k():\n  m = 1\n"
        assert notebook.bound(ast.parse(source)) == {"a", "d", "e", "g", "i", "k"}


class TestPrints:
    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (["loss 0.50001"], ["loss 0.5"]),
            (["loss nan"], ["loss nan"]),
            (["Linear(4 parts)"], ["Linear(kernel=3)"]),
            (["at 0x7f00"], ["at 0x7e11"]),
            (["float32 1"], ["float32   1.0"]),
            (["loss 9"], [None]),
            (["a", "b"], [None]),
        ],
    )
    def test_the_same(self, found, expected):
        assert prints.difference(found, expected) is None

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            (["loss 0.51"], ["loss 0.5"]),
            (["loss nan"], ["loss 1.0"]),
            (["step 1\nloss 2"], ["step 1\nloss 1"]),
            (["x"], ["x", "y"]),
        ],
    )
    def test_different(self, found, expected):
        assert prints.difference(found, expected).startswith("prints ")

    def test_what_is_noted_of_a_print(self, capsys):
        import numpy as np

        noted = []
        prints.recorder(noted)("a", 1, np.float32(2), [np.ones(2), object()], sep="-")
        assert noted == ["a-1-2.0-[[1. 1.], <object>]"]
        assert capsys.readouterr().out.startswith("a-1-2.0-")


class TestScopes:
    def test_the_data_are_as_they_should_be(self):
        scopes = scope.load()
        for group in scopes.groups:
            assert group.scope in scope.SCOPES[1:]
            assert group.reason
        assert scopes.of("variable_test.py", "TestVariable::test_it") == "core"
        assert scopes.of("graph_utils_test.py", "TestUnpack::test_it") == "extended"
        assert scopes.of("bridge/module_test.py", "Test::test_it") == "all"
        assert scopes.of("unheard_of_test.py", "Test::test_it") == "all"

    def test_wider_scopes_include_narrower_ones(self):
        assert scope.includes("all", "core")
        assert scope.includes("core", "core")
        assert not scope.includes("core", "extended")


class TestDifferences:
    def differences(self, tmp_path, text, release="0.12.8", jax="0.10.2"):
        path = tmp_path / "known.toml"
        path.write_text(text)
        return known.load(path, release, jax)

    TEXT = """
        [[difference]]
        kind = "message text"
        reason = "other words"
        cases = ["a_test.py::Test::test_[ab]"]
        releases = "<0.12.9"
        jax = "<0.11"
    """

    def test_releases_decide(self, tmp_path):
        (difference,) = self.differences(tmp_path, self.TEXT)
        assert difference.matches("a_test.py::Test::test_b")
        assert not difference.matches("a_test.py::Test::test_c")
        assert self.differences(tmp_path, self.TEXT, release="0.12.9") == []
        assert self.differences(tmp_path, self.TEXT, jax="0.11.0") == []

    @pytest.mark.parametrize(
        "text",
        ["[[difference", TEXT.replace("message", "massage"), TEXT.replace("reason", "raisin")],
    )
    def test_mistakes_are_told(self, tmp_path, text):
        with pytest.raises(UsageError):
            self.differences(tmp_path, text)

    def test_the_shipped_ones_can_be_read(self):
        for release in ("0.12.8", "0.12.12"):
            known.load(known.shipped("reference"), release, "0.10.2")
        assert known.shipped("somebody_elses") is None


class TestJudging:
    def test_what_was_not_reached_when_interrupted_is_not_judged(self):
        record = Record({"a": Case("a", "passed"), "b": Case("b")}, interrupted=True)
        assert [verdict.case.id for verdict in judge(record, {"a": [], "b": []}, [])] == ["a"]

    def test_what_is_skipped_though_flax_does_not_has_failed(self):
        record = Record({"a": Case("a", "skipped", "no luck")})
        (verdict,) = judge(record, {"a": []}, [])
        assert (verdict.outcome, verdict.message) == ("failed", "skipped: no luck")

    def test_the_worst_phase_of_a_test_decides(self):
        record = Record()
        for phase, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "failed")):
            record.take({"event": "case", "case": "a", "phase": phase, "outcome": outcome})
        assert record.cases["a"].outcome == "failed"


class TestCitations:
    @pytest.fixture
    def root(self, tmp_path):
        files = {
            "tests/nnx/a_test.py": "class TestA:\n  def test_b(self): pass\n",
            "docs_nnx/guide.md": "# The `Filter` DSL\n## 2. More\n(label)=\n### Last {#end}\n",
            "docs_nnx/other.rst": "A title\n*******\n",
            "docs_nnx/api_reference/flax.nnx/graph.rst": ".. autofunction:: merge\n",
            "CHANGELOG.md": "1.2.0\n-----\n",
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    @pytest.mark.parametrize(
        ("basis", "citation"),
        [
            ("tested", "tests/nnx/a_test.py"),
            ("tested", "tests/nnx/a_test.py::TestA::test_b"),
            ("documented", "guide"),
            ("documented", "guide#the-filter-dsl"),
            ("documented", "guide#more"),
            ("documented", "guide#label"),
            ("documented", "guide#end"),
            ("documented", "other#a-title"),
            ("documented", "api_reference/flax.nnx/graph#flax.nnx.merge"),
            ("documented", "CHANGELOG#1.2.0"),
            ("ours", "because we say so"),
        ],
    )
    def test_there(self, root, basis, citation):
        assert citations.trouble(root, basis, citation) is None

    @pytest.mark.parametrize(
        ("basis", "citation"),
        [
            ("tested", "tests/nnx/b_test.py"),
            ("tested", "tests/nnx/a_test.py::TestA::test_c"),
            ("documented", "no_guide"),
            ("documented", "guide#nothing"),
            ("documented", "api_reference/flax.nnx/graph#flax.nnx.marge"),
            ("documented", "CHANGELOG#1.3.0"),
        ],
    )
    def test_not_there(self, root, basis, citation):
        assert citations.trouble(root, basis, citation)
