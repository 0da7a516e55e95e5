"""Known differences: where a target is known to differ from Flax, each with its reason.

    [[difference]]
    kind = "message text"
    reason = "the error names the path instead of the class"
    cases = ["module_test.py::TestModule::test_update_*", "docs_nnx/guides/view.md#3"]
    releases = "<0.12.10"     # PEP 440, of Flax; by default every release
    jax = ">=0.11"            # the same of JAX

Every case that matches must differ, and whatever differs must match.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from nnx_conformance.usage import UsageError, require_known

KINDS = (
    "ours by ruling",
    "private name",
    "not refused",
    "another result",
    "message text",
    "out of scope",
    "missing layer, metric or display",
    "bridge",
)
"""Of what kind the reason for a difference can be."""


@dataclass(frozen=True)
class Difference:
    """A difference that is known.

    Attributes:
      kind: of what kind its reason is.
      reason: the reason.
      cases: patterns over the ids of the cases that differ.
    """

    kind: str
    reason: str
    cases: Sequence[str]

    def matches(self, id: str) -> bool:
        """Tells whether a case is said to differ."""
        return any(fnmatch.fnmatchcase(id, pattern) for pattern in self.cases)


def load(file: Traversable, release: str, jax: str) -> list[Difference]:
    """Returns the differences in a file that hold for releases of Flax and JAX.

    Raises:
      UsageError: the file is not as it should be.
    """
    try:
        tables = tomllib.loads(file.read_text()).get("difference", [])
        return [_difference(table) for table in tables if _applies(table, release, jax)]
    except (OSError, tomllib.TOMLDecodeError, InvalidSpecifier, KeyError, TypeError) as error:
        raise UsageError(f"{file}: {type(error).__name__}: {error}") from None


def _difference(table: dict[str, object]) -> Difference:
    require_known("kind of difference", [str(table["kind"])], KINDS)
    reason, cases = table["reason"], table["cases"]
    if not isinstance(cases, list) or not isinstance(reason, str):
        raise TypeError("a difference has a reason, which is a text, and cases, which are a list")
    return Difference(str(table["kind"]), reason, cases)


def _applies(table: dict[str, object], release: str, jax: str) -> bool:
    pairs = (("releases", release), ("jax", jax))
    return all(
        SpecifierSet(str(table.get(key, ""))).contains(version, prereleases=True)
        for key, version in pairs
    )


def shipped(target: str) -> Traversable | None:
    """Returns the file of differences that comes with this package for a target, if any does."""
    file = resources.files(__package__) / "known" / f"{target}.toml"
    return file if file.is_file() else None


def first(differences: Iterable[Difference], id: str) -> Difference | None:
    """Returns the first of some differences that a case is said to be among."""
    return next((known for known in differences if known.matches(id)), None)
