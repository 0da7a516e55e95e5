"""What a layer does differently while it is trained: the call decides, or else the layer."""

from __future__ import annotations

from typing import TypeVar

from nnx_reference.pytree import Module

A = TypeVar("A")


def first_given(layer: Module, name: str, given: A | None) -> A:
    """Returns what a call says about a mode, or else what the layer says.

    Raises:
      ValueError: neither says anything.
    """
    mode = getattr(layer, name) if given is None else given
    if mode is None:
        kind = type(layer).__name__
        raise ValueError(
            f"a {kind} has to know {name}: pass it to the constructor, to the call, or to"
            f" nnx.view(model, {name}=...)"
        )
    return mode
