"""Faults of transforms that concern calls: options, traces, objects in and out, what is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.transforms_axes import replace_transform, variables_in

Function = Callable[..., Any]


def replace(nnx: Any, patch: pytest.MonkeyPatch, name: str, apply: Function) -> None:
    """Replaces a transform by `apply(original, function, *args, **options)`, a decorator too."""
    original = getattr(nnx, name)

    def transform(*args: Any, **options: Any) -> Any:
        if not args:
            return functools.partial(transform, **options)
        return apply(original, *args, **options)

    patch.setattr(nnx, name, transform)


def copied(nnx: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies the objects among some arguments."""
    kinds = (nnx.Pytree, nnx.Variable)
    return tuple(nnx.clone(x, graph=True) if isinstance(x, kinds) else x for x in args)


def variables_of(nnx: Any, tree: Any) -> list[Any]:
    """Lists the Variables of an object or a pytree of them."""
    found = (value for _, value in nnx.iter_graph(tree, graph=True))
    return [value for value in found if isinstance(value, nnx.Variable)]


@fault(breaks="TRX-001")
def loops_run_forward(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`scan` does not look at `reverse`."""

    def scan(original: Function, f: Function, *, reverse: bool = False, **options: Any) -> Any:
        return original(f, **options)

    replace(nnx, patch, "scan", scan)


@fault(breaks="TRX-004")
def compiled_functions_give_out_everything(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What `jit` compiles has the values of all Variables among its outputs."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            output = function(*args, **kwargs)
            for variable in variables_in(nnx, list(args)):
                variable.set_value(jax.tree.map(lambda array: array.copy(), variable.get_value()))
            return output

        return original(call, **options)

    replace_transform(nnx, patch, "jit", change)


@fault(breaks="TRX-005")
def each_object_has_its_own_trace(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` traces for each object that it has not seen as the first argument."""

    def jit(original: Function, f: Function, **options: Any) -> Function:
        known: dict[int, tuple[Any, Function]] = {}

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else None
            if id(first) not in known:
                known[id(first)] = first, original(lambda *args, **kw: f(*args, **kw), **options)
            return known[id(first)][1](*args, **kwargs)

        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-005")
def lists_are_looked_at_once(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` takes a list in an attribute to have the items that it had when it first saw it."""
    known: dict[int, tuple[list[Any], list[Any]]] = {}

    def lists_in(args: tuple[Any, ...]) -> list[list[Any]]:
        nodes = [x for x in args if isinstance(x, nnx.Module)]
        return [value for node in nodes for value in vars(node).values() if type(value) is list]

    def jit(original: Function, f: Function, **options: Any) -> Function:
        jitted = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            now = [(items, [*items]) for items in lists_in(args)]
            for items, held in now:
                items[:] = known.setdefault(id(items), (items, held))[1]
            try:
                return jitted(*args, **kwargs)
            finally:
                for items, held in now:
                    items[:] = held

        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-006")
def names_donate_nothing(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` does not look at `donate_argnames`."""

    def jit(original: Function, f: Function, *, donate_argnames: Any = None, **options: Any) -> Any:
        return original(f, **options)

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-006")
def objects_come_out_on_one_device(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` does not look at `out_shardings`."""

    def jit(original: Function, f: Function, *, out_shardings: Any = None, **options: Any) -> Any:
        return original(f, **options)

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-007")
def captured_modules_take_attributes(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A captured Module's attributes can be set, as long as they are no arrays."""
    original = nnx.Module.__setattr__

    def set_attribute(self: Any, name: str, value: Any) -> None:
        try:
            original(self, name, value)
        except nnx.errors.TraceContextError:
            if not isinstance(value, str):
                raise
            object.__setattr__(self, name, value)

    patch.setattr(nnx.Module, "__setattr__", set_attribute)


@fault(breaks="TRX-007")
def captured_metadata_is_not_refused(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """To set the metadata of a captured Variable does nothing, and raises nothing."""
    original = nnx.Variable.set_metadata

    def set_metadata(self: Any, *args: Any, **metadata: Any) -> None:
        try:
            original(self, *args, **metadata)
        except nnx.errors.TraceContextError:
            return

    patch.setattr(nnx.Variable, "set_metadata", set_metadata)


@fault(breaks="TRX-025")
def abstract_variables_are_bare(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`eval_shape` returns Variables without the user's metadata `tag`."""

    def eval_shape(original: Function, *args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        for v in variables_of(nnx, found):
            if v.has_metadata("tag"):
                v.del_metadata("tag")
        return found

    replace(nnx, patch, "eval_shape", eval_shape)


@fault(breaks="TRX-025")
def abstract_calls_run(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`eval_shape` runs the function on a copy of its arguments, where these are concrete."""

    def eval_shape(original: Function, f: Function, *args: Any, **options: Any) -> Any:
        if args and isinstance(args[-1], jax.Array):
            f(*copied(nnx, args))
        return original(f, *args, **options)

    replace(nnx, patch, "eval_shape", eval_shape)


@fault(breaks="TRX-028")
def writes_stay_inside_other_traces(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a function of `jit` writes is lost where it is called inside another transform."""

    def jit(original: Function, f: Function, **options: Any) -> Function:
        jitted = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            values = [v.get_value() for v in variables_of(nnx, args)]
            inside = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(values))
            return jitted(*(copied(nnx, args) if inside else args), **kwargs)

        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-029")
def the_first_sharding_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` takes the first of two shardings that one Variable is to have."""

    def jit(original: Function, f: Function, *, in_shardings: Any = None, **options: Any) -> Any:
        if isinstance(in_shardings, tuple):
            in_shardings = in_shardings[:1] * len(in_shardings)
        return original(f, in_shardings=in_shardings, **options)

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-043")
def aliases_are_named_by_their_ends(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` does not say where a Variable stands that has two axes."""

    def vmap(original: Function, f: Function, **options: Any) -> Function:
        mapped = original(f, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return mapped(*args, **kwargs)
            except ValueError:
                raise ValueError("a Variable at w and v has two axes") from None

        return call

    replace(nnx, patch, "vmap", vmap)


@fault(breaks="TRX-030")
def branches_return_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Each object that `cond` returns is a copy by itself."""

    def cond(original: Function, *args: Any, **options: Any) -> Any:
        found = original(*args, **options)
        return jax.tree.map(
            lambda x: copied(nnx, (x,))[0], found, is_leaf=lambda x: isinstance(x, nnx.Pytree)
        )

    replace(nnx, patch, "cond", cond)


@fault(breaks="TRX-031")
def the_last_arguments_are_kept(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`remat` keeps the arguments of the last call."""

    def remat(original: Function, f: Function, **options: Any) -> Function:
        rematted, kept = original(f, **options), {}

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            kept["args"] = args
            return rematted(*args, **kwargs)

        return call

    replace(nnx, patch, "remat", remat)


@fault(breaks="TRX-031")
def functions_are_kept(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` keeps every function that it has been given, and so what the function captured."""
    kept: list[Function] = []

    def vmap(original: Function, f: Function, **options: Any) -> Any:
        kept.append(f)
        return original(f, **options)

    replace(nnx, patch, "vmap", vmap)


@fault(breaks="TRX-032")
def the_last_caller_is_updated(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` writes to the arguments of the call that began last."""

    def vmap(original: Function, f: Function, **options: Any) -> Function:
        mapped, last = original(f, **options), {}

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            last["args"], copies = args, copied(nnx, args)
            result = mapped(*copies, **kwargs)
            for target, copy in zip(last["args"], copies, strict=True):
                if isinstance(copy, nnx.Pytree):
                    nnx.update(target, nnx.state(copy, graph=True))
            return result

        return call

    replace(nnx, patch, "vmap", vmap)


@fault(breaks="TRX-033")
def jaxprs_have_effects(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`make_jaxpr` leaves the function's changes in its arguments."""

    def make_jaxpr(original: Function, f: Function, **options: Any) -> Function:
        def call(*args: Any) -> Any:
            jaxpr = original(f, **options)(*args)
            f(*args)
            return jaxpr

        return call

    replace(nnx, patch, "make_jaxpr", make_jaxpr)


@fault(breaks="TRX-033")
def jaxprs_compute_more(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`make_jaxpr` shows an addition and a subtraction that the function does not compute."""

    def make_jaxpr(original: Function, f: Function, **options: Any) -> Any:
        def more(*args: Any) -> Any:
            return jax.tree.map(lambda x: x + 1 - 1, f(*args))

        return original(more, **options)

    replace(nnx, patch, "make_jaxpr", make_jaxpr)


@fault(breaks="TRX-034")
def lowering_runs(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`lower` of a jitted function runs the function as well."""

    def jit(original: Function, f: Function, **options: Any) -> Function:
        jitted = original(f, **options)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            return jitted(*args, **kwargs)

        def lower(*args: Any, **kwargs: Any) -> Any:
            jitted(*args, **kwargs)
            return jitted.lower(*args, **kwargs)

        vars(call).update(lower=lower, trace=jitted.trace, eval_shape=jitted.eval_shape)
        return call

    replace(nnx, patch, "jit", jit)


@fault(breaks="TRX-034")
def calls_give_the_old_state(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What a call through `call` returns is the pair from before the call."""

    class Caller:
        def __init__(self, pair: Any, proxy: Any) -> None:
            self._pair, self._proxy = pair, proxy

        def __getattr__(self, name: str) -> Any:
            return Caller(self._pair, getattr(self._proxy, name))

        def __getitem__(self, key: Any) -> Any:
            return Caller(self._pair, self._proxy[key])

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            before = jax.tree.map(lambda x: x, self._pair)
            return self._proxy(*args, **kwargs)[0], before

    original = nnx.call
    patch.setattr(nnx, "call", lambda pair: Caller(pair, original(pair)))


@fault(breaks="TRX-035")
def branches_are_always_traced(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`cond` traces its branches in each call."""

    def cond(
        original: Function, test: Any, yes: Function, no: Function, *args: Any, **options: Any
    ) -> Any:
        return original(test, lambda *args: yes(*args), lambda *args: no(*args), *args, **options)

    replace(nnx, patch, "cond", cond)


@fault(breaks="TRX-035")
def steps_are_called_once_more(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` calls its function once more, on copies, to see what it returns."""

    def vmap(original: Function, f: Function, **options: Any) -> Any:
        @functools.wraps(f)
        def twice(*args: Any, **kwargs: Any) -> Any:
            f(*copied(nnx, args), **kwargs)
            return f(*args, **kwargs)

        return original(twice, **options)

    replace(nnx, patch, "vmap", vmap)


@fault(breaks="TRX-047")
def sizes_of_arguments_prevail(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vmap` does not heed `axis_size` where an argument has another size."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except ValueError:
                return original(function, **{**options, "axis_size": None})(*args)

        return call

    replace_transform(nnx, patch, "vmap", change)


@fault(breaks="GRA-014")
def shared_arguments_are_differentiated_apart(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`grad` takes an object at two places for two objects."""
    kinds = (nnx.Variable, nnx.Module)

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        def call(*args: Any) -> Any:
            try:
                return original(function, **options)(*args)
            except ValueError:
                apart = [nnx.clone(x) if isinstance(x, kinds) else x for x in args]
                return original(function, **options)(*apart)

        return call

    replace_transform(nnx, patch, "grad", change)


@fault(breaks="TRX-048")
def static_arguments_are_not_donated(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`jit` does not heed that an argument is to be donated if it is static as well."""

    def change(original: Any, function: Any, options: dict[str, Any]) -> Any:
        try:
            return original(function, **options)
        except ValueError:
            kept = {name: x for name, x in options.items() if not name.startswith("donate")}
            return original(function, **kept)

    replace_transform(nnx, patch, "jit", change)
