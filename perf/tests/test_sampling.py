"""Sampling on a clock of our own: what is counted, in which order, and what a sample is."""

import gc

import pytest

from nnx_perf.sampling import Sampler


class Clock:
    """A clock that stands still but for what calls say they take."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def __call__(self):
        return self.now

    def call(self, name, seconds):
        def call():
            self.now += seconds
            self.order.append(name)

        return call


@pytest.fixture
def clock():
    return Clock()


def sampler(clock, quantum=4.0, seed=0, **seconds):
    calls = {name: clock.call(name, each) for name, each in seconds.items()}
    made = Sampler(calls, seed=seed, quantum=quantum, timer=clock)
    clock.order.clear()
    return made


def test_a_sample_is_the_mean_of_its_calls(clock):
    made = sampler(clock, fast=0.5, slow=3.0)
    made.round()
    made.round()
    assert made.seconds == {"fast": [0.5, 0.5], "slow": [3.0, 3.0]}


def test_calls_are_repeated_until_they_fill_the_quantum(clock):
    made = sampler(clock, fast=0.5, slow=3.0, slower=8.0)
    assert made.repeats == {"fast": 8, "slow": 2, "slower": 1}
    made.round()
    assert {name: clock.order.count(name) for name in made.repeats} == made.repeats


def test_each_round_has_every_contestant_once(clock):
    made = sampler(clock, quantum=1.0, a=1.0, b=1.0, c=1.0)
    for _ in range(20):
        made.round()
    rounds = [tuple(clock.order[n : n + 3]) for n in range(0, 60, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) == 6


def test_the_order_depends_on_the_seed_alone(clock):
    orders = []
    for seed in (1, 1, 2):
        made = sampler(clock, quantum=1.0, seed=seed, a=1.0, b=1.0, c=1.0)
        for _ in range(10):
            made.round()
        orders.append(list(clock.order))
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_waits_for_the_end_of_the_round(clock, enabled):
    seen = []
    made = Sampler({"a": lambda: seen.append(gc.isenabled())}, quantum=0.0, timer=clock)
    seen.clear()
    (gc.enable if enabled else gc.disable)()
    try:
        made.round()
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_a_failing_call_leaves_garbage_collection_as_it_was(clock):
    failing = []

    def call():
        if failing:
            raise RuntimeError("failed")

    made = Sampler({"a": call}, quantum=0.0, timer=clock)
    failing.append(True)
    with pytest.raises(RuntimeError, match="failed"):
        made.round()
    assert gc.isenabled()
