"""Placeholders: what stands for a name that the target lacks.

While files are imported a missing name must not cost a whole file: what stands for it can be
called, subclassed, used as a decorator, in an annotation or as a parameter. As soon as a test runs
the name raises the AttributeError that it deserves, and so does everything made from it. The
ledger notes which names were missed, so that a test that catches the error doesn't count as passed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn


class Ledger:
    """Whether names may be missing for now, and which ones were missed.

    Attributes:
      lenient: whether a missing name gives a placeholder.
      missed: the names that were missed since it was opened anew.
    """

    def __init__(self, *, lenient: bool) -> None:
        self.lenient = lenient
        self.missed: set[str] = set()

    def miss(self, name: str) -> AttributeError:
        """Notes that a name is missing, and returns the error that says so."""
        self.missed.add(name)
        if name.startswith(("flax.", "nnx.")):
            return AttributeError(f"the target has no {name}")
        return AttributeError(f"{name} is not installed")

    def stand_in(self, name: str) -> Missing:
        """Returns what stands for a missing name.

        Raises:
          AttributeError: the time for that is over.
        """
        if not self.lenient:
            raise self.miss(name)
        return Missing(name, self)


def is_dunder(name: str) -> bool:
    """Tells whether a name is one of Python's protocols."""
    return name.startswith("__") and name.endswith("__")


class Missing:
    """Stands for a name that the target lacks."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.__dict__.update(_missing=name, _ledger=ledger)

    def _again(self) -> Missing:
        return self._ledger.stand_in(self._missing)

    def _fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self._ledger.miss(self._missing)

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ledger.stand_in(f"{self._missing}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Stands for what the name would make; as a decorator, makes of a test one that fails."""
        made = self._again()
        decorated = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(decorated, types.FunctionType) and decorated.__name__.startswith("test"):
            return self._failing(decorated)
        return made

    def _failing(self, test: types.FunctionType) -> Callable[..., NoReturn]:
        def failing(*args: Any, **kwargs: Any) -> NoReturn:
            self._fail()

        failing.__name__, failing.__qualname__ = test.__name__, test.__qualname__
        failing.__module__ = test.__module__
        return failing

    def __getitem__(self, key: Any) -> Missing:
        return self._again()

    def __or__(self, other: Any) -> Any:
        return self._again()

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        self._again()

        def new(cls: type, *args: Any, **kwargs: Any) -> Missing:
            return self._again()

        def accept(cls: type, **kwargs: Any) -> None:
            """Takes whatever a class statement passes on."""

        name = f"Missing_{self._missing.replace('.', '_')}"
        body = {"__new__": new, "__init_subclass__": classmethod(accept)}
        return (type(name, (), body),)

    def __repr__(self) -> str:
        return f"<missing {self._missing}>"

    __setattr__ = __iter__ = __enter__ = __exit__ = _fail
    __instancecheck__ = __subclasscheck__ = _fail
    __add__ = __radd__ = __mul__ = __rmul__ = __len__ = __contains__ = _fail


class Fields:
    """What a from-import takes names from if the module itself is missing."""

    def __init__(self, module: Missing) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if is_dunder(name):
            raise AttributeError(name)
        return getattr(self._module, name)
