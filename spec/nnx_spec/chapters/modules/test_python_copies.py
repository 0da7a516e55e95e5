"""Python's own ways to copy Modules."""

import copy
import pickle
import sys

import jax
import pytest
from hypothesis import given

from nnx_spec import CONVENTION, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import nodes, snapshot, state_items, variables
from nnx_spec.plans import build, classes
from nnx_spec.strategies import graphs

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda node: pickle.loads(pickle.dumps(node)),
}
"""Ways to copy an object with all that it holds."""


@pytest.fixture
def importable(nnx, monkeypatch):
    """Makes the user's classes importable, as `pickle` needs them."""
    found = vars(classes(nnx))
    before = {cls: (cls.__module__, cls.__qualname__) for cls in found.values()}
    for name, cls in found.items():
        cls.__module__, cls.__qualname__ = __name__, name
        monkeypatch.setattr(sys.modules[__name__], name, cls, raising=False)
    yield
    for cls, names in before.items():
        cls.__module__, cls.__qualname__ = names


@clause("MOD-019", MUST, CONVENTION, source="copy.deepcopy")
@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize("way", COPIES)
class TestPythonCopies:
    """`copy.deepcopy` and `pickle` of a Module give an equal, independent object.

    Equal in classes, attributes, Variables with values and metadata, arrays, static values and
    sharing, cycles included; which attributes are data is kept. Nothing that is done to the copy
    shows in the original.
    """

    @given(plan=graphs(sharing=True, cycles=True))
    def test_equal_and_independent(self, nnx, way, plan):
        original = build(nnx, plan)
        before = snapshot(nnx, original, identities=True)
        other = COPIES[way](original)
        assert snapshot(nnx, other) == snapshot(nnx, build(nnx, plan))
        assert snapshot(nnx, original, identities=True) == before
        old = {id(x) for x in (*nodes(nnx, original), *variables(nnx, original))}
        assert not old & {id(x) for x in (*nodes(nnx, other), *variables(nnx, other))}

    def test_status_of_attributes(self, nnx, way):
        original = net(nnx, a=nnx.data(1), b=nnx.static("s"), c=counted((2,)), d=nnx.data([2]))
        original.items = nnx.List([nnx.data(3), 4])
        original.table = nnx.Dict(k=nnx.data(5), l=6)
        other = COPIES[way](original)
        assert jax.tree.structure(other) == jax.tree.structure(original)
        other.a, other.b = 7, 8
        other.items.append(param(nnx, 9.0))
        assert [x for x in jax.tree.leaves(other) if isinstance(x, int)] == [7, 2, 3, 5]
        assert [path for path, _ in state_items(nnx.state(other, nnx.Param))] == [("items", 2)]
        with pytest.raises(ValueError, match="b"):
            other.b = counted((1,))

    def test_writes_to_the_copy(self, nnx, way):
        original = net(nnx, w=param(nnx, [1, 2], tag="t"), sizes=[1, {"k": [2]}])
        original.tied, original.inner = original.w, net(nnx, n=1)
        before = snapshot(nnx, original, identities=True)
        other = COPIES[way](original)
        other.w[0] = 9.0
        other.w.set_metadata("tag", "changed")
        other.sizes[1]["k"].append(3)
        other.inner.n = 2
        del other.inner
        assert snapshot(nnx, original, identities=True) == before
        assert original.sizes == [1, {"k": [2]}]
        assert other.tied.get_value().tolist() == [9, 2]
        assert other.sizes == [1, {"k": [2, 3]}]

    def test_copies_work_as_modules(self, nnx, way):
        original = net(nnx, w=param(nnx, 2.0, tag="t"), n=3)
        other = COPIES[way](original)
        assert nnx.graphdef(other) == nnx.graphdef(original)
        doubled = jax.tree.map(lambda a, b: a + b, original, other)
        assert float(doubled.w.get_value()) == 4

        def change(node):
            node.n = 5
            return node

        assert jax.jit(change)(other).n == 5
