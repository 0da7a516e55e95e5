"""Faults of tree mode: aliases, prefix filters, gradients, derivative rules, JAX's transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


def in_tree_mode(options: dict[str, Any]) -> bool:
    """Tells whether a transform's options ask for tree mode."""
    return options.get("graph") is False


def map_variables(nnx: Any, change: Callable[[Any], Any], tree: Any) -> Any:
    """Copies a pytree with its Variables changed."""
    return jax.tree.map(
        lambda leaf: change(leaf) if isinstance(leaf, nnx.Variable) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )


def change_gradients(
    nnx: Any,
    patch: pytest.MonkeyPatch,
    name: str,
    change: Callable[[Any], Any],
    applies: Callable[[dict[str, Any]], bool] = in_tree_mode,
) -> None:
    """Changes the gradients that `grad` or `value_and_grad` gives with certain options."""
    original = getattr(nnx, name)

    def replacement(*function: Any, **options: Any) -> Callable[..., Any]:
        if not function:
            return lambda f: replacement(f, **options)
        differentiated = original(*function, **options)
        if not applies(options):
            return differentiated

        def call(*args: Any, **kwargs: Any) -> Any:
            result = differentiated(*args, **kwargs)
            if name == "value_and_grad":
                return result[0], change(result[1])
            return (change(result[0]), result[1]) if options.get("has_aux") else change(result)

        return call

    patch.setattr(nnx, name, replacement)


@fault(breaks="TREE-001")
def cond_copies_what_is_shared(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cond` takes copies of operands that share a Variable."""
    original = nnx.cond

    def cond(condition: Any, yes: Any, no: Any, *operands: Any, **options: Any) -> Any:
        try:
            return original(condition, yes, no, *operands, **options)
        except ValueError:
            copies = [nnx.clone(operand, graph=True) for operand in operands]
            return original(condition, yes, no, *copies, **options)

    patch.setattr(nnx, "cond", cond)


@fault(breaks="TREE-001")
def jit_copies_what_comes_out(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` in tree mode returns copies of the Variables that its function returns."""
    original = nnx.jit

    def jit(f: Callable[..., Any], **options: Any) -> Any:
        def copying(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf, f(*args, **kwargs))

        return original(copying if in_tree_mode(options) else f, **options)

    patch.setattr(nnx, "jit", jit)


@fault(breaks="TREE-013")
def vmap_names_some_paths(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of `vmap` for a shared Variable breaks off in the middle."""
    original = nnx.vmap

    def vmap(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        mapped = original(f, **options)

        def call(*args: Any) -> Any:
            try:
                return mapped(*args)
            except ValueError as error:
                raise ValueError(str(error)[: len(str(error)) // 3]) from None

        return call

    patch.setattr(nnx, "vmap", vmap)


@fault(breaks="TREE-003")
def value_and_grad_reads_numbers_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`value_and_grad` without graph updates takes a DiffState for the number in it."""
    original = nnx.value_and_grad

    def value_and_grad(f: Callable[..., Any], *, argnums: Any = 0, **options: Any) -> Any:
        if not options.get("graph_updates") and isinstance(argnums, nnx.DiffState):
            argnums = argnums.argnum
        return original(f, argnums=argnums, **options)

    patch.setattr(nnx, "value_and_grad", value_and_grad)


@fault(breaks="TREE-014")
def scan_does_not_name_the_way(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error of `scan` for StateAxes that it does not take does not say what to do instead."""
    original = nnx.scan

    def scan(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return original(f, **options)(*args)
            except ValueError as error:
                if "StateAxes" in str(error):
                    raise ValueError("scan takes no StateAxes here") from None
                raise

        return call

    patch.setattr(nnx, "scan", scan)


@fault(breaks="TREE-004")
def statistics_have_zero_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` in tree mode gives zeros for BatchStats."""

    def change(v: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, v) if isinstance(v, nnx.BatchStat) else v

    change_gradients(nnx, patch, "grad", lambda tree: map_variables(nnx, change, tree))


@fault(breaks="TREE-004")
def gradients_of_values_have_no_metadata(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables in a gradient that `value_and_grad` gives in tree mode have no metadata."""

    def change(v: Any) -> Any:
        return type(v)(v.get_value())

    change_gradients(nnx, patch, "value_and_grad", lambda tree: map_variables(nnx, change, tree))


@fault(breaks="TREE-004")
def integers_are_always_allowed(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` in tree mode ignores Variables that are no floats, whether `allow_int` or not."""
    original = nnx.grad

    def grad(f: Callable[..., Any], **options: Any) -> Any:
        return original(f, **{**options, "allow_int": in_tree_mode(options)})

    patch.setattr(nnx, "grad", grad)


@fault(breaks="TREE-005")
def merged_subclasses_have_no_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Params that `merge` builds are constants if they are of a subclass of Param."""
    original = nnx.merge

    def merge(*args: Any, **options: Any) -> Any:
        merged = original(*args, **options)
        for _, v in nnx.iter_graph(merged, graph=True):
            if isinstance(v, nnx.Param) and type(v) is not nnx.Param:
                v.set_value(jax.lax.stop_gradient(v.get_value()))
        return merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="TREE-005")
def gradients_of_states_are_too_large(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The gradient of a State that `grad` gives in tree mode is 1% too large."""

    def change(gradient: Any) -> Any:
        is_state = isinstance(gradient, nnx.State)
        return jax.tree.map(lambda x: x * 1.01, gradient) if is_state else gradient

    change_gradients(nnx, patch, "grad", change)


def change_rules(
    nnx: Any,
    patch: pytest.MonkeyPatch,
    change: Callable[[Callable[..., Any]], Callable[..., Any]],
    applies: Callable[[dict[str, Any]], bool] = in_tree_mode,
) -> None:
    """Changes the backward rules that are given to `custom_vjp` with certain options."""
    original = nnx.custom_vjp

    def changed(ruled: Any) -> Any:
        define = ruled.defvjp
        ruled.defvjp = lambda forward, backward: define(forward, change(backward))
        return ruled

    def custom_vjp(*function: Any, **options: Any) -> Any:
        if not function:
            return lambda f: custom_vjp(f, **options)
        ruled = original(*function, **options)
        return changed(ruled) if applies(options) else ruled

    patch.setattr(nnx, "custom_vjp", custom_vjp)


@fault(breaks="TREE-007")
def rules_get_updates(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A backward rule in tree mode gets a pair, of which the output's cotangent is the second."""

    def change(backward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda residuals, cotangent: backward(residuals, (None, cotangent))

    change_rules(nnx, patch, change)


@fault(breaks="TREE-007")
def tangents_are_of_params_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a backward rule returns in tree mode counts for Params alone."""

    def zero(v: Any) -> Any:
        return v if isinstance(v, nnx.Param) else jax.tree.map(jnp.zeros_like, v)

    def change(backward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: map_variables(nnx, zero, backward(*args))

    change_rules(nnx, patch, change)


@fault(breaks="TREE-010")
def traced_counts_go_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is added to an integer in a traced function is added twice."""

    def setitem(original: Any, self: Any, index: Any, value: Any) -> None:
        before = self.get_value()
        if isinstance(before, jax.core.Tracer) and jnp.issubdtype(before.dtype, jnp.integer):
            value = 2 * value - before
        original(self, index, value)

    around(patch, nnx.Variable, "__setitem__", setitem)


@fault(breaks="TREE-010")
def variables_of_tracers_are_untagged(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that is made of a traced array has no metadata `tag`."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        if isinstance(value, jax.core.Tracer):
            metadata.pop("tag", None)
        original(self, value, **metadata)

    around(patch, nnx.Variable, "__init__", init)
