"""Upstream: Flax's own tests, guides and examples, run on any target.

A second verdict that owes nothing to this project. What runs comes from the source distribution of
a release of Flax; the target takes the place of `flax.nnx` in it, and what the installed Flax
itself passes is what counts.

What runs, and which of it:
    distribution.py   fetching a release's source distribution, and keeping it
    scope.py          which of the tests belong to which scope, and why (scope.toml)
    documents.py      cutting guides and examples into cells

Inside the processes that run it:
    placeholders.py   what stands for a name that the target lacks
    swapping.py       the target in the place of `flax.nnx`, for what imports it from a folder
    deadline.py       ending what takes too long
    plugin.py         the pytest plugin for the tests
    prints.py         what a cell prints, and whether it prints the same numbers
    notebook.py       executing the cells of one document

Around it:
    testing.py        starting pytest on the tests, and following it
    reading.py        running documents, each in a process of its own
    cases.py          what came out, test by test and cell by cell
    baseline.py       what came out on the installed Flax, kept from run to run
    known.py          differences that are known, each with its reason (known/*.toml)
    judging.py        what counts, and what of it is unexpected
    rendering.py      the verdict for people
    reports.py        the verdict in JSON
    citations.py      whether what the clauses cite is there
    command.py        the command `upstream`
"""
