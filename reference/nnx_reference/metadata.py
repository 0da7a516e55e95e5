"""Metadata: what a Variable carries besides its value, and initializers that supply it.

Metadata is static: it belongs to the structure of a pytree, not to its leaves. A `Metadata` mapping
is never changed after it is made; to change a Variable's metadata is to give the Variable another
mapping. So Variables, treedefs and graph definitions may hold the same mapping and never see each
other's changes, and neither copying nor flattening a Variable costs anything on its account.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

from nnx_reference.exactness import Exact, items_exactly_equal

Hook = Callable[..., Any]
Hooks = Hook | Sequence[Hook]

HOOKS = ("on_set_value", "on_get_value", "on_create_value", "on_add_axis", "on_remove_axis")
"""Metadata keys whose values are functions that a Variable calls at that moment."""

SHOWN = {"hijax": False, "ref": False, "eager_sharding": True}
"""The flags that each Variable shows in its metadata, whatever they are."""

FLAGS = {**SHOWN, "mutable": True, "had_ref": False}
"""What flags are unless metadata says otherwise; each Variable has them for itself."""

DEFAULTS = {**FLAGS, **dict.fromkeys(HOOKS, ())}
"""What flags and hooks are unless metadata says otherwise. Metadata holds none that is so."""


AXIS_KEYS = ("out_sharding", "sharding", "sharding_names")
"""Metadata that has an entry for each axis, if it is a tuple, a list or a PartitionSpec."""


class Changes:
    """Notes that some Variable has got other metadata, for those who remember what it had.

    Attributes:
      latest: another object after each change.
    """

    latest: ClassVar[object] = object()

    @classmethod
    def note(cls) -> None:
        """Notes a change that has just been made."""
        cls.latest = object()


class Metadata(dict[str, Any]):
    """An immutable mapping of metadata, hashable if its values are.

    Attributes:
      kind: the class of the Variables that it was made for, for errors to name; not compared.
      by_reference: whether the flags say that a Variable holds its value by reference (`hijax.py`).
    """

    __slots__ = ("__weakref__", "_hash", "by_reference", "kind")

    kind: type
    by_reference: bool

    def __init__(self, kind: type, items: Mapping[str, Any]) -> None:
        """Makes the mapping, with each hook as a tuple and without flags that say the default.

        A Variable that is not mutable has no Ref; `had_ref` says that it gets one when it is again.
        """
        super().__init__(_normal(items) if items else ())
        self.kind = kind
        self.by_reference = ("hijax" in self or "ref" in self) and "mutable" not in self

    def updated(self, changes: Mapping[str, Any]) -> Metadata:
        """Returns a mapping in which some entries are set anew."""
        return Metadata(self.kind, {**self, **changes}) if changes else self

    def exact_items(self) -> list[tuple[str, Exact]]:
        """Lists names and values, which are equal to others if they are exactly equal."""
        return [(name, Exact(value)) for name, value in self.items()]

    def flags(self) -> dict[str, Any]:
        """Returns those of the entries that are flags."""
        return {name: self[name] for name in FLAGS if name in self}

    def without(self, name: str) -> Metadata:
        """Returns a mapping that lacks an entry."""
        if name not in self:
            return self
        return Metadata(self.kind, {key: value for key, value in self.items() if key != name})

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Metadata):
            return dict.__eq__(self, other)
        return items_exactly_equal(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            self._hash: int = self._compute_hash()
            return self._hash

    def _compute_hash(self) -> int:
        for name, value in self.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"metadata {name!r} of a {self.kind.__name__} is not hashable: {value!r}; as it"
                    " is static structure, use a hashable value, such as a tuple for a list"
                ) from None
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Metadata, (self.kind, dict(self))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            f"the metadata of a {self.kind.__name__} is changed by its set_metadata() and"
            " del_metadata() only"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def _normal(items: Mapping[str, Any]) -> dict[str, Any]:
    entries = {name: as_hooks(x) if name in HOOKS else x for name, x in items.items()}
    if entries.pop("had_ref", False) or entries.get("ref"):
        entries.pop("ref", None)
        entries["ref" if entries.get("mutable", True) else "had_ref"] = True
    return {n: x for n, x in entries.items() if n not in DEFAULTS or x != DEFAULTS[n]}


def as_hooks(hooks: Hooks | None) -> tuple[Hook, ...]:
    """Returns one hook or a sequence of them as a tuple."""
    return (hooks,) if callable(hooks) else tuple(hooks or ())


def run_hooks(hooks: Sequence[Hook], variable: Any, value: Any) -> Any:
    """Passes a value through hooks in order, each called as `hook(variable, value)`."""
    for hook in hooks:
        value = hook(variable, value)
    return value


@dataclass(frozen=True)
class VariableMetadata:
    """An initializer's result that brings metadata along, for the Variable that is made of it.

    Attributes:
      raw_value: the value.
      on_set_value: called as `hook(variable, value)` when a value is set; its result is stored.
      on_get_value: called as `hook(variable, value)` when the value is read; its result is read.
      on_create_value: called as `hook(variable, value)` when the Variable is made; its result is
        stored.
      on_add_axis: called as `hook(variable, axis_index, axis_name)` when a transform adds an axis.
      on_remove_axis: called as `hook(variable, axis_index, axis_name)` when one removes an axis.
      metadata: all other metadata.
    """

    raw_value: Any
    on_set_value: tuple[Hook, ...] = ()
    on_get_value: tuple[Hook, ...] = ()
    on_create_value: tuple[Hook, ...] = ()
    on_add_axis: tuple[Hook, ...] = ()
    on_remove_axis: tuple[Hook, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def entries(self) -> dict[str, Any]:
        """Returns all metadata, hooks included, as the Variable is to carry it."""
        hooks = {name: getattr(self, name) for name in HOOKS}
        return {**self.metadata, **{name: hook for name, hook in hooks.items() if hook}}


def with_metadata(
    initializer: Callable[..., Any],
    on_set_value: Hooks = (),
    on_get_value: Hooks = (),
    on_create_value: Hooks = (),
    on_add_axis: Hooks = (),
    on_remove_axis: Hooks = (),
    **metadata: Any,
) -> Callable[..., VariableMetadata]:
    """Makes an initializer whose result, wrapped in a Variable, carries metadata.

    Args:
      initializer: returns an array; or is itself the result of `with_metadata`, and then the
        metadata of both is carried, the outer one deciding where both have a key.
      on_set_value: one hook or several; see `VariableMetadata` for when each kind runs.
      on_get_value: likewise.
      on_create_value: likewise.
      on_add_axis: likewise.
      on_remove_axis: likewise.
      **metadata: the metadata.
    """
    given = (on_set_value, on_get_value, on_create_value, on_add_axis, on_remove_axis)
    hooks = {name: as_hooks(hook) for name, hook in zip(HOOKS, given, strict=True) if hook}

    @functools.wraps(initializer)
    def initialize(*args: Any, **kwargs: Any) -> VariableMetadata:
        value = initializer(*args, **kwargs)
        entries = {**metadata, **hooks}
        if isinstance(value, VariableMetadata):
            entries = {**value.entries(), **entries}
            value = value.raw_value
        return VariableMetadata(
            value, **{name: entries.pop(name, ()) for name in HOOKS}, metadata=entries
        )

    return initialize
