"""The samplers of `jax.random`, with arguments to call each of them with, the key left out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

SAMPLERS: dict[str, Arguments] = {
    "ball": ((2,), {"shape": (3,)}),
    "bernoulli": ((0.25,), {"shape": (3,)}),
    "beta": ((1.0, 2.0), {"shape": (3,)}),
    "binomial": ((5, 0.5), {"shape": (3,)}),
    "bits": (((3,),), {"dtype": "uint8"}),
    "categorical": ((np.zeros(5, "float32"),), {"shape": (3,)}),
    "cauchy": (((3,),), {}),
    "chisquare": ((3.0,), {"shape": (3,)}),
    "choice": ((np.arange(7), (3,)), {"replace": False}),
    "dirichlet": ((np.ones(3, "float32"), (2,)), {}),
    "double_sided_maxwell": ((0.0, 1.0), {"shape": (3,)}),
    "exponential": (((3,),), {}),
    "f": ((2.0, 3.0), {"shape": (3,)}),
    "gamma": ((2.0,), {"shape": (3,)}),
    "generalized_normal": ((2.0, (3,)), {}),
    "geometric": ((0.5,), {"shape": (3,)}),
    "gumbel": (((3,),), {}),
    "laplace": (((3,),), {}),
    "loggamma": ((2.0,), {"shape": (3,)}),
    "logistic": (((3,),), {}),
    "lognormal": ((), {"sigma": 2.0, "shape": (3,)}),
    "maxwell": (((3,),), {}),
    "multinomial": ((5, np.full(2, 0.5, "float32")), {}),
    "multivariate_normal": ((np.zeros(2, "float32"), np.eye(2, dtype="float32")), {}),
    "normal": (((3,),), {"dtype": "float16"}),
    "orthogonal": ((3,), {}),
    "pareto": ((2.0,), {"shape": (3,)}),
    "permutation": ((np.arange(7),), {"independent": True}),
    "poisson": ((3.0, (3,)), {}),
    "rademacher": (((3,),), {}),
    "randint": (((3,), 2), {"maxval": 9}),
    "rayleigh": ((1.0,), {"shape": (3,)}),
    "t": ((3.0,), {"shape": (3,)}),
    "triangular": ((0.0, 0.5, 1.0), {"shape": (3,)}),
    "truncated_normal": ((-1.0, 1.0, (3,)), {}),
    "uniform": (((3,),), {"minval": -1.0, "maxval": 3.0}),
    "wald": ((1.0,), {"shape": (3,)}),
    "weibull_min": ((1.0, 2.0), {"shape": (3,)}),
}
"""Positional and keyword arguments by sampler; not every JAX has all of them."""

NO_SAMPLERS = frozenset({"clone", "fold_in", "split"})
"""Functions of `jax.random` that take a key first and draw nothing."""


def keyed_functions() -> Iterator[str]:
    """Yields the public functions of this JAX's `jax.random` whose first parameter is a key."""
    for name, function in inspect.getmembers(jax.random, inspect.isroutine):
        if not name.startswith("_") and next(iter(inspect.signature(function).parameters)) == "key":
            yield name
