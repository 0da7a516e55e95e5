"""The functional API: objects as (structure, state) and back.

    graphdef, state = split(model)             # structure, and the Variables as a State
    graphdef, params, rest = split(model, Param, ...)
    model = merge(graphdef, params, rest)      # a new object, equal to the old one
    update(model, state)                       # values into the Variables that are there

Who shares what. The functions that read an object leave it as it is. A State's leaves are the
object's own Variables and arrays, and `merge` makes new objects around the Variables of the States
that it is given: what is written on one side is seen on the other. `merge(..., copy=True)` and
`clone` make new Variables, which are independent. So does JAX with whatever goes through its
transforms and `jax.tree.map`.

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
from nnx_reference.jax_private import Trace, current_trace
from nnx_reference.nesting import gather, nest
from nnx_reference.pytree import Key, Path, Pytree
from nnx_reference.state import FlatState, State, from_flat_state, sorted_keys
from nnx_reference.tables import Flat, GraphDef, VariableDef
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
      ValueError: something is shared, or no JAX pytree, and the mode is tree mode.
    """
    flat = tables.flatten(node)
    if resolve_graph(graph):
        return flat
    _check_pytrees(flat, function)
    if flat.graphdef.is_tree:
        return flat
    if references := flat.graphdef.references():
        raise ValueError(_describe_sharing(flat, references, function))
    return flat


def _check_pytrees(flat: Flat, function: str) -> None:
    for path, node in zip(flat.graphdef.node_paths, flat.nodes, strict=True):
        if isinstance(node, Pytree) and not node._pytree_enabled:
            raise ValueError(
                f"nnx.{function} in tree mode (graph=False) takes no object of a class that is no"
                f" JAX pytree, and {type(node).__name__} is made with pytree=False. Found at path"
                f" {path}. Let the class be a pytree, or use nnx.{function}(..., graph=True)."
            )


def _describe_sharing(
    flat: Flat, references: Sequence[tuple[int, bool, list[Path]]], function: str
) -> str:
    lines = []
    for number, is_a_node, paths in references:
        shared = (flat.nodes if is_a_node else flat.leaves)[number]
        lines.append(f"\n  {type(shared).__name__} at {', '.join(map(str, paths))}")
    return (
        f"nnx.{function} in tree mode (graph=False) does not support shared references; found at"
        f" paths:{''.join(lines)}\n"
        f"Put separate objects there, or use nnx.{function}(..., graph=True)."
    )


def _copies(graphdef: GraphDef[Any], leaves: Sequence[Any]) -> list[Any]:
    """Returns leaves that share no Variable, container or NumPy buffer with the given ones.

    Only the buffers of a capture are shared.
    """
    trace = current_trace()
    made = [
        _independent(leaf, trace) if isinstance(leaf, Variable) else unaliased(leaf)
        for leaf in leaves
    ]
    for number in graphdef.buffers:
        made[number] = leaves[number]
    return made


def _independent(variable: Variable[Any], trace: Trace) -> Variable[Any]:
    """Returns a copy of a Variable at the current trace level."""
    kind, metadata = type(variable), variable._metadata
    if metadata.by_reference:
        return variable_of(kind, variable._load(), metadata)
    return new_variable(kind, unaliased(variable._load()), metadata, trace)


def split(node: A, /, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]:
    """Splits an object graph into structure and state.

    The leaves of the state are the object's own Variables and arrays.

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
    if not filters:
        return [nest(flat.graphdef, flat.leaves)]
    pairs = zip(flat.graphdef.paths, flat.leaves, strict=True)
    groups = partition(pairs, filters) if exhaustive else select(pairs, filters)
    return [state_of(group) for group in groups]


def state_of(group: Pairs) -> Any:
    """Makes a State of a group; a leaf at the root is its own state."""
    return group[0][1] if group and group[0][0] == () else from_flat_state(group)


def merge(
    graphdef_or_graphstate: Any,
    /,
    *states: Any,
    copy: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """Builds a new object graph of structure and state; the inverse of `split`.

    Args:
      graphdef_or_graphstate: a GraphDef, or what `unpack` gives.
      *states: States or nested mappings, in any number and order, that have a leaf for each path of
        the structure: a Variable of the class that belongs there, or a value for it.
      copy: whether the object gets copies of the Variables, and of their arrays; if not, it holds
        the States' own.
      recreate_variables: whether a value that stands for a Variable becomes one; if not, the value
        itself takes the Variable's place.

    Raises:
      ValueError: a leaf is missing, is surplus, or is a Variable of another class; the error names
        the path.
      TypeError: the first argument is neither a GraphDef nor a GraphState, or there is no State.
    """
    if isinstance(graphdef_or_graphstate, GraphState):
        states = (graphdef_or_graphstate._state, *[_bare(one) for one in states])
        graphdef_or_graphstate = graphdef_or_graphstate._graphdef
    if not isinstance(graphdef_or_graphstate, GraphDef):
        raise TypeError(
            f"merge takes a GraphDef first, not {type(graphdef_or_graphstate).__name__}"
        )
    if not states:
        raise TypeError("merge() missing 1 required positional argument: 'state'")
    leaves = _checked(
        graphdef_or_graphstate, gather(graphdef_or_graphstate, states), recreate_variables
    )
    if copy:
        leaves = [*map(_with_copied_arrays, _copies(graphdef_or_graphstate, leaves))]
    return tables.unflatten(graphdef_or_graphstate, leaves)


def _bare(states: Any) -> Any:
    return states._state if isinstance(states, GraphState) else states


def _checked(
    graphdef: GraphDef[Any], leaves: Sequence[Any], recreate_variables: bool = True
) -> list[Any]:
    """Returns a leaf for each record, with a new Variable where a bare value stands for one."""
    checked: list[Any] = []
    for record, leaf in zip(graphdef.leaves, leaves, strict=True):
        if not isinstance(leaf, Variable):
            leaf = _recreated(record, leaf) if recreate_variables else leaf
        elif record is None or type(leaf) is not record.kind:
            raise ValueError(_wrong_leaf(graphdef, len(checked), leaf))
        checked.append(leaf)
    return checked


def _recreated(record: VariableDef | None, leaf: Any) -> Any:
    """Returns a new Variable in the place of a bare value that stands for one, else the leaf."""
    if record is None or isinstance(leaf, Variable):
        return leaf
    return variable_of(record.kind, unaliased(leaf), record.metadata)


def _wrong_leaf(graphdef: GraphDef[Any], number: int, leaf: Any) -> str:
    record, path = graphdef.leaves[number], graphdef.paths[number]
    expected = (
        "a value that is no Variable"
        if record is None
        else f"a {record.kind.__name__}, or a value for one"
    )
    return f"the state has a {type(leaf).__name__} at {path}, where the structure wants {expected}"


def _with_copied_arrays(leaf: Any) -> Any:
    return jax.tree.map(lambda value: value.copy() if isinstance(value, jax.Array) else value, leaf)


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
    leaves = _copies(flat.graphdef, flat.leaves)
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


def map_leaves(
    f: Callable[[Path, Any], Any],
    node: A,
    /,
    *,
    graph: bool | None = None,
    recreate_variables: bool = True,
) -> A:
    """Builds a new object graph with `f(path, leaf)` in place of each leaf; known as `nnx.map`.

    `f` gets the object's own Variables; a Variable that it returns, of whatever class, is the new
    object's own, and a value becomes a Variable where one stood, unless `recreate_variables` is
    False.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    flat = read(node, graph, "map")
    pairs = zip(flat.graphdef.paths, flat.leaves, strict=True)
    leaves = [f(path, leaf) for path, leaf in pairs]
    if recreate_variables:
        records = zip(flat.graphdef.leaves, leaves, strict=True)
        leaves = [_recreated(record, leaf) for record, leaf in records]
    return tables.unflatten(flat.graphdef, leaves)


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
        return flat.graphdef, FlatState.from_sorted_keys_values(flat.graphdef.paths, flat.leaves)
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
    return tables.unflatten(graphdef, _checked(graphdef, leaves))
