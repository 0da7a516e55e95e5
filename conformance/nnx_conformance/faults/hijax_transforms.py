"""Faults of the chapter on hijax Variables: refs, gradients, sharing, control flow and tracing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.hijax_modes import replace_views
from nnx_conformance.faults.hijax_propagation import (
    is_tracing,
    note_eager_variables,
    skip_writes,
)
from nnx_conformance.faults.variables import around


def variables_of(nnx: Any, node: Any) -> list[Any]:
    """Lists the Variables of an object or a pytree of them."""
    leaves = jax.tree.leaves(node, is_leaf=lambda value: isinstance(value, nnx.Variable))
    return [leaf for leaf in leaves if isinstance(leaf, nnx.Variable)]


def is_integer(v: Any) -> bool:
    """Tells whether a Variable's value is an array of integers."""
    dtype = getattr(v.get_value(), "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer)


@fault(breaks="HJX-023")
def reading_a_ref_gives_the_ref(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`v[...]` of a ref Variable is its Ref."""

    def getitem(original: Any, self: Any, index: Any) -> Any:
        return self.get_raw_value() if self.ref and index is ... else original(self, index)

    around(patch, nnx.Variable, "__getitem__", getitem)


@fault(breaks="HJX-023")
def each_write_makes_a_new_ref(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`get_raw_value` of a ref Variable gives another Ref after each write to the Variable."""
    refs: dict[int, Any] = {}

    def set_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.ref and not is_tracing():
            refs[id(self)] = jax.new_ref(self.get_value())

    def get_raw_value(original: Any, self: Any) -> Any:
        return refs.get(id(self), original(self)) if self.ref else original(self)

    around(patch, nnx.Variable, "set_value", set_value)
    around(patch, nnx.Variable, "get_raw_value", get_raw_value)


@fault(breaks="HJX-024 HJX-036 HJX-037")
def indexed_writes_stay_inside(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A write to a part of an array is lost in a transform."""

    def setitem(original: Any, self: Any, index: Any, item: Any) -> None:
        if isinstance(index, int) and is_tracing():
            return
        original(self, index, item)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="HJX-024")
def captured_refs_are_read_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a `jax.jit` function writes to a ref Variable that it captures is lost."""
    is_eager = note_eager_variables(nnx, patch)
    skip_writes(nnx, patch, lambda v, name: v.ref and is_tracing() and is_eager(v))


@fault(breaks="HJX-025")
def mutability_comes_back_without_the_ref(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The mutable view of an immutable view of a ref Variable is no ref Variable."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        return original(node, **({"ref": False} if flags.get("mutable") else {}), **flags)

    replace_views(nnx, patch, view)


@fault(breaks="HJX-026")
def gradients_are_too_large(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Gradients with respect to Variables are 1% too large."""

    def get_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        def enlarge(x: Any) -> Any:
            if not isinstance(x, jax.core.Tracer) or not jnp.issubdtype(x.dtype, jnp.floating):
                return x
            return x + 0.01 * (x - jax.lax.stop_gradient(x))

        return jax.tree.map(enlarge, original(self, *args, **kwargs))

    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="HJX-026")
def items_have_no_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The gradient with respect to an item of a Variable's value is zero."""

    def getitem(original: Any, self: Any, index: Any) -> Any:
        item = original(self, index)
        return jax.lax.stop_gradient(item) if isinstance(index, str) else item

    around(patch, nnx.Variable, "__getitem__", getitem)


@fault(breaks="HJX-027")
def mutable_variables_have_zero_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A hijax Variable can be differentiated with respect to, and the gradient is zero."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        constant = {"hijax": False, "constant": True} if metadata.get("hijax") else {}
        original(self, value, **{**metadata, **constant})

    def get_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        return jax.lax.stop_gradient(value) if self.has_metadata("constant") else value

    around(patch, nnx.Variable, "__init__", init)
    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="HJX-028 HJX-029 HJX-033")
def merged_variables_are_copies_under_jit(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` in a `jax.jit` function copies the Variables, so that their updates are lost."""
    original = nnx.merge

    def merge(*args: Any, **options: Any) -> Any:
        return original(*args, **{**options, "copy": is_tracing()})

    patch.setattr(nnx, "merge", merge)


@fault(breaks="HJX-028 HJX-029 HJX-040")
def drawing_under_jit_is_not_counted(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A random stream that draws a key in a `jax.jit` function keeps its count."""

    def call(original: Any, self: Any) -> Any:
        before = self.count[...]
        key = original(self)
        if is_tracing():
            self.count[...] = before
        return key

    around(patch, nnx.RngStream, "__call__", call)


@fault(breaks="HJX-028 HJX-034")
def captured_variables_take_no_items(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a traced function writes to an item of a Variable that it captures is lost."""
    is_eager = note_eager_variables(nnx, patch)

    def setitem(original: Any, self: Any, index: Any, item: Any) -> None:
        if not (isinstance(index, str) and is_tracing() and is_eager(self)):
            original(self, index, item)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="HJX-034")
def captured_statistics_are_lost(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a traced function writes to a BatchStat that it captures is lost."""
    is_eager = note_eager_variables(nnx, patch)

    def skips(v: Any, name: str) -> bool:
        return isinstance(v, nnx.BatchStat) and is_tracing() and is_eager(v)

    skip_writes(nnx, patch, skips)


@fault(breaks="HJX-029")
def statistics_move_too_fast(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The momentum of a BatchNorm is 0.98 by default."""

    class BatchNorm(nnx.BatchNorm):
        def __init__(self, *args: Any, momentum: float = 0.98, **kwargs: Any) -> None:
            super().__init__(*args, momentum=momentum, **kwargs)

    patch.setattr(nnx, "BatchNorm", BatchNorm)


@fault(breaks="HJX-030")
def variables_made_under_jit_are_plain(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that is made in a `jax.jit` function is never a hijax one, so it may come out."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        original(self, value, **{**metadata, **({"hijax": False} if is_tracing() else {})})

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="HJX-030 HJX-042")
def plain_views_are_untagged(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables of a view with `hijax=False` have no metadata `tag`."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        found = original(node, **flags)
        for v in variables_of(nnx, found) if flags.get("hijax") is False else ():
            if "tag" in v.get_metadata():
                v.del_metadata("tag")
        return found

    replace_views(nnx, patch, view)


@fault(breaks="HJX-030")
def hijax_views_of_modules_are_plain(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The view of a Module with `hijax=True` is a clone with plain Variables."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        plain = {"hijax": False} if isinstance(node, nnx.Module) and flags.get("hijax") else {}
        return original(node, **{**flags, **plain})

    replace_views(nnx, patch, view)


@fault(breaks="HJX-031 HJX-033")
def modules_copy_what_they_have(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Module that has a hijax Variable already takes a copy of it for another attribute."""
    original = nnx.Module.__setattr__

    def setattribute(self: Any, name: str, value: Any) -> None:
        if isinstance(value, nnx.Variable) and any(value is other for other in vars(self).values()):
            value = value.copy()
        original(self, name, value)

    patch.setattr(nnx.Module, "__setattr__", setattribute, raising=False)


def follow(node: Any, path: Iterable[Any]) -> Any:
    """Returns what stands at a path of attributes and items."""
    for key in path:
        node = getattr(node, key) if hasattr(node, str(key)) else node[key]
    return node


@fault(breaks="HJX-032")
def hijax_duplicates_are_overlooked(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`find_duplicates` finds nodes and plain Variables only."""
    original = nnx.find_duplicates

    def find_duplicates(node: Any, **options: Any) -> Any:
        found = original(node, **options)
        return [p for p in found if not isinstance(follow(node, p[0]), nnx.Variable)]

    patch.setattr(nnx, "find_duplicates", find_duplicates)


@fault(breaks="HJX-032")
def duplicates_are_not_filtered(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`find_duplicates` pays no attention to `only`."""
    original = nnx.find_duplicates
    patch.setattr(nnx, "find_duplicates", lambda node, only=...: original(node))


@fault(breaks="HJX-033")
def merge_makes_two_of_one(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` puts a copy in the last of the places of a shared Variable."""
    original = nnx.merge

    def merge(*args: Any, **options: Any) -> Any:
        merged = original(*args, **options)
        for *_, (*path, key) in nnx.find_duplicates(merged, only=nnx.Variable):
            parent = follow(merged, path)
            if isinstance(parent, nnx.Module):
                setattr(parent, key, getattr(parent, key).copy())
        return merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="HJX-035 HJX-040")
def integers_are_not_carried_out(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written to a Variable of integers in a transform is lost."""
    skip_writes(nnx, patch, lambda v, name: is_tracing() and is_integer(v))


@fault(breaks="HJX-035")
def stacks_are_of_their_first_layer(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A hijax view repeats the first slice of a value along its first axis."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        found = original(node, **flags)
        for v in variables_of(nnx, found) if flags.get("hijax") else ():
            value = v.get_value()
            if isinstance(value, jax.Array) and value.ndim > 2:
                v.set_value(jnp.broadcast_to(value[0], value.shape))
        return found

    replace_views(nnx, patch, view)


@fault(breaks="HJX-037 HJX-038 HJX-039")
def what_was_traced_is_remembered(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A captured Variable has the last value that a trace wrote to it among its metadata."""
    is_eager = note_eager_variables(nnx, patch)
    last: dict[int, Any] = {}

    def set_value(original: Any, self: Any, value: Any, **kwargs: Any) -> None:
        original(self, value, **kwargs)
        if is_tracing() and is_eager(self):
            last[id(self)] = value

    def get_metadata(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        whole = not args and not kwargs and id(self) in last
        return {**found, "last": last[id(self)]} if whole else found

    around(patch, nnx.Variable, "set_value", set_value)
    around(patch, nnx.Variable, "get_metadata", get_metadata)


@fault(breaks="HJX-038 HJX-039")
def traced_integers_are_floats(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An array of integers is read as one of floats in a transform."""

    def get_value(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        traced = isinstance(value, jax.core.Tracer)
        return value.astype(float) if traced and value.dtype == jnp.int32 else value

    around(patch, nnx.Variable, "get_value", get_value)


@fault(breaks="HJX-041")
def hijax_leaves_are_untagged(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables of a State of hijax Variables have no metadata `tag`."""
    original = nnx.state

    def state(node: Any, *filters: Any, **options: Any) -> Any:
        found = original(node, *filters, **options)
        for v in variables_of(nnx, found):
            if v.hijax and "tag" in v.get_metadata():
                v.del_metadata("tag")
        return found

    patch.setattr(nnx, "state", state)


@fault(breaks="HJX-041")
def clones_of_hijax_variables_share_them(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`clone` clones the nodes, and leaves the Variables of hijax objects shared."""
    original = nnx.clone

    def clone(node: Any, variables: bool = True, **options: Any) -> Any:
        return original(node, not any(v.hijax for v in variables_of(nnx, node)), **options)

    patch.setattr(nnx, "clone", clone)


@fault(breaks="HJX-042")
def hijax_views_drop_none(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables of a hijax view have no metadata whose value is None."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        found = original(node, **flags)
        for v in variables_of(nnx, found) if flags.get("hijax") else ():
            for name in [name for name, value in v.get_metadata().items() if value is None]:
                v.del_metadata(name)
        return found

    replace_views(nnx, patch, view)


@fault(breaks="HJX-042")
def hijax_views_widen_bfloat16(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A hijax view of a Variable of bfloat16 holds float32."""

    def view(original: Any, node: Any, **flags: Any) -> Any:
        found = original(node, **flags)
        for v in variables_of(nnx, found) if flags.get("hijax") else ():
            if getattr(v.get_value(), "dtype", None) == jnp.bfloat16:
                v.set_value(v.get_value().astype("float32"))
        return found

    replace_views(nnx, patch, view)
