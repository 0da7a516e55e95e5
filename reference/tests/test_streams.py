"""What is done to all streams of an object: split, fork, view, back up, reseed."""

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

COPYING = [{"graph": False}, {"graph": True, "graph_updates": False}]
COPYING_IDS = ["tree-mode", "graph-mode"]


class Model(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.ones(2))
        self.rngs = rngs


def same(left, right):
    left, right = (x.get_value() if isinstance(x, nnx.Variable) else x for x in (left, right))
    return left.shape == right.shape and bool(jnp.all(left == right))


def nth_key(seed, n):
    return jax.random.fold_in(jax.random.key(seed), n)


def counts(rngs):
    return {name: int(stream.count[...]) for name, stream in rngs.items()}


@pytest.fixture
def model():
    return Model(nnx.Rngs(params=0, dropout=1))


def test_split_in_place_and_back(model):
    key, count = model.rngs.params.key, model.rngs.params.count
    backups = nnx.split_rngs(model, splits=3, only="params")
    assert model.rngs.params.key is key
    assert same(key, jax.random.split(nth_key(0, 0), 3))
    assert jnp.array_equal(count[...], jnp.zeros(3, jnp.uint32))
    assert model.rngs.dropout.key.shape == ()
    count[...] += 7
    nnx.restore_rngs(backups)
    assert same(key, jax.random.key(0))
    assert counts(model.rngs) == {"params": 1, "dropout": 0}
    assert same(model.rngs.params(), nth_key(0, 1))


def test_split_as_a_context_goes_back_on_errors_too(model):
    with nnx.split_rngs(model, splits=(2, 3)) as backups:
        assert model.rngs.params.key.shape == (2, 3)
        assert len(backups) == 2
    assert model.rngs.params.key.shape == ()
    with pytest.raises(ZeroDivisionError), nnx.split_rngs(model, splits=2):
        raise ZeroDivisionError
    assert same(model.rngs.params.key, jax.random.key(0))
    assert counts(model.rngs) == {"params": 2, "dropout": 2}


@pytest.mark.parametrize("mode", [{}, *COPYING], ids=["in-place", *COPYING_IDS])
def test_the_decorator_splits_all_arguments_of_a_call(model, mode):
    @nnx.split_rngs(splits=3, **mode)
    def shapes(model, other, x, *, named):
        assert x == 2
        return model.rngs.params.key.shape, other.key.shape, named["a"].a.key.shape

    other, named = nnx.RngStream(5, tag="other"), {"a": nnx.Rngs(a=0)}
    assert shapes(model, other, 2, named=named) == ((3,), (3,), (3,))
    assert counts(model.rngs) == {"params": 1, "dropout": 1}
    assert same(model.rngs.params.key, jax.random.key(0))
    assert (other.count[...], named["a"].a.count[...]) == (1, 1)


def test_a_stream_that_two_arguments_share_is_split_once():
    rngs = nnx.Rngs(0)
    assert nnx.split_rngs(splits=3)(lambda a, b: a is b and a.default.key.shape == (3,))(rngs, rngs)
    assert rngs.default.count[...] == 1


@pytest.mark.parametrize("mode", COPYING, ids=COPYING_IDS)
def test_split_without_graph_updates_is_a_copy(model, mode):
    copied = nnx.split_rngs(
        model, splits=3, only=nnx.PathContains("params"), **{"graph_updates": False, **mode}
    )
    assert same(copied.rngs.params.key, jax.random.split(nth_key(0, 0), 3))
    assert copied.rngs.dropout.key is model.rngs.dropout.key
    assert copied.w is model.w
    assert same(model.rngs.params.key, jax.random.key(0))
    assert counts(model.rngs) == {"params": 1, "dropout": 0}


def test_squeeze_leaves_the_single_slice(model):
    with nnx.split_rngs(model, splits=1, squeeze=True):
        assert same(model.rngs.params.key, jax.random.split(nth_key(0, 0), 1)[0])
        model.rngs.params()
    assert counts(model.rngs) == {"params": 1, "dropout": 1}
    with pytest.raises(ValueError, match="squeeze"):
        nnx.split_rngs(model, splits=2, squeeze=True)


def test_split_refuses_batched_streams_before_any_draws(model):
    model.batched = nnx.Rngs(z=0).split(2)
    with pytest.raises(ValueError, match="'z'"):
        nnx.split_rngs(model, splits=3)
    assert counts(model.rngs) == {"params": 0, "dropout": 0}
    assert model.rngs.params.key.shape == ()


def test_fork_in_place_and_back(model):
    with nnx.fork_rngs(model, split={"params": 3}):
        assert same(model.rngs.params.key, jax.random.split(nth_key(0, 0), 3))
        assert same(model.rngs.dropout.key, nth_key(1, 0))
        assert model.rngs.dropout.count[...] == 0
    assert same(model.rngs.dropout.key, jax.random.key(1))
    assert counts(model.rngs) == {"params": 1, "dropout": 1}


@pytest.mark.parametrize("mode", COPYING, ids=COPYING_IDS)
def test_fork_without_graph_updates_is_a_copy(model, mode):
    copied = nnx.fork_rngs(model, **{"graph_updates": False, **mode})
    assert same(copied.rngs.params.key, nth_key(0, 0))
    assert same(model.rngs.params.key, jax.random.key(0))


def test_fork_decorates():
    rngs = nnx.Rngs(0)
    assert same(nnx.fork_rngs()(lambda r: r.default.key[...])(rngs), nth_key(0, 0))
    assert same(rngs.default.key, jax.random.key(0))


@pytest.mark.parametrize("graph", [None, False, True])
def test_with_rngs_splits_broadcasts_and_forks_a_view(graph):
    rngs = nnx.Rngs(a=0, b=1, c=2, d=3)
    model = Model(rngs)
    view = nnx.with_rngs(
        model, split={"a": 2}, broadcast={"b": 3}, fork="c", only=nnx.Not("d"), graph=graph
    )
    assert type(view) is Model
    assert view.w is model.w
    assert same(view.rngs.a.key, jax.random.split(nth_key(0, 0), 2))
    assert same(view.rngs.b.key, jnp.stack([nth_key(1, 0)] * 3))
    assert same(view.rngs.c.key, nth_key(2, 0))
    assert view.rngs.d.key is rngs.d.key
    assert counts(rngs) == {"a": 1, "b": 1, "c": 1, "d": 0}
    assert all(same(stream.key, jax.random.key(n)) for n, (_, stream) in enumerate(rngs.items()))


@pytest.mark.parametrize(
    "rules",
    [
        {"split": {"params": 4}, "fork": "params"},
        {"split": {"params": 4}, "broadcast": {nnx.PathContains("params"): 2}},
    ],
)
def test_with_rngs_refuses_two_rules_for_a_stream_before_any_draws(rules):
    rngs = nnx.Rngs(dropout=0, params=1)
    with pytest.raises(ValueError, match=r"multiple rules .*'params'.*split and"):
        nnx.with_rngs(rngs, **rules)
    assert counts(rngs) == {"dropout": 0, "params": 0}


def test_with_rngs_lets_the_first_rule_win_over_one_for_all():
    rngs = nnx.Rngs(a=0, b=1)
    view = nnx.with_rngs(rngs, split={"a": 4}, broadcast=2, fork=...)
    assert (view.a.key.shape, view.b.key.shape) == ((4,), (2,))


def test_with_rngs_decorates(model):
    @nnx.with_rngs(split=2, only="dropout")
    def shapes(model, *, rngs):
        return model.rngs.dropout.key.shape, model.rngs.params.key.shape, rngs.dropout.key.shape

    assert shapes(model, rngs=nnx.Rngs(dropout=0)) == ((2,), (), (2,))
    assert model.rngs.dropout.key.shape == ()


def test_with_rngs_keeps_sharing():
    model = Model(nnx.Rngs(0))
    model.again = model.rngs
    view = nnx.with_rngs(model, split=2, graph=True)
    assert view.again is view.rngs
    assert model.rngs.default.count[...] == 1
    with pytest.raises(ValueError, match="again"):
        nnx.with_rngs(model, split=2, graph=False)


def test_backups_bring_back_the_exact_state(model):
    model.rngs.params()
    backups = nnx.backup_keys(model)
    after = [model.rngs.params(), model.rngs.dropout()]
    nnx.reseed(model, params=9)
    nnx.restore_rngs(backups)
    assert counts(model.rngs) == {"params": 1, "dropout": 0}
    assert same(model.rngs.params(), after[0])
    assert same(model.rngs.dropout(), after[1])


def test_reseed_starts_named_streams_anew():
    source = nnx.Rngs(params=0, dropout=1)
    layers = nnx.List([Model(source.fork()), Model(source.fork())])
    first = [layer.rngs.dropout() for layer in layers]
    other = layers[0].rngs.params()
    nnx.reseed(layers, dropout=1)
    assert [counts(layer.rngs) for layer in layers] == [
        {"params": 1, "dropout": 0},
        {"params": 0, "dropout": 0},
    ]
    assert all(same(layer.rngs.dropout(), key) for layer, key in zip(layers, first, strict=True))
    assert not same(layers[0].rngs.params(), other)


def test_reseed_in_split_shapes():
    rngs = nnx.Rngs(a=0).split((2, 3))
    rngs.a.count[...] += 4
    with pytest.raises(ValueError, match=r"'a'.*\(2, 3\).*match_shape"):
        nnx.reseed(rngs, a=5)
    assert rngs.a.count[...].sum() == 24
    nnx.reseed(rngs, a=5, policy="match_shape")
    assert same(rngs.a.key, jax.random.split(nth_key(5, 0), (2, 3)))
    assert jnp.array_equal(rngs.a.count[...], jnp.zeros((2, 3), jnp.uint32))


def test_reseed_by_a_policy_of_ones_own():
    rngs = nnx.Rngs(a=0).split(2)
    asked = []

    def policy(path, key, shape):
        asked.append((path, shape))
        return jnp.broadcast_to(key, shape)

    nnx.reseed(rngs, policy=policy, a=5)
    assert asked == [(("a",), (2,))]
    assert same(rngs.a.key, jnp.stack([nth_key(5, 0)] * 2))
    with pytest.raises(ValueError, match="policy"):
        nnx.reseed(rngs, policy=lambda path, key, shape: key, a=5)


@pytest.mark.parametrize(
    "seed", [1.5, "x", jax.random.split(jax.random.key(0), 2)], ids=["float", "str", "keys"]
)
def test_reseed_refuses_bad_seeds_by_name(seed):
    rngs = nnx.Rngs(a=0, b=1)
    with pytest.raises(ValueError, match="'b'"):
        nnx.reseed(rngs, a=7, b=seed)
    assert same(rngs.a.key, jax.random.key(0))
    with pytest.raises(ValueError, match="policy"):
        nnx.reseed(rngs, policy="nonsense", a=7)
