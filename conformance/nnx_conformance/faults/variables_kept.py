"""Faults of the chapter on Variables: what copies, classes and traces keep of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


@fault(breaks="VAR-008")
def false_metadata_is_not_listed(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`get_metadata` leaves out what is false or None."""

    def get_metadata(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result if args or kwargs.get("name") else {k: v for k, v in result.items() if v}

    around(patch, nnx.Variable, "get_metadata", get_metadata)


@fault(breaks="VAR-008")
def unknown_attributes_are_none(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An attribute that a Variable does not have reads as None."""

    def getattribute(original: Any, self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return None

    around(patch, nnx.Variable, "__getattr__", getattribute)


@fault(breaks="VAR-009")
def assignment_sets_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Assigning to an attribute that is metadata changes the metadata."""

    def setattribute(original: Any, self: Any, name: str, value: Any) -> None:
        if not name.startswith("_") and name in self.get_metadata():
            self.set_metadata(name, value)
        else:
            original(self, name, value)

    around(patch, nnx.Variable, "__setattr__", setattribute)


@fault(breaks="VAR-009")
def set_metadata_never_replaces(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`set_metadata` with a dict adds its items and keeps the rest."""

    def set_metadata(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) == 1:
            args = ({**self.get_metadata(), **args[0]},)
        original(self, *args, **kwargs)

    around(patch, nnx.Variable, "set_metadata", set_metadata)


def couple(nnx: Any, patch: pytest.MonkeyPatch, method: str) -> None:
    """Makes a call of a method on a Variable, or on a copy of it, act on both."""
    twins: dict[int, Any] = {}

    def copy(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        other = original(self, *args, **kwargs)
        twins[id(self)], twins[id(other)] = other, self
        return other

    def call(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if id(self) in twins:
            original(twins[id(self)], *args, **kwargs)

    around(patch, nnx.Variable, "copy", copy)
    around(patch, nnx.Variable, method, call)


@fault(breaks="VAR-010 VAR-015")
def copies_share_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A copy and its original have one metadata mapping."""
    couple(nnx, patch, "set_metadata")


@fault(breaks="VAR-015")
def copies_share_items(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written to an item of a copy shows in the original."""
    couple(nnx, patch, "__setitem__")


@fault(breaks="VAR-015 VAR-011")
def replace_forgets_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`replace` gives a Variable without metadata."""

    def replace(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        other = original(self, *args, **kwargs)
        other.set_metadata({})
        return other

    around(patch, nnx.Variable, "replace", replace)


@fault(breaks="VAR-011")
def splits_see_exact_classes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """To `split`, a class is a filter that selects no instance of a subclass."""
    split = nnx.split

    def exact(item: Any) -> Any:
        is_class = isinstance(item, type) and issubclass(item, nnx.Variable)
        return (lambda path, value: type(value) is item) if is_class else item

    patch.setattr(
        nnx,
        "split",
        lambda node, *filters, **kwargs: split(node, *map(exact, filters), **kwargs),
    )


@fault(breaks="VAR-011 VAR-015")
def copies_are_of_the_base_class(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A copy of a Variable of a subclass of Param is a Param."""

    def copy(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        other = original(self, *args, **kwargs)
        if isinstance(self, nnx.Param) and type(self) is not nnx.Param:
            param = nnx.Param(other.get_value())
            param.set_metadata(other.get_metadata())
            return param
        return other

    around(patch, nnx.Variable, "copy", copy)


class Loose(str):
    """A text that is equal to every other."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, str)

    def __hash__(self) -> int:
        return 0


@fault(breaks="VAR-012")
def treedefs_ignore_text(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Treedefs of Variables that differ in the text of their metadata are equal."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        loose = {k: Loose(v) if isinstance(v, str) else v for k, v in metadata.items()}
        original(self, value, **loose)

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="VAR-016")
def copy_from_takes_the_value_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`copy_from` leaves the metadata as it is."""

    def copy_from(original: Any, self: Any, other: Any) -> None:
        kept = self.get_metadata()
        original(self, other)
        self.set_metadata(kept)

    around(patch, nnx.Variable, "copy_from", copy_from)


@fault(breaks="VAR-016")
def copy_from_takes_any_class(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`copy_from` takes the value of a Variable of another class."""

    def copy_from(original: Any, self: Any, other: Any) -> None:
        if type(self) is type(other):
            original(self, other)
        else:
            self.set_value(other.get_value())

    around(patch, nnx.Variable, "copy_from", copy_from)


@fault(breaks="VAR-026")
def any_class_is_taken_over(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update_from_state` takes the value of a Variable of another class."""

    def update_from_state(original: Any, self: Any, other: Any) -> None:
        if type(self) is type(other):
            original(self, other)
        else:
            self.set_value(other.get_value())

    around(patch, nnx.Variable, "update_from_state", update_from_state)


@fault(breaks="VAR-017")
def writes_across_traces_are_lost(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A write to a captured Variable is dropped without an error."""

    def setitem(original: Any, self: Any, index: Any, y: Any) -> None:
        try:
            original(self, index, y)
        except nnx.errors.TraceContextError:
            return

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="VAR-027")
def trace_errors_name_no_class(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of a write to a captured Variable does not say of which class it is."""

    def set_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except nnx.errors.TraceContextError:
            raise nnx.errors.TraceContextError("cannot write from another trace level") from None

    around(patch, nnx.Variable, "set_value", set_value)


@fault(breaks="VAR-019")
def lora_parameters_are_no_parameters(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """LoRAParam is not under Param."""
    patch.setattr(nnx, "LoRAParam", type("LoRAParam", (nnx.Variable,), {}))


@fault(breaks="VAR-019")
def keys_are_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """RngKey is under RngCount."""
    patch.setattr(nnx, "RngKey", type("RngKey", (nnx.RngCount,), {}))


@fault(breaks="VAR-020")
def pickles_carry_no_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A pickled Variable comes back without its metadata."""
    patch.setattr(
        nnx.Variable,
        "__reduce_ex__",
        lambda self, protocol: (type(self), (self.get_value(),)),
    )


@fault(breaks="VAR-020")
def deep_copies_are_the_value(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`copy.deepcopy` of a Variable gives its value."""
    deep = property(lambda self: self.get_raw_value().__deepcopy__)
    patch.setattr(nnx.Variable, "__deepcopy__", deep, raising=False)


@fault(breaks="VAR-021")
def a_variable_of_a_variable_forgets_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable made of another takes the value alone."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        taken = value.get_value() if isinstance(value, nnx.Variable) else value
        original(self, taken, **metadata)

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="VAR-023")
def initializers_keep_one_entry(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_metadata` keeps the first of several entries."""
    with_metadata = nnx.with_metadata

    @functools.wraps(with_metadata)
    def keep_one(initializer: Any, **metadata: Any) -> Any:
        return with_metadata(initializer, **dict(list(metadata.items())[:1]))

    patch.setattr(nnx, "with_metadata", keep_one)


@fault(breaks="VAR-023")
def hooks_are_dropped(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_metadata` takes hooks and never runs them."""
    with_metadata = nnx.with_metadata

    @functools.wraps(with_metadata)
    def without_hooks(initializer: Any, **metadata: Any) -> Any:
        kept = {name: value for name, value in metadata.items() if not name.startswith("on_")}
        return with_metadata(initializer, **kept)

    patch.setattr(nnx, "with_metadata", without_hooks)


@fault(breaks="VAR-028")
def hooks_of_classes_are_dropped(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable runs the hooks in its metadata and never those of its class."""
    names = ("on_create_value", "on_get_value", "on_set_value", "on_add_axis", "on_remove_axis")

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        none = {name: () for name in names if hasattr(type(self), name)}
        original(self, value, **{**none, **metadata})

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="VAR-029")
def booleans_become_numbers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable keeps the metadata True as 1, which is equal to it."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        kept = {k: int(x) if k == "tag" and isinstance(x, bool) else x for k, x in metadata.items()}
        original(self, value, **kept)

    around(patch, nnx.Variable, "__init__", init)
