"""Edits of plans: the same graph put together differently, and graphs that differ in one thing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any

from nnx_spec.oracles import objects
from nnx_spec.plans import (
    VARIABLE_KINDS,
    ArrayPlan,
    DictPlan,
    ListPlan,
    ModulePlan,
    NodePlan,
    Plan,
    PytreePlan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
)

Edit = tuple[NodePlan, NodePlan]
"""A graph, and the graph that one edit makes of it."""


def reordered(plan: Plan) -> Plan:
    """Returns a plan without sharing whose attributes and items are set in the opposite order."""
    if not isinstance(plan, NodePlan):
        return plan
    children = tuple((key, reordered(child)) for key, child in plan.children)
    return dataclasses.replace(
        plan, children=children if isinstance(plan, ListPlan) else children[::-1]
    )


def revalued(plan: Plan, by: int = 1) -> Plan:
    """Returns a plan whose arrays, in Variables and out of them, hold other numbers."""
    match plan:
        case NodePlan(children):
            new = tuple((key, revalued(child, by)) for key, child in children)
            return dataclasses.replace(plan, children=new)
        case VariablePlan(_, value, _):
            return dataclasses.replace(plan, value=_revalued(value, by))
        case ArrayPlan():
            return _revalued(plan, by)
        case _:
            return plan


def without_lists(plan: Plan) -> Plan:
    """Returns a plan with a Dict in place of every List."""
    if not isinstance(plan, NodePlan):
        return plan
    if isinstance(plan, ListPlan):
        return DictPlan(tuple((f"item{n}", without_lists(child)) for n, child in plan.children))
    children = tuple((key, without_lists(child)) for key, child in plan.children)
    return dataclasses.replace(plan, children=children)


def edits(plan: NodePlan, choice: int, *, sharing: bool) -> dict[str, Edit]:
    """Picks one edit of each of `KINDS` that the plan allows.

    Args:
      plan: the graph to edit.
      choice: which of the possible edits of a kind to take, counted around.
      sharing: whether edits that make an object stand at several places are among them.
    """
    possible = {kind: list(KINDS[kind](plan)) for kind in KINDS if sharing or "sharing" not in kind}
    return {kind: found[choice % len(found)] for kind, found in possible.items() if found}


def _revalued(value: Any, by: int) -> Any:
    if isinstance(value, ArrayPlan):
        return dataclasses.replace(value, start=value.start + by)
    return {key: _revalued(item, by) for key, item in value.items()}


def _replacements(plan: Plan, replace: Callable[[Plan], Iterable[Plan]]) -> Iterator[Plan]:
    """Yields the plan with one of its parts replaced, for every part and every replacement."""
    yield from replace(plan)
    if isinstance(plan, NodePlan):
        for n, (key, child) in enumerate(plan.children):
            for new in _replacements(child, replace):
                children = (*plan.children[:n], (key, new), *plan.children[n + 1 :])
                yield dataclasses.replace(plan, children=children)


def _each(replace: Callable[[Plan], Iterable[Plan]]) -> Callable[[NodePlan], Iterator[Edit]]:
    return lambda plan: ((plan, edited) for edited in _replacements(plan, replace))


def _other_class(item: Plan) -> Iterator[Plan]:
    if isinstance(item, NodePlan) and not isinstance(item, ListPlan):
        others = {ModulePlan, PytreePlan, DictPlan} - {type(item)}
        if any(isinstance(child, StaticPlan) for _, child in item.children):
            others -= {DictPlan}
        yield from (other(item.children) for other in sorted(others, key=lambda c: c.__name__))


def _other_name(item: Plan) -> Iterator[Plan]:
    if isinstance(item, NodePlan) and not isinstance(item, ListPlan):
        for n, (_, child) in enumerate(item.children):
            children = (*item.children[:n], ("renamed", child), *item.children[n + 1 :])
            yield dataclasses.replace(item, children=children)


def _one_child_more(item: Plan) -> Iterator[Plan]:
    if isinstance(item, NodePlan):
        key = len(item.children) if isinstance(item, ListPlan) else "further"
        values: list[Plan] = [ArrayPlan()]
        if isinstance(item, (ModulePlan, PytreePlan)):
            values += [StaticPlan(None), StaticPlan(0)]
        for value in values:
            yield dataclasses.replace(item, children=(*item.children, (key, value)))


def _other_static(item: Plan) -> Iterator[Plan]:
    if isinstance(item, StaticPlan):
        yield from (StaticPlan(value) for value in (None, 3, "edited") if value != item.value)


def _other_variable_class(item: Plan) -> Iterator[Plan]:
    if isinstance(item, VariablePlan):
        for kind in VARIABLE_KINDS:
            if kind != item.kind:
                yield dataclasses.replace(item, kind=kind)


def _other_metadata(item: Plan) -> Iterator[Plan]:
    if isinstance(item, VariablePlan):
        yield dataclasses.replace(item, metadata=(*item.metadata, ("zone", "edited")))
        for n, (name, _) in enumerate(item.metadata):
            rest = (*item.metadata[:n], *item.metadata[n + 1 :])
            yield dataclasses.replace(item, metadata=rest)
            yield dataclasses.replace(item, metadata=(*rest, (name, "edited")))


def _other_target(plan: NodePlan) -> Iterator[Edit]:
    """Adds a reference to one object, and to another."""
    numbers = [n for n, (item, _) in enumerate(objects(plan)) if isinstance(item, VariablePlan)]
    for first, second in itertools.pairwise(numbers):
        yield _with_child(plan, SharedPlan(first)), _with_child(plan, SharedPlan(second))


def _copy_for_reference(plan: NodePlan) -> Iterator[Edit]:
    """Adds a reference to an object, and an equal copy of it."""
    for number, (item, _) in enumerate(objects(plan)):
        if isinstance(item, VariablePlan):
            copy = dataclasses.replace(item)
            yield _with_child(plan, SharedPlan(number)), _with_child(plan, copy)


def _with_child(plan: NodePlan, child: Plan) -> NodePlan:
    return dataclasses.replace(plan, children=(*plan.children, ("further", child)))


KINDS = MappingProxyType(
    {
        "class": _each(_other_class),
        "attribute-name": _each(_other_name),
        "child-more": _each(_one_child_more),
        "static-value": _each(_other_static),
        "variable-class": _each(_other_variable_class),
        "variable-metadata": _each(_other_metadata),
        "sharing-or-copy": _copy_for_reference,
        "sharing-with-another": _other_target,
    }
)
"""What one edit can change."""
