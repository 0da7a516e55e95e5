"""Names to ask for: what a Variable is besides its class, and what `var_defaults` returns."""

from __future__ import annotations

from nnx_reference.configuration import VarDefaults
from nnx_reference.variables import Variable

__all__ = ["HijaxVariable", "VarDefaults", "Variable"]


class _OfHijax(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Variable) and value.hijax


class HijaxVariable(metaclass=_OfHijax):
    """What `isinstance` takes each Variable for whose flag `hijax` is on, whatever its class."""

    def __new__(cls) -> HijaxVariable:
        """Refuses to make one.

        Raises:
          TypeError: always; `hijax=True` makes a hijax Variable of any class.
        """
        raise TypeError("a hijax Variable is made by its own class: Param(value, hijax=True)")
