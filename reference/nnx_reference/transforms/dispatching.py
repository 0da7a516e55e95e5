"""Dispatching: from a call of a jitted function to the compiled one, without a walk if possible.

A function is compiled for the structure of the objects among its arguments (`plans.py`).

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
from nnx_reference.jax_private import ConcreteArray, current_trace, is_eager
from nnx_reference.metadata import Changes
from nnx_reference.pytree import Pytree
from nnx_reference.remembering import recall, remember
from nnx_reference.transforms.core import Inputs, is_object, reachable
from nnx_reference.transforms.placing import Placement
from nnx_reference.transforms.plans import (
    HOLE,
    Call,
    Group,
    Passed,
    Plan,
    Result,
    fill,
    places_of,
)
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


_serials = itertools.count()


def _new_keys() -> dict[Mode, int]:
    """Makes what objects remember calls under: another key for each mode."""
    return {
        (graph, updates): next(_serials) for graph in (False, True) for updates in (False, True)
    }


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
        self.keys = _new_keys()
        self.nested_keys = _new_keys()
        self.knows_nested = False  # whether there may be objects that remember one of these
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
            call: Call | None = None
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
                if group is None or group.place != place or group.call is not (call or group.call):
                    break
                call = group.call
                groups.append(group)
                passed[place] = None
                group.pass_on(values, donated)
            else:
                may_repeat = is_eager() and (not kwargs or self.is_plain(kwargs))
                if call is not None and may_repeat and call.plan.count == len(groups):
                    run = compiled[call.plan]
                    result, carried, output = run(donated, values, *passed, **kwargs)
                    if result.writes is None:
                        inputs = Inputs(function, args, kwargs, *mode)
                        return finish(inputs, result, carried, output)
                    _write(groups, result, carried)
                    return output
            return self.call_nested(function, args, kwargs, mode)

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

    def call_nested(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mode: Mode,
    ) -> Any:
        """Calls the function on objects wherever they are: in containers, or as keyword arguments.

        They may be known, or not.
        """
        if not self.knows_nested or not is_eager():
            return self.call_anew(Inputs(function, args, kwargs, *mode), args)
        leaves, treedef = jax.tree.flatten((args, kwargs), is_object)
        groups = self.recall_nested(leaves, self.nested_keys[mode])
        if not groups:
            return self.call_anew(Inputs(function, args, kwargs, *mode), args)
        holed = [HOLE if is_object(leaf) else leaf for leaf in leaves]
        passed_args, passed_kwargs = jax.tree.unflatten(treedef, holed)
        values: list[list[Any]] = []
        donated: list[Any] = []
        for group in groups:
            group.pass_on(values, donated)
        compiled = self.compiled[groups[0].call.plan]
        result, carried, output = compiled(donated, values, *passed_args, **passed_kwargs)
        if result.writes is None:
            return finish(Inputs(function, args, kwargs, *mode), result, carried, output)
        _write(groups, result, carried)
        return output

    def recall_nested(self, leaves: list[Any], key: int) -> list[Group] | None:
        """Returns what all objects remember of an earlier call; None if something is unknown."""
        groups: list[Group] = []
        for leaf in filter(is_object, leaves):
            group = recall(leaf, key) if isinstance(leaf, Pytree) else None
            if group is None or group.place != len(groups):
                return None
            groups.append(group)
            if group.call is not groups[0].call:
                return None
        return groups if groups and groups[0].call.plan.count == len(groups) else None

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
        mode = plan.structure.graph, plan.structure.updates
        if plan.places is not None:
            keep(plan, inputs, self.keys[mode])
        elif not self.is_sharded:
            self.knows_nested = keep(plan, inputs, self.nested_keys[mode]) or self.knows_nested
        return output

    def plan(self, inputs: Inputs, args: tuple[Any, ...]) -> Plan:
        """Finds the plan for arguments, or makes it."""
        structure = inputs.structure
        donated = frozenset(_donated_leaves(inputs, self.options.donated))
        places = places_of(args, len(structure.object_names))
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

        def run(*passed: Any, **kwargs: Any) -> tuple[Result, list[Any], Any]:
            donated, groups, *args = passed
            values = plan.by_number([*donated, *chain(*groups)])
            before = plan.structure.rebuild(values)
            filled, kwargs = fill(plan, tuple(args), kwargs, before.nodes[0])
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


def finish(inputs: Inputs, result: Result, carried: list[Any], output: Any) -> Any:
    """Writes back whatever a trace did; see `Inputs.finish`."""
    outcome = result.outcome
    arrays = output if any(outcome.is_object) else jax.tree.leaves(output)
    return inputs.finish(outcome, carried, arrays)


def keep(plan: Plan, inputs: Inputs, key: int) -> bool:
    """Has the objects of a call remember it, and tells whether they can.

    Bare Variables remember nothing, nor does what belongs to a transform, or holds by reference.
    """
    flat = inputs.flat
    objects = inputs.opened.objects(inputs.opened.leaves)
    if not is_eager() or not all(isinstance(node, Pytree) for node in objects):
        return False
    trace, call = current_trace(), Call(plan)
    variables = [leaf for leaf in flat.leaves if isinstance(leaf, Variable)]
    if any(v._metadata.by_reference or v._trace is not trace for v in variables):
        return False
    records = zip(flat.graphdef.node_paths, flat.nodes, flat.graphdef.nodes, strict=True)
    members = [(path[0], node, record) for path, node, record in records if path]
    places = range(plan.count) if plan.places is None else plan.places
    for index, (root, place) in enumerate(zip(objects, places, strict=True)):
        mine = [(node, record) for number, node, record in members if number == index]
        remember(
            root,
            key,
            [node for node, _ in mine],
            [flat.leaves[n] for n in plan.groups[index]],
            [value for _, record in mine for _, _, value in record.static],
            Group(call, index, place, flat.leaves),
        )
    return True


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
