"""Scopes: which of Flax's own tests belong to which, and why."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

SCOPES = ("core", "extended", "all")
"""From the narrowest to the widest; each has all of those before it."""


@dataclass(frozen=True)
class Group:
    """Tests that belong to a wider scope than the rest of their file, and why.

    Attributes:
      file: the file, relative to the folder of tests.
      scope: the narrowest scope that has them.
      reason: why no narrower one has.
      names: patterns over `Class::test`; none for a whole file.
    """

    file: str
    scope: str
    reason: str
    names: Sequence[str] = ("*",)


@dataclass(frozen=True)
class Scopes:
    """Which tests belong where.

    Attributes:
      core: the files whose tests are core where no group says otherwise.
      groups: the tests that are not.
    """

    core: Sequence[str]
    groups: Sequence[Group]

    def of(self, file: str, name: str) -> str:
        """Returns the narrowest scope of a test.

        Args:
          file: its file, relative to the folder of tests.
          name: its class and name, `Class::test`.
        """
        for group in self.groups:
            if group.file == file and any(fnmatch.fnmatchcase(name, p) for p in group.names):
                return group.scope
        return "core" if file in self.core else "all"

    def files(self, scope: str, present: Sequence[str]) -> list[str]:
        """Returns those of the files present that may have tests in a scope."""
        return [file for file in present if scope == "all" or file in self.core]


def includes(scope: str, other: str) -> bool:
    """Tells whether a scope has the tests of another."""
    return SCOPES.index(other) <= SCOPES.index(scope)


def load() -> Scopes:
    """Returns the scopes, as the package's data have them."""
    return read(tomllib.loads((resources.files(__package__) / "scope.toml").read_text()))


def read(data: Mapping[str, object]) -> Scopes:
    """Makes scopes of the contents of a file such as scope.toml."""
    core, tests = data.get("core", []), data.get("tests", [])
    assert isinstance(core, list)
    assert isinstance(tests, list)
    return Scopes(core, [Group(**table) for table in tests])
