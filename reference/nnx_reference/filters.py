"""The filter language: which values are meant, by class, tag, path or predicate.

A filter is anything that `to_predicate` takes. A predicate is called with a path, the tuple of
attribute names, indexes and keys that leads to a value, and with the value; it tells whether that
is selected.

    filter                        predicate
    `...`, True                   Everything()
    None, False                   Nothing()
    a class                       OfType(class)
    a string                      WithTag(string)
    a tuple or list of filters    Any(*filters)
    a callable                    the callable itself

Where several filters sort values into groups, the first that selects a value takes it.
"""

from __future__ import annotations

import builtins
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

from nnx_reference.variables import Variable

Path = tuple[typing.Any, ...]
Predicate = Callable[[Path, typing.Any], bool]
Filter = type | str | bool | EllipsisType | None | Predicate | tuple["Filter", ...] | list["Filter"]


def to_predicate(filter: Filter) -> Predicate:
    """Converts a filter to a predicate.

    Raises:
      TypeError: the object is no filter.
    """
    if filter is ... or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, type):
        return OfType(filter)
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, tuple | list):
        return Any(*filter)
    if callable(filter) and not isinstance(filter, Variable):
        return filter
    raise TypeError(
        f"not a filter: {filter!r}, of type {type(filter).__name__}; a filter is `...`, True,"
        " False, None, a class, a tag (str), a tuple or list of filters, or a callable that takes a"
        " path and a value"
    )


@dataclass(frozen=True)
class Everything:
    """Selects everything."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected: always."""
        return True


@dataclass(frozen=True)
class Nothing:
    """Selects nothing."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected: never."""
        return False


@dataclass(frozen=True)
class OfType:
    """Selects the instances of a class.

    Attributes:
      type: the class.
    """

    type: builtins.type

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        return isinstance(value, self.type)


@dataclass(frozen=True)
class WithTag:
    """Selects Variables whose metadata `tag` is a given string, and all else with such a `tag`.

    Attributes:
      tag: the string.
    """

    tag: str

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        if isinstance(value, Variable):
            tag = value.get_metadata("tag", None)
        else:
            tag = getattr(value, "tag", None)
        return isinstance(tag, str) and tag == self.tag


@dataclass(frozen=True)
class PathContains:
    """Selects values that have a key anywhere in their path.

    Attributes:
      key: the key: a str for names, an int for indexes.
      exact: whether some key of the path must equal it; otherwise it is enough that the text of
        some key contains the text of this one.
    """

    key: typing.Any
    exact: bool = True

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        if self.exact:
            return self.key in path
        return any(str(self.key) in str(key) for key in path)


@dataclass(frozen=True, init=False)
class _Combination:
    """Several filters in one.

    Attributes:
      predicates: the filters, converted.
    """

    predicates: tuple[Predicate, ...]

    def __init__(self, *filters: Filter) -> None:
        """Combines filters.

        Raises:
          TypeError: one of them is no filter.
        """
        object.__setattr__(self, "predicates", tuple(map(to_predicate, filters)))


class Any(_Combination):
    """Selects what at least one of its filters selects; nothing, if it has none."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        return any(predicate(path, value) for predicate in self.predicates)


class All(_Combination):
    """Selects what all of its filters select; everything, if it has none."""

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        return all(predicate(path, value) for predicate in self.predicates)


@dataclass(frozen=True, init=False)
class Not:
    """Selects what its filter does not.

    Attributes:
      predicate: the filter, converted.
    """

    predicate: Predicate

    def __init__(self, collection_filter: Filter, /) -> None:
        """Negates a filter.

        Raises:
          TypeError: it is no filter.
        """
        object.__setattr__(self, "predicate", to_predicate(collection_filter))

    def __call__(self, path: Path, value: typing.Any) -> bool:
        """Tells whether the value is selected."""
        return not self.predicate(path, value)
