"""Settings: whether shared references, and changes of structure, are supported by default.

A setting is a class whose call sets it, for the process or for a block:

    set_graph_mode(False)              # from now on, in every thread
    with set_graph_mode(True): ...     # in this block, in this thread
    @set_graph_mode(True)              # during each call of the function, in the thread that calls
    set_graph_mode.current_value()     # what holds here and now

Its first value comes from an environment variable.

`var_defaults` is of the same kind: the modes that Variables have if nothing is said. It is each
thread's own.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

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
    """A switch. Calling the class sets it; the object that this gives sets it back.

    As a context manager it does so when the block ends; as a decorator at once, and then sets the
    value during each call of the function.
    """

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
        self._is_set_back = False

    @classmethod
    def current_value(cls) -> bool:
        """Returns the value that holds in this thread now."""
        return values[-1] if (values := cls._scopes.values) else cls._process_value

    @classmethod
    def _assign(cls, value: bool) -> bool:
        """Sets the value that holds in this thread and returns the one before."""
        values, previous = cls._scopes.values, cls.current_value()
        if values:
            values[-1] = value
        else:
            cls._process_value = value
        return previous

    def _set_back(self) -> None:
        """Undoes what making this object has set, once."""
        if not self._is_set_back:
            self._assign(self._previous)
            self._is_set_back = True

    def __enter__(self) -> Self:
        self._set_back()
        self._scopes.values.append(self._value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scopes.values.pop()

    def __call__(self, function: F, /) -> F:
        """Makes a function during whose calls the switch is set, instead of from now on."""
        self._set_back()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class set_graph_mode(_Setting, variable="NNX_GRAPH_MODE"):  # noqa: N801
    """Whether functions that take `graph=` support sharing and cycles when they are not told."""


class set_graph_updates(_Setting, variable="NNX_GRAPH_UPDATES"):  # noqa: N801
    """Whether transforms that take `graph_updates=` propagate structure when they are not told."""


class use_eager_sharding(_Setting, variable="FLAX_ALWAYS_SHARD_VARIABLE"):  # noqa: N801
    """Whether new Variables place their values as their metadata say, under a mesh."""


def using_eager_sharding() -> bool:
    """Returns whether new Variables place their values as their metadata say, under a mesh."""
    return use_eager_sharding.current_value()


def resolve_graph(graph: bool | None) -> bool:
    """Returns what `graph=` says, or the default where it says None."""
    return set_graph_mode.current_value() if graph is None else graph


def resolve_graph_updates(graph_updates: bool | None) -> bool:
    """Returns what `graph_updates=` says, or the default where it says None."""
    return set_graph_updates.current_value() if graph_updates is None else graph_updates


def resolve_modes(graph: bool | None, graph_updates: bool | None) -> tuple[bool, bool]:
    """Returns what `graph=` and `graph_updates=` say, or the defaults where they say None.

    Without graph mode there are no graph updates.
    """
    graph = resolve_graph(graph)
    return graph, graph and resolve_graph_updates(graph_updates)


@dataclass(frozen=True, eq=False)
class VarDefaults(Mapping[str, bool]):
    """The modes of new Variables, as attributes and as a mapping."""

    hijax: bool
    ref: bool

    def __getitem__(self, name: str) -> bool:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)


class _ThreadDefaults(threading.local):
    """What a thread's new Variables are; `flags` has only what is not False."""

    def __init__(self) -> None:
        self.set(VarDefaults(**_FIRST_DEFAULTS))

    def set(self, defaults: VarDefaults) -> None:
        """Sets the defaults."""
        self.defaults = defaults
        self.flags = {name: True for name, value in defaults.items() if value}


_FIRST_DEFAULTS = {"hijax": _from_environment("FLAX_HIJAX_VARIABLE", default=False), "ref": False}
_defaults = _ThreadDefaults()


def default_flags() -> dict[str, bool]:
    """Returns the flags of a new Variable that differ from FLAGS; it is not to be changed."""
    if use_eager_sharding.current_value():
        return _defaults.flags
    return {**_defaults.flags, "eager_sharding": False}


class VarDefaultsContext:
    """A change of the defaults that has been made; leaving the block, or a call, undoes it."""

    def __init__(self, changes: Mapping[str, bool]) -> None:
        self._changes = changes
        self._before = [self._apply()]
        self._is_set_back = False

    def _apply(self) -> VarDefaults:
        before = _defaults.defaults
        _defaults.set(VarDefaults(**{**before, **self._changes}))
        return before

    def __enter__(self) -> Self:
        self._set_back()
        self._before.append(self._apply())
        return self

    def __exit__(self, *error: object) -> None:
        _defaults.set(self._before.pop())

    def _set_back(self) -> None:
        """Undoes what making this object has set, once."""
        if not self._is_set_back:
            _defaults.set(self._before.pop())
            self._is_set_back = True

    def __call__(self, function: F, /) -> F:
        """Makes a function during whose calls the defaults are changed, instead of from now on."""
        self._set_back()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with VarDefaultsContext(self._changes):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


@overload
def var_defaults() -> VarDefaults: ...
@overload
def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> VarDefaultsContext: ...
def var_defaults(
    *, hijax: bool | None = None, ref: bool | None = None
) -> VarDefaults | VarDefaultsContext:
    """Returns the modes that this thread's new Variables have, or sets them.

    Each thread starts with what the environment variable FLAX_HIJAX_VARIABLE says about `hijax`,
    False if nothing, and with `ref=False`.

    Args:
      hijax: whether new Variables are hijax ones; None leaves it.
      ref: whether new Variables hold their value in a Ref; None leaves it.

    Returns:
      The `VarDefaults` if no argument is given. Else what has been set is set back at the end of a
      `with` block of the result; decorated with the result, a function has it during its calls.

    Raises:
      TypeError: an argument is no bool.
    """
    changes = {name: flag for name, flag in (("hijax", hijax), ("ref", ref)) if flag is not None}
    for name, flag in changes.items():
        if not isinstance(flag, bool):
            raise TypeError(f"var_defaults takes {name}=True or {name}=False, not {flag!r}")
    return VarDefaultsContext(changes) if changes else _defaults.defaults
