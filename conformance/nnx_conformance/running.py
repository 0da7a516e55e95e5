"""Running: pytest on one target, in a process of its own, followed while it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from nnx_conformance import events
from nnx_conformance.results import Results

Watcher = Callable[[Results], None]


def installed_spec() -> Path:
    """Returns the folder of the installed specification, without importing it."""
    found = importlib.util.find_spec("nnx_spec")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
      select: ids of clauses and letters of chapters; empty for all.
      profile: on how many examples properties are tried.
      jobs: the number of worker processes.
      features: features to take as given.
      spec: the folder that holds the clauses.
      strict: whether a SHOULD decides as a MUST does.
    """

    select: Sequence[str] = ()
    profile: str = "default"
    jobs: int = 1
    features: Mapping[str, bool] = field(default_factory=dict)
    spec: Path = field(default_factory=installed_spec)
    strict: bool = False


def run(name: str, options: Options, watch: Watcher) -> Results:
    """Runs the specification on a target.

    A `KeyboardInterrupt` ends the run early; the results are what is known by then.

    Args:
      name: the target.
      options: how to run.
      watch: called with the results whenever there is news.
    """
    results = Results(name, strict=options.strict)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nnx-conformance-") as folder:
        stream, log = Path(folder, "events"), Path(folder, "log")
        stream.touch()
        command = [sys.executable, "-m", "pytest", *arguments(name, options, events=stream)]
        command += ["-n", str(options.jobs), *DISTRIBUTION, str(options.spec)]
        with log.open("w") as output, process(command, output, Path(folder)) as child:
            try:
                for news in events.follow(stream, child):
                    for event in news:
                        results.take(event)
                    watch(results)
                    if results.unloadable:
                        break
                else:
                    _account_for_the_end(results, child.returncode, log)
            except KeyboardInterrupt:
                results.interrupted = True
    results.seconds = time.monotonic() - started
    return results


DISTRIBUTION = ("--dist", "worksteal", "--max-worker-restart", "1000")
"""How pytest-xdist shares out tests, and how often it replaces a worker that a test took down."""


def arguments(name: str, options: Options, events: Path | None = None) -> list[str]:
    """Returns pytest's arguments for a run on a target, deaf to configuration of the user's own."""
    given = [
        *("-c", str(resources.files("nnx_conformance") / "pytest.ini")),
        *("--rootdir", str(options.spec.parent), "--confcutdir", str(options.spec)),
        *("-p", "xdist.plugin", "-p", "_hypothesis_pytestplugin", "-p", "nnx_conformance.plugin"),
        *("-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=native"),
        *("--nnx-target", name, "--nnx-profile", options.profile),
    ]
    if options.select:
        given += ["--nnx-select", ",".join(options.select)]
    if options.features:
        answers = (
            f"{feature}={'yes' if has else 'no'}" for feature, has in options.features.items()
        )
        given += ["--nnx-features", ",".join(answers)]
    if events:
        given += ["--nnx-events", str(events)]
    return given


def environment(scratch: Path) -> dict[str, str]:
    """Returns the environment for a run: the user's, less what would change pytest, and quiet.

    Args:
      scratch: a folder for what hypothesis keeps.
    """
    own = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch)}
    return {**QUIET, **own}


FOREIGN = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONSAFEPATH", "PYTHONWARNINGS")
"""Variables of the environment that would change how tests run."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Defaults for the environment: no compiler's log, room for several processes on a device."""


@contextlib.contextmanager
def process(
    command: Sequence[str],
    output: Any,
    scratch: Path,
    settings: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[subprocess.Popen[Any]]:
    """Starts a process group of its own, and ends all of it on leaving.

    Args:
      command: what to start.
      output: the file that its output goes to.
      scratch: a folder for what hypothesis keeps.
      settings: variables of its environment, beside or in the place of those of a run.
      folder: the folder that it starts in; by default this process' own.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment(scratch), **(settings or {})},
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _account_for_the_end(results: Results, status: int | None, log: Path) -> None:
    """Notes as an error that pytest ended otherwise than by finishing its tests."""
    if not results.finished or status not in (0, 1, 5):
        results.errors.append(ending(status, log))


def ending(status: int | None, log: Path, name: str = "pytest") -> str:
    """Says how a process ended, and what its last words were."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{name} ended with status {status}: " + "\n".join(lines[-TAIL:])


TAIL = 30
"""How many lines of pytest's own output are shown when it fails."""
