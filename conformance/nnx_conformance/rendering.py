"""Rendering: results for people, on a terminal or in a log."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from nnx_conformance.describe import headline
from nnx_conformance.failures import gist
from nnx_conformance.outcomes import Outcome
from nnx_conformance.results import BROKEN, ClauseResult, Results, rank
from nnx_conformance.running import Watcher

STYLES = {
    Outcome.PASS: "green",
    Outcome.UNSUPPORTED: "cyan",
    Outcome.UNFINISHED: "dim",
    Outcome.FAIL: "red",
    Outcome.ERROR: "magenta",
}


def console() -> Console:
    """Returns a console for standard output that leaves lines in a log as long as they are."""
    made = Console(highlight=False, emoji=False, markup=False)
    return (
        made if made.is_terminal else Console(highlight=False, emoji=False, markup=False, width=160)
    )


Meter = Callable[[int, int, str], None]
"""Shows how much is done, of how much, and what is new."""


@contextlib.contextmanager
def progress(name: str, out: Console) -> Iterator[Watcher]:
    """Shows how far a run is."""
    with meter(name, out) as show:
        yield lambda results: show(results.done, results.total, _news(results))


@contextlib.contextmanager
def meter(name: str, out: Console, unit: str = "tests") -> Iterator[Meter]:
    """Shows progress: as a bar on a terminal, as a line for each tenth in a log."""
    if not out.is_terminal:
        yield _lines(name, out, unit)
        return
    bar = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, TextColumn("{task.fields[news]}"), console=out, transient=True) as shown:
        task = shown.add_task(name, total=None, news="")
        yield lambda done, total, news: shown.update(
            task, completed=done, total=total or None, news=news
        )


def _lines(name: str, out: Console, unit: str) -> Meter:
    tenths = 0

    def show(done: int, total: int, news: str) -> None:
        nonlocal tenths
        reached = 10 * done // total if total else 0
        if reached > tenths:
            tenths = reached
            parts = [f"{name}: {10 * reached:3d}%", f"{done:,} of {total:,} {unit}", news]
            out.print(", ".join(filter(None, parts)), soft_wrap=True)

    return show


def _news(results: Results) -> str:
    parts = [(len(results.deviations), "deviating"), (len(results.advice), "giving advice")]
    return ", ".join(
        f"{count} clause{'s' if count > 1 else ''} {what}" for count, what in parts if count
    )


def show(runs: Sequence[Results], titles: Mapping[str, str], out: Console) -> None:
    """Shows runs side by side, then every clause that does not pass.

    Args:
      runs: the results.
      titles: the chapters' titles, by their letters.
      out: where to.
    """
    ran = [results for results in runs if results.unloadable is None]
    for results in ran:
        if results.description is not None:
            out.print(headline(results.description), soft_wrap=True)
    shown = [results for results in ran if results.clauses]
    if shown:
        out.print()
        out.print(_table(shown, titles))
        _show_standing(shown, out)
    for results in shown:
        _show_views(results, out)
    for results in ran:
        _show_failures(results, out)
        for error in results.errors:
            out.print(Text(f"{results.name}: error: {error}", style="magenta"), soft_wrap=True)
    if ran:
        out.print()
    for results in ran:
        out.print(_verdict(results), soft_wrap=True)
    complaints = Console(stderr=True, highlight=False, markup=False, emoji=False)
    for results in runs:
        if results.unloadable is not None:
            complaints.print(results.unloadable, soft_wrap=True)


def _table(runs: Sequence[Results], titles: Mapping[str, str]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("chapter")
    table.add_column("")
    for results in runs:
        table.add_column(results.name)
    chapters = {clause.chapter: None for results in runs for clause in results.counted}
    for chapter in (
        *(name for name in titles if name in chapters),
        *(chapters.keys() - titles.keys()),
    ):
        counts = [_counts(results, chapter) for results in runs]
        table.add_row(chapter, titles.get(chapter, ""), *counts)
    if len(chapters) > 1:
        table.add_section()
        table.add_row("all", "", *(_counts(results) for results in runs))
    return table


def _counts(results: Results, chapter: str | None = None) -> Text:
    counts = results.count(chapter)
    parts = [
        Text(f"{counts[outcome]} {outcome.value}", style=STYLES[outcome])
        for outcome in Outcome
        if counts[outcome]
    ]
    return Text(", ").join(parts)


def _show_standing(runs: Sequence[Results], out: Console) -> None:
    """Shows how many clauses fail or break, by level and by what they stand on."""
    counts = [results.standing() for results in runs]
    rows = {
        row: [_failing(count.get(row, Counter())) for count in counts]
        for row in sorted({row for count in counts for row in count}, key=rank)
    }
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("failing", "", *(results.name for results in runs)):
        table.add_column(heading)
    for (level, basis), cells in rows.items():
        if any(not cell.startswith("0 ") for cell in cells):
            table.add_row(level, basis, *cells)
    if table.row_count:
        out.print()
        out.print(table)


def _failing(counts: Counter[Outcome]) -> str:
    return f"{sum(counts[outcome] for outcome in BROKEN):,} of {counts.total():,}"


def _show_views(results: Results, out: Console) -> None:
    parts = [
        f"{view.id} {len(results.failing(view)):,} of {len(results.gathered(view)):,} clauses fail"
        for view in results.views
    ]
    if parts:
        out.print(f"views of {results.name}: {', '.join(parts)}", soft_wrap=True)


def _show_failures(results: Results, out: Console) -> None:
    for clause in results.counted:
        if clause.outcome in BROKEN:
            out.print()
            _show_failure(results, clause, out)


def _show_failure(results: Results, clause: ClauseResult, out: Console) -> None:
    style = STYLES[clause.outcome]
    grounds = clause.broken_grounds
    standing = [clause.level, *dict.fromkeys(one["basis"] for one in grounds if one["basis"])]
    advice = clause.outcome is Outcome.FAIL and not results.decides(clause)
    out.print(
        Text.assemble(
            (f"{clause.id} {clause.outcome.value}", f"bold {style}"),
            f" on {results.name} ({', '.join(standing)}{'; advice' if advice else ''})",
        ),
        soft_wrap=True,
    )
    out.print(f"  {clause.rule}", soft_wrap=True)
    for one in grounds:
        address = f" ({one['url']})" if one["url"] else ""
        out.print(f"  source: {one['source']}{address}", soft_wrap=True)
    failure = clause.failure
    if failure is None:
        return
    counts = f"{len(clause.broken):,} of {_tests(len(clause.tests))}"
    out.print(f"  {counts}, such as {failure['test']}", soft_wrap=True)
    if failure["example"]:
        out.print(_indent(failure["example"]), soft_wrap=True)
    out.print(Text(_indent(gist(failure["error"])), style=style), soft_wrap=True)


def _tests(count: int) -> str:
    return f"{count:,} test{'s' if count != 1 else ''}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _verdict(results: Results) -> Text:
    state = (
        "interrupted after "
        if results.interrupted
        else ""
        if results.finished
        else "broken off after "
    )
    counts = (
        f"{results.done:,} of {_tests(results.total)}"
        if not results.finished
        else _tests(results.total)
    )
    ending = ["no clause deviating"] if not results.deviations else []
    ending = ["nothing ran"] if results.total == 0 else [*ending, *filter(None, [_news(results)])]
    return Text(f"{results.name}: {state}{counts} in {results.seconds:.1f} s, {', '.join(ending)}")
