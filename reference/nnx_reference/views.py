"""Modes and views: setting attributes all over a model, in place or on a copy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nnx_reference.filters import Filter, Path, to_predicate
from nnx_reference.pytree import Module
from nnx_reference.traversal import iter_graph, recursive_map

A = TypeVar("A")


def set_attributes(
    node: Any,
    /,
    *filters: Filter,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **attributes: Any,
) -> None:
    """Sets attributes in place on every Module in an object that has them.

    Args:
      node: the object, or any pytree of objects.
      filters: select the Modules by path and class; none selects all.
      raise_if_not_found: whether an attribute that no selected Module has is an error.
      graph: whether sharing is allowed; None for the default.
      attributes: the attributes with their values.

    Raises:
      ValueError: an attribute is found nowhere; nothing has changed then.
    """
    selects = to_predicate(filters or ...)
    found = [
        (module, name)
        for path, module in iter_graph(node, graph=graph)
        if isinstance(module, Module) and selects(path, module)
        for name in attributes
        if hasattr(module, name)
    ]
    if raise_if_not_found:
        _check_found(node, attributes, {name for _, name in found})
    for module, name in found:
        setattr(module, name, attributes[name])


def with_attributes(
    node: A,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **attributes: Any,
) -> A:
    """Returns a copy of an object with attributes set as by `set_attributes`; Variables are shared.

    Raises:
      ValueError: an attribute is found nowhere in the selected Modules.
    """

    def change(module: Module) -> set[str]:
        names = {name for name in attributes if hasattr(module, name)}
        for name in names:
            setattr(module, name, attributes[name])
        return names

    return _changed(node, change, only, attributes if raise_if_not_found else {}, graph)


def view(
    node: A,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **kwargs: Any,
) -> A:
    """Returns a copy of an object in other modes; Variables are shared.

    A Module has modes by a method `set_view`, which takes them as keyword arguments; it is called
    with those of the given ones that it has parameters for.

    Args:
      node: the object, or any pytree of objects.
      only: selects the Modules by path and class.
      raise_if_not_found: whether a mode that no selected Module takes is an error.
      graph: whether sharing is allowed; None for the default.
      kwargs: the modes.

    Raises:
      ValueError: a mode is taken nowhere.
    """

    def change(module: Module) -> set[str]:
        set_view: Any = getattr(module, "set_view", None)
        modes = {k: kwargs[k] for k in _modes(set_view) if k in kwargs}
        if modes:
            set_view(**modes)
        return set(modes)

    return _changed(node, change, only, kwargs if raise_if_not_found else {}, graph)


def _modes(set_view: Callable[..., Any] | None) -> list[str]:
    return [] if set_view is None else list(inspect.signature(set_view).parameters)


def _changed(
    node: A,
    change: Callable[[Module], set[str]],
    only: Filter,
    wanted: Mapping[str, Any],
    graph: bool | None,
) -> A:
    selects = to_predicate(only)
    found: set[str] = set()

    def visit(path: Path, value: Any) -> Any:
        if isinstance(value, Module) and selects(path, value):
            found.update(change(value))
        return value

    copied = recursive_map(visit, node, graph=graph)
    _check_found(node, wanted, found)
    return copied


def _check_found(node: Any, wanted: Mapping[str, Any], found: set[str]) -> None:
    if missing := sorted(set(wanted) - found):
        raise ValueError(
            f"no selected Module in {type(node).__name__} has {', '.join(missing)}: check the names"
            " and the filters, or pass raise_if_not_found=False"
        )
