"""Showing: what objects look like in print.

    Net(  # BatchStat: 2 (8 B), Param: 1,500 (6.0 KB), Total: 1,502 (6.0 KB)
      norm=Norm(  # BatchStat: 2 (8 B)
        mean=BatchStat(value=Array([0., 0.], dtype=float32)),  # 2 (8 B)
        momentum=0.9,
      ),
      kernel=Param(value=Array(shape=(30, 50), dtype=float32)),  # 1,500 (6.0 KB)
    )

Behind each Variable, and each object that holds some, stand their numbers of elements and bytes, a
shared Variable counted once. What is short and holds no Variable goes on one line. An object that
is met again is shown as `...`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from nnx_reference.attributes import has_data
from nnx_reference.describing import describe
from nnx_reference.pytree import Key, Pytree
from nnx_reference.variables import Variable

WIDTH = 80
"""What is longer than this is spread over several lines."""


class Size(NamedTuple):
    """How much a Variable holds: its class' name, elements, bytes."""

    kind: str
    elements: int
    bytes: int


class _Text(NamedTuple):
    """A value in print.

    Attributes:
      lines: its lines.
      note: what stands behind it.
      sizes: the sizes of the Variables in it, by identity.
    """

    lines: list[str]
    note: str
    sizes: Mapping[int, Size]


def show(node: Pytree) -> str:
    """Describes an object and all in it, in a line or several."""
    return "\n".join(_Showing().text(node).lines)


class _Showing:
    """One description in the making; knows which objects have been met."""

    def __init__(self) -> None:
        self.sizes: dict[int, Mapping[int, Size]] = {}

    def text(self, value: Any) -> _Text:
        match value:
            case Variable():
                size = _size(value)
                note = f"{size.elements:,} ({_bytes(size.bytes)})"
                return _Text([describe(value)], note, {id(value): size})
            case Pytree():
                return self.object_text(value)
            case list() | tuple() | dict() if _holds_objects(value):
                return self.container_text(value)
            case _:
                return _Text([describe(value)], "", {})

    def object_text(self, node: Pytree) -> _Text:
        if id(node) in self.sizes:
            return _Text(["..."], "", self.sizes[id(node)])
        self.sizes[id(node)] = {}
        parts = [(_label(key), self.text(value)) for key, value in node._pytree_table().items()]
        text = _enclosed(f"{type(node).__name__}(", parts, ")")
        self.sizes[id(node)] = text.sizes
        return text

    def container_text(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> _Text:
        if isinstance(value, dict):
            named = [(f"{key!r}: ", self.text(item)) for key, item in value.items()]
            return _enclosed("{", named, "}", totals=False)
        opening, closing = "[]" if isinstance(value, list) else "()"
        return _enclosed(opening, [("", self.text(x)) for x in value], closing, totals=False)


def _holds_objects(container: Any) -> bool:
    return any(isinstance(item, (Pytree, Variable)) for item in has_data(container))


def _label(key: Key) -> str:
    return f"{key}=" if isinstance(key, str) else f"{key}: "


def _enclosed(
    opening: str, parts: list[tuple[str, _Text]], closing: str, totals: bool = True
) -> _Text:
    """Puts labelled parts between brackets."""
    sizes = {number: size for _, part in parts for number, size in part.sizes.items()}
    if not sizes and all(len(part.lines) == 1 for _, part in parts):
        line = opening + ", ".join(label + part.lines[0] for label, part in parts) + closing
        if len(line) <= WIDTH:
            return _Text([line], "", {})
    lines = [f"{opening}  # {_totals(sizes)}" if totals and sizes else opening]
    for label, part in parts:
        first, *rest = part.lines
        lines += [f"  {line}" for line in (label + first, *rest)]
        lines[-1] += f",  # {part.note}" if part.note else ","
    return _Text([*lines, closing], "", sizes)


def _size(variable: Variable[Any]) -> Size:
    elements = in_bytes = 0
    for leaf in jax.tree.leaves(variable.get_raw_value()):
        count = math.prod(np.shape(leaf))
        elements += count
        in_bytes += count * getattr(getattr(leaf, "dtype", None), "itemsize", 0)
    return Size(type(variable).__name__, elements, in_bytes)


def _totals(sizes: Mapping[int, Size]) -> str:
    """Sums up sizes by class, and over all if there are several classes."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    kinds = len({size.kind for size in sizes.values()})
    for size in sorted(sizes.values()):
        for name in (size.kind, "Total") if kinds > 1 else (size.kind,):
            sums[name][0] += size.elements
            sums[name][1] += size.bytes
    total = sums.pop("Total", None)
    named = [*sums.items(), *([("Total", total)] if total else [])]
    return ", ".join(f"{name}: {count:,} ({_bytes(size)})" for name, (count, size) in named)


def _bytes(count: float) -> str:
    """Writes a number of bytes in the unit, a power of 1000, that keeps it short."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"
