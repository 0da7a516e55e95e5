"""The operators and protocols that a Variable passes on to its value.

An operator gives what it gives on the values, whichever side the Variable is on, and changes none.
The exception is an in-place operator on a whole Variable, `v += x`. Python would bind the name, or
the Module's attribute, to the plain result; so it raises, and names `v[...] += x`, which writes to
the Variable.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np


def value_of(operand: Any) -> Any:
    """Returns a Variable's value, and anything else as it is."""
    return operand.get_value() if isinstance(operand, Operators) else operand


def _binary(operate: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Makes the method for a Variable on the left, and the one for a Variable on the right."""

    def left(self: Operators, other: Any, *rest: Any) -> Any:
        return operate(self.get_value(), value_of(other), *rest)

    def right(self: Operators, other: Any) -> Any:
        return operate(value_of(other), self.get_value())

    return left, right


def _compare(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return _binary(operate)[0]


def _unary(operate: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Operators, *rest: Any) -> Any:
        return operate(self.get_value(), *rest)

    return method


def _truth(value: Any) -> bool:
    """Tells whether a value is not empty, if it is an array with axes; else its truth value."""
    return len(value) > 0 if getattr(value, "ndim", 0) else bool(value)


def _in_place(symbol: str) -> Callable[[Any, Any], NoReturn]:
    def method(self: Operators, other: Any) -> NoReturn:
        raise TypeError(
            f"`v {symbol} x` would put a plain value in the place of the {type(self).__name__};"
            f" use `v[...] {symbol} x` to change its value"
        )

    return method


class Operators:
    """Base of Variable: all operators and protocols, in terms of `get_value()`."""

    __slots__ = ()

    __array_priority__ = 100  # with a NumPy array on the left, the Variable's method decides

    def get_value(self) -> Any:
        """Returns the value."""
        raise NotImplementedError

    __add__, __radd__ = _binary(operator.add)
    __sub__, __rsub__ = _binary(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul)
    __matmul__, __rmatmul__ = _binary(operator.matmul)
    __truediv__, __rtruediv__ = _binary(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod)
    __divmod__, __rdivmod__ = _binary(divmod)
    __pow__, __rpow__ = _binary(pow)
    __and__, __rand__ = _binary(operator.and_)
    __or__, __ror__ = _binary(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor)
    __lshift__, __rlshift__ = _binary(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift)

    __eq__ = _compare(operator.eq)
    __ne__ = _compare(operator.ne)
    __lt__ = _compare(operator.lt)
    __le__ = _compare(operator.le)
    __gt__ = _compare(operator.gt)
    __ge__ = _compare(operator.ge)
    __hash__ = None  # type: ignore[assignment]

    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)
    __round__ = _unary(round)
    __trunc__ = _unary(math.trunc)
    __floor__ = _unary(math.floor)
    __ceil__ = _unary(math.ceil)

    __bool__ = _unary(_truth)
    __int__ = _unary(int)
    __float__ = _unary(float)
    __complex__ = _unary(complex)
    __index__ = _unary(operator.index)

    __iadd__ = _in_place("+=")
    __isub__ = _in_place("-=")
    __imul__ = _in_place("*=")
    __imatmul__ = _in_place("@=")
    __itruediv__ = _in_place("/=")
    __ifloordiv__ = _in_place("//=")
    __imod__ = _in_place("%=")
    __ipow__ = _in_place("**=")
    __iand__ = _in_place("&=")
    __ior__ = _in_place("|=")
    __ixor__ = _in_place("^=")
    __ilshift__ = _in_place("<<=")
    __irshift__ = _in_place(">>=")

    __len__ = _unary(len)
    __iter__ = _unary(iter)
    __reversed__ = _unary(reversed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the value."""
        return self.get_value()(*args, **kwargs)

    def __contains__(self, item: Any) -> bool:
        return value_of(item) in self.get_value()

    def __format__(self, spec: str) -> str:
        return format(self.get_value(), spec) if spec else str(self)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.get_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        make = np.array if copy else np.asarray
        return make(self.get_value(), dtype)
