"""Shardings: on which devices the parts of each value in a call are."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from nnx_reference.transforms.axes import Kind, StatePrefix

Sharding = jax.sharding.Sharding | PartitionSpec | None


class StateSharding(StatePrefix[Sharding]):
    """The shardings of an object's Variables by filter; the first that selects a Variable decides.

    Attributes:
      filters: the filters.
      shardings: their shardings.
    """

    __slots__ = ()

    _noun = "sharding"
    _nouns = "shardings, PartitionSpecs and None"

    @property
    def shardings(self) -> tuple[Sharding, ...]:
        """The shardings of the filters."""
        return self._said

    @staticmethod
    def accepts(said: object) -> bool:
        """Tells whether this is a sharding, a PartitionSpec or None."""
        return said is None or isinstance(said, (PartitionSpec, jax.sharding.Sharding))


def _is_spec(said: object) -> bool:
    return said is None or isinstance(said, PartitionSpec)


def _normal_spec(spec: PartitionSpec | None) -> Any:
    """Returns a PartitionSpec without the None at its end, which it means anyway."""
    if not isinstance(spec, PartitionSpec):
        return PartitionSpec() if spec is None else spec
    names = list(spec)
    while names and names[-1] is None:
        names.pop()
    return PartitionSpec(*names)


SHARDINGS = Kind(
    "shardings, PartitionSpecs, None and StateSharding",
    StateSharding,
    StateSharding.accepts,
    lambda sharding: sharding,
    None,
)
SPECS = Kind("PartitionSpecs, None and StateSharding", StateSharding, _is_spec, _normal_spec, None)
