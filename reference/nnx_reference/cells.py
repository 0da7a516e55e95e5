"""Cells: what carries a change of structure out of `jax.jit`, on a JAX with quasi-dynamic types.

A cell holds a pytree. To JAX it is one value, whose type is always the same, but which has besides
its type a *structure*, the treedef and the leaves' types, that may change while a function is
traced. `jax.jit` looks a compiled function up by the structures that its cells come in with, and
leaves them with the structures that they go out with. So a key that is added to a dict inside is
there outside:

    cell = new({})
    jax.jit(lambda cell: write(cell, {"loss": ...}))(cell)
    read(cell)                                   # {"loss": Array(...)}

Outside of `jax.jit` JAX only looks at the structure that a cell had before: a key that one branch
of `lax.cond` adds would be lost. To write another structure is therefore an effect of its own, and
not one that control flow allows; it refuses such a branch with an error that names the effect.

A cell knows nothing of aliases: passed to `jax.jit` as two arguments it would come back with what
one of them was left with. Refs are checked for that, so each cell is accompanied by an empty one.

This module can be imported only where `jax_private.quasi_dynamic()` holds.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from nnx_reference.jax_private import Effect, current_structure, is_eager

hijax: Any = importlib.import_module("jax.experimental.hijax")


class Cell(NamedTuple):
    """A cell as Variables hold it; a pytree of two leaves.

    Attributes:
      content: the quasi-dynamic value.
      guard: a Ref that stands for it when JAX looks for aliases.
    """

    content: Any
    guard: Any


def new(value: Any) -> Cell:
    """Makes a cell that holds a pytree of arrays and numbers, eagerly or inside a trace."""
    leaves, treedef = _flatten(value)
    if is_eager():
        content: Any = Content(leaves, treedef)
    else:
        content = _NEW.bind()
        _WRITE.bind(content, *leaves, treedef=treedef, reshapes=False, turn=0)
    return Cell(content, jax.new_ref(jnp.zeros((), jnp.bool_)))


def read(cell: Cell) -> Any:
    """Returns the pytree that a cell holds."""
    content = cell.content
    if is_eager():
        return jax.tree.unflatten(content.structure.treedef, content.leaves)
    cell.guard[...]  # so that JAX sees it used here
    structure = _structure(content)
    return jax.tree.unflatten(structure.treedef, _READ.bind(content, types=structure.types))


def write(cell: Cell, value: Any) -> None:
    """Makes a cell hold a pytree of arrays and numbers, of whatever structure."""
    content = cell.content
    leaves, treedef = _flatten(value)
    if is_eager():
        content.set(leaves, treedef)
        return
    cell.guard[...]  # likewise
    structure = Structure(_types(leaves), treedef)
    reshapes = _structure(content) != structure
    for turn in count():  # JAX skips `abstract_eval` if it remembers one with the same parameters
        _WRITE.bind(content, *leaves, treedef=treedef, reshapes=reshapes, turn=turn)
        if current_structure(content) == structure:
            break


def _structure(content: Any) -> Structure:
    structure: Structure | None = current_structure(content)
    if structure is None:
        raise NotImplementedError(
            "this transform does not carry a hijax Variable whose value is a container: pass"
            " `with_vars(x, mutable=False)`, or make the Variable with ref=True"
        )
    return structure


def _flatten(value: Any) -> tuple[list[jax.Array], Any]:
    leaves, treedef = jax.tree.flatten(value)
    return [_strong(jnp.asarray(leaf)) for leaf in leaves], treedef


def _strong(array: jax.Array) -> jax.Array:
    """Returns an array without weak type, which would count as a part of the structure."""
    if not is_eager():
        array = jnp.array(
            array, copy=True
        )  # JAX 0.10.2 cannot read back what it takes for a literal
    return (
        jax.lax.convert_element_type(array, array.dtype) if jax.typeof(array).weak_type else array
    )


def _types(leaves: Any) -> tuple[Any, ...]:
    return tuple(map(jax.typeof, leaves))


@dataclass(frozen=True)
class Structure:
    """The structure of what a cell holds.

    Attributes:
      types: the type of each leaf.
      treedef: how they are put together.
    """

    types: tuple[Any, ...]
    treedef: Any

    def normalize(self) -> Structure:
        """Returns the structure with types as JAX compares them."""
        return Structure(tuple([kind.normalize() for kind in self.types]), self.treedef)

    def to_tangent_qdd(self) -> Structure:
        """Returns the structure of tangents."""
        return Structure(tuple([kind.to_tangent_aval() for kind in self.types]), self.treedef)


class Content:
    """The value itself, outside of all traces."""

    def __init__(self, leaves: list[Any], treedef: Any) -> None:
        self.set(leaves, treedef)

    def set(self, leaves: list[Any], treedef: Any) -> None:
        """Replaces all leaves, and the structure."""
        self.leaves = leaves
        self.structure = Structure(_types(leaves), treedef)

    def cur_qdd(self) -> Structure:
        """Returns the structure; this is where JAX asks for it."""
        return self.structure


class ContentType(hijax.MutableHiType):
    """The type of all contents, and how one is passed to a compiled function and back."""

    def __hash__(self) -> int:
        return hash(ContentType)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContentType)

    def str_short(self, *_: Any, **__: Any) -> str:
        """Names the type in a jaxpr."""
        return "Variable"

    def lo_ty_qdd(self, structure: Structure) -> list[Any]:
        """Lists the types of the arrays that stand for a content in a compiled function."""
        return [low for kind in structure.types for low in kind.lo_ty()]

    def new_from_loval(self, structure: Structure, *arrays: Any) -> Content:
        """Makes the content that such arrays stand for."""
        return Content(_raised(structure, arrays), structure.treedef)

    def read_loval(self, structure: Structure, content: Content) -> list[Any]:
        """Lists the arrays that stand for a content."""
        if content.structure.treedef != structure.treedef:
            raise ValueError(
                "a hijax Variable was to leave a transformed function with the structure"
                f" {structure.treedef}, but has {content.structure.treedef}"
            )
        pairs = zip(structure.types, content.leaves, strict=True)
        return [low for kind, leaf in pairs for low in kind.lower_val(leaf)]

    def update_from_loval(self, structure: Structure, content: Content, *arrays: Any) -> None:
        """Makes a content hold what a compiled function has left it with."""
        content.set(_raised(structure, arrays), structure.treedef)

    def to_tangent_aval(self) -> ContentType:
        """Returns the type of tangents, of which there are none; but JAX asks for it."""
        return self


def _raised(structure: Structure, arrays: Any) -> list[Any]:
    remaining = iter(arrays)
    return [kind.raise_val(*[next(remaining) for _ in kind.lo_ty()]) for kind in structure.types]


CONTENT = ContentType()
hijax.register_hitype(Content, lambda content: CONTENT)


class Access(Effect):
    """The effect of making, reading and writing a cell."""


class Reshaping(Effect):
    """The effect of writing another structure to a cell, which only `jax.jit` carries out."""

    def __repr__(self) -> str:
        return "a change of a hijax Variable's structure, dtype or shape"

    __str__ = __repr__


_ACCESS, _RESHAPING = Access(), Reshaping()
hijax.control_flow_allowed_effects.add_type(Access)


class _New(hijax.HiPrimitive):
    def abstract_eval(self) -> Any:
        return hijax.AvalQDD(CONTENT, _EMPTY), {_ACCESS}

    def to_lojax(self) -> Content:
        return Content([], _EMPTY.treedef)


class _Read(hijax.HiPrimitive):
    multiple_results = True

    def abstract_eval(self, content: Any, *, types: tuple[Any, ...]) -> Any:
        return types, {_ACCESS}

    def to_lojax(self, content: Content, *, types: tuple[Any, ...]) -> list[Any]:
        return content.leaves

    def jvp(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            "a mutable hijax Variable cannot be differentiated with respect to: pass"
            " `with_vars(x, mutable=False)` to the differentiated function"
        )


class _Write(hijax.HiPrimitive):
    multiple_results = True

    def is_high(self, *_: Any, **__: Any) -> bool:
        return True

    def abstract_eval(
        self, content: Any, *leaves: Any, treedef: Any, reshapes: bool, turn: int
    ) -> Any:
        content.mutable_qdd.update(Structure(leaves, treedef))
        return [], {_RESHAPING if reshapes else _ACCESS}

    def to_lojax(
        self, content: Content, *leaves: Any, treedef: Any, reshapes: bool, turn: int
    ) -> list[Any]:
        content.set(list(leaves), treedef)
        return []

    def jvp(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            "a value that is being differentiated cannot be written to a hijax Variable from"
            " outside of the differentiated function: write `jax.lax.stop_gradient(value)`"
        )


_EMPTY = Structure((), jax.tree.structure(()))
_NEW, _READ, _WRITE = _New("new_cell"), _Read("read_cell"), _Write("write_cell")
