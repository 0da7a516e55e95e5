"""Faults of the chapter on Modules: attributes, containers, and what JAX sees of an object."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


def assigning(nnx: Any, patch: pytest.MonkeyPatch, replace: Callable[[Any, str, Any], Any]) -> None:
    """Makes assignments to public attributes of Modules store `replace(self, name, value)`."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        original(self, name, value if name.startswith("_") else replace(self, name, value))

    around(patch, nnx.Module, "__setattr__", setattribute)


def registered(
    nnx: Any,
    patch: pytest.MonkeyPatch,
    ordered: Callable[[Any], list[str]] = sorted,
    rebuilt: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Puts in the place of Module a class whose subclasses are registered with JAX anew.

    Args:
      nnx: the target.
      patch: plants it.
      ordered: puts the names of data attributes in the order of the leaves.
      rebuilt: what an unflattened object has for static attributes.
    """

    def flatten(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        public = {name: x for name, x in vars(node).items() if not name.startswith("_")}
        data = ordered(name for name, value in public.items() if nnx.is_data(value))
        static = tuple((name, public[name]) for name in sorted(public.keys() - {*data}))
        return [(jax.tree_util.GetAttrKey(n), public[n]) for n in data], (tuple(data), static)

    def unflatten(cls: Any, structure: Any, children: Any) -> Any:
        names, static = structure
        node = cls.__new__(cls)
        vars(node).update(zip(names, children, strict=True))
        vars(node).update(rebuilt(dict(static)))
        return node

    base: Any = nnx.Module

    class Module(base, pytree=False):  # type: ignore[call-arg]
        def __init_subclass__(cls, **options: Any) -> None:
            super().__init_subclass__(**{"pytree": False, **options})
            jax.tree_util.register_pytree_with_keys(cls, flatten, functools.partial(unflatten, cls))

    patch.setattr(nnx, "Module", Module)


@fault(breaks="MOD-001")
def numbers_keep_their_first_value(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Assigning a number to an attribute that is one leaves it as it is."""

    def replace(self: Any, name: str, value: Any) -> Any:
        old = vars(self).get(name)
        return old if type(old) is int and type(value) is int else value

    assigning(nnx, patch, replace)


@fault(breaks="MOD-001")
def submodules_are_copied(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Module that is assigned to an attribute is copied."""
    assigning(nnx, patch, lambda self, name, x: nnx.clone(x) if isinstance(x, nnx.Module) else x)


@fault(breaks="MOD-002")
def leaves_come_as_assigned(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Module's leaves come in the order in which its attributes were assigned."""
    registered(nnx, patch, ordered=list)


@fault(breaks="MOD-002 MOD-012")
def rebuilt_modules_lose_flags(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Flags are False in a Module that JAX has rebuilt."""
    registered(
        nnx, patch, rebuilt=lambda static: {k: x and x is not True for k, x in static.items()}
    )


@fault(breaks="MOD-002")
def scalars_become_numbers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A float32 array without dimensions becomes a Python number when it is assigned."""

    def replace(self: Any, name: str, value: Any) -> Any:
        is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
        return value.item() if is_array and value.aval.str_short() == "float32[]" else value

    assigning(nnx, patch, replace)


@fault(breaks="MOD-003")
def numpy_arrays_are_not_data(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`is_data` is False for NumPy arrays."""
    original = nnx.is_data
    patch.setattr(nnx, "is_data", lambda x: original(x) and not isinstance(x, np.ndarray))


@fault(breaks="MOD-003")
def traced_arrays_are_not_data(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`is_data` is False for traced arrays."""
    original = nnx.is_data
    patch.setattr(nnx, "is_data", lambda x: original(x) and not isinstance(x, jax.core.Tracer))


@fault(breaks="MOD-004")
def static_says_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`static(x)` is x."""
    original = nnx.static
    patch.setattr(nnx, "static", lambda *args, **field: args[0] if args else original(**field))


@fault(breaks="MOD-004")
def status_follows_the_value(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Each assignment without annotation decides anew whether an attribute is data."""
    annotated = type(nnx.data(0))

    def replace(self: Any, name: str, value: Any) -> Any:
        if isinstance(value, annotated):
            return value
        return nnx.data(value) if nnx.is_data(value) else nnx.static(value)

    assigning(nnx, patch, replace)


@fault(breaks="MOD-005")
def lists_may_hold_data(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A list with data in it is taken as a static value."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        try:
            original(self, name, value)
        except ValueError:
            if type(value) is not list:
                raise
            vars(self)[name] = value

    around(patch, nnx.Module, "__setattr__", setattribute)


@fault(breaks="MOD-023")
def refusals_name_no_attribute(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error for data in a static attribute does not say which attribute it is."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        try:
            original(self, name, value)
        except ValueError:
            raise ValueError("data in a static attribute: use nnx.data") from None

    around(patch, nnx.Module, "__setattr__", setattribute)


@fault(breaks="MOD-005 MOD-006")
def construction_ends_unchecked(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What was put into lists and dicts during `__init__` is not looked at."""

    class Unchecked(type(nnx.Module)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            node: Any = cls.__new__(cls, *args, **kwargs)
            node.__init__(*args, **kwargs)
            return node

    patch.setattr(nnx, "Module", Unchecked("Module", (nnx.Module,), {}))


@fault(breaks="MOD-006")
def check_looks_one_level_deep(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`check_pytree` sees what is in a list or dict, but not what is in another one inside."""
    original = nnx.check_pytree

    def check_pytree(node: Any) -> None:
        for value in vars(node).values():
            inside = value.values() if isinstance(value, dict) else value
            if isinstance(value, (list, dict)) and any(map(nnx.is_data, inside)):
                original(node)

    patch.setattr(nnx, "check_pytree", check_pytree)


@fault(breaks="MOD-007")
def negative_insertions_are_late(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`List.insert` at a negative index inserts one place further back."""
    around(
        patch,
        nnx.List,
        "insert",
        lambda original, self, index, x: original(self, index + (-len(self) <= index < -1), x),
    )


@fault(breaks="MOD-007")
def deletions_ignore_the_step(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`del items[a:b:2]` deletes what is between two of the elements, too."""

    def delete(original: Any, self: Any, index: Any) -> None:
        if isinstance(index, slice) and index.step == 2:
            index = slice(index.start, index.stop)
        original(self, index)

    around(patch, nnx.List, "__delitem__", delete)


@fault(breaks="MOD-007")
def defaults_overwrite(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Dict.setdefault` replaces what is there."""

    def setdefault(self: Any, key: Any, default: Any = None) -> Any:
        self[key] = default
        return default

    patch.setattr(nnx.Dict, "setdefault", setdefault)


@fault(breaks="MOD-024")
def slices_keep_their_length(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A slice that is replaced by fewer elements keeps those at its end."""

    def put(original: Any, self: Any, index: Any, value: Any) -> None:
        if isinstance(index, slice) and index.step in (None, 1):
            value = list(value)
            value += self[index][len(value) :]
        original(self, index, value)

    around(patch, nnx.List, "__setitem__", put)


@fault(breaks="MOD-025")
def names_of_methods_are_there(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`in` finds the methods of a Dict, too."""
    around(
        patch,
        nnx.Dict,
        "__contains__",
        lambda original, self, key: original(self, key) or (key != "" and hasattr(self, key)),
    )


@fault(breaks="MOD-008")
def fields_of_data_are_undeclared(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`data()` as a dataclass field does not make the field data."""
    original = nnx.data
    patch.setattr(
        nnx, "data", lambda *x, **field: original(*x) if x else dataclasses.field(**field)
    )


@fault(breaks="MOD-008")
def fields_are_never_keyword_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`static(kw_only=True)` makes a field that may be given by position."""
    original = nnx.static
    patch.setattr(
        nnx,
        "static",
        lambda *x, kw_only=False, **field: original(*x, **field),
    )


@fault(breaks="MOD-009")
def objects_are_pytrees(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Object` is a pytree and is checked like one."""
    patch.setattr(nnx, "Object", type(nnx.Pytree)("Object", (nnx.Pytree,), {}))


@fault(breaks="MOD-009")
def vmap_drops_new_attributes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` returns the values of Variables to objects, but no other change."""
    original = nnx.vmap

    def vmap(*f: Any, **options: Any) -> Any:
        return original(*f, **{**options, "graph_updates": False})

    patch.setattr(nnx, "vmap", vmap)


@fault(breaks="MOD-010")
def deletions_are_taken_from_anywhere(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An attribute of a captured Module can be deleted."""

    def delete(original: Any, self: Any, name: str) -> None:
        try:
            original(self, name)
        except nnx.errors.TraceContextError:
            del vars(self)[name]

    around(patch, nnx.Module, "__delattr__", delete)


@fault(breaks="MOD-010")
def refused_changes_are_made(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Assigning to an attribute of a captured Module raises, after the value has been stored."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        try:
            original(self, name, value)
        except nnx.errors.TraceContextError:
            vars(self)[name] = value
            raise

    around(patch, nnx.Module, "__setattr__", setattribute)


class Alike(int):
    """A number that is equal to every other."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, int)

    def __hash__(self) -> int:
        return 0


@fault(breaks="MOD-011 MOD-022")
def static_numbers_are_alike(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Modules whose static numbers differ have equal structures."""
    assigning(nnx, patch, lambda self, name, x: Alike(x) if type(x) is int else x)


@fault(breaks="MOD-023")
def unhashable_values_are_not_named(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error for a static value that cannot be hashed says nothing about it."""
    original = nnx.split

    def split(node: Any, *filters: Any, **options: Any) -> Any:
        graphdef, *states = original(node, *filters, **options)
        return (_Unnamed(graphdef), *states)

    patch.setattr(nnx, "split", split)


class _Unnamed:
    """A graphdef whose errors are silent."""

    def __init__(self, graphdef: Any) -> None:
        self.graphdef = graphdef

    def __hash__(self) -> int:
        try:
            return hash(self.graphdef)
        except TypeError:
            raise TypeError("unhashable") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unnamed) and bool(self.graphdef == other.graphdef)
