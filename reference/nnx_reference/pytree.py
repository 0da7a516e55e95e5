"""Pytrees and Modules: Python objects whose attributes transforms can see.

A Pytree is an ordinary object that is also a JAX pytree node. Its data attributes (`attributes.py`
says which these are) are its children, under their names; its static attributes, their values and
its class are its structure:

    class Linear(Module):
        def __init__(self, din, dout, rngs):
            self.kernel = Param(rngs.normal((din, dout)))   # data
            self.din, self.dout = din, dout                 # static

An attribute gets its status, data or static, when it is first assigned, and keeps it until it is
assigned with the other annotation or deleted. Data in a static attribute would be invisible to
transforms, so it is refused: at the assignment, and once more at the end of `__init__`, when lists
may have been filled.

A Pytree belongs to the trace level in which it was made, like a Variable, and can only be changed
there.

`class C(Pytree, pytree=False)`, or `class C(Object)`, is no JAX pytree and is not checked. Its
attributes have no status: each value speaks for itself, also inside plain containers. The
functional API takes it all the same.

How the package's other modules see a Pytree:

    _pytree_table()   its children by key: attribute names, indexes, or keys of a Dict
    _pytree_layout()  a `Layout`: the keys of data and of static children, in order
    _pytree_new()     an empty object of the class, past `__new__` and `__init__`
    _pytree_fill()    gives an empty object its children
    _pytree_takes()   whether there may be a new child of that key
    _pytree_set(), _pytree_delete()   change one child
"""

from __future__ import annotations

import dataclasses
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn, Self, cast, dataclass_transform

import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from nnx_reference.attributes import (
    Mark,
    data,
    declared_field,
    declared_in,
    find_marks,
    has_data,
    is_data,
    register_data_type,
    static,
)
from nnx_reference.errors import TraceContextError
from nnx_reference.exactness import all_exactly_equal
from nnx_reference.jax_private import Trace, current_trace

Key = str | int
Path = tuple[Key, ...]

CAPTURES = "__captures__"
"""The attribute of a Module that holds what it records during a capture: see `capturing.py`."""

_store = object.__setattr__


def key_order(key: Any) -> tuple[bool, Any]:
    """Sorts keys canonically: integers by number, then strings by code point."""
    return (isinstance(key, str), key)


class Layout:
    """Which children an object has and which of them are data; one for all that are laid out alike.

    Attributes:
      keys: all keys, in the order in which the children were put there.
      flags: for each key, whether it is that of a data child.
      data: the keys of data children, in canonical order.
      static: the keys of static children, in canonical order.
      key_paths: JAX's names for the data children.
      hash: a hash of the keys of data and of static children.
    """

    __slots__ = ("data", "flags", "hash", "key_paths", "keys", "static")

    def __init__(self, keys: tuple[Key, ...], flags: tuple[bool, ...], attributes: bool) -> None:
        flagged = sorted(zip(keys, flags, strict=True), key=lambda pair: key_order(pair[0]))
        self.keys = keys
        self.flags = dict(flagged)
        self.data = tuple(key for key, flag in flagged if flag)
        self.static = tuple(key for key, flag in flagged if not flag)
        self.key_paths = tuple(_key_path(key, attributes) for key in self.data)
        self.hash = hash((self.data, self.static))


def _key_path(key: Key, attributes: bool) -> Any:
    if attributes:
        return SequenceKey(key) if isinstance(key, int) else GetAttrKey(key)
    return DictKey(key)


class StaticPart:
    """The static structure of one object, as it stands in a treedef."""

    __slots__ = ("kind", "layout", "values")

    def __init__(self, kind: type, layout: Layout, values: tuple[Any, ...]) -> None:
        self.kind = kind
        self.layout = layout
        self.values = values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StaticPart):
            return NotImplemented
        mine, others = self.layout, other.layout
        if mine is others and self.values is other.values:
            return True
        return (
            mine is others or (mine.data == others.data and mine.static == others.static)
        ) and all_exactly_equal(self.values, other.values)

    def __hash__(self) -> int:
        try:
            return hash((self.layout.hash, self.values))
        except TypeError:
            self._check_hashable()
            raise

    def _check_hashable(self) -> None:
        for key, value in zip(self.layout.static, self.values, strict=True):
            try:
                hash(value)
            except TypeError:
                raise unhashable(self.kind, (key,), value) from None

    def __repr__(self) -> str:
        items = ", ".join(
            f"{k}={v!r}" for k, v in zip(self.layout.static, self.values, strict=True)
        )
        return f"static({items})"


def unhashable(kind: type, path: Path, value: Any) -> TypeError:
    """Makes the error that names a static value which cannot be hashed."""
    name = ".".join(map(str, path))
    return TypeError(
        f"static attribute {name!r} of a {kind.__name__} is not hashable: {value!r}. Static values"
        " are part of the structure by which compiled functions are looked up; use a hashable"
        " value, such as a tuple instead of a list, or make it data with nnx.data(...)."
    )


class PytreeMeta(ABCMeta):
    """The class of Pytree classes: checks an object when its `__init__` is done."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes an object and checks it; see `check_pytree`."""
        node = super().__call__(*args, **kwargs)
        if isinstance(node, Pytree):
            check_pytree(node)
        return node


class _Attributes:
    """What keeps an object's attributes."""

    __slots__ = ("__dict__", "__weakref__")


attributes_of: Callable[[Any], dict[Key, Any]] = vars(_Attributes)["__dict__"].__get__
"""Returns the dict of an object's attributes, which is only to be read, or filled when new."""


class Pytree(_Attributes, metaclass=PytreeMeta):
    """Base class of objects that are JAX pytrees. See the module's text for what that means."""

    __slots__ = ("_pytree_known", "_pytree_notes", "_pytree_status", "_pytree_trace")

    _pytree_known: Layout | None
    _pytree_notes: Any  # what is remembered of walks from here and through here: `remembering.py`
    _pytree_status: dict[Key, bool]
    _pytree_trace: Trace

    _pytree_enabled: ClassVar[bool] = True
    _pytree_declared: ClassVar[Mapping[str, bool]] = {}
    _pytree_layouts: ClassVar[dict[Any, Layout]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes an empty object that belongs to the current trace level."""
        return cls._pytree_new(current_trace())

    def __init_subclass__(cls, *, pytree: bool | None = None, **kwargs: Any) -> None:
        """Sets up a subclass.

        Args:
          pytree: whether its objects are JAX pytrees; as in the base class if not given.
          **kwargs: for further base classes.
        """
        super().__init_subclass__(**kwargs)
        if pytree is not None:
            cls._pytree_enabled = pytree
        cls._pytree_declared = {**cls._pytree_declared, **declared_in(cls)}
        _set_up(cls)

    # --- attributes ---

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The attributes; whoever has taken them out may change them behind the object's back."""
        from nnx_reference import remembering  # it builds on this module

        remembering.notes_of(self).expose()
        return cast(dict[str, Any], attributes_of(self))

    def __setattr__(self, name: str, value: Any) -> None:
        self._pytree_before_change()
        if hasattr(getattr(type(self), name, None), "__set__"):
            _store(self, name, value.value if isinstance(value, Mark) else value)
            return
        value = self._pytree_admit(name, value)
        _store(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._pytree_before_change()
        object.__delattr__(self, name)
        self._pytree_status.pop(name, None)
        _store(self, "_pytree_known", None)

    def _pytree_before_change(self) -> None:
        if self._pytree_trace is not current_trace():
            raise TraceContextError(
                f"{type(self).__name__} belongs to another trace level and cannot be changed from"
                " here. It was captured by a transformed function: pass it in as an argument, and"
                " return what has changed."
            )
        if self._pytree_notes is not None:
            self._pytree_notes.change()

    def _pytree_admit(self, key: Key, value: Any) -> Any:
        """Checks a value and records its child's status; returns the value, unmarked."""
        if not self._pytree_enabled:
            return value.value if isinstance(value, Mark) else value
        known = self._pytree_status.get(key)
        said = isinstance(value, Mark)
        if isinstance(value, Mark):
            status, value = value.is_data, value.value
        else:
            status = self._pytree_default_status(key, value) if known is None else known
        self._pytree_check_value(key, value, status, said, known)
        if status is not known:
            self._pytree_status[key] = status
            _store(self, "_pytree_known", None)
        return value

    def _pytree_default_status(self, key: Key, value: Any) -> bool:
        declared = declared_field(type(self), str(key))
        if declared is None:
            declared = self._pytree_declared.get(str(key))
        return is_data(value) if declared is None else declared

    def _pytree_check_value(
        self, key: Key, value: Any, status: bool, said: bool = False, known: bool | None = None
    ) -> None:
        if is_data(value):
            if not status:
                _refuse_data(type(self), key, value, [value], said, known)
        elif marks := find_marks(value):
            raise ValueError(
                f"attribute {key!r} of a {type(self).__name__} is a {type(value).__name__} that"
                f" holds {marks[0]!r}: annotate the whole value that is assigned, not what is"
                " inside it, or use nnx.List or nnx.Dict."
            )
        elif not status and (found := has_data(value)):
            _refuse_data(type(self), key, value, found, said, known)

    # --- how the package sees an object ---

    @classmethod
    def _pytree_new(cls, trace: Trace) -> Self:
        node = object.__new__(cls)
        _store(node, "_pytree_trace", trace)
        _store(node, "_pytree_status", {})
        _store(node, "_pytree_known", None)
        _store(node, "_pytree_notes", None)
        return node

    def _pytree_table(self) -> Mapping[Key, Any]:
        return attributes_of(self)

    def _pytree_layout(self) -> Layout:
        known = self._pytree_known
        if known is None or known.keys != tuple(attributes_of(self)):
            known = self._pytree_find_layout(self._pytree_table(), attributes=True)
        return known

    def _pytree_find_layout(self, table: Mapping[Key, Any], attributes: bool) -> Layout:
        status = self._pytree_status
        flags = tuple(
            [status[k] if k in status else self._pytree_default_status(k, table[k]) for k in table]
        )
        signature = (tuple(table), flags)
        layouts = type(self)._pytree_layouts
        if signature not in layouts:
            layouts[signature] = Layout(*signature, attributes)
        if len(status) == len(
            flags
        ):  # else some values speak for themselves, and the next ones may say otherwise
            _store(self, "_pytree_known", layouts[signature])
        return layouts[signature]

    def _pytree_fill(self, data: Mapping[Key, Any], static: Mapping[Key, Any]) -> None:
        attributes = attributes_of(self)
        attributes.update(data)
        attributes.update(static)
        self._pytree_fill_status(data, static)

    def _pytree_fill_status(self, data: Iterable[Key], static: Iterable[Key]) -> None:
        if self._pytree_enabled:
            status = dict.fromkeys(data, True)
            status.update(dict.fromkeys(static, False))
            _store(self, "_pytree_status", status)

    def _pytree_takes(self, key: Key) -> bool:
        return isinstance(key, str)

    def _pytree_set(self, key: Key, value: Any) -> None:
        setattr(self, str(key), value)

    def _pytree_delete(self, key: Key) -> None:
        delattr(self, str(key))

    # --- Python's own protocols ---

    def __getstate__(self) -> dict[str, Any]:
        return {"attributes": dict(attributes_of(self)), "status": dict(self._pytree_status)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes_of(self).update(state["attributes"])
        self._pytree_status.update(state["status"])

    def __repr__(self) -> str:
        from nnx_reference import showing  # it builds on this module

        return showing.show(self)


def _refuse_data(
    kind: type, key: Key, value: Any, found: list[Any], said: bool, known: bool | None
) -> NoReturn:
    of = type(value).__name__
    if said:
        why = "nnx.static(...) says so"
    elif known is False:
        why = "it was when it was first assigned"
    else:
        why = "the class declares it" if is_data(value) else f"a {of} is, unless it is annotated"
    names = ", ".join(sorted({type(item).__name__ for item in found}))
    raise ValueError(
        f"static attribute {key!r} of a {kind.__name__} would hold data ({names}) in a value of"
        f" type {of}; it is static because {why}. Ways out: make it data with nnx.data(...); use"
        " nnx.List or nnx.Dict for a list or dict; take the data out; or turn the checks off for"
        " the class with pytree=False."
    )


def check_pytree(pytree: Any, /) -> None:
    """Checks that an object's static attributes hold no data, and that no annotation was stored.

    Raises:
      TypeError: the object is no Pytree.
      ValueError: an attribute is at fault; the error names it and the ways out.
    """
    if not isinstance(pytree, Pytree):
        raise TypeError(f"check_pytree takes a Pytree, not {type(pytree).__name__}")
    if not pytree._pytree_enabled:
        return
    layout, table = pytree._pytree_layout(), pytree._pytree_table()
    for keys, is_data_key in ((layout.data, True), (layout.static, False)):
        for key in keys:
            pytree._pytree_check_value(key, table[key], is_data_key, known=is_data_key)


def _flatten(node: Pytree) -> tuple[list[Any], StaticPart]:
    layout, table = node._pytree_layout(), node._pytree_table()
    children = [table[key] for key in layout.data]
    return children, StaticPart(type(node), layout, tuple([table[key] for key in layout.static]))


def _flatten_with_keys(node: Pytree) -> tuple[list[tuple[Any, Any]], StaticPart]:
    children, static_part = _flatten(node)
    return list(zip(static_part.layout.key_paths, children, strict=True)), static_part


def _set_up(cls: type[Pytree]) -> None:
    """Gives a class its table of layouts, and makes it known to JAX."""

    def unflatten(static_part: StaticPart, children: Iterable[Any]) -> Pytree:
        layout = static_part.layout
        node = cls._pytree_new(current_trace())
        node._pytree_fill(
            dict(zip(layout.data, children, strict=True)),
            dict(zip(layout.static, static_part.values, strict=True)),
        )
        return node

    cls._pytree_layouts = {}
    if cls._pytree_enabled:
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, unflatten, _flatten)


_set_up(Pytree)
register_data_type(Pytree)


class Module(Pytree):
    """Base class of layers and models."""

    __slots__ = ()

    def set_attributes(
        self,
        *filters: Any,
        raise_if_not_found: bool = True,
        graph: bool | None = None,
        **attributes: Any,
    ) -> None:
        """Sets attributes on this Module and all in it that have them; see `views.set_attributes`.

        Raises:
          ValueError: an attribute is found nowhere; nothing has changed then.
        """
        from nnx_reference import views  # it builds on this module

        views.set_attributes(
            self, *filters, raise_if_not_found=raise_if_not_found, graph=graph, **attributes
        )

    def train(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` to False all over, and what is given."""
        self.set_attributes(
            raise_if_not_found=False,
            **{"deterministic": False, "use_running_average": False, **attributes},
        )

    def eval(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` to True all over, and what is given."""
        self.set_attributes(
            raise_if_not_found=False,
            **{"deterministic": True, "use_running_average": True, **attributes},
        )

    def sow(
        self,
        variable_type: Any,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = lambda before, value: (*before, value),
        init_fn: Callable[[], Any] = tuple,
    ) -> bool:
        """Records a value; `capture` returns it, in a State by this Module's path and the name.

        Without a capture the record is an attribute of this Module, a Variable.

        Args:
          variable_type: the class of Variables to record it in.
          name: the name of the record.
          value: the value.
          reduce_fn: makes the record of the record before and the value; appends it to a tuple if
            nothing is said.
          init_fn: makes the record before the first one.

        Returns:
          Whether it is recorded: False during a capture of other classes only.

        Raises:
          TraceContextError: the Module belongs to another trace level.
          ValueError: without a capture, the Module has something else under that name.
        """
        from nnx_reference import capturing  # it builds on this module

        return capturing.sow(self, variable_type, name, value, reduce_fn, init_fn)

    def perturb(self, name: str, value: Any, variable_type: Any = None) -> Any:
        """Returns a value plus the perturbation of that name, whose gradient is the value's.

        The perturbation is zero where there is none yet, and is recorded as by `sow`; a `capture`
        that is given it adds it. During a capture of other classes only, there is none.

        Args:
          name: the name of the perturbation.
          value: an array, or a pytree of arrays.
          variable_type: the class of Variables to record it in; `Perturbation` if nothing is said.

        Raises:
          TraceContextError: the Module belongs to another trace level.
          ValueError: the perturbation has another shape; without a capture, the Module has
            something else under that name.
        """
        from nnx_reference import capturing  # it builds on this module

        return capturing.perturb(self, name, value, variable_type)


class Object(Pytree, pytree=False):
    """Base class of objects that are no JAX pytrees; the functional API takes them."""

    __slots__ = ()


@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(
    cls: type | None = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """Makes a dataclass of a Pytree class; `data()` and `static()` serve as its fields.

    The arguments are those of `dataclasses.dataclass`. The class keeps its own `__repr__`.

    Raises:
      ValueError: `slots` is asked for; a Pytree keeps its attributes in its `__dict__`.
    """
    if slots or weakref_slot:
        raise ValueError(
            "a Pytree keeps its attributes in its __dict__: slots and weakref_slot must be False"
        )
    return dataclasses.dataclass(
        cls,
        init=init,
        repr=False,
        eq=eq,
        order=order,
        unsafe_hash=unsafe_hash,
        match_args=match_args,
        kw_only=kw_only,
    )
