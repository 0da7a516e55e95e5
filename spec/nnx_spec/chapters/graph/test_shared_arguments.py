"""Shared arguments: an object that is passed at several places of which some are differentiated."""

import pytest

from nnx_spec import MUST, TESTED, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import each_graph_mode
from nnx_spec.oracles import snapshot


@clause(
    "GRA-014",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestCustomVJP::test_grad_inconsistent_aliasing",
)
class TestSharedArguments:
    """An object that is passed where a function is differentiated, and also where it is not, raises
    ValueError.

    So it is for a Variable and for a Module, wherever the places are. Where all of them are
    differentiated, or none is, the object may be shared.
    """

    @each_graph_mode
    @pytest.mark.parametrize("argnums", [0, 1, -2, (0, 2), (-2, 2)], ids=str)
    @pytest.mark.parametrize("bare", [False, True], ids=["Module", "Variable"])
    def test_refused(self, nnx, mode, argnums, bare):
        v = param(nnx, [1.0, 2.0])
        shared = v if bare else net(nnx, w=v)

        def loss(first, second, x):
            held = (first, second) if bare else (first.w, second.w)
            return (held[0][...] * held[1][...]).sum() * x

        before = snapshot(nnx, shared)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.grad(loss, argnums=argnums, **mode)(shared, shared, 2.0)
        assert snapshot(nnx, shared) == before
        by_x = nnx.grad(loss, argnums=2, **mode)(shared, shared, 2.0)
        assert float(by_x) == 5
