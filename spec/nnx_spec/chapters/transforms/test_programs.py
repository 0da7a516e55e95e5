"""Any program under `jit`: what it returns and leaves behind is what it does eagerly."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.chapters.transforms.programs import DRAWS, STEPS, Program, programs
from nnx_spec.oracles import array_record, nodes, snapshot, variables

X = jnp.float32([1, 2])

PROGRAM = Program(
    making=(
        "model.a = nnx.Param(jnp.float32([1, 2]), note='red')",
        "model.b = Net()",
        "model.b.a = Layer(3)",
        "model.c = nnx.List([nnx.BatchStat(jnp.float32([3, 1])), Count(jnp.int32(2))])",
        "model.d = nnx.Rngs(1)",
    ),
    steps=(
        "x = model.b.a(x) - model.c[1][...]",
        "model.a[0] = x[1]",
        "x = x + jax.random.key_data(model.d())[0] % 8",
        "model.c[0][1] *= 2",
        "model.c[1][...] += 3",
        "x = model.b.a(x) + model.a[...]",
    ),
)
"""A program with a bit of everything."""


def identities(nnx, model):
    """Lists the identities of a model's nodes and Variables, in order."""
    return [*map(id, nodes(nnx, model)), *map(id, variables(nnx, model))]


@clause("TRX-002", MUST, DOCUMENTED, source="guides/transforms#state-propagation")
class TestJit:
    """A compiled function gives the results of the function and leaves the state that it leaves.

    This holds for any sequence of reads, writes (whole, of an item, augmented), draws of random
    numbers and calls of layers, on the first call and on later ones. All objects and Variables
    that the caller holds are still in their places, shared or not, with class and metadata.
    """

    @each_mode
    @given(data=st.data())
    def test_generated_programs(self, nnx, mode, data):
        graph = mode["graph"]
        lines = programs(steps=(*STEPS, *DRAWS), sharing=graph, cycles=graph)
        self.check(nnx, mode, data.draw(lines, "program"))

    @each_mode
    def test_one_program(self, nnx, mode):
        self.check(nnx, mode, PROGRAM)

    def check(self, nnx, mode, program):
        """Checks two calls of a program's compiled function against eager ones."""
        eager, compiled = program.make(nnx), program.make(nnx)
        function, held = program.function(nnx), identities(nnx, compiled)
        jitted = nnx.jit(function, **mode)
        for x in (X, -X):
            expected = function(eager, x)
            assert array_record(jitted(compiled, x)) == array_record(expected)
            assert snapshot(nnx, compiled) == snapshot(nnx, eager)
        assert identities(nnx, compiled) == held

    @each_mode
    def test_values_that_come_back(self, nnx, mode):
        """Variables may exchange their values, and get back what they had."""

        def rotate(model, x):
            model.a[...], model.b[...], model.c[...] = model.b[...], model.c[...], model.a[...]
            model.d[...], kept = x, model.d[...]
            model.d[...] = kept

        model = net(nnx, **{name: param(nnx, n) for n, name in enumerate("abcd")})
        nnx.jit(rotate, **mode)(model, 7.0)
        assert [float(v[...]) for v in variables(nnx, model)] == [1, 2, 0, 3]

    @each_mode
    def test_other_types(self, nnx, mode):
        """A write may give a Variable a value of another dtype, shape or structure."""

        def change(model):
            model.a.set_value(jnp.int32([1, 2, 3]))
            model.b.set_value({"k": model.b[...], "l": model.a[...]})

        model, eager = (net(nnx, a=param(nnx, 1.0), b=count(nnx, 4)) for _ in range(2))
        nnx.jit(change, **mode)(model)
        change(eager)
        assert snapshot(nnx, model) == snapshot(nnx, eager)

    @each_mode
    @pytest.mark.parametrize("arguments", ["positional", "keyword", "in a dict"])
    def test_several_models(self, nnx, mode, arguments):
        def step(first, second):
            first.w[...] += 2 * second.w[...]
            second.n[...] += 1
            return first.w[...] - second.n[...]

        one, other = (net(nnx, w=param(nnx, n), n=count(nnx, n)) for n in (3, 5))
        if arguments == "positional":
            result = nnx.jit(step, **mode)(one, other)
        elif arguments == "keyword":
            result = nnx.jit(step, **mode)(second=other, first=one)
        else:
            models = {"second": other, "first": one}
            result = nnx.jit(lambda models: step(**models), **mode)(models)
        found = [float(v[...]) for model in (one, other) for v in (model.w, model.n)]
        assert (float(result), found) == (7, [13, 3, 5, 6])
