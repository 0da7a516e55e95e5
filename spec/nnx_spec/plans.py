"""Plans: object graphs as plain data, and how to build them on a target.

A property draws a plan, not an object, so that drawing needs no target, a failing example prints
as a few lines that a person can read, and the same plan gives as many equal, unrelated objects as a
test needs:

    ModulePlan((("w", VariablePlan("Param", ArrayPlan((2,)))), ("again", SharedPlan(1))))

is a Module whose attribute `again` is the very Variable that `w` is. `SharedPlan(n)` refers to the
n-th object of the plan, a node or a Variable, counted from the root, 0, in the order in which the
plan is read; a reference to an ancestor makes a cycle.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VARIABLE_KINDS = (
    "Variable",
    "Param",
    "BatchStat",
    "Cache",
    "Intermediate",
    "Count",
    "SpecialParam",
)
"""Variable classes that plans use; `Count` and `SpecialParam(Param)` are defined by the user."""


@dataclass(frozen=True)
class ArrayPlan:
    """An array whose elements count up from `start`, so that no two neighbours are equal."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    start: int = 0

    def value(self) -> np.ndarray:
        """Returns the array that the plan describes, as NumPy holds it."""
        size = int(np.prod(self.shape))
        counted = np.arange(self.start, self.start + size).reshape(self.shape)
        return counted % 2 == 1 if self.dtype == "bool" else counted.astype(jnp.dtype(self.dtype))


@dataclass(frozen=True)
class VariablePlan:
    """A Variable of one of `VARIABLE_KINDS`; its value is an array or a (nested) dict of them."""

    kind: str = "Param"
    value: ArrayPlan | dict[str, Any] = ArrayPlan()
    metadata: tuple[tuple[str, Any], ...] = ()

    def __hash__(self) -> int:
        return hash((self.kind, self.metadata))


@dataclass(frozen=True)
class StaticPlan:
    """A static value: anything hashable that is not an array."""

    value: Any = None


@dataclass(frozen=True)
class SharedPlan:
    """A reference to an object that stands earlier in the plan, by its number."""

    to: int


@dataclass(frozen=True)
class NodePlan:
    """An object with children: base of the four kinds below."""

    children: tuple[tuple[str | int, Plan], ...] = ()


@dataclass(frozen=True)
class ModulePlan(NodePlan):
    """A Module of a user-defined class; its children are its attributes."""


@dataclass(frozen=True)
class PytreePlan(NodePlan):
    """A Pytree of a user-defined class; its children are its attributes."""


@dataclass(frozen=True)
class ListPlan(NodePlan):
    """A List; its children's keys are 0, 1, 2, ..."""


@dataclass(frozen=True)
class DictPlan(NodePlan):
    """A Dict; its children are its items."""


Plan = NodePlan | VariablePlan | ArrayPlan | StaticPlan | SharedPlan


@functools.cache
def classes(nnx: Any) -> SimpleNamespace:
    """Makes the user's classes that plans use on a target: Net, Tree, Count and SpecialParam."""

    class Net(nnx.Module):
        """A Module with whatever attributes it is given."""

    class Tree(nnx.Pytree):
        """A Pytree with whatever attributes it is given."""

    class Count(nnx.Variable):
        """A kind of Variable of the user's own."""

    class SpecialParam(nnx.Param):
        """A kind of parameter of the user's own."""

    return SimpleNamespace(Net=Net, Tree=Tree, Count=Count, SpecialParam=SpecialParam)


def variable_class(nnx: Any, kind: str) -> type:
    """Returns the target's class for one of `VARIABLE_KINDS`."""
    own = classes(nnx)
    return getattr(own, kind) if hasattr(own, kind) else getattr(nnx, kind)


def build(nnx: Any, plan: Plan) -> Any:
    """Builds what a plan describes with the target's classes."""
    return _Builder(nnx).build(plan)


@dataclass
class _Builder:
    nnx: Any
    objects: list[Any] = field(default_factory=list)

    def build(self, plan: Plan) -> Any:
        match plan:
            case ArrayPlan():
                return jnp.asarray(plan.value())
            case StaticPlan(value):
                return value
            case SharedPlan(to):
                return self.objects[to]
            case VariablePlan(kind, value, metadata):
                variable = variable_class(self.nnx, kind)(build_value(value), **dict(metadata))
                self.objects.append(variable)
                return variable
            case ListPlan(children):
                items = self.nnx.List([])
                self.objects.append(items)
                for _, child in children:
                    items.append(self.build(child))
                return items
            case DictPlan(children):
                mapping = self.nnx.Dict({})
                self.objects.append(mapping)
                for key, child in children:
                    mapping[key] = self.build(child)
                return mapping
            case ModulePlan(children) | PytreePlan(children):
                own = classes(self.nnx)
                node = own.Net() if isinstance(plan, ModulePlan) else own.Tree()
                self.objects.append(node)
                for name, child in children:
                    setattr(node, str(name), self.build(child))
                return node
            case _:
                raise TypeError(f"not a plan: {plan!r}")


def build_value(value: ArrayPlan | dict[str, Any]) -> Any:
    """Builds a Variable's value: an array, or a (nested) dict of arrays."""
    if isinstance(value, ArrayPlan):
        return jnp.asarray(value.value())
    return {key: build_value(item) for key, item in value.items()}


def is_array(value: Any) -> bool:
    """Tells whether a value is an array, concrete or traced."""
    return isinstance(value, (jax.Array, np.ndarray))
