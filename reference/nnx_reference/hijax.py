"""hijax and ref Variables: how a value is held so that JAX carries its changes out of transforms.

A plain Variable stores its value. Inside `jax.jit` there is a new Variable that stores a tracer;
whatever is written to that one stays inside. A hijax Variable stores, in the place of each array of
its value, a `jax.Ref`: a mutable array, which JAX passes by reference. The Variable inside holds
the very same Refs, so a write reaches the outside:

    v = Variable(jnp.array(0), hijax=True)

    @jax.jit
    def increment(v):
        v[...] += 1

Refs do all that is asked of hijax Variables: they can be arguments or be captured, in `jax.jit`, in
functions that are differentiated, in branches and loops; `vmap` and `scan` hand out their slices;
JAX refuses to pass one twice, to return one, and to differentiate with respect to one. Of what JAX
offers they are the cheapest, too. The dispatch of a `jax.jit` call takes 9 us for each Ref, against
31 us for each cell of a quasi-dynamic type; a Variable adds half a microsecond to either.

A Ref keeps its shape and dtype, and a tree of Refs its structure. Outside of all transforms a value
of another structure is held in new Refs. Inside of one that would be lost, so it is refused, with
one exception: on a JAX with quasi-dynamic types a hijax Variable whose value is a container holds
it in a cell (`cells.py`), to which `jax.jit` lets anything be written.

The flag `ref` is the same, but the Ref is there for the user to see, and there are no cells.

A Variable that is not mutable holds its value plainly: there is nothing to carry out, and it can be
differentiated with respect to. A hijax Variable does so, too, as long as only code outside of all
transforms has used it (`Unshared`). Refs are made when it is first flattened, shared or captured;
from then on each read is a copy, because a compiled function may change what is in a Ref.
"""

from __future__ import annotations

from typing import Any, NoReturn
from weakref import WeakSet, WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np

from nnx_reference.jax_private import (
    CHECKPOINT,
    delete_buffer,
    eagerly,
    is_differentiated,
    is_eager,
    quasi_dynamic,
    read_buffer,
    traced_for,
    write_buffer,
)
from nnx_reference.undoing import remember, undo

cells: Any = None
if quasi_dynamic():
    from nnx_reference import cells

_LOCAL: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The Refs that are made inside functions which are computed again, by their ids."""

_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class Unshared:
    """The value of a hijax Variable that nothing but eager code has used."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def is_ref(value: Any) -> bool:
    """Tells whether a value is a Ref, concrete or traced."""
    return type(value) is jax.Ref or isinstance(value, jax.Ref)


def is_cell(value: Any) -> bool:
    """Tells whether a value is a cell."""
    return cells is not None and type(value) is cells.Cell


def hold(value: Any, ref: bool) -> Any:
    """Returns what holds the value of a new Variable. Whatever holds a value already holds itself.

    Args:
      value: an array, a number or a pytree of them; other leaves are held as they are, and a change
        of them is a change of structure.
      ref: whether the Refs are for the user to see, so that no cell will do.
    """
    if type(value) is Unshared or is_ref(value) or is_cell(value):
        return value
    return Unshared(value) if is_eager() and not ref else _by_reference(value, ref)


def share(held: Any, ref: bool) -> Any:
    """Returns what holds a value in such a way that others may use it, too."""
    if type(held) is not Unshared:
        return held
    with eagerly():
        return _by_reference(held.value, ref)


def _by_reference(value: Any, ref: bool) -> Any:
    if isinstance(value, _ARRAYS):
        return _new_ref(value)
    if cells is not None and not ref and _is_container_of_arrays(value):
        return cells.new(value)
    return jax.tree.map(_new_ref, value)


def hold_array(value: Any) -> Any:
    """Returns what holds an array that a pytree was rebuilt around; other values stay."""
    return _new_ref(value) if isinstance(value, jax.Array) and not is_ref(value) else value


def _new_ref(value: Any) -> Any:
    if is_ref(value) or not isinstance(value, _ARRAYS):
        return value
    ref = jax.new_ref(jnp.asarray(value))
    if not is_eager() and CHECKPOINT in traced_for():
        _LOCAL[id(ref)] = ref
    return ref


def _is_container_of_arrays(value: Any) -> bool:
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: leaf is not value)
    if len(leaves) == 1 and leaves[0] is value:
        return False
    return all(isinstance(x, _ARRAYS) and not is_ref(x) for x in jax.tree.leaves(value))


def read(held: Any) -> Any:
    """Returns the value that is held; arrays that later writes leave alone."""
    if type(held) is Unshared:
        return held.value
    if is_ref(held):
        return _read_ref(held)
    if is_cell(held):
        return cells.read(held)
    return jax.tree.map(lambda leaf: _read_ref(leaf) if is_ref(leaf) else leaf, held)


def _read_ref(ref: Any) -> jax.Array:
    if type(ref) is jax.Ref:
        if is_eager():
            return read_buffer(ref)
        _note_capture(ref)
    return ref[...]


def is_like(held: Any, value: Any) -> bool:
    """Tells whether a Ref holds an array, and a value is another one of its shape and dtype."""
    return is_ref(held) and isinstance(value, jax.Array) and _fits_ref(held, value)


def fits(held: Any, value: Any) -> bool:
    """Tells whether a value can be written in place: one of the same structure, dtypes and shapes.

    To a cell anything made of arrays can.
    """
    if is_cell(held):
        return all(isinstance(leaf, _ARRAYS) for leaf in jax.tree.leaves(value))
    refs: Any = jax.tree.flatten(held)
    items: Any = jax.tree.flatten(value)
    return refs[1] == items[1] and all(map(_fits_ref, refs[0], items[0]))


def _fits_ref(ref: Any, item: Any) -> bool:
    if not is_ref(ref) or not isinstance(item, _ARRAYS):
        return False
    array = item if isinstance(item, jax.Array) else jnp.asarray(item)
    return array.shape == ref.shape and array.dtype == ref.dtype


def write(held: Any, value: Any, kind: type) -> None:
    """Writes a value that fits in place.

    Args:
      held: what holds it.
      value: the value.
      kind: the Variable's class, for errors to name.

    Raises:
      ValueError: the value is being differentiated, and what holds it is not.
    """
    try:
        _write(held, value, kind)
    except Exception:
        undo()
        raise


def _write(held: Any, value: Any, kind: type) -> None:
    if is_cell(held):
        if CHECKPOINT in traced_for() and not _is_local(held.guard):
            _refuse_again(kind)
        cells.write(held, value)
        return
    pairs = list(zip(jax.tree.leaves(held), jax.tree.leaves(value), strict=True))
    for ref, item in pairs:
        if is_differentiated(item) and not is_differentiated(ref):
            raise ValueError(
                f"a value that is being differentiated cannot be written to a {kind.__name__} from"
                " outside of the differentiated function, as no gradient would flow through it:"
                " write `jax.lax.stop_gradient(value)`, or make the Variable inside"
            )
    traces = list(traced_for())
    if "while_cond" in traces:
        raise ValueError(
            f"a {kind.__name__} cannot be written in the condition of a while_loop, from where JAX"
            " does not carry it out: write it in the body"
        )
    if CHECKPOINT in traces and not all(_is_local(ref) for ref, _ in pairs):
        _refuse_again(kind)
    for ref, item in pairs:
        _write_ref(ref, jnp.asarray(item))


def _refuse_again(kind: type) -> NoReturn:
    raise ValueError(
        f"a {kind.__name__} with hijax=True or ref=True cannot be written inside a function that is"
        " computed again in the backward pass, as it would be written again: use nnx.remat, and"
        f" pass the {kind.__name__} to the function"
    )


def _is_local(ref: Any) -> bool:
    """Tells whether a Ref was made inside the innermost function that is computed again."""
    return _LOCAL.get(id(ref)) is ref


def _write_ref(ref: Any, array: jax.Array) -> None:
    if type(ref) is jax.Ref:
        if is_eager():
            write_buffer(ref, array)
            return
        _note_capture(ref)
        remember(ref)
    # Of an index that names all axes JAX 0.10.2 moves the axis along which it maps, of `...` not.
    ref[(slice(None),) * ref.ndim or ...] = array


_captured: WeakSet[Any] = WeakSet()
"""The Refs that compiled functions may hold, and so go on to read and write."""


def _note_capture(ref: Any) -> None:
    if any(traced_for()):
        _captured.add(ref)


def retire(held: Any) -> None:
    """Makes Refs unusable, whose place others take, for compiled functions that hold them.

    They would not notice otherwise, and go on to read and write what is no longer seen.
    """
    for leaf in jax.tree.leaves(held):
        if is_ref(leaf) and leaf in _captured:
            delete_buffer(leaf)


def refuse(held: Any, value: Any, kind: type) -> NoReturn:
    """Raises the error for a value that does not fit, inside a transform."""
    undo()
    raise ValueError(
        f"a {kind.__name__} that holds {_describe(held)} cannot be set to {_describe(value)} inside"
        " a transformed function, which carries out new elements only, no change of structure,"
        " dtype or shape: cast the value (`v[...] = x` does), make the change outside, or make the"
        f" {kind.__name__} with what it is to hold"
    )


def _describe(value: Any) -> str:
    def describe(leaf: Any) -> str:
        if is_ref(leaf) or hasattr(leaf, "dtype"):
            return f"{leaf.dtype}{list(leaf.shape)}"
        return jnp.asarray(leaf).dtype.name + "[]" if isinstance(leaf, _ARRAYS) else repr(leaf)

    return str(jax.tree.map(describe, read(value) if is_cell(value) else value))


def _is_differentiated_reference(leaf: Any) -> bool:
    return is_differentiated(leaf) and not isinstance(leaf, jax.Array)


def check_not_differentiated(held: Any, kind: type) -> None:
    """Checks that what a pytree was rebuilt around is not being differentiated by reference.

    Raises:
      ValueError: it is.
    """
    if any(map(_is_differentiated_reference, jax.tree.leaves(held))):
        raise ValueError(
            f"a mutable {kind.__name__} with hijax=True or ref=True cannot be differentiated with"
            " respect to: pass `with_vars(x, mutable=False)` to the differentiated function"
        )
