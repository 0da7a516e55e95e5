"""A specification of what is about areas."""

import pytest

from nnx_spec import DOCUMENTED, MUST, clause, needs


@clause("CAP-001", MUST, DOCUMENTED, source="nnx_basics")
def test_capture(nnx):
    """The chapter needs `capture`."""
    assert nnx.anything()


@clause("GRF-011", MUST, DOCUMENTED, source="nnx_basics")
def test_clone(nnx):
    """A name of no area that is denied must be there."""
    assert nnx.clone([1]) == [1]


CASES = [
    pytest.param("double", id="scan", marks=needs("transforms.scan")),
    pytest.param("double", id="graph-updates", marks=needs("graph-updates")),
    pytest.param("double", id="jit", marks=needs("transforms.jit")),
    pytest.param("scan", id="uses-scan"),
]


@clause("TRX-001", MUST, DOCUMENTED, source="nnx_basics")
@pytest.mark.parametrize("name", CASES)
def test_cases(nnx, name):
    """A case needs what its marks say, and what it uses."""
    assert getattr(nnx, name)(1) == 2


@clause("TRX-002", MUST, DOCUMENTED, source="nnx_basics")
def test_jit(nnx):
    """An area that is not denied must be there."""
    assert nnx.jit(len)([1]) == 1
