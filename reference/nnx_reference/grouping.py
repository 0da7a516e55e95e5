"""Grouping: which of several filters takes a value.

Filters are tried in order, and the first that selects a value takes it. So the groups are disjoint,
and a general filter belongs after the special ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nnx_reference.filters import Everything, Filter, Path, Predicate, to_predicate

Pairs = list[tuple[Path, Any]]


def select(pairs: Iterable[tuple[Path, Any]], filters: Sequence[Filter]) -> list[Pairs]:
    """Groups (path, value) pairs by the first filter that selects them; the last group is the rest.

    Raises:
      ValueError: `...` or True stands anywhere but last.
    """
    return _group(pairs, filters)[0]


def partition(pairs: Iterable[tuple[Path, Any]], filters: Sequence[Filter]) -> list[Pairs]:
    """Groups (path, value) pairs by the first filter that selects them, which some filter must.

    Raises:
      ValueError: no filter selects some pair; the error names its path. `...` or True stands
        anywhere but last.
    """
    groups, rest = _group(pairs, filters)
    if rest:
        shown = "".join(f"\n  {path}: {type(value).__name__}" for path, value in rest[:10])
        more = f"\n  and {len(rest) - 10} more" if len(rest) > 10 else ""
        raise ValueError(
            f"the filters leave over{shown}{more}\n"
            "Add `...` as the last filter to select all the rest."
        )
    return groups


def _group(
    pairs: Iterable[tuple[Path, Any]], filters: Sequence[Filter]
) -> tuple[list[Pairs], Pairs]:
    predicates = predicates_of(filters)
    if len(predicates) == 1 and isinstance(predicates[0], Everything):
        return [list(pairs)], []
    groups: list[Pairs] = [[] for _ in predicates]
    rest: Pairs = []
    for path, value in pairs:
        for predicate, group in zip(predicates, groups, strict=True):
            if predicate(path, value):
                group.append((path, value))
                break
        else:
            rest.append((path, value))
    return groups, rest


def predicates_of(filters: Sequence[Filter]) -> list[Predicate]:
    """Converts filters to predicates.

    Raises:
      ValueError: `...` or True stands anywhere but last.
      TypeError: one of them is no filter.
    """
    for n, one in enumerate(filters[:-1]):
        if one is ... or one is True:
            raise ValueError(
                f"filter {n} of {len(filters)} is {one!r}, which leaves nothing to those after it:"
                " put it last"
            )
    return [to_predicate(one) for one in filters]
