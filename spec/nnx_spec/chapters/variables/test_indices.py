"""Indexed writes: replacing a part of an array value, whatever the form of the index."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, MUST, clause
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import array_record, user_metadata
from nnx_spec.plans import classes

BASE = np.arange(12, dtype="float32").reshape(4, 3) + 100
"""What the indices below select from."""

INDICES = {
    "int": 1,
    "negative-int": -2,
    "numpy-int": np.int32(2),
    "0-d-array": np.array(3),
    "ellipsis": ...,
    "empty-tuple": (),
    "full-slice": slice(None),
    "slice": slice(1, 3),
    "slice-from": slice(2, None),
    "slice-to": slice(None, -1),
    "strided-slice": slice(0, 4, 2),
    "reversed": slice(None, None, -1),
    "strided-backwards": slice(3, 0, -2),
    "empty-slice": slice(2, 2),
    "overlong-slice": slice(1, 99),
    "newaxis": None,
    "two-ints": (1, -1),
    "int-slice": (0, slice(0, 2)),
    "slice-int": (slice(1, None, 2), 2),
    "two-slices": (slice(None, None, 3), slice(None, None, -1)),
    "ellipsis-int": (..., 1),
    "int-ellipsis": (3, ...),
    "slice-newaxis-int": (slice(None), None, 0),
    "newaxis-ellipsis": (None, ..., slice(0, 1)),
    "int-array": np.array([2, 0]),
    "negative-int-array": np.array([-1, 1]),
    "uint8-array": np.array([3, 1], "uint8"),
    "2-d-int-array": np.array([[0, 3], [1, 2]]),
    "empty-int-array": np.array([], "int32"),
    "paired-arrays": (np.array([0, 1, 3]), np.array([2, 0, 1])),
    "broadcast-arrays": (np.array([[3], [1]]), np.array([0, 2])),
    "array-slice": (np.array([1, 2]), slice(0, 2)),
    "slice-array": (slice(2, 4), np.array([2, 0])),
    "array-int": (np.array([0, 3]), 1),
    "int-array-pair": (-1, np.array([1, 2])),
    "array-newaxis": (np.array([1, 3]), None, slice(None)),
    "mask": BASE % 2 == 0,
    "row-mask": np.array([True, False, False, True]),
    "row-mask-int": (np.array([False, True, True, False]), 2),
    "slice-column-mask": (slice(1, 3), np.array([True, False, True])),
    "no-row-mask": np.zeros(4, bool),
}
"""Every kind of index that NumPy has and `.at[index].set` takes, by name."""

EAGER = (
    "int",
    "ellipsis",
    "slice",
    "strided-backwards",
    "slice-int",
    "int-array",
    "paired-arrays",
    "mask",
    "row-mask",
)
"""One index of each kind: outside a trace every one costs a compilation."""

SCALAR, ARRAY = np.int32(2), np.array([1, 2])

TRACED_INDICES = {
    "scalar": lambda i, a: i,
    "negative-scalar": lambda i, a: i - 4,
    "array": lambda i, a: a,
    "scalar-slice": lambda i, a: (i, slice(0, 2)),
    "slice-scalar": lambda i, a: (slice(None, None, -1), i),
    "two-arrays": lambda i, a: (a, a - 3),
    "ellipsis-array": lambda i, a: (..., a - 1),
    "newaxis-scalar": lambda i, a: (None, i),
}
"""Indices that depend on `SCALAR` and `ARRAY`, which are traced."""


def fresh(index):
    """Makes elements to write at an index, each different from all others."""
    shape = BASE[index].shape
    return -1 - np.arange(np.prod(shape), dtype="float32").reshape(shape)


def traced_writes(nnx, indices, parts):
    """Writes each part at its index into a new Variable, in one trace.

    Args:
      nnx: the target.
      indices: functions that make an index of a traced scalar and array, by name.
      parts: what to write, by the same names.

    Returns:
      The Variables' values, or what was raised, by name.
    """
    failures = {}

    @jax.jit
    def write_all(x, scalar, array, parts):
        written = {}
        for name, index in indices.items():
            v = nnx.Param(x)
            try:
                v[index(scalar, array)] = parts[name]
                written[name] = v[...]
            except Exception as error:
                failures[name] = error
        return written

    return write_all(BASE, SCALAR, ARRAY, parts) | failures


@functools.cache
def writes_at_constants(nnx):
    """Writes at each of `INDICES`."""
    indices = {name: lambda i, a, index=index: index for name, index in INDICES.items()}
    return traced_writes(nnx, indices, {name: fresh(index) for name, index in INDICES.items()})


@functools.cache
def writes_at_tracers(nnx):
    """Writes -1 at each of `TRACED_INDICES`."""
    return traced_writes(nnx, TRACED_INDICES, dict.fromkeys(TRACED_INDICES, np.float32(-1)))


def assert_written(result, index, y):
    """Compares what a Variable holds after a write with what NumPy makes of it."""
    if isinstance(result, Exception):
        raise result
    expected = BASE.copy()
    expected[index] = y
    assert array_record(result) == array_record(expected)


@clause("VAR-003", MUST, CONVENTION, source="jax.numpy.ndarray.at")
class TestIndexedWrites:
    """`v[index] = y` on an array value writes that part and no other, for every index
    `.at[index].set` takes.

    Those are integers, slices with any step, `...`, `None`, arrays of integers, boolean masks and
    tuples of these, concrete or, where JAX has it, traced. `y` is broadcast and converted to the
    dtype of the value, whose shape and dtype stay.
    """

    @pytest.mark.parametrize("name", EAGER)
    def test_index(self, nnx, name):
        index = INDICES[name]
        v = nnx.Param(jnp.asarray(BASE))
        v[index] = jnp.asarray(fresh(index))
        assert_written(v[...], index, fresh(index))
        assert array_record(v[index]) == array_record(fresh(index))

    @pytest.mark.parametrize("name", INDICES)
    def test_index_in_a_trace(self, nnx, name):
        index = INDICES[name]
        assert_written(writes_at_constants(nnx)[name], index, fresh(index))

    @pytest.mark.parametrize("name", TRACED_INDICES)
    def test_traced_index(self, nnx, name):
        assert_written(writes_at_tracers(nnx)[name], TRACED_INDICES[name](SCALAR, ARRAY), -1.0)

    @pytest.mark.parametrize(
        ("index", "y", "rows"),
        [
            (slice(0, 2), 7, [[7, 7], [7, 7], [4, 5]]),
            (..., np.array([8, 9]), [[8, 9], [8, 9], [8, 9]]),
            ((slice(None), 0), np.array([[6], [7], [8]])[:, 0], [[6, 1], [7, 3], [8, 5]]),
            (1, True, [[0, 1], [1, 1], [4, 5]]),
            (..., 3, [[3, 3], [3, 3], [3, 3]]),
        ],
        ids=["number", "row", "column", "bool", "whole"],
    )
    @pytest.mark.parametrize("dtype", ["int32", "bfloat16"])
    def test_broadcast_and_dtype(self, nnx, dtype, index, y, rows):
        v = nnx.Variable(array([[0, 1], [2, 3], [4, 5]], dtype))
        v[index] = y
        assert array_record(v[...]) == array_record(array(rows, dtype))

    def test_identity_and_metadata_stay(self, nnx):
        x = array([1, 2, 3])
        model = classes(nnx).Net()
        model.v = v = nnx.BatchStat(x, tag="t")
        v[1] = 9.0
        assert model.v is v
        assert (type(v), user_metadata(v)) == (nnx.BatchStat, {"tag": "t"})
        assert x.tolist() == [1, 2, 3]
