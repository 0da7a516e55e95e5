"""Generated programs: what they print is what they run, and they shrink to what matters."""

import re

import jax.numpy as jnp
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from nnx_spec import plain
from nnx_spec.chapters.transforms.nestings import NESTING, plainly_nested
from nnx_spec.chapters.transforms.programs import DRAWS, EDITS, SMOOTH, STEPS, Program, programs
from nnx_spec.oracles import array_record, snapshot, variables

X = jnp.float32([1, 2])

TABLES = ((*STEPS, *DRAWS), SMOOTH, (*EDITS, *STEPS))
"""The lines that clauses draw from."""

STEADY = settings(derandomize=True, database=None, deadline=None)
QUICK = settings(STEADY, phases=[Phase.generate], max_examples=500)

SHORT = Program(("model.a = nnx.Param(jnp.float32([1, 2]))",), ("model.a[...] += x",))


@STEADY
@given(data=st.data())
def test_a_program_prints_as_a_script(data):
    steps = data.draw(st.sampled_from(TABLES))
    program = data.draw(programs(steps=steps, sharing=True, cycles=True))
    script = {"nnx": plain}
    exec(repr(program), script)
    model = program.make(plain)
    result = program.function(plain)(model, X)
    assert array_record(script["y"]) == array_record(result)
    assert names(snapshot(plain, script["model"])) == names(snapshot(plain, model))


def names(record):
    """Replaces classes in a snapshot by their names: a script makes classes of its own."""
    if isinstance(record, tuple):
        return tuple(map(names, record))
    return record.__name__ if isinstance(record, type) else record


def test_a_script_is_readable():
    *_, last = repr(SHORT).split("\n\n\ndef make():\n")
    assert last.splitlines() == [
        "    model = Net()",
        "    model.a = nnx.Param(jnp.float32([1, 2]))",
        "    return model",
        "",
        "",
        "def f(model, x):",
        "    model.a[...] += x",
        "    return x",
        "",
        "",
        "model, x = make(), jnp.float32([1, 2])",
        "y = f(model, x)",
    ]


SMALLEST = {
    "a layer": (lambda p: any("Layer(" in line for line in p.making), 2, 1),
    "a call": (lambda p: any("(x)" in line for line in p.steps), 2, 1),
    "two writes": (lambda p: sum("+= x" in line for line in p.steps) == 2, 2, 2),
}
"""What programs may have in common, and how many lines are found to do, at most, and exactly."""


@pytest.mark.parametrize("kind", SMALLEST)
def test_programs_shrink(kind):
    condition, making, steps = SMALLEST[kind]
    found = find(programs(), condition, settings=STEADY)
    assert len(found.making) <= making
    assert len(found.steps) == steps


def test_every_line_can_be_drawn():
    for template in dict.fromkeys(line for table in TABLES for line in table):
        pattern = re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(template)))
        lines = programs(steps=(template, "x = x + {k}"), sharing=True)
        find(lines, lambda p, pattern=pattern: any(map(pattern.fullmatch, p.steps)), settings=QUICK)


MEANINGS = {
    "jit": ([2, 8], [2, 4]),
    "remat": ([2, 8], [2, 4]),
    "vmap": ([2, 8], [2, 4]),
    "cond": ([2, 8], [2, 4]),
    "grad": ([3, 6], [2, 4]),
    "scan": ([94, 389], [11, 22]),
    "fori_loop": ([8, 96], [4, 12]),
}
"""What a transform returns for `x * (a + x)` and leaves in `a`, by hand."""


@pytest.mark.parametrize("name", NESTING)
def test_what_nestings_mean(name):
    model, function = SHORT.make(plain), SHORT.function(plain)
    result = plainly_nested([name], lambda model, x: function(model, x) * model.a[...])(model, X)
    (variable,) = variables(plain, model)
    assert (result.tolist(), variable[...].tolist()) == MEANINGS[name]
