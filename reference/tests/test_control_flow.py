"""cond, switch, while_loop, fori_loop: branches and loops, what they carry, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx

MODES = {
    "updates": {"graph": True, "graph_updates": True},
    "graph-mode": {"graph": True, "graph_updates": False},
    "tree-mode": {"graph": False, "graph_updates": False},
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
UPDATES = MODES["updates"]
each_flag = pytest.mark.parametrize("flag", ["plain", "hijax", "ref"])


class Net(nnx.Module):
    """A module with a parameter and a count."""

    def __init__(self, w=1.0, flag="plain"):
        flags = {} if flag == "plain" else {flag: True}
        self.w = nnx.Param(jnp.float32(w), tag="red", **flags)
        self.n = nnx.BatchStat(jnp.int32(0), **flags)


def double(net):
    net.w[...] *= 2
    return net.w[...] + 0


def count(net):
    net.n[...] += 1
    return net.w[...] + 10


def values(net):
    return float(net.w[...]), int(net.n[...])


@each_mode
@each_flag
def test_only_the_chosen_branch_runs(mode, flag):
    net = Net(3, flag)
    assert nnx.cond(True, double, count, net, **mode) == 6
    assert values(net) == (6, 0)
    assert nnx.cond(jnp.array(False), double, count, net, **mode) == 16
    assert values(net) == (6, 1)
    assert nnx.switch(7, [double, count, lambda net: net.w * 0], net, **mode) == 0
    assert nnx.switch(jnp.int32(-1), [double, count], net, **mode) == 12
    assert nnx.jit(lambda n, net: nnx.switch(n, [double, count], net, **mode), **mode)(1, net) == 22
    assert values(net) == (12, 2)


@each_mode
def test_what_no_chosen_branch_writes_stays_the_same_array(mode):
    net = Net()
    w, n = net.w[...], net.n[...]
    nnx.cond(True, double, count, net, **mode)
    assert net.n[...] is n
    assert net.w[...] is not w
    w = net.w[...]
    nnx.jit(lambda p, net: nnx.cond(p, count, count, net, **mode), **mode)(True, net)
    assert (net.w[...] is w, net.n[...] == 1) == (True, True)


@pytest.mark.parametrize("mode", [MODES["updates"], MODES["graph-mode"]], ids=["updates", "graph"])
def test_branches_return_objects(mode):
    net = Net()

    def make(net):
        double(net)
        pair = nnx.List([nnx.Cache(net.w[...])] * 2)
        return {"net": net, "pair": pair}

    def make_other(net):
        return {"net": net, "pair": nnx.List([nnx.Cache(-net.w[...])] * 2)}

    made = nnx.cond(False, make, make_other, net, **mode)
    assert made["net"] is net
    assert made["pair"][0] is made["pair"][1]
    assert (made["pair"][0][...], values(net)) == (-1, (1, 0))
    assert nnx.cond(True, make, make_other, net, **mode)["pair"][0][...] == 2


def test_branches_that_make_the_same_change():
    def grow(net):
        net.extra = nnx.Cache(net.w[...])
        net.raw = jnp.float32(5)

    def grow_too(net):
        net.extra = nnx.Cache(-net.w[...])
        net.raw = jnp.float32(7)

    net = Net()
    nnx.cond(False, grow, grow_too, net, **UPDATES)
    assert (net.extra[...], net.raw) == (-1, 7)
    nnx.cond(True, lambda net: setattr(net, "raw", net.raw + 1), lambda net: None, net, **UPDATES)
    assert net.raw == 8
    nnx.cond(False, lambda net: setattr(net, "raw", net.raw + 1), lambda net: None, net, **UPDATES)
    assert net.raw == 8


BAD_BRANCHES = {
    "attribute": (lambda net: setattr(net, "extra", nnx.Param(1.0)), r"net\.extra"),
    "deleted": (lambda net: delattr(net, "n"), r"net\.n"),
    "replaced": (lambda net: setattr(net, "w", nnx.Param(net.w[...], tag="red")), r"net\.w"),
    "metadata": (lambda net: net.w.set_metadata(tag="blue"), r"net\.w.*blue"),
    "shape": (lambda net: net.w.set_value(jnp.ones(2)), r"net\.w"),
    "dtype": (lambda net: net.w.set_value(jnp.int32(1)), r"net\.w"),
    "shared": (lambda net: setattr(net, "n", net.w), r"net\.n"),
}


@pytest.mark.parametrize("name", BAD_BRANCHES)
@pytest.mark.parametrize("pred", [True, False])
def test_branches_that_differ_are_refused(name, pred):
    change, message = BAD_BRANCHES[name]
    net = Net()
    w, n = net.w, net.n
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        nnx.cond(pred, lambda net: double(net) * 0, lambda net: (change(net), 0.0)[1], net)
    assert "false_fun" in str(caught.value)
    assert (net.w is w, net.n is n, w.tag, values(net)) == (True, True, "red", (1, 0))


def test_outputs_that_differ_are_refused():
    net = Net()
    with pytest.raises(TypeError, match=r"branches\[0\].*branches\[2\]"):
        nnx.switch(0, [double, double, lambda net: (double(net), 1)], net)
    with pytest.raises(ValueError, match="<output>"):
        nnx.cond(True, lambda net: net, lambda net: Net(), net, **UPDATES)
    with pytest.raises(TypeError, match="float32"):
        nnx.cond(True, double, lambda net: 1, net)
    with pytest.raises(ValueError, match="no branches"):
        nnx.switch(0, [], net)
    with pytest.raises(ValueError, match=r"net\.w.*<output>\.w"):
        nnx.cond(True, lambda net: net, lambda net: net, net, graph=False)
    with pytest.raises(nnx.errors.TraceContextError, match="Param"):
        nnx.cond(True, lambda: double(net), lambda: net.w[...])
    assert values(net) == (1, 0)


def step(state):
    net, x = state
    net.n[...] += 1
    net.w[...] = net.w[...] * 2 + x
    return net, x + net.w[...]


@each_mode
@each_flag
def test_loops_equal_the_python_loop(mode, flag):
    expected = (Net(), jnp.float32(1))
    for _ in range(3):
        expected = step(expected)
    net = Net(flag=flag)
    carry = nnx.while_loop(lambda s: s[0].n[...] < 3, step, (net, jnp.float32(1)), **mode)
    assert (carry[0] is net, carry[1], values(net)) == (True, expected[1], values(expected[0]))
    net = Net(flag=flag)
    carry = nnx.fori_loop(2, 5, lambda i, s: step(s), (net, jnp.float32(1)), **mode)
    assert (carry[0] is net, carry[1], values(net)) == (True, expected[1], values(expected[0]))


@each_mode
def test_loops_leave_alone_what_no_step_writes(mode):
    net = Net(2)
    w = net.w[...]

    def body(i, state):
        net, total = state
        net.n[...] += i
        return net, total + net.w[...]

    assert nnx.fori_loop(0, 4, body, (net, 0.0), **mode)[1] == 8
    assert (net.w[...] is w, int(net.n[...])) == (True, 6)


@each_mode
@each_flag
def test_a_condition_may_write(mode, flag):
    def proceed(net):
        net.n[...] += 1
        return net.n[...] < 4

    def body(net):
        double(net)
        return net

    net = Net(flag=flag)
    assert nnx.while_loop(proceed, body, net, **mode) is net
    assert values(net) == (8, 4)


@each_mode
def test_captured_references_in_loops(mode):
    seen = nnx.BatchStat(jnp.int32(0), hijax=True)

    def body(x):
        seen[...] += 1
        return x + 1

    assert nnx.while_loop(lambda x: seen[...] < 3, body, 0, **mode) == 3
    assert seen[...] == 3


BAD_STEPS = {name: BAD_BRANCHES[name] for name in BAD_BRANCHES if name != "shared"} | {
    "no raw": (lambda net: delattr(net, "raw"), r"\.raw was data"),
    "static": (lambda net: setattr(net, "mode", "test"), r"mode='test'"),
}


@each_mode
@pytest.mark.parametrize("name", BAD_STEPS)
@pytest.mark.parametrize("loop", ["while_loop", "fori_loop", "scan"])
def test_steps_that_change_structure_are_refused(mode, name, loop):
    change, message = BAD_STEPS[name]
    net = Net()
    net.raw, net.mode = jnp.float32(1), "train"

    def body(state):
        double(state["net"])
        change(state["net"])
        return state

    loops = {
        "while_loop": lambda s: nnx.while_loop(lambda s: s["net"].w[...] < 4, body, s, **mode),
        "fori_loop": lambda s: nnx.fori_loop(0, 2, lambda i, s: body(s), s, **mode),
        "scan": lambda s: nnx.scan(lambda s, x: (body(s), x), **mode)(s, jnp.arange(2)),
    }
    with pytest.raises((TypeError, ValueError), match=message.replace(r"net\.", r"\bnet'\]\.")):
        loops[loop]({"net": net})
    assert (net.raw, net.mode, values(net), net.w.tag) == (1, "train", (1, 0), "red")


def test_bad_loops_are_refused():
    net = Net()
    with pytest.raises(ValueError, match=r"the carry\[0\]\.n is another BatchStat"):
        nnx.fori_loop(0, 2, lambda i, s: (nnx.clone(s[0]), s[1]), (net, 0))
    with pytest.raises(TypeError, match=r"they differ at the carry\[1\]"):
        nnx.while_loop(lambda s: True, lambda s: (s[0],), (net, 0))
    with pytest.raises(ValueError, match=r"cond_fun of while_loop.*Net\(extra=1\)"):
        nnx.while_loop(lambda net: setattr(net, "extra", 1) or True, lambda net: net, net)
    with pytest.raises(TypeError, match="boolean"):
        nnx.while_loop(lambda net: net.w[...], lambda net: net, net)
    with pytest.raises(TypeError):
        nnx.fori_loop(0, 2.5, lambda i, net: net, net)
    assert not hasattr(net, "extra")


def test_loops_take_what_the_namesakes_take():
    def add(x):
        return x + jnp.float32(0.5)

    assert nnx.while_loop(lambda x: x < 2, add, 0) == jax.lax.while_loop(lambda x: x < 2, add, 0)
    dtypes = []

    def note(i, x):
        dtypes.append(jax.typeof(i))
        return x + 1

    for lower, upper in ((0, 3), (np.int8(0), np.int8(3)), (jnp.uint8(1), jnp.uint8(3))):
        for loop in (nnx.fori_loop, jax.lax.fori_loop):
            assert loop(lower, upper, note, 0.0) == upper - lower
        jitted = jax.jit(lambda *bounds: nnx.fori_loop(*bounds, note, 0.0))
        assert jitted(lower, upper) == upper - lower
    assert len({str(kind) for kind in dtypes}) == 3
    assert jax.grad(lambda x: nnx.fori_loop(0, 3, lambda i, y: y * x, 1.0))(2.0) == 12
    assert nnx.fori_loop(0, 4, lambda i, x: x + i, 0, unroll=2) == 6


def test_functions_are_traced_once():
    calls = []

    def noting(name, function):
        def note(*args):
            calls.append(name)
            return function(*args)

        return note

    branches = [noting("double", double), noting("count", count)]
    proceed, body = noting("cond", lambda s: s[0].n[...] < 3), noting("body", step)
    fori = noting("fori", lambda i, s: step(s))
    for upper in (2, 4):
        net = Net()
        nnx.cond(upper == 2, *branches, net)
        nnx.while_loop(proceed, body, (net, jnp.float32(1)))
        nnx.fori_loop(0, upper, fori, (net, jnp.float32(1)))
    assert sorted(calls) == ["body", "cond", "count", "double", "fori"]
    nnx.cond(True, *branches, Net(flag="ref"))
    assert sorted(calls[5:]) == ["count", "double"]


@each_mode
def test_what_is_replaced_is_another_object(mode):
    """Changes arrays in place, and returns others; the caller's own are kept where they are."""
    net = Net()
    net.raw, w = jnp.float32(1), net.w

    def put(number, net):
        net.raw = net.raw * 2 + 1
        return net

    def replace(number, net):
        other = Net()
        other.w, other.n, other.raw = net.w, net.n, net.raw * 2 + 1
        other.w[...] += 1
        return other

    last = nnx.fori_loop(0, 3, put, net, **mode)
    updates = mode.get("graph_updates", mode.get("graph", True))
    assert (last is net, last.raw, net.raw) == (updates, 15, 15 if updates else 1)
    assert last.w is w
    other = nnx.fori_loop(0, 2, replace, last, **mode)
    assert (other is not last, other.raw, last.raw) == (True, 63, 15)
    assert other.w is w
    with pytest.raises(ValueError, match="returns another object"):
        nnx.fori_loop(0, 2, lambda n, net: replace(n, put(n, net)), net)


def test_replaced_variables_of_a_state():
    net = Net()
    state = nnx.state(net)

    def write_too(number, state):
        state["w"][...] += 1
        return jax.tree.map(lambda a: a * 2, state)

    with pytest.raises(ValueError, match=r"writes to the carry.* and puts another one"):
        nnx.fori_loop(0, 2, write_too, state)
