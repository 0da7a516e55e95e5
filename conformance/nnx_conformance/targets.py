"""Targets: loading the namespace that is put to the test, by name."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

ENTRY_POINT_GROUP = "nnx_conformance.targets"


class TargetError(Exception):
    """A target cannot be loaded; the message is one line that says why."""


class UnknownTargetError(TargetError):
    """Neither a registered target nor a module has that name; the message has near ones."""


class MissingNameError(AttributeError):
    """The target lacks a name that a clause uses."""


class Target:
    """A target's namespace: what tests get as the fixture `nnx`.

    Names are read through from the implementation. They can be replaced on the Target itself, which
    leaves the implementation alone; that is how faults are planted.

    Attributes:
      errors: the namespace's error classes: its own `errors`, or else those of its root package.
      _denied: what to raise when a name is read, for names of areas that the target denies.
    """

    def __init__(self, name: str, namespace: Any, root: str) -> None:
        self._name = name
        self._namespace = namespace
        self._root = root
        self._denied: Mapping[str, Callable[[], BaseException]] = {}

    def __getattr__(self, name: str) -> Any:
        namespace = self.__dict__["_namespace"]
        if name in self.__dict__["_denied"]:
            raise self.__dict__["_denied"][name]()
        try:
            return getattr(namespace, name)
        except AttributeError as error:
            if name == "errors" and (errors := _errors_of(self.__dict__["_root"])) is not None:
                return errors
            missing = MissingNameError(f"target {self.__dict__['_name']!r} has no name {name!r}")
            raise missing from error

    def __repr__(self) -> str:
        return f"<target {self._name}>"


def registered() -> dict[str, str]:
    """Returns the registered targets: the location, `module` or `module:attribute`, by name."""
    entries = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {entry.name: entry.value for entry in entries}


def locate(spec: str) -> tuple[str, str]:
    """Finds a target's module and the attribute in it, "" for the module itself; imports nothing.

    Args:
      spec: a registered name, `module` or `module:attribute`.

    Raises:
      UnknownTargetError: a single word that is neither a registered name nor a module's.
    """
    names = registered()
    module, _, attribute = names.get(spec, spec).partition(":")
    if spec not in names and spec.isidentifier() and not _exists(spec):
        near = difflib.get_close_matches(spec, names, n=3, cutoff=0.5) or sorted(names)
        raise UnknownTargetError(
            f"there is no target or module {spec!r}; did you mean {' or '.join(near)}?"
        )
    return module, attribute


def load(spec: str) -> Target:
    """Loads a target by registered name, `module` or `module:attribute`.

    What the import prints, warns of or does to the working directory is its own affair.

    Raises:
      TargetError: there is no such target, or importing it fails.
    """
    module_name, attribute = locate(spec)
    with _undisturbed():
        try:
            namespace: Any = importlib.import_module(module_name)
            for name in filter(None, attribute.split(".")):
                namespace = getattr(namespace, name)
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise TargetError(f"target {spec!r} cannot be loaded: {reason}") from error
    return Target(spec, namespace, module_name.split(".")[0])


def version(target: Target) -> str | None:
    """Returns a target's `__version__`, its root package's, or that of the distribution it is in.

    A registered target is in the distribution that registers it, any other in the one that holds
    its root package.
    """
    root = target._root
    for holder in (target._namespace, importlib.import_module(root)):
        if isinstance(found := getattr(holder, "__version__", None), str):
            return found
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=target._name):
        if entry.dist is not None:
            return entry.dist.version
    for distribution in importlib.metadata.packages_distributions().get(root, []):
        return importlib.metadata.version(distribution)
    return None


def _exists(module: str) -> bool:
    path = [os.getcwd(), *sys.path]
    return module in sys.builtin_module_names or PathFinder.find_spec(module, path) is not None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignores warnings meanwhile, and restores filters and working directory afterwards."""
    here = os.getcwd()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            os.chdir(here)


def _errors_of(root: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{root}.errors")
    except ImportError:
        return None
