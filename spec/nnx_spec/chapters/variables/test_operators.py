"""Operators and functions: a Variable computes as its value does."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MUST, TESTED, clause
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import array_record, user_metadata, value_record

NUMBERS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "divmod": divmod,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
"""Binary operators on numbers."""

BITS = {
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
"""Binary operators on integers."""

UNARY = {"-": operator.neg, "+": operator.pos, "abs": abs, "~": operator.invert}

NUMBER_PAIRS = {
    "arrays": lambda: (array([1, 2, 3]), array([3, 2, 2])),
    "array-number": lambda: (array([1, 2, 3]), 2),
    "number-array": lambda: (2, array([1, 2, 3])),
    "array-numpy": lambda: (array([1, 2, 3]), np.float32([3, 2, 2])),
    "numpy-array": lambda: (np.float32([3, 2, 2]), array([1, 2, 3])),
    "numpy-scalar-array": lambda: (np.float32(2), array([1, 2, 3])),
    "numpy": lambda: (np.float32([[4], [9]]), np.float32([2, 3])),
    "int-float": lambda: (7, 2.5),
    "float-int": lambda: (7.5, 2),
    "ints": lambda: (7, 2),
}
"""Pairs of operands, by name."""

TRACED_PAIRS = {
    "broadcast": (np.int32([[5], [3]]), np.int32([1, 3, 2])),
    "0-d": (np.float32(3), np.float32([3, 2, 2])),
    "two-dtypes": (np.int32([1, 2, 3]), np.float32([3, 2, 2])),
    "half": (np.float16([1, 5]), np.float16([2, 3])),
}
"""Pairs of operands to trace, by name."""

BIT_PAIRS = {
    "arrays": lambda: (array([5, 6], "int32"), array([3, 1], "int32")),
    "bytes": lambda: (array([5, 6], "uint8"), array([3, 1], "uint8")),
    "array-number": lambda: (array([5, 6], "int32"), 3),
    "number-array": lambda: (3, array([5, 6], "int32")),
    "numpy-array": lambda: (np.int32([3, 1]), array([5, 6], "int32")),
    "array-numpy": lambda: (array([5, 6], "int32"), np.int32([3, 1])),
    "ints": lambda: (6, 3),
}
"""Pairs of operands that are integers, by name."""

MATRIX_PAIRS = {
    "matrices": lambda: (array([[1, 2], [3, 4]]), array([[0, 1], [5, 2]])),
    "matrix-vector": lambda: (array([[1, 2], [3, 4]]), array([5, 6])),
    "vector-matrix": lambda: (array([5, 6]), array([[1, 2], [3, 4]])),
    "vectors": lambda: (array([1, 2]), array([3, 4])),
    "numpy-matrix": lambda: (np.float32([[7, 8]]), array([[1, 2], [3, 4]])),
    "matrix-numpy": lambda: (array([[1, 2], [3, 4]]), np.float32([[7], [8]])),
}
"""Pairs of operands of `@`, by name."""

SIDES = ("left", "right", "both")


def wrap(nnx, side, a, b):
    """Puts the left operand, the right one or both into Variables."""
    left = a if side == "right" else nnx.Param(a, tag="left")
    right = b if side == "left" else nnx.BatchStat(b, tag="right")
    return left, right


def assert_same(result, expected):
    """Compares results exactly, weakness of type included; neither may be a Variable."""
    assert value_record(result) == value_record(expected)
    kinds = [[is_weak(x) for x in jax.tree.leaves(tree)] for tree in (result, expected)]
    assert kinds[0] == kinds[1]


def is_weak(x):
    """Tells whether a value promotes as a Python number does."""
    return isinstance(x, (bool, int, float, complex)) or getattr(x, "weak_type", False)


@functools.cache
def traced_results(nnx):
    """Applies the operators to every pair and side, and plainly, in one trace."""
    failures = {}

    @jax.jit
    def apply_all(pairs):
        results = {}
        for symbol, function in NUMBERS.items():
            for pair, (a, b) in pairs.items():
                results[symbol, pair, "plain"] = function(a, b)
                for side in SIDES:
                    try:
                        results[symbol, pair, side] = function(*wrap(nnx, side, a, b))
                    except Exception as error:
                        failures[symbol, pair, side] = error
        return results

    return apply_all(TRACED_PAIRS) | failures


class Other:
    """An operand that arrays know nothing of, with reflected operators of its own."""

    def __radd__(self, other):
        return ("radd", other)

    def __rmatmul__(self, other):
        return ("rmatmul", other)


@clause("VAR-005", MUST, TESTED, source="tests/nnx/variable_test.py::TestVariable::test_binary_ops")
class TestOperators:
    """An operator on a Variable gives what it gives on the value, and changes no operand.

    These are the arithmetic, bitwise, shift and comparison operators, `divmod`, `**`, `@`, `abs`
    and the unary ones. The Variable may be the left operand, the right one or both, and the other
    operand a Variable, a JAX or NumPy array or a number.
    """

    @staticmethod
    def assert_agrees(nnx, side, function, a, b):
        left, right = wrap(nnx, side, a, b)
        before = [value_record(x) for x in (a, b)]
        assert_same(function(left, right), function(a, b))
        assert [value_record(x) for x in (a, b)] == before
        for operand, value in ((left, a), (right, b)):
            if operand is not value:
                assert operand.get_raw_value() is value
                assert "tag" in user_metadata(operand)

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("pair", NUMBER_PAIRS)
    @pytest.mark.parametrize("symbol", NUMBERS)
    def test_numbers(self, nnx, symbol, pair, side):
        self.assert_agrees(nnx, side, NUMBERS[symbol], *NUMBER_PAIRS[pair]())

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("pair", BIT_PAIRS)
    @pytest.mark.parametrize("symbol", BITS)
    def test_bits(self, nnx, symbol, pair, side):
        self.assert_agrees(nnx, side, BITS[symbol], *BIT_PAIRS[pair]())

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("symbol", ["&", "|", "^", "==", "!="])
    def test_booleans(self, nnx, symbol, side):
        a, b = array([True, True, False, False], bool), array([True, False, True, False], bool)
        self.assert_agrees(nnx, side, (BITS | NUMBERS)[symbol], a, b)

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("pair", MATRIX_PAIRS)
    def test_matmul(self, nnx, pair, side):
        self.assert_agrees(nnx, side, operator.matmul, *MATRIX_PAIRS[pair]())

    @pytest.mark.parametrize("dtype", ["float32", "int32", "number"])
    @pytest.mark.parametrize("symbol", ["-", "+", "abs"])
    def test_unary(self, nnx, symbol, dtype):
        x = -3 if dtype == "number" else array([-1, 0, 2], dtype)
        v = nnx.Param(x)
        assert_same(UNARY[symbol](v), UNARY[symbol](x))
        assert v.get_raw_value() is x

    @pytest.mark.parametrize("x", [5, np.array([5, -6]), np.array([True, False])], ids=repr)
    def test_invert(self, nnx, x):
        x = x if isinstance(x, int) else jnp.asarray(x)
        assert_same(~nnx.Param(x), ~x)

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("pair", TRACED_PAIRS)
    @pytest.mark.parametrize("symbol", NUMBERS)
    def test_in_a_trace(self, nnx, symbol, pair, side):
        results = traced_results(nnx)
        if isinstance(results[symbol, pair, side], Exception):
            raise results[symbol, pair, side]
        assert_same(results[symbol, pair, side], results[symbol, pair, "plain"])

    def test_same_variable_twice(self, nnx):
        v = nnx.Param(array([2, 3]))
        assert (v * v).tolist() == [4, 9]
        assert (v == v).tolist() == [True, True]

    @pytest.mark.parametrize("side", ["left", "right"])
    @pytest.mark.parametrize("symbol", ["+", "*", "@", "&", "<"])
    def test_what_the_value_refuses(self, nnx, symbol, side):
        function = (NUMBERS | BITS | {"@": operator.matmul})[symbol]
        left, right = wrap(nnx, side, *((array([1]), "x") if side == "left" else ("x", array([1]))))
        with pytest.raises(TypeError):
            function(left, right)

    def test_other_operands_may_answer(self, nnx):
        v = nnx.Param(array([1, 2]))
        assert (v + Other())[0] == "radd"
        assert (v @ Other())[0] == "rmatmul"


FUNCTIONS = {
    "sum": jnp.sum,
    "mean-axis": functools.partial(jnp.mean, axis=1),
    "max": jnp.max,
    "argmax": functools.partial(jnp.argmax, axis=0),
    "cumsum": functools.partial(jnp.cumsum, axis=0),
    "any": lambda x: jnp.any(x > jnp.asarray(x) - 1),
    "exp": jnp.exp,
    "sqrt": jnp.sqrt,
    "sign": jnp.sign,
    "add": lambda x: jnp.add(x, x),
    "multiply": lambda x: jnp.multiply(2, x),
    "maximum": lambda x: jnp.maximum(x, 3.0),
    "power": lambda x: jnp.power(x, 2),
    "equal": lambda x: jnp.equal(x, 2.0),
    "where": lambda x: jnp.where(jnp.greater(x, 2), x, 0.0),
    "clip": lambda x: jnp.clip(x, 1.5, 4.0),
    "dot": lambda x: jnp.dot(x, jnp.transpose(x)),
    "matmul": lambda x: jnp.matmul(x, np.ones((3, 2), np.float32)),
    "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: jnp.tensordot(x, x, axes=2),
    "outer": lambda x: jnp.outer(x, x),
    "norm": jnp.linalg.norm,
    "transpose": jnp.transpose,
    "reshape": lambda x: jnp.reshape(x, (3, 2)),
    "ravel": jnp.ravel,
    "expand_dims": lambda x: jnp.expand_dims(x, 1),
    "squeeze": lambda x: jnp.squeeze(jnp.expand_dims(x, 0)),
    "broadcast_to": lambda x: jnp.broadcast_to(x, (2, 2, 3)),
    "concatenate": lambda x: jnp.concatenate([x, x], axis=1),
    "stack": lambda x: jnp.stack([x, x]),
    "pad": lambda x: jnp.pad(x, 1),
    "flip": lambda x: jnp.flip(x, 1),
    "roll": lambda x: jnp.roll(x, 1, axis=1),
    "sort": lambda x: jnp.sort(x, axis=0),
    "take": lambda x: jnp.take(x, np.array([1, 0]), axis=1),
    "astype": lambda x: jnp.astype(x, "int32"),
    "zeros_like": jnp.zeros_like,
    "ones_like": jnp.ones_like,
    "full_like": lambda x: jnp.full_like(x, 7),
    "asarray": jnp.asarray,
    "array": jnp.array,
    "isfinite": jnp.isfinite,
}
"""Functions of an array with two rows of three, by name."""

VALUES = np.float32([[1, 5, 2], [4, 3, 6]])


@functools.cache
def outcomes(nnx):
    """Calls every function on a Variable and on its value in one trace; gives both by name."""
    failures = {}

    @jax.jit
    def call_all(x):
        results = {}
        for name, function in FUNCTIONS.items():
            expected = function(x)
            try:
                results[name] = (function(nnx.Param(x)), expected)
            except Exception as error:
                failures[name] = (error, None)
        return results

    return call_all(VALUES) | failures


@clause("VAR-007", MUST, TESTED, source="tests/nnx/variable_test.py::TestVariable::test_jax_array")
class TestFunctions:
    """Functions of `jax.numpy` take a Variable for an array, and compute with its value.

    `shape`, `dtype`, `ndim` and `size` of the Variable are the value's, and so are what
    `jnp.shape`, `jnp.ndim`, `jnp.size` and `jnp.result_type` give.
    """

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_function(self, nnx, name):
        result, expected = outcomes(nnx)[name]
        if isinstance(result, Exception):
            raise result
        assert array_record(result) == array_record(expected)

    @pytest.mark.parametrize("name", ["sum", "exp", "add", "where", "concatenate", "dot"])
    def test_function_outside_a_trace(self, nnx, name):
        x = jnp.asarray(VALUES)
        v = nnx.Param(x)
        assert array_record(FUNCTIONS[name](v)) == array_record(FUNCTIONS[name](x))
        assert v.get_raw_value() is x

    @pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4)], ids=str)
    @pytest.mark.parametrize("make", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
    def test_properties(self, nnx, make, shape, dtype):
        x = make(np.zeros(shape, jnp.dtype(dtype)))
        v = nnx.Param(x)
        assert (v.shape, v.dtype, v.ndim, v.size) == (x.shape, x.dtype, x.ndim, x.size)
        assert (jnp.shape(v), jnp.ndim(v), jnp.size(v)) == (x.shape, x.ndim, x.size)
        assert jnp.result_type(v) == x.dtype
        assert jnp.issubdtype(v.dtype, x.dtype)

    @pytest.mark.parametrize(
        "function",
        [np.asarray, np.array, jnp.asarray],
        ids=["np.asarray", "np.array", "jnp.asarray"],
    )
    @pytest.mark.parametrize("kind", ["Variable", "Param", "BatchStat"])
    def test_conversion(self, nnx, kind, function):
        v = getattr(nnx, kind)(jnp.asarray(VALUES))
        result = function(v)
        assert isinstance(result, np.ndarray if function is not jnp.asarray else jax.Array)
        assert array_record(result) == array_record(VALUES)

    def test_mapped_function(self, nnx):
        v = nnx.Param(jnp.asarray(VALUES))
        assert jax.vmap(jnp.sum)(v).tolist() == [8.0, 13.0]
        assert jax.vmap(jnp.dot, in_axes=(None, 0))(np.float32([1, 0, 2]), v).tolist() == [
            5.0,
            16.0,
        ]

    def test_activation(self, nnx):
        x = array([-1, 0, 2])
        assert jax.nn.relu(nnx.Param(x)).tolist() == [0, 0, 2]
        assert array_record(jax.nn.softmax(nnx.Param(x))) == array_record(jax.nn.softmax(x))
