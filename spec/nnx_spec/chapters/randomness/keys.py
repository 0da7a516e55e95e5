"""Keys: plans of seeds and of programs that draw, and what `jax.random` alone makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from nnx_spec.oracles import array_record

NAMES = ("carry", "default", "dropout", "noise", "params")
"""Names of streams."""

KeyRecord = tuple[str, tuple[int, ...], bytes]


@dataclass(frozen=True)
class KeyPlan:
    """A typed key: `jax.random.key(seed, impl=impl)`."""

    seed: int
    impl: str = "threefry2x32"


def as_seed(plan: int | KeyPlan) -> Any:
    """Returns the seed that a plan describes: an integer, or a key."""
    return plan if isinstance(plan, int) else jax.random.key(plan.seed, impl=plan.impl)


def root_of(plan: int | KeyPlan) -> jax.Array:
    """Returns the root key that a seed stands for."""
    return jax.random.key(plan) if isinstance(plan, int) else as_seed(plan)


def nth_key(seed: int, count: int) -> jax.Array:
    """Returns the key that a stream of that seed draws after `count` others."""
    return jax.random.fold_in(jax.random.key(seed), count)


integers = st.integers(-(2**31), 2**31 - 1)
"""Integers that are seeds."""

seeds = integers | st.builds(KeyPlan, integers, st.sampled_from(["threefry2x32", "rbg"]))
"""Plans of seeds: integers, and keys of two implementations."""


def key_of(stream: Any) -> KeyRecord:
    """Describes a stream's root key, or array of them, to the bit."""
    return array_record(stream.key.get_value())


def count_of(stream: Any) -> Any:
    """Returns how often a stream has drawn: an int, or nested lists of ints."""
    return np.asarray(stream.count.get_value()).tolist()


def stream_record(stream: Any) -> tuple[KeyRecord, Any]:
    """Describes a stream: key and count."""
    return key_of(stream), count_of(stream)


def records(rngs: Any, names: Any) -> dict[str, tuple[KeyRecord, Any]]:
    """Describes the streams of those names."""
    return {name: stream_record(rngs[name]) for name in names}


def slices(keys: jax.Array) -> list[bytes]:
    """Lists the keys of an array of keys as bytes."""
    data = np.asarray(jax.random.key_data(keys))
    return [row.tobytes() for row in data.reshape(-1, data.shape[-1])]


@dataclass(frozen=True)
class Step:
    """A step of a program on a growing list of `Rngs`.

    Attributes:
      action: `draw` a key, `sample` with one, `fork` one stream, or `fork-all` into a new `Rngs`.
      member: which `Rngs` of the list, modulo its length.
      stream: the stream's name.
    """

    action: str
    member: int
    stream: str


def steps(*actions: str) -> st.SearchStrategy[list[Step]]:
    """Draws programs of these actions."""
    step = st.builds(
        Step, st.sampled_from(actions), st.integers(0, 3), st.sampled_from(["noise", "params"])
    )
    return st.lists(step, min_size=1, max_size=8)


def run(program: list[Step], rngs: Any) -> list[KeyRecord]:
    """Runs a program, starting from one `Rngs`, and returns what it draws, in order."""
    members, drawn = [rngs], []
    for step in program:
        member = members[step.member % len(members)]
        match step.action:
            case "draw":
                drawn.append(array_record(member[step.stream]()))
            case "sample":
                drawn.append(array_record(member[step.stream].bits((2,))))
            case "fork":
                drawn.append(array_record(member[step.stream].fork()()))
            case "fork-all":
                members.append(member.fork())
            case _:
                raise ValueError(f"unknown step: {step}")
    return drawn


@dataclass
class PlainStream:
    """A stream in plain JAX: what the target's must equal."""

    key: jax.Array
    count: int = 0

    def __call__(self) -> jax.Array:
        """Draws the next key."""
        self.count += 1
        return jax.random.fold_in(self.key, self.count - 1)

    def bits(self, shape: tuple[int, ...]) -> jax.Array:
        """Draws bits with the next key."""
        return jax.random.bits(self(), shape)

    def fork(self) -> PlainStream:
        """Makes a stream of the next key."""
        return PlainStream(self())


@dataclass
class PlainRngs:
    """Named streams in plain JAX."""

    streams: dict[str, PlainStream] = field(default_factory=dict)

    @classmethod
    def of(cls, **seeds: int) -> PlainRngs:
        """Makes streams from integers."""
        return cls({name: PlainStream(jax.random.key(seed)) for name, seed in seeds.items()})

    def __getitem__(self, name: str) -> PlainStream:
        return self.streams[name]

    def fork(self) -> PlainRngs:
        """Forks every stream."""
        return PlainRngs({name: stream.fork() for name, stream in self.streams.items()})
