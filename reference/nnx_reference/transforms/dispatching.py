"""Dispatching: from a call of a jitted function to the compiled one, without a walk if possible.

A function is compiled for the structure of the objects among its arguments; a `Plan` stands for one
such structure. The objects come in as groups, one for each, which hold the values of what is met
for the first time in that object. All other arguments go to `jax.jit` as they are, with None in the
place of an object, or a `HOLE` where it was in a container.

A call on unknown objects opens its arguments (`Inputs`), finds or makes the plan, calls the
compiled function and writes back what has changed. If that left the structure alone, each object
then remembers (`remembering.py`) the plan and its group's Variables. As long as nothing has
changed, the next call on the same objects reads these Variables, calls the compiled function and
sets those that the trace is known to write. It looks at nothing else.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary, ref

import jax
import numpy as np

from nnx_reference.configuration import resolve_modes
from nnx_reference.graph import Flat
from nnx_reference.jax_private import ConcreteArray, current_trace, is_eager
from nnx_reference.metadata import Changes
from nnx_reference.pytree import Pytree
from nnx_reference.remembering import remember
from nnx_reference.transforms.core import (
    Inputs,
    Outcome,
    Structure,
    is_object,
    raw_value,
    reachable,
)
from nnx_reference.transforms.placing import Placement
from nnx_reference.transforms.shardings import SHARDINGS
from nnx_reference.transforms.statics import NOWHERE, Places, Static, mark, unmarked
from nnx_reference.variables import Variable

Mode = tuple[bool, bool]


class Options(NamedTuple):
    """How a function is compiled; see `jit`.

    Attributes:
      static: its static arguments.
      donated: its donated arguments.
      in_shardings: the shardings of its arguments.
      out_shardings: the shardings of its output.
      passed_on: further options of `jax.jit`, by name.
    """

    static: Places
    donated: Places
    in_shardings: Any
    out_shardings: Any
    passed_on: tuple[tuple[str, Hashable], ...]


@jax.tree_util.register_static
class _Hole:
    """Stands among the arguments where an object was."""


HOLE = _Hole()


@jax.tree_util.register_static
class Result:
    """What a trace did, as part of the structure of the compiled function's output.

    Attributes:
      outcome: what it did.
      writes: if it only wrote to Variables among the inputs, the numbers of these; else None.
    """

    __slots__ = ("outcome", "writes")

    def __init__(self, outcome: Outcome, structure: Structure) -> None:
        self.outcome = outcome
        self.writes = _plain_writes(outcome, structure)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self.outcome == other.outcome

    def __hash__(self) -> int:
        return hash(self.outcome)


def _plain_writes(outcome: Outcome, structure: Structure) -> tuple[int, ...] | None:
    """Lists the Variables that a trace wrote to; None if it did anything else to the inputs."""
    before, after, origins = structure.graphdef, outcome.graphdef, outcome.leaf_origins
    if any(outcome.is_object) or None in origins:
        return None
    known = [before.leaves[cast(int, origin)] for origin in origins]
    writes = [n for n, carried in zip(origins, outcome.is_carried, strict=True) if carried]
    written = [before.leaves[cast(int, n)] for n in writes]
    is_plain = (
        known == list(after.leaves)
        and writes == sorted(cast(list[int], writes))
        and all(record is not None and not record.metadata.by_reference for record in written)
        and (not structure.updates or _is_same_structure(outcome, structure))
    )
    return tuple(cast(list[int], writes)) if is_plain else None


def _is_same_structure(outcome: Outcome, structure: Structure) -> bool:
    """Tells whether the inputs' nodes are as they were; the roots are compared one by one."""
    before, after = structure.graphdef, outcome.graphdef
    count = len(before.nodes)
    return (
        after.nodes[1:] == before.nodes[1:]
        and outcome.node_origins[1:] == tuple(range(1, count))
        and outcome.leaf_origins[: len(before.leaves)] == tuple(range(len(before.leaves)))
        and set(before.nodes[0].nodes) <= set(after.nodes[0].nodes)
    )


class Plan:
    """The structure of a call's objects, for which a function is compiled.

    Attributes:
      structure: the structure; without that of the other arguments, which JAX takes care of.
      donated: the numbers of the leaves whose arrays may be overwritten.
      count: the number of objects.
      places: the objects' positions if each is an argument itself; None if some are not.
      groups: for each object, the numbers of the leaves that are met in it for the first time.
      order: the numbers of the leaves in the order in which they are passed.
    """

    __slots__ = ("count", "donated", "groups", "order", "places", "structure")

    def __init__(
        self, structure: Structure, donated: frozenset[int], places: tuple[int, ...] | None
    ) -> None:
        self.structure = structure
        self.donated = donated
        self.places = places
        self.count = len(structure.object_names)
        self.groups: list[list[int]] = [[] for _ in range(self.count)]
        for number, path in enumerate(structure.graphdef.paths):
            self.groups[cast(int, path[0])].append(number)
        first, lists = self.arrange(range(len(structure.graphdef.leaves)))
        self.order: list[int] = [*first, *chain(*lists)]

    def is_variable(self, number: int) -> bool:
        """Tells whether a leaf is a Variable."""
        return self.structure.graphdef.leaves[number] is not None

    def arrange(self, of: Sequence[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Arranges what belongs to leaves as it is passed: for donated ones, and for the others.

        The latter are lists: for each object one for its Variables, and one for its other leaves if
        it has any.
        """
        lists = []
        for group in self.groups:
            kept = [n for n in group if n not in self.donated]
            lists.append([of[n] for n in kept if self.is_variable(n)])
            if others := [of[n] for n in kept if not self.is_variable(n)]:
                lists.append(others)
        return [of[n] for n in sorted(self.donated)], lists

    def by_number(self, passed: Sequence[Any]) -> list[Any]:
        """Puts what is passed into the order of the leaves."""
        found = dict(zip(self.order, passed, strict=True))
        return [found[number] for number in range(len(found))]


class Group:
    """What an object remembers of its part in a call.

    Attributes:
      plan: the plan of the call.
      place: its position among the arguments.
      variables: the Variables that are met in it for the first time, by number.
      kept: those that are not donated.
      donated: those that are.
      others: the other leaves.
      result: the result of the last trace that ran.
      targets: the Variables that it writes to.
    """

    __slots__ = (
        "donated",
        "kept",
        "others",
        "place",
        "plan",
        "result",
        "targets",
        "variables",
    )

    def __init__(self, plan: Plan, index: int, place: int, leaves: Sequence[Any]) -> None:
        numbers = plan.groups[index]
        self.plan = plan
        self.place = place
        self.variables = {n: leaves[n] for n in numbers if plan.is_variable(n)}
        self.kept = [v for n, v in self.variables.items() if n not in plan.donated]
        self.donated = [v for n, v in self.variables.items() if n in plan.donated]
        self.others = [leaves[n] for n in numbers if not plan.is_variable(n)]
        self.result: Result | None = None
        self.targets: list[Variable[Any]] = []

    def targets_of(self, result: Result) -> list[Variable[Any]]:
        """Lists those of its Variables that a trace writes to, by number."""
        if self.result is not result:
            writes = result.writes or ()
            self.targets = [self.variables[n] for n in writes if n in self.variables]
            self.result = result
        return self.targets


_serials = itertools.count()
_set_value = vars(Variable)["_value"].__set__

_PLAIN = frozenset(
    {Static, ConcreteArray, type(None), bool, int, float, complex, np.ndarray, np.float32, np.int32}
)


class Compiled:
    """A function as it is compiled: once for each plan."""

    def __init__(self, function: Callable[[], Callable[..., Any]], options: Options) -> None:
        """Takes a reference to the function."""
        self.function = function
        self.options = options
        self.keys = {mode: next(_serials) for mode in itertools.product((False, True), repeat=2)}
        self.is_sharded = options.in_shardings is not None or options.out_shardings is not None
        self.leaf_types = _PLAIN - {type(None)} if self.is_sharded else _PLAIN
        self.plans: dict[Hashable, Plan] = {}
        self.compiled: dict[Plan, Callable[..., Any]] = {}

    def wrap(
        self, function: Callable[..., Any], graph: bool | None, graph_updates: bool | None
    ) -> Callable[..., Any]:
        """Makes the function that is called in place of the user's."""
        static = self.options.static if self.options.static != NOWHERE else None
        settled = graph is not None and (not graph or graph_updates is not None)
        chosen = resolve_modes(graph, graph_updates) if settled else None
        keys, compiled, leaf_types = self.keys, self.compiled, self.leaf_types

        @functools.wraps(function)
        def jitted(*args: Any, **kwargs: Any) -> Any:
            if static is not None:
                args, kwargs = mark(static, args, kwargs)
            mode = chosen or resolve_modes(graph, graph_updates)
            key = keys[mode]
            plan: Plan | None = None
            passed: list[Any] = list(args)
            groups: list[Group] = []
            values: list[list[Any]] = []
            donated: list[Any] = []
            for place, argument in enumerate(args):
                if type(argument) in leaf_types:
                    continue
                notes = getattr(argument, "_pytree_notes", None)
                memo = None if notes is None else notes.memos.get(key)
                if memo is None:
                    if self.is_plain(argument):
                        continue
                    break
                is_current = memo.latest is Changes.latest and not memo.compares
                group: Group | None = memo.result if is_current else memo.recall()
                if group is None or group.place != place or group.plan is not (plan or group.plan):
                    break
                plan = group.plan
                groups.append(group)
                passed[place] = None
                values.append([v._value for v in group.kept])
                if group.others:
                    values.append(group.others)
                if group.donated:
                    donated += [v._value for v in group.donated]
            else:
                is_same = is_eager() and (not kwargs or self.is_plain(kwargs))
                if plan is not None and plan.count == len(groups) and is_same:
                    result, carried, output = compiled[plan](donated, values, *passed, **kwargs)
                    if result.writes is None:
                        inputs = Inputs(function, args, kwargs, *mode)
                        return finish(inputs, result, carried, output)
                    _write(groups, result, carried)
                    return output
            return self.call_anew(Inputs(function, args, kwargs, *mode), args)

        return jitted

    def is_plain(self, value: Any) -> bool:
        """Tells, as quickly as can be, that an argument has no object in it and is as any other.

        Where arguments have shardings, a container is not.
        """
        kind = type(value)
        if kind in self.leaf_types:
            return True
        if self.is_sharded:
            return False
        if kind is dict:
            return all(map(self.is_plain, value.values()))
        return (kind is tuple or kind is list) and all(map(self.is_plain, value))

    def call_anew(self, inputs: Inputs, args: tuple[Any, ...]) -> Any:
        """Calls the function on objects of which it knows nothing, and has them remember it."""
        plan = self.plan(inputs, args)
        passed = Passed(plan, inputs)
        result, carried, output = self.compiled[plan](
            passed.donated, passed.groups, *passed.args, **passed.kwargs
        )
        if result.writes is None:
            return finish(inputs, result, carried, output)
        targets = [inputs.flat.leaves[number] for number in result.writes]
        for variable in targets:
            variable._check_write()
        for variable, value in zip(targets, carried, strict=True):
            variable._store(value)
        keep(plan, inputs.flat, args, self.keys[plan.structure.graph, plan.structure.updates])
        return output

    def plan(self, inputs: Inputs, args: tuple[Any, ...]) -> Plan:
        """Finds the plan for arguments, or makes it."""
        structure = inputs.structure
        donated = frozenset(_donated_leaves(inputs, self.options.donated))
        places = _places(args, len(structure.object_names))
        shardings = self.placement(inputs) if self.is_sharded else None
        key = structure.graphdef, structure.graph, structure.updates, donated, places, shardings
        plan = self.plans.get(key)
        if plan is None:
            made = Plan(structure, donated, places)
            self.compiled[made] = self.compile(made, shardings)
            plan = self.plans.setdefault(key, made)  # another thread may have made it meanwhile
        return plan

    def placement(self, inputs: Inputs) -> Placement:
        """Finds the sharding of each value."""
        return Placement.of(inputs, self.options.in_shardings, SHARDINGS, "jit in_shardings")

    def compile(self, plan: Plan, shardings: Placement | None) -> Callable[..., Any]:
        """Makes the function of values that is compiled for a plan."""

        def run(
            donated: list[Any], groups: list[Any], /, *args: Any, **kwargs: Any
        ) -> tuple[Result, list[Any], Any]:
            values = plan.by_number([*donated, *chain(*groups)])
            before = plan.structure.rebuild(values)
            filled, kwargs = _fill(plan, args, kwargs, before.nodes[0])
            returned = unmarked(self.function())(*filled, **kwargs)
            run = plan.structure.compare(before, values, returned).carrying(plan.donated)
            carried, arrays = run.carried_values(), run.output.arrays(run.output.leaves)
            if shardings is not None:
                places = shardings.left(
                    run, self.options.out_shardings, SHARDINGS, "jit out_shardings"
                )
                carried, arrays = map(_constrain, (carried, arrays), places)
            treedef, has_objects = run.output.treedef, any(run.output.is_object)
            output = arrays if has_objects else jax.tree.unflatten(treedef, arrays)
            return Result(run.outcome, plan.structure), carried, output

        run.__name__ = getattr(self.function(), "__name__", "function")
        given: dict[str, Any] = {k: v for k, v in self.options.passed_on if v is not None}
        if shardings is not None and self.options.in_shardings is not None:
            given["in_shardings"] = _in_shardings(plan, shardings)
        places = self.options.donated
        return jax.jit(
            run,
            donate_argnums=(0, *(n + 2 if n >= 0 else n for n in places.numbers)),
            donate_argnames=tuple(places.names),
            **given,
        )


def _constrain(values: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Shards values as they are to be; None is as JAX decides."""
    return [
        value if sharding is None else jax.lax.with_sharding_constraint(value, sharding)
        for value, sharding in zip(values, shardings, strict=True)
    ]


def _in_shardings(plan: Plan, shardings: Placement) -> Any:
    """Returns the shardings of what the compiled function is called with."""
    structure = shardings.structure
    others = iter(shardings.values)  # those of the arguments that are no objects come first
    spread = [None if flag else next(others) for flag in structure.is_object]
    args, _ = jax.tree.unflatten(structure.treedef, spread)
    return *plan.arrange(shardings.leaves), *args


def _write(groups: list[Group], result: Result, carried: list[Any]) -> None:
    """Writes what a trace carries out into the Variables of known objects."""
    values = iter(carried)
    for group in groups:
        targets = group.targets if group.result is result else group.targets_of(result)
        for variable, value in zip(targets, values):  # noqa: B905 (the next group goes on)
            _set_value(variable, value)


class Passed:
    """What the compiled function is called with.

    Attributes:
      donated: the values of donated leaves.
      groups: for each object a list of the values of its Variables that are not donated, and if it
        has other leaves, a list of these.
      args: the positional arguments, with holes.
      kwargs: the keyword arguments, with holes.
    """

    __slots__ = ("args", "donated", "groups", "kwargs")

    def __init__(self, plan: Plan, inputs: Inputs) -> None:
        opened, hole = inputs.opened, HOLE if plan.places is None else None
        holed = [
            hole if flag else leaf
            for leaf, flag in zip(opened.leaves, opened.is_object, strict=True)
        ]
        self.donated, self.groups = plan.arrange([raw_value(leaf) for leaf in inputs.flat.leaves])
        self.args, self.kwargs = jax.tree.unflatten(opened.treedef, holed)


def _places(args: tuple[Any, ...], count: int) -> tuple[int, ...] | None:
    """Lists the positions of the arguments that are objects, if that is where all objects are."""
    places = tuple([place for place, x in enumerate(args) if is_object(x)])
    return places if len(places) == count else None


def _fill(
    plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], objects: Sequence[Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Puts objects where they were among the arguments."""
    if plan.places is not None:
        filled = list(args)
        for place, thing in zip(plan.places, objects, strict=True):
            filled[place] = thing
        return filled, kwargs
    remaining = iter(objects)
    found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(
        lambda leaf: next(remaining) if leaf is HOLE else leaf, (args, kwargs), is_leaf=_is_hole
    )
    return found


def _is_hole(value: Any) -> bool:
    return value is HOLE


def finish(inputs: Inputs, result: Result, carried: list[Any], output: Any) -> Any:
    """Writes back whatever a trace did; see `Inputs.finish`."""
    outcome = result.outcome
    arrays = output if any(outcome.is_object) else jax.tree.leaves(output)
    return inputs.finish(outcome, carried, arrays)


def keep(plan: Plan, flat: Flat, args: tuple[Any, ...], key: int) -> None:
    """Has the objects of a call remember it, if they are the arguments themselves.

    Args:
      plan: the plan of the call.
      flat: the objects among its arguments as one graph.
      args: the positional arguments.
      key: under which they remember it.
    """
    if plan.places is None or not is_eager():
        return
    if not all(isinstance(args[place], Pytree) for place in plan.places):
        return
    trace = current_trace()
    variables = [leaf for leaf in flat.leaves if isinstance(leaf, Variable)]
    if any(v._metadata.by_reference or v._trace is not trace for v in variables):
        return
    records = zip(flat.graphdef.node_paths, flat.nodes, flat.graphdef.nodes, strict=True)
    members = [(path[0], node, record) for path, node, record in records if path]
    for index, place in enumerate(plan.places):
        mine = [(node, record) for root, node, record in members if root == index]
        remember(
            args[place],
            key,
            [node for node, _ in mine],
            [flat.leaves[n] for n in plan.groups[index]],
            [value for _, record in mine for _, _, value in record.static],
            Group(plan, index, place, flat.leaves),
        )


def _donated_leaves(inputs: Inputs, donated: Places) -> set[int]:
    """Lists the numbers of the leaves whose arrays may be overwritten."""
    if donated == NOWHERE:
        return set()
    opened, table = inputs.opened, inputs.flat.graphdef
    args, kwargs = jax.tree.unflatten(opened.treedef, range(opened.treedef.num_leaves))
    chosen = set(jax.tree.leaves(donated.pick(args, kwargs)))
    objects = opened.objects([n in chosen for n in range(len(opened.leaves))])
    kept = {number for number, path in reachable(table) if not objects[cast(int, path[0])]}
    return {
        number
        for number, record in enumerate(table.leaves)
        if record is not None and not record.metadata.by_reference and number not in kept
    }


_COMPILED: WeakKeyDictionary[Any, dict[Options, Compiled]] = WeakKeyDictionary()


def compiled_for(function: Callable[..., Any], options: Options) -> Compiled:
    """Returns what compiles a function; the same again as long as the function lives.

    Functions of other types than Python's own may be equal without being the same, or may not last;
    they are compiled anew for each wrapper, and so is what has options that cannot be looked up.
    """
    if not isinstance(function, types.FunctionType):
        return Compiled(lambda: function, options)
    known = _COMPILED.setdefault(function, {})
    try:
        if options not in known:
            known[options] = Compiled(cast(Any, ref(function)), options)
        return known[options]
    except TypeError:
        return Compiled(lambda: function, options)
