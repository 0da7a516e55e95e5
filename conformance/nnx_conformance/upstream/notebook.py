"""The notebook: it executes the cells of one document, one after the other, in one process.

A cell that fails is told, and the next one runs. The value of a last expression is printed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import random
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

from nnx_conformance import events, targets
from nnx_conformance.upstream import prints, swapping
from nnx_conformance.upstream.deadline import TookTooLong, deadline
from nnx_conformance.upstream.placeholders import Ledger


class Notebook:
    """A document that is being executed.

    Attributes:
      module: what its cells share, as a module.
      lost: the names that failing cells would have bound.
    """

    def __init__(self, file: Path, ledger: Ledger, limit: float) -> None:
        self.module = types.ModuleType("__main__")
        self.module.__file__ = str(file)
        self.lost: set[str] = set()
        self._ledger = ledger
        self._limit = limit

    def execute(self, id: str, source: str, raises: bool) -> dict[str, Any]:
        """Executes a cell, and returns what came out, as plain JSON values."""
        self._ledger.missed.clear()
        noted: list[str] = []
        self.module.__dict__["print"] = prints.recorder(noted)
        started, error, tree = time.monotonic(), None, ast.Module([], [])
        linecache.cache[id] = (len(source), None, source.splitlines(keepends=True), id)
        try:
            tree = ast.parse(source, id)
            with deadline(self._limit):
                self._run(tree, id, quiet=source.rstrip().endswith(";"))
        except (Exception, SystemExit, TookTooLong) as raised:
            error = raised
        names = bound(tree)
        self.lost -= names if error is None else set()
        follows = isinstance(error, NameError) and error.name in self.lost
        self.lost |= {name for name in names if error and name not in self.module.__dict__}
        failed = isinstance(error, TookTooLong) or (error is None) is raises
        return {
            "outcome": "failed" if failed else "passed",
            "message": _message(error) if failed else "",
            "follows": failed and follows,
            "missed": sorted(self._ledger.missed),
            "prints": noted,
            "seconds": time.monotonic() - started,
        }

    def _run(self, tree: ast.Module, id: str, *, quiet: bool) -> None:
        namespace = self.module.__dict__
        last = tree.body[-1] if tree.body else None
        body = tree.body[:-1] if isinstance(last, ast.Expr) else tree.body
        exec(compile(ast.Module(body, tree.type_ignores), id, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), id, "eval"), namespace)
            if value is not None and not quiet:
                namespace["print"](value)
        if "jax" in sys.modules:
            sys.modules["jax"].effects_barrier()


def _message(error: BaseException | None) -> str:
    return "raises nothing" if error is None else f"{type(error).__name__}: {error}"[:600]


def bound(tree: ast.Module) -> set[str]:
    """Returns the names that a cell binds at its top level."""
    names: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names |= {(a.asname or a.name).partition(".")[0] for a in node.names}
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            todo.extend(ast.iter_child_nodes(node))
    return names


def main(path: str) -> None:
    """Executes a document.

    Args:
      path: a JSON file that says which, on what target, and where to tell of it.
    """
    given = json.loads(Path(path).read_text())
    root, stream = Path(given["root"]), given["events"]
    warnings.simplefilter("ignore")
    ledger = Ledger(lenient=False)
    try:
        target = targets.load(given["target"])
    except targets.TargetError as error:
        events.emit(stream, "unloadable", reason=str(error))
        return
    events.emit(stream, "target", version=targets.version(target))
    swapping.install(target, root, ledger)
    _settle()
    notebook = Notebook(root / given["document"], ledger, given["limit"])
    sys.modules["__main__"] = notebook.module
    exec(given["preamble"], notebook.module.__dict__)
    for cell in given["cells"]:
        events.emit(stream, "start", case=cell["id"])
        outcome = notebook.execute(**cell)
        events.emit(stream, "case", case=cell["id"], **outcome)
        _close_figures()
    events.emit(stream, "finish")


def _settle() -> None:
    """Makes random what must be random in the same way each time, and draws on no screen."""
    random.seed(0)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(0)
    os.environ["MPLBACKEND"] = "Agg"


def _close_figures() -> None:
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)
