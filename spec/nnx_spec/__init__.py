"""The semantics of the Flax NNX API, clause by clause, as tests.

A *clause* is one rule: an id that never changes, a level, a source in the public documentation,
a normative sentence, and the tests that decide whether a target obeys it. This package holds the
clauses and nothing that runs or judges them, and it knows no implementation: its tests take the
target as the fixture `nnx`.

    clauses.py      the `clause` decorator and the registry
    editions.py     which clauses an edition consists of
    features.py     what a target may lack without failing
    sources.py      what the rules stand on, and where that is found
    profiles.py     how many examples a property is tried on
    plans.py        object graphs and filters as plain data, and how to build them on a target
    strategies.py   hypothesis strategies that draw such plans
    oracles.py      what a plan must look like from outside, and comparisons that pytest can explain
    plain.py        plain objects in the place of a target, as an oracle for programs
    chapters/       the clauses themselves, a folder for each chapter
"""

from nnx_spec.clauses import (
    MAY,
    MUST,
    SHOULD,
    Clause,
    ClauseError,
    Gathering,
    Grounds,
    Level,
    Registry,
    clause,
    load,
    needs,
    stands_on,
)
from nnx_spec.sources import CONVENTION, DOCUMENTED, OURS, SOUND, TESTED, Basis

__all__ = [
    "CONVENTION",
    "DOCUMENTED",
    "MAY",
    "MUST",
    "OURS",
    "SHOULD",
    "SOUND",
    "TESTED",
    "Basis",
    "Clause",
    "ClauseError",
    "Gathering",
    "Grounds",
    "Level",
    "Registry",
    "clause",
    "load",
    "needs",
    "stands_on",
]
