"""Rendering: a comparison for people, on a terminal or in a log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nnx_conformance.upstream import judging
from nnx_conformance.upstream.judging import Comparison, Verdict

MOST = 20
"""How many names and messages are shown."""


def show(comparison: Comparison, out: Console) -> None:
    """Shows what was found, file by file, then what differs and why, then the verdict."""
    if comparison.verdicts:
        out.print(_headline(comparison), soft_wrap=True)
        out.print()
        out.print(_table(comparison.verdicts))
        _show_missing(comparison.verdicts, out)
        _show_messages(comparison.verdicts, out)
        _show_numbers(comparison.verdicts, out)
        _show_known(comparison.verdicts, out)
        _show_unexpected(comparison.unexpected, out)
        out.print()
    for error in comparison.errors:
        out.print(Text(f"{comparison.name}: error: {error}", style="magenta"), soft_wrap=True)
    if comparison.unloadable is None:
        out.print(_verdict(comparison), soft_wrap=True)


def _headline(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.environment.items())
    return (
        f"{comparison.name} {comparison.version or '(no version)'} in the place of flax.nnx in "
        f"what comes with Flax {comparison.release}, scope {comparison.scope}, on {versions}"
    )


def _table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("file")
    for heading in ("passed", "known", "follow", "unexpected"):
        table.add_column(heading, justify="right")
    table.add_column("missing names")
    for file, group in judging.by_file(verdicts).items():
        table.add_row(file, *_counts(group), _names(group))
    table.add_section()
    table.add_row("all", *_counts(verdicts), "")
    return table


def _counts(verdicts: Sequence[Verdict]) -> Iterable[Text]:
    passed = [verdict for verdict in verdicts if not verdict.differs]
    known = [verdict for verdict in verdicts if verdict.differs and verdict.known]
    unexpected = [verdict for verdict in verdicts if verdict.unexpected]
    follow = [
        verdict
        for verdict in verdicts
        if verdict.differs and not verdict.known and not verdict.unexpected
    ]
    for group, style in ((passed, "green"), (known, "cyan"), (follow, "dim"), (unexpected, "red")):
        yield Text(str(len(group)) if group else "", style=style)


def _names(verdicts: Sequence[Verdict]) -> str:
    names = [name for name, _ in judging.missing(verdicts).most_common()]
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _show_missing(verdicts: Sequence[Verdict], out: Console) -> None:
    if counts := judging.missing(verdicts):
        out.print("\nnames that are missing, and how many miss them:", soft_wrap=True)
        for name, count in counts.most_common(MOST):
            out.print(f"  {count:5d}  {name}", soft_wrap=True)


def _show_messages(verdicts: Sequence[Verdict], out: Console) -> None:
    groups = judging.by_message(verdicts)
    if groups:
        out.print("\nother failures, by what they say:", soft_wrap=True)
    for message, group in list(groups.items())[:MOST]:
        out.print(f"  {len(group):5d}  {message[:200]}", soft_wrap=True)
        out.print(f"         such as {group[0].case.id}", soft_wrap=True, style="dim")
    if len(groups) > MOST:
        out.print(f"         and {len(groups) - MOST} more", soft_wrap=True)


def _show_numbers(verdicts: Sequence[Verdict], out: Console) -> None:
    different = [verdict for verdict in verdicts if verdict.outcome == judging.NUMBERS]
    if different:
        out.print("\ncells that print other numbers:", soft_wrap=True)
    for verdict in different:
        out.print(f"  {verdict.case.id} {verdict.message}", soft_wrap=True)


def _show_known(verdicts: Sequence[Verdict], out: Console) -> None:
    groups: dict[tuple[str, str], int] = {}
    for verdict in verdicts:
        if verdict.differs and verdict.known:
            key = (verdict.known.kind, verdict.known.reason)
            groups[key] = groups.get(key, 0) + 1
    if groups:
        out.print("\nknown differences:", soft_wrap=True)
    for (kind, reason), count in groups.items():
        out.print(f"  {count:5d}  {kind}: {reason}", soft_wrap=True)


def _show_unexpected(verdicts: Sequence[Verdict], out: Console) -> None:
    if verdicts:
        out.print("\nunexpected:", soft_wrap=True)
    for verdict in verdicts:
        what = verdict.outcome if verdict.differs else "passed, though it is known to differ"
        out.print(Text(f"  {verdict.case.id} {what}", style="red"), soft_wrap=True)


def _verdict(comparison: Comparison) -> str:
    parts = []
    cells = [verdict for verdict in comparison.verdicts if judging.is_document(verdict)]
    tests = [verdict for verdict in comparison.verdicts if not judging.is_document(verdict)]
    for unit, verdicts in (("tests", tests), ("cells", cells)):
        if verdicts:
            passed = sum(not verdict.differs for verdict in verdicts)
            share = 100 * passed / len(verdicts)
            parts.append(f"{passed} of {len(verdicts)} {unit} as on Flax ({share:.1f}%)")
    judged = f"{len(comparison.unexpected) or 'nothing'} unexpected"
    ending = f", {judged}" if comparison.verdicts else ""
    state = "interrupted after " if comparison.interrupted else ""
    counts = ", ".join(parts) or "nothing ran"
    return f"{comparison.name}: {state}{counts} in {comparison.seconds:.1f} s{ending}"
