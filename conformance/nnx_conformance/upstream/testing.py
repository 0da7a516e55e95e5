"""Testing: running Flax's own tests on a target, with pytest, in processes of their own."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nnx_conformance import events, running
from nnx_conformance.upstream.cases import Record
from nnx_conformance.upstream.distribution import TESTS, Distribution
from nnx_conformance.upstream.scope import Scopes

Watcher = Callable[[Record], None]

PATTERNS = ("*_test.py", "test_*.py")
"""How files of tests are called."""

DEVICES = 4
"""How many devices a CPU counts as."""


@dataclass(frozen=True)
class Selection:
    """Which tests and documents to run.

    Attributes:
      scope: the scope of the tests.
      parts: which of `tests`, `guides` and `examples`.
      texts: parts of ids, of which each has at least one; all, if there are none.
    """

    scope: str = "core"
    parts: Sequence[str] = ("tests", "guides", "examples")
    texts: Sequence[str] = ()

    def takes(self, id: str) -> bool:
        """Tells whether a test or cell is selected."""
        return not self.texts or any(text in id for text in self.texts)

    def files(self, files: Sequence[str]) -> list[str]:
        """Returns the files that may have tests or cells that are selected."""
        parts = [text.partition("::")[0].partition("#")[0] for text in self.texts]
        if all(any(part in file for file in files) for part in parts):
            return [file for file in files if not parts or any(part in file for part in parts)]
        return list(files)


def files_of(distribution: Distribution, scopes: Scopes, selection: Selection) -> list[str]:
    """Returns the files of tests that may have any that are selected, below their folder."""
    found = (path.removeprefix(f"{TESTS}/") for path in distribution.files(TESTS, *PATTERNS))
    return selection.files(scopes.files(selection.scope, list(found)))


def run(
    name: str,
    distribution: Distribution,
    scopes: Scopes,
    selection: Selection,
    *,
    jobs: int,
    limit: float,
    watch: Watcher,
) -> Record:
    """Runs tests on a target.

    A `KeyboardInterrupt` ends the run early; the record is what is known by then.

    Args:
      name: the target.
      distribution: where the tests are.
      scopes: which of them belong to which scope.
      selection: which of them to run.
      jobs: the number of worker processes.
      limit: how many seconds a test may take.
      watch: called with the record whenever there is news.
    """
    record = Record()
    files = files_of(distribution, scopes, selection)
    if not files:
        record.finished = True
        return record
    tests = distribution.root / TESTS
    with tempfile.TemporaryDirectory(prefix="nnx-upstream-") as folder:
        scratch = Path(folder)
        stream, log, groups = scratch / "events", scratch / "log", scratch / "groups"
        stream.touch()
        groups.write_text(json.dumps({"core": scopes.core, "tests": _tables(scopes)}))
        (scratch / "pytest.ini").write_text(_settings(distribution))
        command = [sys.executable, "-m", "pytest", "-c", str(scratch / "pytest.ini")]
        command += ["--rootdir", str(tests), "-p", "xdist.plugin", *PLUGINS, "--tb=native"]
        command += ["--continue-on-collection-errors", "-n", str(jobs), *running.DISTRIBUTION]
        command += ["--upstream-target", name, "--upstream-tests", str(tests)]
        command += ["--upstream-scope", selection.scope, "--upstream-groups", str(groups)]
        command += ["--upstream-events", str(stream), "--upstream-limit", str(limit)]
        command += [f"--upstream-text={text}" for text in selection.texts]
        command += [str(tests / file) for file in files]
        with (
            log.open("w") as output,
            running.process(command, output, scratch, _environment(), scratch) as child,
        ):
            try:
                for news in events.follow(stream, child):
                    for event in news:
                        record.take(event)
                    watch(record)
                    if record.unloadable:
                        return record
                if not record.finished or child.returncode not in (0, 1, 5):
                    record.errors.append(running.ending(child.returncode, log))
            except KeyboardInterrupt:
                record.interrupted = True
    record.close("has no end: the run ended before")
    return record


PLUGINS = ("-p", "nnx_conformance.upstream.plugin", "-p", "no:cacheprovider")


def _tables(scopes: Scopes) -> list[dict[str, object]]:
    return [dataclasses.asdict(group) for group in scopes.groups]


def _settings(distribution: Distribution) -> str:
    """Returns pytest's configuration: Flax's own filters on warnings, and nothing else."""
    filters = [f"    {line}" for line in distribution.filters()]
    return "\n".join(
        ["[pytest]", f"python_files = {' '.join(PATTERNS)}", "filterwarnings =", *filters, ""]
    )


def _environment() -> dict[str, str]:
    """Returns what Flax's own runner of tests sets, and a way to the user's modules."""
    return {
        **reachable(),
        "FLAX_PROFILE": "1",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "XLA_FLAGS": " ".join(
            [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={DEVICES}"]
        ).strip(),
    }


def reachable() -> dict[str, str]:
    """Returns an environment in which the user's modules are found from any folder."""
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
