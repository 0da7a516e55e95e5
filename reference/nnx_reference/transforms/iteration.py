"""scan: a loop over an axis of arrays, Variables and Modules, with values that go along.

Every value in the arguments is one of three things in the loop:

- it has an axis: each step sees its slice, and what the step leaves there is stacked again;
- it is carried: each step sees what the step before has left;
- it is broadcast (None): each step sees the same.

A Variable that is broadcast may be written nevertheless, a count of draws for example, and the next
step must see that. So it is carried, too (`carrying.py`). All others that are broadcast are
constants of the loop. With graph updates a stream that is broadcast starts afresh at each step, so
that all draw the same keys, and goes on after the loop as the last step has left it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from nnx_reference import hijax
from nnx_reference.transforms.axes import (
    AXES,
    Carry,
    StandIn,
    StateAxes,
    leaf_axes,
    leaves_of,
    refuse_state_axes,
    spread,
)
from nnx_reference.transforms.axis_metadata import NO_METADATA, in_step, refuse_metadata
from nnx_reference.transforms.carries import Carried, Passed, last_carry
from nnx_reference.transforms.carrying import (
    Finished,
    Left,
    Loop,
    Renewed,
    build_loop,
)
from nnx_reference.transforms.core import (
    MISSING,
    Inputs,
    Run,
    Structure,
    decorator,
    open_tree,
)
from nnx_reference.transforms.placing import Placement
from nnx_reference.transforms.statics import Static
from nnx_reference.transforms.tracing import Traced, operation
from nnx_reference.variables import RngState


@decorator
def scan(
    f: Callable[..., Any] = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] = NO_METADATA,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Calls a function for each slice along an axis: `jax.lax.scan` for functions of objects.

    What the function does to objects among its arguments reaches the caller's objects: those with
    an axis get the slices of all steps, the others what the last step left.

    Args:
      f: the function of a slice; without it, the result is a decorator.
      length: the number of steps, where no argument tells.
      reverse: whether to begin with the last slice.
      unroll: as for `jax.lax.scan`.
      _split_transpose: as for `jax.lax.scan`.
      in_axes: `Carry`, an int or None for all arguments, or a tuple with an entry for each:
        `Carry`, once at most, or a tree prefix of ints, None and StateAxes.
      out_axes: likewise for the output; a tuple with `Carry` in it is for an output that is a tuple
        with the carry at that place. An output has no None.
      transform_metadata: with graph updates only, `{PARTITION_NAME: name}` keeps sharding metadata
        in step with the axes; see `nnx.transform_metadata`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The function of whole arrays. It raises TypeError if the carry changes its shape, dtype or
      structure. It raises ValueError if only one of `in_axes` and `out_axes` has a Carry; if an
      object in the carry is not the one that was passed in; if a step changes the structure of an
      object that has no axis; if one Variable is to have two different axes; if StateAxes do not
      select some Variable, or are there without graph updates; in tree mode, if something is
      shared. If it raises, the caller's objects are unchanged.
    """
    options = {"length": length, "reverse": reverse, "unroll": unroll}
    options["_split_transpose"] = _split_transpose
    _check_axes(in_axes, out_axes)
    function = in_step(f, transform_metadata, in_axes, out_axes)

    @functools.wraps(f)
    def scanned(*args: Any, **kwargs: Any) -> Any:
        args = _all_positional(f, args, kwargs)
        inputs = Inputs(f, args, {}, graph, graph_updates)
        refuse_metadata(transform_metadata, inputs)
        step = _step(inputs, args, in_axes, out_axes)
        values = dict(zip(inputs.structure.names, inputs.values, strict=True))
        static = step, tuple(options.items())
        scan = operation(_scan, (function,))
        found, carried, arrays, inside, rest = scan(static, inputs.structure, values)
        outcome, renewed = found.value
        left = inputs.finish(outcome, carried, rest)
        if step.carry_in is None:
            return left
        updates = inputs.structure.updates
        carry = last_carry(args[step.carry_in], arrays, inside, renewed, updates)
        return step.join(carry, left)

    return scanned


def _check_axes(in_axes: Any, out_axes: Any) -> None:
    """Checks where Carry and None stand.

    Raises:
      ValueError: they stand where they must not.
    """
    for what, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        found = sum(leaf is Carry for leaf in leaves_of(axes))
        whole = sum(entry is Carry for entry in axes) if isinstance(axes, tuple) else found
        if found != whole or found > 1:
            raise ValueError(
                f"scan {what} has one Carry at most, for a whole argument or output, not {axes!r}"
            )
    if (Carry in leaves_of(in_axes)) != (Carry in leaves_of(out_axes)):
        raise ValueError(
            "scan carries an output to an argument: put Carry in both in_axes and out_axes, or in"
            f" neither, not as in in_axes={in_axes!r}, out_axes={out_axes!r}"
        )
    if any(_has_none(entry) for entry in leaves_of(out_axes)):
        raise ValueError(
            f"scan stacks its outputs and does not broadcast them, so that None has no meaning in"
            f" out_axes={out_axes!r}: carry what is to come out once; of an object, nnx.split that"
            " off, and nnx.merge it inside"
        )


def _has_none(entry: Any) -> bool:
    return entry is None or (isinstance(entry, StateAxes) and None in entry.axes)


def _carry_place(axes: Any) -> int | None:
    """Finds the entry of a tuple of axes that is Carry; None if none is."""
    return next((n for n, entry in enumerate(axes) if entry is Carry), None)


def _all_positional(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Puts keyword arguments at their positions.

    Raises:
      TypeError: the function does not take them so.
    """
    if not kwargs:
        return args
    bound = inspect.signature(f).bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(f"scan has no in_axes for the keyword arguments {list(bound.kwargs)}")
    return bound.args


def _step(inputs: Inputs, args: tuple[Any, ...], in_axes: Any, out_axes: Any) -> _Step:
    """Finds the axes of all values in a call's arguments.

    Raises:
      TypeError: something else stands in `in_axes`.
      ValueError: it does not fit the arguments; two paths to one leaf say different axes, or none
        is said; StateAxes are there without graph updates; or a Variable that JAX scans itself has
        another axis than 0.
    """
    opened, structure = inputs.opened, inputs.structure
    in_axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
    prefixes = _spread_over(args, in_axes)
    if not structure.updates:
        refuse_state_axes([*prefixes, *leaves_of(out_axes)])
    objects = opened.objects(prefixes)
    leaves = leaf_axes(inputs.flat, objects, structure.object_names)
    values = (*opened.arrays(prefixes), *leaves)
    _check_by_reference(structure, leaves)
    placement = Placement(structure, tuple(objects), tuple(leaves), values)
    return _Step(placement, _carry_place(in_axes), StandIn(out_axes))


def _check_by_reference(structure: Structure, axes: Sequence[Any]) -> None:
    """Checks the axes of Variables whose slices JAX hands out itself.

    Raises:
      ValueError: one is to be scanned over an axis that JAX does not scan over.
    """
    names = structure.names[len(structure.names) - len(axes) :]
    for name, axis, record in zip(names, axes, structure.graphdef.leaves, strict=True):
        if record is None or not record.metadata.by_reference:
            continue
        if isinstance(axis, int) and axis != 0:
            raise ValueError(
                f"{name} is a hijax or ref {record.kind.__name__}, which can be scanned over axis 0"
                f" only, not over {axis}"
            )


@dataclass(frozen=True)
class _Step:
    """Runs a step of the loop.

    Attributes:
      placement: the axis of each value; None where it is broadcast, Carry where it is carried.
      carry_in: the position of the argument that is carried, if one is.
      out_axes: the axes of the output.
    """

    placement: Placement
    carry_in: int | None
    out_axes: StandIn

    def __call__(
        self, function: Callable[..., Any], structure: Structure, values: Sequence[Any]
    ) -> tuple[Static, list[Any], list[Any], list[Any]]:
        """Runs it; gives what it has done, written, carried and left to be stacked."""
        carry: list[Carried] = []
        run = structure.run(functools.partial(self.part, function, carry), values)
        pairs = zip(run.carried(run.outcome.leaf_origins), run.carried_values(), strict=True)
        first, leaves = len(values) - len(self.placement.leaves), self.placement.leaves
        written = {
            n + first: value
            for n, value in pairs
            if n is not None and not isinstance(leaves[n], int)
        }
        arrays, inside, renewed = carry[0] if carry else ([], {}, Renewed())
        written |= inside
        axes, stacked = self.stacked(run)
        left = Left(run.outcome, tuple(written), tuple(axes), renewed)
        return Static(left), list(written.values()), arrays, stacked

    def part(self, function: Callable[..., Any], carry: list[Carried], *args: Any) -> Any:
        """Calls the function; puts its carry, compared, into a list, and returns the rest.

        Raises:
          TypeError: the output is no tuple like `out_axes`, or the carry has another structure than
            the one that was passed in.
          ValueError: an object in the carry is not the one that was passed in, or has changed in
            other than values of Variables.
        """
        if self.carry_in is None:
            return function(*args)
        passed = Passed("scan", args, self.carry_in, self.placement.structure)
        returned, rest = self._part(function(*args))
        carry.append(passed.compare(returned))
        return rest

    def _part(self, output: Any) -> tuple[Any, Any]:
        out_axes = self.out_axes.tree()
        if out_axes is Carry:
            return output, ()
        if not isinstance(output, tuple) or len(output) != len(out_axes):
            raise TypeError(
                f"out_axes has {len(out_axes)} entries, for a tuple of as many outputs; not for a"
                f" {type(output).__name__}"
                + (f" of {len(output)}" if isinstance(output, tuple) else "")
            )
        place = out_axes.index(Carry)
        return output[place], _without(output, place)

    def join(self, carry: Any, rest: Any) -> Any:
        """Puts the carry back among the outputs."""
        out_axes = self.out_axes.tree()
        if out_axes is Carry:
            return carry
        place = out_axes.index(Carry)
        return (*rest[:place], carry, *rest[place:])

    def stacked(self, run: Run) -> tuple[list[int], list[Any]]:
        """Lists what a step leaves to be stacked: along which axes, and the values.

        Raises:
          ValueError: it has no axis, as an object that is carried or broadcast has got something
            new.
        """
        axes = self.out_axes.tree()
        if self.carry_in is not None:
            axes = () if axes is Carry else _without(axes, axes.index(Carry))
        carried, arrays = self.placement.left(run, axes, AXES, "scan out_axes")
        leaves = zip(
            run.carried(run.outcome.leaf_origins),
            carried,
            run.carried_names(),
            run.carried_values(),
            strict=True,
        )
        found = [item[1:] for item in leaves if item[0] is None or isinstance(item[1], int)]
        for axis, name, _ in found:
            if not isinstance(axis, int):
                raise ValueError(
                    f"a step of scan has made {name}, which has no axis along which to stack it:"
                    " give the object an axis, or change the values of Variables only"
                )
        values = [value for _, _, value in found] + run.output.arrays(run.output.leaves)
        return [axis for axis, _, _ in found] + arrays, values


def _scan(
    functions: tuple[Traced, ...],
    static: tuple[_Step, tuple[tuple[str, Any], ...]],
    structure: Structure,
    values: dict[str, Any],
    _: Any,
) -> Finished:
    (function,), (how, options) = functions, static
    axes = dict(zip(structure.names, how.placement.values, strict=True))
    slices = {n: _move(values[n], axis, 0) for n, axis in axes.items() if isinstance(axis, int)}
    first = len(axes) - structure.graphdef.num_leaves
    by_reference = {
        number
        for number, record in enumerate(structure.graphdef.leaves, first)
        if record is not None and record.metadata.by_reference
    }
    carried = {number for number, axis in enumerate(axes.values()) if axis is Carry}

    names = structure.names[first:]
    afresh = {
        name: values[name]
        for name, record in zip(names, structure.graphdef.leaves, strict=True)
        if structure.updates and axes[name] is None and _is_random(record)
    }

    def probe(values: dict[str, Any]) -> Any:
        current = values | {name: _like_slice(values[name]) for name in slices}
        return function(how, structure, [current[name] for name in structure.names])

    numbers: tuple[int, ...] = ()
    if all(leaf.shape for leaf in jax.tree.leaves(slices)):
        numbers = jax.eval_shape(probe, values | slices)[0].value.numbers

    def build(carried: set[int]) -> Finished:
        loop = Loop(function, how, structure, values, carried)

        def step(state: dict[str, Any], slices: dict[str, Any]) -> Any:
            return loop.step(state, slices | afresh)

        last, found = jax.lax.scan(step, loop.state, slices, **dict(options))
        stacked = [_move(x, 0, axis) for x, axis in zip(found, loop.left.axes, strict=True)]
        return loop.finish(last, stacked)

    return build_loop(build, (carried - by_reference) | set(numbers))


def _is_random(record: Any) -> bool:
    """Tells whether a leaf is state of a stream that is held plainly."""
    is_variable = record is not None and not record.metadata.by_reference
    return is_variable and issubclass(record.kind, RngState)


def _like_slice(value: Any) -> Any:
    """Returns what has the type of the slices of a value, each array and Ref in it, over axis 0."""

    def like_slice(leaf: Any) -> Any:
        if hijax.is_ref(leaf):
            return jax.new_ref(like_slice(leaf[...]))
        if leaf.shape[0] == 0:
            return jnp.zeros(leaf.shape[1:], leaf.dtype)
        return jax.lax.index_in_dim(leaf, 0, keepdims=False)

    return jax.tree.map(like_slice, value)


def _without(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return items[:place] + items[place + 1 :]


def _spread_over(args: tuple[Any, ...], in_axes: tuple[Any, ...]) -> list[Any]:
    """Spreads `in_axes` over the leaves of the arguments."""
    if len(in_axes) != len(args):
        raise ValueError(f"scan in_axes has {len(in_axes)} entries for {len(args)} arguments")
    if in_axes.count(Carry) > 1:
        raise ValueError(f"scan carries one argument, not all {len(args)}: give in_axes a tuple")
    prefixes: list[Any] = []
    for axes, arg in zip(in_axes, args, strict=True):
        part = open_tree(arg, keystr)
        if axes is Carry:
            prefixes += [Carry] * len(part.leaves)
        else:
            prefixes += spread(axes, part.treedef, part.is_object, "scan in_axes")
    return prefixes


def _move(value: Any, source: int, target: int) -> Any:
    """Moves an axis of an array, or of all arrays of a pytree."""
    if source == target:
        return value
    return jax.tree.map(lambda array: jnp.moveaxis(array, source, target), value)
