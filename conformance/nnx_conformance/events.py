"""Events: how a pytest session tells the process that started it what happens.

Each event is one line of JSON, appended to a file in a single write, so that several processes may
write and another may read meanwhile.

    target       the target is loaded: its description
    unloadable   it is not: the reason
    collection   the clauses that will be tested, each with its tests
    uncollected  a module of the specification could not be collected: where, and the reason
    test         a phase of a test has an outcome
    crash        a worker process has died
    finish       the session is over
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]

PATIENCE = 0.2
"""Seconds between two looks at the file."""


def emit(path: str, event: str, **data: Any) -> None:
    """Appends an event to a file."""
    line = json.dumps({"event": event, **data}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def follow(path: Path, process: subprocess.Popen[Any]) -> Iterator[list[Event]]:
    """Yields what is new in a file of events, until a process has ended and all are read."""
    rest = ""
    with path.open() as file:
        alive = True
        while alive:
            try:
                process.wait(PATIENCE)
                alive = False
            except subprocess.TimeoutExpired:
                pass
            *lines, rest = (rest + file.read()).split("\n")
            yield [json.loads(line) for line in lines]
