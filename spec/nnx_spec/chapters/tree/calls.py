"""Calls in tree mode, and the objects that tree mode does not take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import MODES
from nnx_spec.oracles import Path

TREE = MODES["tree-mode"]
"""The options of a transform in tree mode."""

Function = Callable[..., Any]


def _beside_a_loss(f: Function) -> Function:
    """Makes a differentiable function that returns what f returns beside its value."""
    return lambda *args: (sum(leaf.sum() for leaf in jax.tree.leaves(args)), f(*args))


def _jvp(nnx: Any, f: Function, args: tuple[Any, ...]) -> Any:
    tangents = tuple(nnx.clone(arg, graph=True) for arg in args)
    return nnx.jvp(f, args, tangents, **TREE)


def _scan(nnx: Any, f: Function, args: tuple[Any, ...], axis: Any) -> Any:
    in_axes, out_axes = (nnx.Carry, *(axis for _ in args)), (nnx.Carry, 0)
    step = nnx.scan(
        lambda c, *xs: (c, f(*xs)), length=2, in_axes=in_axes, out_axes=out_axes, **TREE
    )
    return step(np.float32(0), *args)


def _scan_that_carries(nnx: Any, f: Function, args: tuple[Any, ...]) -> Any:
    step = nnx.scan(
        lambda carry: (carry, f(*carry)),
        length=2,
        in_axes=(nnx.Carry,),
        out_axes=(nnx.Carry, 0),
        **TREE,
    )
    return step(args)


def _shard_map(nnx: Any, f: Function, args: tuple[Any, ...]) -> Any:
    spec = PartitionSpec("x")
    specs = {"in_specs": (spec,) * len(args), "out_specs": spec}
    return nnx.shard_map(f, mesh=mesh_of(1), **specs, **TREE)(*args)


def _custom_vjp(nnx: Any, f: Function, args: tuple[Any, ...]) -> Any:
    ruled = nnx.custom_vjp(f, **TREE)
    ruled.defvjp(lambda *args: (f(*args), args), lambda args, _: args)
    return ruled(*args)


CALLS: Mapping[str, Callable[[Any, Function, tuple[Any, ...]], Any]] = MappingProxyType(
    {
        "jit": lambda nnx, f, args: nnx.jit(f, **TREE)(*args),
        "grad": lambda nnx, f, args: nnx.grad(_beside_a_loss(f), has_aux=True, **TREE)(*args),
        "value_and_grad": lambda nnx, f, args: nnx.value_and_grad(
            _beside_a_loss(f), has_aux=True, **TREE
        )(*args),
        "vjp": lambda nnx, f, args: nnx.vjp(f, *args, **TREE),
        "jvp": _jvp,
        "custom_vjp": _custom_vjp,
        "remat": lambda nnx, f, args: nnx.remat(f, **TREE)(*args),
        "vmap": lambda nnx, f, args: nnx.vmap(f, **TREE)(*args),
        "pmap": lambda nnx, f, args: nnx.pmap(f, **TREE)(*args),
        "shard_map": _shard_map,
        "scan": lambda nnx, f, args: _scan(nnx, f, args, 0),
        "scan that broadcasts": lambda nnx, f, args: _scan(nnx, f, args, None),
        "scan that carries": _scan_that_carries,
        "cond": lambda nnx, f, args: nnx.cond(True, f, f, *args, **TREE),
        "switch": lambda nnx, f, args: nnx.switch(0, [f, f], *args, **TREE),
        "checkify": lambda nnx, f, args: nnx.checkify(f, **TREE)(*args),
        "eval_shape": lambda nnx, f, args: nnx.eval_shape(f, *args, **TREE),
        "make_jaxpr": lambda nnx, f, args: nnx.make_jaxpr(f, **TREE)(*args),
    }
)
"""Calls of a function of two Modules with float Variables of shape (2,), in tree mode.

What the function returns is among the outputs of the call, whatever it is.
"""

LOOPS: Mapping[str, Callable[[Any, Function, Any], Any]] = MappingProxyType(
    {
        "while_loop": lambda nnx, body, init: nnx.while_loop(
            lambda carry: carry[0].left[0] > 9, body, init, **TREE
        ),
        "fori_loop": lambda nnx, body, init: nnx.fori_loop(
            0, 2, lambda _, carry: body(carry), init, **TREE
        ),
    }
)
"""Loops in tree mode over a pair of Modules, the first with a Variable `left`."""


def pair(nnx: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Makes two Modules, with `left` in the first and `inner.right` in the second."""
    return net(nnx, left=left), net(nnx, inner=net(nnx, right=right))


def _in_one_argument(nnx: Any) -> Any:
    shared, single = param(nnx, [1, 2]), param(nnx, [3, 4])
    return net(nnx, left=shared, inner=net(nnx, right=shared)), net(nnx, left=single)


def _in_two_arguments(nnx: Any) -> Any:
    shared = param(nnx, [1, 2])
    return pair(nnx, shared, shared)


def _at_three_places(nnx: Any) -> Any:
    shared = param(nnx, [1, 2])
    first, second = pair(nnx, shared, shared)
    first.block = net(nnx, again=shared)
    return first, second


def _in_a_list(nnx: Any) -> Any:
    shared = nnx.BatchStat(param(nnx, [1, 2]).get_value())
    first, second = pair(nnx, param(nnx, [3, 4]), param(nnx, [5, 6]))
    first.layers, second.table = nnx.List([param(nnx, [7, 8]), shared]), nnx.Dict(entry=shared)
    return first, second


def _in_a_shared_module(nnx: Any) -> Any:
    shared = net(nnx, w=param(nnx, [1, 2]))
    first, second = pair(nnx, param(nnx, [3, 4]), shared)
    first.block = shared
    return first, second


ALIASES: Mapping[str, tuple[Callable[[Any], tuple[Any, Any]], list[Path]]] = MappingProxyType(
    {
        "in one argument": (_in_one_argument, [("left",), ("inner", "right")]),
        "in two arguments": (_in_two_arguments, [("left",), ("inner", "right")]),
        "at three places": (
            _at_three_places,
            [("left",), ("inner", "right"), ("block", "again")],
        ),
        "in a List and a Dict": (_in_a_list, [("layers", 1), ("table", "entry")]),
        "in a shared Module": (_in_a_shared_module, [("block",), ("inner", "right")]),
    }
)
"""Pairs of Modules in which a Variable stands at several places, and the places."""


def _twice(nnx: Any, a: Any, b: Any) -> Any:
    made = param(nnx, [5, 6])
    return net(nnx, one=made), {"two": made}


OUTPUTS: Mapping[str, tuple[Callable[..., Any], list[Path]]] = MappingProxyType(
    {
        "a Variable": (lambda nnx, a, b: {"made": a.left}, [("left",), ("made",)]),
        "a part": (lambda nnx, a, b: {"made": b.inner}, [("inner", "right"), ("made", "right")]),
        "an argument": (lambda nnx, a, b: [b, 0.0], [("inner", "right"), (0, "inner", "right")]),
        "in a new Module": (
            lambda nnx, a, b: net(nnx, made=b.inner.right),
            [("inner", "right"), ("made",)],
        ),
        "in two outputs": (_twice, [("one",), ("two",)]),
    }
)
"""Functions of a `pair` that return a Variable that stands elsewhere as well, and its places."""
