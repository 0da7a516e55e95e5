"""What filters select: the observation on a target, and the expectation from plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nnx_spec.filter_plans import FilterPlan, matches
from nnx_spec.oracles import Path, leaves, sort_key
from nnx_spec.plans import (
    ArrayPlan,
    DictPlan,
    ModulePlan,
    Plan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
)

PAIR = ArrayPlan((2,), start=1)

MODEL = ModulePlan(
    (
        ("first", VariablePlan("Param", PAIR, (("tag", "red"),))),
        ("second", VariablePlan("SpecialParam", PAIR, (("note", "mine"),))),
        ("mean", VariablePlan("BatchStat", PAIR, (("tag", "blue"),))),
        (
            "block",
            ModulePlan(
                (
                    ("first", VariablePlan("Param", PAIR)),
                    ("count", VariablePlan("Count", PAIR, (("tag", "red"),))),
                    ("extra", DictPlan((("mean", VariablePlan("BatchStat", PAIR)),))),
                )
            ),
        ),
    )
)
"""A model of six Variables, each a pair of floats, which every kind of filter divides."""


def items(plan: Plan) -> list[tuple[Path, Plan]]:
    """Lists what a filter may select of a plan, its Variables and raw arrays, with their paths."""
    return [
        (path, item)
        for path, item in leaves(plan)
        if not isinstance(item, (StaticPlan, SharedPlan))
    ]


def expected(plan: Plan, filter_plan: FilterPlan) -> list[Path]:
    """Lists the paths of what a filter must select of a plan, in canonical order."""
    return [path for path, item in items(plan) if matches(filter_plan, path, item)]


def paths_in(state: Any) -> list[Path]:
    """Lists the paths that a State has, in canonical order."""
    return list(_walk(state, ()))


def _walk(state: Any, path: Path) -> Iterator[Path]:
    if not isinstance(state, Mapping):
        yield path
        return
    for key in sorted(state, key=sort_key):
        yield from _walk(state[key], (*path, key))
