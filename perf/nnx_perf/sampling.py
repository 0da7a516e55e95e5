"""Sampling: contestants timed side by side, so that what disturbs one disturbs the other."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Call = Callable[[], Any]
Timer = Callable[[], float]


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Keeps the garbage collector from running meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Sampler:
    """Times contestants in rounds: each once a round, in an order that is shuffled anew.

    A sample is the mean over as many calls as fill `quantum` seconds. Garbage is not collected
    within a round.

    Attributes:
      repeats: the number of calls in a sample, by contestant.
      seconds: the samples, seconds for each call, by contestant.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        *,
        seed: int = 0,
        quantum: float = 2e-4,
        timer: Timer = time.perf_counter,
    ) -> None:
        """Calls each contestant until it is warm, and finds how often to repeat it.

        Args:
          calls: the contestants, each a function without parameters.
          seed: decides the order within the rounds.
          quantum: seconds that a sample takes at least.
          timer: the clock, in seconds.
        """
        self._calls = dict(calls)
        self._random = random.Random(seed)
        self._timer = timer
        self.repeats = {name: self._calibrate(call, quantum) for name, call in self._calls.items()}
        self.seconds: dict[str, list[float]] = {name: [] for name in self._calls}

    def round(self) -> None:
        """Takes one sample of every contestant."""
        order = list(self._calls)
        self._random.shuffle(order)
        with garbage_kept():
            for name in order:
                repeats = self.repeats[name]
                self.seconds[name].append(self._time(self._calls[name], repeats) / repeats)

    def _calibrate(self, call: Call, quantum: float) -> int:
        call()
        repeats = 1
        while self._time(call, repeats) < quantum:
            repeats *= 2
        return repeats

    def _time(self, call: Call, repeats: int) -> float:
        start = self._timer()
        for _ in range(repeats):
            call()
        return self._timer() - start
