"""Sources: what the clauses stand on, and where that is found.

A clause says of what kind the thing is that it stands on, its *basis*, and where it is found. The
form of a source depends on the basis:

    documented  a page of the Flax documentation, by its path, with an anchor where there is one:
                `guides/filters_guide#the-filter-protocol`; a docstring is the anchor of its name on
                its API page: `api_reference/flax.nnx/graph#flax.nnx.merge`; `CHANGELOG#0.12.0`
    tested      a test of Flax's own, by its path in the Flax repository:
                `tests/nnx/graph_utils_test.py::TestGraphUtils::test_split_merge_state`
    convention  what does the same in JAX, NumPy or Python, by its dotted name: `jax.vmap`,
                `copy.deepcopy`, `collections.abc.Mapping`
    sound       what goes wrong otherwise that nobody defends, in words: "a write is lost silently"
    ours        what this project wishes for and why, in words
"""

from __future__ import annotations

import enum
import re


class Basis(enum.Enum):
    """Of what kind the thing is that a rule stands on."""

    DOCUMENTED = "documented"
    TESTED = "tested"
    CONVENTION = "convention"
    SOUND = "sound"
    OURS = "ours"


DOCUMENTED, TESTED, CONVENTION, SOUND, OURS = Basis


class SourceError(ValueError):
    """A source is not of the form that its basis asks for, or names an unknown page."""


BASE = "https://flax.readthedocs.io/en/latest/"

SOURCES = {
    "nnx_basics": "NNX basics",
    "key_concepts": "Key concepts",
    "hijax/hijax": "Hijax",
    "guides/filters_guide": "Using filters, grouping NNX variables",
    "guides/pytree": "Module and Pytree",
    "guides/randomness": "Randomness",
    "guides/transforms": "Transforms",
    "guides/jax_and_nnx_transforms": "Flax NNX vs JAX transformations",
    "guides/view": "Model views",
    "guides/surgery": "Model surgery",
    "guides/extracting_intermediates": "Extracting intermediate values",
    "guides/flax_gspmd": "Scale up on multiple devices",
    "guides/performance": "Performance considerations",
    "guides/checkpointing": "Save and load checkpoints",
    "api_reference/flax.nnx/graph": "API reference: graph",
    "api_reference/flax.nnx/helpers": "API reference: helpers",
    "api_reference/flax.nnx/module": "API reference: module",
    "api_reference/flax.nnx/object": "API reference: object",
    "api_reference/flax.nnx/state": "API reference: state",
    "api_reference/flax.nnx/variables": "API reference: variables",
    "api_reference/flax.nnx/filterlib": "API reference: filterlib",
    "api_reference/flax.nnx/rnglib": "API reference: rnglib",
    "api_reference/flax.nnx/transforms": "API reference: transforms",
    "api_reference/flax.nnx/training/optimizer": "API reference: optimizer",
    "api_reference/flax.nnx/nn/index": "API reference: neural network layers",
    "api_reference/flax.nnx/spmd": "API reference: spmd",
    "flip/4105-jax-style-nnx-transforms": "FLIP 4105: JAX-style NNX transforms",
    "flip/5310-tree-mode-nnx": "FLIP 5310: Tree mode NNX",
    "CHANGELOG": "Changelog",
}


TEST = re.compile(r"(tests/nnx|examples/nnx_toy_examples)/[\w/]+\.py(::\w+)*")
DOTTED = re.compile(r"[a-zA-Z_]\w*(\.\w+)*")


def check(basis: Basis, source: str) -> None:
    """Checks that a source is of the form that its basis asks for.

    Raises:
      SourceError: it is not, or it names an unknown page.
    """
    page = source.partition("#")[0]
    if basis is Basis.DOCUMENTED and page not in SOURCES:
        raise SourceError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
    if basis is Basis.TESTED and not TEST.fullmatch(source):
        raise SourceError(f"{source!r} is not a test such as tests/nnx/a_test.py::TestA::test_b")
    if basis is Basis.CONVENTION and not DOTTED.fullmatch(source):
        raise SourceError(f"{source!r} is not a dotted name such as jax.vmap")
    if basis in (Basis.SOUND, Basis.OURS) and len(source.split()) < 3:
        raise SourceError(f"{source!r} does not say in words what a {basis.value} rule stands on")


REPOSITORY = "https://github.com/google/flax/blob/"


def url(source: str) -> str | None:
    """Returns the address of a source, anchor included; None of what has none."""
    page, _, anchor = source.partition("#")
    suffix = f"#{anchor}" if anchor else ""
    if TEST.fullmatch(source):
        return f"{REPOSITORY}v0.12.8/{source.partition('::')[0]}"
    if page == "CHANGELOG":
        return f"{REPOSITORY}main/CHANGELOG.md"
    if page.startswith("flip/"):
        return f"{REPOSITORY}main/docs_nnx/{page}.md{suffix}"
    if page in SOURCES:
        return f"{BASE}{page}.html{suffix}"
    if source.startswith("jax.") and DOTTED.fullmatch(source):
        return f"https://docs.jax.dev/en/latest/_autosummary/{source}.html"
    return None
