"""Documents: guides and examples, cut into the cells that a reader would execute one by one.

    .md with {code-cell}   each of these but those tagged skip-execution
    other .md              each block of python
    .py                    the parts between `# %%`, or else the whole file

Lines that are magics (% or !) are left out, and so are documents that never say nnx.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from nnx_conformance.upstream.distribution import EXAMPLES, GUIDES, Distribution

APART = ("api_reference/", "_")
"""What a guide's path does not begin with."""

PROPOSALS = f"{GUIDES}/flip/"
PREAMBLE = "import jax\nimport jax.numpy as jnp\nfrom flax import nnx\n"
"""What proposals leave out."""


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
      id: its document and number, `document#number`.
      source: its code.
      raises: whether it is meant to raise.
    """

    id: str
    source: str
    raises: bool = False


@dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
      path: where it is in the distribution.
      cells: its cells, in order.
      preamble: what is executed before them.
    """

    path: str
    cells: tuple[Cell, ...]
    preamble: str = ""


def guides(distribution: Distribution) -> list[Document]:
    """Returns the guides of a distribution that have cells."""
    paths = distribution.files(GUIDES, "*.md")
    chosen = [path for path in paths if not path.removeprefix(f"{GUIDES}/").startswith(APART)]
    return list(_load(distribution, chosen))


def examples(distribution: Distribution) -> list[Document]:
    """Returns the examples of a distribution."""
    return list(_load(distribution, distribution.files(EXAMPLES, "*.py")))


def _load(distribution: Distribution, paths: list[str]) -> Iterator[Document]:
    for path in paths:
        document = cut(path, (distribution.root / path).read_text())
        if any(re.search(r"\bnnx\b", cell.source) for cell in document.cells):
            yield document


def cut(path: str, text: str) -> Document:
    """Cuts the text of a document into cells."""
    found = _parts(text) if path.endswith(".py") else _blocks(text)
    cells = [(drop_magics(source), raises) for source, raises in found if source.strip()]
    return Document(
        path,
        tuple(Cell(f"{path}#{n}", source, raises) for n, (source, raises) in enumerate(cells, 1)),
        PREAMBLE if path.startswith(PROPOSALS) else "",
    )


FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,})(?P<info>.*)$")


def _blocks(text: str) -> list[tuple[str, bool]]:
    """Returns the cells of a page in Markdown, or else its blocks of Python."""
    cells, blocks = [], []
    lines = iter(text.split("\n"))
    for line in lines:
        if not (opened := FENCE.match(line)):
            continue
        body = []
        for inner in lines:
            if inner.strip() == opened["fence"]:
                break
            body.append(inner)
        info = opened["info"].strip()
        if info.startswith("{code-cell}"):
            tags, source = _options(body)
            if "skip-execution" not in tags:
                cells.append((source, "raises-exception" in tags))
        elif re.match(r"(python|py)\b", info):
            blocks.append((textwrap.dedent("\n".join(body)), False))
    return cells or blocks


def _options(body: list[str]) -> tuple[str, str]:
    """Splits a cell's options, in one of two notations, from its code."""
    count = 0
    if body and body[0].strip() == "---":
        count = body.index("---", 1) + 1
    else:
        while count < len(body) and body[count].startswith(":"):
            count += 1
    return " ".join(body[:count]), "\n".join(body[count:])


def _parts(text: str) -> list[tuple[str, bool]]:
    """Returns the parts of a script."""
    parts = re.split(r"^# %%.*$", text, flags=re.MULTILINE)
    return [(part, False) for part in parts if _says_something(part)]


def _says_something(source: str) -> bool:
    try:
        return bool(ast.parse(source).body)
    except SyntaxError:
        return True


def drop_magics(source: str) -> str:
    """Replaces the lines of a cell that only a notebook understands."""
    try:
        ast.parse(source)
    except SyntaxError:
        return re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    return source
