"""Reading: running documents on a target, each in a process of its own, several at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from nnx_conformance import events, running
from nnx_conformance.upstream.cases import FAILED, Case, Record, joined
from nnx_conformance.upstream.distribution import Distribution
from nnx_conformance.upstream.documents import Document
from nnx_conformance.upstream.testing import Watcher, reachable

DEVICES = 8
"""How many devices a CPU counts as for a document that doesn't ask for more itself."""


def run(
    name: str,
    distribution: Distribution,
    documents: Sequence[Document],
    *,
    jobs: int,
    limit: float,
    watch: Watcher,
) -> Record:
    """Runs documents on a target.

    A `KeyboardInterrupt` ends the run early; the record is what is known by then.

    Args:
      name: the target.
      distribution: where the documents are.
      documents: which of them to run.
      jobs: how many at a time.
      limit: how many seconds a cell may take.
      watch: called with the record whenever there is news.
    """
    records: list[Record] = []
    total = sum(len(document.cells) for document in documents)
    waiting = list(documents)
    with contextlib.ExitStack() as stack:
        active: list[Iterator[Record]] = []
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    record = Record()
                    records.append(record)
                    reading = _read(name, distribution, waiting.pop(0), limit, record)
                    active.append(stack.enter_context(contextlib.closing(reading)))
                active = [reading for reading in active if next(reading, None)]
                known = joined(records)
                known.total = total
                watch(known)
                if known.unloadable:
                    break
        except KeyboardInterrupt:
            records.append(Record(interrupted=True))
    whole = joined(records)
    whole.total = total
    return whole


def _read(
    name: str, distribution: Distribution, document: Document, limit: float, record: Record
) -> Generator[Record, None, None]:
    """Runs one document, and yields its record again and again until it has ended."""
    with tempfile.TemporaryDirectory(prefix="nnx-upstream-") as folder:
        scratch = Path(folder)
        stream, log, given = scratch / "events", scratch / "log", scratch / "given"
        stream.touch()
        (scratch / "here").mkdir()
        task = {
            "target": name,
            "root": str(distribution.root),
            "document": document.path,
            "preamble": document.preamble,
            "cells": [dataclasses.asdict(cell) for cell in document.cells],
            "events": str(stream),
            "limit": limit,
        }
        given.write_text(json.dumps(task))
        command = [sys.executable, "-m", "nnx_conformance.upstream.notebook", str(given)]
        settings = _environment(document, scratch)
        with (
            log.open("w") as output,
            running.process(command, output, scratch, settings, scratch / "here") as child,
        ):
            for news in events.follow(stream, child):
                for event in news:
                    record.take(event)
                yield record
            if not record.finished and not record.unloadable:
                _account_for(document, record, running.ending(child.returncode, log, "the process"))
        record.finished = True


def _account_for(document: Document, record: Record, ending: str) -> None:
    """Notes that a process ended before its last cell did."""
    if not record.cases:
        record.unloadable = "the interpreter died of loading the target"
        return
    record.close(ending.splitlines()[0])
    for cell in document.cells:
        if cell.id not in record.cases:
            record.cases[cell.id] = Case(
                cell.id, FAILED, "not reached: an earlier cell ended the process", follows=True
            )


def _environment(document: Document, scratch: Path) -> dict[str, str]:
    settings = {
        **reachable(),
        "COLUMNS": "100",
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(scratch),
        "XLA_FLAGS": "",
    }
    return {**settings, "JAX_NUM_CPU_DEVICES": str(DEVICES)} if document.preamble else settings
