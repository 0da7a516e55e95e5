"""Attributes: which values are data, and how an assignment says so.

An object's attributes are of two kinds. Data is what transforms see: it ends up among the leaves of
a pytree and in a State. Everything else is static: plain Python values that belong to the
structure.

What is data by itself: arrays (`jax.Array`, `numpy.ndarray`, and `jax.ShapeDtypeStruct`, which
stands for one), Refs, Variables, Pytrees, and instances of registered types. All other values are
static, containers among them; one that holds data needs to be annotated, because whether a list is
data should not depend on what is in it today.

`data(x)` and `static(x)` annotate a value for the attribute to which it is assigned. They are
markers for the assignment only, and never stored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, get_args

import jax
import numpy as np

from nnx_reference.variables import Variable

T = TypeVar("T")

_MISSING: Any = object()
_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None), type})


class Mark:
    """A value on its way to an attribute, with what the caller said about it."""

    __slots__ = ("is_data", "value")

    def __init__(self, value: Any, is_data: bool) -> None:
        self.value = value
        self.is_data = is_data

    def __repr__(self) -> str:
        return f"{'data' if self.is_data else 'static'}({self.value!r})"


Data = Annotated[T, "nnx.data"]
"""`name: Data[T]` in a Pytree's class body declares the attribute `name` as data."""

Static = Annotated[T, "nnx.static"]
"""`name: Static[T]` in a Pytree's class body declares the attribute `name` as static."""


def data(value: Any = _MISSING, /, **kwargs: Any) -> Any:
    """Annotates a value as data, or, without a value, declares a dataclass field that is.

    Args:
      value: what is assigned to an attribute of a Pytree: `self.bias = data(None)`.
      **kwargs: as for `dataclasses.field`; for a field only.

    Raises:
      TypeError: both a value and keyword arguments are given.
    """
    return _mark(value, kwargs, is_data=True)


def static(value: Any = _MISSING, /, **kwargs: Any) -> Any:
    """Annotates a value as static, or, without a value, declares a dataclass field that is.

    Args:
      value: what is assigned to an attribute of a Pytree: `self.name = static(name)`.
      **kwargs: as for `dataclasses.field`; for a field only.

    Raises:
      TypeError: both a value and keyword arguments are given.
    """
    return _mark(value, kwargs, is_data=False)


def _mark(value: Any, kwargs: dict[str, Any], is_data: bool) -> Any:
    if value is _MISSING:
        metadata = {**kwargs.pop("metadata", {}), "static": not is_data}
        return dataclasses.field(metadata=metadata, **kwargs)
    if kwargs:
        raise TypeError(
            f"an annotation takes a value or the arguments of a field, not both: {sorted(kwargs)}"
        )
    return Mark(value.value if isinstance(value, Mark) else value, is_data)


_data_types: tuple[type, ...] = (Variable, np.ndarray, jax.Array, jax.ShapeDtypeStruct, jax.Ref)


def register_data_type(type_: type[T], /) -> type[T]:
    """Makes instances of a class and its subclasses data; returns the class, as decorators do."""
    global _data_types
    if type_ not in _data_types:
        _data_types = (type_, *_data_types)
    return type_


def is_data(value: Any, /) -> bool:
    """Tells whether a value is data by itself."""
    return type(value) not in _ATOMS and isinstance(value, _data_types)


def has_data(value: Any, /) -> list[Any]:
    """Lists the data in a value: the value itself, or what containers and other pytrees hold."""
    return [leaf for leaf in _contents(value) if is_data(leaf)]


def find_marks(value: Any) -> list[Mark]:
    """Lists the annotations that were put into a container, where they say nothing."""
    return [leaf for leaf in _contents(value) if isinstance(leaf, Mark)]


def _contents(value: Any) -> Iterator[Any]:
    """Yields what is in a container, data unopened, or the value itself; atoms are left out.

    Each list, tuple and dict is opened once, so one that contains itself does no harm.
    """
    stack, opened = [value], set()
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is list or kind is tuple or kind is dict:
            if id(item) not in opened:
                opened.add(id(item))
                stack.extend(reversed(item.values() if kind is dict else item))
        elif kind not in _ATOMS:
            if is_data(item):
                yield item
            else:
                yield from jax.tree.leaves(item, is_leaf=is_data)


_DECLARATION = re.compile(r"(?:\w+\.)*(Data|Static)\[")


def declared_in(cls: type) -> dict[str, bool]:
    """Reads which attributes a class body annotates as data (True) or static (False)."""
    found = {}
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if isinstance(annotation, str):
            match = _DECLARATION.match(annotation)
            said = f"nnx.{match[1].lower()}" if match else None
        else:
            said = next(
                (arg for arg in get_args(annotation)[1:] if arg in ("nnx.data", "nnx.static")), None
            )
        if said is not None:
            found[name] = said == "nnx.data"
    return found


def declared_field(cls: type, name: str) -> bool | None:
    """Tells whether a dataclass field is declared as data or as static; None if neither."""
    field = getattr(cls, "__dataclass_fields__", {}).get(name)
    return None if field is None or "static" not in field.metadata else not field.metadata["static"]
