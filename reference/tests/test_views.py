"""Modes and views."""

import jax.numpy as jnp
import pytest

import nnx_reference as nnx


class Dropout(nnx.Module):
    def __init__(self, rngs):
        self.deterministic = False
        self.rngs = rngs

    def set_view(self, deterministic=None):
        if deterministic is not None:
            self.deterministic = deterministic


class Norm(nnx.Module):
    def __init__(self):
        self.use_running_average = False
        self.mean = nnx.BatchStat(jnp.zeros(2))

    def set_view(self, use_running_average=None):
        if use_running_average is not None:
            self.use_running_average = use_running_average


class Net(nnx.Module):
    def __init__(self):
        self.blocks = nnx.List([nnx.Dict(drop=Dropout(nnx.Rngs(0))), Norm()])
        self.norm = Norm()
        self.deterministic = None


def modes(net):
    drop, norm = net.blocks[0]["drop"], net.blocks[1]
    return (
        net.deterministic,
        drop.deterministic,
        norm.use_running_average,
        net.norm.use_running_average,
    )


@pytest.fixture
def net():
    return Net()


def test_train_and_eval_go_through_the_whole_tree(net):
    net.eval()
    assert modes(net) == (True, True, True, True)
    net.train()
    assert modes(net) == (False, False, False, False)
    net.eval(deterministic=None)
    assert modes(net) == (None, None, True, True)


def test_train_needs_no_module_that_knows_it():
    nnx.Linear(2, 3, rngs=nnx.Rngs(0)).train()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), (5, 5)),
        ((Dropout,), (None, 5)),
        ((nnx.Not(Dropout),), (5, False)),
        ((Dropout, Net), (5, 5)),
        ((lambda path, module: path == (),), (5, False)),
        ((nnx.PathContains("drop"),), (None, 5)),
    ],
)
def test_attributes_are_set_where_filters_select(net, filters, expected):
    net.set_attributes(*filters, deterministic=5)
    assert modes(net)[:2] == expected


def test_an_attribute_that_is_nowhere_changes_nothing(net):
    with pytest.raises(ValueError, match="nowhere"):
        net.set_attributes(deterministic=5, nowhere=1)
    with pytest.raises(ValueError, match="use_running_average"):
        net.set_attributes(Dropout, use_running_average=True)
    assert modes(net) == (None, False, False, False)
    net.set_attributes(deterministic=5, nowhere=1, raise_if_not_found=False)
    assert modes(net)[:2] == (5, 5)
    assert not hasattr(net, "nowhere")


def test_a_default_stream_is_no_attribute(net):
    net.eval()
    assert set(vars(net.blocks[0]["drop"].rngs)) == {"default"}


@pytest.mark.parametrize("graph", [False, True])
def test_views_share_variables_and_leave_the_original_alone(net, graph):
    view = nnx.view(net, graph=graph, deterministic=True, use_running_average=True)
    assert modes(view) == (None, True, True, True)
    attributes = nnx.with_attributes(net, graph=graph, deterministic=7, only=nnx.Not(Dropout))
    assert modes(attributes) == (7, False, False, False)
    assert modes(net) == (None, False, False, False)
    for other in (view, attributes):
        assert type(other) is Net
        assert other.norm.mean is net.norm.mean
        assert other.blocks[0]["drop"].rngs.default.key is net.blocks[0]["drop"].rngs.default.key


@pytest.mark.parametrize("change", [nnx.view, nnx.with_attributes])
def test_an_unknown_mode_is_named(net, change):
    with pytest.raises(ValueError, match="nowhere"):
        change(net, nowhere=1)
    assert modes(change(net, nowhere=1, raise_if_not_found=False)) == modes(net)
