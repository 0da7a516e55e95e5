"""Arguments by place: which ones are static, that is, part of the structure, or donated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from nnx_reference.exactness import exactly_equal


@jax.tree_util.register_static
class Static:
    """A value that JAX takes for structure: it is not traced, and another one is traced anew."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static):
            return NotImplemented
        return exactly_equal(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.value)


class Places(NamedTuple):
    """Arguments of a function by position and by name.

    Attributes:
      numbers: the positions; negative ones count from the last argument of a call.
      names: the names of keyword arguments.
    """

    numbers: frozenset[int]
    names: frozenset[str]

    def choose(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[bool, ...], dict[str, bool]]:
        """Tells which positional and which keyword arguments of a call are meant."""
        numbers = {n + len(args) if n < 0 else n for n in self.numbers}
        positional = tuple([n in numbers for n in range(len(args))])
        return positional, {name: name in self.names for name in kwargs}

    def pick(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Picks the arguments of a call that are meant."""
        positional, named = self.choose(args, kwargs)
        return [x for x, flag in zip(args, positional, strict=True) if flag] + [
            x for name, x in kwargs.items() if named[name]
        ]


NOWHERE = Places(frozenset(), frozenset())


def find_places(
    function: Callable[..., Any],
    what: str,
    argnums: int | Iterable[int] | None,
    argnames: str | Iterable[str] | None,
) -> Places:
    """Finds the arguments that are meant; of positions and names, the one tells the other.

    Args:
      function: the function.
      what: what the arguments are, `static` or `donate`, for errors.
      argnums: positions, or None for those of the names.
      argnames: names, or None for those at the positions.

    Raises:
      ValueError: the function has no parameter of such a name.
    """
    if argnums is None and argnames is None:
        return NOWHERE
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums or ())
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames or ())
    parameters = _parameters(function)
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    before = sum(p.kind is p.POSITIONAL_ONLY for p in parameters)
    if argnums is None:
        numbers = tuple(before + positional.index(name) for name in names if name in positional)
    if argnames is None:
        places = [n - before for n in numbers]
        names = tuple(positional[n] for n in places if 0 <= n < len(positional))
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
    if unknown := [name for name in names if name not in known and not takes_any]:
        raise ValueError(
            f"{what}_argnames has {unknown[0]!r}, but the function takes {', '.join(sorted(known))}"
        )
    return Places(frozenset(numbers), frozenset(names))


def check_apart(static: Places, donated: Places) -> None:
    """Checks that no argument is said to be both static and donated.

    Raises:
      ValueError: one is.
    """
    both = [*sorted(static.numbers & donated.numbers), *sorted(static.names & donated.names)]
    if both:
        raise ValueError(
            f"the argument {both[-1]!r} is static, so that it has no array to give up: donate"
            " others only"
        )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def mark(
    places: Places, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Wraps the static arguments of a call.

    Raises:
      ValueError: one is not hashable.
    """
    if not places.numbers and not places.names:
        return args, kwargs
    positional, named = places.choose(args, kwargs)
    marked = [_static(x) if flag else x for x, flag in zip(args, positional, strict=True)]
    return tuple(marked), {name: _static(x) if named[name] else x for name, x in kwargs.items()}


def _static(value: Any) -> Static:
    try:
        hash(value)
    except TypeError as error:
        raise ValueError(
            f"a static argument must be hashable, and {value!r} is not: {error}"
        ) from None
    return Static(value)


def unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that takes wrapped arguments of one that takes them bare."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_bare, args), **{name: _bare(x) for name, x in kwargs.items()})

    return call


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Static) else value
