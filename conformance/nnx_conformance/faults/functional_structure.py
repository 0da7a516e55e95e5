"""Faults of the functional API: how objects come apart, back together and are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nnx_conformance.faults import fault
from nnx_spec.oracles import Path, at, state_items, variables, walk


def around(nnx: Any, patch: pytest.MonkeyPatch, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of the namespace by one that gets the original as its first argument."""
    original = getattr(nnx, name)
    patch.setattr(nnx, name, lambda *args, **kwargs: function(original, *args, **kwargs))


def nested(items: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    """Nests leaves in plain dicts along their paths."""
    root: dict[Any, Any] = {}
    for path, leaf in items:
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return root


def put(nnx: Any, root: Any, path: Path, value: Any) -> None:
    """Puts a value into an object graph in place of what stands at a path."""
    owner = at(nnx, root, path[:-1])
    if isinstance(owner, (nnx.List, nnx.Dict)):
        owner[path[-1]] = value
    else:
        setattr(owner, str(path[-1]), value)


def other_paths(nnx: Any, root: Any) -> Iterator[tuple[Path, Any]]:
    """Yields every path but the first to each Variable that stands at several."""
    for first, *others in nnx.find_duplicates(root):
        shared = at(nnx, root, first)
        if isinstance(shared, nnx.Variable):
            yield from ((path, shared) for path in others)


@fault(breaks="GRF-001")
def merge_forgets_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables that `merge` makes have no `note` in their metadata."""

    def merge(original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        for variable in variables(nnx, made):
            if "note" in variable.get_metadata():
                variable.del_metadata("note")
        return made

    around(nnx, patch, "merge", merge)


@fault(breaks="GRF-001")
def split_marks_the_object(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` leaves a note in the metadata of the first Variable of the object that it reads."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        result = original(node, *filters, **kwargs)
        for variable in variables(nnx, node)[:1]:
            variable.set_metadata(was_split=True)
        return result

    around(nnx, patch, "split", split)


@fault(breaks="GRF-001 GRF-014")
def merge_unshares_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` puts a copy of a Variable at each path but the first."""

    def merge(original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        for path, variable in list(other_paths(nnx, made)):
            put(nnx, made, path, variable.copy())
        return made

    around(nnx, patch, "merge", merge)


def graphdef_of(nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Makes `graphdef` describe a copy whose Variables have been changed."""

    def graphdef(original: Any, node: Any, **kwargs: Any) -> Any:
        copy = nnx.clone(node, **kwargs)
        for variable in variables(nnx, copy):
            change(variable)
        return original(copy, **kwargs)

    around(nnx, patch, "graphdef", graphdef)


@fault(breaks="GRF-002 GRF-013")
def graphdef_ignores_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Graphdefs of objects that differ only in the Variables' metadata are equal."""
    graphdef_of(nnx, patch, lambda variable: variable.set_metadata({}))


@fault(breaks="GRF-002")
def graphdef_depends_on_values(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Graphdefs of objects that differ only in the Variables' values are different."""
    graphdef_of(
        nnx, patch, lambda variable: variable.set_metadata(value=repr(variable.get_value()))
    )


def split_with(nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Changes each State that `split` gives."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        graphdef, *states = original(node, *filters, **kwargs)
        return graphdef, *map(change, states)

    around(nnx, patch, "split", split)


@fault(breaks="GRF-003")
def indexes_become_strings(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A State from `split` has the indexes of Lists as strings."""

    def change(state: Any) -> Any:
        if not isinstance(state, Mapping):
            return state
        return nnx.State({str(key): change(state[key]) for key in state})

    split_with(nnx, patch, change)


@fault(breaks="GRF-003")
def state_reads_copies_by_attribute(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Reading a Variable of a State by attribute gives a copy of it."""
    original = nnx.State.__getattr__

    def getattribute(self: Any, name: str) -> Any:
        found = original(self, name)
        return found.copy() if isinstance(found, nnx.Variable) else found

    patch.setattr(nnx.State, "__getattr__", getattribute)


@fault(breaks="GRF-004")
def a_later_filter_wins(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Of the filters before the last, `split` gives a leaf to the last one that matches it."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        ahead = [
            nnx.All(item, nnx.Not(nnx.Any(*filters[n:-1])))
            for n, item in enumerate(filters[:-1], 1)
        ]
        return original(node, *ahead, *filters[-1:], **kwargs)

    around(nnx, patch, "split", split)


@fault(breaks="GRF-004")
def arrays_stand_in_the_last_group(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` gives raw arrays to the last filter, whatever the others select."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        ahead = [nnx.All(nnx.Variable, item) for item in filters[:-1]]
        return original(node, *ahead, *filters[-1:], **kwargs)

    around(nnx, patch, "split", split)


@fault(breaks="GRF-005")
def leftovers_are_dropped(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` leaves out what no filter selects."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        if not filters or filters[-1] in (..., True):
            return original(node, *filters, **kwargs)
        return original(node, *filters, ..., **kwargs)[:-1]

    around(nnx, patch, "split", split)


@fault(breaks="GRF-040")
def leftovers_have_no_name(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error about what no filter selects does not say what that is."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        try:
            return original(node, *filters, **kwargs)
        except ValueError:
            raise ValueError("the filters leave something over; add `...` as the last") from None

    around(nnx, patch, "split", split)


@fault(breaks="GRF-005")
def everything_may_come_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` takes `...` at any place among its filters."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        ahead = [(lambda path, value: True) if item is ... else item for item in filters[:-1]]
        return original(node, *ahead, *filters[-1:], **kwargs)

    around(nnx, patch, "split", split)


@fault(breaks="GRF-006")
def groups_are_merged_at_the_top(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Of groups that have leaves below one key of the root, `merge` takes the last one's alone."""

    def merge(original: Any, graphdef: Any, *states: Any, **kwargs: Any) -> Any:
        together = {key: state[key] for state in states for key in state}
        return original(graphdef, nnx.State(together), **kwargs)

    around(nnx, patch, "merge", merge)


@fault(breaks="GRF-006")
def merge_ignores_surplus(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` passes over a leaf for which the object has no place."""

    def merge(original: Any, graphdef: Any, *states: Any, **kwargs: Any) -> Any:
        try:
            return original(graphdef, *states, **kwargs)
        except ValueError as error:
            leaves = [item for state in states for item in state_items(state)]
            for n in range(len(leaves)):
                try:
                    return original(graphdef, nnx.State(nested(leaves[:n] + leaves[n + 1 :])))
                except ValueError:
                    continue
            raise error

    around(nnx, patch, "merge", merge)


@fault(breaks="GRF-034")
def leaves_are_merged_by_place(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` takes the leaves of a State in their order if there are as many as it needs."""

    def merge(original: Any, graphdef: Any, *states: Any, **kwargs: Any) -> Any:
        try:
            return original(graphdef, *states, **kwargs)
        except ValueError:
            leaves = [leaf for state in states for _, leaf in state_items(state)]
            if len(leaves) != len(graphdef.paths):
                raise
            placed = dict(zip(graphdef.paths, leaves, strict=True))
            return original(graphdef, nnx.State(nested([*placed.items()])), **kwargs)

    around(nnx, patch, "merge", merge)


@fault(breaks="GRF-035")
def misfits_have_no_name(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error about a State that does not fit says how many leaves it has, and not which."""

    def merge(original: Any, graphdef: Any, *states: Any, **kwargs: Any) -> Any:
        try:
            return original(graphdef, *states, **kwargs)
        except (ValueError, TypeError, KeyError):
            count = sum(len(state_items(state)) for state in states)
            raise ValueError(f"{count} leaves do not fit the structure") from None

    around(nnx, patch, "merge", merge)


@fault(breaks="GRF-007")
def update_replaces_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` puts new Variables into the object in place of those it has."""

    def update(original: Any, node: Any, *states: Any) -> None:
        original(node, *states)
        for path, _ in {path: 0 for state in states for path, _ in state_items(state)}.items():
            variable = dict(walk(nnx, node)).get(path)
            if isinstance(variable, nnx.Variable):
                put(nnx, node, path, variable.copy())

    around(nnx, patch, "update", update)


@fault(breaks="GRF-007")
def update_takes_one_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` passes over all States but the first."""
    around(nnx, patch, "update", lambda original, node, state, *states: original(node, state))


@fault(breaks="GRF-007")
def update_passes_over_numpy(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` leaves a Variable as it is where the new value is a NumPy array."""

    def update(original: Any, node: Any, *states: Any) -> None:
        kept = [
            [item for item in state_items(state) if not isinstance(item[1], np.ndarray)]
            for state in states
        ]
        original(node, *map(nested, kept))

    around(nnx, patch, "update", update)


@fault(breaks="GRF-008")
def update_writes_before_it_checks(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` writes leaf by leaf, up to the first for which the object has no place."""

    def update(original: Any, node: Any, *states: Any) -> None:
        for state in states:
            for item in state_items(state):
                original(node, nested([item]))

    around(nnx, patch, "update", update)


@fault(breaks="GRF-036")
def update_passes_over_what_is_not_there(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` writes what has a place, and says nothing about what has none."""

    def update(original: Any, node: Any, *states: Any) -> None:
        there = dict(walk(nnx, node))
        for state in states:
            original(node, nested((path, x) for path, x in state_items(state) if path in there))

    around(nnx, patch, "update", update)


@fault(breaks="GRF-009")
def state_copies_values(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables that `state` gives hold copies of the object's arrays."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, nnx.Variable) or isinstance(leaf.get_value(), dict):
            return leaf
        return leaf.replace(jnp.array(leaf.get_value(), copy=True))

    def state(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        states = [
            nnx.State(nested([(path, copied(leaf)) for path, leaf in state_items(one)]))
            for one in (result if isinstance(result, tuple) else (result,))
        ]
        return tuple(states) if isinstance(result, tuple) else states[0]

    around(nnx, patch, "state", state)


@fault(breaks="GRF-009")
def state_wants_all(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`state` raises where its filters leave something over, as `split` does."""

    def state(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        states = nnx.split(node, *filters, **kwargs)[1:]
        return states[0] if len(states) == 1 else tuple(states)

    around(nnx, patch, "state", state)


@fault(breaks="GRF-011")
def clone_shares_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` gives an object with the original's own Variables."""

    def clone(original: Any, node: Any, variables: bool = True, **kwargs: Any) -> Any:
        return original(node, variables=False, **kwargs)

    around(nnx, patch, "clone", clone)


@fault(breaks="GRF-011")
def clone_copies_variables_always(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` with `variables=False` gives an object with Variables of its own."""

    def clone(original: Any, node: Any, variables: bool = True, **kwargs: Any) -> Any:
        return original(node, **kwargs)

    around(nnx, patch, "clone", clone)


@fault(breaks="GRF-012")
def pop_leaves_other_paths(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that stands at several paths is gone from the first alone after `pop`."""

    def pop(original: Any, node: Any, *filters: Any) -> Any:
        left = list(other_paths(nnx, node))
        result = original(node, *filters)
        present = dict(walk(nnx, node))
        for path, variable in left:
            if path[:-1] in present and path not in present:
                put(nnx, node, path, variable)
        return result

    around(nnx, patch, "pop", pop)


@fault(breaks="GRF-012")
def pop_gives_one_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`pop` puts what several filters select into the first one's State."""

    def pop(original: Any, node: Any, *filters: Any) -> Any:
        if len(filters) == 1:
            return original(node, *filters)
        popped = original(node, nnx.Any(*filters))
        return popped, *[nnx.State({}) for _ in filters[1:]]

    around(nnx, patch, "pop", pop)


@fault(breaks="GRF-014")
def shared_variables_are_stored_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The State of `split` has a Variable at each of its paths."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        result = original(node, *filters, **kwargs)
        if filters or not kwargs.get("graph"):
            return result
        items = [*state_items(result[1]), *other_paths(nnx, node)]
        return result[0], nnx.State(nested(items))

    around(nnx, patch, "split", split)


@fault(breaks="GRF-015")
def clone_refers_back_to_the_original(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """References to the root from below lead from a clone to the original."""

    def clone(original: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(node, *args, **kwargs)
        for paths in nnx.find_duplicates(made):
            if () in paths:
                for path in filter(None, paths):
                    put(nnx, made, path, node)
        return made

    around(nnx, patch, "clone", clone)


@fault(breaks="GRF-015")
def iteration_meets_shared_parts_again(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`iter_graph` gives what stands at several paths once for each of them."""

    def iter_graph(original: Any, node: Any, **kwargs: Any) -> Iterator[tuple[Path, Any]]:
        yield from original(node, **kwargs)
        for _, *others in nnx.find_duplicates(node):
            yield from ((path, at(nnx, node, path)) for path in others)

    around(nnx, patch, "iter_graph", iter_graph)


@fault(breaks="GRF-016")
def clone_is_always_in_graph_mode(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` takes shared references in tree mode, and keeps them."""

    def clone(original: Any, *args: Any, graph: bool | None = None, **kwargs: Any) -> Any:
        return original(*args, graph=True, **kwargs)

    around(nnx, patch, "clone", clone)


@fault(breaks="GRF-037")
def tree_mode_names_two_paths(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of `state` about shared references in tree mode names two paths of however many."""

    def state(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        try:
            return original(node, *filters, **kwargs)
        except ValueError:
            named = [paths[:2] for paths in nnx.find_duplicates(node)]
            raise ValueError(f"shared references in tree mode: {named}") from None

    around(nnx, patch, "state", state)


@fault(breaks="GRF-037")
def tree_mode_looks_at_variables_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` takes shared nodes in tree mode if no Variable is below them."""

    def split(original: Any, node: Any, *filters: Any, **kwargs: Any) -> Any:
        graph = kwargs.pop("graph", None)
        shared = nnx.find_duplicates(node, only=nnx.Variable)
        return original(node, *filters, graph=graph if shared else True, **kwargs)

    around(nnx, patch, "split", split)
