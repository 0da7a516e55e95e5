"""The pytest plugin: which targets compete, for how many rounds, and what is stored.

A benchmark is a *contest*: floor and targets are sampled in one process, a sample of each to a
round. pytest-benchmark times one thing at a time, so what it is given to run is the whole round;
what it times then is of no interest, and the samples of the contestants stand in the benchmark's
`extra_info`:

    operation, size, ...   the benchmark's parameters
    seconds                samples by contestant, seconds for each call, in the order of the rounds
    repeats                calls in a sample, by contestant
    ratios                 by target: median, and the ends of its 95% interval, against the floor
    python_calls           by contestant
    arrays_kept            by contestant, in benchmarks that count them
    errors                 by target that failed: the error

Load it with `-p nnx_perf.plugin`; all options of pytest-benchmark apply.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import pytest

from nnx_conformance import targets
from nnx_perf import counters
from nnx_perf.sampling import Call, Sampler
from nnx_perf.statistics import ratio

FLOOR = "floor"
"""The name of the floor among the contestants."""

LOADED = pytest.StashKey[dict[str, targets.Target]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("nnx-perf")
    group.addoption(
        "--nnx-perf-target",
        action="append",
        default=[],
        metavar="TARGET",
        help="an implementation to measure; may be given several times",
    )
    group.addoption(
        "--nnx-perf-rounds", type=int, default=50, metavar="N", help="rounds of each benchmark"
    )
    group.addoption(
        "--nnx-perf-size",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="measure only models of N Variables; may be given several times",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Loads the targets, and ends the run with exit status 3 if one cannot be loaded."""
    try:
        names = config.getoption("--nnx-perf-target")
        config.stash[LOADED] = {name: targets.load(name) for name in names}
    except targets.TargetError as error:
        pytest.exit(str(error), returncode=3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the benchmarks of the sizes that were asked for."""
    sizes = config.getoption("--nnx-perf-size")
    if not sizes:
        return
    kept = [item for item in items if _parameters(item).get("size") in sizes]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Adds what decides the figures besides the machine: JAX, the devices and the targets."""
    devices = jax.devices()
    machine_info["jax"] = {
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "platform": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    loaded = config.stash[LOADED]
    machine_info["targets"] = {name: targets.version(target) for name, target in loaded.items()}


@pytest.fixture
def contest(request: pytest.FixtureRequest, benchmark: Any) -> Contest:
    """The contest in which a benchmark's floor and targets are measured."""
    config = request.config
    benchmark.extra_info.update(_parameters(request.node))
    return Contest(config.stash[LOADED], benchmark, config.getoption("--nnx-perf-rounds"))


class Contest:
    """Measures a floor and the same work on several targets, side by side."""

    def __init__(self, loaded: dict[str, targets.Target], benchmark: Any, rounds: int) -> None:
        self._targets = loaded
        self._benchmark = benchmark
        self._rounds = rounds

    def run(self, prepare: Callable[[Any], Call], floor: Call, *, steps: int = 0) -> None:
        """Takes the samples and counts, and puts them into the benchmark's `extra_info`.

        Args:
          prepare: makes the call to measure on a target.
          floor: the call that sets the floor.
          steps: after how many calls it is counted which arrays they have left; 0 for not at all.

        Raises:
          pytest.fail.Exception: some target failed; the others are measured all the same.
        """
        calls, errors = {FLOOR: floor}, {}
        for name, target in self._targets.items():
            try:
                calls[name] = prepare(target)
                calls[name]()
            except Exception as error:
                calls.pop(name, None)
                errors[name] = " ".join(f"{type(error).__name__}: {error}".split())
        self._benchmark.extra_info["python_calls"] = {
            name: counters.python_calls(call) for name, call in calls.items()
        }
        self._benchmark.extra_info["arrays_kept"] = (
            {name: counters.arrays_kept(call, steps) for name, call in calls.items()}
            if steps
            else {}
        )
        sampler = Sampler(calls)
        self._benchmark.pedantic(sampler.round, rounds=self._rounds)
        self._record(sampler, errors)
        if errors:
            pytest.fail("\n".join(f"{name}: {error}" for name, error in errors.items()), False)

    def _record(self, sampler: Sampler, errors: dict[str, str]) -> None:
        floor = sampler.seconds[FLOOR]
        ratios = {name: ratio(seconds, floor) for name, seconds in sampler.seconds.items()}
        self._benchmark.extra_info.update(
            seconds=sampler.seconds,
            repeats=sampler.repeats,
            ratios={k: dataclasses.asdict(v) for k, v in ratios.items() if k != FLOOR},
            errors=errors,
        )


def _parameters(item: Any) -> dict[str, Any]:
    """Returns the parameters of a benchmark."""
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}
