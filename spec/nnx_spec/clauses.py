"""Clauses: the decorator that states one, and the registry that knows them all."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from nnx_spec.features import FEATURES, closure
from nnx_spec.sources import Basis, SourceError, check

ID_PATTERN = re.compile(r"(?P<chapter>[A-Z]{3,4})-\d{3}")

Test = TypeVar("Test", bound=Callable[..., Any])


class ClauseError(ValueError):
    """A clause is stated wrongly: bad id, source or feature, no docstring, or a taken id."""


class Level(enum.Enum):
    """How binding a clause is, in the words of RFC 2119."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


MUST, SHOULD, MAY = Level.MUST, Level.SHOULD, Level.MAY


@dataclass(frozen=True)
class Grounds:
    """What a rule, or one of its tests, stands on.

    Attributes:
      basis: of what kind it is.
      source: where that is found; its form depends on the basis, see `nnx_spec.sources`.
    """

    basis: Basis
    source: str


@dataclass(frozen=True)
class Gathering:
    """Cases of other clauses' tests that decide a clause together.

    Attributes:
      chapter: the letters of the chapter whose clauses they belong to.
      cases: the ids of the parameters that mark them.
    """

    chapter: str
    cases: frozenset[str]

    def takes(self, id: str, case: str) -> bool:
        """Tells whether a clause's test with parameters such as `tree-mode-jit` is among them."""
        marked = any(f"-{name}-" in f"-{case}-" for name in self.cases)
        return marked and id.split("-")[0] == self.chapter


@dataclass(frozen=True)
class Clause:
    """One rule of the specification.

    Attributes:
      id: chapter and number, `VAR-001`; never changed, never reused.
      level: how binding the rule is.
      basis: what kind of thing the rule stands on.
      source: where that is found: `guides/filters_guide#anchor` for what is documented.
      needs: features without which the clause does not apply to a target; an entry may name
        alternatives, `hijax.qdd | hijax.ref`, any of which suffices.
      since: the first edition that has the clause.
      until: the last edition that has it, or None.
      rule: the normative text; its first paragraph is the rule in one sentence.
      test: the test function or class that decides it; for a clause that gathers, what states it.
      gathers: the cases of other clauses' tests that decide it; None for a clause with its own.
    """

    id: str
    level: Level
    basis: Basis
    source: str
    needs: frozenset[str]
    since: int
    until: int | None
    rule: str
    test: Callable[..., Any]
    gathers: Gathering | None = None

    @property
    def chapter(self) -> str:
        """The chapter's letters: `VAR` of `VAR-001`."""
        return self.id.split("-")[0]

    @property
    def sentence(self) -> str:
        """The rule in one sentence: the first paragraph of its text, on one line."""
        return " ".join(self.rule.split("\n\n")[0].split())

    @property
    def is_view(self) -> bool:
        """Whether it gathers cases of others: it is shown, and not counted."""
        return self.gathers is not None

    @property
    def grounds(self) -> dict[str, Grounds]:
        """What those of its tests stand on that don't stand on what the clause does, by name."""
        members = vars(self.test).items() if inspect.isclass(self.test) else ()
        return {name: known for name, test in members if (known := getattr(test, GROUNDS, None))}


def unmet(needs: Iterable[str], features: Collection[str]) -> list[str]:
    """Lists the needs, and those that follow from them, that a target does not meet.

    Args:
      needs: what a test needs.
      features: what the target has.
    """
    return sorted(need for need in closure(needs) if not alternatives(need) & set(features))


def alternatives(need: str) -> set[str]:
    """Splits a need such as `hijax.qdd | hijax.ref` into the features that meet it."""
    return {name.strip() for name in need.split("|")}


class Registry(Mapping[str, Clause]):
    """The clauses that have been stated, by id, in order of chapter and number."""

    def __init__(self) -> None:
        self._clauses: dict[str, Clause] = {}
        self._gathering: dict[str, Gathering] = {}

    def __getitem__(self, id: str) -> Clause:
        return self._clauses[id]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._clauses))

    def __len__(self) -> int:
        return len(self._clauses)

    def add(self, clause: Clause) -> None:
        """Registers a clause.

        Raises:
          ClauseError: the id is taken by another test.
        """
        known = self._clauses.get(clause.id)
        if known is not None and _place(known.test) != _place(clause.test):
            raise ClauseError(
                f"clause {clause.id} is stated twice: by {_place(known.test)}"
                f" and {_place(clause.test)}"
            )
        self._clauses[clause.id] = clause
        if clause.gathers is not None:
            self._gathering[clause.id] = clause.gathers

    def decided_by(self, id: str, case: str) -> list[str]:
        """Lists the clauses that a test decides: its own, and those that gather it.

        Args:
          id: the clause that the test is part of.
          case: the test's parameters, as pytest spells them: `tree-mode-jit`.
        """
        gathering = self._gathering.items()
        return [id, *(name for name, cases in gathering if cases.takes(id, case))]


REGISTRY = Registry()


GROUNDS = "nnx_grounds"
"""The attribute of a test function that holds what it stands on."""


def stands_on(basis: Basis, source: str) -> Callable[[Test], Test]:
    """Says of a test that it stands on something else than its clause does.

    Raises:
      ClauseError: the source is not of the basis' form, or not known.
    """

    def state(test: Test) -> Test:
        _check_source(test.__qualname__, basis, source)
        setattr(test, GROUNDS, Grounds(basis, source))
        return test

    return state


def needs(*features: str) -> pytest.MarkDecorator:
    """Marks a test, or a case of one, with features that it needs beside its clause's.

    Raises:
      ClauseError: a feature is not known.
    """
    _check_needs("a test", features)
    return pytest.mark.needs(*features)


def clause(
    id: str,
    level: Level,
    basis: Basis,
    *,
    source: str,
    needs: Iterable[str] = (),
    since: int = 1,
    until: int | None = None,
    gathers: Gathering | None = None,
    registry: Registry = REGISTRY,
) -> Callable[[Test], Test]:
    """States that the decorated test function, or class of them, decides a clause.

    The docstring is the normative text. See `Clause` for the parameters.

    Raises:
      ClauseError: the id, source or a need is not well-formed or not known, the docstring is
        missing, the id is taken, or a MUST stands on nothing but this project's wishes.
    """

    def state(test: Test) -> Test:
        if not ID_PATTERN.fullmatch(id):
            raise ClauseError(f"clause id {id!r} is not of the form ABC-123")
        if not test.__doc__:
            raise ClauseError(f"clause {id} has no docstring, so it states no rule")
        _check_needs(f"clause {id}", needs)
        _check_source(f"clause {id}", basis, source)
        stated = Clause(
            id,
            level,
            basis,
            source,
            frozenset(needs),
            since,
            until,
            inspect.cleandoc(test.__doc__),
            test,
            gathers,
        )
        _check_binding(stated)
        registry.add(stated)
        return pytest.mark.clause(id)(test)

    return state


def load() -> Registry:
    """Imports every chapter and returns the registry of all clauses."""
    import nnx_spec.chapters as chapters

    for module in pkgutil.walk_packages(chapters.__path__, chapters.__name__ + "."):
        importlib.import_module(module.name)
    return REGISTRY


def _check_source(what: str, basis: Basis, source: str) -> None:
    try:
        check(basis, source)
    except SourceError as error:
        raise ClauseError(f"{what}: {error}") from None


def _check_needs(what: str, needs: Iterable[str]) -> None:
    for need in needs:
        if unknown := alternatives(need) - FEATURES.keys():
            raise ClauseError(f"{what} needs the unknown feature {', '.join(sorted(unknown))}")


def _check_binding(stated: Clause) -> None:
    bases = {"it": stated.basis, **{name: on.basis for name, on in stated.grounds.items()}}
    wishes = [name for name, basis in bases.items() if basis is Basis.OURS]
    if wishes and stated.level is MUST:
        raise ClauseError(
            f"clause {stated.id} is a MUST, but {', '.join(wishes)} stands on nothing but this"
            " project's wishes; make it a SHOULD or a MAY, or a clause of its own"
        )


def _place(test: Callable[..., Any]) -> str:
    return f"{test.__module__}.{test.__qualname__}"
