"""Transforms around transforms."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import MUST, SOUND, clause, plain
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.chapters.transforms.nestings import NESTING, nested, plainly_nested
from nnx_spec.chapters.transforms.programs import Program, programs
from nnx_spec.oracles import nodes, value_record, variables, walk

X = jnp.float32([1, 2])


def records(namespace, model):
    """Describes the values of a model's Variables, each with its path and class's name."""
    found = ((p, v) for p, v in walk(namespace, model) if isinstance(v, namespace.Variable))
    return [(path, type(v).__name__, value_record(v.get_value())) for path, v in found]


PROGRAM = Program(
    making=(
        "model.a = nnx.Param(jnp.float32([1, 2]))",
        "model.b = Layer(3)",
        "model.c = Count(jnp.int32(0))",
    ),
    steps=(
        "x = model.b(x) + model.a[...]",
        "model.a[...] += x",
        "model.c[...] += 1",
        "x = x - 2 * model.a[...]",
    ),
)
"""A program that reads what it wrote before."""

nestings = st.lists(st.sampled_from(list(NESTING)), min_size=1, max_size=2)
"""What stands in `jit`, which spares JAX the many small compilations of eager transforms."""


@clause(
    "TRX-027", MUST, SOUND, source="results, gradients or state are silently wrong in a nesting"
)
class TestNesting:
    """Transforms inside transforms do what each of them does: results, gradients and state.

    Whatever the nesting, the model is left as loops, branches and derivatives in plain Python
    leave it, and its objects are those that the caller holds.
    """

    @each_mode
    @given(data=st.data())
    def test_generated_nestings(self, nnx, mode, data):
        names = data.draw(nestings, "nesting")
        check(nnx, mode, ["jit", *names], data.draw(programs(sharing=mode["graph"]), "program"))

    @each_mode
    @pytest.mark.parametrize("names", ["jit grad", "grad scan remat", "scan cond", "cond cond"])
    def test_one_program(self, nnx, mode, names):
        check(nnx, mode, names.split(), PROGRAM)

    @each_mode
    def test_jit_vmap_grad(self, nnx, mode):
        """Each slice of a stack of models is differentiated and changed as a model by itself."""

        def loss(model, x):
            model.n[...] += 1
            model.w[...] = x * model.w[...]
            return (x * model.w[...]).sum() * model.n[...]

        gradient = nnx.grad(loss, argnums=1, **mode)
        self.check_stack(nnx, nnx.jit(nnx.vmap(gradient, **mode), **mode), gradient, X + 1)

    @each_mode
    def test_vmap_scan(self, nnx, mode):
        """Each slice of a stack of models is carried through a loop of its own."""

        def step(model, x):
            model.n[...] += 1
            model.w[...] = x - model.w[...]
            return model, model.w[...] * model.n[...]

        axes = (nnx.Carry, 0)
        scanned = nnx.scan(step, in_axes=axes, out_axes=axes, **mode)

        def loop(model, xs):
            return jnp.stack([step(model, x)[1] for x in xs])

        mapped = nnx.vmap(lambda model, xs: scanned(model, xs)[1], **mode)
        self.check_stack(nnx, mapped, loop, jnp.float32([1, 2, 4]))

    def check_stack(self, nnx, mapped, function, x):
        """Checks a mapped function on a stack of two models against the function on each."""
        numbers = (([3, 4], 5), ([6, 7], 8))
        singles = [net(nnx, w=param(nnx, w), n=count(nnx, n)) for w, n in numbers]
        w, n = zip(*numbers, strict=True)
        stack = net(nnx, w=param(nnx, w), n=count(nnx, n))
        held = [stack.w, stack.n]
        for xs in (jnp.stack([x, -x]), jnp.stack([x, x])):
            expected = [function(single, x) for single, x in zip(singles, xs, strict=True)]
            assert mapped(stack, xs).tolist() == jnp.stack(expected).tolist()
        assert stack.w.get_value().tolist() == [m.w.get_value().tolist() for m in singles]
        assert stack.n.get_value().tolist() == [m.n.get_value().tolist() for m in singles]
        own = {"w": stack.w is held[0], "n": stack.n is held[1]}
        assert own == {"w": True, "n": True}


def check(nnx, mode, names, program):
    """Checks a program in a nesting against its plain twin in plain Python."""
    model, twin = program.make(nnx), program.make(plain)
    held = [*nodes(nnx, model), *variables(nnx, model)]
    y = nested(nnx, names, program.function(nnx), mode)(model, X)
    expected = plainly_nested(names, program.function(plain))(twin, X)
    assert (str(y.dtype), y.tolist()) == (str(expected.dtype), expected.tolist())
    assert records(nnx, model) == records(plain, twin)
    found = [*nodes(nnx, model), *variables(nnx, model)]
    kept = [new is old for new, old in zip(found, held, strict=True)]
    assert kept == [True] * len(held), "parts of the model have been replaced"
