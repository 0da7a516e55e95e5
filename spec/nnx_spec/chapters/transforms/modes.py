"""The three modes in which every transform is specified, and the clauses that say so."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from nnx_spec import DOCUMENTED, MUST, Gathering, clause, needs
from nnx_spec.features import FEATURES

Mode = Mapping[str, bool]

MODES: Mapping[str, Mode] = {
    "tree-mode": {"graph": False, "graph_updates": False},
    "graph-mode": {"graph": True, "graph_updates": False},
    "graph-updates": {"graph": True, "graph_updates": True},
}
"""Each mode as the keyword arguments that every transform takes."""

GRAPH_MODES = ("graph-mode", "graph-updates")

KIN = {"value_and_grad": "grad", "cached_partial": "jit"}
"""Functions that belong to the area of another transform than that of their own name."""


def features_of(mode: Mode | None = None, transform: str | None = None) -> list[str]:
    """Lists the features that a target needs for a mode and a transform.

    Args:
      mode: the keyword arguments that a transform takes; None for none in particular.
      transform: what begins with a transform's name, such as `scan that carries` or `jit-static`;
        what does not needs no feature.
    """
    found = []
    if mode and mode["graph"]:
        found.append("graph-updates" if mode["graph_updates"] else "graph")
    name = re.split(r"[ -]", transform or "")[0]
    area = f"transforms.{KIN.get(name, name)}"
    return [*found, area] if area in FEATURES else found


def case(*values: Any, id: str, mode: Mode | None = None, transform: str | None = None) -> Any:
    """Makes a case of a parametrised test that needs the features for its mode and transform."""
    features = features_of(mode, transform)
    return pytest.param(*values, id=id, marks=[needs(*features)] if features else [])


def each_of(modes: Mapping[str, Mode]) -> pytest.MarkDecorator:
    """Runs a test in each of some modes: it takes `mode`."""
    return pytest.mark.parametrize(
        "mode", [case(mode, id=name, mode=mode) for name, mode in modes.items()]
    )


def each_named(transforms: Iterable[str], parameter: str = "transform") -> pytest.MarkDecorator:
    """Runs a test for each of some names of ways to apply a transform."""
    return pytest.mark.parametrize(
        parameter, [case(name, id=name, transform=name) for name in transforms]
    )


each_mode = each_of(MODES)
"""Runs a test in each mode: `nnx.jit(f, **mode)`. A case decides the mode's own clause as well."""

each_graph_mode = each_of({name: MODES[name] for name in GRAPH_MODES})
"""Runs a test in the two modes in which objects may be shared."""


@clause(
    "TREE-011",
    MUST,
    DOCUMENTED,
    source="flip/5310-tree-mode-nnx#proposal",
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
    DOCUMENTED,
    source="flip/5310-tree-mode-nnx#implementation",
    gathers=Gathering("TRX", frozenset(GRAPH_MODES)),
)
def graph_modes(nnx: Any) -> None:
    """Every clause of the chapter on transforms holds in graph mode, with graph updates or not.

    These are `graph=True, graph_updates=False` and `graph=True, graph_updates=True`. What decides
    this clause is the cases in these modes of the tests of that chapter.
    """
