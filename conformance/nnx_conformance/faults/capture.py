"""Faults of capturing: what is sown, what is perturbed, what a capture gives and leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


def change_captures(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any, tuple[Any, ...], Any, Any], Any]
) -> None:
    """Changes what calls with a capture give.

    Args:
      nnx: the target.
      patch: plants the change.
      change: gets the captured function, the arguments of a call, a function that makes the call,
        and the options of the capture; returns the output.
    """
    original = nnx.capture

    def capture(f: Any, *kinds: Any, **options: Any) -> Any:
        if isinstance(f, type):
            return lambda function: capture(function, f, *kinds, **options)
        capturing = original(f, *kinds, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            return change(f, args, lambda: capturing(*args, **kwargs), options)

        return call

    patch.setattr(nnx, "capture", capture)


def change_states(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[Any, Mapping[str, Any]], Any]
) -> None:
    """Changes the States that captures give: `change(state, options)`."""

    def changed(f: Any, args: Any, call: Any, options: Any) -> Any:
        output = call()
        if not (isinstance(output, tuple) and isinstance(output[-1], nnx.State)):
            return output
        is_state = [isinstance(item, nnx.State) for item in output]
        pairs = zip(output, is_state, strict=True)
        return tuple(change(item, options) if flag else item for item, flag in pairs)

    change_captures(nnx, patch, changed)


def leaves(nnx: Any, state: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields a State's leaves with their paths."""
    for path, leaf in nnx.to_flat_state(state):
        yield tuple(path), leaf


def module_of(nnx: Any, f: Any, args: tuple[Any, ...]) -> Any:
    """Returns the Module that a capture is about."""
    if isinstance(f, nnx.Module):
        return f
    owner = getattr(f, "__self__", None)
    return owner if isinstance(owner, nnx.Module) else args[0]


def is_capturing(module: Any) -> bool:
    """Tells whether a capture of a Module is under way."""
    return hasattr(module, "__captures__")


@fault(breaks="CAP-001")
def captured_lists_have_names(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What an element of a List sows stands in the State under the text of its index."""

    def change(state: Any, options: Any) -> Any:
        items = [((*map(str, path),), leaf) for path, leaf in leaves(nnx, state)]
        return nnx.from_flat_state(items)

    change_states(nnx, patch, change)


@fault(breaks="CAP-001")
def captures_of_nothing_are_left_out(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture gives no State of a Type of which nothing was sown."""

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        output = call()
        if not (isinstance(output, tuple) and isinstance(output[-1], nnx.State)):
            return output
        return tuple(x for x in output if not isinstance(x, nnx.State) or len(x))

    change_captures(nnx, patch, change)


@fault(breaks="CAP-001")
def captured_values_are_of_one_class(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The Variables in the State of a subclass of Intermediate are Intermediates."""

    def change(state: Any, options: Any) -> Any:
        def plain(leaf: Any) -> Any:
            is_below = isinstance(leaf, nnx.Intermediate)
            return nnx.Intermediate(leaf.get_value()) if is_below else leaf

        return nnx.from_flat_state([(path, plain(leaf)) for path, leaf in leaves(nnx, state)])

    change_states(nnx, patch, change)


@fault(breaks="CAP-002")
def sowing_always_succeeds(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`sow` returns True for a Type that is not captured, too."""

    def sow(original: Any, self: Any, *args: Any, **options: Any) -> bool:
        original(self, *args, **options)
        return True

    around(patch, nnx.Module, "sow", sow)


@fault(breaks="CAP-002")
def each_value_begins_anew(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`sow` calls `init_fn` for each value, and goes on with what it held."""

    def sow(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        if "init_fn" in options:
            options["init_fn"]()
        return original(self, *args, **options)

    around(patch, nnx.Module, "sow", sow)


@fault(breaks="CAP-002")
def falsy_values_are_not_reduced(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`sow` takes the value itself, without `reduce_fn`, where what it holds is false."""

    def sow(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        reduce = options.get("reduce_fn")
        if reduce:
            options["reduce_fn"] = lambda held, x: reduce(held, x) if held else x
        return original(self, *args, **options)

    around(patch, nnx.Module, "sow", sow)


@fault(breaks="CAP-003")
def captures_stay_after_an_exception(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture whose function raises leaves `__captures__` in the Module."""

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        try:
            return call()
        except Exception:
            module_of(nnx, f, args).__captures__ = nnx.data((nnx.Intermediate({}),))
            raise

    change_captures(nnx, patch, change)


@fault(breaks="CAP-011")
def inner_captures_end_outer_ones(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture that is done ends those of the same Module that are under way."""

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        try:
            return call()
        finally:
            module = module_of(nnx, f, args)
            if is_capturing(module):
                del module.__captures__

    change_captures(nnx, patch, change)


@fault(breaks="CAP-003")
def method_outputs_leave_a_mark(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture with `method_outputs` notes it in the class of the Module."""

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        output = call()
        if "method_outputs" in options:
            cls = type(module_of(nnx, f, args))
            patch.setattr(cls, "_nnx_recorded", True, raising=False)
        return output

    change_captures(nnx, patch, change)


@fault(breaks="CAP-004")
def perturbations_are_float32(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The zeros that a capture of Perturbation gives are of dtype float32."""

    def change(state: Any, options: Any) -> Any:
        for _, leaf in leaves(nnx, state):
            if isinstance(leaf, nnx.Perturbation):
                leaf.set_value(jnp.real(leaf.get_value()).astype("float32"))
        return state

    change_states(nnx, patch, change)


@fault(breaks="CAP-004")
def scalars_are_not_perturbed(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`perturb` returns a scalar as it is, whatever perturbation is stored."""

    def perturb(original: Any, self: Any, name: str, value: Any, *args: Any, **kw: Any) -> Any:
        result = original(self, name, value, *args, **kw)
        return value if jnp.ndim(value) == 0 else result

    around(patch, nnx.Module, "perturb", perturb)


@fault(breaks="CAP-005")
def perturbations_weigh_too_much(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Gradients by what is perturbed are 1% too large."""

    def perturb(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not jnp.issubdtype(result.dtype, jnp.floating):
            return result
        return result + 0.01 * (result - jax.lax.stop_gradient(result))

    around(patch, nnx.Module, "perturb", perturb)


@fault(breaks="CAP-005")
def first_value_has_the_gradient(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The gradient by a perturbation is that by the first value it is added to."""
    seen: dict[int, set[str]] = {}

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        seen.clear()
        return call()

    def perturb(original: Any, self: Any, name: str, value: Any, *args: Any, **kw: Any) -> Any:
        result = original(self, name, value, *args, **kw)
        names = seen.setdefault(id(self), set())
        if name not in names:
            names.add(name)
            return result
        return value + jax.lax.stop_gradient(result - value)

    change_captures(nnx, patch, change)
    around(patch, nnx.Module, "perturb", perturb)


@fault(breaks="CAP-006")
def init_is_filled(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture writes what it gives into the State that it was given as `init`."""

    def change(state: Any, options: Any) -> Any:
        given = dict(leaves(nnx, options.get("init") or nnx.State({})))
        for path, leaf in leaves(nnx, state):
            if path in given:
                given[path].set_value(leaf.get_value())
        return state

    change_states(nnx, patch, change)


@fault(breaks="CAP-006")
def init_is_for_perturbations(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`init` counts for Perturbations alone."""
    original = nnx.capture

    def capture(*args: Any, init: Any = None, **options: Any) -> Any:
        if init is not None:
            kept = [
                (path, leaf)
                for path, leaf in leaves(nnx, init)
                if isinstance(leaf, nnx.Perturbation)
            ]
            init = nnx.from_flat_state(kept)
        return original(*args, init=init, **options)

    patch.setattr(nnx, "capture", capture)


@fault(breaks="CAP-007")
def last_outputs_are_kept(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Of what a method returned there is the last value only, if it was called several times."""

    def change(state: Any, options: Any) -> Any:
        for _, leaf in leaves(nnx, state) if "method_outputs" in options else ():
            leaf.set_value(leaf.get_value()[-1:])
        return state

    change_states(nnx, patch, change)


@fault(breaks="CAP-012")
def inherited_methods_are_not_recorded(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`method_outputs` does not record methods that a class has from its base."""

    def change(f: Any, args: Any, call: Any, options: Any) -> Any:
        modules = dict(nnx.iter_modules(module_of(nnx, f, args), graph=True))
        output = call()
        if "method_outputs" not in options:
            return output
        result, state = output
        kept = [
            (path, leaf)
            for path, leaf in leaves(nnx, state)
            if path[-1] in vars(type(modules[path[:-1]]))
            or not hasattr(modules[path[:-1]], path[-1])
        ]
        return result, nnx.from_flat_state(kept)

    change_captures(nnx, patch, change)


@fault(breaks="CAP-008")
def traced_values_are_halved(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What is sown in a traced function is captured as float16."""

    def half(x: Any) -> Any:
        return x.astype("float16") if isinstance(x, jax.core.Tracer) else x

    def sow(original: Any, self: Any, kind: Any, name: str, value: Any, **options: Any) -> Any:
        return original(self, kind, name, jax.tree.map(half, value), **options)

    around(patch, nnx.Module, "sow", sow)


@fault(breaks="CAP-008")
def scan_captures_the_last_step(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A capture around `scan` has what the last step has sown in place of what each has."""
    scanned: list[bool] = []
    original = nnx.scan

    def scan(*args: Any, **options: Any) -> Any:
        scanned.append(True)
        return original(*args, **options)

    def change(state: Any, options: Any) -> Any:
        for _, leaf in leaves(nnx, state) if scanned else ():
            leaf.set_value(jax.tree.map(lambda x: x[-1] if jnp.ndim(x) else x, leaf.get_value()))
        return state

    patch.setattr(nnx, "scan", scan)
    change_states(nnx, patch, change)


@fault(breaks="CAP-009")
def pop_leaves_lists_alone(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`pop` copies what is in a List, and leaves it there."""
    original = nnx.pop

    def pop(node: Any, *filters: Any, **options: Any) -> Any:
        state = original(node, *filters, **options)
        for path, leaf in leaves(nnx, state):
            if any(isinstance(key, int) for key in path[:-1]):
                parent = dict(nnx.iter_graph(node, graph=True))[path[:-1]]
                setattr(parent, path[-1], leaf)
        return state

    patch.setattr(nnx, "pop", pop)


@fault(breaks="CAP-009")
def values_replace_one_another(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Outside a capture `sow` keeps the last value alone."""

    def sow(original: Any, self: Any, *args: Any, **options: Any) -> Any:
        if not is_capturing(self) and "reduce_fn" not in options:
            options["reduce_fn"] = lambda _, x: (x,)
        return original(self, *args, **options)

    around(patch, nnx.Module, "sow", sow)


@fault(breaks="CAP-010")
def uncaptured_perturbations_are_constant(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Outside a capture the gradient by a perturbation is zero."""

    def perturb(original: Any, self: Any, name: str, value: Any, *args: Any, **kw: Any) -> Any:
        result = original(self, name, value, *args, **kw)
        return result if is_capturing(self) else value + jax.lax.stop_gradient(result - value)

    around(patch, nnx.Module, "perturb", perturb)


@fault(breaks="CAP-005 CAP-010")
def further_gradients_are_too_large(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` gives gradients by the second argument and those after it that are 1% too large."""
    original = nnx.grad

    def grad(f: Callable[..., Any], **options: Any) -> Any:
        differentiated = original(f, **options)

        def call(*args: Any) -> Any:
            result = differentiated(*args)
            if not isinstance(options.get("argnums"), tuple) or options.get("has_aux"):
                return result
            return result[0], *jax.tree.map(lambda x: x * 1.01, result[1:])

        return call

    patch.setattr(nnx, "grad", grad)
