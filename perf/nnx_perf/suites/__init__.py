"""The suites: each a module of benchmarks that pytest collects."""

from __future__ import annotations

import pkgutil
from pathlib import Path


def paths() -> dict[str, Path]:
    """Returns the file of each suite, by the suite's name."""
    return {
        module.name: Path(folder, f"{module.name}.py")
        for folder in __path__
        for module in pkgutil.iter_modules([folder])
    }
