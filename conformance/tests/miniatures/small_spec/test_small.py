"""A specification of a few clauses, so that the harness can be tried in seconds."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MAY, MUST, SHOULD, SOUND, clause, stands_on


@pytest.fixture
def prepared(nnx):
    return nnx.prepare()


@clause("VAR-001", MUST, DOCUMENTED, source="nnx_basics")
@pytest.mark.parametrize("n", [0, 1, 12])
def test_double(nnx, n):
    """`double` doubles."""
    assert nnx.double(n) == 2 * n


@clause("VAR-002", SHOULD, DOCUMENTED, source="nnx_basics#doubling")
class TestDoubleOfAny:
    """Doubling is adding a number to itself.

    Any integer will do.
    """

    @given(n=st.integers())
    def test_is_the_sum(self, nnx, n):
        assert nnx.double(n) == n + n

    @stands_on(SOUND, "a number is lost")
    def test_large(self, nnx):
        assert nnx.double(10**30) == 2 * 10**30


@clause("VAR-003", MUST, DOCUMENTED, source="nnx_basics", needs={"hijax.ref"})
def test_ref(nnx):
    """A target with references has `ref`."""
    assert nnx.ref() == "ref"


@clause("VAR-004", MAY, DOCUMENTED, source="nnx_basics")
def test_optional(nnx):
    """A target may say please."""
    assert nnx.please() == "please"


@clause("VAR-005", MUST, DOCUMENTED, source="nnx_basics")
def test_prepared(prepared):
    """What `prepare` returns is ready."""
    assert prepared == "ready"


@clause("GRF-011", MUST, DOCUMENTED, source="nnx_basics")
def test_clone(nnx):
    """`clone` shares nothing with the original."""
    original = [1, 2]
    copy = nnx.clone(original)
    assert copy == original
    assert copy is not original


@clause("GRF-012", MUST, DOCUMENTED, source="nnx_basics")
class TestTheTestIsToBlame:
    """A target that asks for trouble shows what an error of the specification's own is."""

    @given(n=st.integers())
    def test_unsatisfiable(self, nnx, n):
        assume(not nnx.TROUBLE)

    def test_unknown_name(self, nnx):
        assert nnx.TROUBLE == 0 or undefined_name  # noqa: F821

    def test_skipped(self, nnx):
        if nnx.TROUBLE:
            pytest.skip("no reason")
