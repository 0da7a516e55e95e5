"""Faults of graph updates: DiffState, StateSharding, `nnx.compat`, derivative rules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.tree import change_gradients, change_rules


def has_updates(options: dict[str, Any]) -> bool:
    """Tells whether a transform's options ask for graph updates."""
    return options.get("graph_updates") is True


@fault(breaks="GRA-005")
def diff_state_leaves_out_subclasses(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A DiffState of a class does not select Variables of its subclasses."""
    original = nnx.DiffState

    def diff_state(argnum: int, selects: Any) -> Any:
        if not isinstance(selects, type):
            return original(argnum, selects)
        return original(argnum, lambda path, value: type(value) is selects)

    patch.setattr(nnx, "DiffState", diff_state)


@fault(breaks="GRA-005")
def all_floats_are_differentiated(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Without `argnums`, `grad` with graph updates gives the gradient of all floats."""
    original = nnx.grad

    def is_float(path: Any, value: Any) -> bool:
        return all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(value))

    def grad(f: Callable[..., Any], **options: Any) -> Any:
        if has_updates(options) and "argnums" not in options:
            options = {**options, "argnums": nnx.DiffState(0, is_float)}
        return original(f, **options)

    patch.setattr(nnx, "grad", grad)


@fault(breaks="GRA-005")
def value_and_grad_keeps_what_is_selected(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What `value_and_grad` differentiates with respect to by a DiffState is not changed."""
    original = nnx.value_and_grad

    def value_and_grad(f: Callable[..., Any], **options: Any) -> Any:
        chosen = options.get("argnums")
        differentiated = original(f, **options)

        def call(*args: Any) -> Any:
            if not isinstance(chosen, nnx.DiffState):
                return differentiated(*args)
            model = args[chosen.argnum]
            before = nnx.clone(nnx.state(model, chosen.filter, graph=True), graph=True)
            result = differentiated(*args)
            nnx.update(model, before)
            return result

        return call

    patch.setattr(nnx, "value_and_grad", value_and_grad)


@fault(breaks="GRA-005")
def gradient_states_are_untagged(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables of a gradient State that `grad` gives have no metadata."""

    def change(gradient: Any) -> Any:
        def bare(leaf: Any) -> Any:
            return type(leaf)(leaf.get_value()) if isinstance(leaf, nnx.Variable) else leaf

        return jax.tree.map(bare, gradient, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))

    change_gradients(nnx, patch, "grad", change, has_updates)


@fault(breaks="GRA-006")
def last_sharding_decides(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The last filter of a StateSharding that selects a Variable decides about it."""
    original = nnx.StateSharding

    def state_sharding(shardings: Any) -> Any:
        return original(dict(reversed(dict(shardings).items())))

    patch.setattr(nnx, "StateSharding", state_sharding)


@fault(breaks="GRA-006")
def outputs_are_sharded_as_they_come(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` pays no attention to the StateShardings in `out_shardings`."""
    original = nnx.jit

    def jit(f: Callable[..., Any], *, out_shardings: Any = None, **options: Any) -> Any:
        if isinstance(out_shardings, tuple):
            kept = (None if isinstance(s, nnx.StateSharding) else s for s in out_shardings)
            out_shardings = tuple(kept)
        return original(f, out_shardings=out_shardings, **options)

    patch.setattr(nnx, "jit", jit)


@fault(breaks="GRA-006")
def inputs_are_moved(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` moves an array that has another sharding than `in_shardings` says."""
    original = nnx.jit

    def jit(f: Callable[..., Any], **options: Any) -> Any:
        jitted = original(f, **options)

        def call(*args: Any) -> Any:
            if has_updates(options) and options.get("in_shardings"):
                for _, value in nnx.iter_graph(list(args), graph=True):
                    if isinstance(value, nnx.Variable):
                        value.set_value(jnp.asarray(jax.device_get(value.get_value())))
            return jitted(*args)

        return call

    patch.setattr(nnx, "jit", jit)


def replace_in_compat(nnx: Any, patch: pytest.MonkeyPatch, name: str, replacement: Any) -> None:
    """Replaces one name of `nnx.compat`."""
    names = [name for name in dir(nnx.compat) if not name.startswith("_")]
    compat = SimpleNamespace(**{name: getattr(nnx.compat, name) for name in names})
    setattr(compat, name, replacement)
    patch.setattr(nnx, "compat", compat)


@fault(breaks="GRA-008")
def compat_vmap_has_no_updates(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`nnx.compat.vmap` has graph updates only if that is the default."""

    def vmap(f: Callable[..., Any], **options: Any) -> Any:
        return nnx.vmap(f, graph=True, **options)

    replace_in_compat(nnx, patch, "vmap", vmap)


@fault(breaks="GRA-008")
def compat_modules_follow_the_default(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`nnx.compat.iter_modules` is `nnx.iter_modules`."""
    replace_in_compat(nnx, patch, "iter_modules", nnx.iter_modules)


@fault(breaks="GRA-008")
def compat_gradients_are_modules(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`nnx.compat.value_and_grad` gives the gradient of a Module as a Module."""
    original = nnx.compat.value_and_grad

    def value_and_grad(f: Callable[..., Any], **options: Any) -> Any:
        def call(model: Any) -> Any:
            value, gradient = original(f, **options)(model)
            zeros = nnx.clone(model, graph=True)
            nnx.update(zeros, gradient)
            return value, zeros

        return call

    replace_in_compat(nnx, patch, "value_and_grad", value_and_grad)


@fault(breaks="GRA-010")
def updates_have_no_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A backward rule with graph updates gets zeros for the gradients of the updates."""

    def change(backward: Callable[..., Any]) -> Callable[..., Any]:
        def changed(residuals: Any, g: Any) -> Any:
            return backward(residuals, (jax.tree.map(jnp.zeros_like, g[0]), g[1]))

        return changed

    change_rules(nnx, patch, change, has_updates)


@fault(breaks="GRA-010")
def arrays_have_updates(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A backward rule with graph updates gets zero, not None, for an argument that is an array."""

    def change(backward: Callable[..., Any]) -> Callable[..., Any]:
        def changed(residuals: Any, g: Any) -> Any:
            updates = tuple(0.0 if update is None else update for update in g[0])
            return backward(residuals, (updates, g[1]))

        return changed

    change_rules(nnx, patch, change, has_updates)


@fault(breaks="GRA-010")
def compat_rules_get_cotangents_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A backward rule of `nnx.compat.custom_vjp` gets the output's cotangent and no more."""

    def custom_vjp(f: Callable[..., Any], **options: Any) -> Any:
        return nnx.custom_vjp(f, graph=True, graph_updates=False, **options)

    replace_in_compat(nnx, patch, "custom_vjp", custom_vjp)
