"""Editions: which clauses a version of the specification consists of."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from importlib import resources

from nnx_spec.clauses import Clause, Level


@dataclass(frozen=True)
class Chapter:
    """A chapter of an edition.

    Attributes:
      name: its letters.
      title: its title.
      finished: whether each of its clauses is stated.
      levels: the level of each of its clauses.
      withdrawn: clauses that were given up, each with the reason.
      needs: the features that each of its clauses needs.
    """

    name: str
    title: str
    finished: bool
    levels: dict[str, Level]
    withdrawn: dict[str, str]
    needs: tuple[str, ...]


def chapters(edition: int = 1) -> dict[str, Chapter]:
    """Reads the chapters of an edition, by their letters, in the edition's order.

    Raises:
      FileNotFoundError: there is no such edition.
    """
    text = (resources.files("nnx_spec") / f"edition_{edition}.toml").read_text()
    return {
        name: Chapter(
            name,
            chapter["title"],
            chapter["finished"],
            {id: Level(level) for id, level in chapter["levels"].items()},
            chapter.get("withdrawn", {}),
            tuple(chapter.get("needs", ())),
        )
        for name, chapter in tomllib.loads(text)["chapters"].items()
    }


def needs(clause: Clause) -> frozenset[str]:
    """Returns the features that a target needs for a clause: those of its chapter, and its own."""
    return clause.needs | _needs_of_chapters().get(clause.chapter, frozenset())


@functools.cache
def _needs_of_chapters() -> dict[str, frozenset[str]]:
    return {name: frozenset(chapter.needs) for name, chapter in chapters().items()}
