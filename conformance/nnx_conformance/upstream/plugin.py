"""The plugin: it runs Flax's tests with the target in the place of `flax.nnx`, and tells of them.

Events, of those that `nnx_conformance.events` tells of in its own way:

    target       the target is loaded: its version
    unloadable   it is not: the reason
    total        how many tests there will be
    uncollected  a file could not be imported, or not as a whole: the reason
    start, case  a test begins; a phase of it is over
    finish       the session is over
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from nnx_conformance import events, targets
from nnx_conformance.upstream import scope, swapping
from nnx_conformance.upstream.deadline import TookTooLong, deadline
from nnx_conformance.upstream.placeholders import Ledger

MISSED = "nnx-upstream-missed"
"""The property of a report that lists the names that its test missed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the plugin's options."""
    group = parser.getgroup("nnx-upstream")
    group.addoption("--upstream-target")
    group.addoption("--upstream-tests", type=Path)
    group.addoption("--upstream-scope", default="all")
    group.addoption("--upstream-groups", type=Path)
    group.addoption("--upstream-text", action="append", default=[])
    group.addoption("--upstream-events")
    group.addoption("--upstream-limit", type=float, default=300)


def pytest_configure(config: pytest.Config) -> None:
    """Starts the session's work."""
    config.pluginmanager.register(Session(config), "nnx-upstream-session")


class Session:
    """What the plugin knows and does in one session, in a worker or in what controls workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.name: str = config.getoption("--upstream-target")
        self.tests: Path = config.getoption("--upstream-tests").resolve()
        self.scope: str = config.getoption("--upstream-scope")
        self.scopes = scope.read(json.loads(config.getoption("--upstream-groups").read_text()))
        self.texts: list[str] = config.getoption("--upstream-text")
        self.limit: float = config.getoption("--upstream-limit")
        self.path: str = config.getoption("--upstream-events")
        self.worker: str | None = getattr(config, "workerinput", {}).get("workerid")
        self.ledger = Ledger(lenient=True)
        self.swap: swapping.Swap | None = None

    def emit(self, event: str, **data: Any) -> None:
        """Tells whoever follows the session."""
        events.emit(self.path, event, **data)

    # In the workers: loading, selecting, and running.

    def pytest_sessionstart(self) -> None:
        """Loads the target and puts it in its place, or gives up."""
        if self.worker is None:
            return
        try:
            target = targets.load(self.name)
            if self.worker == "gw0":
                self.emit("target", version=targets.version(target))
        except targets.TargetError as error:
            self.emit("unloadable", reason=str(error))
            pytest.exit(str(error), returncode=3)
        self.swap = swapping.install(target, self.tests, self.ledger)

    def pytest_unconfigure(self) -> None:
        """Makes imports what they were."""
        if self.swap:
            self.swap.remove()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leaves out what isn't in scope."""
        kept = [item for item in items if self._selects(item)]
        if len(kept) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
            items[:] = kept

    def _selects(self, item: pytest.Item) -> bool:
        file = item.path.resolve().relative_to(self.tests).as_posix()
        name = item.nodeid.partition("::")[2]
        chosen = not self.texts or any(text in item.nodeid for text in self.texts)
        return chosen and scope.includes(self.scope, self.scopes.of(file, name))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """From now on a name that is missing is an error."""
        self.ledger.lenient = False
        if self.worker == "gw0":
            self.emit("total", tests=len(session.items))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Opens the ledger anew for each test."""
        self.ledger.missed.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Ends a test that takes too long."""
        with deadline(self.limit):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Notes what was missed; a test that passes all the same has not passed."""
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(TookTooLong):
            report.longrepr = str(call.excinfo.value)
        if call.when == "call" and self.ledger.missed:
            missed = sorted(self.ledger.missed)
            report.user_properties.append((MISSED, missed))
            if report.passed:
                report.outcome = "failed"
                report.longrepr = f"passed, but caught the error for {', '.join(missed)}"
        return report

    # In what controls the workers: telling.

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Tells that a test begins."""
        if self.worker is None:
            self.emit("start", case=nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tells of a phase of a test."""
        if self.worker is not None:
            return
        missed = dict(report.user_properties).get(MISSED, [])
        message = "" if report.passed else message_of(report.longrepr)
        self.emit(
            "case",
            case=report.nodeid,
            phase=report.when,
            outcome=report.outcome,
            seconds=report.duration,
            message=message,
            missed=missed,
        )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Tells of a worker's death."""
        if error:
            self.emit("crash", worker=node.gateway.id)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tells of a file that cannot be imported."""
        if report.failed and self.worker is None:
            reason = message_of(report.longrepr)
            self.emit("uncollected", file=report.nodeid.partition("::")[0], reason=reason)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Tells that the session is over."""
        if self.worker is None:
            self.emit("finish", exitstatus=int(exitstatus))


LONGEST = 600
"""How many characters of a message are told."""


def message_of(failure: Any) -> str:
    """Returns what a failure says: its error, or the reason for skipping."""
    if isinstance(failure, tuple):
        return str(failure[2])[:LONGEST]
    crash = getattr(failure, "reprcrash", None)
    if crash is not None:
        return str(crash.message)[:LONGEST]
    lines = [line for line in str(failure).splitlines() if line.strip()]
    errors = [line[2:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines or [""])[-1][:LONGEST]
