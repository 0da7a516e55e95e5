"""Modules and `jax.jit`: what is static, and what is compiled again."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted, layers
from nnx_spec.oracles import array_record, snapshot

X = np.float32([[1, 2], [3, 4]])


def double(x):
    """Doubles an array."""
    return x * 2


class Unhashable:
    """An object that cannot be hashed."""

    __hash__ = None

    def __repr__(self):
        return "Unhashable()"


STATIC_VALUES = {
    "int": (1, 2),
    "bool": (True, False),
    "str": ("relu", "gelu"),
    "None": (None, 0),
    "float": (0.5, 0.25),
    "tuple": ((1, "a"), (1, "b")),
    "function": (double, abs),
    "class": (int, float),
    "dtype": (np.dtype("float32"), np.dtype("int32")),
}
"""Static values of each kind, a first and another one."""


@clause("MOD-011", MUST, DOCUMENTED, source="key_concepts#traced-vs-static-data")
class TestStaticAttributes:
    """Static attributes are plain Python values inside `jax.jit`, and part of what it compiles for.

    Code may branch on them. Another static value costs another trace and gives its own result; an
    equal one, of another object too, costs none. Where the structure has to be hashed, a static
    value that cannot be raises TypeError or, by way of `jax.jit`, ValueError.
    """

    @pytest.mark.parametrize("kind", STATIC_VALUES)
    def test_branches_and_traces(self, nnx, kind):
        first, other = STATIC_VALUES[kind]
        traces = []

        @jax.jit
        def f(model):
            traces.append(model.n)
            return (model.w.get_value(), -1) if model.n == first else (model.w.get_value(), -2)

        def call(number, value):
            weight, branch = f(net(nnx, w=param(nnx, number), n=value))
            return float(weight), int(branch)

        results = [call(1, first), call(2, other), call(3, first), call(4, other)]
        assert results == [(1, -1), (2, -2), (3, -1), (4, -2)]
        assert traces == [first, other]
        assert [type(value) for value in traces] == [type(first), type(other)]

    def test_changes_of_one_object(self, nnx):
        traces = []

        @jax.jit
        def f(model):
            traces.append(model.inner.n)
            return model.inner.w.get_value() * model.inner.n

        model = net(nnx, inner=net(nnx, w=param(nnx, 3.0), n=2))
        results = [float(f(model))]
        for n, weight in ((5, 3.0), (2, 3.0), (2, 4.0)):
            model.inner.n = n
            model.inner.w.set_value(counted((), int(weight)))
            results.append(float(f(model)))
        assert results == [6, 15, 6, 8]
        assert traces == [2, 5]

    def test_new_attributes_and_status(self, nnx):
        traces = []

        @jax.jit
        def f(model):
            traces.append(sorted(name for name in vars(model) if not name.startswith("_")))
            return model.n

        model = net(nnx, w=param(nnx, 1.0), n=2)
        assert int(f(model)) == 2
        model.extra = None
        assert int(f(model)) == 2
        model.n = nnx.data(3)
        assert int(f(model)) == 3
        del model.extra
        assert int(f(model)) == 3
        assert traces == [["n", "w"], ["extra", "n", "w"], ["extra", "n", "w"], ["n", "w"]]

    @pytest.mark.parametrize("value", [{3}, Unhashable(), ({3},)], ids=repr)
    def test_unhashable_values(self, nnx, value):
        model = net(nnx, inner=net(nnx, w=param(nnx, 1.0), sizes=value))
        graphdef, state = nnx.split(model)
        for use in (
            lambda: hash(graphdef),
            lambda: jax.jit(lambda graphdef, state: state, static_argnums=0)(graphdef, state),
        ):
            with pytest.raises((TypeError, ValueError)):
                use()
        assert model.inner.sizes == value


CALLS = {
    "jit of the Module": lambda model, x: jax.jit(model)(x),
    "jit of a function": lambda model, x: jax.jit(lambda model, x: model(x))(model, x),
    "jit of a method": lambda model, x: jax.jit(type(model).__call__)(model, x),
    "jit of a closure": lambda model, x: jax.jit(lambda x: model(x))(x),
}
"""Ways to call a Module in a compiled function."""


@clause("MOD-012", MUST, DOCUMENTED, source="key_concepts#pytrees")
class TestStatelessCalls:
    """A Module can be compiled by `jax.jit`, as the function or as an argument of one.

    The result is that of the eager call, and the Module is unchanged. A compiled function serves
    any Module of the same structure, with that one's own values.
    """

    @pytest.mark.parametrize("call", CALLS)
    def test_calls(self, nnx, call):
        model = layers(nnx).MLP()
        before = snapshot(nnx, model, identities=True)
        result = CALLS[call](model, X)
        assert array_record(result) == array_record(model(X))
        assert snapshot(nnx, model, identities=True) == before

    def test_arrays_lists_and_functions(self, nnx):
        class Chain(nnx.Module):
            def __init__(self):
                linear = layers(nnx).Linear
                self.steps = nnx.List([linear(2, 3), double, linear(3, 2)])
                self.table = counted((2,))
                self.by_name = nnx.Dict(shift=nnx.Param(counted((2,), 5)))

            def __call__(self, x):
                for step in self.steps:
                    x = step(x)
                return x * self.table + self.by_name["shift"]

        chain = Chain()
        compiled = jax.jit(lambda chain, x: chain(x))
        assert array_record(compiled(chain, X)) == array_record(chain(X))
        scaled = jax.tree.map(lambda leaf: leaf * 2, chain)
        assert array_record(compiled(scaled, X)) == array_record(scaled(X))
        assert array_record(scaled(X)) != array_record(chain(X))

    def test_returned_modules(self, nnx):
        model = layers(nnx).MLP()
        doubled = jax.jit(lambda model: jax.tree.map(double, model))(model)
        assert type(doubled) is type(model)
        expected = jax.tree.map(double, model)
        assert snapshot(nnx, doubled) == snapshot(nnx, expected)
        assert array_record(doubled(X)) == array_record(expected(X))
