"""Initializers: those of `jax.nn.initializers`, functions of a key, a shape and a dtype.

All names but `zeros` and `ones` are of functions that make an initializer; these two are
initializers themselves, for which `zeros_init` and `ones_init` are the functions.
"""

from __future__ import annotations

from jax.nn.initializers import (
    Initializer,
    constant,
    delta_orthogonal,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    kaiming_normal,
    kaiming_uniform,
    lecun_normal,
    lecun_uniform,
    normal,
    ones,
    orthogonal,
    truncated_normal,
    uniform,
    variance_scaling,
    xavier_normal,
    xavier_uniform,
    zeros,
)

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "ones_init",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_init",
]


def ones_init() -> Initializer:
    """Returns the initializer `ones`."""
    return ones


def zeros_init() -> Initializer:
    """Returns the initializer `zeros`."""
    return zeros
