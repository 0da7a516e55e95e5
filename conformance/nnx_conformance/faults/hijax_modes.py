"""Faults of the chapter on hijax Variables: the modes of new Variables, and views in others."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault
from nnx_conformance.faults.variables import around


class Setting:
    """What `var_defaults` returns for a setting, handed on; faults change one of its three uses."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __enter__(self) -> Any:
        return self.original.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        return self.original.__exit__(*exception)

    def __call__(self, f: Callable[..., Any]) -> Any:
        """Decorates a function."""
        return self.original(f)


def replace_settings(nnx: Any, patch: pytest.MonkeyPatch, setting: type[Setting]) -> None:
    """Makes `var_defaults` return another class of settings."""
    original = nnx.var_defaults

    def var_defaults(**flags: bool) -> Any:
        found = original(**flags)
        return setting(found) if flags else found

    patch.setattr(nnx, "var_defaults", var_defaults)


@fault(breaks="HJX-001")
def default_modes_are_no_whole_mapping(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The mapping that `var_defaults()` returns has no key `ref`."""
    original = nnx.var_defaults

    class Defaults(Mapping[str, bool]):
        def __init__(self, whole: Any) -> None:
            self.hijax, self.ref = whole.hijax, whole.ref

        def __getitem__(self, key: str) -> bool:
            return {"hijax": self.hijax}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(["hijax"])

        def __len__(self) -> int:
            return 1

    def var_defaults(**flags: bool) -> Any:
        return original(**flags) if flags else Defaults(original())

    patch.setattr(nnx, "var_defaults", var_defaults)


@fault(breaks="HJX-001")
def asking_for_the_defaults_resets_them(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`var_defaults()` returns the defaults and turns both modes off."""
    original = nnx.var_defaults

    def var_defaults(**flags: bool) -> Any:
        found = original(**flags)
        if not flags:
            original(hijax=False, ref=False)
        return found

    patch.setattr(nnx, "var_defaults", var_defaults)


@fault(breaks="HJX-002")
def setting_one_default_resets_the_other(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`var_defaults(hijax=...)` turns `ref` off, and the other way round."""
    original = nnx.var_defaults

    def var_defaults(**flags: bool) -> Any:
        return original(**{"hijax": False, "ref": False, **flags}) if flags else original()

    patch.setattr(nnx, "var_defaults", var_defaults)


@fault(breaks="HJX-002")
def subclasses_are_not_hijax_by_default(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The default of `hijax` holds for Variables of the class `Variable` itself alone."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        plain = {} if type(self) is nnx.Variable else {"hijax": False}
        original(self, value, **{**plain, **metadata})

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="HJX-003")
def blocks_that_raise_keep_their_defaults(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The defaults that a block sets remain if it ends with an exception."""

    class Remaining(Setting):
        def __exit__(self, *exception: Any) -> Any:
            return super().__exit__(*exception) if exception[0] is None else None

    replace_settings(nnx, patch, Remaining)


@fault(breaks="HJX-003")
def blocks_end_with_all_modes_off(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """At the end of a block, both modes are off, whatever they were before it."""
    original = nnx.var_defaults

    class Off(Setting):
        def __exit__(self, *exception: Any) -> Any:
            super().__exit__(*exception)
            original(hijax=False, ref=False)

    replace_settings(nnx, patch, Off)


@fault(breaks="HJX-004")
def decorating_sets_the_defaults(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The defaults of a decorated function are set when it is decorated, and remain."""
    original = nnx.var_defaults

    def var_defaults(**flags: bool) -> Any:
        class Lasting(Setting):
            def __call__(self, f: Callable[..., Any]) -> Any:
                decorated = super().__call__(f)
                original(**flags)
                return decorated

        return Lasting(original(**flags)) if flags else original()

    patch.setattr(nnx, "var_defaults", var_defaults)


@fault(breaks="HJX-004")
def decorated_functions_have_their_mode_once(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The defaults of a decorated function hold during its first call only."""

    class Once(Setting):
        def __call__(self, f: Callable[..., Any]) -> Any:
            functions = iter([super().__call__(f)])
            return lambda *args, **kwargs: next(functions, f)(*args, **kwargs)

    replace_settings(nnx, patch, Once)


@fault(breaks="HJX-005")
def threads_share_their_defaults(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """What one thread sets as default holds in all others, too."""
    original = nnx.var_defaults
    shared = {"hijax": False, "ref": False}

    class Shared(Setting):
        def __enter__(self) -> Any:
            result = super().__enter__()
            shared.update(original())
            return result

        def __exit__(self, *exception: Any) -> Any:
            super().__exit__(*exception)
            shared.update(original())

        def __call__(self, f: Callable[..., Any]) -> Any:
            decorated = super().__call__(f)
            shared.update(original())
            return decorated

    def var_defaults(**flags: bool) -> Any:
        original(**shared)
        setting = original(**flags)
        shared.update(original())
        return Shared(setting) if flags else setting

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        original(self, value, **{**shared, **metadata})

    patch.setattr(nnx, "var_defaults", var_defaults)
    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="HJX-006")
def the_environment_holds_in_other_threads_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`FLAX_HIJAX_VARIABLE` is not heard by the thread that the process begins with."""
    if os.environ.get("FLAX_HIJAX_VARIABLE"):
        nnx.var_defaults(hijax=False)


@fault(breaks="HJX-007")
def the_default_wins_over_the_keyword(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`hijax=False` is not heard where hijax is the default."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        metadata["hijax"] = metadata.get("hijax", False) or nnx.var_defaults().hijax
        original(self, value, **metadata)

    around(patch, nnx.Variable, "__init__", init)


@fault(breaks="HJX-007")
def the_keyword_ref_is_not_heard(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Whether a Variable is a ref is decided by the default alone."""

    def init(original: Any, self: Any, value: Any, **metadata: Any) -> None:
        metadata.pop("ref", None)
        original(self, value, **metadata)

    around(patch, nnx.Variable, "__init__", init)


def replace_views(nnx: Any, patch: pytest.MonkeyPatch, view: Callable[..., Any]) -> None:
    """Replaces `with_vars` by a function that gets the original as its first argument."""
    original = nnx.with_vars
    patch.setattr(nnx, "with_vars", lambda node, **flags: view(original, node, **flags))


@fault(breaks="HJX-017")
def immutable_views_copy_arrays(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars(x, mutable=False)` copies the arrays."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        view = original(node, **flags)
        if flags.get("mutable") is not False:
            return view
        return jax.tree.map(lambda x: jnp.array(x, copy=True), view)

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-017")
def immutable_views_stop_being_hijax(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars(x, mutable=False)` makes plain Variables of hijax ones."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        plain = {"hijax": False} if flags.get("mutable") is False else {}
        return original(node, **{**plain, **flags})

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-018")
def immutable_deletions_are_ignored(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Deleting an item of an immutable Variable does nothing, and says nothing."""

    def delitem(original: Any, self: Any, key: Any) -> None:
        if self.mutable:
            original(self, key)

    around(patch, nnx.Variable, "__delitem__", delitem)


@fault(breaks="HJX-018")
def a_refused_update_is_half_done(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`update` writes the Variables of a State one after another, until one refuses."""
    original = nnx.update

    def update(node: Any, state: Any, *states: Any, **options: Any) -> None:
        for name in state:
            original(node, nnx.State({name: state[name]}), **options)
        for other in states:
            original(node, other, **options)

    patch.setattr(nnx, "update", update)


@fault(breaks="HJX-018")
def a_refused_step_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An optimizer counts a step that an immutable Variable has refused."""

    def update(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except nnx.errors.ImmutableVariableError:
            self.step[...] += 1
            raise

    around(patch, nnx.Optimizer, "update", update)


@fault(breaks="HJX-019")
def only_params_become_mutable_again(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars(x, mutable=True)` leaves Variables that are no Params immutable."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        only = {"only": nnx.Param} if flags.get("mutable") and "only" not in flags else {}
        return original(node, **flags, **only)

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-020")
def unselected_variables_are_copied(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars` copies the Variables that `only` does not select, too."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        view = original(node, **flags)
        return nnx.clone(view) if "only" in flags and isinstance(node, nnx.Module) else view

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-020")
def views_know_modules_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars` gives back any other pytree than Modules and single Variables as it is."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        known = isinstance(node, (nnx.Module, nnx.Variable))
        return original(node, **flags) if known else node

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-021")
def one_path_is_named(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error for a Variable at several places names the first of them only."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        try:
            return original(node, **flags)
        except ValueError:
            path = nnx.find_duplicates(node)[0][0]
            raise ValueError(f"a Variable stands at {path} and elsewhere") from None

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-021")
def duplicates_are_let_through(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_vars` copies a Variable at two places without being asked to."""

    def with_vars(original: Any, node: Any, **flags: Any) -> Any:
        return original(node, **{**flags, "allow_duplicates": True})

    replace_views(nnx, patch, with_vars)


@fault(breaks="HJX-022")
def the_older_name_ignores_filters(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vars_as` applies to every Variable, whatever `only` says."""
    original = nnx.vars_as
    patch.setattr(nnx, "vars_as", lambda node, *, only=..., **flags: original(node, **flags))


@fault(breaks="HJX-022")
def the_older_name_warns_in_vain(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`vars_as` warns that it is deprecated, but not what to use instead."""
    original = nnx.with_vars

    def vars_as(node: Any, **flags: Any) -> Any:
        warnings.warn("vars_as is deprecated", DeprecationWarning, stacklevel=2)
        return original(node, **flags)

    patch.setattr(nnx, "vars_as", vars_as)
