"""scan: a loop over an axis of arrays, Variables and Modules, with values that go along.

Every value in the arguments is one of three things in the loop:

- it has an axis: each step sees its slice, and what the step leaves there is stacked again;
- it is carried: each step sees what the step before has left;
- it is broadcast (None): each step sees the same.

A Variable that is broadcast may be written nevertheless, a count of draws for example, and the next
step must see that. So it is carried, too. Which Variables these are is known when the function has
been traced; if there are any, it is traced once more.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from nnx_reference.configuration import resolve_graph, resolve_graph_updates
from nnx_reference.transforms.axes import (
    axes_left,
    leaf_axes,
    leaves_of,
    refuse_state_axes,
    spread,
)
from nnx_reference.transforms.core import (
    MISSING,
    Inputs,
    Opened,
    Outcome,
    Run,
    close_tree,
    decorator,
    is_object,
    open_tree,
)


class Carry:
    """Stands in `in_axes` and `out_axes` for the argument, and the output, that is carried."""


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
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The function of whole arrays. It raises TypeError if the carry changes its shape, dtype or
      structure. It raises ValueError if only one of `in_axes` and `out_axes` has a Carry; if an
      object in the carry is not the one that was passed in; if a step changes the structure of an
      object that has no axis; if one Variable is to have two different axes; if StateAxes do not
      select some Variable; in tree mode, if something is shared or there are StateAxes. If it
      raises, the caller's objects are unchanged.
    """
    options: dict[str, Any] = {
        "length": length,
        "reverse": reverse,
        "unroll": unroll,
        "_split_transpose": _split_transpose,
    }
    _check_axes(in_axes, out_axes)

    @functools.wraps(f)
    def scanned(*args: Any, **kwargs: Any) -> Any:
        args = _all_positional(f, args, kwargs)
        inputs = Inputs(f, args, {}, resolve_graph(graph), resolve_graph_updates(graph_updates))
        return _Loop(f, inputs, args, in_axes, out_axes).call(options)

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
    if None in leaves_of(out_axes):
        raise ValueError(
            f"scan stacks its outputs, so that None has no meaning in out_axes={out_axes!r}: carry"
            " what is to come out once"
        )


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


class _Widen(Exception):  # noqa: N818 (no error: it is caught below)
    """The loop has to carry these values as well, which were broadcast."""

    def __init__(self, numbers: set[int]) -> None:
        self.numbers = numbers


class _Loop:
    """One call of a function that scans.

    Attributes:
      axes: the axis of each value; None where it is broadcast, Carry where it is carried.
      first: the number of the first value that is a leaf of the graph of objects.
      carried: the numbers of the values that go from step to step.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        inputs: Inputs,
        args: tuple[Any, ...],
        in_axes: Any,
        out_axes: Any,
    ) -> None:
        opened, structure = inputs.opened, inputs.structure
        in_axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        prefixes = _spread_over(args, in_axes)
        if not structure.graph:
            refuse_state_axes([*prefixes, *leaves_of(out_axes)])
        self.inputs = inputs
        self.carry_in = _carry_place(in_axes)
        self.passed = _open_carry(() if self.carry_in is None else args[self.carry_in])
        self.body = _Body(f, self.carry_in, out_axes)
        self.object_prefixes = opened.objects(prefixes)
        self.leaf_axes = leaf_axes(inputs.flat, self.object_prefixes, structure.object_names)
        self.axes: list[Any] = opened.arrays(prefixes) + self.leaf_axes
        self.first = len(self.axes) - len(self.leaf_axes)
        self.carried = {n for n, axis in enumerate(self.axes) if axis is Carry}
        self.carried -= self.by_reference()
        self.outcome: Outcome
        self.stacked_axes: list[int]

    def by_reference(self) -> set[int]:
        """Lists the Variables whose writes JAX itself carries out of the loop.

        Raises:
          ValueError: one is to be scanned over an axis that JAX does not scan over.
        """
        found = set()
        for number, record in enumerate(self.inputs.flat.graphdef.leaves, self.first):
            if record is not None and record.metadata.by_reference:
                found.add(number)
                if isinstance(self.axes[number], int) and self.axes[number] != 0:
                    raise ValueError(
                        f"{self.inputs.structure.names[number]} is a hijax or ref"
                        f" {record.kind.__name__}, which can be scanned over axis 0 only, not over"
                        f" {self.axes[number]}"
                    )
        return found

    def call(self, options: dict[str, Any]) -> Any:
        """Scans: once or, if broadcast values turn out to change, again."""
        while True:
            try:
                carry, stacked = self.scan(options)
            except _Widen as wider:
                self.carried |= wider.numbers
            else:
                return self.finish(carry, stacked)

    def scan(self, options: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Runs the loop; returns what the last step carries, and what all steps stack."""
        carry: dict[str, Any] = {}
        slices: dict[str, Any] = {}
        fixed: dict[str, Any] = {}
        names, values = self.inputs.structure.names, self.inputs.values
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            axis = self.axes[number]
            if number in self.carried:
                carry[name] = value
            elif isinstance(axis, int):
                slices[name] = _move(value, axis, 0)
            else:
                fixed[name] = value

        def step(carry: dict[str, Any], slices: dict[str, Any]) -> Any:
            return self.step(carry | slices | fixed)

        last, stacked = jax.lax.scan(step, carry, slices, **options)
        return last, stacked

    def step(self, values: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Runs the function on a step's values; returns the next carry, and what is stacked."""
        structure = self.inputs.structure
        run = structure.run(self.body, [values[name] for name in structure.names])
        written = self.written(run)
        if missing := written.keys() - self.carried:
            raise _Widen(set(missing))
        arrays = [n for n in sorted(self.carried) if n < self.first]
        written |= dict(zip(arrays, self.body.carry.arrays(self.body.carry.leaves), strict=True))
        carry = {structure.names[n]: values[structure.names[n]] for n in self.carried}
        carry |= {structure.names[n]: value for n, value in written.items()}
        self.outcome = run.outcome
        return carry, self.stacked(run)

    def written(self, run: Run) -> dict[int, Any]:
        """Finds what a step has written to Variables without an axis, by number."""
        pairs = zip(run.carried(run.outcome.leaf_origins), run.carried_values(), strict=True)
        return {
            n + self.first: value
            for n, value in pairs
            if n is not None and not isinstance(self.leaf_axes[n], int)
        }

    def stacked(self, run: Run) -> list[Any]:
        """Lists what a step leaves to be stacked, and notes along which axes.

        Raises:
          ValueError: it has no axis, as an object that is carried or broadcast has got something
            new.
        """
        output, what = run.output, "scan out_axes"
        prefixes = spread(self.body.stacked_axes, output.treedef, output.is_object, what)
        axes = axes_left(
            run, self.inputs, self.object_prefixes, self.leaf_axes, output.objects(prefixes)
        )
        leaves = zip(
            run.carried(run.outcome.leaf_origins),
            run.carried(axes),
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
        self.stacked_axes = [axis for axis, _, _ in found] + output.arrays(prefixes)
        return [value for _, _, value in found] + output.arrays(output.leaves)

    def finish(self, carry: dict[str, Any], stacked: list[Any]) -> Any:
        """Writes what the loop has left into the caller's objects, and builds the output."""
        names = self.inputs.structure.names
        moved = iter([_move(x, 0, a) for x, a in zip(stacked, self.stacked_axes, strict=True)])
        flags = zip(self.outcome.leaf_origins, self.outcome.is_carried, strict=True)
        carried = [
            next(moved)
            if origin is None or origin + self.first not in self.carried
            else carry[names[origin + self.first]]
            for origin, is_carried in flags
            if is_carried
        ]
        rest = self.inputs.finish(self.outcome, carried, list(moved))
        if self.carry_in is None:
            return rest
        arrays = [carry[names[n]] for n in sorted(self.carried) if n < self.first]
        objects = self.passed.objects(self.passed.leaves)
        return self.body.join(
            close_tree(self.passed.treedef, self.passed.is_object, objects, arrays), rest
        )


class _Body:
    """The function of a step, without its carry: that is kept, and the rest returned.

    Attributes:
      carry: the carry of the last call, opened.
      stacked_axes: `out_axes` of the rest.
    """

    def __init__(self, f: Callable[..., Any], carry_in: int | None, out_axes: Any) -> None:
        self.f = f
        self.carry_in = carry_in
        self.out_axes = out_axes
        self.carry = _open_carry(())
        self.stacked_axes: Any = out_axes
        if carry_in is not None:
            self.stacked_axes = () if out_axes is Carry else _without(out_axes, self._place())

    def _place(self) -> int:
        return 0 if self.out_axes is Carry else self.out_axes.index(Carry)

    def __call__(self, *args: Any) -> Any:
        """Calls the function.

        Raises:
          TypeError: the output is no tuple like `out_axes`, or the carry has another structure than
            the one that was passed in.
          ValueError: an object in the carry is not the one that was passed in.
        """
        output = self.f(*args)
        if self.carry_in is None:
            return output
        carry, rest = self._part(output)
        self.carry, passed = _open_carry(carry), _open_carry(args[self.carry_in])
        if (self.carry.treedef, self.carry.is_object) != (passed.treedef, passed.is_object):
            raise TypeError(
                "a step of scan returns a carry of the structure that it is passed,"
                f" {passed.treedef}, not {self.carry.treedef}"
            )
        for name, new, old in zip(self.carry.names, self.carry.leaves, passed.leaves, strict=True):
            if is_object(new) and new is not old:
                raise ValueError(
                    f"{name} is another {type(new).__name__} than the step was passed: change that"
                    " one in place and return it, or carry what nnx.split gives"
                )
        return rest

    def _part(self, output: Any) -> tuple[Any, Any]:
        if self.out_axes is Carry:
            return output, ()
        if not isinstance(output, tuple) or len(output) != len(self.out_axes):
            raise TypeError(
                f"out_axes has {len(self.out_axes)} entries, for a tuple of as many outputs; not"
                f" for a {type(output).__name__}"
                + (f" of {len(output)}" if isinstance(output, tuple) else "")
            )
        return output[self._place()], _without(output, self._place())

    def join(self, carry: Any, rest: Any) -> Any:
        """Puts the carry back among the outputs."""
        place = self._place()
        return carry if self.out_axes is Carry else (*rest[:place], carry, *rest[place:])


def _open_carry(carry: Any) -> Opened:
    return open_tree(carry, lambda path: "the carry" + keystr(path))


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
