"""Settings: whether shared references, and changes of structure, are supported by default.

A setting is a class whose call sets it, for the process or for a block:

    set_graph_mode(False)              # from now on, in every thread
    with set_graph_mode(True): ...     # in this block, in this thread
    set_graph_mode.current_value()     # what holds here and now

Its first value comes from an environment variable.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import ClassVar, Self

_WORDS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


def _from_environment(variable: str, default: bool) -> bool:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise ValueError(
            f"environment variable {variable} must be true or false, not {text!r}"
        ) from None


class _Scopes(threading.local):
    """The values that a thread's open blocks set, the innermost last."""

    def __init__(self) -> None:
        self.values: list[bool] = []


class _Setting:
    """A switch. Calling the class sets it; the object that this gives sets it back as a context."""

    variable: ClassVar[str]
    _process_value: ClassVar[bool]
    _scopes: ClassVar[_Scopes]

    def __init_subclass__(cls, *, variable: str) -> None:
        cls.variable = variable
        cls._process_value = _from_environment(variable, default=True)
        cls._scopes = _Scopes()

    def __init__(self, value: bool, /) -> None:
        """Sets the switch: until this thread's innermost block ends, or for good outside any.

        Raises:
          TypeError: the value is no bool.
        """
        if not isinstance(value, bool):
            raise TypeError(f"{type(self).__name__} takes True or False, not {value!r}")
        self._value = value
        self._previous = self._assign(value)

    @classmethod
    def current_value(cls) -> bool:
        """Returns the value that holds in this thread now."""
        values = cls._scopes.values
        return values[-1] if values else cls._process_value

    @classmethod
    def _assign(cls, value: bool) -> bool:
        """Sets the value that holds in this thread and returns the one before."""
        values, previous = cls._scopes.values, cls.current_value()
        if values:
            values[-1] = value
        else:
            cls._process_value = value
        return previous

    def __enter__(self) -> Self:
        self._assign(self._previous)
        self._scopes.values.append(self._value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scopes.values.pop()


class set_graph_mode(_Setting, variable="NNX_GRAPH_MODE"):  # noqa: N801
    """Whether functions that take `graph=` support sharing and cycles when they are not told."""


class set_graph_updates(_Setting, variable="NNX_GRAPH_UPDATES"):  # noqa: N801
    """Whether transforms that take `graph_updates=` propagate structure when they are not told."""


def resolve_graph(graph: bool | None) -> bool:
    """Returns what `graph=` says, or the default where it says None."""
    return set_graph_mode.current_value() if graph is None else graph


def resolve_graph_updates(graph_updates: bool | None) -> bool:
    """Returns what `graph_updates=` says, or the default where it says None."""
    return set_graph_updates.current_value() if graph_updates is None else graph_updates
