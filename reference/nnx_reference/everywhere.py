"""Doing one thing to all Variables of an object: to their metadata, their flags, or their boxes."""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

import jax

from nnx_reference.filters import Filter, to_predicate
from nnx_reference.functional import read
from nnx_reference.tables import Flat, flatten, unflatten
from nnx_reference.variables import Variable, variable_of

A = TypeVar("A")


def set_metadata(
    node: Any, /, *, only: Filter = Variable, graph: bool | None = None, **metadata: Any
) -> None:
    """Sets metadata of all Variables of an object, in place.

    Args:
      node: an object, or a container of objects.
      only: selects the Variables.
      graph: True for graph mode, False for tree mode, None for the default.
      **metadata: the entries to set.

    Raises:
      TraceContextError: a selected Variable belongs to another trace level; nothing has changed.
      ImmutableVariableError: a selected Variable is not mutable; nothing has changed.
      ValueError: in tree mode, something is shared.
    """
    flat = read(node, graph, "set_metadata")
    chosen = [flat.leaves[number] for number in _selected(flat, only)]
    for variable in chosen:
        variable._check_own()
    for variable in chosen if metadata else ():
        variable.set_metadata(**metadata)


def _selected(flat: Flat, only: Filter) -> list[int]:
    """Returns the numbers of the Variables that a filter selects."""
    selects = to_predicate(only)
    return [
        number
        for number, (path, leaf) in enumerate(zip(flat.graphdef.paths, flat.leaves, strict=True))
        if isinstance(leaf, Variable) and selects(path, leaf)
    ]


def with_vars(
    node: A,
    /,
    *,
    hijax: bool | None = None,
    ref: bool | None = None,
    mutable: bool | None = None,
    only: Filter = ...,
    allow_duplicates: bool = False,
) -> A:
    """Returns a view of an object in which Variables have other flags, and the same values.

    Args:
      node: an object, a Variable, or a pytree of them; it stays as it is.
      hijax: whether JAX carries changes out of transforms; None leaves the flag as it is.
      ref: whether the value is held in a Ref to see; None leaves it.
      mutable: whether the Variables can be written; None leaves it. If not, they hold the value as
        it is now, plainly, and can be differentiated with respect to. A Ref is dropped, and there
        is a new one when they are made mutable again.
      only: selects the Variables; the view holds the others themselves.
      allow_duplicates: whether a Variable may stand at several paths; the view then has one new
        Variable at each of them.

    Raises:
      ValueError: a selected Variable, or an object that holds one, stands at several paths, which
        the error lists.
    """
    flat = flatten(node)
    chosen = _selected(flat, only)
    if not allow_duplicates:
        _check_no_duplicates(flat, set(chosen))
    given = {"hijax": hijax, "ref": ref, "mutable": mutable}
    flags = {name: flag for name, flag in given.items() if flag is not None}
    if ref is not None:
        flags["had_ref"] = False
    leaves = list(flat.leaves)
    for number in chosen:
        leaves[number] = _with_flags(leaves[number], flags)
    return unflatten(flat.graphdef, leaves)


def _with_flags(variable: Variable[Any], flags: dict[str, bool]) -> Variable[Any]:
    """Returns a Variable with other flags, which holds the value by a reference of its own."""
    return variable_of(type(variable), variable._load(), variable._metadata.updated(flags))


def vars_as(node: A, /, **kwargs: Any) -> A:
    """Returns `with_vars(node, **kwargs)`; deprecated."""
    warnings.warn("nnx.vars_as is deprecated: use nnx.with_vars", DeprecationWarning, stacklevel=2)
    return with_vars(node, **kwargs)


def _check_no_duplicates(flat: Flat, chosen: set[int]) -> None:
    """Checks that no chosen leaf, and no node, is met twice."""
    shared = [
        (flat.nodes if is_a_node else flat.leaves, number, paths)
        for number, is_a_node, paths in flat.graphdef.references()
        if is_a_node or number in chosen
    ]
    if shared:
        lines = [
            f"\n  {type(things[n]).__name__} at {', '.join(map(str, paths))}"
            for things, n, paths in shared
        ]
        raise ValueError(
            f"Found duplicate at paths:{''.join(lines)}\n"
            "with_vars makes a new object of each. Put separate objects there, or pass"
            " allow_duplicates=True: one for each path."
        )


def as_pure(tree: A) -> A:
    """Returns a pytree with each Variable replaced by its value."""
    return jax.tree.map(
        lambda leaf: leaf.get_value() if isinstance(leaf, Variable) else leaf,
        tree,
        is_leaf=lambda value: isinstance(value, Variable),
    )


def pure(tree: A) -> A:
    """Returns `as_pure(tree)`; deprecated."""
    warnings.warn("nnx.pure is deprecated: use nnx.as_pure", DeprecationWarning, stacklevel=2)
    return as_pure(tree)
