"""Axis metadata: the names of a Variable's axes inside and outside of a transform."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.transforms.axes import Axis, counted
from nnx_spec.chapters.transforms.axis_names import (
    FORMS,
    SIZE,
    TREE,
    Names,
    annotated,
    inserted,
    named,
    names_of,
)

SEPARATE = [name for name in FORMS if "keyword" not in name]
"""The forms with `transform_metadata` as a transform of its own."""


@clause("TREE-008", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#transform_metadata")
class TestTransformMetadata:
    """`transform_metadata(f, in_axes, out_axes, partition)` keeps names in step with mapped axes.

    It stands under `vmap`, `scan` or `jax.vmap` with the same axes. In the function the Variables
    lack the name of the axis that is mapped away; those that come out have `partition` where
    `out_axes` put the new axis, and those that went in have the names that they had.
    """

    @pytest.mark.parametrize("form", SEPARATE)
    @pytest.mark.parametrize(("axis", "out"), [(1, 2), (2, 0)])
    def test_names(self, nnx, form, axis, out):
        def function(v):
            inside.append(names_of(v))
            v[...] *= 2
            return nnx.Param(v + 0, out_sharding=("c", "d"), eager_sharding=False)

        inside = []
        v = annotated(nnx, ("a", "b"), 2, axis, "x")
        value = v.get_value()
        made = FORMS[form](nnx, function, {"in_axes": axis, "out_axes": out}, "x")(v)
        assert set(inside) == {("a", "b")}
        assert names_of(made) == inserted(("c", "d"), out, "x")
        assert made.get_value().shape == inserted((2, 2), out, SIZE)
        assert names_of(v) == inserted(("a", "b"), axis, "x")
        expected = value if form == "jax.vmap" else value * 2
        assert v.get_value().tolist() == expected.tolist()

    @pytest.mark.parametrize("form", ["vmap", "vmap in graph mode", "jax.vmap"])
    def test_arguments_with_axes_of_their_own(self, nnx, form):
        def function(tree, x):
            inside.append((names_of(tree["v"]), names_of(tree["w"])))
            return {
                "v": named(nnx, tree["v"] * x, ("a",)),
                "w": named(nnx, x + jnp.zeros(2), ("c",)),
            }

        inside = []
        tree = {"v": annotated(nnx, ("a",), 1, 1, "x"), "w": annotated(nnx, ("b",), 1, None, "x")}
        axes = {"in_axes": ({"v": 1, "w": None}, 0), "out_axes": {"v": 1, "w": 0}}
        made = FORMS[form](nnx, function, axes, "x")(tree, counted((SIZE,)))
        assert set(inside) == {(("a",), ("b",))}
        assert (names_of(made["v"]), names_of(made["w"])) == (("a", "x"), ("x", "c"))
        assert (names_of(tree["v"]), names_of(tree["w"])) == (("a", "x"), ("b",))

    def test_decorators(self, nnx):
        @nnx.vmap(in_axes=0, out_axes=0, **TREE)
        @nnx.transform_metadata(in_axes=0, out_axes=0, partition="din", graph=False)
        def create_stack(seed):
            return named(nnx, seed + jnp.zeros(4), ("dout",))

        stack = create_stack(counted((8,)))
        assert (names_of(stack), stack.get_value().shape) == (("din", "dout"), (8, 4))

    def test_scan_with_a_carry(self, nnx):
        def function(carry, v):
            inside.append(names_of(v))
            return carry + v.sum(), named(nnx, carry + jnp.zeros(2), ("c",))

        inside = []
        v = annotated(nnx, ("a",), 1, 1, "x")
        axes = {"in_axes": (nnx.Carry, 1), "out_axes": (nnx.Carry, 0)}
        total, made = FORMS["scan"](nnx, function, axes, "x")(jnp.float32(0), v)
        assert (float(total), set(inside), names_of(made)) == (15, {("a",)}, ("x", "c"))


@clause("TREE-015", SHOULD, OURS, source="names that are given and not heeded are wrong afterwards")
@pytest.mark.parametrize("name", ["vmap", "scan", "pmap"])
def test_keyword_is_refused(nnx, name):
    """In tree mode, the keyword `transform_metadata` of a transform raises TypeError or ValueError.

    The proposal for tree mode says that the transforms do not support it.
    """
    axes = {"in_axes": 0, "out_axes": 0}
    v = named(nnx, counted((len(jax.devices()),)), ("x",))
    metadata = {nnx.PARTITION_NAME: "x"}
    with pytest.raises((TypeError, ValueError)):
        getattr(nnx, name)(lambda v: v + 1, **axes, transform_metadata=metadata, **TREE)(v)


@dataclass(frozen=True)
class Case:
    """A Variable's element and axis, whether the axis has a name, and where a new one comes out."""

    element: Names
    is_named: bool
    axis: Axis
    out: Axis
    partition: str | None

    def names(self) -> Names | None:
        """Returns the names of an element's axes; None if the Variable has none."""
        return self.element if self.is_named else None

    def outside(self, axis: Axis) -> Names | None:
        """Returns the names of a stack of elements."""
        return inserted(self.element, axis, self.partition) if self.is_named else None


@st.composite
def cases(draw, *, broadcast=True):
    """Draws Variables of rank 0 to 2 with names, or without, and axes from either end, or None."""
    element = draw(st.lists(st.sampled_from(["a", "b", None]), max_size=2).map(tuple))
    rank = len(element)
    axes = st.integers(-(rank + 1), rank) | (st.none() if broadcast else st.nothing())
    partition = draw(st.sampled_from(["x", None]))
    return Case(element, draw(st.integers(0, 4)) > 0, draw(axes), draw(axes), partition)


SCANS = {
    "leading": Case(("a", None), True, 0, 0, "x"),
    "other": Case(("a", "b"), True, 1, 2, "x"),
    "negative": Case(("a", "b"), True, -1, -2, "x"),
    "without name": Case(("a",), True, 1, 0, None),
    "scalar": Case((), True, 0, -1, "x"),
    "absent": Case(("a",), False, 1, 0, "x"),
}


@clause("TREE-012", MUST, DOCUMENTED, source="guides/transforms#axis-metadata")
class TestOneNamePerAxis:
    """A Variable with names for its axes has one for each axis at every moment.

    So it is inside of `vmap` and `scan`, outside of them and for what comes out of them: for axes
    counted from the front or the back, for what is not mapped, for scalars, and whether the mapped
    axis has a name or None. A Variable without names gets none.
    """

    @pytest.mark.parametrize("form", [name for name in FORMS if "vmap" in name])
    @given(case=cases())
    def test_vmap(self, nnx, form, case):
        self.check(nnx, form, case)

    @pytest.mark.parametrize("form", ["scan", "scan by keyword"])
    @pytest.mark.parametrize("name", SCANS)
    def test_scan(self, nnx, form, name):
        self.check(nnx, form, SCANS[name])

    def check(self, nnx, form, case):
        def function(v, x):
            inside.append((names_of(v), v.get_value().ndim))
            y = jnp.zeros((2,) * rank) if case.out is None else x + jnp.zeros((2,) * rank)
            return named(nnx, y, case.names())

        inside, rank = [], len(case.element)
        v = annotated(nnx, case.names(), rank, case.axis, case.partition)
        axes = {"in_axes": (case.axis, 0), "out_axes": case.out}
        made = FORMS[form](nnx, function, axes, case.partition)(v, counted((SIZE,)))
        assert set(inside) == {(case.names(), rank)}
        assert names_of(v) == case.outside(case.axis)
        assert names_of(made) == case.outside(case.out)
        assert made.get_value().ndim == rank + (case.out is not None)

    def test_nested(self, nnx):
        def function(v):
            inside.append(names_of(v))
            return named(nnx, v + 0, ("a",))

        inside = []
        inner = FORMS["vmap"](nnx, function, {"in_axes": -1, "out_axes": 0}, "x")
        outer = FORMS["vmap"](nnx, inner, {"in_axes": 0, "out_axes": -1}, "y")
        v = named(nnx, counted((3, 2, 4)), ("y", "a", "x"))
        made = outer(v)
        assert (set(inside), names_of(v)) == ({("a",)}, ("y", "a", "x"))
        assert (names_of(made), made.get_value().shape) == (("x", "a", "y"), (4, 2, 3))
