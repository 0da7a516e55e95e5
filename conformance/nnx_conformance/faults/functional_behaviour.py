"""Faults of the functional API's behaviour: configuration, States, cost, independence."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables_kept import Loose


def _variables(nnx: Any, node: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the Variables of an object graph with their paths."""
    for path, value in nnx.iter_graph(node, graph=True):
        if isinstance(value, nnx.Variable):
            yield path, value


def _leaves(nnx: Any, state: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Lists a State's leaves with their paths."""
    return list(nnx.to_flat_state(state))


def _is_traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


@fault(breaks="GRF-017")
def scope_outlives_an_exception(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A block under `set_graph_mode` that raises leaves its value set."""
    original = nnx.set_graph_mode

    class Leaky:
        current_value = original.current_value

        def __init__(self, value: bool) -> None:
            self._before = original.current_value()
            original(value)

        def __enter__(self) -> None:
            pass

        def __exit__(self, kind: type | None, *rest: object) -> None:
            if kind is None:
                original(self._before)

    patch.setattr(nnx, "set_graph_mode", Leaky)


@fault(breaks="GRF-017")
def scope_is_seen_by_other_threads(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A block under `set_graph_updates` sets the default of all threads."""
    values = [nnx.set_graph_updates.current_value()]

    class Shared:
        def __init__(self, value: bool) -> None:
            self._before = values[0]
            values[0] = value

        @staticmethod
        def current_value() -> bool:
            return values[0]

        def __enter__(self) -> None:
            pass

        def __exit__(self, *exception: object) -> None:
            values[0] = self._before

    patch.setattr(nnx, "set_graph_updates", Shared)


@fault(breaks="GRF-017")
def environment_is_ignored(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_graph_updates` starts from True, whatever `NNX_GRAPH_UPDATES` says."""
    original = nnx.set_graph_updates

    used = []

    class FromTrue:
        def __init__(self, value: bool) -> None:
            used.append(True)
            self._scope = original(value)

        @staticmethod
        def current_value() -> bool:
            return bool(original.current_value()) if used else True

        def __enter__(self) -> None:
            self._scope.__enter__()

        def __exit__(self, *exception: Any) -> None:
            self._scope.__exit__(*exception)

    patch.setattr(nnx, "set_graph_updates", FromTrue)


def _patch_switch(
    nnx: Any, patch: pytest.MonkeyPatch, decorate: Callable[[Any, bool, Any], Any]
) -> None:
    """Replaces `set_graph_mode` by one that decorates by `decorate(original, value, function)`."""
    original = nnx.set_graph_mode

    class Switch:
        current_value = original.current_value

        def __init__(self, value: bool, /) -> None:
            self._value = value
            self._scope = original(value)

        def __enter__(self) -> None:
            self._scope.__enter__()

        def __exit__(self, *exception: Any) -> None:
            self._scope.__exit__(*exception)

        def __call__(self, function: Any) -> Any:
            self._scope(function)
            return decorate(original, self._value, function)

    patch.setattr(nnx, "set_graph_mode", Switch)


@fault(breaks="GRF-033")
def decorated_function_keeps_the_default(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A function decorated with `set_graph_mode` runs with the default that the caller has."""
    _patch_switch(nnx, patch, lambda original, value, function: function)


@fault(breaks="GRF-033")
def decorated_function_sets_for_good(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A call of a function decorated with `set_graph_mode` leaves the value set if it raises."""

    def decorate(original: Any, value: bool, function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = original.current_value()
            original(value)
            result = function(*args, **kwargs)
            original(before)
            return result

        return wrapper

    _patch_switch(nnx, patch, decorate)


@fault(breaks="GRF-033")
def decorator_holds_from_now_on(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Decorating with `set_graph_mode` sets the default as well."""

    def decorate(original: Any, value: bool, function: Any) -> Any:
        original(value)
        return function

    _patch_switch(nnx, patch, decorate)


@fault(breaks="GRF-017")
def clone_ignores_the_default(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` takes `graph=None` for graph mode, whatever the default is."""
    original = nnx.clone

    def clone(node: Any, *args: Any, graph: bool | None = None, **options: Any) -> Any:
        return original(node, *args, graph=True if graph is None else graph, **options)

    patch.setattr(nnx, "clone", clone)


@fault(breaks="GRF-018")
def merge_marks_traced_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` inside a JAX transform adds to the metadata of the Variables."""
    original = nnx.merge

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        merged = original(graphdef, *states, **options)
        if _is_traced(states):
            nnx.set_metadata(merged, traced=True)
        return merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="GRF-018")
def merge_keeps_the_last_object(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` inside a transform gives back the object that it made before for the graphdef."""
    original = nnx.merge
    made: dict[Any, Any] = {}

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        if not _is_traced(states):
            return original(graphdef, *states, **options)
        if graphdef not in made:
            made[graphdef] = original(graphdef, *states, **options)
        nnx.update(made[graphdef], *states)
        return made[graphdef]

    patch.setattr(nnx, "merge", merge)


@fault(breaks="GRF-019")
def merge_makes_tuples_of_lists(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` gives a tuple for a list of objects."""
    original = nnx.merge

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        merged = original(graphdef, *states, **options)
        return tuple(merged) if type(merged) is list else merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="GRF-019")
def update_stops_after_the_first_member(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` of a tuple or list writes to its first member only."""
    original = nnx.update

    def update(node: Any, state: Any, *states: Any) -> None:
        if type(node) in (tuple, list):
            whole = nnx.merge_state(state, *states)
            state, states = nnx.State({key: whole[key] for key in whole if key == 0}), ()
        original(node, state, *states)

    patch.setattr(nnx, "update", update)


@fault(breaks="GRF-020")
def union_keeps_the_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`a | b` keeps the leaf of `a` where both States have one."""
    original = nnx.State.__or__
    patch.setattr(nnx.State, "__or__", lambda self, other: original(other, self))


@fault(breaks="GRF-020")
def difference_goes_by_the_first_key(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`a - b` drops everything below a key of `a` that `b` has, too."""

    def subtract(self: Any, other: Any) -> Any:
        return nnx.State({key: self[key] for key in self if key not in other})

    patch.setattr(nnx.State, "__sub__", subtract)


@fault(breaks="GRF-020")
def filtered_groups_overlap(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`filter_state` gives a leaf to every filter that selects it."""
    original = nnx.filter_state

    def filter_state(state: Any, first: Any, /, *filters: Any) -> Any:
        groups = tuple(original(state, item) for item in (first, *filters))
        return groups if filters else groups[0]

    patch.setattr(nnx, "filter_state", filter_state)


@fault(breaks="GRF-020")
def flat_states_lose_the_deepest_leaf(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`from_flat_state` cuts paths after the third key."""
    original = nnx.from_flat_state

    def from_flat_state(flat: Any, **options: Any) -> Any:
        items = flat.items() if isinstance(flat, Mapping) else flat
        return original({path[:3]: leaf for path, leaf in items}, **options)

    patch.setattr(nnx, "from_flat_state", from_flat_state)


@fault(breaks="GRF-021")
def integers_are_restored_at_the_top_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`restore_int_paths` leaves the keys of nested dicts strings."""

    def restore_int_paths(pure: dict[Any, Any]) -> dict[Any, Any]:
        return {int(k) if str(k).isdigit() else k: item for k, item in pure.items()}

    patch.setattr(nnx, "restore_int_paths", restore_int_paths)


@fault(breaks="GRF-021")
def pure_dicts_replace_the_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`replace_by_pure_dict` removes the metadata `tag` of the Variables."""
    original = nnx.replace_by_pure_dict

    def replace_by_pure_dict(state: Any, *args: Any) -> None:
        original(state, *args)
        for _, leaf in _leaves(nnx, state):
            if isinstance(leaf, nnx.Variable) and "tag" in leaf.get_metadata():
                leaf.del_metadata("tag")

    patch.setattr(nnx, "replace_by_pure_dict", replace_by_pure_dict)


@fault(breaks="GRF-021")
def pure_dicts_hold_numpy_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`to_pure_dict` copies the arrays to NumPy."""
    original = nnx.to_pure_dict
    patch.setattr(
        nnx, "to_pure_dict", lambda state, *args: jax.tree.map(np.asarray, original(state, *args))
    )


@fault(breaks="GRF-022")
def pure_forgets_containers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`as_pure` does not look into tuples."""
    original = nnx.as_pure

    def as_pure(tree: Any) -> Any:
        return jax.tree.map(
            lambda item: item if isinstance(item, tuple) else original(item),
            tree,
            is_leaf=lambda item: isinstance(item, (tuple, nnx.Variable)),
        )

    patch.setattr(nnx, "as_pure", as_pure)


@fault(breaks="GRF-022")
def trees_share_nothing_between_members(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`to_tree` takes each member of a tuple or dict for itself, and so does `from_tree`."""

    def by_member(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def apply(tree: Any) -> Any:
            if type(tree) is tuple:
                return tuple(apply(item) for item in tree)
            if type(tree) is dict:
                return {key: apply(item) for key, item in tree.items()}
            return function(tree)

        return apply

    patch.setattr(nnx, "to_tree", by_member(nnx.to_tree))
    patch.setattr(nnx, "from_tree", by_member(nnx.from_tree))


@fault(breaks="GRF-023")
def structure_ignores_the_tag(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """States of Variables whose metadata `tag` differs have equal structure."""
    original = nnx.state

    def state(node: Any, *filters: Any, **options: Any) -> Any:
        found = original(node, *filters, **options)
        for _, leaf in _leaves(nnx, found) if not filters else ():
            if isinstance(leaf, nnx.Variable) and isinstance(leaf.get_metadata().get("tag"), str):
                leaf.set_metadata(tag=Loose(leaf.get_metadata()["tag"]))
        return found

    patch.setattr(nnx, "state", state)


def _without_attributes(
    nnx: Any, patch: pytest.MonkeyPatch, dropped: Callable[[Any], bool]
) -> None:
    """Makes `merge` lose the attributes whose value is to be dropped."""
    original = nnx.merge

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        merged = original(graphdef, *states, **options)
        nodes = [x for _, x in nnx.iter_graph(merged, graph=True) if isinstance(x, nnx.Module)]
        for node in nodes:
            for name, value in list(vars(node).items()):
                if not name.startswith("_") and dropped(value):
                    delattr(node, name)
        return merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="GRF-024")
def merge_drops_none(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` leaves out attributes that are None."""
    _without_attributes(nnx, patch, lambda value: value is None)


@fault(breaks="GRF-024")
def merge_drops_empty_lists(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` leaves out attributes that are Lists without items."""
    _without_attributes(nnx, patch, lambda value: isinstance(value, nnx.List) and len(value) == 0)


@fault(breaks="GRF-025")
def integers_sort_as_text(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`to_flat_state` puts the key 10 before 9."""
    original = nnx.to_flat_state

    def to_flat_state(state: Any) -> Any:
        return sorted(original(state), key=lambda item: [str(key) for key in item[0]])

    patch.setattr(nnx, "to_flat_state", to_flat_state)


@fault(breaks="GRF-038")
def mixed_keys_are_refused(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`map_state` compares integer keys with strings, and so raises where both occur."""
    original = nnx.map_state

    def map_state(f: Any, state: Any) -> Any:
        sorted(path for path, _ in nnx.to_flat_state(state))
        return original(f, state)

    patch.setattr(nnx, "map_state", map_state)


def _partial_of(nnx: Any, patch: pytest.MonkeyPatch, bound: Callable[[Any], Any]) -> None:
    """Makes `cached_partial` bind what a function gives for the nodes, and check nothing."""

    def cached_partial(f: Any, *nodes: Any, **options: Any) -> Any:
        return functools.partial(f, *bound(nodes))

    patch.setattr(nnx, "cached_partial", cached_partial)


@fault(breaks="GRF-026")
def partial_keeps_updates_to_itself(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cached_partial` copies the Variables of the nodes that it binds."""
    original = nnx.cached_partial
    patch.setattr(
        nnx, "cached_partial", lambda f, *nodes: original(f, *nnx.clone(nodes, graph=True))
    )


@fault(breaks="GRF-026")
def partial_lets_the_structure_change(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cached_partial` does not notice a change of structure."""
    _partial_of(nnx, patch, lambda nodes: nnx.clone(nodes, variables=False, graph=True))


@fault(breaks="GRF-026")
def partial_binds_the_nodes_themselves(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cached_partial` hands the nodes themselves to the function."""
    _partial_of(nnx, patch, lambda nodes: nodes)


@fault(breaks="GRF-027")
def split_stops_at_a_limit(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` takes the first 8,192 leaves of a large object alone."""
    original = nnx.split

    def split(node: Any, *filters: Any, **options: Any) -> Any:
        graphdef, *states = original(node, *filters, **options)
        flat = [list(nnx.to_flat_state(state)) for state in states if isinstance(state, nnx.State)]
        if sum(map(len, flat)) > 8_192:
            states = [nnx.from_flat_state(items[:8_192]) for items in flat]
        return graphdef, *states

    patch.setattr(nnx, "split", split)


@fault(breaks="GRF-039")
def split_looks_through_all_leaves_for_each(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` compares each leaf with up to 400 others."""
    original = nnx.split

    def split(node: Any, *filters: Any, **options: Any) -> Any:
        parts = original(node, *filters, **options)
        found = [id(leaf) for state in parts[1:] for leaf in jax.tree.leaves(state)]
        for leaf in found:
            for other in found[:400]:
                operator.eq(leaf, other)
        return parts

    patch.setattr(nnx, "split", split)


@fault(breaks="GRF-039")
def merge_calls_itself_for_each_level(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` takes two nested Python calls for each level of the object."""
    original = nnx.merge

    def descend(state: Any) -> int:
        return 1 + max(map(below, state.values()), default=0)

    def below(item: Any) -> int:
        return descend(item) if isinstance(item, Mapping) else 0

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        for state in states:
            below(state)
        return original(graphdef, *states, **options)

    patch.setattr(nnx, "merge", merge)


@fault(breaks="GRF-028")
def duplicates_are_found_by_copying(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`find_duplicates` puts equal copies in place of the arrays in Variables."""
    original = nnx.find_duplicates

    def find_duplicates(node: Any, **options: Any) -> Any:
        found = original(node, **options)
        for _, variable in _variables(nnx, node):
            variable.set_value(jax.tree.map(jnp.array, variable.get_value()))
        return found

    patch.setattr(nnx, "find_duplicates", find_duplicates)


@fault(breaks="GRF-028")
def filter_state_takes_away(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`filter_state` removes what it finds at the top of the State that it reads."""
    original = nnx.filter_state

    def filter_state(state: Any, *filters: Any) -> Any:
        found = original(state, *filters)
        for group in found if len(filters) > 1 else (found,):
            for path, _ in _leaves(nnx, group):
                if len(path) == 1:
                    del state[path[0]]
        return found

    patch.setattr(nnx, "filter_state", filter_state)


@fault(breaks="GRF-029")
def duplicates_are_variables_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`find_duplicates` overlooks nodes that stand at several places."""
    original = nnx.find_duplicates
    patch.setattr(nnx, "find_duplicates", lambda node: original(node, only=nnx.Variable))


@fault(breaks="GRF-029")
def duplicates_come_in_pairs(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`find_duplicates` lists no more than two places for each object."""
    original = nnx.find_duplicates
    patch.setattr(
        nnx, "find_duplicates", lambda node, **options: [x[:2] for x in original(node, **options)]
    )


@fault(breaks="GRF-030")
def set_metadata_selects_exact_classes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_metadata` passes over Variables of a class below the one that `only` names."""
    original = nnx.set_metadata

    def set_metadata(node: Any, *, only: Any = ..., **metadata: Any) -> None:
        if isinstance(only, type):
            wanted = only
            original(node, only=lambda path, value: type(value) is wanted, **metadata)
        else:
            original(node, only=only, **metadata)

    patch.setattr(nnx, "set_metadata", set_metadata)


@fault(breaks="GRF-030")
def set_metadata_replaces_the_rest(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_metadata` removes the metadata `note` from all Variables."""
    original = nnx.set_metadata

    def set_metadata(node: Any, **options: Any) -> None:
        original(node, **options)
        for _, variable in _variables(nnx, node):
            if "note" in variable.get_metadata() and "note" not in options:
                variable.del_metadata("note")

    patch.setattr(nnx, "set_metadata", set_metadata)


@fault(breaks="GRF-031")
def empty_arrays_are_no_data(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`is_data` denies that an array without elements is data."""
    original = nnx.is_data
    patch.setattr(nnx, "is_data", lambda value: original(value) and getattr(value, "size", 1) != 0)


@fault(breaks="GRF-031")
def traced_arrays_are_no_data(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`is_data` denies that an array inside a JAX transform is data."""
    original = nnx.is_data
    patch.setattr(
        nnx, "is_data", lambda value: original(value) and not isinstance(value, jax.core.Tracer)
    )


@fault(breaks="GRF-031")
def state_leaves_out_abstract_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`state` finds no array outside of a Variable in an abstract object."""
    original = nnx.state

    def state(node: Any, *filters: Any, **options: Any) -> Any:
        found = original(node, *filters, **options)
        if filters:
            return found
        return nnx.filter_state(
            found, lambda path, leaf: not isinstance(leaf, jax.ShapeDtypeStruct)
        )

    patch.setattr(nnx, "state", state)


@fault(breaks="GRF-032")
def clones_share_buffers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` shares the arrays with the original, also where it is told to copy them."""
    original = nnx.clone

    def clone(node: Any, variables: bool = True, *, arrays: bool = False, **options: Any) -> Any:
        return original(node, variables, **options)

    patch.setattr(nnx, "clone", clone)


@fault(breaks="GRF-032")
def clones_share_dict_values(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` gives a Variable whose value is a dict the original's dict."""
    original = nnx.clone

    def clone(node: Any, *args: Any, **options: Any) -> Any:
        cloned = original(node, *args, **options)
        old = dict(_variables(nnx, node))
        for path, variable in _variables(nnx, cloned):
            if isinstance(variable.get_raw_value(), dict):
                variable.set_raw_value(old[path].get_raw_value())
        return cloned

    patch.setattr(nnx, "clone", clone)


@fault(breaks="GRF-032")
def merged_objects_share_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` puts the Variables of the State itself into the object."""
    original = nnx.merge

    def merge(graphdef: Any, *states: Any, **options: Any) -> Any:
        merged = original(graphdef, *states, **options)
        kept = dict(item for state in states for item in _leaves(nnx, state))
        for node in [x for _, x in nnx.iter_graph(merged, graph=True) if isinstance(x, nnx.Module)]:
            for name, value in list(vars(node).items()):
                if isinstance(value, nnx.Variable) and (name,) in kept:
                    setattr(node, name, kept[name,])
        return merged

    patch.setattr(nnx, "merge", merge)
