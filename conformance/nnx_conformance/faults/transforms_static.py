"""Faults of transforms that concern static values, and what escapes from a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.transforms_calls import Function, replace

Replacing = Callable[[Any], Any]


def static_attributes(nnx: Any, args: tuple[Any, ...]) -> list[tuple[Any, str, Any]]:
    """Lists the static attributes of Modules among some arguments: Module, name, value."""
    modules = [x for x in args if isinstance(x, nnx.Module)]
    items = [(module, *item) for module in modules for item in vars(module).items()]
    return [item for item in items if not nnx.is_data(item[2])]


@contextmanager
def replaced(nnx: Any, args: tuple[Any, ...], replacing: Replacing) -> Iterator[None]:
    """Gives Modules among some arguments other static attributes for a while."""
    before = static_attributes(nnx, args)
    for module, name, value in before:
        if (other := replacing(value)) is not value:
            setattr(module, name, other)
    try:
        yield
    finally:
        for module, name, value in before:
            if getattr(module, name, value) is not value:
                setattr(module, name, value)


@fault(breaks="TRX-037")
def equal_values_are_the_same(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` takes a static value for the first one that it has met and that is equal to it."""
    known: dict[Any, Any] = {}

    def first(value: Any) -> Any:
        try:
            return known.setdefault(value, value)
        except Exception:
            return value

    def jit(original: Function, f: Function, **options: Any) -> Function:
        jitted = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            with replaced(nnx, args, first):
                return jitted(*args, **kwargs)

        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-039")
def static_values_must_be_comparable(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` compares each static value with those that it has met, and shows what that raises."""
    known: list[Any] = []

    def compared(value: Any) -> Any:
        if not any(value is other or bool(value == other) for other in known):
            known.append(value)
        return value

    def jit(original: Function, f: Function, **options: Any) -> Function:
        jitted = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            with replaced(nnx, args, compared):
                return jitted(*args, **kwargs)

        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-041")
def escaped_variables_take_values(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """To set the value of a Variable that has escaped does nothing, and raises nothing."""
    original = nnx.Variable.set_value

    def set_value(self: Any, *args: Any, **options: Any) -> None:
        try:
            original(self, *args, **options)
        except nnx.errors.TraceContextError:
            return

    patch.setattr(nnx.Variable, "set_value", set_value)


@fault(breaks="TRX-045")
def escaped_variables_are_not_named(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error about a write to a Variable of another trace level does not say what it is."""
    original = nnx.Variable.set_value

    def set_value(self: Any, *args: Any, **options: Any) -> None:
        try:
            original(self, *args, **options)
        except nnx.errors.TraceContextError:
            raise nnx.errors.TraceContextError("something of another trace level") from None

    patch.setattr(nnx.Variable, "set_value", set_value)
