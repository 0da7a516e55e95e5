"""vjp and jvp: products of vectors with the Jacobian of a function of arrays and objects.

Tangents and cotangents are like what they belong to: those of a Module are Modules of its class.
The gradients that `vjp` gives are those of `grad`: with graph updates a node stands for its
`Param`s alone, and its gradient is a State of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import Partial

from nnx_reference.transforms.core import MISSING, Inputs, Outcome
from nnx_reference.transforms.differentiation import Argument, pair
from nnx_reference.transforms.forms import Form, Parts, take_apart
from nnx_reference.undoing import all_or_nothing
from nnx_reference.variables import Param


def vjp(
    f: Callable[..., Any] = MISSING,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function and makes that of its gradients: `jax.vjp` for functions of objects.

    What the function does to objects among its arguments reaches the caller's objects, once, by the
    time that `vjp` returns.

    Args:
      f: the function; without it, the result is a decorator.
      *primals: the arguments; without any, the result is a function of them.
      has_aux: whether the function returns a pair, what is differentiated and whatever else.
      reduce_axes: as for `jax.vjp`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      What the function returns, and a function that takes the cotangent of that and returns a tuple
      with the gradient of each argument; with `has_aux` also the rest. That function is a pytree,
      which can be returned from `jit`. Cotangents and gradients are
      like the output and the arguments: an object of the same class stands for an object, and what
      is shared is shared. As in JAX, those of integers have the dtype `float0`. In graph mode with
      graph updates the gradient of a node, such as a Module, is a State of its `Param`s.

    Raises:
      TypeError: with `has_aux`, the function returns no pair.
      ValueError: a hijax or ref Variable is differentiated; in tree mode, something is shared. If
        `vjp` raises, the caller's objects are unchanged.
    """
    options: dict[str, Any] = {
        "has_aux": has_aux,
        "reduce_axes": reduce_axes,
        "graph": graph,
        "graph_updates": graph_updates,
    }
    if f is MISSING:
        return functools.partial(vjp, **options)
    if primals:
        return _vjp(f, *primals, **options)
    return functools.wraps(f)(functools.partial(_vjp, f, **options))


def _vjp(
    f: Callable[..., Any],
    *primals: Any,
    has_aux: bool,
    reduce_axes: Sequence[Hashable],
    graph: bool | None,
    graph_updates: bool | None,
) -> tuple[Any, ...]:
    product = _Product(f, primals, has_aux, graph, graph_updates)
    build: Callable[..., tuple[Any, ...]] = product.primal.form.build
    if product.inputs.structure.updates:
        build = product.choose_parameters(primals)
    with all_or_nothing(product.inputs.values):
        _, pull_back, aux = jax.vjp(
            product.run, product.primal.bare, product.chosen, has_aux=True, reduce_axes=reduce_axes
        )
    returned = product.finish(aux)
    gradients = Partial(functools.partial(_gradients, build, product.output.form), pull_back)
    return (returned[0], gradients, returned[1]) if has_aux else (returned, gradients)


def _gradients(
    build: Callable[..., tuple[Any, ...]],
    output: Form,
    pull_back: Callable[..., Any],
    cotangent: Any,
    /,
) -> tuple[Any, ...]:
    """Returns the gradients of the arguments, for the cotangent of the output.

    Raises:
      ValueError: the cotangent is not like the output.
    """
    parts = take_apart(cotangent)
    _check_kinds(output, parts.form, ValueError)
    return build(*pull_back((parts.bare, parts.leaves)))


def _states(
    arguments: Sequence[Argument],
    numbers: Mapping[str, int],
    bare: Any,
    leaves: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Builds the gradients of arguments, of which nodes have States."""
    found = dict(enumerate(jax.tree.leaves(bare)))
    found.update({numbers[name]: value for name, value in leaves.items()})
    return tuple([argument.gradient(found) for argument in arguments])


def jvp(
    f: Callable[..., Any] = MISSING,
    primals: Sequence[Any] = MISSING,
    tangents: Sequence[Any] = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Calls a function and finds the tangent of its output: `jax.jvp` for functions of objects.

    What the function does to objects among its arguments reaches the caller's objects, once.

    Args:
      f: the function; without it, the result is a decorator.
      primals: the arguments, in a tuple; without them, the result is a function of primals and
        tangents.
      tangents: a tuple of as many. They are like the arguments: an object of the same class stands
        for an object, and what is shared is shared. As in JAX, those of integers have the dtype
        `float0`.
      has_aux: whether the function returns a pair, what is differentiated and whatever else.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      What the function returns and the tangent of that, which is like it; with `has_aux` also the
      rest.

    Raises:
      TypeError: primals and tangents are not alike; with `has_aux`, the function returns no pair.
      ValueError: a hijax or ref Variable is among the arguments; in tree mode, something is shared.
        If `jvp` raises, the caller's objects are unchanged.
    """
    options: dict[str, Any] = {"has_aux": has_aux, "graph": graph, "graph_updates": graph_updates}
    if f is MISSING:
        return functools.partial(jvp, **options)
    if primals is MISSING:
        return functools.wraps(f)(functools.partial(jvp, f, **options))
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise TypeError(f"jvp takes {what} in a tuple or list, not a {type(given).__name__}")
    product = _Product(f, tuple(primals), **options)
    primal, tangent = product.primal, take_apart(tuple(tangents))
    _check_kinds(primal.form, tangent.form, TypeError)
    with all_or_nothing(product.inputs.values):
        _, tangent_out, aux = jax.jvp(
            product.run, (primal.bare, product.chosen), (tangent.bare, tangent.leaves), has_aux=True
        )
    returned = product.finish(aux)
    tangent_out = product.output.form.build(*tangent_out)
    return (returned[0], tangent_out, returned[1]) if has_aux else (returned, tangent_out)


def _check_kinds(form: Form, other: Form, error: type[Exception]) -> None:
    """Checks that there are objects of the same classes in both; JAX checks the rest.

    Raises:
      Exception: there are not; the class is `error`.
    """
    kinds, others = _kinds(form), _kinds(other)
    if kinds != others:
        raise error(
            "what belongs to an object as its tangent or cotangent is an object of the same class"
            f" and structure, as nnx.clone gives one; but to {_names(kinds)} belongs"
            f" {_names(others)}"
        )


def _kinds(form: Form) -> list[type]:
    records = (*form.graphdef.nodes, *form.graphdef.leaves)
    return [record.kind for record in records if record is not None]


def _names(kinds: list[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds if kind is not list) or "what has no objects"


class _Product:
    """One call of a function that is differentiated with respect to its arguments.

    Attributes:
      primal: the arguments, taken apart.
      chosen: those of their leaves that are differentiated; all, if nothing else is said.
      others: the others.
      output: what is differentiated of the function's output, taken apart.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        primals: tuple[Any, ...],
        has_aux: bool,
        graph: bool | None,
        graph_updates: bool | None,
    ) -> None:
        self.f = f
        self.has_aux = has_aux
        self.inputs = Inputs(f, primals, {}, graph, graph_updates)
        self.primal = take_apart(primals)
        self.chosen = self.primal.leaves
        self.others: dict[str, Any] = {}
        self.output: Parts
        self.outcome: Outcome

    def choose_parameters(self, primals: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
        """Chooses the `Param`s of nodes; returns what builds the gradients then."""
        arguments = [
            Argument(self.inputs, primals, n, Param, as_states=True) for n in range(len(primals))
        ]
        first = len(self.inputs.values) - len(self.primal.leaves)
        numbers = {name: n for n, name in enumerate(self.primal.form.names, first)}
        chosen = {number for argument in arguments for number in argument.chosen}
        leaves = self.primal.leaves
        self.chosen = {name: leaves[name] for name in leaves if numbers[name] in chosen}
        self.others = {name: leaves[name] for name in leaves if numbers[name] not in chosen}
        return functools.partial(_states, arguments, numbers)

    def run(self, bare: Any, chosen: dict[str, Any]) -> tuple[Any, tuple[list[Any], list[Any]]]:
        """Runs the function on traced values; what it leaves is besides what is differentiated."""
        leaves = chosen | self.others
        values = [*jax.tree.leaves(bare), *(leaves[name] for name in self.primal.form.names)]
        run = self.inputs.structure.run(self.note_output, values)
        self.outcome = run.outcome
        rest = run.carried_values(), run.output.arrays(run.output.leaves)
        return (self.output.bare, self.output.leaves), rest

    def note_output(self, *args: Any) -> Any:
        """Calls the function and takes apart what is differentiated of its output."""
        returned = self.f(*args)
        self.output = take_apart(pair(returned)[0] if self.has_aux else returned)
        return returned

    def finish(self, aux: tuple[list[Any], list[Any]]) -> Any:
        """Writes what the function has changed, and returns what it has returned."""
        return self.inputs.finish(self.outcome, *aux)
