"""Oracles: what an object must look like from outside, computed without the target's own graph functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from nnx_spec.plans import NodePlan, Plan, SharedPlan, StaticPlan, VariablePlan, is_array

Path = tuple[str | int, ...]

IMPLICIT_METADATA = frozenset({"hijax", "ref", "mutable", "had_ref", "eager_sharding"})
"""Metadata keys that an implementation may add by itself; comparisons leave them out."""


def array_record(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Describes an array exactly: dtype, shape and bytes, so that NaN equals itself and 0.0 is not -0.0."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return str(value.dtype), tuple(value.shape), data.tobytes()
    concrete = np.asarray(value)
    return str(concrete.dtype), concrete.shape, concrete.tobytes()


def value_record(value: Any) -> Any:
    """Describes a Variable's value, an array or a pytree of them, exactly."""
    leaves, structure = jax.tree.flatten(value)
    return str(structure), tuple(
        array_record(np.asarray(x) if np.isscalar(x) else x) for x in leaves
    )


def user_metadata(variable: Any) -> dict[str, Any]:
    """Returns a Variable's metadata without what an implementation adds by itself."""
    return {k: v for k, v in variable.get_metadata().items() if k not in IMPLICIT_METADATA}


def variable_record(variable: Any) -> tuple[str, Any, tuple[tuple[str, Any], ...]]:
    """Describes a Variable: class name, value and the user's metadata."""
    return (
        type(variable).__name__,
        value_record(variable.get_value()),
        tuple(sorted(user_metadata(variable).items())),
    )


def children(nnx: Any, node: Any) -> list[tuple[str | int, Any]]:
    """Lists a node's children by public means only, sorted as `sort_key` says; [] for what is no node."""
    if isinstance(node, (nnx.List, list, tuple)):
        return list(enumerate(node))
    if isinstance(node, (nnx.Dict, Mapping)):
        return sorted(((k, node[k]) for k in node), key=lambda item: sort_key(item[0]))
    if isinstance(node, (nnx.Module, nnx.Pytree, nnx.Object)):
        public = ((k, v) for k, v in vars(node).items() if not k.startswith("_"))
        return sorted(public, key=lambda item: sort_key(item[0]))
    return []


def sort_key(key: Any) -> tuple[bool, Any]:
    """Orders integer keys by number, before string keys."""
    return (isinstance(key, str), key)


def snapshot(nnx: Any, root: Any, *, identities: bool = False) -> Any:
    """Describes an object graph as nested plain tuples, sharing and cycles included.

    Two objects are equal in class, attributes, Variables (class, value to the bit, metadata), static values and
    sharing exactly when their snapshots are equal.

    Args:
      nnx: the target.
      root: the object to describe.
      identities: whether the identities of objects, Variables and arrays take part.
    """
    seen: dict[int, int] = {}

    def visit(value: Any) -> Any:
        is_variable = isinstance(value, nnx.Variable)
        is_node = isinstance(value, (nnx.Module, nnx.Pytree, nnx.Object))
        identity = (id(value),) if identities else ()
        if is_variable or is_node:
            if id(value) in seen:
                return ("seen", seen[id(value)])
            seen[id(value)] = len(seen)
        if is_variable:
            raw = tuple(map(id, jax.tree.leaves(value.get_value()))) if identities else ()
            return (*variable_record(value), *identity, *raw)
        if is_array(value):
            return ("array", array_record(value), *identity)
        if is_node or isinstance(value, (list, tuple, Mapping)):
            inner = tuple((key, visit(child)) for key, child in children(nnx, value))
            return (type(value).__name__, inner, *(identity if is_node else ()))
        return ("static", value)

    return visit(root)


def objects(plan: Plan) -> list[tuple[Plan, list[Path]]]:
    """Lists a plan's objects in reading order, each with every path that leads to it without walking in a circle."""
    found: list[tuple[Plan, list[Path]]] = []

    def number(plan: Plan) -> None:
        if isinstance(plan, (NodePlan, VariablePlan)):
            found.append((plan, []))
        if isinstance(plan, NodePlan):
            for _, child in plan.children:
                number(child)

    number(plan)
    index = {id(item): n for n, (item, _) in enumerate(found)}
    if len(index) != len(
        found
    ):  # equal plans may be one object; tell them apart by walking in reading order
        raise ValueError("a plan uses one sub-plan object twice; build each occurrence anew")

    def walk(plan: Plan, path: Path, above: tuple[int, ...]) -> None:
        if isinstance(plan, SharedPlan):
            target = found[plan.to][0]
            found[plan.to][1].append(path)
            if plan.to not in above and isinstance(target, NodePlan):
                descend(target, path, above)
        elif isinstance(plan, (NodePlan, VariablePlan)):
            found[index[id(plan)]][1].append(path)
            if isinstance(plan, NodePlan):
                descend(plan, path, above)

    def descend(node: NodePlan, path: Path, above: tuple[int, ...]) -> None:
        for key, child in node.children:
            walk(child, (*path, key), (*above, index[id(node)]))

    walk(plan, (), ())
    return found


def has_sharing(plan: Plan) -> bool:
    """Tells whether some object stands at more than one place of the plan."""
    return any(isinstance(item, SharedPlan) for _, item in leaves(plan))


def leaves(plan: Plan, path: Path = ()) -> Iterator[tuple[Path, Plan]]:
    """Yields everything in a plan that is no node, with its path, in the order that `sort_key` gives."""
    if isinstance(plan, NodePlan):
        for key, child in sorted(plan.children, key=lambda item: sort_key(item[0])):
            yield from leaves(child, (*path, key))
    else:
        yield path, plan


def state_paths(plan: Plan) -> list[Path]:
    """Lists where a plan without sharing holds Variables and arrays, in canonical order."""
    return [path for path, item in leaves(plan) if not isinstance(item, (StaticPlan, SharedPlan))]
