"""Aliases: what tree mode does with one Variable at several places of a transform's arguments."""

import pytest
from hypothesis import assume, given

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.functional.sharing import refusal
from nnx_spec.chapters.transforms.modes import each_named
from nnx_spec.chapters.tree.calls import ALIASES, CALLS, LOOPS, OUTPUTS, TREE, pair
from nnx_spec.oracles import names_path, objects, snapshot
from nnx_spec.plans import VariablePlan, build
from nnx_spec.strategies import shared_graphs, trees


def check_refusal(nnx, call, args):
    """Checks that a call raises ValueError, and leaves the arguments alone."""
    before = [snapshot(nnx, arg, identities=True) for arg in args]
    with pytest.raises(ValueError):  # noqa: PT011
        call()
    assert [snapshot(nnx, arg, identities=True) for arg in args] == before


def unnamed(call, paths):
    """Lists the paths that the ValueError of a call does not name."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        call()
    return [path for path in paths if not names_path(str(raised.value), path)]


def twice_left(nnx):
    """Makes a body of a loop that returns the first Module's Variable in both Modules."""
    return lambda carry: (carry[0], net(nnx, right=carry[0].left))


def shared_in(plan):
    """Lists what is shared in a plan, with its paths."""
    return [(item, paths) for item, paths in objects(plan) if len(paths) > 1]


@clause("TREE-001", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#simple-transforms")
class TestAliases:
    """In tree mode a transform refuses a Variable that stands at several places with ValueError.

    The places may be in one argument or in several, in an argument and in the output, or in the
    output alone. A loop may return what it carries at the place where it got it. The arguments are
    as before.
    """

    @pytest.mark.parametrize("alias", ALIASES)
    @each_named(CALLS)
    def test_arguments(self, nnx, transform, alias):
        args = ALIASES[alias][0](nnx)
        check_refusal(nnx, lambda: CALLS[transform](nnx, lambda a, b: 0.0, args), args)

    @pytest.mark.parametrize("alias", ALIASES)
    @each_named(LOOPS)
    def test_what_loops_carry(self, nnx, transform, alias):
        args = ALIASES[alias][0](nnx)
        check_refusal(nnx, lambda: LOOPS[transform](nnx, lambda carry: carry, args), args)

    @pytest.mark.parametrize("output", OUTPUTS)
    @each_named(CALLS)
    def test_outputs(self, nnx, transform, output):
        f = OUTPUTS[output][0]
        args = pair(nnx, param(nnx, [1, 2]), param(nnx, [3, 4]))
        check_refusal(nnx, lambda: CALLS[transform](nnx, lambda a, b: f(nnx, a, b), args), args)

    @each_named(LOOPS)
    def test_what_loops_return(self, nnx, transform):
        args = net(nnx, left=param(nnx, [1, 2])), net(nnx, right=param(nnx, [3, 4]))
        check_refusal(nnx, lambda: LOOPS[transform](nnx, twice_left(nnx), args), args)

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
        assume(any(isinstance(item, VariablePlan) for item, _ in shared_in(plan)))
        error = refusal(nnx.jit(lambda node: None, **TREE), build(nnx, plan))
        assert type(error) is ValueError, f"it raised {type(error).__name__}, not ValueError"

    @given(plan=trees())
    def test_any_tree_is_taken(self, nnx, plan):
        nnx.eval_shape(lambda node: None, build(nnx, plan), **TREE)


@clause("TREE-013", SHOULD, OURS, source="who reads the error has to find every place")
class TestEveryPlaceIsNamed:
    """The error about a Variable that stands at several places in tree mode names every path."""

    @pytest.mark.parametrize("alias", ALIASES)
    @pytest.mark.parametrize("transform", ["jit", "vmap", "scan", "cond"])
    def test_arguments(self, nnx, transform, alias):
        make, paths = ALIASES[alias]
        args = make(nnx)
        assert unnamed(lambda: CALLS[transform](nnx, lambda a, b: 0.0, args), paths) == []

    @pytest.mark.parametrize("alias", ALIASES)
    @pytest.mark.parametrize("transform", LOOPS)
    def test_what_loops_carry(self, nnx, transform, alias):
        make, paths = ALIASES[alias]
        args = make(nnx)
        assert unnamed(lambda: LOOPS[transform](nnx, lambda carry: carry, args), paths) == []

    @pytest.mark.parametrize("output", OUTPUTS)
    @pytest.mark.parametrize("transform", ["jit", "vmap", "scan", "cond"])
    def test_outputs(self, nnx, transform, output):
        f, paths = OUTPUTS[output]
        args = pair(nnx, param(nnx, [1, 2]), param(nnx, [3, 4]))
        call = CALLS[transform]
        assert unnamed(lambda: call(nnx, lambda a, b: f(nnx, a, b), args), paths) == []

    @pytest.mark.parametrize("transform", LOOPS)
    def test_what_loops_return(self, nnx, transform):
        args = net(nnx, left=param(nnx, [1, 2])), net(nnx, right=param(nnx, [3, 4]))
        paths = [("left",), ("right",)]
        assert unnamed(lambda: LOOPS[transform](nnx, twice_left(nnx), args), paths) == []

    @given(plan=shared_graphs())
    def test_any_graph(self, nnx, plan):
        """Names all paths of something that is shared: a Variable, or the Module that holds it."""
        shared = shared_in(plan)
        assume(any(isinstance(item, VariablePlan) for item, _ in shared))
        error = str(refusal(nnx.jit(lambda node: None, **TREE), build(nnx, plan)))
        missing = [[path for path in paths if not names_path(error, path)] for _, paths in shared]
        assert [] in missing
