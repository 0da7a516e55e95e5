"""What is done to all random streams of an object at once: split, fork, broadcast, back up, reseed.

`split_rngs` and `fork_rngs` change the streams in place where graph updates are on and return the
way back, for

    with split_rngs(model, splits=5):
        vmapped(model, x)

and return a changed copy otherwise; `with_rngs` always returns a copy. Called without an object,
all three make a decorator that treats the arguments of each call so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from nnx_reference.configuration import resolve_graph, resolve_modes
from nnx_reference.filters import Filter, to_predicate
from nnx_reference.pytree import Path
from nnx_reference.rngs import RngStream, Seed, Shape, Shapes, as_key, as_shape, shape_chooser
from nnx_reference.traversal import iter_graph, recursive_map

Rule = Callable[[RngStream], RngStream]
"""Derives from a stream the one that takes its place; draws once from it."""

Choose = Callable[[Path, RngStream], Rule | None]
"""Chooses the rule for a stream; None leaves it alone."""

Policy = (
    Literal["scalars_only", "match_shape"] | Callable[[Path, jax.Array, tuple[int, ...]], jax.Array]
)

_MISSING: Any = object()


class StreamBackup(NamedTuple):
    """A stream, with the key and the count of draws that `restore_rngs` gives back to it."""

    stream: RngStream
    key: jax.Array
    draws: jax.Array


class SplitBackups(Iterable[StreamBackup]):
    """The way back from a change of streams in place; as a context manager it goes back on exit."""

    def __init__(self, backups: Iterable[StreamBackup]):
        self._backups = tuple(backups)

    def __iter__(self) -> Iterator[StreamBackup]:
        return iter(self._backups)

    def __len__(self) -> int:
        return len(self._backups)

    def __enter__(self) -> SplitBackups:
        return self

    def __exit__(self, *error: object) -> None:
        restore_rngs(self)


def split_rngs(
    node: Any = _MISSING,
    /,
    *,
    splits: Shape,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Splits the streams of an object into batched ones; every stream draws the key that it splits.

    Args:
      node: the object, or any pytree of objects; without it, the result is a decorator.
      splits: the shape of the new keys and counts.
      only: selects the streams by their Variables (the `RngKey`, the `RngCount` or the stream's
        name).
      squeeze: with `splits=1`, leave the axis out, so that the streams get a new key and stay
        single.
      graph: whether sharing is allowed; None for the default.
      graph_updates: whether to change the streams in place; None for the default.

    Returns:
      `SplitBackups` where the streams were changed in place, else a copy of the object with split
      streams; other Variables are shared with the original.

    Raises:
      ValueError: if a selected stream is batched, `splits` is no shape, or `squeeze` comes without
        `splits=1`; no stream has drawn then.
    """
    if squeeze and splits != 1:
        raise ValueError(
            f"squeeze=True drops the only slice of splits=1; it does not go with splits={splits!r}."
        )
    shape = () if squeeze else as_shape(splits)
    selects = _by_variables(only)

    def choose(path: Path, stream: RngStream) -> Rule | None:
        return functools.partial(RngStream.fork, split=shape) if selects(path, stream) else None

    return _derive(node, choose, graph, graph_updates)


def fork_rngs(
    node: Any = _MISSING,
    /,
    *,
    split: Shapes | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Forks every stream of an object, as `Rngs.fork` does.

    Args:
      node: the object, or any pytree of objects; without it, the result is a decorator.
      split: the shape into which streams are split, one for all or one by filter; None forks them
        unsplit.
      graph: whether sharing is allowed; None for the default.
      graph_updates: whether to change the streams in place; None for the default.

    Returns:
      `SplitBackups` where the streams were changed in place, else a copy of the object with forked
      streams.

    Raises:
      ValueError: if a stream is batched or `split` holds no shape; no stream has drawn then.
    """
    shape_of = shape_chooser(split)

    def choose(path: Path, stream: RngStream) -> Rule | None:
        return functools.partial(RngStream.fork, split=shape_of(path, stream))

    return _derive(node, choose, graph, graph_updates)


def with_rngs(
    node: Any = _MISSING,
    /,
    *,
    split: Shapes | None = None,
    fork: Filter = None,
    broadcast: Shapes | None = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Returns a view of an object in which streams are split, broadcast or forked.

    A stream follows the first of `split`, `broadcast` and `fork` that selects it and stays the
    original's where none does. That two select it is an error unless all but one of them do so by
    `...` or True. Filters see the stream itself: its name, its path, its class.

    Args:
      node: the object, or any pytree of objects; without it, the result is a decorator.
      split: the shape into which streams are split, one for all or one by filter.
      fork: selects the streams to fork.
      broadcast: the shape to which streams are broadcast, one for all or one by filter.
      only: selects the streams that the other arguments are about.
      graph: whether sharing is allowed; None for the default.
      graph_updates: accepted for the signature's sake; a view changes nothing in place.

    Raises:
      ValueError: if a stream that is to change is batched or selected by two of the arguments, or a
        shape is none; no stream has drawn then.
    """
    del graph_updates
    selects, forks = to_predicate(only), to_predicate(fork)
    split_of, broadcast_of = shape_chooser(split), shape_chooser(broadcast)
    narrow_split, narrow_broadcast = _narrow_shapes(split), _narrow_shapes(broadcast)
    forks_narrowly = to_predicate(None if _is_for_all(fork) else fork)

    def choose(path: Path, stream: RngStream) -> Rule | None:
        if not selects(path, stream):
            return None
        claims = {
            "split": narrow_split(path, stream) is not None,
            "broadcast": narrow_broadcast(path, stream) is not None,
            "fork": forks_narrowly(path, stream),
        }
        if sum(claims.values()) > 1:
            names = " and ".join(name for name, claimed in claims.items() if claimed)
            raise ValueError(
                f"with_rngs has multiple rules for the stream {stream.tag!r} at {path}:"
                f" {names} name it, and only one can hold"
            )
        if (shape := split_of(path, stream)) is not None:
            return functools.partial(RngStream.fork, split=shape)
        if (shape := broadcast_of(path, stream)) is not None:
            return lambda single: single.broadcast(shape)
        return RngStream.fork if forks(path, stream) else None

    return _derive(node, choose, graph, False)


def _is_for_all(selector: Filter) -> bool:
    return selector is ... or selector is True


def _narrow_shapes(
    shapes: Shapes | None,
) -> Callable[[Path, RngStream], tuple[int, ...] | None]:
    """Makes a chooser of only those shapes that are for some of the streams."""
    by_filter = shapes if isinstance(shapes, Mapping) else {}
    return shape_chooser({one: k for one, k in by_filter.items() if not _is_for_all(one)})


def backup_keys(node: Any, /, *, graph: bool | None = None) -> SplitBackups:
    """Records the key and the count of every stream of an object, for `restore_rngs`."""
    return SplitBackups(_backup(stream) for _, stream in _streams(node, resolve_graph(graph)))


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Gives each stream the key and the count of its backup.

    Raises:
      TraceContextError: if a stream was captured from an outer trace level.
    """
    for stream, key, draws in backups:
        _assign(stream, key, draws)


def reseed(
    node: Any, /, *, graph: bool | None = None, policy: Policy = "scalars_only", **stream_keys: Seed
) -> None:
    """Starts streams anew, in place: a new key and the count 0 for every stream of a given name.

    The keys that the streams of one name get are the first draws of a stream seeded so, in the
    order of their paths. A layer that holds a fork of `Rngs(dropout=1)` hence draws again as it did
    when it was new after `reseed(layer, dropout=1)`.

    Args:
      node: the object, or any pytree of objects.
      graph: whether sharing is allowed; None for the default.
      policy: how a batched stream is reseeded: "scalars_only" refuses it; "match_shape" splits the
        new key into the shape of the old one; a function from path, new key and old shape returns
        the new keys.
      stream_keys: the seeds by stream name. Streams that are not named stay as they are.

    Raises:
      ValueError: if a seed is neither an integer nor a single key, the policy is unknown or gives
        another shape, or "scalars_only" meets a batched stream; no stream has changed then.
    """
    seeds = {name: _single_seed(seed, name) for name, seed in stream_keys.items()}
    reseeded = []
    for path, stream in _streams(node, resolve_graph(graph)):
        if stream.tag in seeds:
            key = _shaped(policy, path, seeds[stream.tag](), stream.key.shape)
            reseeded.append(StreamBackup(stream, key, jnp.zeros(key.shape, jnp.uint32)))
    restore_rngs(reseeded)


def _single_seed(seed: Seed, name: str) -> RngStream:
    source = RngStream(as_key(seed, name), tag=name)
    source.check_single()
    return source


def _shaped(policy: Policy, path: Path, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if callable(policy):
        keys = policy(path, key, shape)
        if keys.shape != shape:
            raise ValueError(
                f"the policy gives keys of shape {keys.shape} for the stream at {path} of {shape}"
            )
        return keys
    if policy not in ("scalars_only", "match_shape"):
        raise ValueError(
            f"policy must be 'scalars_only', 'match_shape' or a function, not {policy!r}."
        )
    if shape == ():
        return key
    if policy == "match_shape":
        return jax.random.split(key, shape)
    raise ValueError(
        f"the stream at {path} has keys of shape {shape}: reseed with policy='match_shape', which"
        " gives every slice a key of its own, or with a function of your own"
    )


def _streams(node: Any, graph: bool) -> list[tuple[Path, RngStream]]:
    return [
        (path, value)
        for path, value in iter_graph(node, graph=graph)
        if isinstance(value, RngStream)
    ]


def _by_variables(only: Filter) -> Callable[[Path, RngStream], bool]:
    """Makes of a filter of Variables one of streams, which selects those that hold such a one."""
    selects = to_predicate(only)
    return lambda path, stream: any(
        selects((*path, k), getattr(stream, k)) for k in ("key", "count")
    )


def _backup(stream: RngStream) -> StreamBackup:
    return StreamBackup(stream, stream.key.get_value(), stream.count.get_value())


def _assign(stream: RngStream, key: jax.Array, count: jax.Array) -> None:
    stream.key.set_value(key)
    stream.count.set_value(count)


def _derive(node: Any, choose: Choose, graph: bool | None, graph_updates: bool | None) -> Any:
    if node is _MISSING:
        return functools.partial(_decorate, choose=choose, graph=graph, graph_updates=graph_updates)
    graph, updates = resolve_modes(graph, graph_updates)
    rules = [(stream, choose(path, stream)) for path, stream in _streams(node, graph)]
    chosen = [(stream, rule) for stream, rule in rules if rule is not None]
    for stream, _ in chosen:
        stream.check_single()
    if updates:
        return SplitBackups([_replace(stream, rule) for stream, rule in chosen])
    return recursive_map(lambda path, value: _replaced(path, value, choose), node, graph=graph)


def _replace(stream: RngStream, rule: Rule) -> StreamBackup:
    derived = rule(stream)
    backup = _backup(stream)
    _assign(stream, derived.key.get_value(), derived.count.get_value())
    return backup


def _replaced(path: Path, value: Any, choose: Choose) -> Any:
    rule = choose(path, value) if isinstance(value, RngStream) else None
    return value if rule is None else rule(value)


def _decorate(
    function: Callable[..., Any], *, choose: Choose, graph: bool | None, graph_updates: bool | None
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        derived = _derive((args, kwargs), choose, graph, graph_updates)
        if not isinstance(derived, SplitBackups):
            args, kwargs = derived
            return function(*args, **kwargs)
        with derived:
            return function(*args, **kwargs)

    return wrapper
