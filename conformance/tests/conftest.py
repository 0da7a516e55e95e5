"""What tests of the harness share: targets, a specification and runs, all in miniature."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nnx_conformance import running
from nnx_conformance.results import Results

MINIATURES = Path(__file__).parent / "miniatures"
SMALL_SPEC = MINIATURES / "small_spec"

collect_ignore = ["miniatures"]
pytest_plugins = ["pytester"]


@pytest.fixture
def miniatures():
    """Gives the folder of the miniature targets."""
    return MINIATURES


@pytest.fixture
def small_spec():
    """Gives the folder of the small specification."""
    return SMALL_SPEC


@pytest.fixture(scope="session")
def results_of():
    """Runs the small specification on a miniature target, once for each, and gives results."""
    known = {}

    def run(name, partial=False, **options):
        key = (name, partial, *sorted(options.items()))
        if key not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(MINIATURES)
                spec = MINIATURES / ("areas_spec" if partial else "small_spec")
                given = running.Options(spec=spec, **options)
                known[key] = running.run(name, given, lambda results: None)
        return known[key]

    return run


DESCRIPTION = {
    "target": {"name": "made-up", "version": None, "features": ["hijax"]},
    "environment": {
        "python": "3.11.0",
        "jax": "0.10.2",
        "jaxlib": "0.10.2",
        "platform": "Linux x86_64",
        "backend": "cpu",
        "device": "cpu",
        "devices": 1,
    },
}


OTHER = {"basis": "sound", "source": "a write is lost", "url": None}
"""What the test `b` stands on, of whatever clause it is."""


def collection(**tests):
    return {
        "event": "collection",
        "clauses": [
            {
                "id": id.replace("_", "-"),
                "chapter": id.split("_")[0],
                "level": level,
                "rule": "It is so.",
                "basis": "tested",
                "source": "tests/nnx/a_test.py",
                "url": "https://example.org",
                "view": id == "TREE_011",
                "tests": names,
                "grounds": {name: OTHER for name in names if name == "b"},
            }
            for id, (level, names) in tests.items()
        ],
    }


def tested(name, outcome, **more):
    return {
        "event": "test",
        "test": name,
        "clauses": [],
        "seconds": 0.1,
        "outcome": outcome,
        **more,
    }


def failed(name, outcome="fail", example=None):
    failure = {
        "test": name,
        "phase": "call",
        "example": example,
        "error": "E\x1b[1m: no",
        "traceback": "line",
    }
    return tested(name, outcome, failure=failure)


def happened(*events, name="made-up"):
    results = Results(name)
    for event in events:
        results.take(event)
    return results


FINISH = {"event": "finish", "exitstatus": 0}
TARGET = {"event": "target", **DESCRIPTION}


def mixed():
    """A run in which one clause deviates, one gives advice, and one is unsupported."""
    return happened(
        TARGET,
        collection(VAR_001=("MUST", ["a", "b"]), VAR_002=("MAY", ["c"]), GRF_001=("MUST", ["d"])),
        tested("a", "pass"),
        failed("b"),
        failed("c", example="n=1"),
        tested("d", "unsupported", reason="the target lacks it"),
        FINISH,
    )


def broken():
    """A run in which the harness broke, in a clause and outside."""
    return happened(
        TARGET,
        {"event": "uncollected", "where": "test_it.py", "reason": "SyntaxError"},
        collection(VAR_001=("MUST", ["a"])),
        tested("a", "pass"),
        failed("a", "error"),
        tested("stray", "fail"),
        FINISH,
    )


def partial():
    """A run that was interrupted half-way."""
    results = happened(TARGET, collection(VAR_001=("MUST", ["a", "b"])), tested("a", "pass"))
    results.interrupted = True
    return results


def unloadable():
    """A run that never began."""
    return happened({"event": "unloadable", "reason": "target 'x' cannot be loaded: no"})


def close(*tests, level="MUST"):
    """A finished run of a single clause on these events."""
    names = list(dict.fromkeys(event["test"] for event in tests))
    return happened(TARGET, collection(VAR_001=(level, names)), *tests, FINISH)


@pytest.fixture
def made_up():
    """Makes up runs: four kinds, and `of` the tests of one clause."""
    return SimpleNamespace(
        mixed=mixed(),
        broken=broken(),
        partial=partial(),
        unloadable=unloadable(),
        of=close,
        failed=failed,
    )


@pytest.fixture
def gathered():
    """A run in which a view gathers a test of two clauses each."""
    return happened(
        TARGET,
        collection(
            TRX_001=("MUST", ["a", "b"]), TRX_002=("MUST", ["c"]), TREE_011=("MUST", ["a", "c"])
        ),
        failed("a"),
        tested("b", "pass"),
        tested("c", "pass"),
        FINISH,
    )
