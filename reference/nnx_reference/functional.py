"""The functional API: objects as (structure, state) and back.

    graphdef, state = split(model)             # structure, and the Variables as a State
    graphdef, params, rest = split(model, Param, ...)
    model = merge(graphdef, params, rest)      # a new object, equal to the old one
    update(model, state)                       # values into the Variables that are there

Who shares what. The functions that read an object leave it as it is. A State's Variables are new
objects, with the same array objects as values: writing to one side is not seen by the other.
`merge` makes new objects and new Variables, and leaves the States that it is given alone. `clone`
is a split and a merge.

A hijax Variable holds its value by reference, and it is the reference that is shared: what is
written to an object that was merged from the State of another is seen in that, too. A `clone` is
independent all the same.

Tree mode and graph mode. With `graph=False` an object that is met twice is an error, which names
its paths; with `graph=True` it is one object in the structure and one after `merge`. `graph=None`
asks `set_graph_mode`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.tree_util import DictKey

from nnx_reference import tables
from nnx_reference.configuration import resolve_graph
from nnx_reference.filters import Filter
from nnx_reference.grouping import Pairs, partition, select
from nnx_reference.jax_private import current_trace
from nnx_reference.nesting import gather, nest
from nnx_reference.pytree import Key, Path
from nnx_reference.state import FlatState, State, from_flat_state, sorted_keys
from nnx_reference.tables import Flat, GraphDef
from nnx_reference.values import unaliased
from nnx_reference.variables import Variable, new_variable, variable_of

A = TypeVar("A")


def read(node: Any, graph: bool | None, function: str) -> Flat:
    """Takes a graph apart, in tree mode or in graph mode.

    Args:
      node: the graph's root.
      graph: the mode; None for that of `set_graph_mode`.
      function: the function that was called, for the error.

    Raises:
      ValueError: something is shared, and the mode is tree mode.
    """
    flat = tables.flatten(node)
    if flat.graphdef.is_tree or resolve_graph(graph):
        return flat
    if references := flat.graphdef.references():
        raise ValueError(_describe_sharing(flat, references, function))
    return flat


def _describe_sharing(
    flat: Flat, references: Sequence[tuple[int, bool, list[Path]]], function: str
) -> str:
    lines = []
    for number, is_a_node, paths in references:
        shared = (flat.nodes if is_a_node else flat.leaves)[number]
        lines.append(f"\n  {type(shared).__name__} at {', '.join(map(str, paths))}")
    return (
        f"nnx.{function} in tree mode (graph=False) takes no shared references, but there are:"
        f"{''.join(lines)}\n"
        f"Put separate objects there, or use nnx.{function}(..., graph=True)."
    )


def copies(flat: Flat) -> list[Any]:
    """Returns the leaves of a graph as such that share no Variable, container or NumPy buffer.

    What a Variable holds by reference is shared, and so are the buffers of a capture.
    """
    trace = current_trace()
    made = [
        new_variable(type(leaf), leaf._copied(), leaf._metadata, trace)
        if isinstance(leaf, Variable)
        else unaliased(leaf)
        for leaf in flat.leaves
    ]
    for number in flat.graphdef.buffers:
        made[number] = flat.leaves[number]
    return made


def split(node: A, /, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]:
    """Splits an object graph into structure and state.

    Args:
      node: an object, a container of objects, or a leaf.
      *filters: group the state; each leaf goes to the first filter that selects it.
      graph: True for graph mode, False for tree mode, None for the default.

    Returns:
      The GraphDef, and a State for each filter, or one with all. If `node` is itself a leaf, the
      leaf stands where the State would.

    Raises:
      ValueError: no filter selects some leaf, or `...` is not the last filter; or, in tree mode,
        something is shared.
    """
    flat = read(node, graph, "split")
    return flat.graphdef, *_states(flat, filters, exhaustive=True)


def state(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Returns the state that filters select, and all of it without filters; otherwise like `split`.

    Returns:
      A State, or a tuple of one for each filter if there are several.

    Raises:
      ValueError: `...` is not the last filter; or, in tree mode, something is shared.
    """
    states = _states(read(node, graph, "state"), filters, exhaustive=False)
    return states[0] if len(states) == 1 else tuple(states)


def variables(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Returns `state(node, *filters, graph=graph)`."""
    return state(node, *filters, graph=graph)


def graphdef(node: Any, /, *, graph: bool | None = None) -> GraphDef[Any]:
    """Returns the structure alone: `split(node)[0]`.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    return read(node, graph, "graphdef").graphdef


def _states(flat: Flat, filters: Sequence[Filter], exhaustive: bool) -> list[Any]:
    leaves = copies(flat)
    if not filters:
        return [nest(flat.graphdef, leaves)]
    pairs = zip(flat.graphdef.paths, leaves, strict=True)
    groups = partition(pairs, filters) if exhaustive else select(pairs, filters)
    return [state_of(group) for group in groups]


def state_of(group: Pairs) -> Any:
    """Makes a State of a group; a leaf at the root is its own state."""
    return group[0][1] if group and group[0][0] == () else from_flat_state(group)


def merge(graphdef_or_graphstate: Any, /, *states: Any, copy: bool = False) -> Any:
    """Builds a new object graph of structure and state; the inverse of `split`.

    Args:
      graphdef_or_graphstate: a GraphDef, or what `unpack` gives.
      *states: States or nested mappings, in any number and order, that have a leaf for each path of
        the structure: a Variable of the class that belongs there, or a value for it.
      copy: whether the arrays are copied, too.

    Raises:
      ValueError: a leaf is missing, is surplus, or is a Variable of another class; the error names
        the path.
      TypeError: the first argument is neither a GraphDef nor a GraphState.
    """
    if isinstance(graphdef_or_graphstate, GraphState):
        states = (graphdef_or_graphstate._state, *[_bare(one) for one in states])
        graphdef_or_graphstate = graphdef_or_graphstate._graphdef
    if not isinstance(graphdef_or_graphstate, GraphDef):
        raise TypeError(
            f"merge takes a GraphDef first, not {type(graphdef_or_graphstate).__name__}"
        )
    leaves = _checked_copies(graphdef_or_graphstate, gather(graphdef_or_graphstate, states))
    if copy:
        leaves = [_with_copied_arrays(leaf) for leaf in leaves]
    return tables.unflatten(graphdef_or_graphstate, leaves)


def _bare(states: Any) -> Any:
    return states._state if isinstance(states, GraphState) else states


def _checked_copies(graphdef: GraphDef[Any], leaves: list[Any]) -> list[Any]:
    """Returns a leaf for each record: a new Variable or the value itself."""
    trace = current_trace()
    checked: list[Any] = []
    for record, leaf in zip(graphdef.leaves, leaves, strict=True):
        if record is None:
            if isinstance(leaf, Variable):
                raise ValueError(_wrong_leaf(graphdef, len(checked), leaf))
            checked.append(unaliased(leaf))
        elif isinstance(leaf, Variable):
            if type(leaf) is not record.kind:
                raise ValueError(_wrong_leaf(graphdef, len(checked), leaf))
            checked.append(new_variable(record.kind, leaf._copied(), leaf._metadata, trace))
        else:
            checked.append(variable_of(record.kind, unaliased(leaf), record.metadata))
    for number in graphdef.buffers:
        if isinstance(leaves[number], Variable):
            checked[number] = leaves[number]
    return checked


def _wrong_leaf(graphdef: GraphDef[Any], number: int, leaf: Any) -> str:
    record, path = graphdef.leaves[number], graphdef.paths[number]
    expected = (
        "a value that is no Variable"
        if record is None
        else f"a {record.kind.__name__}, or a value for one"
    )
    return f"the state has a {type(leaf).__name__} at {path}, where the structure wants {expected}"


def _with_copied_arrays(leaf: Any) -> Any:
    leaf = _independent(leaf)
    return jax.tree.map(lambda value: value.copy() if isinstance(value, jax.Array) else value, leaf)


def _independent(leaf: Any) -> Any:
    """Returns a Variable that shares nothing held by reference; other leaves as they are."""
    if isinstance(leaf, Variable) and leaf._metadata.by_reference:
        return variable_of(type(leaf), leaf._load(), leaf._metadata)
    return leaf


def clone(node: A, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> A:
    """Copies an object graph, its sharing included.

    Args:
      node: an object, a container of objects, or a leaf.
      variables: whether Variables are copied, too; if not, the copy holds the very same Variables.
      arrays: whether arrays are copied, too, so that the buffers of one side can be donated. If
        not, both sides' values are the same array objects until one side is written.
      graph: True for graph mode, False for tree mode, None for the default.

    Raises:
      ValueError: `arrays` without `variables`; or, in tree mode, something is shared.
    """
    if arrays and not variables:
        raise ValueError(
            "clone cannot copy arrays and share the Variables that hold them; let variables=True"
        )
    flat = read(node, graph, "clone")
    leaves = [*map(_independent, copies(flat))]
    if arrays:
        leaves = [_with_copied_arrays(leaf) for leaf in leaves]
    if not variables:
        pairs = zip(flat.leaves, leaves, strict=True)
        leaves = [old if isinstance(old, Variable) else new for old, new in pairs]
    return tables.unflatten(flat.graphdef, leaves)


class GraphState(State):
    """A State with the structure that it belongs to, as `unpack` gives it and `merge` takes it."""

    __slots__ = ("_graphdef",)

    _graphdef: GraphDef[Any]

    def __init__(self, _graphdef: GraphDef[Any], _state: Mapping[Key, Any]) -> None:
        """Bundles a structure and a State."""
        super().__init__(
            _state._mapping if isinstance(_state, State) else _state,
            _copy=not isinstance(_state, State),
        )
        object.__setattr__(self, "_graphdef", _graphdef)

    @property
    def _state(self) -> State:
        return State(self._mapping, _copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphState, (self._graphdef, self._state)


def _flatten(both: GraphState) -> tuple[list[Any], tuple[GraphDef[Any], tuple[Key, ...]]]:
    keys = sorted_keys(both)
    return [both[key] for key in keys], (both._graphdef, tuple(keys))


def _flatten_with_keys(both: GraphState) -> tuple[list[Any], tuple[GraphDef[Any], tuple[Key, ...]]]:
    children, (graphdef, keys) = _flatten(both)
    return [(DictKey(key), child) for key, child in zip(keys, children, strict=True)], (
        graphdef,
        keys,
    )


def _unflatten(
    structure: tuple[GraphDef[Any], tuple[Key, ...]], children: Iterable[Any]
) -> GraphState:
    graphdef, keys = structure
    return GraphState(graphdef, State(dict(zip(keys, children, strict=True)), _copy=False))


jax.tree_util.register_pytree_with_keys(GraphState, _flatten_with_keys, _unflatten, _flatten)


def unpack(node: Any, /, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits as `split` does, and bundles the structure with each State.

    Returns:
      A GraphState, or a tuple of one for each filter if there are several.

    Raises:
      ValueError: as for `split`.
    """
    structure, *states = split(node, *filters, graph=graph)
    bundles = [GraphState(structure, one) for one in states]
    return bundles[0] if len(bundles) == 1 else tuple(bundles)


def map_leaves(f: Callable[[Path, Any], Any], node: A, /, *, graph: bool | None = None) -> A:
    """Builds a new object graph with `f(path, leaf)` in place of each leaf; known as `nnx.map`.

    Raises:
      ValueError: what `f` returns is a Variable of another class; or, in tree mode, something is
        shared.
    """
    flat = read(node, graph, "map")
    pairs = zip(flat.graphdef.paths, copies(flat), strict=True)
    return tables.unflatten(
        flat.graphdef, _checked_copies(flat.graphdef, [f(path, leaf) for path, leaf in pairs])
    )


def flatten(
    node: Any, /, *, with_paths: bool = True, graph: bool | None = None
) -> tuple[GraphDef[Any], FlatState | list[Any]]:
    """Splits an object graph into structure and a flat list of leaves.

    Args:
      node: an object, a container of objects, or a leaf.
      with_paths: whether the leaves come as a FlatState, with Variables in it, or as a list of
        plain values.
      graph: True for graph mode, False for tree mode, None for the default.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    flat = read(node, graph, "flatten")
    if with_paths:
        return flat.graphdef, FlatState.from_sorted_keys_values(flat.graphdef.paths, copies(flat))
    return flat.graphdef, [
        leaf._load() if isinstance(leaf, Variable) else leaf for leaf in flat.leaves
    ]


def unflatten(graphdef: GraphDef[A], state: FlatState | Mapping[Key, Any] | list[Any], /) -> A:
    """Builds a new object graph of what `flatten` gives, or of a State.

    Raises:
      ValueError: a leaf is missing, is surplus, or is a Variable of another class.
    """
    if isinstance(state, Mapping):
        return merge(graphdef, state)
    leaves = state.leaves if isinstance(state, FlatState) else state
    if len(leaves) != graphdef.num_leaves:
        raise ValueError(
            f"the structure has {graphdef.num_leaves} leaves, but {len(leaves)} are given"
        )
    return tables.unflatten(graphdef, _checked_copies(graphdef, leaves))
