"""custom_vjp: a function of arrays and objects with a derivative of its own.

JAX is given a function of the values in the arguments, with the two rules as functions of such
values, too:

    primal    calls the function itself, as any transform does
    forward   calls the forward rule, and takes apart what that keeps for the backward rule
    backward  builds that again, and the cotangent of the output; calls the backward rule and takes
              apart the cotangents of the arguments

What the function changes are outputs, besides the one that it returns, and have cotangents as well.
With graph updates the backward rule gets them. Without, it gets the cotangent of the returned
output alone, as in JAX; lest the others be lost, no differentiable Variable may change then, unless
the rule has a parameter `updates_g` for them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_reference.configuration import resolve_modes
from nnx_reference.pytree import Path
from nnx_reference.state import to_flat_state
from nnx_reference.tables import VariableDef, flatten, unflatten
from nnx_reference.transforms.core import (
    MISSING,
    Inputs,
    Outcome,
    Run,
    Structure,
    close_tree,
    decorator,
    is_object,
    raw_value,
)
from nnx_reference.transforms.differentiation import Argnum, Argument, DiffState, check_argnum
from nnx_reference.transforms.forms import Form, Parts, take_apart, variable_like


@decorator
def custom_vjp(
    fun: Callable[..., Any] = MISSING,
    *,
    nondiff_argnums: Sequence[Argnum] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> CustomVjp:
    """Makes a function whose derivative is given by rules: `jax.custom_vjp` for objects.

    What the function does to objects among its arguments reaches the caller's objects.

    Args:
      fun: the function; without it, the result is a decorator.
      nondiff_argnums: the positions of arguments that are not differentiated with respect to; they
        may be of any type. In graph mode with graph updates also DiffStates: of the argument's
        Modules and other nodes, only the Variables that its filter selects are differentiated.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The function, whose `defvjp` takes the rules. It raises AttributeError as long as there are
      none; ValueError if it changes a differentiable Variable, without graph updates, and, in tree
      mode, if something is shared. If it raises, the caller's objects are unchanged.

    Raises:
      ValueError: there is a DiffState without graph updates.
    """
    return CustomVjp(fun, tuple(nondiff_argnums), graph, graph_updates)


class CustomVjp:
    """A function with rules for its derivative."""

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: tuple[Argnum, ...],
        graph: bool | None,
        graph_updates: bool | None,
    ) -> None:
        """Makes the function, without rules; see `custom_vjp`."""
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.nondiff = tuple([n for n in nondiff_argnums if not isinstance(n, DiffState)])
        self.selecting = tuple([n for n in nondiff_argnums if isinstance(n, DiffState)])
        self.graph = graph
        self.graph_updates = graph_updates
        self.forward: Callable[..., Any] = MISSING
        self.backward: Callable[..., Any] = MISSING
        self._mode()

    def _mode(self) -> tuple[bool, bool]:
        mode = resolve_modes(self.graph, self.graph_updates)
        for argnum in self.selecting:
            check_argnum(argnum, mode[1])
        return mode

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Sets the rules.

        Args:
          fwd: takes the function's arguments; returns a pair of the function's output and of
            whatever `bwd` needs, objects included.
          bwd: called as `bwd(*nondiff_args, res, g)` with what `fwd` kept and the cotangent of the
            output, in which an object of the same class stands for an object. It returns a tuple
            with the cotangent of each differentiated argument, or None for zero: an object of the
            same class for an object. Of values that are not differentiable, such as integers, they
            do not count.

            With graph updates `g` is a pair: the cotangents of what has become of the arguments, in
            a tuple, and that of the output. In the former a State stands for a Module or another
            node, and None for an array. The result, too, has a State for a node, with exactly the
            Variables that are differentiated with respect to.

            Without graph updates, a parameter `updates_g` gets the former, with an object for an
            object: in it are the Variables that have changed, and None for all else.
        """
        self.forward, self.backward = fwd, bwd

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; see `custom_vjp` for the errors."""
        if self.forward is MISSING:
            name = getattr(self.fun, "__name__", repr(self.fun))
            raise AttributeError(f"{name} has no rules for its derivative: set them with defvjp")
        mode = self._mode()
        args = _positional(self.fun, args, kwargs)
        fixed = [_wrapped(n, len(args)) for n in self.nondiff]
        args = tuple([_hold(arg) if n in fixed else arg for n, arg in enumerate(args)])
        inputs = Inputs(self.fun, args, {}, *mode)
        rules = _Rules(self, inputs, args)
        function = jax.custom_vjp(rules.primal)
        function.defvjp(rules.forward, rules.backward)
        chosen: Values = {}
        others: Values = {}
        named = zip(inputs.structure.names, inputs.values, strict=True)
        for number, (name, value) in enumerate(named):
            (chosen if number in rules.chosen else others)[name] = value
        carried, arrays = function(chosen, others)
        return inputs.finish(rules.outcome, [carried[name] for name in rules.names], arrays)


def _positional(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Puts keyword arguments and defaults at their positions; those by keyword alone keep theirs.

    Raises:
      TypeError: the function does not take them so.
    """
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        if kwargs:
            raise TypeError(
                f"custom_vjp cannot tell the positions of the arguments {list(kwargs)}"
            ) from None
        return args
    bound = signature.bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(f"custom_vjp differentiates positional arguments, not {list(bound.kwargs)}")
    bound.apply_defaults()
    return bound.args


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False)
class _Held:
    """Something in an argument that JAX is not to see."""

    value: Any


def _hold(arg: Any) -> Any:
    """Hides whatever is neither an object nor an array."""
    return jax.tree.map(
        lambda leaf: leaf if is_object(leaf) or isinstance(leaf, jax.Array) else _Held(leaf),
        arg,
        is_leaf=is_object,
    )


def _release(arg: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.value if isinstance(leaf, _Held) else leaf,
        arg,
        is_leaf=lambda leaf: isinstance(leaf, _Held) or is_object(leaf),
    )


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False)
class _Kept:
    """What a forward run hands to the backward one, besides values: as structure, it is its own.

    Attributes:
      forms: the form of the arguments that are not differentiated, as they came in, and of what
        the rule kept.
      outcome: what the run did.
      names: the names of the values that it carried out.
    """

    forms: list[Form]
    outcome: Outcome
    names: list[str]


Values = dict[str, Any]
Outputs = tuple[Values, list[Any]]
"""The values that a run carries out by name, and the output's leaves that are no objects."""


class _Rules:
    """A function and its rules in one call, as functions of values: `primal` is what JAX is given.

    Attributes:
      structure: the structure of the arguments.
      differentiated: the arguments that are differentiated, as far as they are.
      whole: the same, all of them.
      fixed: the positions of those that are not.
      chosen: the numbers of the values with respect to which the function is differentiated.
      avals: the abstract value of each value, or a pytree of them.
      outcome: what the last run of `primal` or `forward` did.
      names: the names of the values that it carried out.
    """

    outcome: Outcome
    names: list[str]

    def __init__(self, rule: CustomVjp, inputs: Inputs, args: tuple[Any, ...]) -> None:
        count = len(args)
        fixed = [_wrapped(n, count) for n in rule.nondiff]
        selecting: dict[int, Argnum] = {_wrapped(n.argnum, count): n for n in rule.selecting}
        positions = [n for n in range(count) if n not in fixed]
        states = {"as_states": inputs.structure.updates}
        self.rule = rule
        self.structure: Structure = inputs.structure
        self.differentiated = [
            Argument(inputs, args, selecting.get(n, n), **states) for n in positions
        ]
        self.whole = [Argument(inputs, args, n, **states) for n in positions]
        self.fixed = fixed
        self.avals = [_avals(value) for value in inputs.values]
        self.chosen = {
            n for argument in self.differentiated for n in argument.chosen if self._is_smooth(n)
        }
        self.takes_updates = not inputs.structure.updates and takes(rule.backward, "updates_g")

    def _is_smooth(self, number: int) -> bool:
        """Tells whether a value can be differentiated with respect to."""
        record = self.record(number)
        if record is not None and record.metadata.by_reference:
            return False
        return any(map(_is_smooth, jax.tree.leaves(self.avals[number])))

    def record(self, number: int) -> VariableDef | None:
        """Returns the record of the Variable that has a value; None for an array."""
        leaves = self.structure.graphdef.leaves
        place = number - self.first
        return leaves[place] if place >= 0 else None

    @property
    def first(self) -> int:
        """The number of the first value that is a leaf of the graph of objects."""
        return len(self.structure.names) - self.structure.graphdef.num_leaves

    # --- forward ---

    def primal(self, chosen: Values, others: Values) -> Outputs:
        """Runs the function."""
        return self.run(lambda *args: self.rule.fun(*map(_release, args)), chosen | others)

    def forward(self, chosen: Values, others: Values) -> tuple[Outputs, Any]:
        """Runs the forward rule; returns also all that the backward one needs."""
        kept: list[Parts] = []

        def keep(*args: Any) -> Any:
            fixed = take_apart([args[n] for n in self.fixed])
            returned = self.rule.forward(*map(_release, args))
            if not isinstance(returned, (tuple, list)) or len(returned) != 2:
                raise TypeError(
                    "the forward rule returns a pair, the output and what the backward rule needs,"
                    f" not a {type(returned).__name__}"
                )
            kept.extend([fixed, take_apart(returned[1])])
            return returned[0]

        outputs = self.run(keep, chosen | others)
        structure = _Kept([parts.form for parts in kept], self.outcome, self.names)
        return outputs, (structure, [(parts.bare, parts.leaves) for parts in kept])

    def run(self, function: Callable[..., Any], values: Values) -> Outputs:
        """Runs a function on traced values."""
        run = self.structure.run(function, [values[name] for name in self.structure.names])
        if not self.structure.updates and not self.takes_updates:
            self.check_unchanged(run)
        self.outcome, self.names = run.outcome, run.carried_names()
        carried = dict(zip(self.names, run.carried_values(), strict=True))
        return carried, run.output.arrays(run.output.leaves)

    def check_unchanged(self, run: Run) -> None:
        """Checks that no differentiable Variable has changed.

        Raises:
          ValueError: one has.
        """
        for origin in run.carried(run.outcome.leaf_origins):
            if origin is not None and origin + self.first in self.chosen:
                record = self.record(origin + self.first)
                kind = "array" if record is None else record.kind.__name__
                raise ValueError(
                    f"the function of a custom_vjp has changed the differentiable {kind}"
                    f" {self.structure.names[origin + self.first]}, whose new value has a gradient"
                    " that the backward rule would not get: return the new value, put the argument"
                    " in nondiff_argnums, give the rule a parameter updates_g, or use"
                    " nnx.compat.custom_vjp"
                )

    # --- backward ---

    def backward(self, residuals: Any, cotangents: Outputs) -> tuple[Values, None]:
        """Runs the backward rule; returns the cotangents of the chosen values, by name."""
        kept, parts = residuals
        fixed, residual = [form.build(*part) for form, part in zip(kept.forms, parts, strict=True)]
        carried, arrays = cotangents
        origins = zip(kept.names, _carried_origins(kept.outcome), strict=True)
        updates = {self.first + n: carried[name] for name, n in origins if n is not None}
        output = self.output_cotangent(kept, carried, arrays)
        options: dict[str, Any] = {}
        if self.structure.updates:
            output = self.all_updates(updates), output
        elif self.takes_updates:
            options["updates_g"] = tuple([argument.gradient(updates) for argument in self.whole])
        result = self.rule.backward(*map(_release, fixed), residual, output, **options)
        return self.collect(result), None

    def output_cotangent(self, kept: _Kept, carried: Values, arrays: list[Any]) -> Any:
        """Builds the cotangent of the output."""
        outcome, names = kept.outcome, iter(kept.names)
        if not any(outcome.is_object):
            return close_tree(outcome.treedef, outcome.is_object, [], arrays)
        leaves: list[Any] = []
        records = zip(
            outcome.graphdef.leaves, outcome.leaf_origins, outcome.is_carried, strict=True
        )
        for record, origin, is_carried in records:
            value = carried[next(names)] if is_carried else self.zero(self.first + (origin or 0))
            leaves.append(value if record is None else variable_like(record, value))
        roots = unflatten(outcome.graphdef, leaves)[outcome.first_output :]
        return close_tree(outcome.treedef, outcome.is_object, roots, arrays)

    def all_updates(self, updates: Mapping[int, Any]) -> tuple[Any, ...]:
        """Builds the cotangents of what has become of the arguments: zero of what is unchanged."""
        return tuple(
            [
                argument.gradient(
                    {
                        n: updates[n] if n in updates else self.zero(n)
                        for leaves in argument.leaves
                        for n, _ in leaves
                    }
                )
                for argument in self.whole
            ]
        )

    def zero(self, number: int) -> Any:
        """Makes the cotangent zero of a value."""
        return jax.tree.map(_zero, self.avals[number])

    def collect(self, result: Any) -> Values:
        """Takes apart what the backward rule has returned.

        Raises:
          TypeError: it is not like the differentiated arguments.
        """
        count = len(self.differentiated)
        if not isinstance(result, (tuple, list)) or len(result) != count:
            raise TypeError(
                f"the backward rule returns a tuple with {count} cotangents, one for each"
                f" differentiated argument, not {result!r}"
            )
        found: dict[int, list[Any]] = {number: [] for number in self.chosen}
        for argument, cotangent in zip(self.differentiated, result, strict=True):
            for number, value in _values_of(argument, cotangent):
                if number in found and value is not None:
                    found[number].append(value)
        return {
            self.structure.names[number]: self.total(number, values)
            for number, values in found.items()
        }

    def total(self, number: int, values: list[Any]) -> Any:
        """Adds up what several arguments say of one value that they share."""
        if not values:
            return self.zero(number)
        total = functools.reduce(functools.partial(jax.tree.map, jnp.add), values)
        return jax.tree.map(
            lambda aval, x: x if _is_smooth(aval) else _zero(aval), self.avals[number], total
        )


def _wrapped(position: int, count: int) -> int:
    """Returns a position among `count` arguments as a number from 0.

    Raises:
      ValueError: there is no such argument.
    """
    if not -count <= position < count:
        raise ValueError(
            f"nondiff_argnums has {position}, but there are {count} positional arguments"
        )
    return position % count


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tells whether a function has a parameter of a name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _avals(value: Any) -> Any:
    return jax.tree.map(jax.typeof, value)


def _is_smooth(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _zero(aval: Any) -> Any:
    shape = getattr(aval, "shape", ())
    return jnp.zeros(shape, aval.dtype) if _is_smooth(aval) else np.zeros(shape, jax.dtypes.float0)


def _carried_origins(outcome: Outcome) -> list[int | None]:
    flags = zip(outcome.leaf_origins, outcome.is_carried, strict=True)
    return [origin for origin, is_carried in flags if is_carried]


def _values_of(argument: Argument, cotangent: Any) -> list[tuple[int, Any]]:
    """Lists the values in the cotangent of an argument, with the numbers of those they are for.

    Raises:
      TypeError: it is not like the argument.
    """
    if cotangent is None:
        return []
    try:
        parts = argument.treedef.flatten_up_to(cotangent)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the backward rule returns another structure: {error}") from None
    arrays, objects = iter(argument.arrays), iter(argument.leaves)
    found: list[tuple[int, Any]] = []
    for part, flag in zip(parts, argument.is_object, strict=True):
        if not flag:
            found.append((next(arrays), part))
        elif part is not None:
            found += _values_at(part, next(objects))
        else:
            next(objects)
    return found


def _values_at(part: Any, leaves: list[tuple[int, Path]]) -> list[tuple[int, Any]]:
    """Lists the values in the cotangent of an object likewise."""
    if isinstance(part, Mapping) and not is_object(part):
        values = dict(to_flat_state(part))
    elif is_object(part):
        flat = flatten(part)
        values = dict(zip(flat.graphdef.paths, flat.leaves, strict=True))
    else:
        raise TypeError(
            "the backward rule returns an object or a State as the cotangent of an object, not a"
            f" {type(part).__name__}"
        )
    places = {path: number for number, path in leaves}
    if values.keys() != places.keys():
        missing, surplus = places.keys() - values.keys(), values.keys() - places.keys()
        raise TypeError(
            f"the backward rule returns a {type(part).__name__} that lacks {sorted(missing)} and"
            f" has {sorted(surplus)}, which is not differentiated"
        )
    return [(number, raw_value(values[path])) for path, number in places.items()]
