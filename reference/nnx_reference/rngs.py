"""Random state: streams of keys that live in a Module like any other state.

A stream is a root key and a count. Its n-th key, counted from zero, is `fold_in(key, n)`: the key
never changes, a draw adds one to the count, and so the numbers depend on the seed and on the order
of the draws alone. `Rngs` holds named streams; a name that it lacks is served by the stream called
`default`.

A stream can be forked into a new one, whose root is the parent's next key, and split or broadcast
into a batched one, whose key and count have leading axes for `vmap` and `scan` to take apart. A
batched stream does not draw: each of its slices does.

`nnx_reference.streams` does the same to all streams of an object at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from nnx_reference.filters import Filter, to_predicate
from nnx_reference.pytree import Pytree
from nnx_reference.variables import RngCount, RngKey

Seed: TypeAlias = "int | np.integer | jax.Array | RngStream"
"""An integer, or a key (typed, or a raw one of `jax.random.PRNGKey`), or a stream, for its key."""

Shape = int | tuple[int, ...]
"""The leading axes of a batched stream; an int stands for one axis."""

Shapes = Shape | Mapping[Filter, Shape | None]
"""A shape for all streams, or one by filter; the first filter that selects a stream decides."""

_KEY_FUNCTIONS = frozenset({"clone", "fold_in", "key_data", "key_impl", "split"})
"""The functions of `jax.random` that take a key first and draw nothing."""


def as_key(seed: Seed, name: str) -> jax.Array:
    """Makes a typed key, or an array of keys, from a seed for the stream called `name`.

    Raises:
      ValueError: if the seed is neither an integer nor a key nor a stream.
    """
    if isinstance(seed, RngStream):
        return seed.key.get_value()
    if isinstance(seed, (int, np.integer)):
        return jax.random.key(int(seed))
    if isinstance(seed, jax.Array):
        if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
            return seed
        if seed.ndim == 0 and jnp.issubdtype(seed.dtype, jnp.integer):
            return jax.random.key(seed)
        if seed.ndim > 0 and seed.dtype == jnp.uint32 and seed.shape[-1:] == _raw_key_shape():
            return jax.random.wrap_key_data(seed)
    raise ValueError(
        f"the stream {name!r} cannot be seeded with {seed!r}: give an integer or a jax.random.key"
    )


def _raw_key_shape() -> tuple[int, ...]:
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape


def as_shape(shape: Any) -> tuple[int, ...]:
    """Returns the leading axes that an int or a tuple of ints stands for.

    Raises:
      ValueError: if it is neither, or if a size is negative.
    """
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    if all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in sizes):
        return tuple(int(n) for n in sizes)
    raise ValueError(
        f"A stream is split into an int or a tuple of ints, none negative; not into {shape!r}."
    )


def _samplers() -> dict[str, Callable[..., Any]]:
    """Finds the functions of `jax.random` that draw: those whose first parameter is a key."""
    found: dict[str, Callable[..., Any]] = {}
    for name, function in inspect.getmembers(jax.random, inspect.isroutine):
        if name.startswith("_") or name in _KEY_FUNCTIONS:
            continue
        parameters = list(inspect.signature(function).parameters)
        if parameters[:1] == ["key"]:
            found[name] = function
    return found


def _keyless(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method that calls a sampler with the next key of the object."""

    @functools.wraps(function)
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self(), *args, **kwargs)

    first, *others = inspect.signature(function).parameters.values()
    parameters = [first.replace(name="self", annotation=inspect.Parameter.empty), *others]
    sample.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    return sample


def _initializers() -> dict[str, Callable[..., Any]]:
    """Finds the functions of `jax.nn.initializers` that make an initializer that draws."""
    return {
        name: function
        for name, function in inspect.getmembers(jax.nn.initializers, inspect.isroutine)
        if not name.startswith("_")
        and name != "constant"
        and list(inspect.signature(function).parameters)[:1] != ["key"]
    }


def _keyless_initializer(make: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method that makes an initializer without its first parameter, the key."""

    @functools.wraps(make)
    def method(self: Any, *args: Any, **kwargs: Any) -> Callable[..., jax.Array]:
        initializer = make(*args, **kwargs)
        return lambda *args, **kwargs: initializer(self(), *args, **kwargs)

    parameters = inspect.signature(make).parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.signature(make).replace(  # type: ignore[attr-defined]
        parameters=[own, *parameters], return_annotation=inspect.Signature.empty
    )
    return method


class Sampling(Pytree):
    """What gives a key when called, with samplers and initializers that take their keys from it.

    `rngs.normal((2, 3))` is `jax.random.normal(rngs(), (2, 3))`. `rngs.lecun_normal()((2, 3))` is
    `jax.nn.initializers.lecun_normal()(rngs(), (2, 3))`; a name that is a sampler's, too, such as
    `normal`, is the sampler.
    """


for _name, _function in _initializers().items():
    setattr(Sampling, _name, _keyless_initializer(_function))
for _name, _function in _samplers().items():
    setattr(Sampling, _name, _keyless(_function))


class RngStream(Sampling):
    """A stream of keys: a root key and the count of the keys drawn so far.

    Attributes:
      tag: the stream's name; the `tag` of its Variables, by which filters select them.
      key: an `RngKey`, the root, of any shape; () for a stream that draws.
      count: an `RngCount`, uint32, of the key's shape.
    """

    def __init__(self, key: Seed, *, tag: str):
        """Makes a stream that has not drawn yet.

        Raises:
          ValueError: if `key` is neither an integer nor a key nor a stream.
        """
        root = as_key(key, tag)
        self.tag = tag
        self.key = RngKey(root, tag=tag)
        self.count = RngCount(jnp.zeros(root.shape, jnp.uint32), tag=tag)

    def __call__(self) -> jax.Array:
        """Draws the next key.

        Raises:
          ValueError: if the stream is batched.
          TraceContextError: if the stream was captured from an outer trace level.
        """
        self.check_single()
        count = self.count[...]
        key = jax.random.fold_in(self.key[...], count)
        self.count[...] = count + 1
        return key

    def fork(self, *, split: Shape | None = None) -> RngStream:
        """Makes a new stream from the next key; with `split`, a batched one with that many keys.

        Raises:
          ValueError: if this stream is batched or `split` is no shape.
        """
        if split is None:
            return RngStream(self(), tag=self.tag)
        shape = as_shape(split)
        return RngStream(jax.random.split(self(), shape), tag=self.tag)

    def split(self, k: Shape, /) -> RngStream:
        """Makes a batched stream of k different keys; `fork(split=k)`."""
        return self.fork(split=k)

    def broadcast(self, k: Shape, /) -> RngStream:
        """Makes a batched stream in which all slices have one key, the next, and so draw alike.

        Raises:
          ValueError: if this stream is batched or `k` is no shape.
        """
        shape = as_shape(k)
        return RngStream(jnp.broadcast_to(self(), shape), tag=self.tag)

    def copy(self) -> RngStream:
        """Makes a stream that goes on as this one does: a batched one, before it is mapped."""
        copied = RngStream(self, tag=self.tag)
        copied.count.set_value(self.count.get_value())
        return copied

    def check_single(self) -> None:
        """Checks that the stream draws, that is, has one key.

        Raises:
          ValueError: if the stream is batched.
        """
        if self.key.shape != ():
            raise ValueError(
                f"the stream {self.tag!r} holds keys of shape {self.key.shape}, and only a single"
                " key draws: map over it (vmap, scan), or restore the stream that it was split from"
            )


class Rngs(Sampling):
    """Named streams of keys.

    `rngs.dropout()` draws from the stream `dropout`, or from `default` where there is no such
    stream; `rngs()` and the samplers (`rngs.normal(...)`) draw from `default`. `rngs.name` and
    `rngs["name"]` are the stream itself. Iteration, `len` and `in` are about the names of the
    streams that there are.
    """

    def __init__(self, default: Seed | Mapping[str, Seed] | None = None, /, **streams: Seed):
        """Makes streams from seeds.

        Args:
          default: the seed of the stream `default`, or a mapping of names to seeds.
          streams: the seeds of further streams by name; they win over the mapping.

        Raises:
          ValueError: if a seed is neither an integer nor a key nor a stream.
        """
        given = (
            default
            if isinstance(default, Mapping)
            else {}
            if default is None
            else {"default": default}
        )
        made = {name: RngStream(seed, tag=name) for name, seed in {**given, **streams}.items()}
        for name, stream in made.items():
            setattr(self, name, stream)

    def __getattr__(self, name: str) -> RngStream:
        if not name.startswith("_") and "default" in vars(self):
            return vars(self)["default"]
        raise AttributeError(
            f"Rngs has no stream {name!r}, nor one called 'default' to serve for it: {list(self)}"
        )

    def __getitem__(self, name: str) -> RngStream:
        try:
            return self._streams()[name] if name in self else self.__getattr__(name)
        except AttributeError as error:
            raise KeyError(str(error)) from None

    def __call__(self) -> jax.Array:
        """Draws the next key of the stream `default`.

        Raises:
          AttributeError: if there is no such stream.
        """
        return self.default()

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams())

    def __len__(self) -> int:
        return len(self._streams())

    def __contains__(self, name: object) -> bool:
        return name in self._streams()

    def items(self) -> Iterator[tuple[str, RngStream]]:
        """Yields each stream with its name, in the order of the names."""
        yield from self._streams().items()

    def fork(self, /, *, split: Shapes | None = None) -> Rngs:
        """Makes a new Rngs, each stream forked from the one of its name.

        Args:
          split: the shape into which streams are split: one for all, or one by filter; a stream
            that no filter selects, or that gets None, is forked unsplit.

        Raises:
          ValueError: if a stream is batched or `split` holds no shape; no stream has drawn then.
        """
        return self._derived(split, lambda stream, shape: stream.fork(split=shape))

    def split(self, k: Shapes, /) -> Rngs:
        """Makes a new Rngs of batched streams, each with k different keys; `fork(split=k)`."""
        return self.fork(split=k)

    def broadcast(self, k: Shapes, /) -> Rngs:
        """Makes a new Rngs of batched streams in which all slices draw alike.

        Args:
          k: the shape to which streams are broadcast: one for all, or one by filter; a stream that
            no filter selects, or that gets None, is forked unbatched if it is single, and copied
            if it is batched.

        Raises:
          ValueError: if a stream to broadcast is batched or `k` holds no shape; no stream has drawn
            then.
        """

        def derive(stream: RngStream, shape: tuple[int, ...] | None) -> RngStream:
            if shape is not None:
                return stream.broadcast(shape)
            return stream.fork() if stream.key.shape == () else stream.copy()

        return self._derived(k, derive, keeps_batched=True)

    def _streams(self) -> dict[str, RngStream]:
        return {k: v for k, v in sorted(vars(self).items()) if isinstance(v, RngStream)}

    def _derived(
        self,
        shapes: Shapes | None,
        derive: Callable[[RngStream, tuple[int, ...] | None], RngStream],
        keeps_batched: bool = False,
    ) -> Rngs:
        shape_of = shape_chooser(shapes)
        chosen = {name: (stream, shape_of((name,), stream)) for name, stream in self.items()}
        for stream, shape in chosen.values():
            if shape is not None or not keeps_batched:
                stream.check_single()
        rngs = Rngs()
        for name, (stream, shape) in chosen.items():
            setattr(rngs, name, derive(stream, shape))
        return rngs


def shape_chooser(
    shapes: Shapes | None,
) -> Callable[[tuple[Any, ...], Any], tuple[int, ...] | None]:
    """Makes the function from (path, stream) to the shape chosen for the stream, None for none.

    Raises:
      ValueError: if `shapes` holds anything but shapes.
    """
    by_filter = shapes if isinstance(shapes, Mapping) else {...: shapes}
    rules = [
        (to_predicate(selector), None if shape is None else as_shape(shape))
        for selector, shape in by_filter.items()
    ]

    def choose(path: tuple[Any, ...], stream: Any) -> tuple[int, ...] | None:
        return next((shape for selects, shape in rules if selects(path, stream)), None)

    return choose
