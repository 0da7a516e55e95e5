"""Usage: telling a user what was wrong with a command, and what was meant perhaps."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Iterable
from typing import Any, NoReturn


class UsageError(Exception):
    """The command was used wrongly; the message says how."""


def require_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Checks names given by the user.

    Raises:
      UsageError: a name is not known; the message has those that are near.
    """
    for name in names:
        if name not in known:
            raise UsageError(f"there is no {kind} {name!r}{suggestion(name, known)}")


def suggestion(name: str, known: Collection[str]) -> str:
    """Returns the end of a sentence that offers what is near to a name, or all of a few."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are {', '.join(known)}" if len(known) <= 20 else ""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError and remembers its options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.options: list[str] = []
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def add_argument(self, *names: str, **kwargs: Any) -> argparse.Action:
        """Adds an argument, as its base class does."""
        self.options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raises the error instead of leaving the process."""
        raise UsageError(f"{message}\n{self.format_usage().rstrip()}")
