"""Names for classes of Variables: those of the collections in which Flax Linen keeps variables.

    params, batch_stats, cache, intermediates, perturbations    Param, BatchStat, Cache, ...

`register_variable_name` adds names. A class may have several; the first one stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from nnx_reference.variables import (
    BatchStat,
    Cache,
    Intermediate,
    Param,
    Perturbation,
    Variable,
)

Kind = type[Variable[Any]]
K = TypeVar("K", bound=Kind)

_kinds: dict[str, Kind] = {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}


@overload
def register_variable_name(name: str, typ: K, *, overwrite: bool = False) -> K: ...
@overload
def register_variable_name(name: str, *, overwrite: bool = False) -> Callable[[K], K]: ...
def register_variable_name(name: str, typ: Any = None, *, overwrite: bool = False) -> Any:
    """Gives a class of Variables a name.

    Args:
      name: the name.
      typ: the class; without it, a decorator of the class is returned.
      overwrite: whether the name may stand for another class already, which then loses it.

    Returns:
      The class.

    Raises:
      ValueError: the name stands for a class already.
    """
    if typ is None:
        return lambda kind: register_variable_name(name, kind, overwrite=overwrite)
    if name in _kinds and not overwrite:
        raise ValueError(
            f"the name {name!r} stands for {_kinds[name].__name__} already; with overwrite=True it"
            f" would stand for {typ.__name__} instead"
        )
    _kinds[name] = typ
    return typ


def variable_type_from_name(
    name: str, /, *, base: Kind = Variable, allow_register: bool = False
) -> Kind:
    """Returns the class of Variables that a name stands for.

    Args:
      name: the name.
      base: the base of the class that is made if there is none.
      allow_register: whether a class is made, and registered, if there is none.

    Raises:
      ValueError: there is none, and it may not be made.
    """
    if name not in _kinds:
        if not allow_register:
            raise ValueError(
                f"the name {name!r} stands for no class of Variables: give it to one with"
                " register_variable_name, or pass allow_register=True to have one made"
            )
        register_variable_name(name, type(name, (base,), {"__slots__": ()}))
    return _kinds[name]


def variable_name_from_type(typ: Kind, /, *, allow_register: bool = False) -> str:
    """Returns the name of a class of Variables.

    Args:
      typ: the class.
      allow_register: whether the class is registered under its own name if it has none.

    Raises:
      ValueError: the class has no name, and may not be registered; or its own name stands for
        another class already.
    """
    found = next((name for name, kind in _kinds.items() if kind is typ), None)
    if found is not None:
        return found
    if not allow_register:
        raise ValueError(
            f"{typ.__name__} has no name: give it one with register_variable_name, or pass"
            " allow_register=True to use that of the class"
        )
    register_variable_name(typ.__name__, typ)
    return typ.__name__
