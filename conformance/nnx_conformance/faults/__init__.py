"""Faults: proof that every clause can fail.

A fault turns a conforming target into one with a single defect. It is a function that gets the
target and a `pytest.MonkeyPatch`, and plants the defect with it: `patch.setattr(nnx, "clone", ...)`
replaces a name of the namespace and leaves the implementation alone, `patch.setattr(nnx.Variable,
"copy", ...)` replaces a method for as long as the fault is planted. Its docstring says in one
sentence what is wrong, and `breaks` names the clauses that must notice.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Plant = Callable[[Any, pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Fault:
    """A defect: its name, what is wrong in a sentence, what it breaks, and how to plant it."""

    name: str
    sentence: str
    breaks: tuple[str, ...]
    plant: Plant


FAULTS: dict[str, Fault] = {}


def fault(*, breaks: str) -> Callable[[Plant], Plant]:
    """Registers the decorated function as a fault, under its own name with dashes.

    Args:
      breaks: the ids of the clauses that must fail, separated by spaces.

    Raises:
      ValueError: the name is taken, or the docstring is missing.
    """

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        if name in FAULTS:
            raise ValueError(f"two faults are called {name!r}")
        if not plant.__doc__:
            raise ValueError(f"fault {name!r} has no docstring that says what is wrong")
        sentence = " ".join(inspect.cleandoc(plant.__doc__).split())
        FAULTS[name] = Fault(name, sentence, tuple(breaks.split()), plant)
        return plant

    return register


def load() -> dict[str, Fault]:
    """Imports every module of faults and returns the faults by name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return FAULTS
