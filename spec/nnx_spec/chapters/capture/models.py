"""Models that sow and perturb, and what a capture gives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

from nnx_spec.oracles import Path, nodes, snapshot, state_items, value_record


@functools.cache
def own(nnx: Any) -> SimpleNamespace:
    """Makes the user's classes on a target: Metric, Layer and Stack."""

    class Metric(nnx.Intermediate):
        """A kind of intermediate value of the user's own."""

    class Layer(nnx.Module):
        """Multiplies, and sows the product as an Intermediate and its negative as a Metric."""

        def __init__(self, factor):
            self.factor = nnx.Param(jnp.float32(factor))
            self.calls = nnx.Cache(jnp.int32(0))

        def __call__(self, x):
            self.calls[...] += 1
            y = x * self.factor
            self.sow(nnx.Intermediate, "product", y)
            self.sow(Metric, "negative", -y)
            return y

    class Stack(nnx.Module):
        """Multiplies by 2, 3 and 5 and twice by 7, and sows the sum of what it was given."""

        def __init__(self):
            self.layers = nnx.List([Layer(2), Layer(3)])
            self.named = nnx.Dict(last=Layer(5))
            self.tail = Layer(7)

        def __call__(self, x, *, shift=0.0):
            self.sow(nnx.Intermediate, "total", jnp.sum(x))
            for layer in self.layers:
                x = layer(x)
            return self.tail(self.tail(self.named["last"](x))) + shift

        def apply(self, x, *, shift=0.0):
            """Does what a call does."""
            return self(x, shift=shift)

    return SimpleNamespace(Metric=Metric, Layer=Layer, Stack=Stack)


X = jnp.float32
"""Makes the number that models are called with."""


def products(x: float) -> dict[Path, Any]:
    """Lists what a Stack sows as Intermediates for x, by path."""
    return {
        ("layers", 0, "product"): (2 * x,),
        ("layers", 1, "product"): (6 * x,),
        ("named", "last", "product"): (30 * x,),
        ("tail", "product"): (210 * x, 1470 * x),
        ("total",): (x,),
    }


def negatives(x: float) -> dict[Path, Any]:
    """Lists what a Stack sows as Metrics for x, by path."""
    return {
        (*path[:-1], "negative"): tuple(-value for value in values)
        for path, values in products(x).items()
        if path[-1] == "product"
    }


@contextlib.contextmanager
def defaults(nnx: Any, mode: Mapping[str, bool]) -> Iterator[None]:
    """Makes a mode the default, for functions that have no option for it."""
    with nnx.set_graph_mode(mode["graph"]), nnx.set_graph_updates(mode["graph_updates"]):
        yield


def found(state: Any, kind: type | None = None) -> dict[Path, Any]:
    """Describes what a capture gave: the values by path, each a Variable of a kind."""
    items = state_items(state)
    if kind is not None:
        kinds = {path: type(leaf).__name__ for path, leaf in items}
        assert kinds == dict.fromkeys(kinds, kind.__name__)
    return {path: value_record(leaf.get_value()) for path, leaf in items}


def wanted(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Describes values by path as `found` does; numbers stand for float32 arrays."""
    return {path: value_record(_arrays(value)) for path, value in values.items()}


def _arrays(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_arrays, value))
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    return jnp.float32(value) if isinstance(value, (int, float)) else value


def everything(nnx: Any, model: Any) -> Any:
    """Describes a model with identities, and all its objects' attributes, private ones too."""
    attributes = [sorted(name for name in vars(node)) for node in nodes(nnx, model)]
    return snapshot(nnx, model, identities=True), attributes


def has_captures(nnx: Any, model: Any) -> bool:
    """Tells whether some object in a model has an attribute `__captures__`."""
    return any(hasattr(node, "__captures__") for node in nodes(nnx, model))
