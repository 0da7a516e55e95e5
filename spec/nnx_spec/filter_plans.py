"""Filter plans: filters as plain data, how to build them on a target, and what each must select.

Like the plans of object graphs, a filter's plan needs no target, prints as a person would write it
and can be used any number of times:

    AnyPlan((TypePlan("Param"), NotPlan(TagPlan("red"))))

`build_filter` gives the filter itself, in the spelling that the plan asks for: the literal, or the
filter class that the literal stands for. `matches` is the oracle: it decides in plain Python what
the filter selects of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nnx_spec.oracles import Path
from nnx_spec.plans import Plan, VariablePlan, variable_class

PARENTS = MappingProxyType({"SpecialParam": "Param"})
"""The class above each of `plans.VARIABLE_KINDS`, where that is another than Variable."""

EVERYTHING = MappingProxyType(
    {"...": lambda nnx: ..., "True": lambda nnx: True, "Everything()": lambda nnx: nnx.Everything()}
)
"""The ways to write a filter that selects everything."""

NOTHING = MappingProxyType(
    {"None": lambda nnx: None, "False": lambda nnx: False, "Nothing()": lambda nnx: nnx.Nothing()}
)
"""The ways to write a filter that selects nothing."""


@dataclass(frozen=True)
class EverythingPlan:
    """Selects everything; `spelling` is one of `EVERYTHING`."""

    spelling: str = "..."


@dataclass(frozen=True)
class NothingPlan:
    """Selects nothing; `spelling` is one of `NOTHING`."""

    spelling: str = "None"


@dataclass(frozen=True)
class TypePlan:
    """Selects Variables of a kind or of a kind below it; written as the class or as `OfType`."""

    kind: str = "Param"
    literal: bool = True


@dataclass(frozen=True)
class TagPlan:
    """Selects Variables whose `tag` equals a string; written as the string or as `WithTag`."""

    tag: str
    literal: bool = True


@dataclass(frozen=True)
class PathPlan:
    """Selects what has a key in its path."""

    key: str | int


@dataclass(frozen=True)
class CallablePlan:
    """Selects by a function of path and value, one of `CALLABLES`."""

    name: str


@dataclass(frozen=True)
class AnyPlan:
    """Selects what one of the inner filters selects; `spelling` is `tuple`, `list` or `Any`."""

    filters: tuple[FilterPlan, ...] = ()
    spelling: str = "Any"


@dataclass(frozen=True)
class AllPlan:
    """Selects what each of the inner filters selects."""

    filters: tuple[FilterPlan, ...] = ()


@dataclass(frozen=True)
class NotPlan:
    """Selects what the inner filter does not."""

    filter: FilterPlan


FilterPlan = (
    EverythingPlan
    | NothingPlan
    | TypePlan
    | TagPlan
    | PathPlan
    | CallablePlan
    | AnyPlan
    | AllPlan
    | NotPlan
)


def shallow(path: Path, value: Any) -> bool:
    """Selects what stands at most two steps from the root."""
    return len(path) <= 2


def annotated(path: Path, value: Any) -> bool:
    """Selects Variables that have any metadata of the name `note`."""
    return hasattr(value, "get_metadata") and "note" in value.get_metadata()


CALLABLES = MappingProxyType({"shallow": shallow, "annotated": annotated})
"""Functions of path and value for `CallablePlan`, by name."""


def build_filter(nnx: Any, plan: FilterPlan) -> Any:
    """Builds the filter that a plan describes, with the target's classes."""

    def inner(filters: Sequence[FilterPlan]) -> list[Any]:
        return [build_filter(nnx, item) for item in filters]

    match plan:
        case EverythingPlan(spelling):
            return EVERYTHING[spelling](nnx)
        case NothingPlan(spelling):
            return NOTHING[spelling](nnx)
        case TypePlan(kind, literal):
            cls = variable_class(nnx, kind)
            return cls if literal else nnx.OfType(cls)
        case TagPlan(tag, literal):
            return tag if literal else nnx.WithTag(tag)
        case PathPlan(key):
            return nnx.PathContains(key)
        case CallablePlan(name):
            return CALLABLES[name]
        case AnyPlan(filters, spelling):
            combine: dict[str, Callable[..., Any]] = {
                "tuple": lambda *items: items,
                "list": lambda *items: list(items),
                "Any": lambda *items: nnx.Any(*items),
            }
            return combine[spelling](*inner(filters))
        case AllPlan(filters):
            return nnx.All(*inner(filters))
        case NotPlan(item):
            return nnx.Not(build_filter(nnx, item))
    raise TypeError(f"not a filter's plan: {plan!r}")


def matches(plan: FilterPlan, path: Path, item: Plan) -> bool:
    """Decides whether a filter selects what a plan describes: a Variable, or a raw array.

    Args:
      plan: the filter's plan.
      path: where the item stands, from the root of the graph.
      item: the plan of the Variable or array.
    """
    kind = item.kind if isinstance(item, VariablePlan) else None
    metadata = dict(item.metadata) if isinstance(item, VariablePlan) else {}
    match plan:
        case EverythingPlan():
            return True
        case NothingPlan():
            return False
        case TypePlan(wanted):
            return kind is not None and is_kind(kind, wanted)
        case TagPlan(tag):
            return metadata.get("tag") == tag
        case PathPlan(key):
            return key in path
        case CallablePlan(name):
            return len(path) <= 2 if name == "shallow" else "note" in metadata
        case AnyPlan(filters):
            return any(matches(inner, path, item) for inner in filters)
        case AllPlan(filters):
            return all(matches(inner, path, item) for inner in filters)
        case NotPlan(inner):
            return not matches(inner, path, item)
    raise TypeError(f"not a filter's plan: {plan!r}")


def group_of(plans: Sequence[FilterPlan], path: Path, item: Plan) -> int | None:
    """Returns the index of the first filter that selects an item, or None if none does."""
    return next((n for n, plan in enumerate(plans) if matches(plan, path, item)), None)


def is_kind(kind: str, wanted: str) -> bool:
    """Tells whether one kind of Variable is another, or below it."""
    return wanted in (kind, PARENTS.get(kind), "Variable")
