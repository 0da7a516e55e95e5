"""Baselines: what the installed Flax itself passes, which is what counts.

A baseline is kept in the user's cache, under all that it depends on: the files that ran, the
releases of Flax, JAX and Python, and of what the tests import. Documents run twice; what they
don't print in the same way both times is not compared.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from nnx_conformance.upstream.cases import PASSED, Record
from nnx_conformance.upstream.distribution import Distribution, cache
from nnx_conformance.upstream.swapping import ORIGINAL

Baseline = Mapping[str, Sequence[str | None]]
"""The cases that Flax passes, each with what it prints."""

FORMAT = 1
"""Raised whenever a baseline that was kept would mean something else."""

IMPORTED = (
    *("absl-py", "chex", "cloudpickle", "matplotlib", "numpy", "optax"),
    *("orbax-checkpoint", "pytest", "treescope"),
)
"""Distributions that tests and documents import, beside Flax and JAX."""


class BrokenBaselineError(Exception):
    """Flax itself could not be run; the message says why."""


def environment() -> dict[str, str]:
    """Returns the releases that everything runs on."""
    names = ("flax", "jax", "jaxlib")
    return {**{name: _version(name) for name in names}, "python": platform.python_version()}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def place(distribution: Distribution, name: str, files: Iterable[str], extra: str = "") -> Path:
    """Returns where a baseline is kept.

    Args:
      distribution: what runs.
      name: which part of it.
      files: its files.
      extra: whatever else it depends on.
    """
    depends = {
        **environment(),
        **{other: _version(other) for other in IMPORTED},
        "files": distribution.digest(files),
        "platform": os.environ.get("JAX_PLATFORMS", "cpu"),
        "extra": extra,
        "format": str(FORMAT),
    }
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:12]
    return cache() / "baselines" / f"{distribution.release}-{name}-{digest}.json"


def of(place: Path | None, run: Callable[[str], Record], times: int = 1) -> Baseline:
    """Returns a baseline, from where it is kept or else from running Flax.

    Args:
      place: where it is kept; None to run, and keep nothing.
      run: runs a target.
      times: how often.

    Raises:
      BrokenBaselineError: Flax could not be run.
      KeyboardInterrupt: the user has interrupted it.
    """
    if place and place.is_file():
        kept: dict[str, list[str | None]] = json.loads(place.read_text())
        return kept
    records = [_run(run) for _ in range(times)]
    found = agreed(records)
    if place and found:
        _write(place, found)
    return found


def _run(run: Callable[[str], Record]) -> Record:
    record = run(ORIGINAL)
    if record.interrupted:
        raise KeyboardInterrupt
    if record.unloadable or record.errors:
        raise BrokenBaselineError(record.unloadable or record.errors[0])
    return record


def agreed(records: Sequence[Record]) -> dict[str, list[str | None]]:
    """Returns what all of some runs pass, with what all of them print."""
    first, *others = records
    found: dict[str, list[str | None]] = {}
    for case in first.cases.values():
        same = [record.cases[case.id] for record in others if case.id in record.cases]
        if len(same) == len(others) and all(one.outcome == PASSED for one in (case, *same)):
            printed = zip(case.prints, *(one.prints for one in same), strict=False)
            found[case.id] = [text if set(rest) <= {text} else None for text, *rest in printed]
    return found


def _write(place: Path, found: Baseline) -> None:
    """Writes a file at once, so that nobody reads half of it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as file:
        json.dump(found, file)
    Path(file.name).replace(place)
