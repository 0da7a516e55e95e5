"""Augmented assignment: `v[...] += 1` on an item, and `v += 1` on a whole Variable."""

import contextlib
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, MUST, OURS, SHOULD, SOUND, clause
from nnx_spec.chapters.variables.cases import array
from nnx_spec.oracles import array_record, user_metadata
from nnx_spec.plans import classes

IN_PLACE = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": operator.imatmul,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "^=": operator.ixor,
    "|=": operator.ior,
}
"""The in-place operators: `x += y` is `x = IN_PLACE["+="](x, y)`, for an item `x` as well."""


def augmented(v, symbol, y, index=...):
    """Does what `v[index] <symbol>= y` does."""
    v[index] = IN_PLACE[symbol + "="](v[index], y)


SYMBOLS = {
    "+": ("add", 6.0, 4.0),
    "-": ("sub", 6.0, 4.0),
    "*": ("mul", 6.0, 4.0),
    "/": ("div", 6.0, 4.0),
    "//": ("rem", 6.0, 4.0),
    "%": ("rem", 6.0, 4.0),
    "**": ("pow", 6.0, 2.0),
    "<<": ("shift_left", 6, 2),
    ">>": ("shift_right_arithmetic", 6, 1),
    "&": ("and", 6, 3),
    "^": ("xor", 6, 3),
    "|": ("or", 6, 3),
}
"""For each operator with an assignment form: the primitive that computes it, and two operands."""


ITEMS = {"all": ..., "int": 1, "slice": slice(0, 2), "array": (np.array([2, 0]),)}
"""What to change, by name."""


def start_of(symbol):
    """Makes the three elements that an operator starts from."""
    x = SYMBOLS[symbol][1]
    return np.array([x, x + 1, x + 2], "float32" if isinstance(x, float) else "int32")


def expected_of(symbol, index):
    """Computes with NumPy what an operator leaves when applied at an index."""
    expected = start_of(symbol)
    augmented(expected, symbol, SYMBOLS[symbol][2], index)
    return expected


@functools.cache
def traced_results(nnx):
    """Applies every operator to every item in one trace; gives values, or failures, by both."""
    failures = {}

    @jax.jit
    def apply_all(starts):
        results = {}
        for where, index in ITEMS.items():
            for symbol, (_, _, y) in SYMBOLS.items():
                v = nnx.Param(starts[symbol])
                try:
                    augmented(v, symbol, y, index)
                    results[where, symbol] = v.get_value()
                except Exception as error:
                    failures[where, symbol] = error
        return results

    return apply_all({symbol: start_of(symbol) for symbol in SYMBOLS}) | failures


def augmented_array(x, symbol, y, index):
    """Computes what `v[index] <symbol>= y` leaves, on a plain array."""
    part = {"part": x[index]}
    augmented(part, symbol, y, "part")
    return x.at[index].set(part["part"])


def count_primitives(jaxpr, name):
    """Counts a primitive's uses in a jaxpr and in the jaxprs inside it."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name == name
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda param: hasattr(param, "jaxpr")):
            if hasattr(inner, "jaxpr"):
                total += count_primitives(inner.jaxpr, name)
    return total


class Tally:
    """A value that counts how often it takes part in an operation."""

    def __init__(self):
        self.calls = []

    def __add__(self, other):
        self.calls.append(other)
        return self


@clause("VAR-004", MUST, CONVENTION, source="operator.iadd")
class TestAugmentedItems:
    """Augmented item assignment reads the item, computes and writes the result back, each once.

    It holds for every operator that has an assignment form, for the whole value (`v[...] += 1`), a
    part of it (`v[i] *= 2`) and an item of a container (`v['k'] -= 1`). What is outside the item
    stays as it is.
    """

    @pytest.mark.parametrize("symbol", SYMBOLS)
    def test_result(self, nnx, symbol):
        v = nnx.Param(jnp.asarray(start_of(symbol)), tag="t")
        augmented(v, symbol, SYMBOLS[symbol][2])
        assert array_record(v[...]) == array_record(expected_of(symbol, ...))
        assert (type(v), user_metadata(v)) == (nnx.Param, {"tag": "t"})

    @pytest.mark.parametrize("symbol", SYMBOLS)
    @pytest.mark.parametrize("where", ITEMS)
    def test_result_in_a_trace(self, nnx, where, symbol):
        result = traced_results(nnx)[where, symbol]
        if isinstance(result, Exception):
            raise result
        assert array_record(result) == array_record(expected_of(symbol, ITEMS[where]))

    def test_matmul(self, nnx):
        v = nnx.Param(array([[1, 2], [3, 4]]))
        v[...] @= array([[0, 1], [2, 0]])
        assert v[...].tolist() == [[4, 1], [8, 3]]

    @pytest.mark.parametrize("symbol", SYMBOLS)
    def test_dict_item(self, nnx, symbol):
        _, x, y = SYMBOLS[symbol]
        expected = {"k": x, "other": x}
        augmented(expected, symbol, y, "k")
        v = nnx.Variable({"k": x, "other": x})
        augmented(v, symbol, y, "k")
        assert v.get_value() == expected

    @pytest.mark.parametrize("symbol", SYMBOLS)
    def test_list_item(self, nnx, symbol):
        _, x, y = SYMBOLS[symbol]
        expected = [x, x]
        augmented(expected, symbol, y, -1)
        v = nnx.Variable([x, x])
        augmented(v, symbol, y, -1)
        assert v.get_value() == expected

    @pytest.mark.parametrize("index", [..., 1], ids=["all", "int"])
    @pytest.mark.parametrize("symbol", SYMBOLS)
    def test_computes_once(self, nnx, symbol, index):
        primitive, _, y = SYMBOLS[symbol]

        def f(x, y):
            v = nnx.Variable(x)
            augmented(v, symbol, y, index)
            return v.get_value()

        def plain(x, y):
            return augmented_array(x, symbol, y, index)

        start = start_of(symbol)
        for name in (primitive, "scatter"):
            counts = [
                count_primitives(jax.make_jaxpr(g)(start, start.dtype.type(y)).jaxpr, name)
                for g in (f, plain)
            ]
            assert counts[0] <= max(1, counts[1])

    @pytest.mark.parametrize("key", ["k", 0], ids=["dict", "list"])
    def test_uses_the_item_once(self, nnx, key):
        item = Tally()
        v = nnx.Variable({"k": item} if key == "k" else [item])
        v[key] += 5
        assert item.calls == [5]
        assert v[key] is item


MATRICES = np.float32([[1, 2], [3, 4]]), np.float32([[0, 1], [1, 0]])


def operands(symbol):
    """Makes two operands of an in-place operator."""
    if symbol == "@=":
        return MATRICES
    return start_of(symbol[:-1]), SYMBOLS[symbol[:-1]][2]


@clause("VAR-006", MUST, SOUND, source="a parameter is lost, silently, and no longer trained")
class TestWholeVariables:
    """An in-place operator on a whole Variable (`v += 1`) never puts a plain array in the
    Variable's place.

    It updates in place, so that the name or attribute still holds the same Variable with the new
    value, or it raises an error that changes nothing.
    """

    @pytest.mark.parametrize("symbol", IN_PLACE)
    @pytest.mark.parametrize("holder", ["name", "attribute", "List", "Dict"])
    def test_in_place_operator(self, nnx, symbol, holder):
        x, y = operands(symbol)
        v = nnx.Param(jnp.asarray(x), tag="t")
        model = classes(nnx).Net()
        model.v, model.items, model.table = v, nnx.List([v]), nnx.Dict({"k": v})
        places = {
            "name": ({"k": v}, "k"),
            "attribute": (vars(model), "v"),
            "List": (model.items, 0),
            "Dict": (model.table, "k"),
        }
        place, key = places[holder]
        try:
            result = IN_PLACE[symbol](place[key], jnp.asarray(y) if symbol == "@=" else y)
            if holder == "attribute":
                model.v = result
            else:
                place[key] = result
        except Exception:
            expected = x
        else:
            expected = IN_PLACE[symbol](x.copy(), y) if symbol != "@=" else x @ y
        assert place[key] is v
        assert type(v) is nnx.Param
        assert user_metadata(v) == {"tag": "t"}
        assert array_record(v.get_value()) == array_record(expected)

    @pytest.mark.parametrize("symbol", ["+=", "*="])
    def test_in_place_operator_in_a_trace(self, nnx, symbol):
        @jax.jit
        def f(v, y):
            before = v
            with contextlib.suppress(Exception):
                v = IN_PLACE[symbol](v, y)
            assert v is before
            return v

        v = f(nnx.Param(jnp.asarray(np.float32(3))), np.float32(2))
        assert isinstance(v, nnx.Param)
        assert float(v[...]) in (3.0, IN_PLACE[symbol](3.0, 2.0))


@clause("VAR-025", SHOULD, OURS, source="who writes `v += 1` by habit needs to know what to write")
class TestWayOut:
    """Where an in-place operator on a whole Variable is refused, the message shows how to do it.

    That is item assignment with the same operator: `v[...] += ...`.
    """

    @pytest.mark.parametrize("symbol", IN_PLACE)
    def test_message(self, nnx, symbol):
        x, y = map(jnp.asarray, operands(symbol))
        message = "no error"
        try:
            IN_PLACE[symbol](nnx.Param(x), y)
        except Exception as error:
            message = str(error)
        assert message == "no error" or [part for part in ("[...]", symbol) if part in message] == [
            "[...]",
            symbol,
        ], message
