"""The plugin's work in a session with a target: loading it, selecting clauses, judging."""

from __future__ import annotations

import functools
import gc
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pytest

from nnx_conformance import events, faults, targets
from nnx_conformance.describe import describe, grounds, headline
from nnx_conformance.failures import failure
from nnx_conformance.features import FeatureError, denied_names, features_of, probe
from nnx_conformance.isolation import in_own_thread
from nnx_conformance.outcomes import Outcome, judge
from nnx_conformance.plugin import clauses_of, needs_of, parameters_of
from nnx_conformance.usage import require_known
from nnx_spec import profiles

SESSION = "nnx-conformance-session"
"""The name under which the plugin registers its Session."""


class Unsupported(pytest.skip.Exception):  # type: ignore[name-defined]
    """The clause needs a feature that the target lacks."""


class Session:
    """What the plugin knows and does in one session with a target.

    Under pytest-xdist each worker has a Session, and so has the process that controls them. Tests
    run in the workers only; one of them leads, and tells on behalf of all what is tested.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.name: str = config.getoption("--nnx-target")
        self.fault: str | None = config.getoption("--nnx-fault")
        self.events: str | None = config.getoption("--nnx-events")
        self.overrides = parse_features(config.getoption("--nnx-features"))
        self.patch = pytest.MonkeyPatch()
        self.target: targets.Target | None = None
        self.features: set[str] | None = None
        self.worker: str | None = getattr(config, "workerinput", {}).get("workerid")
        self.controls = bool(config.getoption("numprocesses", None))
        self.leads = self.worker == "gw0" or (self.worker is None and not self.controls)
        selection: str | None = config.getoption("--nnx-select")
        self.selection = None if selection is None else set(selection.split(","))
        if self.fault:
            require_known("fault", [self.fault], faults.load())

    def selects(self, id: str) -> bool:
        """Tells whether a clause is among those to be tested.

        It is if it is selected, or its chapter; a view, if the chapter is from which it gathers.
        """
        from nnx_spec.clauses import REGISTRY

        if self.selection is None:
            return True
        clause = REGISTRY.get(id)
        view = clause.gathers if clause is not None else None
        return bool(self.selection & {id, view.chapter if view else id.split("-")[0]})

    def emit(self, event: str, **data: Any) -> None:
        """Tells whoever follows the session, if anybody does."""
        if self.events:
            events.emit(self.events, event, **data)

    def open(self) -> targets.Target:
        """Loads the target, with the fault in it if one is named; once."""
        if self.target is None:
            self.target = open_target(self.name, self.fault, self.patch)
            _deny(self.target, self.overrides)
        return self.target

    def describe(self) -> dict[str, Any]:
        """Describes the target and what it runs on."""
        return describe(self.open(), self.overrides)

    # Start and end.

    def pytest_sessionstart(self) -> None:
        """Loads the target, describes it to whoever follows the session, or gives up."""
        try:
            if self.leads and self.events:
                self.emit("target", **self.describe())
            elif self.leads:
                self.open()
        except targets.TargetError as error:
            self.emit("unloadable", reason=str(error))
            pytest.exit(str(error), returncode=3)

    def pytest_report_header(self) -> str | None:
        """Says in pytest's header what is tested and on what."""
        if self.events:
            return None
        try:
            return f"nnx target: {headline(self.describe())}"
        except targets.TargetError as error:
            pytest.exit(str(error), returncode=3)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Says that the session is over."""
        if self.worker is None:
            self.emit("finish", exitstatus=int(exitstatus))

    def pytest_unconfigure(self) -> None:
        """Takes the fault out again."""
        self.patch.undo()
        gc.unfreeze()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Tells of a worker's death."""
        if error:
            self.emit("crash", worker=node.gateway.id)

    # Selection.

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leaves out clauses that are not selected, and cases that the profile does not try."""
        chosen = list(items)
        if self.selection is not None:
            chosen = [item for item in chosen if any(map(self.selects, clauses_of(item)))]
        if not config.getoption("--nnx-fault"):
            chosen = _tried(config.getoption("--nnx-profile"), chosen)
        kept = set(chosen)
        if left_out := [item for item in items if item not in kept]:
            config.hook.pytest_deselected(items=left_out)
            items[:] = chosen

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tells which clauses will be tested, and by which tests.

        What has been imported by now is set aside from garbage collection, which hypothesis runs
        in full for every property.
        """
        gc.freeze()
        if not (self.leads and self.events):
            return
        from nnx_spec.clauses import REGISTRY

        tests: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            own, *views = clauses_of(item) or [""]
            for id in [own, *filter(self.selects, views)]:
                tests.setdefault(id, []).append(item)
        told = [clause_of(clause, tests[id]) for id, clause in REGISTRY.items() if id in tests]
        self.emit("collection", clauses=told)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tells of modules that cannot be collected."""
        if report.failed and self.leads:
            self.emit("uncollected", where=report.nodeid, reason=last_line(report.longreprtext))

    # Running and judging.

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Leaves a test out whose needs the target does not meet."""
        from nnx_spec.clauses import unmet

        needs = needs_of(item)
        if not needs:
            return
        if self.features is None:
            self.features = features_of(probe(self.open(), self.overrides))
        if missing := unmet(needs, self.features):
            raise Unsupported(f"the target lacks {', '.join(missing)}")

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """Runs a test in a thread of its own."""
        function = pyfuncitem.obj
        pyfuncitem.obj = in_own_thread(function)
        try:
            return (yield)
        finally:
            pyfuncitem.obj = function

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Judges a phase of a test and puts the verdict on its report."""
        report = yield
        if call.when == "call" or call.excinfo is not None:
            report.nnx = verdict(item, call, report)  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Passes a verdict on to whoever follows the session."""
        if self.worker is not None:
            return
        given = getattr(report, "nnx", None)
        if given is None and report.failed:
            given = crash_verdict(report)
        if given is not None:
            self.emit("test", test=report.nodeid, seconds=report.duration, **given)


def _deny(target: targets.Target, overrides: Mapping[str, bool]) -> None:
    """Makes tests unsupported that use a name of an area which the target denies.

    Raises:
      TargetError: the target declares an unknown feature.
    """
    try:
        denied = denied_names(target, overrides)
    except FeatureError as error:
        raise targets.TargetError(f"target {target._name!r} cannot run: {error}") from error
    target._denied = {
        name: functools.partial(Unsupported, f"the target lacks {area}")
        for name, area in denied.items()
    }


def open_target(name: str, fault: str | None, patch: pytest.MonkeyPatch) -> targets.Target:
    """Loads a target and plants a fault in it, if one is named.

    Raises:
      TargetError: the target cannot be loaded.
      KeyError: there is no such fault.
    """
    target = targets.load(name)
    if fault:
        faults.load()[fault].plant(target, patch)
    return target


def clause_of(clause: Any, items: Iterable[pytest.Item]) -> dict[str, Any]:
    """Tells of a clause that will be tested, in plain JSON values.

    Args:
      clause: the clause.
      items: its tests.
    """
    items = list(items)
    other = {name: grounds(on.basis, on.source) for name, on in clause.grounds.items()}
    functions = {item.nodeid: getattr(item, "originalname", item.name) for item in items}
    return {
        "id": clause.id,
        "chapter": clause.chapter,
        "level": clause.level.value,
        "rule": clause.sentence,
        **grounds(clause.basis, clause.source),
        "view": clause.is_view,
        "tests": list(functions),
        "grounds": {test: other[name] for test, name in functions.items() if name in other},
    }


def parse_features(answers: str | None) -> dict[str, bool]:
    """Reads `hijax.qdd=no,hijax.ref=yes`."""
    pairs = (answer.partition("=") for answer in answers.split(",")) if answers else ()
    return {name: answer == "yes" for name, _, answer in pairs}


def _tried(profile: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns the tests that a profile tries, of each function the cases that it tries."""
    tables: dict[tuple[pytest.Item | pytest.Collector | None, str], list[pytest.Item]] = {}
    for item in items:
        function = getattr(item, "originalname", item.name)
        tables.setdefault((item.parent, function), []).append(item)
    return [item for table in tables.values() for item in profiles.cases(profile, table)]


def verdict(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> dict[str, Any]:
    """Judges a phase of a test; the result consists of plain JSON values."""
    given: dict[str, Any] = {"clauses": clauses_of(item), "outcome": Outcome.PASS.value}
    if call.excinfo is None:
        return given
    error = call.excinfo.value
    if isinstance(error, Unsupported):
        return {**given, "outcome": Outcome.UNSUPPORTED.value, "reason": str(error.msg)}
    own = {"nnx_spec", getattr(item, "module").__name__.split(".")[0]}  # noqa: B009
    phase = report.when or ""
    outcome = Outcome.ERROR if report.skipped else judge(error, phase, own)
    told = failure(item.nodeid, phase, error, parameters=parameters_of(item), own=own)
    return {**given, "outcome": outcome.value, "failure": told}


def crash_verdict(report: pytest.TestReport) -> dict[str, Any]:
    """Gives the verdict on a test that took its process with it."""
    told = {
        "test": report.nodeid,
        "phase": "call",
        "example": report.nodeid.partition("[")[2].rstrip("]") or None,
        "error": "the interpreter died while it ran this test",
        "traceback": report.longreprtext,
    }
    return {"clauses": [], "outcome": Outcome.ERROR.value, "failure": told}


def last_line(text: str) -> str:
    """Returns the last line of a text that pytest marks as an error's, or the last at all."""
    lines = [line for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (marked or lines or [""])[-1]
