"""Profiles: on how many generated examples each property is tried, and on how many cases each test.

`smoke` takes seconds and catches gross breakage: a few examples, and of a test with many parameters
a few cases from all over the table. `default` tries every case and is derandomized, so that a gate
never flips by itself. `thorough` draws fresh examples on every run and is meant for a nightly job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings

Case = TypeVar("Case")

_BUDGETS: dict[str, dict[str, Any]] = {
    "smoke": {"max_examples": 2, "derandomize": True},
    "default": {"max_examples": 25, "derandomize": True},
    "thorough": {"max_examples": 500},
}

PROFILES = tuple(_BUDGETS)

_CASES = {"smoke": 1}

_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": False,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
}


def activate(name: str, *, shrink: bool = True) -> None:
    """Makes a profile hypothesis' current one.

    Args:
      name: one of `PROFILES`.
      shrink: whether a failing example is made as small as possible before it is reported.

    Raises:
      ValueError: there is no such profile.
    """
    if name not in PROFILES:
        raise ValueError(f"no profile {name!r}; there are {', '.join(PROFILES)}")
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])]
    settings.register_profile(
        f"nnx-{name}", phases=phases, database=None, **_COMMON, **_BUDGETS[name]
    )
    settings.load_profile(f"nnx-{name}")


def cases(name: str, table: Sequence[Case]) -> Sequence[Case]:
    """Returns the cases of a parametrised test that a profile tries, in order.

    Args:
      name: one of `PROFILES`.
      table: all cases of the test.
    """
    count = _CASES.get(name, len(table))
    if count >= len(table):
        return table
    return [table[(2 * n + 1) * len(table) // (2 * count)] for n in range(count)]
