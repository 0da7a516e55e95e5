"""Functions that take `graph=`, and objects that are no trees."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from nnx_spec.chapters.functional.threads import in_a_thread
from nnx_spec.plans import (
    ArrayPlan,
    DictPlan,
    ListPlan,
    ModulePlan,
    PytreePlan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
)

FUNCTIONS = MappingProxyType(
    {
        "split": lambda nnx, node: nnx.split(node, graph=False),
        "split into groups": lambda nnx, node: nnx.split(node, nnx.Param, ..., graph=False),
        "state": lambda nnx, node: nnx.state(node, graph=False),
        "state of a filter": lambda nnx, node: nnx.state(node, nnx.BatchStat, graph=False),
        "variables": lambda nnx, node: nnx.variables(node, graph=False),
        "graphdef": lambda nnx, node: nnx.graphdef(node, graph=False),
        "unpack": lambda nnx, node: nnx.unpack(node, graph=False),
        "flatten": lambda nnx, node: nnx.flatten(node, graph=False),
        "clone": lambda nnx, node: nnx.clone(node, graph=False),
        "clone of nodes": lambda nnx, node: nnx.clone(node, variables=False, graph=False),
        "map": lambda nnx, node: nnx.map(lambda path, leaf: leaf, node, graph=False),
        "recursive_map": lambda nnx, node: nnx.recursive_map(lambda _, x: x, node, graph=False),
        "iter_graph": lambda nnx, node: list(nnx.iter_graph(node, graph=False)),
        "iter_modules": lambda nnx, node: list(nnx.iter_modules(node, graph=False)),
        "view": lambda nnx, node: nnx.view(node, raise_if_not_found=False, graph=False),
        "with_attributes": lambda nnx, node: nnx.with_attributes(
            node, raise_if_not_found=False, training=True, graph=False
        ),
        "split_rngs": lambda nnx, node: nnx.split_rngs(node, splits=2, graph=False),
        "fork_rngs": lambda nnx, node: nnx.fork_rngs(node, split=2, graph=False),
        "reseed": lambda nnx, node: nnx.reseed(node, default=0, graph=False),
    }
)
"""Calls, in tree mode, of every function of an object's structure that takes `graph=`."""

CHILDREN_FUNCTIONS = MappingProxyType(
    {
        "iter_children": lambda nnx, node: list(nnx.iter_children(node, graph=False)),
        "iter_module_children": lambda nnx, node: list(nnx.iter_module_children(node, graph=False)),
    }
)
"""Those that look at the children of one node alone."""

_WEIGHT = VariablePlan("Param", ArrayPlan((2,)))
_LAYER = ModulePlan((("weight", _WEIGHT), ("width", StaticPlan(2))))

NO_TREES = MappingProxyType(
    {
        "Variable": (
            ModulePlan((("first", _WEIGHT), ("second", SharedPlan(1)))),
            [("first",), ("second",)],
        ),
        "Variable at three places": (
            ModulePlan(
                (
                    ("first", _WEIGHT),
                    ("second", SharedPlan(1)),
                    ("block", ModulePlan((("third", SharedPlan(1)),))),
                )
            ),
            [("first",), ("second",), ("block", "third")],
        ),
        "Variable in a List": (
            ModulePlan((("layers", ListPlan(((0, _WEIGHT), (1, _WEIGHT), (2, SharedPlan(2))))),)),
            [("layers", 0), ("layers", 2)],
        ),
        "Variable in a Dict": (
            ModulePlan((("named", DictPlan((("one", _WEIGHT),))), ("tied", SharedPlan(2)))),
            [("named", "one"), ("tied",)],
        ),
        "Module": (
            ModulePlan((("encoder", _LAYER), ("decoder", SharedPlan(1)))),
            [("encoder",), ("decoder",)],
        ),
        "Pytree of arrays": (
            ModulePlan((("left", PytreePlan((("x", ArrayPlan((2,))),))), ("right", SharedPlan(1)))),
            [("left",), ("right",)],
        ),
        "Module of static values": (
            ModulePlan(
                (("encoder", ModulePlan((("width", StaticPlan(2)),))), ("decoder", SharedPlan(1)))
            ),
            [("encoder",), ("decoder",)],
        ),
    }
)
"""Plans of objects with a shared part, and the paths to it."""

CHILD_AND_PARENT = ModulePlan(
    (
        ("child", ModulePlan((("weight", _WEIGHT), ("parent", SharedPlan(0))))),
        ("width", StaticPlan(2)),
    )
)
"""A Module whose child refers to it."""


def refusal(call: Callable[..., Any], *args: Any) -> Exception | None:
    """Returns the exception that a call raises, or None.

    The call runs in a thread of its own; `in_a_thread` says why.
    """
    try:
        in_a_thread(lambda: call(*args))
    except Exception as error:
        return error
    return None
