"""Swapping: the target in the place of `flax.nnx`, for the files of one folder.

`builtins.__import__` is replaced. An import of `flax` or of something in it is redirected only if
the importing file is in the folder. Everybody else, the installed Flax and the target included,
imports as before. What the folder's files get:

    flax.nnx               the target
    flax.nnx.a.b           what the target has as `a.b`; else its own names, from the top
    flax.errors, .config   what the target has there, and then what Flax has
    flax.anything_else     Flax
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from nnx_conformance.targets import Target
from nnx_conformance.upstream.placeholders import Fields, Ledger, Missing, is_dunder

ORIGINAL = "flax.nnx"
SHARED = ("errors", "config")
"""Modules of Flax in which a target may have names of its own."""

Path_ = tuple[str, ...]


def install(target: Target, folder: Path, ledger: Ledger) -> Swap | None:
    """Puts a target in the place of `flax.nnx` for the files of a folder.

    Returns:
      The swap, or None if the target is `flax.nnx` itself.
    """
    if getattr(target._namespace, "__name__", None) == ORIGINAL:
        return None
    swap = Swap(target, folder, ledger)
    builtins.__import__ = swap
    return swap


class Swap:
    """An import function that redirects imports of Flax from files of a folder."""

    def __init__(self, target: Target, folder: Path, ledger: Ledger) -> None:
        self.target = target
        self.ledger = ledger
        self._folder = os.path.realpath(folder) + os.sep
        self._import = builtins.__import__
        self._inside: dict[str, bool] = {}
        self._modules: dict[Path_, SwappedModule] = {}
        self._flax = Flax(self)

    def remove(self) -> None:
        """Makes imports what they were."""
        builtins.__import__ = self._import

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        """Imports, as `builtins.__import__` does."""
        if level or not self._is_inside(globals):
            return self._import(name, globals, locals, fromlist or (), level)
        if name.partition(".")[0] == "flax":
            module = self._module(name)
            if not fromlist:
                return self._flax
            if isinstance(module, (Flax, Shared, SwappedModule)):
                return module
            if isinstance(module, Missing):
                return Fields(module)
            return self._import(name, None, None, fromlist)
        try:
            return self._import(name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            absent = error.name and f"{name}.".startswith(f"{error.name}.")
            if not (absent and self.ledger.lenient):
                raise
            whole, root = (Missing(part, self.ledger) for part in (name, name.partition(".")[0]))
            return Fields(whole) if fromlist else root

    def _is_inside(self, globals: Mapping[str, object] | None) -> bool:
        file = globals.get("__file__") if globals else None
        if not isinstance(file, str):
            return False
        known = self._inside.get(file)
        if known is None:
            known = self._inside[file] = os.path.realpath(file).startswith(self._folder)
        return known

    def _module(self, name: str) -> Any:
        """Returns what stands for `flax`, or for a module in it."""
        parts = name.split(".")[1:]
        if not parts:
            return self._flax
        if parts[0] == "nnx":
            return self.module(tuple(parts[1:]))
        found = getattr(self._flax, parts[0])
        for count, part in enumerate(parts[1:], 2):
            if isinstance(found, (Missing, Shared)):
                found = getattr(found, part)
            else:
                found = importlib.import_module(".".join(["flax", *parts[:count]]))
        return found

    def module(self, path: Path_) -> SwappedModule:
        """Returns what stands for a module in `flax.nnx`, and for that itself."""
        if path not in self._modules:
            self._modules[path] = SwappedModule(self, path)
        return self._modules[path]

    def own(self, path: Path_) -> Any:
        """Returns the target's own object at a path, or None."""
        found = self.target._namespace
        for part in path:
            name = f"{getattr(found, '__name__', '')}.{part}"
            if hasattr(found, part):
                found = getattr(found, part)
            elif isinstance(found, ModuleType) and _exists(name):
                found = importlib.import_module(name)
            else:
                return None
        return found


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


class SwappedModule(ModuleType):
    """What stands for `flax.nnx`, or for a module in it."""

    def __init__(self, swap: Swap, path: Path_) -> None:
        super().__init__(".".join([getattr(swap.own(()), "__name__", "target"), *path]))
        self.__dict__.update(_swap=swap, _path=path)

    def _owners(self) -> Iterator[tuple[Path_, Any]]:
        path, swap = self._path, self._swap
        for where in dict.fromkeys((path, ())):
            if (owner := swap.own(where)) is not None:
                yield where, owner

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [known for known in dir(self) if not known.startswith("_")]
        if is_dunder(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for where, owner in self._owners():
            if hasattr(owner, name):
                value = getattr(owner, name)
                path = (*where, name)
                return self._swap.module(path) if isinstance(value, ModuleType) else value
        path = (*self._path, name)
        if isinstance(self._swap.own(path), ModuleType) or _exists(".".join((ORIGINAL, *path))):
            return self._swap.module(path)
        return self._swap.ledger.stand_in(".".join(("nnx", *path)))

    def __setattr__(self, name: str, value: Any) -> None:
        if is_dunder(name):
            super().__setattr__(name, value)
        else:
            setattr(self._swap.own(self._path), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._swap.own(self._path), name)

    def __dir__(self) -> list[str]:
        return dir(next(owner for _, owner in self._owners()))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return importlib.import_module, (self.__name__,)


class Flax(ModuleType):
    """What stands for `flax`."""

    def __init__(self, swap: Swap) -> None:
        super().__init__("flax")
        self.__dict__["_swap"] = swap

    def __getattr__(self, name: str) -> Any:
        if is_dunder(name):
            raise AttributeError(f"module 'flax' has no attribute {name!r}")
        if name == "nnx":
            return self._swap.module(())
        if name in SHARED and (own := getattr(self._swap.target, name, None)) is not None:
            return self.__dict__.setdefault(name, Shared(self._swap, name, own))
        flax = importlib.import_module("flax")
        if hasattr(flax, name):
            return getattr(flax, name)
        if _exists(f"flax.{name}"):
            return importlib.import_module(f"flax.{name}")
        return self._swap.ledger.stand_in(f"flax.{name}")


class Shared(ModuleType):
    """What stands for a module of Flax in which the target has names of its own."""

    def __init__(self, swap: Swap, name: str, own: Any) -> None:
        super().__init__(f"flax.{name}")
        original = importlib.import_module("flax")
        self.__dict__.update(_swap=swap, _owners=(own, getattr(original, name, None)))

    def __getattr__(self, name: str) -> Any:
        if is_dunder(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        for owner in self._owners:
            if hasattr(owner, name):
                return getattr(owner, name)
        return self._swap.ledger.stand_in(f"{self.__name__}.{name}")
