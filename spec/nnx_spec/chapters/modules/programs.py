"""Programs of list and dict operations: drawn as plain data, run on a container and a model."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from nnx_spec.chapters.functional.making import net, param

Step = tuple[Any, ...]
"""An operation's name and its arguments; a `Slot` among them stands for a value."""


class Slot(int):
    """A number that stands for a value of a pool."""

    def __repr__(self) -> str:
        return f"value{int(self)}"


POOL_SIZE = 6
KEYS = ("a", "b", "layer10", "layer9", "z")

_slots = st.integers(0, POOL_SIZE - 1).map(Slot)
_several = st.lists(_slots, max_size=3)
_some = st.lists(_slots, min_size=1, max_size=3)
_indices = st.integers(-4, 4)
_slices = st.builds(
    slice, st.none() | _indices, st.none() | _indices, st.sampled_from([None, 1, 2, -1, -2])
)


def static_pool() -> list[Any]:
    """Makes values that are static by themselves."""
    return ["text", 3, None, 2.5, ("t", 1), abs]


def data_pool(nnx: Any) -> list[Any]:
    """Makes values that are data by themselves."""
    module = net(nnx, w=param(nnx, 3.0), b=param(nnx, 4.0))
    stat = nnx.BatchStat(np.float32([5, 6]))
    arrays = [jnp.asarray(1.0), np.float32([7, 8])]
    return [*arrays, param(nnx, 2.0), module, stat, nnx.List([param(nnx, 9.0)])]


def mixed_pool(nnx: Any) -> list[Any]:
    """Makes values of both kinds."""
    return static_pool()[:3] + data_pool(nnx)[2:5]


def _put(items: Any, key: Any, value: Any) -> None:
    items[key] = value


def _put_as_many(items: Any, places: slice, values: Sequence[Any]) -> None:
    """Replaces a slice by as many values as it has."""
    items[places] = list(itertools.islice(itertools.cycle(values), len(items[places])))


def _delete(items: Any, key: Any) -> None:
    del items[key]


def _extend_in_place(items: Any, values: Any) -> None:
    before = items
    items += values
    assert items is before


MOVES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "append": (lambda items, x: items.append(x), (_slots,)),
        "insert": (lambda items, i, x: items.insert(i, x), (_indices, _slots)),
        "extend": (lambda items, xs: items.extend(xs), (_several,)),
        "extend by an iterator": (lambda items, xs: items.extend(iter(xs)), (_several,)),
        "+=": (_extend_in_place, (_several,)),
        "pop": (lambda items: items.pop(), ()),
        "pop at": (lambda items, i: items.pop(i), (_indices,)),
        "clear": (lambda items: items.clear(), ()),
        "reverse": (lambda items: items.reverse(), ()),
        "delete": (_delete, (_indices,)),
        "delete slice": (_delete, (_slices,)),
        "get": (operator.getitem, (_indices,)),
        "get slice": (lambda items, s: list(items[s]), (_slices,)),
        "reversed": (lambda items: list(reversed(items)), ()),
    }
)
"""Operations of lists that go by position, with strategies for their arguments."""

REPLACEMENTS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "set": (_put, (_indices, _slots)),
        "set slice": (_put_as_many, (_slices, _some)),
    }
)
"""Operations of lists that put values in the place of as many others."""

RESIZING: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {"resize slice": (_put, (_slices, _several))}
)
"""Operations of lists that put values in the place of more or fewer others."""

SEARCHES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "remove": (lambda items, x: items.remove(x), (_slots,)),
        "index": (lambda items, x: items.index(x), (_slots,)),
        "count": (lambda items, x: items.count(x), (_slots,)),
        "in": (lambda items, x: x in items, (_slots,)),
    }
)
"""Operations of lists that compare values."""

_keys = st.sampled_from(KEYS)
_items = st.dictionaries(_keys, _slots, max_size=3)

DICT_MOVES: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "delete": (_delete, (_keys,)),
        "pop": (lambda items, key: items.pop(key), (_keys,)),
        "pop or default": (lambda items, key, x: items.pop(key, x), (_keys, _slots)),
        "clear": (lambda items: items.clear(), ()),
        "get item": (operator.getitem, (_keys,)),
        "get": (lambda items, key: items.get(key), (_keys,)),
        "get or default": (lambda items, key, x: items.get(key, x), (_keys, _slots)),
        "in": (lambda items, key: key in items, (_keys,)),
        "setdefault": (lambda items, key, x: items.setdefault(key, x), (_keys, _slots)),
        "renew": (
            lambda items, key, x: (items.pop(key, None), _put(items, key, x))[1],
            (_keys, _slots),
        ),
    }
)
"""Operations of dicts that keep what a key stands for, with strategies for their arguments."""

DICT_REPLACEMENTS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = MappingProxyType(
    {
        "set": (_put, (_keys, _slots)),
        "update": (lambda items, new: items.update(new), (_items,)),
        "update by pairs": (lambda items, new: items.update(list(new.items())), (_items,)),
        "update by keywords": (lambda items, new: items.update(**new), (_items,)),
    }
)
"""Operations of dicts that put values in the place of others."""

_OPERATIONS = {**MOVES, **REPLACEMENTS, **RESIZING, **SEARCHES}
_DICT_OPERATIONS = {**DICT_MOVES, **DICT_REPLACEMENTS}


def programs(*operations: Mapping[str, Any]) -> st.SearchStrategy[list[Step]]:
    """Draws programs of up to eight of the given operations."""
    steps = [
        st.tuples(st.just(name), *arguments)
        for table in operations
        for name, (_, arguments) in table.items()
    ]
    return st.lists(st.one_of(*steps), min_size=1, max_size=8)


def run(items: Any, step: Step, pool: Sequence[Any]) -> Any:
    """Runs one step; returns its result, or the class of the error that it raises."""
    name, *arguments = step
    table = _DICT_OPERATIONS if isinstance(items, (dict, MutableMapping)) else _OPERATIONS
    try:
        return table[name][0](items, *(_filled(argument, pool) for argument in arguments))
    except (IndexError, KeyError, ValueError) as error:
        return type(error)


def _filled(argument: Any, pool: Sequence[Any]) -> Any:
    """Puts values of a pool in the place of the slots in an argument."""
    match argument:
        case Slot():
            return pool[argument]
        case list():
            return [pool[slot] for slot in argument]
        case dict():
            return {key: pool[slot] for key, slot in argument.items()}
        case _:
            return argument


def same(one: Any, other: Any) -> bool:
    """Tells whether two results are the same: the same objects, in the same order."""
    if isinstance(one, list) and isinstance(other, list):
        return list(map(id, one)) == list(map(id, other))
    return one is other or (isinstance(one, (bool, int)) and one == other)


def contents(items: Mapping[str, Any] | MutableSequence[Any], pool: Sequence[Any]) -> list[Any]:
    """Lists what a container holds, in order, each value by its number in a pool."""
    numbers = {id(value): f"value{n}" for n, value in enumerate(pool)}
    if isinstance(items, Mapping):
        return [(key, numbers.get(id(value), value)) for key, value in items.items()]
    return [numbers.get(id(value), value) for value in items]
