"""Axis metadata: keeping what metadata says of each axis in step with the axes.

The metadata `out_sharding` of a Variable names the partition along each axis of its value. When a
transform takes an axis away for the time that the function runs, the name has to go, too; of what
comes out, which has the axis again or for the first time, the metadata has to have the name.

`transform_metadata` does so from within. It wraps the function that is mapped, before the transform
does, and sees Variables that have just lost the axis. So it works with whatever maps the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import keystr

from nnx_reference.metadata import AXIS_KEYS, Metadata
from nnx_reference.tables import flatten
from nnx_reference.transforms.axes import Carry, leaf_axes, leaves_of, per_argument, spread
from nnx_reference.transforms.core import (
    MISSING,
    OUTPUT,
    Inputs,
    check_tree,
    decorator,
    open_tree,
)
from nnx_reference.variables import Variable

PARTITION_NAME = "partition_name"
"""The key of the partition's name in `transform_metadata=`."""

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


@decorator
def transform_metadata(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: Any,
    graph: bool | None = None,
) -> Callable[..., Any]:
    """Makes a function, which is to be mapped, keep its Variables' sharding metadata true.

    While it runs, the metadata `out_sharding` of the Variables among its arguments has no entry for
    the axis over which it is mapped. Afterwards the metadata of these Variables, and of those in
    its output, has the partition's name there. A Variable without such metadata has none then.

    The hooks `on_remove_axis` and `on_add_axis` run after that, called as
    `hook(variable, axis, partition)`, with an axis counted from the front.

    Args:
      f: the function; without it, the result is a decorator.
      in_axes: the `in_axes` of the transform: of `nnx.vmap`, `nnx.scan`, `nnx.pmap`, `jax.vmap`.
      out_axes: its `out_axes`.
      partition: the name of the partition along the axis, or None for an axis that has none.
      graph: True for graph mode, False for tree mode, None for the default.

    Returns:
      The function to map. It raises ValueError if the metadata of an argument has another name at
      the axis; if one Variable is to have two different axes; in tree mode, if something is shared.
      If it raises, the arguments' metadata is as it was.
    """

    @functools.wraps(f)
    def changed(*args: Any, **kwargs: Any) -> Any:
        inputs = Inputs(f, args, kwargs, graph, True)
        call = _Call(inputs, len(args), in_axes, partition)
        try:
            call.remove()
            output = f(*args, **kwargs)
            call.add(output, out_axes)
        except BaseException:
            call.restore()
            raise
        return output

    return changed


def in_step(
    f: Callable[..., Any], metadata: Mapping[str, Any], in_axes: Any, out_axes: Any
) -> Callable[..., Any]:
    """Makes a function that is to be mapped do what a transform's `transform_metadata=` says."""
    if PARTITION_NAME not in metadata:
        return f
    name = metadata[PARTITION_NAME]
    return transform_metadata(f, in_axes=in_axes, out_axes=out_axes, partition=name, graph=True)


def refuse_metadata(metadata: Mapping[str, Any], inputs: Inputs) -> None:
    """Checks that there is `transform_metadata=` with graph updates only.

    Raises:
      ValueError: there is without.
    """
    if metadata and not inputs.structure.updates:
        raise ValueError(
            "transform_metadata= needs graph mode with graph updates (graph=True,"
            " graph_updates=True): else apply nnx.transform_metadata(in_axes=..., out_axes=...,"
            " partition=...) to the function before it is mapped"
        )


class _Call:
    """One call of a function whose Variables' metadata is kept in step.

    Attributes:
      axes: the axis of each leaf of the inputs' graph.
      changed: for each Variable whose metadata has lost an entry, its metadata before and after.
    """

    def __init__(self, inputs: Inputs, count: int, in_axes: Any, partition: Any) -> None:
        self.inputs = inputs
        self.partition = partition
        opened, structure = inputs.opened, inputs.structure
        what = "transform_metadata in_axes"
        said = per_argument(_without_carry(in_axes), count, what)
        prefixes = spread((said, 0), opened.treedef, opened.is_object, what)
        self.objects = opened.objects(prefixes)
        self.axes = leaf_axes(inputs.flat, self.objects, structure.object_names)
        self.changed: dict[int, tuple[Variable[Any], Metadata, Metadata]] = {}

    def remove(self) -> None:
        """Takes the axis out of the inputs' metadata."""
        flat, structure = self.inputs.flat, self.inputs.structure
        names = structure.names[len(structure.names) - len(self.axes) :]
        for name, leaf, axis in zip(names, flat.leaves, self.axes, strict=True):
            if isinstance(axis, int) and isinstance(leaf, Variable):
                old = leaf._metadata
                self.changed[id(leaf)] = leaf, old, _removed(leaf, axis, self.partition, name)
        for variable, _, new in self.changed.values():
            variable._become(new)
        for variable, axis in _mapped(flat.leaves, self.axes):
            variable.remove_axis(axis % (_rank(variable) + 1), self.partition)

    def restore(self) -> None:
        """Makes the inputs' metadata what it was."""
        for variable, old, _ in self.changed.values():
            variable._become(old)

    def add(self, output: Any, out_axes: Any) -> None:
        """Puts the axis into the metadata of what was passed in, and of what comes out.

        Raises:
          ValueError: one Variable is to have two different axes; in tree mode, something is shared.
        """
        mapped = self._left(output, out_axes)
        for variable, axis in mapped:
            variable._become(self._added(variable, axis))
        for variable, axis in mapped:
            variable.add_axis(axis % (_rank(variable) + 1), self.partition)

    def _left(self, output: Any, out_axes: Any) -> list[tuple[Variable[Any], int]]:
        """Lists the Variables that have an axis of what was passed in and of what comes out."""
        opened = open_tree(_stacked(output, out_axes), lambda path: OUTPUT + keystr(path))
        what = "transform_metadata out_axes"
        prefixes = spread(_stacked(out_axes, out_axes), opened.treedef, opened.is_object, what)
        inputs, structure = self.inputs, self.inputs.structure
        kept = inputs.opened.objects(inputs.opened.leaves) if structure.graph else []
        first = len(structure.names) - len(self.axes)
        passed = [
            (leaf, axis, f"{name} (as passed in)")
            for leaf, axis, name in zip(
                inputs.flat.leaves, self.axes, structure.names[first:], strict=True
            )
            if isinstance(leaf, Variable)
        ]
        names = structure.object_names[: len(kept)] + [name for _, _, name in passed]
        names += opened.objects(opened.names)
        said = self.objects[: len(kept)] + [axis for _, axis, _ in passed]
        said += opened.objects(prefixes)
        roots = [*kept, *(leaf for leaf, _, _ in passed), *opened.objects(opened.leaves)]
        flat = flatten(roots)
        if not structure.graph:
            check_tree(flat.graphdef, names)
        return _mapped(flat.leaves, leaf_axes(flat, said, names))

    def _added(self, variable: Variable[Any], axis: int) -> Metadata:
        """Returns a Variable's metadata with the axis: the very mapping, if it had it before."""
        _, old, new = self.changed.get(id(variable), (None, None, None))
        if old is not None and new is variable._metadata:
            return old
        size = _rank(variable) + 1
        entries = _axis_entries(variable, size - 1)
        for names in entries.values():
            names.insert(axis % size, self.partition)
        return _with_entries(variable._metadata, entries)


def _removed(variable: Variable[Any], axis: int, partition: Any, name: str) -> Metadata:
    """Returns a Variable's metadata without an axis.

    Raises:
      ValueError: another partition than is expected is along that axis.
    """
    size = _rank(variable) + 1
    entries = _axis_entries(variable, size)
    for key, names in entries.items():
        if (found := names.pop(axis % size)) != partition:
            raise ValueError(
                f"{name} has {key}={variable._metadata[key]!r}, which says {found!r} of axis"
                f" {axis}, but the axis is mapped as the partition {partition!r}: give"
                " transform_metadata the name that the Variable has"
            )
    return _with_entries(variable._metadata, entries)


def _axis_entries(variable: Variable[Any], size: int) -> dict[str, list[Any]]:
    """Lists the entries for each axis, by the metadata's key; a short PartitionSpec is filled up.

    Raises:
      ValueError: there are more entries than axes.
    """
    found = {}
    for key in AXIS_KEYS:
        names = variable._metadata.get(key)
        if isinstance(names, (tuple, list, PartitionSpec)):
            if len(names) > size:
                raise ValueError(
                    f"a {type(variable).__name__} has {key}={names!r}, which is more than its"
                    f" {size} axes"
                )
            found[key] = [*names, *[None] * (size - len(names))]
    return found


def _with_entries(metadata: Metadata, entries: Mapping[str, Sequence[Any]]) -> Metadata:
    """Puts entries for each axis into metadata, each in a sequence of the kind that it has now."""
    changes = {
        key: PartitionSpec(*names)
        if isinstance(metadata[key], PartitionSpec)
        else type(metadata[key])(names)
        for key, names in entries.items()
    }
    return metadata.updated(changes)


def _rank(variable: Variable[Any]) -> int:
    """Returns the number of a value's axes; of a container, that of its first array."""
    leaves = jax.tree.leaves(variable._load())
    return len(jax.numpy.shape(leaves[0])) if leaves else 0


def _mapped(leaves: Sequence[Any], axes: Sequence[Any]) -> list[tuple[Variable[Any], int]]:
    """Lists the Variables that have an axis, with it."""
    return [
        (leaf, axis)
        for leaf, axis in zip(leaves, axes, strict=True)
        if isinstance(axis, int) and isinstance(leaf, Variable)
    ]


def _without_carry(axes: Any) -> Any:
    """Returns the axes of a scan's arguments with None for the one that is carried."""
    if isinstance(axes, tuple):
        return tuple([None if entry is Carry else entry for entry in axes])
    return None if axes is Carry else axes


def _stacked(output: Any, out_axes: Any) -> Any:
    """Returns what a scan stacks of its output, or of its `out_axes`: all but the carry."""
    if not any(axis is Carry for axis in leaves_of(out_axes)):
        return output
    if out_axes is Carry:
        return ()
    pairs = zip(output, out_axes, strict=True)
    return tuple([part for part, axis in pairs if axis is not Carry])
