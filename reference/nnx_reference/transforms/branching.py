"""cond and switch: one of several functions of arrays, Variables and Modules.

The functions are traced first. What any of them writes leaves `jax.lax.switch`, and from the others
as it was, so that they may write to different Variables; but all of them have to leave the same
structure. If the choice is known, only what the chosen one has written is carried out.

Variables with the flag `hijax` or `ref` are captured: JAX carries their writes out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax

from nnx_reference.transforms.carrying import Entry, roots_after, table_after
from nnx_reference.transforms.closures import Function
from nnx_reference.transforms.core import Inputs, Outcome, Structure, close_tree, spell_root
from nnx_reference.transforms.statics import Static
from nnx_reference.transforms.tracing import Traced, operation, plainly

T = TypeVar("T")


def cond(
    pred: Any,
    true_fun: Callable[..., T],
    false_fun: Callable[..., T],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls one of two functions: `jax.lax.cond` for functions of objects.

    Only what the chosen one does reaches the caller's objects.

    Args:
      pred: the condition, a scalar.
      true_fun: the function that is called if it is true.
      false_fun: the one that is called if it is false.
      *operands: their arguments.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; then both
        functions must make the same ones. None for the default.

    Returns:
      What the chosen function returns.

    Raises:
      TypeError: `pred` is no scalar, or the functions return different structures, shapes or
        dtypes, or leave a Variable with different ones.
      ValueError: they leave objects with different structures or metadata, or return different
        objects; in tree mode, something is shared.
    """
    inputs = Inputs(true_fun, operands, {}, graph, graph_updates)
    return _run_branches(_cond, (true_fun, false_fun), inputs, pred, lambda pred: 0 if pred else 1)


def switch(
    index: Any,
    branches: Sequence[Callable[..., T]],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Calls one of several functions: `jax.lax.switch` for functions of objects.

    Only what the chosen one does reaches the caller's objects.

    Args:
      index: the number of the function, an integer scalar; of one that is out of bounds, the
        nearest within.
      branches: the functions.
      *operands: their arguments.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; then all
        functions must make the same ones. None for the default.

    Returns:
      What the chosen function returns.

    Raises:
      TypeError: `index` is no integer scalar, or the functions return different structures, shapes
        or dtypes, or leave a Variable with different ones.
      ValueError: there are no functions; they leave objects with different structures or metadata,
        or return different objects; in tree mode, something is shared.
    """
    if not branches:
        raise ValueError("switch has no branches to choose from")
    inputs = Inputs(branches[0], operands, {}, graph, graph_updates)
    last = len(branches) - 1
    return _run_branches(
        _switch, branches, inputs, index, lambda index: min(max(int(index), 0), last)
    )


@dataclass(frozen=True)
class _Joint:
    """What several branches do, one of which runs.

    Attributes:
      outcome: the outcome of whichever runs, where all that any of them carries is carried.
      names: a name for each of its leaves.
      carried: for each branch and each leaf, whether the branch carries it.
    """

    outcome: Outcome
    names: tuple[str, ...]
    carried: tuple[tuple[bool, ...], ...]

    def outcome_of(self, number: int) -> Outcome:
        """Returns the outcome of one of the branches."""
        return self.outcome._replace(is_carried=self.carried[number])


def _run_branches(
    build: Any,
    branches: Sequence[Function],
    inputs: Inputs,
    index: Any,
    choose: Callable[[Any], int],
) -> Any:
    """Runs the branch that `choose` finds for an index, and carries out what it did."""
    structure = inputs.structure
    values = dict(zip(structure.names, inputs.values, strict=True))
    found, carried, output = operation(build, branches)(None, structure, values, index)
    joint: _Joint = found.value
    outcome = joint.outcome
    if not isinstance(index, jax.core.Tracer):
        outcome = joint.outcome_of(choose(index))
    pairs = zip(joint.names, outcome.is_carried, strict=True)
    kept = [carried[name] for name, is_carried in pairs if is_carried]
    return inputs.finish(outcome, kept, jax.tree.leaves(output))


def _cond(
    branches: tuple[Traced, ...], _: None, structure: Structure, values: dict[str, Any], pred: Any
) -> tuple[Static, dict[str, Any], Any]:
    joint, functions = _join(branches, ("true_fun", "false_fun"), structure, values)
    return Static(joint), *jax.lax.cond(pred, *functions)


def _switch(
    branches: tuple[Traced, ...], _: None, structure: Structure, values: dict[str, Any], index: Any
) -> tuple[Static, dict[str, Any], Any]:
    names = [f"branches[{n}]" for n in range(len(branches))]
    joint, functions = _join(branches, names, structure, values)
    return Static(joint), *jax.lax.switch(index, functions)


def _join(
    branches: Sequence[Traced], names: Sequence[str], structure: Structure, values: dict[str, Any]
) -> tuple[_Joint, list[Callable[[], Any]]]:
    """Finds what branches do jointly, and makes functions of no arguments that do it.

    They give the carried values by name, and the output with None for each object.
    """
    listed = [values[name] for name in structure.names]
    outcomes = [branch.shapes(plainly, structure, listed)[0].value for branch in branches]
    for name, outcome in zip(names[1:], outcomes[1:], strict=True):
        _check_alike(structure, (names[0], outcomes[0]), (name, outcome))
    joint = _joint(structure, outcomes)

    def function_of(branch: Traced) -> Callable[[], Any]:
        def run() -> tuple[dict[str, Any], Any]:
            found, carried, arrays = branch(plainly, structure, listed)
            outcome: Outcome = found.value
            left = _left(structure, outcome, listed, carried)
            named = zip(joint.names, left, joint.outcome.is_carried, strict=True)
            objects = [None] * outcome.is_object.count(True)
            return (
                {name: value for name, value, is_carried in named if is_carried},
                close_tree(outcome.treedef, outcome.is_object, objects, arrays),
            )

        run.__name__ = branch.name
        return run

    return joint, list(map(function_of, branches))


def _left(
    structure: Structure, outcome: Outcome, values: Sequence[Any], carried: Sequence[Any]
) -> list[Any]:
    """Lists the values of all leaves that a run leaves."""
    first, remaining = len(values) - structure.graphdef.num_leaves, iter(carried)
    return [
        next(remaining) if is_carried else values[first + cast(int, origin)]
        for origin, is_carried in zip(outcome.leaf_origins, outcome.is_carried, strict=True)
    ]


def _joint(structure: Structure, outcomes: Sequence[Outcome]) -> _Joint:
    """Joins outcomes of the same structure.

    An array in an attribute that is another one after some branch is another one after all.
    """
    columns = zip(*[outcome.leaf_origins for outcome in outcomes], strict=True)
    origins = tuple([column[0] if len(set(column)) == 1 else None for column in columns])
    carried = tuple(
        [
            tuple([flag or n is None for flag, n in zip(outcome.is_carried, origins, strict=True)])
            for outcome in outcomes
        ]
    )
    is_carried = tuple(map(any, zip(*carried, strict=True)))
    outcome = outcomes[0]._replace(leaf_origins=origins, is_carried=is_carried)
    roots = roots_after(structure, outcome)
    return _Joint(outcome, tuple([spell_root(roots, p) for p in outcome.graphdef.paths]), carried)


def _check_alike(
    structure: Structure, first: tuple[str, Outcome], other: tuple[str, Outcome]
) -> None:
    """Checks that two branches leave the same structure.

    Raises:
      TypeError: their outputs differ.
      ValueError: the objects that they leave differ; the error names a place.
    """
    (name, mine), (other_name, theirs) = first, other
    if (mine.treedef, mine.is_object) != (theirs.treedef, theirs.is_object):
        raise TypeError(
            f"{name} and {other_name} must return the same structure, but one returns"
            f" {_describe(mine)}, the other {_describe(theirs)}"
        )
    ours, other_table = table_after(structure, mine), table_after(structure, theirs)
    for place in [*ours, *other_table]:
        mine_there, theirs_there = ours.get(place), other_table.get(place)
        if not _is_alike(mine_there, theirs_there):
            raise ValueError(
                f"{name} and {other_name} must leave the same structure, but {place} is"
                f" {mine_there or 'missing'} after the one and {theirs_there or 'missing'} after"
                " the other: change values of Variables only, or do the same in all branches"
            )
    if mine.graphdef != theirs.graphdef:
        raise ValueError(f"{name} and {other_name} must leave the same structure of shared objects")


def _is_alike(mine: Entry | None, theirs: Entry | None) -> bool:
    if mine is None or theirs is None:
        return False
    return mine == theirs or mine.kind is theirs.kind is None


def _describe(outcome: Outcome) -> str:
    """Describes the structure of an output."""
    leaves = ["object" if flag else "array" for flag in outcome.is_object]
    return str(jax.tree.unflatten(outcome.treedef, leaves))
