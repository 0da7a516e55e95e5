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
from typing import Any, NoReturn

Hook = Callable[..., Any]
Hooks = Hook | Sequence[Hook]

HOOKS = ("on_set_value", "on_get_value", "on_create_value", "on_add_axis", "on_remove_axis")
"""Metadata keys whose values are functions that a Variable calls at that moment."""

DEFAULTS = {"hijax": False, "ref": False, "mutable": True, **dict.fromkeys(HOOKS, ())}
"""What flags and hooks are unless metadata says otherwise. Metadata holds none that is so."""


class Metadata(dict[str, Any]):
    """An immutable mapping of metadata, hashable if its values are.

    Attributes:
      kind: the class of the Variables that it was made for, for errors to name; not compared.
    """

    __slots__ = ("_hash", "kind")

    kind: type

    def __init__(self, kind: type, items: Mapping[str, Any]) -> None:
        """Makes the mapping, with each hook as a tuple and without flags that say the default.

        Raises:
          NotImplementedError: the items ask for a hijax or a ref Variable.
        """
        super().__init__(_normal(kind, items) if items else ())
        self.kind = kind

    def updated(self, changes: Mapping[str, Any]) -> Metadata:
        """Returns a mapping in which some entries are set anew."""
        return Metadata(self.kind, {**self, **changes}) if changes else self

    def without(self, name: str) -> Metadata:
        """Returns a mapping that lacks an entry."""
        if name not in self:
            return self
        return Metadata(self.kind, {key: value for key, value in self.items() if key != name})

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


def _normal(kind: type, items: Mapping[str, Any]) -> dict[str, Any]:
    for mode in ("hijax", "ref"):
        if items.get(mode):
            raise NotImplementedError(f"{kind.__name__} has no mode {mode}=True; leave {mode} out")
    entries = {name: as_hooks(x) if name in HOOKS else x for name, x in items.items()}
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
