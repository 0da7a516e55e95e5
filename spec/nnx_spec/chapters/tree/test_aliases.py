"""Aliases: what tree mode does with one Variable at several places of a transform's arguments."""

import pytest
from hypothesis import assume, given

from nnx_spec import MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.sharing import refusal
from nnx_spec.chapters.transforms.modes import each_named
from nnx_spec.chapters.tree.calls import ALIASES, CALLS, LOOPS, OUTPUTS, TREE, pair
from nnx_spec.oracles import names_path, objects, snapshot
from nnx_spec.plans import VariablePlan, build
from nnx_spec.strategies import shared_graphs, trees


def check_refusal(nnx, call, args, paths):
    """Checks that a call raises ValueError, names every path, and leaves the arguments alone."""
    before = [snapshot(nnx, arg, identities=True) for arg in args]
    with pytest.raises(ValueError, match=str(paths[0][-1])) as raised:
        call()
    assert [path for path in paths if not names_path(str(raised.value), path)] == []
    assert [snapshot(nnx, arg, identities=True) for arg in args] == before


@clause("TREE-001", MUST, source="flip/5310-tree-mode-nnx#simple-transforms")
class TestAliases:
    """In tree mode a transform refuses a Variable that stands at several places with ValueError.

    The places may be in one argument or in several, in an argument and in the output, or in the
    output alone; the message names every path. A loop may return what it carries at the place where
    it got it. The arguments are as before.
    """

    @pytest.mark.parametrize("alias", ALIASES)
    @each_named(CALLS)
    def test_arguments(self, nnx, transform, alias):
        make, paths = ALIASES[alias]
        args = make(nnx)
        check_refusal(nnx, lambda: CALLS[transform](nnx, lambda a, b: 0.0, args), args, paths)

    @pytest.mark.parametrize("alias", ALIASES)
    @each_named(LOOPS)
    def test_what_loops_carry(self, nnx, transform, alias):
        make, paths = ALIASES[alias]
        args = make(nnx)
        check_refusal(nnx, lambda: LOOPS[transform](nnx, lambda carry: carry, args), args, paths)

    @pytest.mark.parametrize("output", OUTPUTS)
    @each_named(CALLS)
    def test_outputs(self, nnx, transform, output):
        f, paths = OUTPUTS[output]
        args = pair(nnx, param(nnx, [1, 2]), param(nnx, [3, 4]))
        call = CALLS[transform]
        check_refusal(nnx, lambda: call(nnx, lambda a, b: f(nnx, a, b), args), args, paths)

    @each_named(LOOPS)
    def test_what_loops_return(self, nnx, transform):
        def body(carry):
            return carry[0], net(nnx, right=carry[0].left)

        args = net(nnx, left=param(nnx, [1, 2])), net(nnx, right=param(nnx, [3, 4]))
        paths = [("left",), ("right",)]
        check_refusal(nnx, lambda: LOOPS[transform](nnx, body, args), args, paths)

    @each_named(LOOPS)
    def test_carries_are_taken(self, nnx, transform):
        args = net(nnx, left=param(nnx, [10, 2])), net(nnx, right=param(nnx, [3, 4]))

        def body(carry):
            carry[0].left[...] -= 1
            return carry

        LOOPS[transform](nnx, body, args)
        left = 9 if transform == "while_loop" else 8
        assert args[0].left[...].tolist() == [left, left - 8]

    @given(plan=shared_graphs())
    def test_any_graph(self, nnx, plan):
        found = objects(plan)
        shared = [paths for _, paths in found if len(paths) > 1]
        assume(any(isinstance(item, VariablePlan) and len(paths) > 1 for item, paths in found))
        error = refusal(nnx.jit(lambda node: None, **TREE), build(nnx, plan))
        assert isinstance(error, ValueError)
        assert any(all(names_path(str(error), path) for path in paths) for paths in shared)

    @given(plan=trees())
    def test_any_tree_is_taken(self, nnx, plan):
        nnx.eval_shape(lambda node: None, build(nnx, plan), **TREE)
