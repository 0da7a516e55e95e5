"""Faults of transforms that programs find: what is written back to the caller, and what is not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault

Call = functools.partial[Any]
"""What is called, with its keyword arguments."""

Around = Callable[[Call, tuple[Any, ...]], Any]
"""Stands around the calls of a function: it gets the function and the positional arguments."""


def _objects(nnx: Any, tree: Any) -> Iterator[Any]:
    """Yields the Variables and other objects that are in a pytree, each once."""
    kinds = (nnx.Variable, nnx.Pytree)
    seen: set[int] = set()
    for root in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kinds)):
        found = nnx.iter_graph(root, graph=True) if isinstance(root, kinds) else ()
        for _, value in found:
            if isinstance(value, kinds) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _variables(nnx: Any, tree: Any) -> list[Any]:
    """Lists the Variables that are in a pytree, each once."""
    return [item for item in _objects(nnx, tree) if isinstance(item, nnx.Variable)]


def _attributes(nnx: Any, tree: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Lists the Modules that are in a pytree, each with its public attributes."""
    modules = [item for item in _objects(nnx, tree) if isinstance(item, nnx.Module)]
    return [
        (module, {key: x for key, x in vars(module).items() if not key.startswith("_")})
        for module in modules
        if not isinstance(module, nnx.List)
    ]


def _copies(nnx: Any, tree: Any) -> Any:
    """Copies the objects in a pytree, as one graph."""
    return nnx.clone(tree, graph=True)


def _is_traced(nnx: Any, tree: Any) -> bool:
    values = [variable.get_value() for variable in _variables(nnx, tree)]
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def _wrap(nnx: Any, patch: pytest.MonkeyPatch, name: str, outside: Around) -> None:
    """Stands around the calls of what a transform gives."""
    original = getattr(nnx, name)

    def transform(*functions: Any, **options: Any) -> Any:
        if not functions:
            return functools.partial(transform, **options)
        return _around(original(functions[0], **options), functions[0], outside)

    patch.setattr(nnx, name, transform)


def _wrap_function(nnx: Any, patch: pytest.MonkeyPatch, name: str, inside: Around) -> None:
    """Stands around the calls of the function that a transform is given."""
    original = getattr(nnx, name)

    def transform(*functions: Any, **options: Any) -> Any:
        if not functions:
            return functools.partial(transform, **options)
        return original(_around(functions[0], functions[0], inside), **options)

    patch.setattr(nnx, name, transform)


def _around(
    call: Callable[..., Any], function: Callable[..., Any], around: Around
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(call, **kwargs), args)

    return wrapped


@fault(breaks="TRX-002 TRX-003")
def jit_does_not_write_integers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a function compiled by `jit` writes to scalar Variables of integers is dropped."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        old = [(variable, variable.get_value()) for variable in _variables(nnx, args)]
        result = call(*args)
        for variable, value in old:
            if isinstance(value, jax.Array) and value.shape == () and value.dtype == jnp.int32:
                variable.set_value(value)
        return result

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="TRX-002")
def exchanged_values_count_as_unchanged(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jit`, a Variable that gets what another one had before the call is not updated."""

    def inside(function: Call, args: tuple[Any, ...]) -> Any:
        old = [(variable, variable.get_value()) for variable in _variables(nnx, args)]
        result = function(*args)
        known = {id(value) for _, value in old}
        for variable, value in old:
            if id(variable.get_value()) in known:
                variable.set_value(value)
        return result

    _wrap_function(nnx, patch, "jit", inside)


@fault(breaks="TRX-002")
def later_calls_count_once(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A compiled function draws the same random numbers on every call after the first."""
    calls: dict[int, int] = {}

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        counts = [v for v in _variables(nnx, args) if isinstance(v, nnx.RngCount)]
        old = [count.get_value() for count in counts]
        result = call(*args)
        for count, value in zip(counts, old, strict=True):
            calls[id(count)] = calls.get(id(count), 0) + 1
            if calls[id(count)] > 1:
                count.set_value(value)
        return result

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="TRX-003")
def shard_map_works_on_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written inside `shard_map` does not reach the caller."""
    _wrap(nnx, patch, "shard_map", lambda call, args: call(*_copies(nnx, args)))


@fault(breaks="TRX-003 TREE-011")
def vmap_in_tree_mode_works_on_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written inside `vmap` does not reach the caller in tree mode."""
    _forget_in(nnx, patch, "vmap", graph=False)


@fault(breaks="TRX-003 GRA-012")
def vmap_in_graph_mode_works_on_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written inside `vmap` does not reach the caller in graph mode."""
    _forget_in(nnx, patch, "vmap", graph=True)


def _forget_in(nnx: Any, patch: pytest.MonkeyPatch, name: str, graph: bool) -> None:
    """Lets what a transform gives work on copies, in tree mode or in graph mode alone."""
    original = getattr(nnx, name)

    def transform(function: Any, **options: Any) -> Any:
        transformed = original(function, **options)
        forgets = options.get("graph") is graph

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return transformed(*(_copies(nnx, args) if forgets else args), **kwargs)

        return call

    patch.setattr(nnx, name, transform)


@fault(breaks="TRX-003")
def switch_works_on_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What the branch of `switch` writes does not reach the caller."""
    original = nnx.switch

    def switch(index: Any, branches: Any, *operands: Any, **options: Any) -> Any:
        return original(index, branches, *_copies(nnx, operands), **options)

    patch.setattr(nnx, "switch", switch)


@fault(breaks="TRX-003")
def written_variables_are_replaced(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """After `vmap`, new Variables stand in the place of those that were written to."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        old = {id(variable): variable.get_value() for variable in _variables(nnx, args)}
        result = call(*args)
        for module, attributes in _attributes(nnx, args):
            for name, value in attributes.items():
                if id(value) in old and value.get_value() is not old[id(value)]:
                    setattr(module, name, value.copy())
        return result

    _wrap(nnx, patch, "vmap", outside)


def _renewed(nnx: Any, tree: Any) -> None:
    """Gives Variables new arrays of the same value."""
    for variable in _variables(nnx, tree):
        variable.set_value(jax.tree.map(lambda array: array.copy(), variable.get_value()))


@fault(breaks="TRX-036")
def grad_writes_all_variables(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """After `grad`, all Variables have new arrays, whether they were written to or not."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        result = call(*args)
        _renewed(nnx, args)
        return result

    _wrap(nnx, patch, "grad", outside)


@fault(breaks="TRX-036")
def changed_once_is_written_always(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The second call of a compiled function writes all Variables."""
    known: set[int] = set()

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        result = call(*args)
        if id(call.func) in known:
            _renewed(nnx, args)
        known.add(id(call.func))
        return result

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="TRX-008")
def exceptions_leave_tracers(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An exception in `scan` leaves in the caller's Variables what was computed up to there."""
    original = nnx.scan

    def scan(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        left: list[Any] = []

        def step(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception:
                left[:] = [variable.get_value() for variable in _variables(nnx, args)]
                raise

        def call(*args: Any) -> Any:
            try:
                return original(step, **options)(*args)
            except Exception:
                for variable, value in zip(_variables(nnx, args), left, strict=False):
                    variable.set_value(value)
                raise

        return call

    patch.setattr(nnx, "scan", scan)


@fault(breaks="TRX-008")
def exceptions_lock_what_they_met(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """After a call of `remat` that raised, the next one does not write."""
    failed: set[int] = set()

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        try:
            return call(*(_copies(nnx, args) if id(call.func) in failed else args))
        except Exception:
            failed.add(id(call.func))
            raise

    _wrap(nnx, patch, "remat", outside)


def _patch_writes(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any, Any, Any], Any]
) -> None:
    """Lets `change(variable, index, new)` make the value that an item assignment writes."""
    original = nnx.Variable.__setitem__

    def setitem(self: Any, index: Any, new: Any) -> None:
        original(self, index, change(self, index, new))

    patch.setattr(nnx.Variable, "__setitem__", setitem)


@fault(breaks="TRX-012")
def writes_of_items_stop_gradients(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is written to an item of a Variable counts as a constant."""

    def change(variable: Any, index: Any, new: Any) -> Any:
        return new if index is ... else jax.lax.stop_gradient(new)

    _patch_writes(nnx, patch, change)


@fault(breaks="TRX-012")
def overwritten_values_still_count(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The derivative by a value that was overwritten is that by the value in its place."""

    def change(variable: Any, index: Any, new: Any) -> Any:
        old = variable.get_value()
        if index is not ... or not jnp.issubdtype(jnp.result_type(old), jnp.inexact):
            return new
        return new + (old - jax.lax.stop_gradient(old))

    _patch_writes(nnx, patch, change)


@fault(breaks="TRX-027")
def remat_inside_drops_writes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What `remat` writes inside another transform does not reach the caller."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        return call(*(_copies(nnx, args) if _is_traced(nnx, args) else args))

    _wrap(nnx, patch, "remat", outside)


@fault(breaks="TRX-027")
def grad_inside_runs_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Inside another transform, `grad` propagates what two calls of the function write."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        result = call(*args)
        if _is_traced(nnx, args):
            call(*args)
        return result

    _wrap(nnx, patch, "grad", outside)


@fault(breaks="GRA-001")
def remat_takes_shared_variables_apart(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Inside `remat`, the second place of a shared Variable has a Variable of its own."""

    def inside(function: Call, args: tuple[Any, ...]) -> Any:
        seen: set[int] = set()
        for module, attributes in _attributes(nnx, args):
            for name, value in sorted(attributes.items()):
                if isinstance(value, nnx.Variable) and id(value) in seen:
                    setattr(module, name, value.copy())
                seen.add(id(value))
        return function(*args)

    _wrap_function(nnx, patch, "remat", inside)


@fault(breaks="GRA-001")
def pairs_are_told_by_the_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A compiled function of two Modules takes the second one that it had with this first one."""
    partners: dict[Any, tuple[Any, ...]] = {}

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        if len(args) == 2 and all(isinstance(arg, nnx.Module) for arg in args):
            args = partners.setdefault((call.func, id(args[0])), args)
        return call(*args)

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="GRA-001")
def outputs_share_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Objects that a function compiled by `jit` returns share nothing with each other."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        kinds = (nnx.Variable, nnx.Pytree)

        def copied(item: Any) -> Any:
            return _copies(nnx, item) if isinstance(item, kinds) else item

        return jax.tree.map(copied, call(*args), is_leaf=lambda x: isinstance(x, kinds))

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="GRA-002")
def deleted_attributes_stay(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An attribute that is deleted inside `grad` is still there outside."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        old = _attributes(nnx, args)
        result = call(*args)
        for module, attributes in old:
            for name in attributes.keys() - vars(module).keys():
                setattr(module, name, attributes[name])
        return result

    _wrap(nnx, patch, "grad", outside)


@fault(breaks="GRA-002")
def metadata_stays_inside(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Metadata that is set inside `jit` is not set outside."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        old = [(variable, variable.get_metadata()) for variable in _variables(nnx, args)]
        result = call(*args)
        for variable, metadata in old:
            for name in variable.get_metadata().keys() - metadata.keys():
                variable.del_metadata(name)
        return result

    _wrap(nnx, patch, "jit", outside)


@fault(breaks="GRA-002")
def new_sharing_is_lost(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A Variable that gets a second place inside `vmap` is two Variables outside."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        old = {id(module): attributes for module, attributes in _attributes(nnx, args)}
        result = call(*args)
        for module, attributes in _attributes(nnx, args):
            for name in attributes.keys() - old.get(id(module), attributes).keys():
                if isinstance(attributes[name], nnx.Module):
                    setattr(module, name, _copies(nnx, attributes[name]))
        return result

    _wrap(nnx, patch, "vmap", outside)


@fault(breaks="GRA-003")
def parts_of_inputs_are_returned_as_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`checkify` returns copies of the inputs' Variables, and of nothing else."""

    def outside(call: Call, args: tuple[Any, ...]) -> Any:
        known = {id(variable) for variable in _variables(nnx, args)}

        def copied(item: Any) -> Any:
            return item.copy() if id(item) in known else item

        kinds = (nnx.Variable, nnx.Pytree)
        return jax.tree.map(copied, call(*args), is_leaf=lambda x: isinstance(x, kinds))

    _wrap(nnx, patch, "checkify", outside)


@fault(breaks="GRA-003")
def carried_models_come_back_as_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`fori_loop` returns a copy of the model that it carried."""
    original = nnx.fori_loop
    patch.setattr(
        nnx, "fori_loop", lambda *args, **options: _copies(nnx, original(*args, **options))
    )


@fault(breaks="GRA-002")
def jit_forgets_other_structures(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A compiled function knows the structure of its last call alone."""
    original = nnx.jit

    def jit(*functions: Any, **options: Any) -> Any:
        if not functions:
            return functools.partial(jit, **options)
        last: list[Any] = [None, None]

        def call(*args: Any) -> Any:
            graphdef = nnx.graphdef(args, graph=True)
            if graphdef != last[0]:
                last[:] = graphdef, original(lambda *given: functions[0](*given), **options)
            return last[1](*args)

        return functools.wraps(functions[0])(call)

    patch.setattr(nnx, "jit", jit)


@fault(breaks="GRA-002")
def a_failed_scan_leaves_its_first_step(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """When the structure of a carry changes, `scan` raises and leaves what the first step did."""
    original = nnx.scan

    def scan(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except (TypeError, ValueError):
                function(args[0], args[1][0])
                raise

        return call

    patch.setattr(nnx, "scan", scan)


@fault(breaks="TREE-002")
def static_values_leave_tree_mode(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Static attributes of a model that `vmap` changes are changed outside, in tree mode too."""
    original = nnx.vmap

    def statics(model: Any) -> dict[str, Any]:
        return {name: x for name, x in vars(model).items() if isinstance(x, (int, str))}

    def vmap(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        left: dict[str, Any] = {}

        def inner(model: Any, *args: Any) -> Any:
            result = function(model, *args)
            left.update(statics(model))
            return result

        def call(model: Any, *args: Any) -> Any:
            result = original(inner, **options)(model, *args)
            for name in statics(model).keys() & left.keys():
                setattr(model, name, left[name])
            return result

        return call

    patch.setattr(nnx, "vmap", vmap)


@fault(breaks="TREE-002")
def removed_variables_are_not_updated(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Under `jit`, a Variable that the function takes out of the model keeps its old value."""

    def inside(function: Call, args: tuple[Any, ...]) -> Any:
        old = [(variable, variable.get_value()) for variable in _variables(nnx, args)]
        result = function(*args)
        kept = set(map(id, _variables(nnx, args)))
        for variable, value in old:
            if id(variable) not in kept:
                variable.set_value(value)
        return result

    _wrap_function(nnx, patch, "jit", inside)
