"""Messages: what the errors of Modules name."""

import pytest

from nnx_spec import OURS, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted


def named(change):
    """Returns the message of the error that a change raises."""
    with pytest.raises((TypeError, ValueError)) as caught:
        change()
    return str(caught.value)


def add_after_init(nnx):
    """Makes an object whose `__init__` puts an array into a list."""

    class Filled(nnx.Module):
        def __init__(self):
            self.layers = []
            self.layers.append(counted((2,)))

    return Filled()


def check_later(nnx):
    """Checks an object whose list has been given an array."""
    node = net(nnx, layers=[])
    node.layers.append(counted((2,)))
    nnx.check_pytree(node)


IN_STATIC_ATTRIBUTES = {
    "list": lambda nnx: setattr(net(nnx), "layers", [counted((2,))]),
    "known static": lambda nnx: setattr(net(nnx, layers="none"), "layers", counted((2,))),
    "annotated": lambda nnx: setattr(net(nnx), "layers", nnx.static(param(nnx, 1.0))),
    "annotation inside": lambda nnx: setattr(net(nnx), "layers", [nnx.data(1)]),
    "after init": add_after_init,
    "check_pytree": check_later,
}
"""Ways to give the attribute `layers` data that is static there."""

WITH_A_WAY_OUT = ("list", "known static", "after init", "check_pytree")
"""Those where `nnx.data` is the way out."""


@clause("MOD-023", SHOULD, OURS, source="whoever reads an error wants to know where to look")
class TestMessages:
    """The errors of Modules name the attribute, mode or value that they are about.

    For data in a static attribute they also say that `nnx.data` is a way out; for a static value
    that cannot be hashed, its attribute or its type is enough.
    """

    @pytest.mark.parametrize("case", IN_STATIC_ATTRIBUTES)
    def test_attributes(self, nnx, case):
        assert "layers" in named(lambda: IN_STATIC_ATTRIBUTES[case](nnx))

    @pytest.mark.parametrize("case", WITH_A_WAY_OUT)
    def test_ways_out(self, nnx, case):
        assert "nnx.data" in named(lambda: IN_STATIC_ATTRIBUTES[case](nnx))

    @pytest.mark.parametrize("graph", [False, True], ids=["tree", "graph"])
    def test_unknown_names(self, nnx, graph):
        model = net(nnx, w=param(nnx, 1.0))
        assert "zone" in named(lambda: model.set_attributes(zone=1))
        assert "zone" in named(lambda: nnx.view(model, zone=True, graph=graph))
        assert "zone" in named(lambda: nnx.with_attributes(model, zone=1, graph=graph))

    def test_unhashable_values(self, nnx):
        graphdef, _ = nnx.split(net(nnx, inner=net(nnx, w=param(nnx, 1.0), sizes={3})))
        message = named(lambda: hash(graphdef))
        assert [name for name in ("sizes", "set") if name in message] != [], message
