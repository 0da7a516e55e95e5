"""State: what an object holds, as a nested mapping, and its algebra.

A State maps keys, attribute names and indexes, to nested States and leaves. A leaf is a Variable or
a raw array.

    state = nnx.state(model)
    state["layers"][0]["kernel"]     # a Variable
    state.layers[0].kernel           # the same

It is a JAX pytree whose leaves come in canonical order: integer keys by number, then strings. A
flat state lists the same leaves with their paths:

    to_flat_state(state)             # FlatState([(("layers", 0, "kernel"), Param(...)), ...])

The algebra works on flat states; a nested one is flattened first and rebuilt after. Nothing here
changes a State in place but its own methods and `replace_by_pure_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, overload

import jax
from jax.tree_util import DictKey

from nnx_reference.describing import describe
from nnx_reference.filters import Filter
from nnx_reference.grouping import partition, select
from nnx_reference.pytree import Key, Path, key_order
from nnx_reference.variables import Variable

_store = object.__setattr__


class State(MutableMapping[Key, Any]):
    """A nested mapping from keys to States and leaves; keys that are names are attributes, too."""

    __slots__ = ("__weakref__", "_mapping")

    _mapping: dict[Key, Any]

    def __init__(
        self, mapping: Mapping[Key, Any] | Iterable[tuple[Key, Any]] = (), /, *, _copy: bool = True
    ):
        """Makes a State of a mapping or of pairs; nested mappings become States.

        Args:
          mapping: the items.
          _copy: False takes over a dict as it is, whose nested mappings must be States.
        """
        if _copy:
            mapping = {key: _nested(value) for key, value in dict(mapping).items()}
        _store(self, "_mapping", mapping)

    @property
    def raw_mapping(self) -> Mapping[Key, Any]:
        """The items as a plain dict, nested States as dicts, too; leaves are shared."""
        return {k: v.raw_mapping if isinstance(v, State) else v for k, v in self._mapping.items()}

    def __getitem__(self, key: Key) -> Any:
        return self._mapping[key]

    def __setitem__(self, key: Key, value: Any) -> None:
        self._mapping[key] = _nested(value)

    def __delitem__(self, key: Key) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getattr__(self, name: str) -> Any:
        if name not in State.__slots__ and name in self._mapping:
            return self._mapping[name]
        raise AttributeError(
            f"this State has no key {name!r}: it has {list(self._mapping)}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._mapping:
            raise AttributeError(f"this State has no key {name!r}", name=name, obj=self)
        del self._mapping[name]

    def __or__(self, other: Mapping[Key, Any]) -> State:
        """Merges two States; where both have a path, the right one's leaf is taken."""
        return merge_state(self, other) if other else self

    def __sub__(self, other: Mapping[Key, Any]) -> State:
        """Returns what is at the paths that the other State lacks."""
        taken = dict(to_flat_state(other))
        return from_flat_state(
            [(path, leaf) for path, leaf in to_flat_state(self) if path not in taken]
        )

    def flat_state(self) -> FlatState:
        """Returns `to_flat_state(self)`."""
        return to_flat_state(self)

    @classmethod
    def from_flat_path(
        cls, flat_state: Mapping[Path, Any] | Iterable[tuple[Path, Any]], /
    ) -> State:
        """Returns `from_flat_state(flat_state)`."""
        return from_flat_state(flat_state, cls=cls)

    def map(self, f: Callable[[Path, Any], Any]) -> State:
        """Returns `map_state(f, self)`."""
        return map_state(f, self)

    def split(self, first: Filter, /, *filters: Filter) -> State | tuple[State, ...]:
        """Returns `split_state(self, first, *filters)`."""
        return split_state(self, first, *filters)

    def filter(self, first: Filter, /, *filters: Filter) -> State | tuple[State, ...]:
        """Returns `filter_state(self, first, *filters)`."""
        return filter_state(self, first, *filters)

    @classmethod
    def merge(cls, state: Mapping[Key, Any], /, *states: Mapping[Key, Any]) -> State:
        """Returns `merge_state(state, *states)`."""
        return merge_state(state, *states, cls=cls)

    def to_pure_dict(self, extract_fn: Callable[[Any], Any] | None = None) -> dict[Key, Any]:
        """Returns `to_pure_dict(self, extract_fn)`."""
        return to_pure_dict(self, extract_fn)

    def replace_by_pure_dict(
        self, pure_dict: Mapping[Key, Any], replace_fn: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """Does `replace_by_pure_dict(self, pure_dict, replace_fn)`."""
        replace_by_pure_dict(self, pure_dict, replace_fn)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self._mapping),)

    def __repr__(self) -> str:
        items = ", ".join(f"{key!r}: {describe(value)}" for key, value in self._mapping.items())
        return f"{type(self).__name__}({{{items}}})"


def _nested(value: Any) -> Any:
    return State(value) if isinstance(value, Mapping) and not isinstance(value, State) else value


def sorted_keys(mapping: Mapping[Key, Any]) -> list[Key]:
    """Returns the keys in canonical order."""
    try:
        return sorted(mapping)
    except TypeError:  # integers and strings
        return sorted(mapping, key=key_order)


def _flatten(state: State) -> tuple[list[Any], tuple[Key, ...]]:
    mapping = state._mapping
    keys = sorted_keys(mapping)
    return [mapping[key] for key in keys], tuple(keys)


def _flatten_with_keys(state: State) -> tuple[list[tuple[DictKey, Any]], tuple[Key, ...]]:
    children, keys = _flatten(state)
    return [(DictKey(key), child) for key, child in zip(keys, children, strict=True)], keys


def _unflatten(keys: tuple[Key, ...], children: Iterable[Any]) -> State:
    return State(dict(zip(keys, children, strict=True)), _copy=False)


jax.tree_util.register_pytree_with_keys(State, _flatten_with_keys, _unflatten, _flatten)


class FlatState(Sequence[tuple[Path, Any]]):
    """A State as a sequence of (path, leaf) pairs; a JAX pytree of its leaves."""

    __slots__ = ("_leaves", "_paths")

    _paths: tuple[Path, ...]
    _leaves: list[Any]

    def __init__(self, items: Iterable[tuple[Path, Any]], /, *, sort: bool) -> None:
        """Makes a flat state of pairs.

        Args:
          items: the pairs.
          sort: whether to put them into canonical order; False if they are in the order that they
            shall have.
        """
        pairs = sorted(items, key=_path_order) if sort else list(items)
        self._paths = tuple([path for path, _ in pairs])
        self._leaves = [leaf for _, leaf in pairs]

    @staticmethod
    def from_sorted_keys_values(keys: tuple[Path, ...], values: list[Any], /) -> FlatState:
        """Makes a flat state of paths that are in canonical order and of as many leaves."""
        return FlatState(zip(keys, values, strict=True), sort=False)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths."""
        return self._paths

    @property
    def leaves(self) -> list[Any]:
        """The leaves, in the order of the paths."""
        return self._leaves

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        return zip(self._paths, self._leaves, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Path, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> FlatState: ...
    def __getitem__(self, index: int | slice) -> tuple[Path, Any] | FlatState:
        if isinstance(index, slice):
            return FlatState(zip(self._paths[index], self._leaves[index], strict=True), sort=False)
        return self._paths[index], self._leaves[index]

    def to_nested_state(self) -> State:
        """Returns `from_flat_state(self)`."""
        return from_flat_state(self)

    def split(self, first: Filter, /, *filters: Filter) -> FlatState | tuple[FlatState, ...]:
        """Splits as `split_state` does, into flat states."""
        return _one_or_all(
            [FlatState(group, sort=False) for group in partition(self, (first, *filters))]
        )

    def filter(self, first: Filter, /, *filters: Filter) -> FlatState | tuple[FlatState, ...]:
        """Filters as `filter_state` does, into flat states."""
        return _one_or_all(
            [FlatState(group, sort=False) for group in select(self, (first, *filters))]
        )

    @staticmethod
    def merge(
        flat_state: Iterable[tuple[Path, Any]], /, *flat_states: Iterable[tuple[Path, Any]]
    ) -> FlatState:
        """Merges flat states into one in canonical order; the last leaf of a path is taken."""
        merged = {path: leaf for flat in (flat_state, *flat_states) for path, leaf in flat}
        return FlatState(merged.items(), sort=True)

    def __repr__(self) -> str:
        return f"FlatState([{', '.join(f'({path!r}, {describe(leaf)})' for path, leaf in self)}])"


def _path_order(item: tuple[Path, Any]) -> list[tuple[bool, Any]]:
    return [key_order(key) for key in item[0]]


jax.tree_util.register_pytree_with_keys(
    FlatState,
    lambda flat: ([(DictKey(path), leaf) for path, leaf in flat], flat.paths),
    lambda paths, leaves: FlatState(zip(paths, leaves, strict=True), sort=False),
    lambda flat: (flat.leaves, flat.paths),
)


def to_flat_state(state: Mapping[Key, Any], /) -> FlatState:
    """Lists the leaves of a State or other nested mapping with their paths, in canonical order."""
    pairs: list[tuple[Path, Any]] = []
    stack: list[tuple[Path, Any]] = [((), state)]
    while stack:
        path, value = stack.pop()
        if not isinstance(value, Variable) and isinstance(value, Mapping):
            stack.extend([((*path, key), value[key]) for key in reversed(sorted_keys(value))])
        else:
            pairs.append((path, value))
    return FlatState(pairs, sort=False)


def from_flat_state(
    flat_state: Mapping[Path, Any] | Iterable[tuple[Path, Any]], /, *, cls: Any = State
) -> Any:
    """Nests (path, leaf) pairs.

    Args:
      flat_state: a FlatState, a mapping from paths to leaves, or pairs; a path that comes again
        replaces its leaf.
      cls: the class of the result, `State` or a mapping that is made of a nested dict.

    Raises:
      ValueError: a path is empty, or leads through another path's leaf.
    """
    pairs = flat_state.items() if isinstance(flat_state, Mapping) else flat_state
    return _nest(pairs) if cls is State else cls(_nest(pairs, lambda mapping: mapping))


def _own(mapping: dict[Key, Any]) -> State:
    return State(mapping, _copy=False)


def _nest(pairs: Iterable[tuple[Path, Any]], make: Callable[[dict[Key, Any]], Any] = _own) -> Any:
    """Nests (path, leaf) pairs; `make` turns a new, empty dict into what stands for it."""
    mappings: dict[Path, dict[Key, Any]] = {(): {}}
    for path, leaf in pairs:
        if not path:
            raise ValueError("an empty path stands for a whole State and cannot lead to a leaf")
        if path in mappings:
            raise ValueError(f"path {path} leads to a leaf, but other paths lead on from there")
        parent = mappings.get(path[:-1])
        if parent is None:
            parent = _make_parents(mappings, path, make)
        parent[path[-1]] = leaf
    return make(mappings[()])


def _make_parents(
    mappings: dict[Path, dict[Key, Any]], path: Path, make: Callable[[dict[Key, Any]], Any]
) -> dict[Key, Any]:
    """Makes the mappings on the way to a leaf that do not exist yet, and returns the last one."""
    depth = len(path) - 1
    while path[:depth] not in mappings:
        depth -= 1
    parent = mappings[path[:depth]]
    for end in range(depth + 1, len(path)):
        if path[end - 1] in parent:
            raise ValueError(f"path {path} leads through {path[:end]}, which is a leaf")
        child = mappings[path[:end]] = {}
        parent[path[end - 1]] = make(child)
        parent = child
    return parent


def map_state(f: Callable[[Path, Any], Any], state: State, /) -> State:
    """Returns a State with `f(path, leaf)` in place of each leaf; it is a leaf, whatever it is."""
    return from_flat_state([(path, f(path, leaf)) for path, leaf in to_flat_state(state)])


def merge_state(state: Mapping[Key, Any], /, *states: Mapping[Key, Any], cls: Any = State) -> Any:
    """Merges States; where several have a path, the last one's leaf is taken.

    Raises:
      ValueError: a path of one leads through a leaf of another.
    """
    merged = {path: leaf for one in (state, *states) for path, leaf in to_flat_state(one)}
    return from_flat_state(merged, cls=cls)


def split_state(state: State, first: Filter, /, *filters: Filter) -> State | tuple[State, ...]:
    """Splits a State: each leaf goes to the first filter that selects it.

    Returns:
      One State per filter; a State, not a tuple, for a single filter.

    Raises:
      ValueError: no filter selects some leaf; the error names its path. `...` or True stands
        anywhere but last.
    """
    groups = partition(to_flat_state(state), (first, *filters))
    return _one_or_all([_nest(group) for group in groups])


def filter_state(state: State, first: Filter, /, *filters: Filter) -> State | tuple[State, ...]:
    """Splits a State as `split_state` does, and drops leaves that no filter selects.

    Raises:
      ValueError: `...` or True stands anywhere but last.
    """
    return _one_or_all([_nest(group) for group in select(to_flat_state(state), (first, *filters))])


def _one_or_all(groups: list[Any]) -> Any:
    return groups[0] if len(groups) == 1 else tuple(groups)


def to_pure_dict(
    state: Mapping[Key, Any], extract_fn: Callable[[Any], Any] | None = None
) -> dict[Key, Any]:
    """Converts a State to nested dicts with plain values.

    Args:
      state: the State.
      extract_fn: gives the plain value of a leaf; the value of a Variable, and any other leaf
        itself, by default.
    """
    extract = extract_fn or (lambda leaf: leaf.get_value() if isinstance(leaf, Variable) else leaf)
    return from_flat_state([(path, extract(leaf)) for path, leaf in to_flat_state(state)], cls=dict)


def replace_by_pure_dict(
    state: State, pure_dict: Mapping[Key, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Replaces leaves of a State, in place, by values from nested dicts of the same paths.

    Paths that `pure_dict` lacks stay as they are. Digits as a string stand for an integer where the
    State has that.

    Args:
      state: the State to change.
      pure_dict: the new values.
      replace_fn: gives the new leaf for (old leaf, value); by default a Variable's copy with that
        value, and for any other leaf the value itself.

    Raises:
      ValueError: the State lacks a path; the error names it, and nothing has changed.
    """
    replace = replace_fn or (
        lambda leaf, value: leaf.replace(value) if isinstance(leaf, Variable) else value
    )
    changes = [
        _replacement(state, path, value, replace) for path, value in _pure_items(state, pure_dict)
    ]
    for parent, key, leaf in changes:
        parent[key] = leaf


def _pure_items(state: State, pure_dict: Mapping[Key, Any]) -> Iterator[tuple[Path, Any]]:
    """Yields values with their paths; a dict that stands where the State has a leaf is a value."""
    stack: list[tuple[Path, Any, Any]] = [((), state, pure_dict)]
    while stack:
        path, place, value = stack.pop()
        if isinstance(value, Mapping) and isinstance(place, State):
            for key, inner in value.items():
                known = (
                    int(key)
                    if key not in place and isinstance(key, str) and _is_integer(key)
                    else key
                )
                stack.append(((*path, known), place.get(known, _ABSENT), inner))
        else:
            yield path, value


def _replacement(
    state: State, path: Path, value: Any, replace: Callable[[Any, Any], Any]
) -> tuple[State, Key, Any]:
    parent: Any = state
    for key in path[:-1]:
        parent = parent[key]
    if path[-1] not in parent or isinstance(parent[path[-1]], State):
        raise ValueError(f"the State has no leaf at {path}, for which the dict has a value")
    return parent, path[-1], replace(parent[path[-1]], value)


_ABSENT: Any = object()


def restore_int_paths(pure_dict: Mapping[Key, Any]) -> dict[Key, Any]:
    """Returns nested dicts in which keys like "0", as some checkpoints store them, are integers."""
    return {
        int(key) if isinstance(key, str) and _is_integer(key) else key: (
            restore_int_paths(value) if isinstance(value, Mapping) else value
        )
        for key, value in pure_dict.items()
    }


def _is_integer(key: str) -> bool:
    try:
        int(key)
    except ValueError:
        return False
    return True
