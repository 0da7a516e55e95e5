"""Partitioning: over which axes of a mesh a Variable's value is spread, and how it gets there.

The metadata `out_sharding` of a Variable says so: a tuple or PartitionSpec with the name of a mesh
axis for each axis of the value (None where that is not partitioned), a NamedSharding, or a Format.
Its names may be logical ones, which rules translate into those of the mesh: the rules of
`logical_axis_rules`, and those in the metadata `sharding_rules`.

A new Variable places its value at once (`use_eager_sharding`), on the mesh in its metadata `mesh`,
or else on that of `jax.set_mesh`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from nnx_reference.jax_private import is_eager
from nnx_reference.metadata import AXIS_KEYS, Metadata

Rules = Iterable[tuple[str, Any]]
"""Pairs of a logical name and a mesh axis, several of them, or None for not partitioned."""


class _Rules(threading.local):
    """The rules that hold in a thread."""

    def __init__(self) -> None:
        self.now: Rules = ()


_rules = _Rules()


@contextlib.contextmanager
def logical_axis_rules(rules: Rules) -> Iterator[None]:
    """Makes logical names known in a block, in this thread; those of blocks around it are not.

    Args:
      rules: pairs of a logical name and what it stands for.
    """
    before, _rules.now = _rules.now, tuple(rules)
    try:
        yield
    finally:
        _rules.now = before


def out_sharding(metadata: Mapping[str, Any]) -> Any:
    """Returns how metadata says that a value is partitioned, in the names of the mesh.

    Returns:
      A PartitionSpec, a NamedSharding or a Format; None if metadata does not say.

    Raises:
      ValueError: two rules say different things about a name.
    """
    said = next((metadata[key] for key in AXIS_KEYS if metadata.get(key)), None)
    return None if said is None else _translated(said, _combined(metadata.get("sharding_rules")))


def partition_spec(metadata: Mapping[str, Any]) -> PartitionSpec | None:
    """Returns how metadata says that a value is partitioned; None if it does not say.

    Raises:
      ValueError: two rules say different things about a name.
    """
    said = out_sharding(metadata)
    if isinstance(said, Format):
        said = said.sharding
    return said.spec if isinstance(said, NamedSharding) else said


def named_sharding(metadata: Metadata) -> NamedSharding | None:
    """Returns how metadata says that a value is partitioned over a mesh; None without either.

    Raises:
      ValueError: two rules say different things about a name, or there are two meshes.
    """
    spec, mesh = partition_spec(metadata), _mesh(metadata)
    return None if spec is None or mesh.empty else NamedSharding(mesh, spec)


def with_sharding(value: Any, metadata: Metadata) -> Any:
    """Adds to an abstract array the sharding that metadata says, if there is a mesh for it.

    What is no `jax.ShapeDtypeStruct` stays as it is, and so does one that is partitioned already.

    Raises:
      ValueError: two rules say different things about a name, or there are two meshes.
    """
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    if value.sharding is not None and any(getattr(value.sharding, "spec", ())):
        return value
    sharding = named_sharding(metadata)
    return value if sharding is None else value.update(sharding=sharding)


def place(value: Any, metadata: Metadata) -> Any:
    """Places the value of a new Variable as metadata says, if it does and the value is of arrays.

    Args:
      value: the value, a pytree.
      metadata: the metadata of its Variable.

    Raises:
      ValueError: there is no mesh; or there are two; or some of its axes are explicit and others
        are not; or it lacks an axis that the metadata names.
    """
    said = out_sharding(metadata) if "eager_sharding" not in metadata else None
    if said is None or not all(map(_is_array, jax.tree.leaves(value))):
        return value
    kind, mesh = metadata.kind.__name__, _mesh(metadata)
    if mesh.empty:
        raise ValueError(
            f"a {kind} with out_sharding={said} is placed on a mesh when it is made, and there is"
            " none: make it under jax.set_mesh(mesh), pass mesh=, or pass eager_sharding=False to"
            " place it later"
        )
    if isinstance(said, PartitionSpec):
        said = NamedSharding(mesh, said)
    if mesh.are_all_axes_auto or isinstance(said, Format):
        return jax.lax.with_sharding_constraint(value, said)
    if mesh.are_all_axes_explicit:
        return jax.tree.map(lambda array: jax.sharding.reshard(array, said), value)
    raise ValueError(
        f"a {kind} cannot be partitioned over {mesh}: the axes of a mesh are to be all of type"
        " Auto, or all of type Explicit"
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray))


def _mesh(metadata: Metadata) -> Any:
    """Returns the mesh that a sharding names, or that is given, or that is set; it may be empty."""
    said, given = out_sharding(metadata), metadata.get("mesh")
    named = said.sharding if isinstance(said, Format) else said
    own = named.mesh if isinstance(named, NamedSharding) else None
    if own is not None and given is not None and own != given:
        raise ValueError(
            f"a {metadata.kind.__name__} has out_sharding on {own} and mesh={given} in its"
            " metadata; give it one of them"
        )
    mesh = own if given is None else given
    return _set_mesh() if mesh is None else mesh


def _set_mesh() -> Any:
    """Returns the mesh that is set: itself where it is known, that is, outside all tracing."""
    mesh = jax.sharding.get_mesh() if is_eager() else None
    return jax.sharding.get_abstract_mesh() if mesh is None or mesh.empty else mesh


def _combined(own: Rules | None) -> dict[str, Any]:
    """Returns the rules that hold in this thread together with a Variable's own."""
    combined = dict(_rules.now)
    for name, axis in own or ():
        if combined.setdefault(name, axis) != axis:
            raise ValueError(
                f"the logical axis {name!r} stands for {combined[name]!r} by logical_axis_rules and"
                f" for {axis!r} by the metadata sharding_rules"
            )
    return combined


def _translated(said: Any, rules: Mapping[str, Any]) -> Any:
    if isinstance(said, Format):
        return Format(said.layout, _translated(said.sharding, rules))
    if isinstance(said, NamedSharding):
        return NamedSharding(said.mesh, _translated(said.spec, rules))
    return PartitionSpec(*(_axis(entry, rules) for entry in said))


def _axis(entry: Any, rules: Mapping[str, Any]) -> Any:
    """Translates what is said about one axis of a value."""
    if not isinstance(entry, tuple):
        return rules.get(entry, entry)
    axes = [rules.get(name, name) for name in entry]
    flat = [a for axis in axes for a in (axis if isinstance(axis, tuple) else (axis,))]
    return tuple(axis for axis in flat if axis is not None)
