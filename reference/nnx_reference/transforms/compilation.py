"""jit: compiling a function of arrays, Variables and Modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax

from nnx_reference.configuration import resolve_graph, resolve_graph_updates
from nnx_reference.transforms.axes import spread
from nnx_reference.transforms.core import MISSING, Inputs, Structure, decorator, reachable
from nnx_reference.transforms.statics import Places, Static, find_places, mark, unmarked


@decorator
def jit(
    fun: Callable[..., Any] = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: jax.Device | None = None,
    backend: str | None = None,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Compiles a function: `jax.jit` for functions of objects.

    What the function does to objects among its arguments reaches the caller's objects. It is traced
    once for each structure, static values, shapes and dtypes.

    Args:
      fun: the function; without it, the result is a decorator.
      in_shardings: None; others are not supported.
      out_shardings: None; others are not supported.
      static_argnums: the positions of arguments that are not traced; they must be hashable.
      static_argnames: their names.
      donate_argnums: the positions of arguments whose arrays may be overwritten. A Variable that is
        reached from other arguments as well is not donated, nor is an array in an attribute.
      donate_argnames: their names.
      keep_unused: as for `jax.jit`.
      device: as for `jax.jit`.
      backend: as for `jax.jit`.
      inline: as for `jax.jit`.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: whether changes of structure reach the caller's objects, too; None for the
        default.

    Returns:
      The compiled function. It raises ValueError if a static argument is not hashable and, in tree
      mode, if something is shared. If it raises, the caller's objects are unchanged.

    Raises:
      NotImplementedError: shardings are given.
      ValueError: the function has no parameter of a name that is given.
    """
    _refuse_shardings(in_shardings, out_shardings)
    static = find_places(fun, "static", static_argnums, static_argnames)
    donated = find_places(fun, "donate", donate_argnums, donate_argnames)
    options = {"keep_unused": keep_unused, "inline": inline, "device": device, "backend": backend}
    compiled = _Compiled(fun, donated, **options)

    @functools.wraps(fun)
    def jitted(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mark(static, args, kwargs)
        mode = resolve_graph(graph), resolve_graph_updates(graph_updates)
        return compiled.call(Inputs(fun, args, kwargs, *mode), donated.choose(args, kwargs))

    return jitted


def _refuse_shardings(*shardings: Any) -> None:
    if any(sharding is not None for sharding in shardings):
        raise NotImplementedError(
            "nnx.jit takes no in_shardings and out_shardings: place arrays with jax.device_put"
            " before the call, and constrain them with jax.lax.with_sharding_constraint inside"
        )


class _Compiled:
    """A compiled function of an arguments' structure and values."""

    def __init__(self, fun: Callable[..., Any], donated: Places, **options: Any) -> None:
        self.function = unmarked(fun)
        self.donates = bool(donated.numbers or donated.names)
        given = {name: value for name, value in options.items() if value is not None}
        self.compiled = jax.jit(self.run, donate_argnums=(1,) if self.donates else (), **given)

    def call(self, inputs: Inputs, donated: Any) -> Any:
        """Calls the compiled function; `donated` has a flag in the place of each argument."""
        numbers = _donated_values(inputs, donated) if self.donates else set()
        given: dict[str, Any] = {}
        kept: dict[str, Any] = {}
        named = zip(inputs.structure.names, inputs.values, strict=True)
        for number, (name, value) in enumerate(named):
            (given if number in numbers else kept)[name] = value
        outcome, carried, arrays = self.compiled(inputs.structure, given, kept)
        return inputs.finish(outcome.value, carried, arrays)

    def run(
        self, structure: Structure, given: dict[str, Any], kept: dict[str, Any]
    ) -> tuple[Static, list[Any], list[Any]]:
        """Runs the function on traced values; the outcome leaves as structure of the output."""
        values = given | kept
        run = structure.run(self.function, [values[name] for name in structure.names])
        leaves = structure.names[len(structure.names) - structure.graphdef.num_leaves :]
        run = run.carrying({n for n, name in enumerate(leaves) if name in given})
        return Static(run.outcome), run.carried_values(), run.output.arrays(run.output.leaves)


def _donated_values(inputs: Inputs, donated: Any) -> set[int]:
    """Lists the numbers of the values that are donated."""
    opened, table = inputs.opened, inputs.flat.graphdef
    prefix = jax.tree.map(int, donated)
    flags = spread(prefix, opened.treedef, opened.is_object, "donated arguments")
    arrays, objects = opened.arrays(flags), opened.objects(flags)
    kept = {number for number, path in reachable(table) if not objects[cast(int, path[0])]}
    variables = {
        number
        for number, record in enumerate(table.leaves)
        if record is not None and not record.metadata.by_reference and number not in kept
    }
    return {n for n, flag in enumerate(arrays) if flag} | {len(arrays) + n for n in variables}
