"""Carries that hold arrays in objects: changed in place, replaced, and States."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nnx_spec import CONVENTION, MUST, SHOULD, TESTED, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.transforms.modes import MODES, case, each_mode, each_named
from nnx_spec.oracles import assert_no_tracers, snapshot, state_items
from nnx_spec.plans import classes

STEPS = 3
X = np.float32([1, -2])
MOMENTUM = optax.sgd(0.5, momentum=0.5)


def scan(nnx, body, carry, mode):
    """Calls a function of a carry again and again."""
    return nnx.scan(lambda c, x: (body(c), x), **mode)(carry, jnp.arange(STEPS))[0]


def while_loop(nnx, body, carry, mode):
    """Likewise."""

    def one(pair):
        return body(pair[0]), pair[1] + 1

    return nnx.while_loop(lambda pair: pair[1] < STEPS, one, (carry, 0), **mode)[0]


def fori_loop(nnx, body, carry, mode):
    """Likewise."""
    return nnx.fori_loop(0, STEPS, lambda n, c: body(c), carry, **mode)


LOOPING = {"scan": scan, "while_loop": while_loop, "fori_loop": fori_loop}
"""Ways to call a function of a carry again and again."""

each_loop = each_named(LOOPING, "loop")


def tree_of(nnx, array):
    """Makes a Pytree with an array and a static value."""
    tree = classes(nnx).Tree()
    tree.a, tree.size = nnx.data(array), 3
    return tree


def advance(array):
    """Computes the next array."""
    return array * 2 + 1


def learn(state):
    """Computes the next state of an optimizer."""
    return MOMENTUM.update(jnp.asarray(X), state)[1]


def optimizer_of(nnx, state):
    """Makes a List with the state of an optimizer."""
    return nnx.List([nnx.data(state)])


def state_of():
    """Makes the first state of an optimizer."""
    return MOMENTUM.init(jnp.asarray(X))


HELD = {
    "Pytree": (lambda nnx: tree_of(nnx, jnp.asarray(X)), lambda tree: tree.a),
    "List": (lambda nnx: nnx.List([jnp.asarray(X)]), lambda items: items[0]),
    "optimizer state": (lambda nnx: optimizer_of(nnx, state_of()), lambda items: items[0]),
}
"""Objects that hold arrays: how to make one, and to read what it holds."""

REPLACE = {
    "Pytree": lambda nnx, tree: tree_of(nnx, advance(tree.a)),
    "List": lambda nnx, items: nnx.List([advance(items[0])]),
    "optimizer state": lambda nnx, items: optimizer_of(nnx, learn(items[0])),
}
"""Steps that return others of the same structure."""

REPLACED = (
    "scan-Pytree",
    "while_loop-Pytree",
    "fori_loop-Pytree",
    "scan-List",
    "fori_loop-optimizer state",
)
"""Loops, with what is replaced in them."""


def repeated(value, following):
    """Applies a function as often as a loop does."""
    for _ in range(STEPS):
        value = following(value)
    return value


def numbers(tree):
    """Lists the numbers in a pytree of arrays, rounded."""
    return [np.round(np.asarray(leaf), 4).tolist() for leaf in jax.tree.leaves(tree)]


@clause("TRX-042", MUST, CONVENTION, source="jax.lax.scan")
class TestCarriedArrays:
    """Loops carry objects with arrays in their attributes, which every step may put others into.

    It may be an optimizer's state, in a List. Each step sees what the step before has left, and so
    does the caller in the carry that is returned. The objects that were passed in hold what they
    held or, with graph updates, what the last step has left. A step may also return another object
    of the same structure; with graph updates, that may be refused instead.
    """

    @each_mode
    @each_loop
    def test_changed(self, nnx, mode, loop):
        def body(carry):
            tree, items, optimizer = carry["tree"], carry["items"], carry["optimizer"]
            tree.v[...] += tree.a
            tree.a = advance(tree.a)
            items[0] = advance(items[0])
            optimizer[0] = nnx.data(learn(optimizer[0]))
            return carry | {"x": carry["x"] + tree.v[...]}

        v = param(nnx, [0.0, 0.0])
        tree, items = tree_of(nnx, jnp.asarray(X)), nnx.List([jnp.asarray(X)])
        tree.v = v
        optimizer = optimizer_of(nnx, state_of())
        carry = {"tree": tree, "items": items, "optimizer": optimizer, "x": jnp.zeros(2)}
        last = LOOPING[loop](nnx, body, carry, mode)
        assert last["tree"].v is v, "the carry that is returned has another Variable"
        found = [x.tolist() for x in (last["tree"].a, last["items"][0], v[...], last["x"])]
        assert found == [[15, -9], [15, -9], [11, -10], [16, -17]]
        assert numbers(last["optimizer"][0]) == numbers(repeated(state_of(), learn))
        assert_no_tracers(nnx, tree, items, optimizer, last)
        expected = (X.tolist(), [15, -9]) if mode["graph_updates"] else (X.tolist(),)
        assert tree.a.tolist() in expected

    @each_mode
    @each_named(REPLACED, "use")
    def test_replaced(self, nnx, mode, use):
        loop, kind = use.split("-")
        make, read = HELD[kind]
        given = make(nnx)
        before = snapshot(nnx, given)
        try:
            last = LOOPING[loop](nnx, lambda held: REPLACE[kind](nnx, held), given, mode)
        except (TypeError, ValueError):
            assert mode["graph_updates"], "the carry is refused without graph updates"
        else:
            following = learn if kind == "optimizer state" else advance
            assert numbers(read(last)) == numbers(repeated(read(make(nnx)), following))
            assert_no_tracers(nnx, last)
        assert snapshot(nnx, given) == before

    @each_mode
    def test_no_step(self, nnx, mode):
        def body(number, tree):
            tree.a = advance(tree.a)
            return tree

        tree = tree_of(nnx, jnp.asarray(X))
        last = nnx.fori_loop(2, 2, body, tree, **mode)
        assert (last.a.tolist(), tree.a.tolist()) == (X.tolist(), X.tolist())


@clause("TRX-044", SHOULD, CONVENTION, source="jax.lax.fori_loop")
@each_mode
@each_loop
def test_states_are_carried(nnx, mode, loop):
    """Loops carry a State that each step maps to another one, as `jax.tree.map` does.

    What is returned is another State, of Variables of the same classes and metadata. The State that
    was passed in, and the object that it came from, are unchanged.
    """
    model = net(nnx, w=param(nnx, X, tag="w"), inner=net(nnx, m=nnx.BatchStat(jnp.float32(1))))
    state = nnx.state(model, graph=mode["graph"])
    before = snapshot(nnx, model)

    def body(state):
        return jax.tree.map(advance, state)

    last = LOOPING[loop](nnx, body, state, mode)
    assert snapshot(nnx, model) == before
    found = {path: (type(v), v.get_value().tolist()) for path, v in state_items(last)}
    assert found == {("w",): (nnx.Param, [15, -9]), ("inner", "m"): (nnx.BatchStat, 15)}
    assert last["w"].tag == "w"
    kept = {path: v.get_value().tolist() for path, v in state_items(state)}
    assert kept == {("w",): X.tolist(), ("inner", "m"): 1}


def another_variable(nnx, v):
    """Returns another Variable than the one that was passed."""
    return nnx.Param(v[...] + 1)


def another_module(nnx, model):
    """Returns another Module with another Variable."""
    return net(nnx, v=nnx.Param(model.v[...] + 1))


def another_attribute(nnx, model):
    """Puts another Variable into the Module that was passed."""
    model.v = nnx.Param(model.v[...] + 1)
    return model


REFUSED = {
    "scan-Variable": (another_variable, ("tree-mode", "graph-mode")),
    "scan-Module": (another_module, ("graph-mode", "graph-updates")),
    "while_loop-attribute": (another_attribute, tuple(MODES)),
}
"""Steps that put another Variable in the place of the one that they were passed, and modes."""


@clause(
    "TRX-046",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestScan::test_scan_carry_identity_error",
)
@pytest.mark.parametrize(
    ("use", "mode"),
    [
        case(use, MODES[name], id=f"{use}-{name}", mode=MODES[name], transform=use)
        for use, (_, names) in REFUSED.items()
        for name in names
    ],
)
def test_other_variables_are_refused(nnx, use, mode):
    """A step of a loop that puts another Variable in the place of one raises ValueError.

    Nothing is changed. To write to the Variable that is there, and to return it, is allowed.
    """
    step, loop = REFUSED[use][0], LOOPING[use.split("-")[0]]
    v = param(nnx, [1.0, 2.0])
    carry = v if use == "scan-Variable" else net(nnx, v=v)
    before = snapshot(nnx, carry)
    with pytest.raises(ValueError):  # noqa: PT011
        loop(nnx, lambda carry: step(nnx, carry), carry, mode)
    assert snapshot(nnx, carry) == before

    def write(carry):
        held = carry if isinstance(carry, nnx.Variable) else carry.v
        held[...] += 1
        return carry

    loop(nnx, write, carry, mode)
    assert v[...].tolist() == [1 + STEPS, 2 + STEPS]
