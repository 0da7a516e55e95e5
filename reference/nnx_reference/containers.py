"""List and Dict: containers whose elements transforms can see.

A plain list in an attribute is static. `List` and `Dict` are Modules that behave like `list` and
`dict`; each element is data or static as an attribute would be: arrays, Variables and Modules are
data, functions and strings are not, `data(x)` and `static(x)` say otherwise. In paths an element of
a List goes by its index and one of a Dict by its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Generic, Self, TypeVar, overload

from nnx_reference.attributes import Mark
from nnx_reference.jax_private import Trace
from nnx_reference.pytree import Key, Layout, Module, attributes_of

A = TypeVar("A")

_store = object.__setattr__


class List(Module, MutableSequence[A], Generic[A]):
    """A list whose elements are seen like attributes. It may have attributes, too.

    Slices give plain lists. Equality is that of objects, as for any Module.
    """

    __slots__ = ("_elements", "_flags")

    _elements: list[Any]
    _flags: list[bool | None]

    def __init__(self, it: Iterable[A] | None = None, /) -> None:
        """Makes a list of the elements of an iterable.

        Raises:
          ValueError: an element holds data and is neither data by itself nor annotated.
        """
        self.extend(() if it is None else it)

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[A]:
        return iter(self._elements)

    @overload
    def __getitem__(self, index: int) -> A: ...
    @overload
    def __getitem__(self, index: slice) -> list[A]: ...
    def __getitem__(self, index: int | slice) -> A | list[A]:
        return self._elements[index]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self._pytree_before_change()
        if isinstance(index, slice):
            admitted = [self._admit(None, item) for item in value]
            elements, flags = [item for item, _ in admitted], [flag for _, flag in admitted]
            self._elements[index] = elements
            self._flags[index] = flags
        else:
            item, flag = self._admit(self._flags[index], value, index)
            self._elements[index] = item
            self._flags[index] = flag
        _store(self, "_pytree_known", None)

    def __delitem__(self, index: int | slice) -> None:
        self._pytree_before_change()
        del self._elements[index]
        del self._flags[index]
        _store(self, "_pytree_known", None)

    def insert(self, index: int, value: A) -> None:
        """Inserts an element before an index.

        Raises:
          ValueError: it holds data and is neither data by itself nor annotated.
          TraceContextError: the List belongs to another trace level.
        """
        self._pytree_before_change()
        item, flag = self._admit(None, value, index)
        self._elements.insert(index, item)
        self._flags.insert(index, flag)
        _store(self, "_pytree_known", None)

    def append(self, value: A) -> None:
        """Adds an element at the end; see `insert`."""
        self.insert(len(self), value)

    def extend(self, values: Iterable[A]) -> None:
        """Adds elements at the end; see `insert`. Nothing is added if one of them is refused."""
        self[len(self) :] = values

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sorts the elements in place, as `list.sort` does."""
        order = sorted(
            range(len(self)),
            key=lambda n: self._elements[n] if key is None else key(self._elements[n]),
        )
        self._permute(order[::-1] if reverse else order)

    def reverse(self) -> None:
        """Reverses the order of the elements in place."""
        self._permute(range(len(self) - 1, -1, -1))

    def copy(self) -> list[A]:
        """Returns a plain list of the elements."""
        return list(self._elements)

    def __add__(self, other: Iterable[A]) -> list[A]:
        return [*self._elements, *other]

    def _permute(self, order: Iterable[int]) -> None:
        self._pytree_before_change()
        order = list(order)
        self._elements[:] = [self._elements[n] for n in order]
        self._flags[:] = [self._flags[n] for n in order]
        _store(self, "_pytree_known", None)

    def _admit(self, flag: bool | None, value: Any, index: int = 0) -> tuple[Any, bool | None]:
        """Checks an element; returns it without its annotation, and its status."""
        if not self._pytree_enabled:
            return (value.value if isinstance(value, Mark) else value), None
        said = isinstance(value, Mark)
        known = flag
        if isinstance(value, Mark):
            flag, value = value.is_data, value.value
        elif flag is None:
            flag = self._pytree_default_status(index, value)
        self._pytree_check_value(index, value, flag, said, known)
        return value, flag

    # --- how the package sees it; `Pytree` says what these are ---

    @classmethod
    def _pytree_new(cls, trace: Trace) -> Self:
        node = super()._pytree_new(trace)
        _store(node, "_elements", [])
        _store(node, "_flags", [])
        return node

    def _pytree_table(self) -> Mapping[Key, Any]:
        return {**dict[Key, Any](enumerate(self._elements)), **super()._pytree_table()}

    def _pytree_layout(self) -> Layout:
        known = self._pytree_known
        if (
            known is not None
            and len(known.keys) == len(self._elements) + len(attributes_of(self))
            and not attributes_of(self)
        ):
            return known
        flags = {n: flag for n, flag in enumerate(self._flags) if flag is not None}
        attributes = {
            key: flag for key, flag in self._pytree_status.items() if not isinstance(key, int)
        }
        _store(self, "_pytree_status", {**flags, **attributes})
        return self._pytree_find_layout(self._pytree_table(), attributes=True)

    def _pytree_fill(self, data: Mapping[Key, Any], static: Mapping[Key, Any]) -> None:
        items = {**data, **static}
        count = sum(isinstance(key, int) for key in items)
        self._elements.extend([items.pop(n) for n in range(count)])
        self._flags.extend([n in data if self._pytree_enabled else None for n in range(count)])
        attributes_of(self).update(items)
        self._pytree_fill_status([k for k in data if k in items], [k for k in static if k in items])

    def _pytree_takes(self, key: Key) -> bool:
        return key == len(self)

    def _pytree_set(self, key: Key, value: Any) -> None:
        if not isinstance(key, int):
            super()._pytree_set(key, value)
        elif key == len(self):
            self.append(value)
        else:
            self[key] = value

    def _pytree_delete(self, key: Key) -> None:
        if isinstance(key, int):
            del self[key]
        else:
            super()._pytree_delete(key)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "elements": list(self._elements),
            "flags": list(self._flags),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._elements.extend(state["elements"])
        self._flags.extend(state["flags"])

    __hash__ = Module.__hash__
    __eq__ = Module.__eq__


class Dict(Module, MutableMapping[Key, A], Generic[A]):
    """A dict whose values are seen like attributes, and can be read and written like them, too.

    Keys are strings and integers. Equality is that of objects, as for any Module.
    """

    __slots__ = ("_items",)

    _items: dict[Key, Any]

    def __init__(self, *args: Mapping[Key, A] | Iterable[tuple[Key, A]], **kwargs: A) -> None:
        """Makes a dict; the arguments are those of `dict`.

        Raises:
          ValueError: a value holds data and is neither data by itself nor annotated.
        """
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def __getitem__(self, key: Key) -> A:
        return self._items[key]

    def __setitem__(self, key: Key, value: A) -> None:
        self._pytree_before_change()
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            raise TypeError(
                f"a Dict's keys are strings and integers, not {key!r} of type {type(key).__name__}"
            )
        self._items[key] = self._pytree_admit(key, value)

    def __delitem__(self, key: Key) -> None:
        self._pytree_before_change()
        del self._items[key]
        self._pytree_status.pop(key, None)
        _store(self, "_pytree_known", None)

    def __or__(self, other: Mapping[Key, A]) -> dict[Key, A]:
        return {**self._items, **other}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name not in Dict.__slots__ and name in self._items:
            return self._items[name]
        raise AttributeError(
            f"{type(self).__name__} has no attribute or key {name!r}", name=name, obj=self
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._items:
            raise AttributeError(
                f"{type(self).__name__} has no attribute or key {name!r}", name=name, obj=self
            )
        del self[name]

    # --- how the package sees it; `Pytree` says what these are ---

    @classmethod
    def _pytree_new(cls, trace: Trace) -> Self:
        node = super()._pytree_new(trace)
        _store(node, "_items", {})
        return node

    def _pytree_table(self) -> Mapping[Key, Any]:
        return self._items

    def _pytree_layout(self) -> Layout:
        known = self._pytree_known
        if known is None or known.keys != tuple(self._items):
            known = self._pytree_find_layout(self._items, attributes=False)
        return known

    def _pytree_fill(self, data: Mapping[Key, Any], static: Mapping[Key, Any]) -> None:
        self._items.update(data)
        self._items.update(static)
        self._pytree_fill_status(data, static)

    def _pytree_takes(self, key: Key) -> bool:
        return True

    def _pytree_set(self, key: Key, value: Any) -> None:
        self[key] = value

    def _pytree_delete(self, key: Key) -> None:
        del self[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"items": dict(self._items), "status": dict(self._pytree_status)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._items.update(state["items"])
        self._pytree_status.update(state["status"])

    __hash__ = Module.__hash__
    __eq__ = Module.__eq__
