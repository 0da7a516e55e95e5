"""Ratios of known samples, and counters of known calls."""

import gc
import sys

import jax
import numpy as np
import pytest

from nnx_perf import counters, models, report
from nnx_perf.statistics import Ratio, ratio


def test_a_constant_ratio_has_an_interval_of_no_width():
    floor = [1.0, 5.0, 2.0, 40.0]
    assert ratio([3 * x for x in floor], floor) == Ratio(3.0, 3.0, 3.0)


def test_ratios_are_paired_by_round():
    assert ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == Ratio(2.0, 2.0, 2.0)
    shuffled = ratio([20.0, 200.0, 2.0], [1.0, 10.0, 100.0])
    assert shuffled.median == 20.0
    assert (shuffled.low, shuffled.high) == (0.02, 20.0)


def test_the_median_bears_an_outlier():
    assert ratio([2.0] * 20 + [1000.0], [1.0] * 21) == Ratio(2.0, 2.0, 2.0)


def test_the_interval_holds_the_true_median_and_tightens():
    samples = np.random.default_rng(3).lognormal(np.log(2.0), 0.2, size=400)
    few, many = (ratio(list(samples[:n]), [1.0] * n) for n in (25, 400))
    assert few.low < 2.0 < few.high
    assert many.low < 2.0 < many.high
    assert 0 < many.high - many.low < 0.6 * (few.high - few.low)
    assert ratio(list(samples), [1.0] * 400) == many


@pytest.mark.parametrize(("seconds", "floor"), [([], []), ([1.0], [1.0, 2.0])])
def test_samples_that_are_not_paired(seconds, floor):
    with pytest.raises(ValueError, match=f"{len(seconds)} and {len(floor)}"):
        ratio(seconds, floor)


def inner(n):
    return inner(n - 1) if n else len("four")


def test_python_calls_are_counted_without_the_outermost():
    assert counters.python_calls(lambda: None) == 0
    assert counters.python_calls(lambda: len("four")) == 0
    assert counters.python_calls(lambda: inner(0)) == 1
    assert counters.python_calls(lambda: [inner(2), inner(1)]) == 5


def test_garbage_collection_is_not_counted():
    entered = []

    def callback(phase, info):
        entered.append(phase)

    def call():
        garbage = [[] for _ in range(5000)]
        garbage.append(garbage)

    gc.callbacks.append(callback)
    try:
        assert counters.python_calls(call) <= 1  # Python 3.11 enters a frame for a comprehension
    finally:
        gc.callbacks.remove(callback)


def test_counting_leaves_the_profile_function_as_it_was():
    def profile(frame, event, argument):
        pass

    sys.setprofile(profile)
    try:
        counters.python_calls(lambda: None)
        assert sys.getprofile() is profile
        with pytest.raises(ZeroDivisionError):
            counters.python_calls(lambda: 1 / 0)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("size", models.SIZES)
def test_trees_have_as_many_distinct_leaves_as_they_say(size):
    leaves = jax.tree.leaves(models.tree(size))
    assert len({id(leaf) for leaf in leaves}) == size
    assert counters.leaves(models.tree(size)) == size


@pytest.mark.parametrize("size", [0, 1, 8, 10])
def test_trees_of_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"not {size}"):
        models.tree(size)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (1.2345, "1.23"), (45.67, "45.7"), (187.4, "187"), (2345, "2345")],
)
def test_figures_have_three_digits(value, text):
    assert report.figure(value) == text
