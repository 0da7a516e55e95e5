"""Traced Variables: what a hijax Variable is and computes inside `jax.jit`."""

import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MAY, MUST, OURS, SHOULD, TESTED, clause
from nnx_spec.chapters.filters.selection import MODEL, expected, paths_in
from nnx_spec.chapters.hijax.cases import assert_holds
from nnx_spec.chapters.variables.cases import array
from nnx_spec.chapters.variables.test_operators import (
    BITS,
    FUNCTIONS,
    NUMBERS,
    UNARY,
)
from nnx_spec.filter_plans import (
    AllPlan,
    CallablePlan,
    NotPlan,
    PathPlan,
    TagPlan,
    TypePlan,
    build_filter,
)
from nnx_spec.oracles import user_metadata, value_record
from nnx_spec.plans import VARIABLE_KINDS, build, variable_class

VALUES = {
    "floats": (np.float32([[5], [3]]), np.float32([1, 3, 2])),
    "ints": (np.int32([5, 6, 3]), np.int32([3, 1, 2])),
    "matrices": (np.float32([[1, 2], [3, 4]]), np.float32([[0, 1], [5, 2]])),
    "rows": (np.float32([[1, 5, 2], [4, 3, 6]]), np.float32([7, 9, 8])),
}
"""Pairs of values of Variables, by name."""

OPERANDS = {
    "variable, array": lambda v, w, a, b: (v, b),
    "array, variable": lambda v, w, a, b: (a, w),
    "variable, variable": lambda v, w, a, b: (v, w),
}
"""What stands left and right of an operator, for two Variables and their values, by name."""

MORE_OPERANDS = {
    "the same variable twice": lambda v, w, a, b: (v, v),
    "variable, number": lambda v, w, a, b: (v, 2),
    "number, variable": lambda v, w, a, b: (2, v),
    "variable, numpy": lambda v, w, a, b: (v, np.int32([3, 1, 2])),
    "numpy, variable": lambda v, w, a, b: (np.int32([3, 1, 2]), v),
}
"""Operands for an operator of each sort, those in `WITH_MORE_OPERANDS`."""

WITH_MORE_OPERANDS = ("-", "==", "<", "<<")

OPERATORS = {
    **dict.fromkeys(NUMBERS.items(), "floats"),
    **dict.fromkeys(BITS.items(), "ints"),
    ("@", operator.matmul): "matrices",
}
"""Binary operators, by symbol and function, with the name of what to apply them to."""

FUNCTIONS_OF_TWO = {"add": jnp.add, "outer": jnp.outer, "matmul": jnp.matmul}
"""Functions to apply to two Variables, as `jax.jit` may refuse one that stands at two places."""


def operands(symbol):
    """Returns what to apply an operator to."""
    return OPERANDS | MORE_OPERANDS if symbol in WITH_MORE_OPERANDS else OPERANDS


@functools.cache
def results(nnx):
    """Computes everything with Variables in one trace, and tells by name whether it is right.

    Right is what the same gives on the values, in the same trace: shapes, dtypes and weak types
    are compared at once, elements in the compiled function, so that little else is compiled. Where
    something raises, the exception stands in the place of the answer.
    """
    variables = {
        name: (nnx.Param(jnp.asarray(a), hijax=True), nnx.BatchStat(jnp.asarray(b), hijax=True))
        for name, (a, b) in VALUES.items()
    }
    failures = {}

    @jax.jit
    def compute(variables):
        values = {name: (v.get_value(), w.get_value()) for name, (v, w) in variables.items()}
        found = {}
        for key, f, given, plain in cases(variables, values):
            try:
                found[key] = equal(nnx, f(*given), f(*plain))
            except Exception as error:
                failures[key] = error
        return found, values

    answers, values = compute(variables)
    for name, (a, b) in VALUES.items():
        assert value_record(values[name]) == value_record((a, b))
        assert_holds(nnx, variables[name][0], nnx.Param, a)
        assert_holds(nnx, variables[name][1], nnx.BatchStat, b)
    return {key: bool(answer) for key, answer in answers.items()} | failures


def cases(variables, values):
    """Yields all that is computed: its name, the function, its arguments, and these plainly."""
    for (symbol, f), pair in OPERATORS.items():
        for name, choose in operands(symbol).items():
            given = choose(*variables[pair], *values[pair])
            yield (symbol, name), f, given, choose(*values[pair], *values[pair])
    for symbol, f in UNARY.items():
        yield (f"unary {symbol}", ""), f, variables["ints"][:1], values["ints"][:1]
    for name, f in FUNCTIONS.items():
        if name not in FUNCTIONS_OF_TWO:
            yield (name, ""), f, variables["rows"][:1], values["rows"][:1]
    for name, f in FUNCTIONS_OF_TWO.items():
        yield (name, ""), f, variables["rows"], values["rows"]


def equal(nnx, result, plain):
    """Compares what is computed with a Variable and with its value; gives a traced truth value."""
    pairs = list(zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True))
    for x, y in pairs:
        assert not isinstance(x, nnx.Variable)
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
    return jnp.stack([jnp.array_equal(x, y) for x, y in pairs]).all()


def check_answers(nnx, name):
    """Checks all that is computed under a name."""
    answers = {key: answer for key, answer in results(nnx).items() if key[0] == name}
    for key, answer in answers.items():
        if isinstance(answer, Exception):
            answer.add_note(str(key))
            raise answer
    assert answers == dict.fromkeys(answers, True)
    assert answers, f"nothing is computed under {name}"


@clause(
    "HJX-015",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_hijax_and_pytree",
    needs={"hijax"},
)
class TestComputing:
    """Operators compute with a hijax Variable under `jax.jit` as outside.

    They give what they give on the value, wherever the Variable stands and whatever the other
    operand is, and leave the Variable as it is.
    """

    @pytest.mark.parametrize("name", [*NUMBERS, *BITS, "@", *map("unary {}".format, UNARY)])
    def test_each(self, nnx, name):
        check_answers(nnx, name)

    def test_captured(self, nnx):
        v = nnx.Param(array([1, 2, 3]), hijax=True)

        @jax.jit
        def f(x):
            return x - v, v @ x, v[1:] > 2

        found = [y.tolist() for y in f(np.float32([3, 2, 1]))]
        assert found == [[2, 0, -2], 10, [False, True]]
        assert_holds(nnx, v, nnx.Param, np.float32([1, 2, 3]))


@clause("HJX-047", SHOULD, OURS, source="a Variable stands for its value wherever it can")
class TestFunctions:
    """`jax.numpy` functions take a hijax Variable under `jax.jit` for its value, as outside."""

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_each(self, nnx, name):
        check_answers(nnx, name)


@clause("HJX-048", MAY, OURS, source="a Variable has the attributes of its array")
class TestProperties:
    """`shape`, `dtype`, `ndim` and `size` of a hijax Variable under `jax.jit` are the value's."""

    @pytest.mark.parametrize("x", [np.float32(1), np.zeros((2, 0, 4), "int32")], ids=["0-d", "3-d"])
    def test_properties(self, nnx, x):
        found = []

        @jax.make_jaxpr
        def f(v):
            found.append((v.shape, v.dtype, v.ndim, v.size))
            found.append((jnp.shape(v), jnp.result_type(v), jnp.ndim(v), jnp.size(v)))

        f(nnx.Cache(jnp.asarray(x), hijax=True))
        assert found == [(x.shape, x.dtype, x.ndim, x.size)] * 2


FILTERS = [
    TypePlan("Param"),
    TypePlan("SpecialParam"),
    NotPlan(TypePlan("Variable", literal=False)),
    TagPlan("red"),
    CallablePlan("annotated"),
    AllPlan((TypePlan("BatchStat"), PathPlan("block"))),
]


def seen_inside(f, *variables, captured=False):
    """Calls a function with Variables that `jax.jit` traces, and returns what it returns."""
    seen = []

    def g(*args):
        seen.append(f(*(args or variables)))

    jax.jit(g)(*() if captured else variables)
    return seen[-1]


@clause(
    "HJX-016",
    MUST,
    TESTED,
    source="tests/nnx/mutable_array_test.py::TestHijaxVariables::test_variable_to_hijax",
    needs={"hijax"},
)
class TestStillVariables:
    """Under `jax.jit`, a hijax Variable still is a Variable.

    It is an instance of its class and of the classes above, and of no other. Filters select it as
    they do outside. Its metadata reads the same inside as outside: the user's own, and `hijax`,
    `ref` and, where there is one, the flag `mutable`.
    """

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_isinstance(self, nnx, captured):
        kinds = {kind: variable_class(nnx, kind) for kind in VARIABLE_KINDS}

        def instances(*variables):
            return [{k for k, cls in kinds.items() if isinstance(v, cls)} for v in variables]

        variables = [cls(array(0), hijax=True) for cls in kinds.values()]
        plain = [cls(array(0)) for cls in kinds.values()]
        assert seen_inside(instances, *variables, captured=captured) == instances(*plain)

    def test_filters(self, nnx):
        with nnx.var_defaults(hijax=True):
            model = build(nnx, MODEL)

        def select(model):
            filters = [build_filter(nnx, plan) for plan in FILTERS]
            return [paths_in(nnx.state(model, f)) for f in filters]

        found = seen_inside(select, model)
        assert found == [expected(MODEL, plan) for plan in FILTERS]

    @pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
    def test_metadata(self, nnx, captured):
        v = nnx.BatchStat(array(1), hijax=True, tag="t", axes=("x", None))
        flags = ["hijax", "ref", *(["mutable"] if hasattr(v, "mutable") else [])]

        def look(v):
            named = [v.tag, v.axes, v.get_metadata("axes")]
            return [getattr(v, flag) for flag in flags], named, user_metadata(v)

        found = seen_inside(look, v, captured=captured)
        assert found == look(v)
        assert found[0][:2] == [True, False]
        assert found[1:] == (
            ["t", ("x", None), ("x", None)],
            {"tag": "t", "axes": ("x", None)},
        )
