"""The three modes in which every transform is specified, and the clauses that say so."""

from collections.abc import Mapping
from typing import Any

import pytest

from nnx_spec import MUST, Gathering, clause

MODES: Mapping[str, Mapping[str, bool]] = {
    "tree-mode": {"graph": False, "graph_updates": False},
    "graph-mode": {"graph": True, "graph_updates": False},
    "graph-updates": {"graph": True, "graph_updates": True},
}
"""Each mode as the keyword arguments that every transform takes."""

GRAPH_MODES = ("graph-mode", "graph-updates")

each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
"""Runs a test in each mode: `nnx.jit(f, **mode)`. A case decides the mode's own clause as well."""

each_graph_mode = pytest.mark.parametrize("mode", [MODES[m] for m in GRAPH_MODES], ids=GRAPH_MODES)
"""Runs a test in the two modes in which objects may be shared."""


@clause(
    "TREE-011",
    MUST,
    source="flip/5310-tree-mode-nnx",
    gathers=Gathering("TRX", frozenset({"tree-mode"})),
)
def tree_mode(nnx: Any) -> None:
    """Every clause of the chapter on transforms holds in tree mode.

    Tree mode is `graph=False, graph_updates=False`. What decides this clause is the cases in tree
    mode of the tests of that chapter.
    """


@clause(
    "GRA-012",
    MUST,
    source="flip/5310-tree-mode-nnx",
    gathers=Gathering("TRX", frozenset(GRAPH_MODES)),
)
def graph_modes(nnx: Any) -> None:
    """Every clause of the chapter on transforms holds in graph mode, with graph updates or not.

    These are `graph=True, graph_updates=False` and `graph=True, graph_updates=True`. What decides
    this clause is the cases in these modes of the tests of that chapter.
    """
