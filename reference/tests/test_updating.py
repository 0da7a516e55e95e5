"""Updates of what stands in tuples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx


def pair():
    return nnx.Linear(1, 2, rngs=nnx.Rngs(0)), nnx.Param(jnp.zeros(3))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_variables_in_tuples_are_written(depth):
    linear, param = root = pair()
    for _ in range(depth):
        root = (root, 7.0)
    state = {0: {"bias": jnp.ones(2)}, 1: jnp.full(3, 5.0)}
    for _ in range(depth):
        state = {0: state}
    kernel = linear.kernel[...]
    nnx.update(root, state)
    assert np.array_equal(linear.bias[...], np.ones(2))
    assert np.array_equal(param[...], np.full(3, 5.0))
    assert linear.kernel[...] is kernel


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_raw_value_that_only_tuples_hold_cannot_be_written(depth):
    _, param = pair()
    root, state = (param, 1.0), {0: jnp.ones(3), 1: 2.0}
    for _ in range(depth):
        root, state = (root,), {0: state}
    with pytest.raises(ValueError, match=r"the tuple at \(\) cannot be changed in place"):
        nnx.update(root, state)
    assert np.array_equal(param[...], np.zeros(3))


@pytest.mark.parametrize("holder", ["list", "dict", "object"])
def test_a_raw_value_in_tuples_is_written_where_something_holds_them(holder):
    param = nnx.Param(jnp.zeros(3))
    inner = ((param, jnp.zeros(())), 1.0)
    root = {
        "list": lambda: [inner],
        "dict": lambda: {0: inner},
        "object": lambda: nnx.List([nnx.data(inner)]),
    }[holder]()
    nnx.update(root, {0: {0: {0: jnp.ones(3), 1: jnp.ones(())}}})
    (same, one), kept = root[0]
    assert same is param
    assert np.array_equal(param[...], np.ones(3))
    assert (float(one), kept) == (1.0, 1.0)
    assert jax.tree.structure(inner) == jax.tree.structure(root[0])
