"""How objects are described in print."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx


class Net(nnx.Module):
    """A Module with whatever attributes it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Thing(nnx.Object):
    """An object that is no pytree."""


def test_short_objects_without_variables_take_a_line():
    assert repr(Net(n=1, name="a", inner=Net(f=None))) == "Net(n=1, name='a', inner=Net(f=None))"
    assert repr(nnx.List([1, "b"])) == "List(0: 1, 1: 'b')"
    assert repr(Net()) == "Net()"


def test_variables_take_lines_of_their_own_with_sizes():
    mean = nnx.BatchStat(jnp.zeros(2))
    net = Net(inner=Net(w=nnx.Param(np.zeros((500, 3), "float32")), n=1), mean=mean)
    assert repr(net) == (
        "Net(  # BatchStat: 2 (8 B), Param: 1,500 (6.0 KB), Total: 1,502 (6.0 KB)\n"
        "  inner=Net(  # Param: 1,500 (6.0 KB)\n"
        "    w=Param(value=array(shape=(500, 3), dtype=float32)),  # 1,500 (6.0 KB)\n"
        "    n=1,\n"
        "  ),\n"
        "  mean=BatchStat(value=Array([0., 0.], dtype=float32)),  # 2 (8 B)\n"
        ")"
    )


def test_containers_of_objects_are_shown_item_by_item():
    net = Net(
        table=nnx.Dict(a=nnx.Param(1)), rows=nnx.data([Net(n=1), {"k": (nnx.Param(2.0),)}]), ids=[1]
    )
    assert repr(net) == (
        "Net(  # Param: 2 (0 B)\n"
        "  table=Dict(  # Param: 1 (0 B)\n"
        "    a=Param(value=1),  # 1 (0 B)\n"
        "  ),\n"
        "  rows=[\n"
        "    Net(n=1),\n"
        "    {\n"
        "      'k': (\n"
        "        Param(value=2.0),  # 1 (0 B)\n"
        "      ),\n"
        "    },\n"
        "  ],\n"
        "  ids=[1],\n"
        ")"
    )


def test_long_objects_are_spread_over_lines():
    net = Net(first="a" * 50, second="b" * 50)
    assert repr(net) == f"Net(\n  first={'a' * 50!r},\n  second={'b' * 50!r},\n)"


def test_what_is_met_again_is_not_shown_again():
    net = Net(n=1)
    net.me = net
    assert repr(net) == "Net(n=1, me=...)"
    layer = Net(w=nnx.Param(jnp.zeros(2)))
    both = repr(Net(a=layer, b=layer, w=layer.w)).splitlines()
    assert both[0] == "Net(  # Param: 2 (8 B)"
    assert both[-3:] == [
        "  b=...,",
        "  w=Param(value=Array([0., 0.], dtype=float32)),  # 2 (8 B)",
        ")",
    ]


def test_sharing_costs_no_time():
    node = Net(w=nnx.Param(jnp.zeros(2)))
    for _ in range(60):
        node = Net(a=node, b=node)
    assert len(repr(node)) < 20_000


@pytest.mark.parametrize(
    ("elements", "shown"),
    [
        (249, "249 (996 B)"),
        (250, "250 (1.0 KB)"),
        (67_076_100, "67,076,100 (268.3 MB)"),
        (10**9, "1,000,000,000 (4.0 GB)"),
        (10**12, "1,000,000,000,000 (4.0 TB)"),
    ],
)
def test_units(elements, shown):
    net = Net(w=nnx.Param(jax.ShapeDtypeStruct((elements,), "float32")))
    assert repr(net).splitlines()[0] == f"Net(  # Param: {shown}"


def test_traced_and_other_objects():
    shown = []

    def f(x):
        thing = Thing()
        thing.w = nnx.Param(x)
        thing.arrays = [x]
        shown.append(repr(thing).splitlines())

    jax.eval_shape(f, jnp.zeros(3))
    assert shown[0][0] == "Thing(  # Param: 3 (12 B)"
    assert shown[0][1].endswith(",  # 3 (12 B)")
