"""Faults of the chapter on filters: what they select, how they combine, and who uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nnx_conformance.faults import fault

Predicate = Callable[[tuple[Any, ...], Any], bool]


@fault(breaks="FLT-001")
def everything_skips_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A filter that selects everything selects Variables only."""
    patch.setattr(nnx.Everything, "__call__", lambda self, path, x: isinstance(x, nnx.Variable))


@fault(breaks="FLT-001")
def nothing_selects_the_root(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A filter that selects nothing selects what has the empty path."""
    patch.setattr(nnx.Nothing, "__call__", lambda self, path, x: path == ())


@fault(breaks="FLT-002")
def class_filters_are_exact(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A class does not select instances of its subclasses."""
    patch.setattr(nnx.OfType, "__call__", lambda self, path, x: type(x) is self.type)


@fault(breaks="FLT-003")
def tags_ignore_case(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A string selects tags that differ from it in case."""

    def select(self: Any, path: tuple[Any, ...], x: Any) -> bool:
        tag = getattr(x, "tag", None)
        return isinstance(tag, str) and tag.lower() == self.tag.lower()

    patch.setattr(nnx.WithTag, "__call__", select)


@fault(breaks="FLT-003")
def names_count_as_tags(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A string selects what has the string as its name."""
    original = nnx.WithTag.__call__

    def select(self: Any, path: tuple[Any, ...], x: Any) -> bool:
        return original(self, path, x) or path[-1:] == (self.tag,)

    patch.setattr(nnx.WithTag, "__call__", select)


@fault(breaks="FLT-004")
def path_filters_match_parts_of_names(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`PathContains` selects by a part of a name, and takes 1 for "1"."""

    def select(self: Any, path: tuple[Any, ...], x: Any) -> bool:
        return any(str(self.key) in str(key) for key in path)

    patch.setattr(nnx.PathContains, "__call__", select)


@fault(breaks="FLT-004")
def path_filters_ignore_the_last_key(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`PathContains` looks at the nodes on the way to a Variable, and not at its own name."""
    original = nnx.PathContains.__call__
    patch.setattr(nnx.PathContains, "__call__", lambda self, path, x: original(self, path[:-1], x))


@fault(breaks="FLT-005")
def any_of_no_filter_selects_everything(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Any()`, of no filter, selects everything."""
    make = nnx.Any
    patch.setattr(nnx, "Any", lambda *filters: make(*filters) if filters else make(...))


@fault(breaks="FLT-005")
def all_stops_at_two(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`All` heeds its first two filters and no more."""
    make = nnx.All
    patch.setattr(nnx, "All", lambda *filters: make(*filters[:2]))


@fault(breaks="FLT-005")
def not_skips_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Not` never selects a raw array."""
    original = nnx.Not.__call__

    def select(self: Any, path: tuple[Any, ...], x: Any) -> bool:
        return isinstance(x, nnx.Variable) and original(self, path, x)

    patch.setattr(nnx.Not, "__call__", select)


@fault(breaks="FLT-005 FLT-008")
def a_list_is_all(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A list selects what all of its filters select."""
    original = nnx.filterlib.to_predicate

    def convert(literal: Any) -> Any:
        return nnx.All(*literal) if isinstance(literal, list) else original(literal)

    patch.setattr(nnx.filterlib, "to_predicate", convert)


@fault(breaks="FLT-006")
def predicates_see_the_last_key(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`state` shows a callable the last key of the path instead of the path."""
    _adapt_callables(nnx, patch, lambda f: lambda path, x: f(path[-1:], x))


@fault(breaks="FLT-006")
def predicates_see_raw_values(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`state` shows a callable a Variable's value instead of the Variable."""

    def raw(x: Any) -> Any:
        return x.get_value() if isinstance(x, nnx.Variable) else x

    _adapt_callables(nnx, patch, lambda f: lambda path, x: f(path, raw(x)))


@fault(breaks="FLT-006")
def predicates_are_wrapped(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`to_predicate` wraps a callable in another."""
    original = nnx.filterlib.to_predicate

    def convert(literal: Any) -> Predicate:
        predicate = original(literal)
        return lambda path, x: predicate(path, x)

    patch.setattr(nnx.filterlib, "to_predicate", convert)


@fault(breaks="FLT-007")
def special_filters_come_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split` tries a subclass before its superclass, wherever the two stand among the filters."""
    original = nnx.split

    def split(node: Any, *filters: Any, **options: Any) -> Any:
        order = sorted(range(len(filters)), key=lambda n: -_depth(filters[n]))
        graphdef, *states = original(node, *(filters[n] for n in order), **options)
        by_place = dict(zip(order, states, strict=False))
        return (
            (graphdef, *(by_place[n] for n in range(len(filters))))
            if filters
            else (graphdef, *states)
        )

    patch.setattr(nnx, "split", split)


@fault(breaks="FLT-007")
def the_last_match_wins(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`state` gives an item to the last filter that selects it."""
    original = nnx.state

    def state(node: Any, *filters: Any, **options: Any) -> Any:
        if len(filters) < 2:
            return original(node, *filters, **options)
        alone = [nnx.All(f, nnx.Not(nnx.Any(*filters[n + 1 :]))) for n, f in enumerate(filters)]
        return original(node, *alone, **options)

    patch.setattr(nnx, "state", state)


@fault(breaks="FLT-008")
def other_objects_select_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`to_predicate` takes an object that is no filter for one that selects nothing."""
    original = nnx.filterlib.to_predicate

    def convert(literal: Any) -> Any:
        try:
            return original(literal)
        except (TypeError, ValueError):
            return nnx.Nothing()

    patch.setattr(nnx.filterlib, "to_predicate", convert)


@fault(breaks="FLT-011")
def errors_hide_the_object(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error about an object that is no filter does not show the object."""
    original = nnx.Not

    def make(literal: Any) -> Any:
        try:
            return original(literal)
        except (TypeError, ValueError):
            raise TypeError("not a filter") from None

    patch.setattr(nnx, "Not", make)


@fault(breaks="FLT-009")
def not_is_unhashable(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Not` has no hash."""
    patch.setattr(nnx.Not, "__hash__", None)


@fault(breaks="FLT-009")
def filters_hash_by_identity(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Two equal `PathContains` have different hashes."""
    patch.setattr(nnx.PathContains, "__hash__", object.__hash__)


@fault(breaks="FLT-009")
def any_equals_every_any(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Two `Any` are equal whatever their filters are."""
    patch.setattr(nnx.Any, "__eq__", lambda self, other: isinstance(other, type(self)))


@fault(breaks="FLT-010")
def pop_forgets_the_path(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`pop` shows a path filter the name of a Variable, and not the nodes above it."""
    original = nnx.pop

    def adapt(literal: Any) -> Any:
        if isinstance(literal, (nnx.PathContains, nnx.Not)):
            return lambda path, x: literal(path[-1:], x)
        return literal

    patch.setattr(
        nnx,
        "pop",
        lambda node, *filters, **options: original(node, *map(adapt, filters), **options),
    )


@fault(breaks="FLT-010")
def state_axes_take_classes_exactly(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """In `StateAxes` a class does not select instances of its subclasses."""
    make = nnx.StateAxes

    def adapt(literal: Any) -> Any:
        return (lambda path, x: type(x) is literal) if isinstance(literal, type) else literal

    def state_axes(axes: Mapping[Any, Any]) -> Any:
        return make({adapt(literal): axis for literal, axis in axes.items()})

    patch.setattr(nnx, "StateAxes", state_axes)


@fault(breaks="FLT-010")
def optimizer_takes_the_first_of_a_tuple(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An Optimizer takes only the first filter of a `wrt` that is a tuple."""
    make = nnx.Optimizer

    def optimizer(model: Any, tx: Any, *, wrt: Any) -> Any:
        return make(model, tx, wrt=wrt[0] if isinstance(wrt, tuple) else wrt)

    patch.setattr(nnx, "Optimizer", optimizer)


@fault(breaks="FLT-010")
def with_vars_ignores_not(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars` takes every Variable for selected when `only` is a `Not`."""
    original = nnx.with_vars

    def with_vars(node: Any, *, only: Any = ..., **flags: Any) -> Any:
        return original(node, only=... if isinstance(only, nnx.Not) else only, **flags)

    patch.setattr(nnx, "with_vars", with_vars)


@fault(breaks="FLT-010")
def set_attributes_misses_the_root(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_attributes` leaves the Module that it is called on as it was."""
    original = nnx.Module.set_attributes

    def set_attributes(self: Any, *filters: Any, **options: Any) -> None:
        below = nnx.All(nnx.Any(*(filters or (...,))), lambda path, module: path != ())
        original(self, below, **options)

    patch.setattr(nnx.Module, "set_attributes", set_attributes)


@fault(breaks="FLT-010")
def split_rngs_takes_the_first_of_a_tuple(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split_rngs` takes only the first filter of an `only` that is a tuple."""
    original = nnx.split_rngs

    def split_rngs(*args: Any, only: Any = ..., **options: Any) -> Any:
        return original(*args, only=only[0] if isinstance(only, tuple) else only, **options)

    patch.setattr(nnx, "split_rngs", split_rngs)


def _adapt_callables(
    nnx: Any, patch: pytest.MonkeyPatch, adapt: Callable[[Predicate], Predicate]
) -> None:
    """Changes what `state` shows a filter that is neither a class nor one of the filter classes."""
    original = nnx.state
    names = ("Everything", "Nothing", "OfType", "WithTag", "PathContains", "Any", "All", "Not")
    classes = (type, *(getattr(nnx, name) for name in names))

    def adapted(literal: Any) -> Any:
        return adapt(literal) if callable(literal) and not isinstance(literal, classes) else literal

    def state(node: Any, *filters: Any, **options: Any) -> Any:
        return original(node, *map(adapted, filters), **options)

    patch.setattr(nnx, "state", state)


def _depth(literal: Any) -> int:
    """Returns how far a class is from the root of its hierarchy; 0 for another filter."""
    return len(literal.__mro__) if isinstance(literal, type) else 0
