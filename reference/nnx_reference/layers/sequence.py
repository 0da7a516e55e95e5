"""Sequential: layers and other functions, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from nnx_reference.containers import List
from nnx_reference.pytree import Module
from nnx_reference.rngs import Rngs


class Sequential(Module):
    """Functions called one after the other, each with what the one before has returned.

    A tuple that is returned becomes positional arguments, a dict keyword arguments, all else one
    argument.

    Attributes:
      layers: a List of the functions.
    """

    def __init__(self, *fns: Callable[..., Any]):
        """Takes the functions, in the order in which they are called."""
        self.layers = List(fns)

    def __call__(self, *args: Any, rngs: Rngs | None = None, **kwargs: Any) -> Any:
        """Calls the functions.

        Args:
          *args: the arguments of the first function.
          rngs: random streams for those functions that have a parameter of this name.
          **kwargs: keyword arguments of the first function.

        Returns:
          What the last function returns. Without any function: the argument, the tuple of the
          arguments if there are several, the dict of the keyword arguments if there are only such,
          None if there is none.

        Raises:
          TypeError: an element is not callable.
        """
        returned: Any = _returned(args, kwargs)
        for index, function in enumerate(self.layers):
            if not callable(function):
                raise TypeError(
                    f"layers[{index}] of a {type(self).__name__} is to be callable, but a"
                    f" {type(function).__name__} is not"
                )
            if index > 0:
                args, kwargs = _arguments(returned)
            given = {} if rngs is None or not _takes_rngs(function) else {"rngs": rngs}
            returned = function(*args, **kwargs, **given)
        return returned


def _returned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns what stands for arguments that no function has been called with."""
    if args:
        return args[0] if len(args) == 1 else args
    return kwargs or None


def _arguments(returned: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(returned, tuple):
        return returned, {}
    return ((), returned) if isinstance(returned, dict) else ((returned,), {})


def _takes_rngs(function: Callable[..., Any]) -> bool:
    """Tells whether a function can be called with `rngs=`."""
    try:
        return "rngs" in inspect.signature(function).parameters
    except ValueError:
        return False
