"""jit: compiling a function of arrays, Variables and Modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax

from nnx_reference.transforms.core import MISSING, decorator
from nnx_reference.transforms.dispatching import Options, compiled_for
from nnx_reference.transforms.stages import add_stages
from nnx_reference.transforms.statics import check_apart, find_places


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
    once for each structure, static values, shapes and dtypes, also if it is wrapped anew. What it
    captures is constant from then on, as for `jax.jit`, but for Variables held by reference.

    The result has the methods `trace`, `lower` and `eval_shape`, which take arguments of a call.

    Args:
      fun: the function; without it, the result is a decorator.
      in_shardings: for each positional argument, a tree prefix of shardings, None where JAX
        decides. One that stands at an object holds for all that is in it, in and out; with graph
        updates it may be a StateSharding, which says one for each of the object's Variables.
      out_shardings: likewise for the output.
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
      The compiled function. It raises ValueError if a static argument is not hashable; if a
      Variable is to have two shardings, or a StateSharding has none for one; in tree mode, if
      something is shared or there is a StateSharding. If it raises, the caller's objects are
      unchanged.

    Raises:
      ValueError: the function has no parameter of a name that is given, or an argument is to be
        both static and donated.
    """
    options = Options(
        static=find_places(fun, "static", static_argnums, static_argnames),
        donated=find_places(fun, "donate", donate_argnums, donate_argnames),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        passed_on=(
            ("keep_unused", keep_unused),
            ("device", device),
            ("backend", backend),
            ("inline", inline),
        ),
    )
    check_apart(options.static, options.donated)
    compiled = compiled_for(fun, options)
    jitted = compiled.wrap(fun, graph, graph_updates)
    add_stages(jitted, compiled, fun, graph, graph_updates)
    return jitted


def jit_partial(fun: Callable[..., Any], *partial_args: Any, **options: Any) -> Callable[..., Any]:
    """Compiles a function whose first arguments are fixed now.

    Args:
      fun: the function.
      *partial_args: its first arguments; what it does to objects among them reaches these.
      **options: those of `jit`; positions count from the function's first argument.

    Returns:
      The function of the remaining arguments.
    """
    return functools.partial(jit(fun, **options), *partial_args)
