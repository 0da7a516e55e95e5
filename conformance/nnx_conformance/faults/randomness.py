"""Faults of random streams: seeds, draws, forks, what is done to all streams, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nnx_conformance.faults import fault


def _streams(nnx: Any, node: Any) -> Iterator[Any]:
    """Yields the streams of an object graph."""
    for _, value in nnx.iter_graph(node, graph=True):
        if isinstance(value, nnx.RngStream):
            yield value


def _put(stream: Any, key: Any = None, count: Any = None) -> None:
    """Writes a stream's key, count or both."""
    if key is not None:
        stream.key.set_value(key)
    if count is not None:
        stream.count.set_value(count)


def _is_traced(stream: Any) -> bool:
    return isinstance(stream.count.get_value(), jax.core.Tracer)


def _next_key(stream: Any) -> Any:
    """Returns the key that a stream draws next."""
    return jax.random.fold_in(stream.key.get_value(), stream.count.get_value())


def _patch_init(
    nnx: Any, patch: pytest.MonkeyPatch, change: Callable[[str, Any, Any], None]
) -> None:
    """Lets `change(name, seed, stream)` change each stream of a new `Rngs`."""
    original = nnx.Rngs.__init__

    def init(self: Any, *default: Any, **named: Any) -> None:
        original(self, *default, **named)
        seeds = dict(named, **({"default": default[0]} if default else {}))
        for name, seed in seeds.items():
            change(name, seed, self[name])

    patch.setattr(nnx.Rngs, "__init__", init)


@fault(breaks="RNG-001")
def counts_are_tagged_default(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The count of every stream of an `Rngs` has the tag `default`."""
    _patch_init(nnx, patch, lambda name, seed, stream: stream.count.set_metadata("tag", "default"))


@fault(breaks="RNG-001")
def key_seeds_are_taken_for_parents(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A stream that is seeded with a key has as its root the first key folded from it."""

    def change(name: str, seed: Any, stream: Any) -> None:
        if isinstance(seed, jax.Array):
            _put(stream, jax.random.fold_in(seed, 0))

    _patch_init(nnx, patch, change)


@fault(breaks="RNG-002")
def draws_count_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A draw adds one to the count before it folds it into the key."""

    def draw(self: Any) -> Any:
        _put(self, count=self.count.get_value() + 1)
        return _next_key(self)

    patch.setattr(nnx.RngStream, "__call__", draw)


@fault(breaks="RNG-002")
def draws_replace_the_key(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A draw makes the key that it gives the stream's root."""
    original = nnx.RngStream.__call__

    def draw(self: Any) -> Any:
        key = original(self)
        _put(self, key)
        return key

    patch.setattr(nnx.RngStream, "__call__", draw)


@fault(breaks="RNG-003")
def unknown_streams_are_forks(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """An unknown name gives a fork of the stream `default`."""
    original = nnx.Rngs.__getattr__
    patch.setattr(nnx.Rngs, "__getattr__", lambda self, name: original(self, name).fork())


@fault(breaks="RNG-017")
def missing_streams_are_not_named(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error for a stream that there is none for does not say which."""
    original = nnx.Rngs.__getattr__

    def getattribute(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            raise AttributeError("there is no such stream") from None

    patch.setattr(nnx.Rngs, "__getattr__", getattribute)


@fault(breaks="RNG-004")
def items_are_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`rngs['name']` gives a copy of the stream."""
    original = nnx.Rngs.__getitem__
    patch.setattr(nnx.Rngs, "__getitem__", lambda self, name: nnx.clone(original(self, name)))


@fault(breaks="RNG-004")
def calls_draw_from_the_first_stream(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`rngs()` draws from the stream whose name comes first."""
    patch.setattr(nnx.Rngs, "__call__", lambda self: next(_streams(nnx, self))())


@fault(breaks="RNG-005")
def randint_draws_twice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`rngs.randint` throws a key away before it draws."""
    original = nnx.Rngs.randint

    def randint(self: Any, *args: Any, **kwargs: Any) -> Any:
        self()
        return original(self, *args, **kwargs)

    patch.setattr(nnx.Rngs, "randint", randint)


@fault(breaks="RNG-005")
def lognormal_forgets_sigma(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`stream.lognormal` takes `sigma` and does not pass it on."""
    original = nnx.RngStream.lognormal

    def lognormal(self: Any, sigma: Any = 1.0, **kwargs: Any) -> Any:
        return original(self, **kwargs)

    patch.setattr(nnx.RngStream, "lognormal", lognormal)


@fault(breaks="RNG-006")
def keys_come_again(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The third draw of a stream gives the key of the first."""
    original = nnx.RngStream.__call__

    def draw(self: Any) -> Any:
        again = jax.random.fold_in(self.key.get_value(), self.count.get_value() % 2)
        original(self)
        return again

    patch.setattr(nnx.RngStream, "__call__", draw)


@fault(breaks="RNG-006")
def keys_depend_on_the_process(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The root of a stream depends on the hash of its name, which each process salts."""

    def change(name: str, seed: Any, stream: Any) -> None:
        _put(stream, jax.random.fold_in(stream.key.get_value(), hash(name) % 2**16))

    _patch_init(nnx, patch, change)


@fault(breaks="RNG-006 RNG-014")
def traced_draws_do_not_count(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A draw in traced code leaves the count."""
    original = nnx.RngStream.__call__
    patch.setattr(
        nnx.RngStream,
        "__call__",
        lambda self: _next_key(self) if _is_traced(self) else original(self),
    )


@fault(breaks="RNG-007")
def last_slice_repeats_the_first(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The last of the keys into which a stream is split is the first again."""
    original = nnx.RngStream.fork

    def fork(self: Any, *, split: Any = None) -> Any:
        made = original(self, split=split)
        if split is not None:
            keys = made.key.get_value()
            flat = keys.reshape(-1)
            _put(made, flat.at[-1].set(flat[0]).reshape(keys.shape))
        return made

    patch.setattr(nnx.RngStream, "fork", fork)


@fault(breaks="RNG-007")
def mappings_copy_the_rest(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`fork(split=mapping)` copies the streams that it does not split instead of forking them."""
    original = nnx.Rngs.fork

    def fork(self: Any, *, split: Any = None) -> Any:
        before = nnx.clone(self)
        made = original(self, split=split)
        if isinstance(split, Mapping):
            for old, new in zip(_streams(nnx, before), _streams(nnx, made), strict=True):
                if new.key.get_value().shape == ():
                    _put(new, old.key.get_value(), old.count.get_value())
        return made

    patch.setattr(nnx.Rngs, "fork", fork)


@fault(breaks="RNG-008")
def forks_do_not_draw(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A fork leaves the count of its parent, whose next draw is then the root of the fork."""
    original = nnx.RngStream.fork

    def fork(self: Any, *, split: Any = None) -> Any:
        count = self.count.get_value()
        made = original(self, split=split)
        if split is None:
            _put(self, count=count)
        return made

    patch.setattr(nnx.RngStream, "fork", fork)


@fault(breaks="RNG-008")
def forks_are_copies(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A fork draws what its parent draws."""
    original = nnx.RngStream.fork

    def fork(self: Any, *, split: Any = None) -> Any:
        return nnx.clone(self) if split is None else original(self, split=split)

    patch.setattr(nnx.RngStream, "fork", fork)


@fault(breaks="RNG-009")
def split_takes_all_streams(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`split_rngs` splits all streams, whatever `only` selects."""
    original = nnx.split_rngs

    def split_rngs(*node: Any, only: Any = ..., **options: Any) -> Any:
        return original(*node, **options)

    patch.setattr(nnx, "split_rngs", split_rngs)


@fault(breaks="RNG-009")
def exceptions_leave_streams_split(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A call under the decorator `split_rngs` that raises does not give the streams back."""
    original = nnx.split_rngs

    def split_rngs(*node: Any, **options: Any) -> Any:
        return original(*node, **options) if node or "graph" in options else decorator(options)

    def decorator(options: dict[str, Any]) -> Any:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                backups = original(args, **options)
                result = function(*args)
                nnx.restore_rngs(backups)
                return result

            return call

        return decorate

    patch.setattr(nnx, "split_rngs", split_rngs)


@fault(breaks="RNG-010")
def reseed_keeps_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`reseed` sets keys and leaves counts."""
    original = nnx.reseed

    def reseed(node: Any, **options: Any) -> None:
        counts = [stream.count.get_value() for stream in _streams(nnx, node)]
        original(node, **options)
        for stream, count in zip(_streams(nnx, node), counts, strict=True):
            _put(stream, count=count)

    patch.setattr(nnx, "reseed", reseed)


@fault(breaks="RNG-010")
def reseed_starts_all_streams(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`reseed` sets the counts of streams of other names to zero, too."""
    original = nnx.reseed

    def reseed(node: Any, **options: Any) -> None:
        original(node, **options)
        for stream in _streams(nnx, node):
            _put(stream, count=jnp.zeros_like(stream.count.get_value()))

    patch.setattr(nnx, "reseed", reseed)


@fault(breaks="RNG-010")
def reseed_repeats_a_key_in_every_slice(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`reseed` with the policy `match_shape` gives all slices of a stream one key."""
    original = nnx.reseed

    def reseed(node: Any, *, policy: Any = "scalars_only", **options: Any) -> None:
        if policy == "match_shape":
            original(node, policy=lambda path, key, shape: jnp.broadcast_to(key, shape), **options)
        else:
            original(node, policy=policy, **options)

    patch.setattr(nnx, "reseed", reseed)


@fault(breaks="RNG-011")
def views_take_all_streams(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_rngs` derives all streams, whatever `only` selects."""
    original = nnx.with_rngs

    def with_rngs(*node: Any, only: Any = True, **options: Any) -> Any:
        return original(*node, **options)

    patch.setattr(nnx, "with_rngs", with_rngs)


@fault(breaks="RNG-011")
def views_copy_the_rest(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`with_rngs` gives copies of the Variables that it does not derive."""
    original = nnx.with_rngs

    def with_rngs(*node: Any, **options: Any) -> Any:
        made = original(*node, **options)
        return nnx.clone(made) if node else made

    patch.setattr(nnx, "with_rngs", with_rngs)


@fault(breaks="RNG-012")
def restore_gives_keys_only(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`restore_rngs` gives streams their keys back, and leaves counts of the same shape."""
    backed_up: dict[int, tuple[Any, Any]] = {}
    restore = nnx.restore_rngs

    def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
        def back_up(*node: Any, **options: Any) -> Any:
            backups = function(*node, **options)
            if node:
                backed_up[id(backups)] = (backups, node[0])
            return backups

        return back_up

    def restore_rngs(backups: Any) -> None:
        streams = [*_streams(nnx, backed_up[id(backups)][1])] if id(backups) in backed_up else []
        counts = [stream.count.get_value() for stream in streams]
        restore(backups)
        for stream, count in zip(streams, counts, strict=True):
            if count.shape == ():
                _put(stream, count=count)

    for name in ("split_rngs", "fork_rngs"):
        patch.setattr(nnx, name, remembering(getattr(nnx, name)))
    patch.setattr(nnx, "restore_rngs", restore_rngs)


@fault(breaks="RNG-013")
def clones_share_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A clone counts its draws in the counts of the original."""
    original = nnx.clone

    def clone(node: Any, *args: Any, **options: Any) -> Any:
        copy = original(node, *args, **options)
        for old, new in zip(_streams(nnx, node), _streams(nnx, copy), strict=True):
            new.count = old.count
        return copy

    patch.setattr(nnx, "clone", clone)


@fault(breaks="RNG-013")
def merge_starts_streams_anew(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`merge` gives streams whose counts are zero."""
    original = nnx.merge

    def merge(*args: Any, **options: Any) -> Any:
        merged = original(*args, **options)
        for stream in _streams(nnx, merged):
            _put(stream, count=jnp.zeros_like(stream.count.get_value()))
        return merged

    patch.setattr(nnx, "merge", merge)


@fault(breaks="RNG-014")
def remat_drops_counts(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`remat` runs the function on copies of the streams that are passed to it."""
    original = nnx.remat

    def remat(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            copies = [nnx.clone(x) if isinstance(x, nnx.Rngs) else x for x in args]
            return original(function, **options)(*copies)

        return call

    patch.setattr(nnx, "remat", remat)


@fault(breaks="RNG-014")
def scan_forgets_broadcast_draws(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """Every step of `scan` sees broadcast streams as they were passed."""
    original = nnx.scan

    def scan(function: Callable[..., Any], *, in_axes: Any, **options: Any) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            pairs = zip(args, in_axes, strict=True)
            return function(*(nnx.clone(x) if axis is None else x for x, axis in pairs))

        return original(step, in_axes=in_axes, **options)

    patch.setattr(nnx, "scan", scan)


@fault(breaks="RNG-014")
def captured_streams_repeat(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """A draw from a captured stream gives its next key and leaves the count."""
    original = nnx.RngStream.__call__

    def draw(self: Any) -> Any:
        try:
            return original(self)
        except nnx.errors.TraceContextError:
            return _next_key(self)

    patch.setattr(nnx.RngStream, "__call__", draw)


@fault(breaks="RNG-015")
def float_seeds_are_rounded(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """`Rngs` takes a float for the integer below it."""
    original = nnx.Rngs.__init__

    def rounded(seed: Any) -> Any:
        return int(seed) if isinstance(seed, float) else seed

    def init(self: Any, *default: Any, **named: Any) -> None:
        original(self, *map(rounded, default), **{k: rounded(v) for k, v in named.items()})

    patch.setattr(nnx.Rngs, "__init__", init)


@fault(breaks="RNG-017")
def bad_seeds_are_not_shown(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The error for a bad seed of `reseed` does not show it."""
    original = nnx.reseed

    def reseed(node: Any, **options: Any) -> None:
        try:
            original(node, **options)
        except (TypeError, ValueError) as error:
            raise type(error)("this is no seed") from None

    patch.setattr(nnx, "reseed", reseed)


@fault(breaks="RNG-016")
def recomputation_draws_the_next_key(nnx: Any, patch: pytest.MonkeyPatch) -> None:
    """The backward pass of `remat` computes with the keys after those of the forward pass."""

    def remat(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        @jax.custom_vjp
        def rematted(state: Any, *arrays: Any) -> Any:
            rngs = nnx.merge(*state)
            output = function(rngs, *arrays)
            return output, tuple(stream.count.get_value() for stream in _streams(nnx, rngs))

        def forward(state: Any, *arrays: Any) -> Any:
            return rematted(state, *arrays), (state, arrays)

        def backward(residuals: Any, cotangent: Any) -> Any:
            (graphdef, state), arrays = residuals
            rngs = nnx.merge(graphdef, state)
            for stream in _streams(nnx, rngs):
                stream()
            _, pull = jax.vjp(lambda *given: function(rngs, *given), *arrays)
            zero = jax.tree.map(_no_cotangent, (graphdef, state))
            return (zero, *pull(cotangent[0]))

        def call(rngs: Any, *arrays: Any) -> Any:
            output, counts = rematted(nnx.split(rngs), *arrays)
            for stream, count in zip(_streams(nnx, rngs), counts, strict=True):
                _put(stream, count=count)
            return output

        rematted.defvjp(forward, backward)
        return call

    patch.setattr(nnx, "remat", remat)


def _no_cotangent(value: Any) -> Any:
    """Makes the cotangent of what is not differentiated."""
    return jax.numpy.zeros(value.shape, jax.dtypes.float0)
