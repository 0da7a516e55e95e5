"""Nesting: from a list of leaves to a nested State and back, along the paths of a structure.

The way through the nested mappings is the same each time, so it is worked out once for each
GraphDef, as a list of steps. A step is (number of the mapping, key, number of the mapping under
that key, or 0 for a leaf); mapping 0 is the outermost one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from nnx_reference.pytree import Key, Path
from nnx_reference.state import State, from_flat_state, to_flat_state
from nnx_reference.tables import GraphDef
from nnx_reference.variables import Variable

Step = tuple[int, Key, int]


def _plan(graphdef: GraphDef[Any]) -> list[Step]:
    try:
        return graphdef._cached_plan
    except AttributeError:
        graphdef._cached_plan = _make_plan(graphdef.paths)
        return graphdef._cached_plan


def _make_plan(paths: Sequence[Path]) -> list[Step]:
    steps: list[Step] = []
    numbers: dict[Path, int] = {(): 0}
    for path in paths:
        depth = len(path) - 1
        while path[:depth] not in numbers:
            depth -= 1
        for end in range(depth, len(path) - 1):
            number = numbers[path[: end + 1]] = len(numbers)
            steps.append((numbers[path[:end]], path[end], number))
        steps.append((numbers[path[:-1]], path[-1], 0))
    return steps


def nest(graphdef: GraphDef[Any], leaves: Sequence[Any]) -> Any:
    """Makes the nested State of all leaves of a structure; a leaf at the root stands for itself."""
    if not graphdef.nodes:
        return leaves[0]
    mappings: list[dict[Key, Any]] = [{}]
    remaining = iter(leaves)
    for number, key, child in _plan(graphdef):
        if child:
            inner: dict[Key, Any] = {}
            mappings.append(inner)
            mappings[number][key] = State(inner, _copy=False)
        else:
            mappings[number][key] = next(remaining)
    return State(mappings[0], _copy=False)


def gather(graphdef: GraphDef[Any], states: Sequence[Any]) -> list[Any]:
    """Picks the leaves of a structure, in its order, from States that have them all between them.

    Raises:
      ValueError: a leaf is missing, or one is surplus; the error names its path.
    """
    if not graphdef.nodes:
        given = [one for one in states if not isinstance(one, State) or one]
        if len(given) != 1:
            raise ValueError(f"the structure is that of a single leaf, but {len(given)} are given")
        return given
    if len(states) == 1 and type(states[0]) is State:
        leaves = _gather_all(graphdef, states[0])
        if leaves is not None:
            return leaves
    return _gather_from_many(graphdef, states)


def _gather_all(graphdef: GraphDef[Any], state: State) -> list[Any] | None:
    """Picks the leaves if the State is nested just like the structure's own; None if not."""
    mappings = [state._mapping]
    leaves = []
    try:
        for number, key, child in _plan(graphdef):
            value = mappings[number][key]
            if child:
                mappings.append(value._mapping)
            else:
                leaves.append(value)
    except (KeyError, AttributeError):
        return None
    if sum(map(len, mappings)) != len(leaves) + len(mappings) - 1 or State in set(
        map(type, leaves)
    ):
        return None
    return leaves


def _gather_from_many(graphdef: GraphDef[Any], states: Sequence[Any]) -> list[Any]:
    flat: dict[Path, Any] = {}
    records = dict(zip(graphdef.paths, graphdef.leaves, strict=True))
    for one in states:
        if isinstance(one, Variable) or not isinstance(one, Mapping):
            raise ValueError(
                f"merge takes States, nested mappings, for a structure with children, not a"
                f" {type(one).__name__}"
            )
        for path, leaf in _leaves_for(one, records):
            if path in flat:
                raise ValueError(f"more than one of the States has a leaf at {path}")
            flat[path] = leaf
    leaves = [flat.pop(path, _MISSING) for path in graphdef.paths]
    if flat or any(leaf is _MISSING for leaf in leaves):
        _explain(graphdef, leaves, list(flat))
    return leaves


_MISSING: Any = object()


def _leaves_for(
    state: Mapping[Key, Any], records: Mapping[Path, Any]
) -> Iterator[tuple[Path, Any]]:
    """Yields the leaves of nested mappings; a mapping where a Variable is expected is its value."""
    stack: list[tuple[Path, Any]] = [((), state)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Variable) or not isinstance(value, Mapping):
            yield path, value
        elif records.get(path) is not None:
            yield path, as_value(value, path)
        else:
            stack.extend([((*path, key), inner) for key, inner in value.items()])


def as_value(mapping: Mapping[Key, Any], path: Path) -> dict[Key, Any]:
    """Returns a mapping from a state as a Variable's value, which holds no Variables itself.

    Raises:
      ValueError: it does; the error names the path.
    """
    for inner, leaf in to_flat_state(mapping):
        if isinstance(leaf, Variable):
            raise ValueError(
                f"the state has a {type(leaf).__name__} at {(*path, *inner)}, below the leaf {path}"
            )
    return from_flat_state(to_flat_state(mapping), cls=dict)


def _explain(graphdef: GraphDef[Any], leaves: list[Any], surplus: list[Path]) -> NoReturn:
    missing = [path for path, leaf in zip(graphdef.paths, leaves, strict=True) if leaf is _MISSING]
    faults = [f"no leaf at {path}" for path in missing[:10]] + [
        f"a surplus leaf at {path}" for path in surplus[:10]
    ]
    raise ValueError(
        f"the state does not fit the structure ({len(missing)} of {len(leaves)} leaves missing,"
        f" {len(surplus)} surplus):" + "".join(f"\n  {fault}" for fault in faults)
    )
