"""Citations: whether the tests and places that clauses cite are there in a distribution.

A test is there if its file, class and function are. A place in the documentation is there if its
page is, and a heading or a documented name of that anchor in it. What cannot be looked up, such as
the members of a class, is taken as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from nnx_conformance.upstream.distribution import GUIDES, Distribution

SUFFIXES = (".md", ".rst", ".ipynb")
"""How files end that a page of the documentation is made of."""

CHANGES = "CHANGELOG"
API = "api_reference/"


def check(source: Distribution, out: Console) -> int:
    """Tells which tests and places that clauses cite are not there; returns the exit code."""
    cited = list(citations())
    complaints = [
        f"{id}: {citation}: {reason}"
        for id, basis, citation in cited
        if (reason := trouble(source.root, basis, citation))
    ]
    for complaint in complaints:
        out.print(complaint, soft_wrap=True)
    out.print(
        f"{len(cited)} tests and places cited, {len(complaints)} of them not in Flax "
        f"{source.release}",
        soft_wrap=True,
    )
    return 1 if complaints else 0


def citations() -> Iterator[tuple[str, str, str]]:
    """Yields what clauses and their tests stand on: the clause's id, the basis, the source."""
    import nnx_spec

    for clause in nnx_spec.load().values():
        yield clause.id, clause.basis.value, clause.source
        for name, grounds in clause.grounds.items():
            yield f"{clause.id} ({name})", grounds.basis.value, grounds.source


def trouble(root: Path, basis: str, citation: str) -> str | None:
    """Says why a citation leads nowhere; None if it leads somewhere, or cannot be looked up.

    Args:
      root: the folder of the distribution.
      basis: the basis on which a rule stands.
      citation: its source.
    """
    if basis == "tested":
        return _trouble_with_test(root, citation)
    if basis == "documented":
        return _trouble_with_place(root, citation)
    return None


def _trouble_with_test(root: Path, citation: str) -> str | None:
    path, *names = citation.split("::")
    file = root / path
    if not file.is_file():
        return "there is no such file"
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for name in names:
        found = [node for node in body if getattr(node, "name", None) == name]
        if not found:
            return f"there is no {name} in it"
        body = getattr(found[-1], "body", [])
    return None


def _trouble_with_place(root: Path, citation: str) -> str | None:
    page, _, anchor = citation.partition("#")
    if page == CHANGES:
        text = (root / "CHANGELOG.md").read_text()
        heading = re.search(rf"^\W*{re.escape(anchor)}\b", text, re.MULTILINE)
        return None if heading else "the changelog has no such heading"
    files = [file for s in SUFFIXES if (file := root / GUIDES / f"{page}{s}").is_file()]
    if not files:
        return "there is no such page"
    if not anchor:
        return None
    found = names_in(files[0]) if page.startswith(API) else headings_in(files[0])
    if found is None or _plain(anchor, page) in found:
        return None
    return "the page has no such anchor"


def _plain(anchor: str, page: str) -> str:
    """Returns an anchor as it is looked up: of a documented name, the part below `flax.nnx`."""
    if not page.startswith(API):
        return anchor
    return anchor.removeprefix("flax.nnx.").partition(".")[0]


def names_in(page: Path) -> set[str] | None:
    """Returns the names that a page of the API reference documents; None if it doesn't list them.

    Of a dotted name each part counts, since an anchor may begin at any of them.
    """
    text = page.read_text()
    if re.search(r"^\.\. automodule::.*\n(?:\s+:.*\n)*\s+:members:", text, re.MULTILINE):
        return None
    listed = re.findall(
        r"^\s*\.\. auto(?:class|function|data|method)::\s*(\S+)", text, re.MULTILINE
    )
    return {part for name in listed for part in name.split(".")}


UNDERLINED = re.compile(r"^(\S.*)\n([=\-^~*+\"])\2{2,}$", re.MULTILINE)


def headings_in(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, in the ways that Sphinx and GitHub make them."""
    text = page.read_text()
    titles = re.findall(r"^\s*(?:\"\s*)?#+ (.+?)(?:\\n)?\"?,?$", text, re.MULTILINE)
    titles += [found[1] for found in UNDERLINED.finditer(text)]
    labels = re.findall(
        r"^\s*\(([\w-]+)\)=$|^\.\. _([\w-]+):$|^#.*\{#([\w-]+)\}$", text, re.MULTILINE
    )
    anchors = {part for label in labels for part in label if part}
    for title in (re.sub(r"\{#[\w-]+\}", "", title) for title in titles):
        plain = re.sub(r"[`*]", "", title).strip().lower()
        anchors.add(re.sub(r"[^a-z0-9]+", "-", plain).strip("-"))
        anchors.add(re.sub(r"^[0-9-]+", "", re.sub(r"[^a-z0-9]+", "-", plain)).strip("-"))
        anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return anchors
