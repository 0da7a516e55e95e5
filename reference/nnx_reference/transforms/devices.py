"""pmap and shard_map: functions of slices and shards, one on each device.

What either does is what `vmap` does (`placing.py`), with axes or partition specs for places. JAX
hands neither of them a value by reference, so inside of both a hijax or ref Variable holds its
part plainly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from nnx_reference.metadata import Metadata
from nnx_reference.tables import GraphDef, VariableDef
from nnx_reference.transforms.axes import AXES, StandIn
from nnx_reference.transforms.axis_metadata import NO_METADATA, in_step, refuse_metadata
from nnx_reference.transforms.closures import remembered, watched, weakly
from nnx_reference.transforms.core import MISSING, Inputs, decorator, reachable
from nnx_reference.transforms.placing import Bundles, Left, Placed, Placement, bundle, finish
from nnx_reference.transforms.shardings import SPECS
from nnx_reference.transforms.statics import Places, Static, find_places, mark, unmarked
from nnx_reference.variables import Variable


@decorator
def pmap(
    f: Callable[..., Any] = MISSING,
    *,
    axis_name: Hashable | None = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[jax.Device] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Maps a function over axes of its arguments, a slice on each device: `jax.pmap` of objects.

    Axes hold for objects, and changes reach these, as in `vmap`. A Variable that is not mapped
    (None) must be written with the same value on all devices, which nothing checks.

    Args:
      f: the function; without it, the result is a decorator.
      axis_name: a name of the axis for collectives.
      in_axes: an int, None, or a tuple with a tree prefix for each positional argument that is not
        static, which holds ints, None and StateAxes. Keyword arguments are mapped over axis 0.
      out_axes: a tree prefix of the output, likewise.
      static_broadcasted_argnums: the positions of arguments that are not traced; they must be
        hashable.
      devices: as for `jax.pmap`.
      backend: as for `jax.pmap`.
      axis_size: the size of the axis.
      donate_argnums: the positions of arguments whose arrays may be overwritten. A Variable that is
        reached from other arguments as well is not donated, nor is an array in an attribute.
      transform_metadata: with graph updates only, `{PARTITION_NAME: name}` keeps sharding metadata
        in step with the axes; see `nnx.transform_metadata`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The mapped function. It raises ValueError as that of `vmap` does, and where `jax.pmap` does.
      If it raises, the caller's objects are unchanged.
    """
    how = _How(
        static=find_places(f, "static", static_broadcasted_argnums, ()),
        donated=find_places(f, "donate", donate_argnums, ()),
        in_axes=StandIn(in_axes),
        out_axes=StandIn(out_axes),
        metadata=tuple(transform_metadata.items()),
        options=(
            ("axis_name", axis_name),
            ("devices", devices and tuple(devices)),
            ("backend", backend),
            ("axis_size", axis_size),
        ),
    )

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mark(how.static, args, kwargs)
        inputs = Inputs(f, args, kwargs, graph, graph_updates)
        refuse_metadata(transform_metadata, inputs)
        return remembered(how, functools.partial(_Parallel, how), (f,)).call(inputs)

    return mapped


class _How(NamedTuple):
    """How a function is mapped over devices; see `pmap`."""

    static: Places
    donated: Places
    in_axes: StandIn
    out_axes: StandIn
    metadata: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]


class _Parallel:
    """A function of bundles that JAX compiles for several devices, once for each placement.

    It holds the user's function weakly: it is remembered by it.
    """

    def __init__(self, how: _How, function: Callable[..., Any]) -> None:
        source = weakly(function)
        axes = how.in_axes.tree(), how.out_axes.tree()

        def call(*args: Any, **kwargs: Any) -> Any:
            with watched(source()):
                return source()(*args, **kwargs)

        self.placed = Placed(in_step(unmarked(call), dict(how.metadata), *axes), axes, AXES, "pmap")
        self.donated = how.donated
        self.options: dict[str, Any] = dict(how.options)
        self.compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def call(self, inputs: Inputs) -> Any:
        """Calls the compiled function; of the bundles, some are donated."""
        numbers = _donated_values(inputs, self.donated)
        placement, values = _held_plainly(inputs, self.placed.place(inputs))
        places = self.placed.places(placement)
        if places not in self.compiled:
            self.compiled[places] = self.compile(places)
        bundles = bundle(placement, places, values)
        given, kept = _part(bundles, {placement.structure.names[n] for n in numbers})
        left, bundles = self.compiled[places](placement, given, kept)
        return finish(inputs, _as_passed(inputs, left.value), bundles)

    def compile(self, places: tuple[Any, ...]) -> Callable[..., Any]:
        """Makes the function for placements that have the same places."""
        placed = self.placed

        def run(placement: Placement, given: Bundles, kept: Bundles) -> tuple[Static, Bundles]:
            names = placement.structure.names
            first = len(names) - len(placement.leaves)
            is_donated = {name for part in given for name in part}
            always = frozenset(n for n, name in enumerate(names[first:]) if name in is_donated)
            bundles = tuple([part | rest for part, rest in zip(given, kept, strict=True)])
            return placed.run(placement, bundles, always)

        return jax.pmap(
            run,
            in_axes=(None, places, places),
            out_axes=(None, places),
            donate_argnums=(1,) if self.donated.numbers else (),
            **self.options,
        )


def _part(bundles: Bundles, names: Set[str]) -> tuple[Bundles, Bundles]:
    """Parts bundles into those with the values of some names and those with the others."""
    given = tuple({name: x for name, x in part.items() if name in names} for part in bundles)
    kept = tuple({name: x for name, x in part.items() if name not in names} for part in bundles)
    return given, kept


def _donated_values(inputs: Inputs, donated: Places) -> set[int]:
    """Lists the numbers of the values whose arrays may be overwritten."""
    if not donated.numbers:
        return set()
    opened, table = inputs.opened, inputs.flat.graphdef
    args, kwargs = jax.tree.unflatten(opened.treedef, range(len(opened.leaves)))
    chosen = set(jax.tree.leaves(donated.pick(args, kwargs)))
    flags = [n in chosen for n in range(len(opened.leaves))]
    arrays, objects = opened.arrays(flags), opened.objects(flags)
    kept = {number for number, path in reachable(table) if not objects[cast(int, path[0])]}
    variables = {n for n, record in enumerate(table.leaves) if record is not None and n not in kept}
    return {n for n, flag in enumerate(arrays) if flag} | {len(arrays) + n for n in variables}


@decorator
def shard_map(
    f: Callable[..., Any] = MISSING,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    in_specs: Any,
    out_specs: Any,
    axis_names: Set[Hashable] = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Maps a function over shards of its arguments: `jax.shard_map` for functions of objects.

    A spec that is said of an object holds for every Variable and array in it; a `StateSharding`
    says one for each. What the function does to objects among its arguments reaches the caller's
    objects, under the specs with which they came in. So a Variable must be written with what is
    replicated over the axes that its spec does not name.

    Args:
      f: the function; without it, the result is a decorator.
      mesh: the devices; None for those of the context.
      in_specs: a PartitionSpec, None, or a tuple with a tree prefix for each argument, which holds
        PartitionSpecs, None for what is not sharded, and StateSharding.
      out_specs: a tree prefix of the output, likewise.
      axis_names: as for `jax.shard_map`.
      check_vma: as for `jax.shard_map`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The mapped function, of positional arguments only. It raises ValueError where
      `jax.shard_map` does; if one Variable is to have two different specs; if a StateSharding does
      not select some Variable, or is there without graph updates; in tree mode, if something is
      shared. If it raises, the caller's objects are unchanged.
    """
    options: dict[str, Any] = {"mesh": mesh, "axis_names": axis_names, "check_vma": check_vma}
    words = "in_specs", "out_specs"
    placed = Placed(f, (in_specs, out_specs), SPECS, "shard_map", words)

    @functools.wraps(f)
    def mapped(*args: Any) -> Any:
        inputs = Inputs(f, args, {}, graph, graph_updates)
        placement, values = _held_plainly(inputs, placed.place(inputs))
        places = placed.places(placement)
        specs = PartitionSpec(), places
        function = jax.shard_map(placed.run, in_specs=specs, out_specs=specs, **options)
        left, bundles = function(placement, bundle(placement, places, values))
        return finish(inputs, _as_passed(inputs, left.value), bundles)

    return mapped


def _held_plainly(inputs: Inputs, placement: Placement) -> tuple[Placement, list[Any]]:
    """Takes from a placement, and from the values, that some are held by reference."""
    structure = placement.structure
    records = structure.graphdef.leaves
    if not any(record is not None and record.metadata.by_reference for record in records):
        return placement, inputs.values
    plain = [record and VariableDef(record.kind, _plain(record.metadata)) for record in records]
    structure = replace(structure, graphdef=_with_leaves(structure.graphdef, plain))
    values = list(inputs.values)
    for number, leaf in enumerate(inputs.flat.leaves, len(values) - len(records)):
        if isinstance(leaf, Variable) and leaf._metadata.by_reference:
            values[number] = jax.tree.map(_movable, leaf._load())
    return replace(placement, structure=structure), values


def _movable(value: Any) -> Any:
    """Returns an array on one device as one that JAX may move to others.

    JAX moves arrays unless somebody has placed them. In a Ref every array counts as placed.
    """
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    if len(value.devices()) > 1:
        return value
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        moved = _movable(jax.random.key_data(value))
        return jax.random.wrap_key_data(moved, impl=jax.random.key_impl(value))
    return jnp.asarray(np.asarray(value))


def _plain(metadata: Metadata) -> Metadata:
    """Returns metadata of a Variable that holds its value plainly."""
    return metadata.updated({"hijax": False, "ref": False}) if metadata.by_reference else metadata


def _as_passed(inputs: Inputs, left: Left) -> Left:
    """Gives the Variables that were passed in the flags back that `_held_plainly` took."""
    passed, outcome = inputs.structure.graphdef.leaves, left.outcome
    records = [
        record
        if record is None or origin is None
        else VariableDef(record.kind, _flagged(record.metadata, passed[origin]))
        for record, origin in zip(outcome.graphdef.leaves, outcome.leaf_origins, strict=True)
    ]
    if records == list(outcome.graphdef.leaves):
        return left
    graphdef = _with_leaves(outcome.graphdef, records)
    return left._replace(outcome=outcome._replace(graphdef=graphdef))


def _flagged(metadata: Metadata, passed: VariableDef | None) -> Metadata:
    """Returns metadata with the flags of the Variable that was passed in."""
    if passed is None or not passed.metadata.by_reference:
        return metadata
    return metadata.updated(passed.metadata.flags())


def _with_leaves(graphdef: GraphDef[Any], leaves: Sequence[VariableDef | None]) -> GraphDef[Any]:
    return GraphDef(graphdef.nodes, leaves, graphdef.paths, graphdef.node_paths)
