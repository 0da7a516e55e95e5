"""Closures: what functions capture, and what is remembered by them while that stays the same.

What a function captures is constant in its trace. But the Variables and objects among it change,
and then the function has to be traced again. So whatever is made of a function is remembered with
structure and values of all objects that a walk through the function finds: through its closure,
its defaults, the arguments of a partial, the globals that it names, and lists, dicts and functions
of the same module that it meets there.

No walk finds everything: an object may be in an attribute of something else. So a function is
watched while it is traced (`reading.py`). If it reads a Variable that the walk does not find,
nothing is remembered by it any more, and it is traced at every call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

from nnx_reference.reading import noted_reads
from nnx_reference.tables import flatten
from nnx_reference.transforms.core import is_object, raw_value
from nnx_reference.variables import Variable

Function = Callable[..., Any]

LONGEST = 100
"""How many items a list or dict may have that the walk goes through."""


class _Memory(NamedTuple):
    """What is remembered by functions, and what they captured then; both are held weakly."""

    functions: list[ref[Function]]
    captured: list[tuple[ref[Any], list[Callable[[], Any]]]]
    value: Any


_memories: dict[tuple[Hashable, ...], _Memory] = {}
_unclear: dict[int, ref[Function]] = {}
"""The functions that capture what the walk does not find, by id."""


def remembered(kind: Hashable, make: Callable[..., Any], functions: Sequence[Function]) -> Any:
    """Makes something of functions, once while all of them live and capture the same.

    Args:
      kind: tells what is made from what else is made of the same functions.
      make: makes it; it must not hold the functions strongly, and has to trace them `watched`.
      functions: the functions.
    """
    key = (kind, *map(id, functions))
    captured = [_contents(item) for item in _captured_by(functions)]
    memory = _memories.get(key)
    if memory is not None and _is_current(memory, functions, captured):
        return memory.value
    value = make(*functions)
    if any(id(function) in _unclear for function in functions):
        return value

    def forget(_: object) -> None:
        _memories.pop(key, None)

    try:
        references = [ref(function, forget) for function in functions]
    except TypeError:
        return value
    held = [(ref(structure), list(map(weakly, values))) for structure, values in captured]
    _memories[key] = _Memory(references, held, value)
    return value


@contextmanager
def watched(function: Function) -> Iterator[None]:
    """Watches a function being traced; nothing is remembered by one whose captures are unclear."""
    with noted_reads() as reads:
        yield
    found = {id(leaf) for item in _captured_by([function]) for leaf in flatten(item).leaves}
    if reads.variables.keys() <= found:
        return
    number = id(function)

    def forget(_: object) -> None:
        _unclear.pop(number, None)

    try:
        _unclear[number] = ref(function, forget)
    except TypeError:
        return  # nothing is remembered by it anyway
    for key in [key for key in list(_memories) if number in key[1:]]:
        _memories.pop(key, None)


def _is_current(memory: _Memory, functions: Sequence[Function], captured: list[Any]) -> bool:
    return (
        len(memory.captured) == len(captured)
        and all(r() is f for r, f in zip(memory.functions, functions, strict=True))
        and all(
            old() == new and _are(old_values, values)
            for (old, old_values), (new, values) in zip(memory.captured, captured, strict=True)
        )
    )


def _are(references: Sequence[Callable[[], Any]], values: Sequence[Any]) -> bool:
    return len(references) == len(values) and all(
        reference() is value for reference, value in zip(references, values, strict=True)
    )


def _contents(item: Any) -> tuple[Any, list[Any]]:
    """Returns structure and values of an object; the structure lives as long as the object's."""
    if isinstance(item, Variable):
        return item._metadata, [raw_value(item)]
    flat = flatten(item)
    return flat.graphdef, [raw_value(leaf) for leaf in flat.leaves]


def _captured_by(functions: Iterable[Function]) -> Iterator[Any]:
    """Yields the objects that functions capture, as far as a walk finds them."""
    seen: set[int] = set()
    pending: list[Any] = list(functions)
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if is_object(item):
            yield item
        else:
            pending += _references(item)


def _references(item: Any) -> Iterable[Any]:
    """Lists what an item refers to, as far as it may be or lead to an object."""
    match item:
        case types.FunctionType():
            cells = [cell.cell_contents for cell in item.__closure__ or () if _is_filled(cell)]
            defaults = [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
            return [*cells, *defaults, *_globals_of(item)]
        case types.MethodType():
            return [item.__func__, item.__self__]
        case functools.partial():
            return [item.func, *item.args, *item.keywords.values()]
        case list() | tuple() if len(item) <= LONGEST:
            return item
        case dict() if len(item) <= LONGEST:
            return item.values()
        case _:
            return ()


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    """Yields the globals that a function names, but for functions of other modules."""
    pending, table = [function.__code__], function.__globals__
    while pending:
        code = pending.pop()
        pending += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for value in map(table.get, code.co_names):
            if not isinstance(value, types.FunctionType) or value.__globals__ is table:
                yield value


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def weakly(item: Any) -> Callable[[], Any]:
    """Returns a weak reference, or what works like one but is strong where there are none."""
    try:
        return ref(item)
    except TypeError:
        return lambda: item
