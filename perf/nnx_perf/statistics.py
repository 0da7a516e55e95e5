"""Statistics: the ratio of paired samples, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """How many times as long one contestant takes as another: the median, and its 95% interval."""

    median: float
    low: float
    high: float


def ratio(seconds: Sequence[float], floor: Sequence[float], *, seed: int = 0) -> Ratio:
    """Estimates the ratio of two contestants that were timed in the same rounds.

    Each round gives one ratio. The interval is the percentile bootstrap of their median.

    Args:
      seconds: the samples of one contestant, a sample for each round.
      floor: the samples of the other, in the same rounds.
      seed: decides the resamples.

    Raises:
      ValueError: there are no rounds, or one contestant has more samples than the other.
    """
    if len(seconds) != len(floor) or not seconds:
        raise ValueError(f"samples must be paired by round; got {len(seconds)} and {len(floor)}")
    ratios = np.asarray(seconds) / np.asarray(floor)
    chosen = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[chosen], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))
