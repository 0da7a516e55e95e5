"""Faults of what maps over axes: vmap, scan, pmap, shard_map, and the names of axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault

Change = Callable[[Callable[..., Any], Callable[..., Any], dict[str, Any]], Callable[..., Any]]


def replace_transform(nnx: Any, patch: pytest.MonkeyPatch, name: str, change: Change) -> None:
    """Replaces a transform by one in which `change(original, function, options)` does the work."""
    original = getattr(nnx, name)

    def transform(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        if function is None:
            return functools.partial(transform, **options)
        return change(original, function, options)

    patch.setattr(nnx, name, transform)


def variables_in(nnx: Any, tree: Any) -> list[Any]:
    """Lists the Variables in a pytree of objects, each once."""
    found = nnx.iter_graph(tree, graph=True)
    return [value for _, value in found if isinstance(value, nnx.Variable)]


def undoing(
    nnx: Any, call: Callable[..., Any], args: tuple[Any, ...], objects: Sequence[Any]
) -> Any:
    """Calls a function and takes back what it writes to some objects."""
    before = [(v, v.get_value()) for v in variables_in(nnx, list(objects))]
    output = call(*args)
    for variable, value in before:
        variable.set_value(value)
    return output


def _with_axes(axes: Any, args: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Yields the arguments with the axis of each."""
    entries = axes if isinstance(axes, tuple) else (axes,) * len(args)
    return zip(args, entries, strict=True)


def _broadcast(axes: Any, args: tuple[Any, ...]) -> list[Any]:
    """Lists the arguments without an axis."""
    return [arg for arg, axis in _with_axes(axes, args) if axis is None]


def _mapped_size(axes: Any, args: tuple[Any, ...]) -> int:
    """Returns the size of an axis that is mapped."""
    sizes = [
        leaf.shape[axis]
        for arg, axis in _with_axes(axes, args)
        if isinstance(axis, int)
        for leaf in jax.tree.leaves(arg)
    ]
    return int(sizes[0])


def _map_ints(axes: Any, change: Callable[[int], int]) -> Any:
    """Changes every int in a tree of axes."""
    return jax.tree.map(lambda a: change(a) if isinstance(a, int) else a, axes)


@fault(breaks="TRX-013")
def state_comes_back_on_the_leading_axis(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` leaves what is written to a Variable on axis 0, whatever axis it came in on."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            pairs = [
                (variable, variable.get_value(), axis)
                for arg, axis in _with_axes(options.get("in_axes", 0), args)
                if isinstance(axis, int)
                for variable in variables_in(nnx, [arg])
            ]
            output = original(function, **options)(*args)
            for variable, before, axis in pairs:
                if variable.get_value() is not before:
                    variable.set_value(jnp.moveaxis(variable.get_value(), axis, 0))
            return output

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-013")
def negative_axes_count_in_the_slice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` counts a negative axis of the output from the end of a slice, not of the whole."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        out_axes = _map_ints(options.pop("out_axes", 0), lambda axis: axis - (axis < 0))
        return original(function, out_axes=out_axes, **options)

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-014")
def stacked_modules_repeat_a_slice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The last slice of each Variable of a Module that `vmap` creates is the first again."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            output = original(function, **options)(*args)
            if isinstance(output, nnx.Module):
                for variable in variables_in(nnx, output):
                    value = variable.get_value()
                    variable.set_value(value.at[-1].set(value[0]))
            return output

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-014")
def stacked_variables_are_plain(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Param of a Module that `vmap` creates has lost its metadata."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def plain(*args: Any) -> Any:
            output = function(*args)
            if isinstance(output, nnx.Module):
                for name, value in list(vars(output).items()):
                    if isinstance(value, nnx.Param):
                        setattr(output, name, nnx.Param(value.get_value()))
            return output

        return original(plain, **options)

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-015")
def broadcast_updates_are_made_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` adds what it adds to a Variable that is not mapped once more."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            shared = variables_in(nnx, _broadcast(options.get("in_axes", 0), args))
            before = [variable.get_value() for variable in shared]
            output = original(function, **options)(*args)
            for variable, value in zip(shared, before, strict=True):
                if variable.get_value() is not value:
                    variable.set_value(variable.get_value() * 2 - value)
            return output

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-015")
def batched_writes_keep_a_slice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that is not mapped takes the first slice of a batched value that is written."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        axes = options.get("in_axes", 0)

        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except ValueError:
                return slice_by_slice(*args)

        def slice_by_slice(*args: Any) -> Any:
            copies = nnx.clone(args)
            for variable in variables_in(nnx, _broadcast(axes, copies)):
                value = variable.get_value()
                size = _mapped_size(axes, args)
                variable.set_value(jnp.broadcast_to(value, (size, *value.shape)))
            output = original(function, **{**options, "in_axes": 0})(*copies)
            written = variables_in(nnx, _broadcast(axes, copies))
            for old, new in zip(variables_in(nnx, _broadcast(axes, args)), written, strict=True):
                old.set_value(new.get_value()[0])
            return output

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TRX-016")
def sizes_are_one_more(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` maps once more than `axis_size` says."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        if options.get("axis_size") is not None:
            options["axis_size"] += 1
        return original(function, **options)

    replace_transform(nnx, patch, "vmap", change)


def _hide(nnx: Any, patch: pytest.MonkeyPatch, name: str, errors: Any, text: str) -> None:
    """Makes the errors of a transformed function say a text only."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except errors as error:
                raise type(error)(text) from None

        return call

    replace_transform(nnx, patch, name, change)


@fault(breaks="TRX-038 GRA-013")
def vmap_does_not_say_where(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The errors of `vmap` for axes that do not fit name no argument."""
    _hide(nnx, patch, "vmap", ValueError, "the axes do not fit")


@fault(breaks="TRX-017")
def scan_never_reverses(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` takes `reverse` and does not heed it."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        return original(function, **{**options, "reverse": False})

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-017")
def shared_state_is_not_shared(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a step of `scan` writes to objects that are passed to all steps is lost."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def step(*args: Any) -> Any:
            shared = _broadcast(options["in_axes"], args)
            return undoing(nnx, function, args, shared)

        return original(step if isinstance(options.get("in_axes"), tuple) else function, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-017")
def scan_stacks_along_the_leading_axis(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` stacks its outputs along axis 0, whatever `out_axes` say."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        out_axes = _map_ints(options.pop("out_axes", (nnx.Carry, 0)), lambda axis: 0)
        return original(function, out_axes=out_axes, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-018")
def last_layer_keeps_its_statistics(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` does not update the statistics of the last layer."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            found = [v for v in variables_in(nnx, list(args)) if isinstance(v, nnx.BatchStat)]
            before = [variable.get_value() for variable in found]
            output = original(function, **options)(*args)
            for variable, value in zip(found, before, strict=True):
                if value.ndim:
                    variable.set_value(variable.get_value().at[-1].set(value[-1]))
            return output

        return call

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-018")
def scan_traces_every_layer(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` traces the function of a layer as often as there are layers."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            def step(*slices: Any) -> Any:
                for _ in range(_mapped_size(options["in_axes"], args) - 1):
                    function(*nnx.clone(slices))
                return function(*slices)

            return original(step, **options)(*args)

        return call

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-019")
def carries_are_cast(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` casts what a step returns as the carry to the dtypes of what it was passed."""

    def cast(new: Any, old: Any) -> Any:
        return new.astype(old.dtype) if isinstance(new, jax.Array) else new

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def step(carry: Any, *rest: Any) -> Any:
            new, output = function(carry, *rest)
            try:
                return jax.tree.map(cast, new, carry), output
            except ValueError:
                return new, output

        return original(step, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="TRX-026")
def pmap_drops_broadcast_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a function under `pmap` writes to Variables that are not mapped is lost."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            shared = _broadcast(options.get("in_axes", 0), args)
            return undoing(nnx, original(function, **options), args, shared)

        return call

    replace_transform(nnx, patch, "pmap", change)


@fault(breaks="TRX-026")
def shard_map_drops_replicated_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a function under `shard_map` writes to objects that are not sharded is lost."""
    replicated = jax.sharding.PartitionSpec()

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            pairs = zip(args, options["in_specs"], strict=True)
            kept = [arg for arg, spec in pairs if spec == replicated]
            return undoing(nnx, original(function, **options), args, kept)

        return call

    replace_transform(nnx, patch, "shard_map", change)
