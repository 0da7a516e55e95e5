"""Faults of transforms that are given ref and hijax Variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.hijax_propagation import is_tracing, skip_writes
from nnx_conformance.faults.hijax_transforms import is_integer, variables_of

TRANSFORMS = ("jit", "grad", "value_and_grad", "remat", "scan", "cond", "switch")


def is_held(v: Any) -> bool:
    """Tells whether a Variable carries out by itself what is written to it."""
    return bool(v.hijax or v.ref)


@fault(breaks="HJX-044 HJX-045")
def transforms_refuse_what_is_no_plain_variable(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Transforms raise for every ref or hijax Variable among the arguments."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(map(is_held, variables_of(nnx, (args, kwargs)))):
                raise ValueError("this transform takes plain Variables only")
            found = original(*args, **kwargs)
            return refusing(found) if callable(found) else found

        return call

    for name in TRANSFORMS:
        patch.setattr(nnx, name, refusing(getattr(nnx, name)))


@fault(breaks="HJX-043 HJX-045")
def counts_by_reference_stay_behind(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written in a transform to a ref or hijax Variable of integers is lost."""
    skip_writes(nnx, patch, lambda v, name: is_tracing() and is_held(v) and is_integer(v))


@fault(breaks="HJX-043")
def what_is_computed_again_is_written_again(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A function under `remat` is called again after its result is known."""
    original = nnx.remat

    def remat(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def twice(*args: Any) -> Any:
            result = f(*args)
            f(*args)
            return result

        return original(twice, **options)

    patch.setattr(nnx, "remat", remat)


@fault(breaks="HJX-043")
def squares_are_mapped_the_other_way(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` along the second axis of a Variable that holds a square leaves it transposed."""
    original = nnx.vmap

    def vmap(f: Callable[..., Any], *, in_axes: Any = 0, **options: Any) -> Callable[..., Any]:
        mapped = original(f, in_axes=in_axes, **options)

        def call(*args: Any) -> Any:
            result = mapped(*args)
            first = in_axes[0] if isinstance(in_axes, tuple) else in_axes
            if first == 1 and isinstance(args[0], nnx.Variable):
                args[0].set_value(jax.numpy.transpose(args[0].get_value()))
            return result

        return call

    patch.setattr(nnx, "vmap", vmap)
