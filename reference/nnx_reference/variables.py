"""Variables: boxes for values that change, of a class that says what they are for.

A Variable holds a value (an array, a number, or any pytree of them) and metadata. Everything that
holds the Variable sees a new value when it is written:

    v = Variable(jnp.zeros(3), tag="count")
    v[...] += 1                    # in place: the same Variable, a new value
    v[0] = 5.0                     # one element
    v.tag                          # metadata, changed by v.set_metadata(tag=...)

Operators, `jax.numpy` functions and array attributes act on the value (`operators.py`).

A Variable is a pytree node. Its one child, under the key `value`, is its value; its class and its
metadata are static structure, so that Variables with different metadata have different treedefs.

A Variable belongs to the trace level in which it was made or rebuilt and can be written only there.
To write to a Variable that a transformed function captured raises `TraceContextError`. A Variable
with the flag `hijax` or `ref` can be written anywhere, and JAX carries that out (`hijax.py`).

Modules of this package that flatten and rebuild many Variables read the three slots directly, and
rebuild with `new_variable`:

    _value       the raw value, or what holds it by reference; `_load()` gives the value itself
    _metadata    a `Metadata` mapping, immutable: hold it and pass it on, never copy it
    _trace       the trace level, as `current_trace` gave it; compare with `is`
"""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import jax
from jax.tree_util import GetAttrKey

from nnx_reference import hijax
from nnx_reference.configuration import default_flags
from nnx_reference.describing import describe
from nnx_reference.errors import ImmutableVariableError, TraceContextError
from nnx_reference.hijax import Unshared
from nnx_reference.jax_private import Trace, current_trace, is_eager
from nnx_reference.metadata import (
    FLAGS,
    HOOKS,
    SHOWN,
    Changes,
    Hook,
    Metadata,
    VariableMetadata,
    run_hooks,
)
from nnx_reference.operators import Operators, value_of
from nnx_reference.partitioning import place
from nnx_reference.reading import ACTIVE, note_read
from nnx_reference.values import delete_item, get_item, set_item, unaliased

A = TypeVar("A")
V = TypeVar("V", bound="Variable[Any]")

_MISSING: Any = object()


class Variable(Operators, Generic[A]):
    """A mutable box for a value, with metadata.

    Subclass it for a kind of your own, which filters can select. A subclass that overrides
    `get_value` or `set_value` thereby changes what every way of reading or writing does. Hooks that
    it has as methods, `on_set_value` for one, are metadata of its Variables unless they have
    another hook of that name.
    """

    __slots__ = ("__weakref__", "_metadata", "_trace", "_value")

    _value: Any
    _metadata: Metadata
    _trace: Trace
    _no_metadata: ClassVar[Metadata]
    _own_hooks: ClassVar[Mapping[str, Hook]] = {}

    @classmethod
    def from_metadata(cls, value: Any, metadata: Mapping[str, Any]) -> Self:
        """Makes a Variable of a raw value and of exactly this metadata; no hook runs."""
        return variable_of(cls, value, Metadata(cls, metadata))

    def __init__(self, value: A | VariableMetadata | Variable[A], **metadata: Any) -> None:
        """Makes a Variable that belongs to the current trace level.

        Args:
          value: the value. Of another Variable, the value and the metadata are taken over, and no
            hook runs; of what an initializer with metadata returns, they are taken over, too.
          **metadata: the metadata. It overrides that of another Variable, but not that of an
            initializer. With `mutable=False` the Variable refuses to be written; `hijax` and `ref`
            are, unless given, what `var_defaults` says. A new value is placed as `out_sharding`
            says, unless `eager_sharding` is False (`partitioning.py`).

        Raises:
          ValueError: the value cannot be placed, or there is no mesh for it.
        """
        raw: Any = value
        if isinstance(value, Variable):
            metadata = {**self._own_hooks, **default_flags(), **value._metadata, **metadata}
            raw = unaliased(value._load())
        elif isinstance(value, VariableMetadata):
            metadata = {**self._own_hooks, **default_flags(), **metadata, **value.entries()}
            raw = value.raw_value
        else:
            metadata = {**self._own_hooks, **default_flags(), **metadata}
        _set_value(self, raw)
        _set_metadata(self, Metadata(type(self), metadata) if metadata else self._no_metadata)
        _set_trace(self, current_trace())
        if "on_create_value" in metadata and not isinstance(value, Variable):
            raw = run_hooks(self._metadata.get("on_create_value", ()), self, raw)
            _set_value(self, raw)
        if metadata and not isinstance(value, Variable):
            raw = place(raw, self._metadata)
            _set_value(self, raw)
        if self._metadata.by_reference:
            _set_value(self, hijax.hold(raw, self.ref))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._own_hooks = {name: getattr(cls, name) for name in HOOKS if hasattr(cls, name)}
        _register(cls)

    # --- the value ---

    def get_value(self, *, index: Any = _MISSING) -> Any:
        """Returns the value, or its item at `index`, after the `on_get_value` hooks."""
        if ACTIVE:
            note_read(self)
        value = self._load() if self._metadata.by_reference else self._value
        if index is not _MISSING:
            value = get_item(value, value_of(index))
        if "on_get_value" in self._metadata:
            value = run_hooks(self._metadata["on_get_value"], self, value)
        return value

    def set_value(self, value: Any, *, index: Any = _MISSING) -> None:
        """Replaces the value, or its item at `index`, after the `on_set_value` hooks.

        Setting an item keeps an array's shape and dtype, and puts a changed copy in the place of a
        container.

        Raises:
          TraceContextError: the Variable is a plain one that belongs to another trace level.
          ImmutableVariableError: the Variable is not mutable.
          TypeError: the value takes no items.
          ValueError: inside a transform, the Variable is a hijax one that cannot hold the value.
        """
        self._check_write()
        value = value_of(value)
        if "on_set_value" in self._metadata:
            value = run_hooks(self._metadata["on_set_value"], self, value)
        if index is not _MISSING:
            value = set_item(self._load(), value_of(index), value)
        self._store(value)

    def get_raw_value(self) -> Any:
        """Returns the stored object itself, past all hooks: the Ref for a Variable that has one."""
        return self._shared() if self.ref else self._load()

    def set_raw_value(self, value: Any) -> None:
        """Stores an object as it is, past all hooks.

        Raises:
          TraceContextError: the Variable is a plain one that belongs to another trace level.
          ImmutableVariableError: the Variable is not mutable.
          ValueError: inside a transform, the Variable is a hijax one that cannot hold the value.
        """
        self._check_write()
        self._store(value)

    def _load(self) -> Any:
        """Returns the value, past all hooks."""
        if ACTIVE:
            note_read(self)
        return hijax.read(self._held()) if self._metadata.by_reference else self._value

    def _held(self) -> Any:
        """Returns what holds the value by reference, as it can be used at this trace level."""
        return self._value if is_eager() else self._shared()

    def _shared(self) -> Any:
        """Returns what is stored, so that others may use it, too."""
        if ACTIVE:
            note_read(self)
        if type(self._value) is Unshared:
            _set_value(self, hijax.share(self._value, self.ref))
        return self._value

    def _store(self, value: Any) -> None:
        """Stores a value that `_check_write` has let through."""
        if not self._metadata.by_reference:
            _set_value(self, value)
            return
        held = self._held()
        if type(held) is not Unshared and hijax.fits(held, value):
            hijax.write(held, value, type(self))
        else:
            self._check_fits(value)
            hijax.retire(held)
            _set_value(self, hijax.hold(value, self.ref))

    @property
    def value(self) -> Any:
        """The value; assigning to it is `set_value`."""
        return self.get_value()

    @value.setter
    def value(self, value: Any) -> None:
        self.set_value(value)

    def __getitem__(self, index: Any) -> Any:
        return self.get_value() if index is ... else self.get_value(index=index)

    def __setitem__(self, index: Any, item: Any) -> None:
        self._check_write()
        if index is ...:
            item = value_of(item)
            whole = hijax.is_like(self._held(), item)
            self.set_value(item if whole else set_item(self._load(), ..., item))
        else:
            self.set_value(item, index=index)

    def __delitem__(self, index: Any) -> None:
        self._check_write()
        self._store(delete_item(self._load(), value_of(index)))

    def _check_write(self, value: Any = _MISSING) -> None:
        """Checks that the value may be changed here, and set to a given one."""
        if not self._metadata.by_reference:
            self._check_own()
        elif value is not _MISSING:
            self._check_fits(value)

    def _check_fits(self, value: Any) -> None:
        """Checks that what is held by reference may be set to a value here."""
        if not is_eager() and not hijax.fits(self._shared(), value):
            hijax.refuse(self._value, value, type(self))

    def _check_own(self) -> None:
        """Checks that the Variable may itself be changed here."""
        if self._trace is not current_trace():
            raise TraceContextError(
                f"{type(self).__name__} belongs to another trace level and cannot be changed here:"
                " a transformed function has captured it; pass it in as an argument instead"
            )
        if "mutable" in self._metadata:
            raise ImmutableVariableError(
                f"{type(self).__name__} is immutable; `with_vars(v, mutable=True)` makes a copy"
                " that can be written"
            )

    # --- copies ---

    def replace(self, value: Any = _MISSING, **metadata: Any) -> Self:
        """Returns a new Variable of the same class, with another value and changed metadata.

        Without a value, it is that of this Variable: containers and NumPy arrays are copied, JAX
        arrays shared. The new Variable belongs to the current trace level. No hooks run.
        """
        if value is _MISSING:
            value = unaliased(self._load())
        elif isinstance(value, Variable):
            value = unaliased(value._load())
        return variable_of(type(self), value, self._metadata.updated(metadata))

    def copy(self, value: Any = _MISSING, **metadata: Any) -> Self:
        """Returns `replace(value, **metadata)`."""
        return self.replace(value, **metadata)

    def copy_from(self, other: Variable[A]) -> None:
        """Takes over value and metadata of a Variable of the same class, in place.

        All metadata is replaced but the flags, which each Variable has for itself.

        Raises:
          TraceContextError: the Variable belongs to another trace level, and is a plain one or
            other than in its value.
          ImmutableVariableError: the Variable is not mutable.
          TypeError: `other` is not a Variable.
          ValueError: `other` is a Variable of another class; or, inside a transform, the Variable
            is a hijax one that cannot hold the value.
        """
        self._check_copy(other)
        self._take(other)

    def _check_copy(self, other: Any) -> None:
        """Checks that value and metadata may be taken over from `other`."""
        ours, theirs = type(self), type(other)
        self._check_write()
        if not isinstance(other, Variable):
            raise TypeError(
                f"a {ours.__name__} copies from another {ours.__name__}, not from a"
                f" {theirs.__name__}"
            )
        if ours is not theirs:
            raise ValueError(
                f"a {ours.__name__} copies from another {ours.__name__}, not from a"
                f" {theirs.__name__}; to copy the value alone, use"
                " `v.set_value(other.get_value())`"
            )
        if self._metadata.by_reference:
            if self._metadata_from(other) != self._metadata:
                self._check_own()
            self._check_fits(other._load())

    def _take(self, other: Variable[A]) -> None:
        """Takes over value and metadata of `other`, which `_check_copy` has let through."""
        ours, theirs = self._metadata, other._metadata
        if not ours.by_reference:
            _set_value(self, unaliased(other._load()))
        elif self._value is not other._value:
            self._store(unaliased(other._load()))
        if theirs is not ours:
            _set_metadata(self, self._metadata_from(other))
            Changes.note()

    def _metadata_from(self, other: Variable[A]) -> Metadata:
        """Returns the metadata of `other` with the flags of this Variable."""
        if other._metadata is self._metadata:
            return self._metadata
        return other._metadata.updated({**FLAGS, **self._metadata.flags()})

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Takes over value and metadata of a Variable from a State; see `copy_from`."""
        self.copy_from(variable_state)

    def __copy__(self) -> Self:
        return self.replace()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        kept = Metadata(type(self), copy.deepcopy(dict(self._metadata), memo))
        return variable_of(type(self), copy.deepcopy(self._load(), memo), kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return variable_of, (type(self), self._load(), self._metadata)

    # --- metadata ---

    def get_metadata(self, name: str | None = None, default: Any = _MISSING) -> Any:
        """Returns a new dict of all metadata, or one entry; `hijax` and the like always have one.

        Raises:
          KeyError: there is no such entry and no default is given.
        """
        if name is None:
            return {**SHOWN, **self._metadata}
        if not self.has_metadata(name) and default is _MISSING:
            raise KeyError(f"{type(self).__name__} has no metadata {name!r}")
        return self._metadata.get(name, SHOWN.get(name, default))

    def has_metadata(self, name: str) -> bool:
        """Tells whether there is an entry of that name."""
        return name in self._metadata or name in SHOWN

    def set_metadata(self, *args: Any, **metadata: Any) -> None:
        """Changes metadata: by `(mapping)` all of it, by `(name, value)` or `(name=value)` entries.

        Raises:
          TraceContextError: the Variable belongs to another trace level.
          ImmutableVariableError: the Variable is not mutable.
          TypeError: the arguments have none of the three forms.
          ValueError: the flag `hijax` or `ref` would change.
        """
        self._check_own()
        match args:
            case () if metadata:
                kept = self._metadata.updated(metadata)
            case (Mapping() as whole,) if not metadata:
                kept = Metadata(type(self), {**self._metadata.flags(), **whole})
            case (str() as name, value) if not metadata:
                kept = self._metadata.updated({name: value})
            case _:
                raise TypeError("set_metadata takes a mapping, a name and a value, or keywords")
        self._become(kept)

    def del_metadata(self, name: str) -> None:
        """Removes an entry.

        Raises:
          TraceContextError: the Variable belongs to another trace level.
          ImmutableVariableError: the Variable is not mutable.
          KeyError: there is no such entry, or it is a flag that is what it is by default.
          ValueError: the entry is the flag `hijax` or `ref`.
        """
        self._check_own()
        if name not in self._metadata:
            raise KeyError(f"{type(self).__name__} has no metadata {name!r}")
        self._become(self._metadata.without(name))

    def _become(self, metadata: Metadata) -> None:
        """Takes on other metadata; a Variable that is no longer mutable holds its value plainly."""
        old, frozen = self._metadata, "mutable" in metadata
        for name in ("hijax", "ref"):
            if not frozen and (name in old) != (name in metadata):
                raise ValueError(
                    f"the flag {name!r} of a {type(self).__name__} cannot be changed in place;"
                    f" `with_vars(v, {name}={name not in old})` makes a view in which it is"
                )
        if frozen and old.by_reference:
            _set_value(self, self._load())
        _set_metadata(self, metadata)
        Changes.note()

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Runs the `on_add_axis` hooks: a transform has added an axis to the value."""
        for hook in self._metadata.get("on_add_axis", ()):
            hook(self, axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Runs the `on_remove_axis` hooks: a transform has removed an axis from the value."""
        for hook in self._metadata.get("on_remove_axis", ()):
            hook(self, axis_index, axis_name)

    @property
    def mutable(self) -> bool:
        """Whether the Variable can be written."""
        return "mutable" not in self._metadata

    @property
    def hijax(self) -> bool:
        """Whether the Variable carries its updates out of `jax.jit` by itself."""
        return "hijax" in self._metadata

    @property
    def ref(self) -> bool:
        """Whether the Variable holds its value in a `jax.Ref`."""
        return "ref" in self._metadata

    @property
    def eager_sharding(self) -> bool:
        """Whether the value was placed as `out_sharding` says when the Variable was made."""
        return "eager_sharding" not in self._metadata

    @property
    def type(self) -> builtins.type[Self]:
        """The Variable's class."""
        return builtins.type(self)

    # --- attributes ---

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name not in Variable.__slots__:
            if name in self._metadata:
                return self._metadata[name]
            if not name.startswith("_"):
                found = getattr(self.get_value(), name, _MISSING)
                if found is not _MISSING:
                    return found
        raise AttributeError(
            f"{type(self).__name__} has no attribute or metadata {name!r}, nor has its value",
            name=name,
            obj=self,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(getattr(type(self), name, None), "__set__"):
            self._refuse_attribute(name, f"use `v.set_metadata({name}=...)`")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_attribute(name, f"use `v.del_metadata({name!r})`")

    def _refuse_attribute(self, name: str, way_out: str) -> NoReturn:
        raise AttributeError(
            f"attribute {name!r} of a {type(self).__name__} cannot be changed; for metadata,"
            f" {way_out}",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        metadata = "".join(f", {name}={describe(value)}" for name, value in self._metadata.items())
        value = self._load() if is_eager() else self._value
        return f"{type(self).__name__}(value={describe(value)}{metadata})"


def variable_of(kind: type[V], value: Any, metadata: Metadata) -> V:
    """Makes a Variable of a value, past `__init__` and all hooks.

    Args:
      kind: the class.
      value: the raw value.
      metadata: the metadata, of a Variable of the same class.
    """
    stored = hijax.hold(value, "ref" in metadata) if metadata.by_reference else value
    return new_variable(kind, stored, metadata)


def new_variable(kind: type[V], stored: Any, metadata: Metadata, trace: Trace | None = None) -> V:
    """Makes a Variable of its parts.

    Args:
      kind: the class.
      stored: the raw value, or what holds it by reference if the metadata says so.
      metadata: the metadata, of a Variable of the same class.
      trace: the trace level that it belongs to; None is the current one.
    """
    variable = object.__new__(kind)
    _set_value(variable, stored)
    _set_metadata(variable, metadata)
    _set_trace(variable, current_trace() if trace is None else trace)
    return variable


def rebuilt_variable(kind: type[V], stored: Any, metadata: Metadata) -> V:
    """Makes a Variable of what one was flattened into, or of arrays that have taken its place.

    Raises:
      ValueError: what is stored holds the value by reference, and is being differentiated.
    """
    if metadata.by_reference:
        hijax.check_not_differentiated(stored, kind)
        stored = jax.tree.map(hijax.hold_array, stored)
    return new_variable(kind, stored, metadata)


_set_value, _set_metadata, _set_trace = (
    vars(Variable)[slot].__set__ for slot in ("_value", "_metadata", "_trace")
)
_VALUE_KEY = GetAttrKey("value")


def _flatten(variable: Variable[Any]) -> tuple[tuple[Any], Metadata]:
    value = variable._value
    shared = variable._shared() if ACTIVE or type(value) is Unshared else value
    return (shared,), variable._metadata


def _flatten_with_key(variable: Variable[Any]) -> tuple[tuple[tuple[GetAttrKey, Any]], Metadata]:
    return ((_VALUE_KEY, variable._shared()),), variable._metadata


def _register(kind: type[Variable[Any]]) -> None:
    """Makes a class of Variables known to JAX as a pytree node."""

    def unflatten(metadata: Metadata, children: Iterable[Any]) -> Variable[Any]:
        (stored,) = children
        return rebuilt_variable(kind, stored, metadata)

    kind._no_metadata = Metadata(kind, {})
    jax.tree_util.register_pytree_with_keys(kind, _flatten_with_key, unflatten, _flatten)


_register(Variable)


class Param(Variable[A]):
    """What is learned: weights and biases."""

    __slots__ = ()


class BatchStat(Variable[A]):
    """Running statistics of a batch normalization."""

    __slots__ = ()


class Cache(Variable[A]):
    """What a layer keeps from call to call, such as keys and values in autoregressive decoding."""

    __slots__ = ()


class Intermediate(Variable[A]):
    """A value recorded on the way through a model."""

    __slots__ = ()


class Perturbation(Intermediate[A]):
    """A zero added to an intermediate value, so that its gradient can be taken."""

    __slots__ = ()


class RngState(Variable[A]):
    """State of a random stream: its key or its count."""

    __slots__ = ()


class RngKey(RngState[A]):
    """A random stream's key, which never changes while keys are drawn."""

    __slots__ = ()


class RngCount(RngState[A]):
    """The number of keys that were drawn from a random stream."""

    __slots__ = ()


class OptState(Variable[A]):
    """State of an optimizer."""

    __slots__ = ()


class LoRAParam(Param[A]):
    """A parameter of a low-rank adaptation."""

    __slots__ = ()
