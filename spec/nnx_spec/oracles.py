"""Oracles: what an object must look like from outside, without the target's own graph functions.

Two kinds. Observations read a built object, a Variable or a State by attribute, item and iteration
alone: `snapshot`, `walk`, `at`, `state_items`. Expectations work on plans and never see a target:
`graph_items`, `objects`, `has_sharing`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from nnx_spec.plans import (
    ArrayPlan,
    NodePlan,
    Plan,
    SharedPlan,
    StaticPlan,
    VariablePlan,
    is_array,
)

Path = tuple[str | int, ...]

IMPLICIT_METADATA = frozenset({"hijax", "ref", "mutable", "had_ref", "eager_sharding"})
"""Metadata keys that an implementation may add by itself; comparisons leave them out."""


def array_record(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Describes an array by dtype, shape and bytes: NaN equals itself, and 0.0 is not -0.0."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value))
        return str(value.dtype), tuple(value.shape), data.tobytes()
    concrete = np.asarray(value)
    return str(concrete.dtype), concrete.shape, concrete.tobytes()


def value_record(value: Any) -> Any:
    """Describes a Variable's value, an array or a pytree of them, exactly."""
    leaves, structure = jax.tree.flatten(value)
    records = (array_record(np.asarray(leaf) if np.isscalar(leaf) else leaf) for leaf in leaves)
    return str(structure), tuple(records)


def user_metadata(variable: Any) -> dict[str, Any]:
    """Returns a Variable's metadata without what an implementation adds by itself."""
    return {k: v for k, v in variable.get_metadata().items() if k not in IMPLICIT_METADATA}


def variable_record(variable: Any) -> tuple[type, Any, tuple[tuple[str, Any], ...]]:
    """Describes a Variable: class, value to the bit, and the user's metadata."""
    metadata = tuple(sorted(user_metadata(variable).items()))
    return type(variable), value_record(variable.get_value()), metadata


def sort_key(key: Any) -> tuple[bool, Any]:
    """Orders integer keys by number, before string keys."""
    return (isinstance(key, str), key)


def is_node(nnx: Any, value: Any) -> bool:
    """Tells whether a value is an object of the target that has children."""
    return isinstance(value, (nnx.Module, nnx.Pytree, nnx.Object, nnx.List, nnx.Dict))


def children(nnx: Any, node: Any) -> list[tuple[str | int, Any]]:
    """Lists a node's children, its items or public attributes, in order; others have none."""
    if isinstance(node, (nnx.List, list, tuple)):
        return list(enumerate(node))
    if isinstance(node, (nnx.Dict, Mapping)):
        return sorted(((key, node[key]) for key in node), key=lambda item: sort_key(item[0]))
    if is_node(nnx, node):
        public = ((key, value) for key, value in vars(node).items() if not key.startswith("_"))
        return sorted(public, key=lambda item: sort_key(item[0]))
    return []


def at(nnx: Any, root: Any, path: Path) -> Any:
    """Returns what stands at a path of an object graph.

    Raises:
      KeyError: the path leads nowhere.
    """
    return functools.reduce(lambda node, key: dict(children(nnx, node))[key], path, root)


def walk(nnx: Any, root: Any) -> list[tuple[Path, Any]]:
    """Lists everything in an object graph with its path, parents first, each object once."""
    found: list[tuple[Path, Any]] = []
    seen: set[int] = set()

    def visit(path: Path, value: Any) -> None:
        if isinstance(value, nnx.Variable) or is_node(nnx, value):
            if id(value) in seen:
                return
            seen.add(id(value))
        found.append((path, value))
        for key, child in children(nnx, value):
            visit((*path, key), child)

    visit((), root)
    return found


def nodes(nnx: Any, root: Any) -> list[Any]:
    """Lists the nodes of an object graph, each once."""
    return [value for _, value in walk(nnx, root) if is_node(nnx, value)]


def variables(nnx: Any, root: Any) -> list[Any]:
    """Lists the Variables of an object graph, each once."""
    return [value for _, value in walk(nnx, root) if isinstance(value, nnx.Variable)]


def snapshot(nnx: Any, root: Any, *, identities: bool = False) -> Any:
    """Describes an object graph as nested plain tuples, sharing and cycles included.

    Two graphs have equal snapshots exactly when they are equal in classes, keys, Variables (class,
    value to the bit, metadata), arrays, static values with their types, and sharing.

    Args:
      nnx: the target.
      root: the object to describe.
      identities: whether the identities of nodes, Variables and arrays take part as well.
    """
    seen: dict[int, int] = {}

    def identity(value: Any) -> tuple[int, ...]:
        return (id(value),) if identities else ()

    def visit(value: Any) -> Any:
        if isinstance(value, nnx.Variable) or is_node(nnx, value):
            if id(value) in seen:
                return ("seen", seen[id(value)])
            seen[id(value)] = len(seen)
        if isinstance(value, nnx.Variable):
            arrays = jax.tree.leaves(value.get_value()) if identities else ()
            return (*variable_record(value), *identity(value), *map(id, arrays))
        if is_array(value):
            return ("array", array_record(value), *identity(value))
        if is_node(nnx, value) or isinstance(value, (list, tuple, Mapping)):
            inner = tuple((key, visit(child)) for key, child in children(nnx, value))
            return (type(value), inner, *(identity(value) if is_node(nnx, value) else ()))
        return ("static", type(value), value)

    return visit(root)


def assert_no_tracers(nnx: Any, *roots: Any) -> None:
    """Asserts that nothing in some object graphs holds a tracer: no array, Variable or metadata.

    A trace that fails half-way must not leave its tracers behind in the objects that it changed.
    """
    for root in roots:
        for path, item in walk(nnx, root):
            held: list[Any] = [item]
            if isinstance(item, nnx.Variable):
                held = [item.get_raw_value(), item.get_metadata()]
            tracers = [x for x in jax.tree.leaves(held) if isinstance(x, jax.core.Tracer)]
            assert not tracers, f"a {type(item).__name__} at {path} holds {tracers}"


def state_items(state: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Lists a State's leaves with their paths, in canonical order, read by item alone."""
    if not isinstance(state, Mapping):
        return [(path, state)]
    keys = sorted(state, key=sort_key)
    return [item for key in keys for item in state_items(state[key], (*path, key))]


def leaf_record(nnx: Any, leaf: Any) -> Any:
    """Describes a State's leaf, a Variable or an array."""
    return variable_record(leaf) if isinstance(leaf, nnx.Variable) else array_record(leaf)


def names_path(message: str, path: Path) -> bool:
    """Tells whether a message names a path, however spelled: `a.0.b`, `a/0/b`, `('a', 0, 'b')`."""
    joined = r"\W+".join(re.escape(str(key)) for key in path)
    return re.search(rf"(?<!\w){joined}(?!\w)", message) is not None


def leaves(plan: Plan, path: Path = ()) -> Iterator[tuple[Path, Plan]]:
    """Yields everything in a plan that is no node, with its path, in canonical order."""
    if isinstance(plan, NodePlan):
        for key, child in sorted(plan.children, key=lambda item: sort_key(item[0])):
            yield from leaves(child, (*path, key))
    else:
        yield path, plan


def objects(plan: Plan) -> list[tuple[Plan, list[Path]]]:
    """Lists a plan's objects by number, each with every path to it that does not go in circles.

    A path that comes back to an ancestor ends there.
    """
    found = _links(plan)
    paths: list[list[Path]] = [[] for _ in found]

    def walk(number: int, path: Path, above: tuple[int, ...]) -> None:
        paths[number].append(path)
        if number not in above:
            for key, child in found[number][1]:
                if isinstance(child, int):
                    walk(child, (*path, key), (*above, number))

    walk(0, (), ())
    return [(item, paths[number]) for number, (item, _) in enumerate(found)]


def has_sharing(plan: Plan) -> bool:
    """Tells whether some object stands at more than one place of the plan."""
    return any(isinstance(item, SharedPlan) for _, item in leaves(plan))


def has_cycle(plan: Plan) -> bool:
    """Tells whether some object of the plan can be reached from itself."""
    return any(
        path != other and path == other[: len(path)]
        for _, paths in objects(plan)
        for path in paths
        for other in paths
    )


def graph_items(plan: Plan) -> list[tuple[Path, VariablePlan | ArrayPlan]]:
    """Lists what a plan's State holds, in canonical order: Variables and arrays with their paths.

    What can be reached by several paths stands at the first of them only.
    """
    found = _links(plan)
    seen: set[int] = set()

    def walk(item: int | Plan, path: Path) -> Iterator[tuple[Path, VariablePlan | ArrayPlan]]:
        if isinstance(item, ArrayPlan):
            yield path, item
        elif isinstance(item, int) and item not in seen:
            seen.add(item)
            plan, inner = found[item]
            if isinstance(plan, VariablePlan):
                yield path, plan
            for key, child in sorted(inner, key=lambda entry: sort_key(entry[0])):
                yield from walk(child, (*path, key))

    return list(walk(0, ()))


def state_paths(plan: Plan) -> list[Path]:
    """Lists where a plan's State holds Variables and arrays, in canonical order."""
    return [path for path, _ in graph_items(plan)]


_Link = tuple[Plan, list[tuple[str | int, "int | Plan"]]]


def _links(plan: Plan) -> list[_Link]:
    """Lists a plan's objects by number with their children, which are objects' numbers or plans."""
    found: list[_Link] = []

    def visit(item: Plan) -> int | Plan:
        if isinstance(item, SharedPlan):
            return item.to
        if isinstance(item, (ArrayPlan, StaticPlan)):
            return item
        number = len(found)
        inner: list[tuple[str | int, int | Plan]] = []
        found.append((item, inner))
        if isinstance(item, NodePlan):
            for key, child in item.children:
                inner.append((key, visit(child)))
        return number

    visit(plan)
    return found
