"""The pytest plugin: gives tests their target, and does nothing unless `--nnx-target` is given."""

from __future__ import annotations

import contextlib
import sys

import pytest

DEVICES = 8
"""On how many devices of a CPU the clauses run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("nnx-conformance")
    group.addoption(
        "--nnx-target",
        metavar="TARGET",
        help="the implementation to test: a registered name, module or module:attribute",
    )
    group.addoption(
        "--nnx-profile", metavar="PROFILE", default="default", help="smoke, default or thorough"
    )
    group.addoption(
        "--nnx-select", metavar="IDS", help="clauses and chapters to test, separated by commas"
    )
    group.addoption(
        "--nnx-features",
        metavar="ANSWERS",
        help="features to take as given, such as hijax.qdd=no,hijax.ref=yes",
    )
    group.addoption("--nnx-fault", metavar="FAULT", help="plant this fault in the target")
    group.addoption(
        "--nnx-no-shrink", action="store_true", help="take failing examples as they are found"
    )
    group.addoption("--nnx-events", metavar="FILE", help="append what happens, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and the rest of the plugin if there is a target."""
    config.addinivalue_line("markers", "clause(id): the clause that this test decides")
    config.addinivalue_line("markers", "needs(*features): features without which it does not apply")
    if config.getoption("--nnx-target"):
        _wake(config)


def _wake(config: pytest.Config) -> None:
    if "nnx_spec" not in sys.modules:
        pytest.register_assert_rewrite("nnx_spec.oracles", "nnx_spec.chapters")
    from nnx_conformance import fixtures
    from nnx_conformance.session import SESSION, Session
    from nnx_conformance.usage import UsageError, require_known
    from nnx_spec import profiles

    _ask_for_devices()
    profile, shrink = config.getoption("--nnx-profile"), not config.getoption("--nnx-no-shrink")
    try:
        require_known("profile", [profile], profiles.PROFILES)
        profiles.activate(profile, shrink=shrink)
        session = Session(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(session, SESSION)
    config.pluginmanager.register(fixtures)


def _ask_for_devices() -> None:
    """Makes JAX simulate several devices on a CPU, unless it has been told or runs already."""
    import jax

    with contextlib.suppress(RuntimeError):
        if jax.config.values["jax_num_cpu_devices"] == -1:
            jax.config.update("jax_num_cpu_devices", DEVICES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuses to run clauses without a target."""
    if not config.getoption("--nnx-target") and any(map(clauses_of, items)):
        raise pytest.UsageError(
            "these tests need a target: give --nnx-target, such as --nnx-target flax"
        )


def clauses_of(item: pytest.Item) -> list[str]:
    """Returns the ids of the clauses that a test decides, the one that it is part of first."""
    marker = item.get_closest_marker("clause")
    if marker is None:
        return []
    from nnx_spec.clauses import REGISTRY

    return REGISTRY.decided_by(str(marker.args[0]), parameters_of(item) or "")


def parameters_of(item: pytest.Item) -> str | None:
    """Returns the parameters of a parametrised test as its id spells them."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.id) if callspec is not None else None


def needs_of(item: pytest.Item) -> set[str]:
    """Returns the features that a test needs: its chapter's, its clause's, and its own."""
    from nnx_spec import editions
    from nnx_spec.clauses import REGISTRY

    clause = REGISTRY.get(next(iter(clauses_of(item)), ""))
    own = {feature for marker in item.iter_markers("needs") for feature in marker.args}
    return own | (editions.needs(clause) if clause is not None else frozenset())
