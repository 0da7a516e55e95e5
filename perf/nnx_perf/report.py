"""Reports: what pytest-benchmark stored, as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from nnx_perf.statistics import Ratio

FLOOR = "floor"


@dataclass(frozen=True)
class Row:
    """A benchmark's figures.

    Attributes:
      operation: what was measured.
      size: the number of Variables.
      floor: the floor's median, in seconds.
      ratios: by target, how many times as long as the floor; a target that failed has none.
      calls: by contestant, the number of Python calls.
      kept: by contestant, the number of arrays that many calls have left, if it was counted.
      errors: by target that failed, the error.
    """

    operation: str
    size: int
    floor: float
    ratios: dict[str, Ratio]
    calls: dict[str, int]
    kept: dict[str, int]
    errors: dict[str, str]


def read(path: Path) -> list[Row]:
    """Reads a file that pytest-benchmark wrote.

    Raises:
      ValueError: the file holds no contest.
    """
    stored = json.loads(path.read_text())
    try:
        return [_row(benchmark["extra_info"]) for benchmark in stored["benchmarks"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no benchmarks of this kind: {error!r}") from error


def _row(info: dict[str, Any]) -> Row:
    return Row(
        operation=info["operation"],
        size=info["size"],
        floor=statistics.median(info["seconds"][FLOOR]),
        ratios={name: Ratio(**figures) for name, figures in info["ratios"].items()},
        calls=info["python_calls"],
        kept=info["arrays_kept"],
        errors=info["errors"],
    )


def table(rows: Sequence[Row], targets: Sequence[str]) -> Table:
    """Lays out benchmarks: a line each with the floor, and each target's ratio and counts."""
    counted = any(row.kept for row in rows)
    title = "Times the floor: median and 95% interval; Python calls"
    made = Table(title=title + ("; arrays kept" if counted else ""))
    made.add_column("operation", no_wrap=True)
    heads = ("calls", "kept") if counted else ("calls",)
    numbers = ["Variables", "floor, us"] + [head for name in targets for head in (name, *heads)]
    for head in numbers:
        made.add_column(head, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: row.size):
        cells = [cell for name in targets for cell in _cells(row, name)[: len(heads) + 1]]
        made.add_row(row.operation, str(row.size), figure(row.floor * 1e6), *cells)
    return made


def _cells(row: Row, target: str) -> tuple[str, str, str]:
    """Returns a target's cells of a line."""
    if target not in row.ratios:
        return "failed", "-", "-"
    found = row.ratios[target]
    interval = f"[{figure(found.low)}, {figure(found.high)}]"
    kept = str(row.kept[target]) if target in row.kept else ""
    return f"{figure(found.median)} {interval}", str(row.calls[target]), kept


def figure(value: float) -> str:
    """Formats a number with three digits, or as many as it has before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
