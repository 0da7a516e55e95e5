"""The two modes of the functional API, for clauses that hold in both."""

import pytest

both_modes = pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
"""Runs a test in tree mode and in graph mode."""
