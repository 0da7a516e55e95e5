"""States by hand: nested mappings out of leaves with paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnx_spec.oracles import Path


def nested(items: Mapping[Path, Any]) -> dict[str | int, Any]:
    """Nests leaves in plain dicts along their paths; of a path and one below it the longer wins."""
    root: dict[str | int, Any] = {}
    for path, leaf in items.items():
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return root
