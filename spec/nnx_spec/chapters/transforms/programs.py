"""Generated programs: a model and a function that uses and changes it, as lines of Python.

A `Program` is its own source text. Its lines are drawn one by one, and a line that changes what
there is to use, an attribute more or less, is carried out on a sketch of the model at once, so that
every line makes sense where it stands. The same program runs on any target, eagerly or transformed,
and on the plain objects of `plain`, where it means what it says.

What is equal in exact arithmetic is equal to the bit: numbers start as small integers and only
their sums are taken, except in `SMOOTH` programs, which take products, to be differentiated.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from nnx_spec import plain
from nnx_spec.oracles import children, is_node

DEFINITIONS = '''\
class Count(nnx.Variable):
    """A kind of Variable of the user's own."""


class Net(nnx.Module):
    """A Module with whatever attributes it is given."""


class Layer(nnx.Module):
    """A layer with a parameter, a statistic and a count of its calls."""

    def __init__(self, number):
        self.w = nnx.Param(jnp.float32([number, -number]))
        self.peak = nnx.BatchStat(jnp.float32([0, 0]))
        self.calls = Count(jnp.int32(0))

    def __call__(self, x):
        self.calls[...] += 1
        self.peak[...] = jnp.maximum(self.peak[...], x)
        return x + self.w[...]
'''
"""The classes that programs use, for a target `nnx`."""

STEPS = (
    "x = x + {k}",
    "x = x + {v}[...]",
    "x = x - {n}[...]",
    "{v}[...] = x",
    "{v}[0] = x[1]",
    "{v}[...] += x",
    "{v}[1] *= 2",
    "{v}.set_value(x - {u}[...])",
    "{n}[...] += {k}",
    "x = {layer}(x)",
    "{v}[...], {u}[...] = {u}[...], {v}[...]",
)
"""Lines that read and write, and call layers. x is a float32 array of shape (2,)."""

DRAWS = ("x = x + jax.random.key_data({rngs}())[0] % 8", "{rngs}()")
"""Lines that draw random numbers, which take JAX long to compile."""

SMOOTH = (
    "x = x * {v}[...]",
    "x = x + {u}[...] * {v}[...]",
    "x = {v}[...] - x",
    "{v}[...] = {u}[...] * x",
    "{v}[...] += x",
    "{v}[...] *= {u}[...]",
    "{v}[0] = x[1] * {u}[1]",
    "{v}[1] -= x[0]",
    "{v}.set_value(x - {u}[...])",
)
"""Lines of polynomials, whose derivatives are of interest."""

EDITS = (
    "{fresh} = nnx.Param(x)",
    "{fresh} = Count(jnp.int32({k}))",
    "{fresh} = Layer({k})",
    "{fresh} = {v}",
    "{fresh} = {node}",
    "{fresh} = x + {k}",
    "{fresh} = 'text'",
    "{v} = nnx.BatchStat(x)",
    "{v}, {u} = {u}, {v}",
    "{v}.set_metadata('note', 'edited')",
    "{old} = nnx.static({k})",
    "{old} = nnx.data(Net())",
    "del {old}",
)
"""Lines that change the structure: what there is, what it is, and what is shared."""

VALUES = (
    "nnx.Param(jnp.float32([{k}, {k}]))",
    "nnx.BatchStat(jnp.float32([{k}, {k}]))",
    "nnx.Param(jnp.float32([{k}, {k}]), note='red')",
)
"""What float Variables are made by."""

OTHERS = (
    "Net()",
    *["Layer({k})", "nnx.Rngs({k})"] * 2,
    "Count(jnp.int32({k}))",
    "nnx.List([nnx.Param(jnp.float32([{k}, {k}])), Count(jnp.int32({k}))])",
    "'text'",
)
"""What other parts of a model are made by; what stands twice is twice as likely."""

NAMES = ("a", "b", "c", "d", "e")


@dataclass(frozen=True, repr=False)
class Program:
    """A model and a function of it and of x, which returns an x.

    Attributes:
      making: the lines that give `model`, a `Net`, its attributes.
      steps: the lines of the function.
    """

    making: tuple[str, ...]
    steps: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"# nnx is the namespace under test\nimport jax\nimport jax.numpy as jnp\n\n\n"
            f"{DEFINITIONS}\n\n{self.functions}\n\nmodel, x = make(), jnp.float32([1, 2])\n"
            f"y = f(model, x)\n"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def functions(self) -> str:
        """The source text of `make()` and `f(model, x)`."""
        making = _indented("model = Net()", *self.making, "return model")
        return f"def make():\n{making}\n\ndef f(model, x):\n{_indented(*self.steps, 'return x')}"

    def make(self, nnx: Any) -> Any:
        """Makes the model on a target."""
        return self._load(nnx)["make"]()

    def function(self, nnx: Any) -> Callable[[Any, Any], Any]:
        """Returns the function, which runs on models of a target."""
        return self._load(nnx)["f"]

    def _load(self, nnx: Any) -> dict[str, Any]:
        namespace = dict(definitions(nnx))
        exec(compile(self.functions, "<program>", "exec"), namespace)
        return namespace


def _indented(*lines: str) -> str:
    return "".join(f"    {line}\n" for line in lines)


@functools.cache
def definitions(nnx: Any, arrays: Any = jnp) -> dict[str, Any]:
    """Makes the classes that programs use on a target; returns them with all else that they see.

    Args:
      nnx: the target.
      arrays: the module for arrays; on plain objects it may be NumPy.
    """
    namespace: dict[str, Any] = {"nnx": nnx, "jax": jax, "jnp": arrays, "__name__": "programs"}
    exec(compile(DEFINITIONS, "<definitions>", "exec"), namespace)
    return namespace


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    steps: tuple[str, ...] = STEPS,
    sharing: bool = False,
    cycles: bool = False,
) -> Program:
    """Draws a program of a few lines on a model with a few attributes.

    Args:
      draw: supplied by hypothesis.
      steps: the templates of the function's lines.
      sharing: whether the model may have an object at several places.
      cycles: whether it may lead back to itself; needs `sharing`.
    """
    values = VALUES if steps is SMOOTH else (*VALUES, *OTHERS)
    model = _Sketch(draw)
    model.do("{fresh} = " + VALUES[0])
    shared = ["{fresh} = {v}", "{fresh} = {inner}"] * sharing + ["{inner}.up = model"] * cycles
    while len(model.lines) < len(NAMES) and draw(_more):
        model.draw_line((*("{fresh} = " + value for value in values), *shared))
    making, model.lines = tuple(model.lines), []
    model.draw_line(steps)
    while len(model.lines) < 8 and draw(_more):
        model.draw_line(steps)
    return Program(making, tuple(model.lines))


_more = st.integers(0, 5).map(bool)
"""Whether there is another line: asked before each one, so that any of them can be left out."""


class _Sketch:
    """A model in the making, of plain objects; it knows what a further line can be about."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.deleted: set[str] = set()
        self.namespace = dict(definitions(plain, np), x=np.asarray([1, 2], "float32"))
        self.namespace["model"] = self.namespace["Net"]()

    def draw_line(self, templates: tuple[str, ...]) -> None:
        """Draws one of the templates that can be filled in, and what to fill in."""
        places = self.places()
        possible = [t for t in templates if all(places[slot] for slot in _slots(t))]
        self.do(self.draw(st.sampled_from(possible)), places)

    def do(self, template: str, places: dict[str, list[str]] | None = None) -> None:
        """Fills in a template, and carries it out if it changes the structure."""
        found = places or self.places()
        parts = list(string.Formatter().parse(template))
        line = "".join(
            text + (self.draw(st.sampled_from(found[slot])) if slot else "")
            for text, slot, _, _ in parts
        )
        self.lines.append(line)
        if template in EDITS or template not in (*STEPS, *DRAWS, *SMOOTH):
            exec(line, self.namespace)
        if template == "del {old}":
            self.deleted.add(line.split(".")[-1])

    def places(self) -> dict[str, list[str]]:
        """Lists what there is for each slot, as source text."""
        found: dict[str, list[str]] = {
            slot: [] for slot in ("v", "n", "layer", "rngs", "node", "inner", "fresh", "old")
        }
        net, layer = self.namespace["Net"], self.namespace["Layer"]
        for place, item in _reachable("model", self.namespace["model"]):
            if isinstance(item, plain.Variable):
                found["v" if item[...].dtype == "float32" else "n"].append(place)
            elif isinstance(item, plain.Rngs):
                found["rngs"].append(place)
            elif isinstance(item, layer):
                found["layer"].append(place)
            if isinstance(item, (net, layer)):
                found["node"].append(place)
            if isinstance(item, net):
                found["old"] += [f"{place}.{name}" for name in NAMES if hasattr(item, name)]
                fresh = [name for name in NAMES if not hasattr(item, name)]
                found["fresh"] += [f"{place}.{x}" for x in fresh if x not in self.deleted]
        found["inner"] = [place for place in found["node"] if place != "model"]
        return found | {"u": found["v"], "k": [str(k) for k in (1, 2, 3)]}


def _slots(template: str) -> list[str]:
    return [slot for _, slot, _, _ in string.Formatter().parse(template) if slot]


def _reachable(place: str, item: Any, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yields everything in a plain model at every place, in circles excepted; streams are whole."""
    yield place, item
    is_open = is_node(plain, item) and not isinstance(item, plain.Rngs)
    if is_open and id(item) not in above and len(above) < 4:
        for key, child in children(plain, item):
            spelled = f"{place}.{key}" if isinstance(key, str) else f"{place}[{key}]"
            yield from _reachable(spelled, child, (*above, id(item)))
