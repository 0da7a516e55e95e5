"""Faults of the chapter on Modules: what is done to whole models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.modules import assigning
from nnx_conformance.faults.variables import around


@fault(breaks="MOD-013")
def eval_forgets_statistics(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`eval` leaves `use_running_average` as it is."""

    def evaluate(self: Any, **attributes: Any) -> None:
        self.set_attributes(raise_if_not_found=False, deterministic=True, **attributes)

    patch.setattr(nnx.Module, "eval", evaluate)


@fault(breaks="MOD-013")
def unknown_attributes_are_ignored(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_attributes` never raises for a name that no Module has."""

    def set_attributes(original: Any, self: Any, *filters: Any, **options: Any) -> None:
        original(self, *filters, **{**options, "raise_if_not_found": False})

    around(patch, nnx.Module, "set_attributes", set_attributes)


@fault(breaks="MOD-013")
def only_the_first_filter_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_attributes` takes Modules that the first of several filters selects."""

    def set_attributes(original: Any, self: Any, *filters: Any, **options: Any) -> None:
        original(self, *filters[:1], **options)

    around(patch, nnx.Module, "set_attributes", set_attributes)


@fault(breaks="MOD-014")
def views_have_their_own_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`view` copies the Variables."""
    original = nnx.view
    patch.setattr(nnx, "view", lambda node, **options: nnx.clone(original(node, **options)))


@fault(breaks="MOD-014")
def unknown_modes_are_ignored(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`view` never raises for a mode that no Module takes."""
    original = nnx.view
    patch.setattr(
        nnx,
        "view",
        lambda node, **options: original(node, **{**options, "raise_if_not_found": False}),
    )


@fault(breaks="MOD-014")
def attributes_reach_the_original(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_attributes` sets the attributes of the original, too."""
    original = nnx.with_attributes

    def with_attributes(
        node: Any,
        *,
        only: Any = ...,
        raise_if_not_found: bool = True,
        graph: Any = None,
        **attributes: Any,
    ) -> Any:
        options = {"raise_if_not_found": raise_if_not_found, "graph": graph}
        copy = original(node, only=only, **options, **attributes)
        node.set_attributes(only, **options, **attributes)
        return copy

    patch.setattr(nnx, "with_attributes", with_attributes)


@fault(breaks="MOD-014")
def views_turn_off_other_modes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`view` gives every Module's `deterministic` a value even if it is not asked for it."""
    original = nnx.view

    def view(node: Any, **modes: Any) -> Any:
        copy = original(node, **modes)
        if "use_running_average" in modes:
            copy.set_attributes(deterministic=True, raise_if_not_found=False)
        return copy

    patch.setattr(nnx, "view", view)


@fault(breaks="MOD-015")
def tied_variables_are_copied(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that is assigned in the place of another one is copied."""

    def replace(self: Any, name: str, value: Any) -> Any:
        both = isinstance(value, nnx.Variable) and isinstance(vars(self).get(name), nnx.Variable)
        return value.copy() if both else value

    assigning(nnx, patch, replace)


@fault(breaks="MOD-015")
def replaced_modules_keep_their_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Module that a function has replaced is still in the state."""

    def replace(self: Any, name: str, value: Any) -> Any:
        old = vars(self).get(name)
        if isinstance(old, nnx.Module) and not nnx.is_data(value):
            setattr(self, f"{name}_before", old)
        return value

    assigning(nnx, patch, replace)


@fault(breaks="MOD-016")
def parents_come_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`iter_modules` visits a Module before those in it."""
    original = nnx.iter_modules
    patch.setattr(
        nnx,
        "iter_modules",
        lambda module, **options: iter([*original(module, **options)][::-1]),
    )


@fault(breaks="MOD-016")
def static_values_are_passed_over(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`iter_graph` does not visit static values."""
    original = nnx.iter_graph

    def iter_graph(node: Any, **options: Any) -> Iterator[Any]:
        return (
            (path, value)
            for path, value in original(node, **options)
            if nnx.is_data(value) or isinstance(value, (list, tuple, dict))
        )

    patch.setattr(nnx, "iter_graph", iter_graph)


@fault(breaks="MOD-016")
def keys_of_children_are_text(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`iter_children` gives the indexes of a List as text."""
    original = nnx.iter_children
    patch.setattr(
        nnx,
        "iter_children",
        lambda node, **options: ((str(k), child) for k, child in original(node, **options)),
    )


@fault(breaks="MOD-017 MOD-014")
def mapped_variables_are_copied(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`recursive_map`, `view` and `with_attributes` give a copy of each Variable that stays."""

    def copying(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return nnx.clone(function(*args, **options), graph=True)

        return call

    for name in ("recursive_map", "view", "with_attributes"):
        patch.setattr(nnx, name, copying(getattr(nnx, name)))


@fault(breaks="MOD-017")
def results_for_modules_are_dropped(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`recursive_map` puts a Module where it was, whatever the function gives for it."""
    original = nnx.recursive_map

    def recursive_map(f: Any, node: Any, **options: Any) -> Any:
        def call(path: Any, value: Any) -> Any:
            result = f(path, value)
            return value if isinstance(value, nnx.Module) else result

        return original(call, node, **options)

    patch.setattr(nnx, "recursive_map", recursive_map)


@fault(breaks="MOD-017")
def new_variables_are_written_into_the_old(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`recursive_map` stores the value of a new Variable in the one that it stands for."""
    original = nnx.recursive_map

    def recursive_map(f: Any, node: Any, **options: Any) -> Any:
        def call(path: Any, value: Any) -> Any:
            result = f(path, value)
            if isinstance(value, nnx.Variable) and isinstance(result, nnx.Variable):
                value.set_value(result.get_value())
                return value
            return result

        return original(call, node, **options)

    patch.setattr(nnx, "recursive_map", recursive_map)


@fault(breaks="MOD-018")
def missing_attributes_are_none(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An attribute that a Module does not have reads as None."""

    def missing(self: Any, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)

    patch.setattr(nnx.Module, "__getattr__", missing, raising=False)


@fault(breaks="MOD-018")
def setters_are_bypassed(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Assigning to a property with a setter is ignored."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        if not isinstance(getattr(type(self), name, None), property):
            original(self, name, value)

    around(patch, nnx.Module, "__setattr__", setattribute)


@fault(breaks="MOD-019")
def deep_copies_share_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`copy.deepcopy` of a Module gives one with the same Variables."""
    patch.setattr(
        nnx.Module,
        "__deepcopy__",
        lambda self, memo: nnx.clone(self, variables=False, graph=True),
        raising=False,
    )


@fault(breaks="MOD-019")
def pickles_lose_none(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A pickled Module comes back without the attributes that are None."""

    def restore(original: Any, self: Any, state: Any) -> None:
        original(self, state)
        for name in [name for name, value in vars(self).items() if value is None]:
            delattr(self, name)

    around(patch, nnx.Module, "__setstate__", restore)


@fault(breaks="MOD-020")
def sizes_are_not_shown(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`repr` of a Module leaves out how many elements and bytes its Variables have."""
    around(
        patch,
        nnx.Module,
        "__repr__",
        lambda original, self: re.sub(r" *#[^\n]*", "", original(self)),
    )


@fault(breaks="MOD-020")
def large_arrays_are_written_out(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`repr` of a Module writes out all elements of its arrays."""

    def show(original: Any, self: Any) -> str:
        values = [x for x in jax.tree.leaves(self) if hasattr(x, "size") and x.size > 1000]
        return original(self) + "".join(str(np.asarray(x).tolist()) for x in values)

    around(patch, nnx.Module, "__repr__", show)


@fault(breaks="MOD-021")
def registration_changes_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Instances of registered types are as static as others."""
    patch.setattr(nnx, "register_data_type", lambda type_: type_)


@fault(breaks="MOD-021")
def registration_returns_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`register_data_type` as a decorator leaves None in the class' place."""
    original = nnx.register_data_type

    def register_data_type(type_: type) -> None:
        original(type_)

    patch.setattr(nnx, "register_data_type", register_data_type)
