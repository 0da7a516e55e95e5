"""Distributions: the source distribution of a release of Flax, fetched once and kept.

It comes from the user's own package index, with pip or with uv, whichever there is. Only the parts
that are run or cited are kept: tests, guides, examples, the changelog, and the project's settings.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from nnx_conformance.usage import UsageError, suggestion

TESTS, GUIDES, EXAMPLES = "tests/nnx", "docs_nnx", "examples/nnx_toy_examples"
"""The folders of a distribution that matter here."""

KEPT = (TESTS, GUIDES, EXAMPLES, "CHANGELOG.md", "pyproject.toml", "PKG-INFO")
PATIENCE = 600
"""Seconds that a download may take."""


class UnreachableError(Exception):
    """The package index cannot be reached; the message is one line that says how it answered."""


@dataclass(frozen=True)
class Distribution:
    """A source distribution of Flax, unpacked.

    Attributes:
      root: its folder.
      release: the release that it is of.
    """

    root: Path
    release: str

    def files(self, folder: str, *patterns: str) -> list[str]:
        """Returns the files below a folder that match, relative to the root, in order."""
        found = {
            path.relative_to(self.root).as_posix()
            for pattern in patterns
            for path in (self.root / folder).rglob(pattern)
        }
        return sorted(found)

    def filters(self) -> list[str]:
        """Returns the filters on warnings that Flax's tests run with."""
        settings = self.root / "pyproject.toml"
        if not settings.is_file():
            return []
        options = tomllib.loads(settings.read_text()).get("tool", {}).get("pytest", {})
        filters: list[str] = options.get("ini_options", {}).get("filterwarnings", [])
        return filters

    def digest(self, files: Iterable[str]) -> str:
        """Returns a short text that changes whenever one of these files does."""
        made = hashlib.sha256()
        for name in sorted(files):
            made.update(f"{name}\0".encode())
            made.update((self.root / name).read_bytes())
        return made.hexdigest()[:12]


def cache() -> Path:
    """Returns the folder of this program in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "nnx-conformance")


def installed() -> str:
    """Returns the release of Flax that is installed."""
    return importlib.metadata.version("flax")


def unpacked(folder: Path, release: str | None = None) -> Distribution:
    """Returns the distribution in a folder of the user's own.

    Args:
      folder: where it was unpacked, or a checkout of Flax.
      release: of which release it is; by default the one that it says, or the installed one.

    Raises:
      UsageError: there are neither tests nor guides in that folder.
    """
    root = folder.resolve()
    if not any((root / part).is_dir() for part in (TESTS, GUIDES, EXAMPLES)):
        raise UsageError(f"{folder} is no source of Flax: it has no {TESTS} and no {GUIDES}")
    return Distribution(root, release or _stated(root) or installed())


def _stated(root: Path) -> str | None:
    said = root / "PKG-INFO"
    found = said.is_file() and re.search(r"^Version: (\S+)", said.read_text(), re.MULTILINE)
    return found[1] if found else None


def fetch(release: str | None = None) -> Distribution:
    """Returns the distribution of a release, from the cache or else from the package index.

    Args:
      release: by default the one that is installed.

    Raises:
      UsageError: there is no such release, or nothing to fetch it with.
      UnreachableError: the index cannot be reached.
    """
    release = release or installed()
    try:
        Version(release)
    except InvalidVersion:
        raise UsageError(f"{release!r} is no release such as 0.12.8") from None
    kept = cache() / "flax" / release
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{release}-", dir=kept.parent) as scratch:
            archive = _download(release, Path(scratch))
            _keep(_unpack(archive, Path(scratch, "unpacked")), kept)
    return Distribution(kept, release)


def _keep(root: Path, kept: Path) -> None:
    """Moves a folder to its place at once, unless somebody else has just done so."""
    try:
        root.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise


def _unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, members=_members(opened), filter="data")
    (root,) = folder.iterdir()
    return root


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        inside = member.name.partition("/")[2]
        if any(inside == part or inside.startswith(f"{part}/") for part in KEPT):
            yield member


def _download(release: str, folder: Path) -> Path:
    """Downloads the archive of a release into a folder."""
    command = [*downloader(), "download", "--no-deps", "--no-binary", "flax"]
    command += ["--retries", "1", "--disable-pip-version-check", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, f"flax=={release}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"no answer within {PATIENCE} seconds") from None
    archives = sorted(folder.glob("*.tar.gz"))
    if done.returncode or not archives:
        raise _trouble(release, done.stdout + done.stderr)
    return archives[0]


def downloader() -> Sequence[str]:
    """Returns the command that acts as pip for this Python.

    Raises:
      UsageError: there is neither pip nor uv.
    """
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if uv := shutil.which("uv"):
        return (uv, "tool", "run", "--python", sys.executable, "pip")
    raise UsageError("there is neither pip nor uv to fetch Flax with; try --source DIR")


def _trouble(release: str, said: str) -> Exception:
    """Makes of what pip said the error that it stands for."""
    versions = re.search(rf"requirement flax=={re.escape(release)} \(from versions: (.+)\)", said)
    if versions and versions[1] != "none":
        known = versions[1].split(", ")
        near = suggestion(release, known)
        reason = f"there is no release {release!r} of Flax for this Python{near}"
        return UsageError(f"{reason}; the newest is {max(known, key=Version)}")
    errors = [line for line in said.splitlines() if "error" in line.lower()]
    lines = errors or said.strip().splitlines() or ["it says nothing"]
    return UnreachableError(lines[-1].strip().removeprefix("ERROR: "))
