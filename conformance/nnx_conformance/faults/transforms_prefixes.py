"""Faults of what says axes: StateAxes, tree prefixes, and the names of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.transforms_axes import replace_transform, variables_in


def _change_state_axes(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[dict[Any, Any]], Mapping[Any, Any]]
) -> None:
    """Changes the mapping that StateAxes are made of."""
    original = nnx.StateAxes
    patch.setattr(nnx, "StateAxes", lambda filter_axes: original(change(dict(filter_axes))))


@fault(breaks="TREE-006 GRA-004")
def state_axes_take_the_leading_axis(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """StateAxes take axis 0 for a negative axis."""
    _change_state_axes(
        nnx,
        patch,
        lambda axes: {f: 0 if isinstance(a, int) and a < 0 else a for f, a in axes.items()},
    )


@fault(breaks="GRA-004")
def last_state_axis_decides(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The last filter of StateAxes that selects a Variable decides about it."""
    _change_state_axes(nnx, patch, lambda axes: dict(reversed(axes.items())))


@fault(breaks="GRA-004")
def state_axes_broadcast_the_rest(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What no filter of StateAxes selects is not mapped."""
    _change_state_axes(nnx, patch, lambda axes: axes if ... in axes else {**axes, ...: None})


@fault(breaks="TREE-006")
def split_swaps_groups(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` gives the group of the first filter after the rest."""
    original = nnx.split

    def split(node: Any, *filters: Any, **options: Any) -> Any:
        graphdef, *states = original(node, *filters, **options)
        return graphdef, *(reversed(states) if len(states) == 2 else states)

    patch.setattr(nnx, "split", split)


@fault(breaks="TREE-009")
def last_prefix_decides(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`prefix` takes the value of the last filter that selects a Variable."""
    original = nnx.prefix

    def prefix(node: Any, filter_map: Any, **options: Any) -> Any:
        if isinstance(filter_map, Mapping):
            filter_map = dict(reversed([*filter_map.items()]))
        return original(node, filter_map, **options)

    patch.setattr(nnx, "prefix", prefix)


@fault(breaks="TREE-009")
def prefix_broadcasts_the_rest(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`prefix` gives None for what no filter selects."""
    original = nnx.prefix

    def prefix(node: Any, filter_map: Any, **options: Any) -> Any:
        if isinstance(filter_map, Mapping) and ... not in filter_map:
            filter_map = {**filter_map, ...: None}
        return original(node, filter_map, **options)

    patch.setattr(nnx, "prefix", prefix)


def _rename(nnx: Any, tree: Any, change: Callable[[Any, tuple[Any, ...]], Any]) -> None:
    """Changes the names of the axes of all Variables that have some."""
    for variable in variables_in(nnx, tree):
        names = variable.get_metadata().get("out_sharding")
        if names is not None:
            variable.set_metadata("out_sharding", change(variable, tuple(names)))


@fault(breaks="TREE-015")
def tree_mode_takes_the_keyword(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` in tree mode takes the keyword `transform_metadata` and does not heed it."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        if options.get("graph") is False:
            options.pop("transform_metadata", None)
        return original(function, **options)

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TREE-008 TREE-012")
def new_names_come_last(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`transform_metadata` appends the name of a new axis, wherever the axis is."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            output = original(function, **options)(*args)
            _rename(nnx, output, append)
            return output

        def append(variable: Any, names: tuple[Any, ...]) -> tuple[Any, ...]:
            name = options["partition"]
            place = names.index(name)
            return (*names[:place], *names[place + 1 :], name)

        return call

    replace_transform(nnx, patch, "transform_metadata", change)


@fault(breaks="TREE-012")
def negative_axes_are_named_one_too_early(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`transform_metadata` counts a negative axis of the output in the names of a slice."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        axis = options.get("out_axes", 0)
        if isinstance(axis, int) and axis < 0:
            options["out_axes"] = axis - 1
        return original(function, **options)

    replace_transform(nnx, patch, "transform_metadata", change)


@fault(breaks="TREE-012")
def scalars_have_no_names(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A scalar gets no name when `transform_metadata` stacks it."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            output = original(function, **options)(*args)
            _rename(nnx, output, lambda v, names: names if v.get_value().ndim else ())
            return output

        return call

    replace_transform(nnx, patch, "transform_metadata", change)


@fault(breaks="GRA-013")
def scan_hides_contradictions(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` says of an object with two different axes only that there is one."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except ValueError:
                raise ValueError("an object has two different axes") from None

        return call

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="GRA-011")
def scan_keeps_names(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` takes the keyword `transform_metadata` and changes no names."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        options.pop("transform_metadata", None)
        return original(function, **options)

    replace_transform(nnx, patch, "scan", change)


@fault(breaks="GRA-007")
def vmap_copies_what_has_two_axes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` takes copies of arguments that share an object with two different axes."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            mapped = original(function, **options)
            try:
                return mapped(*args)
            except ValueError:
                return mapped(*(nnx.clone(arg, graph=True) for arg in args))

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="TREE-016")
def prefix_does_not_say_where(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of `prefix` for a Variable that no filter selects does not say which it is."""
    original = nnx.prefix

    def prefix(*args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except ValueError:
            raise ValueError("some Variable has no value") from None

    patch.setattr(nnx, "prefix", prefix)
