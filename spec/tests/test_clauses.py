"""The lint of the spec: what every clause must have, and what the machinery refuses."""

import inspect

import pytest

import nnx_spec
from nnx_spec import (
    CONVENTION,
    DOCUMENTED,
    MUST,
    OURS,
    SHOULD,
    SOUND,
    TESTED,
    ClauseError,
    Gathering,
    Grounds,
    Registry,
    clause,
    editions,
    needs,
    sources,
    stands_on,
)
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.clauses import unmet
from nnx_spec.features import FEATURES

CLAUSES = nnx_spec.load()
CHAPTERS = editions.chapters(1)


def rule(nnx):
    """Water is wet."""


def test_the_first_edition_has_14_chapters():
    assert len(CHAPTERS) == 14


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_id_of_a_chapter_is_skipped_or_forgotten(name):
    known = sorted(CHAPTERS[name].levels.keys() | CHAPTERS[name].withdrawn.keys())
    assert known == [f"{name}-{number:03d}" for number in range(1, len(known) + 1)]
    assert not CHAPTERS[name].levels.keys() & CHAPTERS[name].withdrawn.keys()


@pytest.mark.parametrize("name", [name for name, chapter in CHAPTERS.items() if chapter.finished])
def test_a_finished_chapter_states_each_of_its_clauses_at_its_level(name):
    stated = {id: CLAUSES[id].level for id in CLAUSES if CLAUSES[id].chapter == name}
    assert stated == CHAPTERS[name].levels


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_needs_features_that_are_known(name):
    assert set(CHAPTERS[name].needs) <= FEATURES.keys()


def test_a_clause_needs_what_its_chapter_needs():
    assert "capture" in editions.needs(CLAUSES["CAP-001"])
    assert CLAUSES["HJX-001"].needs | {"hijax"} == editions.needs(CLAUSES["HJX-001"])


def test_a_clause_belongs_to_a_finished_chapter():
    finished = {name for name, chapter in CHAPTERS.items() if chapter.finished}
    assert {clause.chapter for clause in CLAUSES.values()} == finished


@pytest.mark.parametrize("id", CLAUSES)
def test_a_clause_states_its_rule_in_a_sentence(id):
    sentence = CLAUSES[id].sentence
    assert sentence.endswith("."), sentence
    assert 20 <= len(sentence) <= 400, sentence


@pytest.mark.parametrize("id", CLAUSES)
def test_a_clause_has_a_test_that_takes_the_target(id):
    test = CLAUSES[id].test
    tests = [test]
    if inspect.isclass(test):
        tests = [member for name, member in vars(test).items() if name.startswith("test_")]
        assert tests, f"{test.__qualname__} has no test method"
    for test in tests:
        test = getattr(test, "hypothesis", test) and inspect.unwrap(test)
        parameters = inspect.signature(test).parameters
        assert {"nnx", "run_in_new_process"} & parameters.keys(), test.__qualname__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("VAR-1", MUST, "key_concepts"), "VAR-1"),
        (("var-001", MUST, "key_concepts"), "var-001"),
        (("VAR-001", MUST, "hearsay"), "hearsay"),
    ],
)
def test_a_badly_formed_clause_is_refused(arguments, message):
    id, level, source = arguments
    registry = Registry()
    with pytest.raises(ClauseError, match=message):
        clause(id, level, DOCUMENTED, source=source, registry=registry)(rule)
    assert len(registry) == 0


def test_a_clause_without_a_rule_is_refused():
    with pytest.raises(ClauseError, match="VAR-001 has no docstring"):
        clause("VAR-001", MUST, DOCUMENTED, source="key_concepts", registry=Registry())(
            lambda nnx: None
        )


def test_an_unknown_feature_is_refused_by_name():
    with pytest.raises(ClauseError, match="telepathy"):
        clause(
            "VAR-001",
            MUST,
            DOCUMENTED,
            source="key_concepts",
            needs={"hijax | telepathy"},
            registry=Registry(),
        )(rule)


def test_a_mark_with_an_unknown_feature_is_refused_by_name():
    with pytest.raises(ClauseError, match="a test needs the unknown feature telepathy"):
        needs("hijax", "telepathy")


class Rules:
    """Water is wet."""

    def test_first(self, nnx): ...

    @stands_on(SOUND, "water is lost silently")
    def test_second(self, nnx): ...


class Wishes:
    """Water is cold."""

    def test_first(self, nnx): ...

    @stands_on(OURS, "one would like it so")
    def test_second(self, nnx): ...


def stated(test, level, basis, source):
    registry = Registry()
    clause("VAR-001", level, basis, source=source, registry=registry)(test)
    return registry["VAR-001"]


def test_a_test_may_stand_on_something_else_than_its_clause():
    known = stated(Rules, MUST, TESTED, "tests/nnx/module_test.py::TestModule::test_call")
    assert known.basis is TESTED
    assert known.grounds == {"test_second": Grounds(SOUND, "water is lost silently")}


@pytest.mark.parametrize(
    ("test", "basis", "source"),
    [(Rules, OURS, "one would like it so"), (Wishes, DOCUMENTED, "key_concepts")],
)
def test_no_must_stands_on_a_wish(test, basis, source):
    with pytest.raises(ClauseError, match=r"VAR-001 is a MUST, but .* this project's wishes"):
        stated(test, MUST, basis, source)
    assert stated(test, SHOULD, basis, source).level is SHOULD


@pytest.mark.parametrize(
    ("basis", "source", "message"),
    [
        (DOCUMENTED, "hearsay", "hearsay"),
        (TESTED, "module_test.py", "is not a test such as"),
        (CONVENTION, "as JAX does", "is not a dotted name"),
        (SOUND, "lost", "does not say in words"),
    ],
)
def test_a_source_has_the_form_of_its_basis(basis, source, message):
    with pytest.raises(ClauseError, match=message):
        stated(Rules, SHOULD, basis, source)
    with pytest.raises(ClauseError, match=message):
        stands_on(basis, source)(rule)


def test_a_clause_that_gathers_is_a_view():
    assert {id for id, clause in CLAUSES.items() if clause.is_view} == {"TREE-011", "GRA-012"}


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_clause_that_is_withdrawn_has_a_reason_and_no_tests(name):
    for id, reason in CHAPTERS[name].withdrawn.items():
        assert len(reason.split()) >= 3, id
        assert id not in CLAUSES


def test_an_id_is_given_once():
    registry = Registry()
    clause("VAR-001", MUST, DOCUMENTED, source="key_concepts", registry=registry)(rule)

    def other(nnx):
        """Fire is hot."""

    with pytest.raises(ClauseError, match=r"VAR-001 is stated twice: by .*rule and .*other"):
        clause("VAR-001", MUST, DOCUMENTED, source="key_concepts", registry=registry)(other)
    assert registry["VAR-001"].rule == "Water is wet."


def test_a_clause_may_be_decided_by_cases_of_another_chapter():
    registry = Registry()
    cases = Gathering("TRX", frozenset({"tree-mode"}))
    clause("TREE-011", MUST, DOCUMENTED, source="key_concepts", gathers=cases, registry=registry)(
        rule
    )
    assert registry.decided_by("TRX-003", "tree-mode-jit") == ["TRX-003", "TREE-011"]
    assert registry.decided_by("TRX-003", "jit-tree-mode") == ["TRX-003", "TREE-011"]
    assert registry.decided_by("TRX-003", "street-mode-jit") == ["TRX-003"]
    assert registry.decided_by("TRX-003", "") == ["TRX-003"]
    assert registry.decided_by("GRF-003", "tree-mode") == ["GRF-003"]


@pytest.mark.parametrize("id", [id for id in CLAUSES if id.startswith("TRX-")])
def test_a_clause_on_transforms_has_cases_in_each_mode(id):
    members = [CLAUSES[id].test, *vars(CLAUSES[id].test).values()]
    marks = [mark for member in members for mark in getattr(member, "pytestmark", [])]
    cases = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    names = [[f"-{getattr(case, 'id', '')}-" for case in table] for table in cases]
    found = {mode for table in names for mode in MODES if any(f"-{mode}-" in id for id in table)}
    assert found == set(MODES)


@pytest.mark.parametrize(
    ("features", "missing"),
    [
        ([], ["hijax.qdd | hijax.ref", "mutable-flag"]),
        (["hijax.ref"], ["mutable-flag"]),
        (["mutable-flag", "hijax.qdd"], []),
    ],
)
def test_a_need_is_met_by_any_of_its_alternatives(features, missing):
    registry = Registry()
    needs = {"hijax.qdd | hijax.ref", "mutable-flag"}
    clause("VAR-001", MUST, DOCUMENTED, source="key_concepts", needs=needs, registry=registry)(rule)
    assert unmet(registry["VAR-001"].needs, features) == missing


def test_features_are_told_in_a_sentence():
    assert all(sentence.endswith(".") for sentence in FEATURES.values())


@pytest.mark.parametrize("id", CLAUSES)
def test_a_source_has_an_address(id):
    clause = CLAUSES[id]
    addressless = clause.basis in (CONVENTION, SOUND, OURS)
    assert addressless or sources.url(clause.source).startswith("https://"), clause.source


def test_an_anchor_is_part_of_the_address():
    assert sources.url("key_concepts#pytree") == f"{sources.BASE}key_concepts.html#pytree"
