"""Prints: what a cell prints, and whether two runs of it print the same numbers.

A line whose words are the same in both runs must have the same numbers; they may differ by a
thousandth. Where the words differ it is a display of something, and displays are not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])|\bnan\b|\binf\b")
NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|0x[0-9a-fA-F]+")
OBJECT = "<object>"
"""What is noted for an object that is printed by its repr."""

RELATIVE, ABSOLUTE = 1e-3, 1e-6
"""How far apart two numbers may be that count as the same."""


def recorder(noted: list[str]) -> Callable[..., None]:
    """Returns a `print` that also notes what it prints."""

    def print_(*values: Any, sep: str | None = " ", file: Any = None, **options: Any) -> None:
        if file is None:
            noted.append((sep or "").join(map(shown, values)))
        print(*values, sep=sep, file=file, **options)

    return print_


def shown(value: Any) -> str:
    """Returns what is noted of a value: texts, numbers and arrays, also in plain containers."""
    if value is None or type(value) in (str, bool, int, float, complex):
        return str(value)
    if isinstance(value, Mapping) and type(value).__module__ == "builtins":
        return f"{{{', '.join(f'{shown(key)}: {shown(item)}' for key, item in value.items())}}}"
    if type(value) in (tuple, list):
        return f"[{', '.join(map(shown, value))}]"
    if type(value).__module__.partition(".")[0] in ("numpy", "jax", "jaxlib"):
        return str(value) if hasattr(value, "dtype") else OBJECT
    return OBJECT


def difference(found: Sequence[str | None], expected: Sequence[str | None]) -> str | None:
    """Says where a run printed other numbers than expected; None if nowhere.

    Args:
      found: what it printed, call by call.
      expected: the same of the run that is in the right; None for what is not compared.
    """
    if None not in expected and len(found) != len(expected):
        return f"prints {len(found)} times, Flax {len(expected)} times"
    for one, other in zip(found, expected, strict=False):
        if one is None or other is None:
            continue
        for line, right in zip(one.splitlines(), other.splitlines(), strict=False):
            if not _agree(line, right):
                return f"prints {_brief(line)!r}, Flax {_brief(right)!r}"
    return None


def _agree(one: str, other: str) -> bool:
    one, other = NOISE.sub("", one), NOISE.sub("", other)
    if _words(one) != _words(other):
        return True
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(_near(float(a), float(b)) for a, b in pairs)


def _words(text: str) -> str:
    return "".join(NUMBER.sub("#", text).split())


def _near(one: float, other: float) -> bool:
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _brief(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= 70 else f"{text[:67]}..."
