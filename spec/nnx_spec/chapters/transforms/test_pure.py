"""Pure functions of arrays: every transform is what its namesake in JAX is."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.transforms.meshes import mesh_of
from nnx_spec.chapters.transforms.modes import each_mode, each_named
from nnx_spec.chapters.transforms.namesakes import of_jax, of_target
from nnx_spec.oracles import array_record

X, Y = np.float32([1, 2]), np.float32([3, 5])
TREE = {"a": X, "b": [Y, np.float32(4)]}
ROWS = np.float32([[1, 2], [3, 4], [5, 7]])


def mix(x, y=2.0, *, scale=1.0):
    """Computes with arrays that may be given in different ways."""
    return {"sum": x + y, "rest": (x * scale, [y])}


def energy(tree, x=1.0):
    """Computes a number of `TREE`."""
    return (tree["a"] ** 2).sum() * x + (tree["b"][0] * tree["b"][1]).sum()


def with_energy(tree, x=1.0):
    """Computes the same, and something to go with it."""
    return energy(tree, x), {"twice": tree["a"] * 2}


def running(carry, x):
    """Adds up, and tells the sum so far."""
    return carry + x, {"before": carry, "product": carry * x}


def halve(x):
    """Divides by two, down to zero."""
    return {"n": x["n"] // 2, "steps": x["steps"] + 1}


def ruled(t, **options):
    """Makes a function whose derivative with respect to `x` is not the true one."""
    f = t.custom_vjp(lambda x, y: jnp.sin(x) * y, **options)
    f.defvjp(lambda x, y: (f(x, y), y), lambda y, g: (3 * g * y, g))
    return f


def ruled_but_for_one(t):
    """Makes a function of `n` and `x`, with a rule for `x` that is given `n` itself."""
    f = t.custom_vjp(lambda n, x: x * n, nondiff_argnums=(0,))
    f.defvjp(lambda n, x: (x * n, x), lambda n, x, g: (g * n + x,))
    return f


def checked(x):
    """Returns a quotient that may not be one."""
    checkify.check(x > 0, "{x} is not positive", x=x)
    return 1 / x


def report(pair):
    """Returns what checkify found, and the result."""
    return pair[0].get(), pair[1]


def evaluated(closed, *args):
    """Describes a jaxpr by its avals, its primitives and what it computes."""
    primitives = [str(equation.primitive) for equation in closed.jaxpr.eqns]
    values = jax.extend.core.jaxpr_as_fun(closed)(*jax.tree.leaves(args))
    return [str(aval) for aval in (*closed.in_avals, *closed.out_avals)], primitives, values


RESULTS = {
    "jit": lambda t: t.jit(mix)(TREE["a"], scale=3),
    "jit-keywords-only": lambda t: t.jit(mix)(y=Y, x=X),
    "jit-static": lambda t: t.jit(lambda n, x: [x] * n, static_argnums=0)(3, X),
    "jit-as-decorator": lambda t: t.jit(static_argnames="n")(lambda x, n: [x] * n)(X, n=2),
    "grad": lambda t: t.grad(energy)(TREE),
    "grad-by-argnums": lambda t: t.grad(energy, argnums=(1, 0))(TREE, 2.0),
    "grad-has_aux": lambda t: t.grad(with_energy, has_aux=True)(TREE, x=3.0),
    "grad-keyword-only": lambda t: t.grad(lambda x, *, scale=2.0: (x * scale).sum())(X),
    "grad-allow_int": lambda t: t.grad(lambda n: n * 2.5, allow_int=True)(3),
    "grad-holomorphic": lambda t: t.grad(lambda z: z**2, holomorphic=True)(np.complex64(1 + 2j)),
    "value_and_grad": lambda t: t.value_and_grad(with_energy, has_aux=True, argnums=1)(TREE, 2.0),
    "vjp": lambda t: t.vjp(mix, X, Y)[1]({"sum": X, "rest": (Y, [X])}),
    "vjp-value": lambda t: t.vjp(mix, X, Y)[0],
    "vjp-has_aux": lambda t: t.vjp(with_energy, TREE, has_aux=True)[::2],
    "jvp": lambda t: t.jvp(mix, (X, Y), (Y, X)),
    "jvp-has_aux": lambda t: t.jvp(with_energy, (TREE,), (TREE,), has_aux=True),
    "vmap": lambda t: t.vmap(mix)(X, Y),
    "vmap-keywords": lambda t: t.vmap(mix, in_axes=(None,))(2.0, scale=Y),
    "vmap-axes": lambda t: t.vmap(
        lambda tree, y: mix(tree["a"], y), in_axes=({"a": 1, "b": None}, -1), out_axes=-1
    )({"a": ROWS, "b": X}, ROWS),
    "vmap-axis_size": lambda t: t.vmap(
        lambda: jax.lax.axis_index("i"), axis_name="i", axis_size=3
    )(),
    "pmap": lambda t: t.pmap(lambda x: x - jax.lax.psum(x, "i"), axis_name="i")(X),
    "shard_map": lambda t: t.shard_map(
        lambda x: jax.lax.psum(x, "rows"),
        mesh=mesh_of(2, "rows"),
        in_specs=PartitionSpec("rows"),
        out_specs=PartitionSpec(),
    )(X),
    "scan": lambda t: t.scan(running, np.float32(1), X),
    "scan-keyword-only": lambda t: t.scan(
        lambda c, x, *, scale=2.0: (c + x * scale, c), np.float32(1), X
    ),
    "scan-reverse": lambda t: t.scan(running, X, ROWS, reverse=True, unroll=2),
    "scan-length": lambda t: t.scan(lambda c, _: (c * 2, c), np.float32(1), None, length=3),
    "remat": lambda t: t.remat(mix)(X, scale=2.0),
    "remat-static": lambda t: t.remat(lambda n, x: x**n, static_argnums=(0,))(3, X),
    "remat-grad": lambda t: jax.grad(t.remat(lambda x: jnp.sin(jnp.sin(x)).sum()))(X),
    "cond": lambda t: t.cond(X[0] > 2, lambda x, y: x, lambda x, y: y, TREE, TREE),
    "switch": lambda t: t.switch(7, [lambda x: x, lambda x: -x, lambda x: x * x], X),
    "while_loop": lambda t: t.while_loop(lambda x: x["n"] > 0, halve, {"n": 9, "steps": 0}),
    "fori_loop": lambda t: t.fori_loop(2, 5, lambda n, x: [x[1], x[0] * n], [X, Y]),
    "fori_loop-unroll": lambda t: t.fori_loop(0, 3, lambda n, x: x + n, X, unroll=True),
    "custom_vjp": lambda t: ruled(t)(X, Y),
    "custom_vjp-grad": lambda t: jax.grad(lambda x: ruled(t)(x, Y).sum())(X),
    "custom_vjp-nondiff": lambda t: jax.grad(lambda x: ruled_but_for_one(t)(4, x))(np.float32(3)),
    "eval_shape": lambda t: t.eval_shape(mix, X, scale=ROWS[:, :1]),
    "checkify": lambda t: report(t.checkify(checked)(jnp.float32(4))),
    "checkify-error": lambda t: report(t.checkify(checked)(jnp.float32(-4))),
}
"""Uses of transforms `t` on pure functions, by name."""

ERRORS = {
    "jit-no-array": lambda t: t.jit(lambda x: x)("text"),
    "jit-unhashable": lambda t: t.jit(lambda x: x, static_argnums=0)([1]),
    "jit-argument-missing": lambda t: t.jit(lambda x, y: x)(X),
    "jit-concretization": lambda t: t.jit(lambda x: x if x[0] > 0 else -x)(X),
    "grad-vector": lambda t: t.grad(lambda x: x)(X),
    "grad-integer": lambda t: t.grad(lambda x: x * 2.0)(3),
    "grad-complex": lambda t: t.grad(lambda x: x)(np.complex64(1)),
    "grad-no-such-argument": lambda t: t.grad(energy, argnums=3)(TREE),
    "vjp-cotangent": lambda t: t.vjp(lambda x: x, X)[1]((X, X)),
    "jvp-tangents": lambda t: t.jvp(mix, (X, Y), (X,)),
    "jvp-shape": lambda t: t.jvp(lambda x: x, (X,), (ROWS,)),
    "vmap-sizes": lambda t: t.vmap(lambda x, y: x + y)(X, ROWS),
    "vmap-axis": lambda t: t.vmap(lambda x: x, in_axes=3)(X),
    "vmap-no-mapped": lambda t: t.vmap(lambda x: x, in_axes=None)(X),
    "vmap-prefix": lambda t: t.vmap(lambda tree: tree, in_axes=({"a": 0},))(TREE),
    "scan-carry": lambda t: t.scan(lambda c, x: ((c, c), x), np.float32(0), X),
    "scan-length": lambda t: t.scan(running, np.float32(0), X, length=3),
    "scan-no-length": lambda t: t.scan(lambda c, _: (c, c), 0, None),
    "cond-results": lambda t: t.cond(True, lambda x: x, lambda x: (x, x), X),
    "cond-predicate": lambda t: t.cond(X, lambda x: x, lambda x: x, X),
    "switch-empty": lambda t: t.switch(0, [], X),
    "switch-index": lambda t: t.switch(0.5, [lambda x: x, lambda x: x], X),
    "while_loop-body": lambda t: t.while_loop(lambda x: False, lambda x: (x, x), 0),
    "while_loop-test": lambda t: t.while_loop(lambda x: x, lambda x: x, X),
    "fori_loop-body": lambda t: t.fori_loop(0, 3, lambda n, x: [x], X),
    "custom_vjp-no-rule": lambda t: jax.grad(t.custom_vjp(jnp.sin))(1.0),
    "shard_map-uneven": lambda t: t.shard_map(
        jnp.sin,
        mesh=mesh_of(2, "rows"),
        in_specs=PartitionSpec("rows"),
        out_specs=PartitionSpec("rows"),
    )(np.float32([1, 2, 3])),
    "pmap-too-many": lambda t: t.pmap(jnp.sin)(np.zeros(len(jax.devices()) + 1)),
    "eval_shape-inside": lambda t: t.eval_shape(jnp.dot, X, np.zeros(3)),
}
"""Wrong uses of transforms `t`, by name."""


def record(tree):
    """Describes a pytree of arrays, shapes and whatever else by structure and leaves."""

    def describe(leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf.shape, leaf.dtype
        if hasattr(leaf, "dtype"):  # JAX has number types of its own with a dtype, too
            return array_record(np.asarray(leaf, leaf.dtype))
        return type(leaf), leaf

    leaves, structure = jax.tree.flatten(tree)
    return structure, [describe(leaf) for leaf in leaves]


@functools.cache
def expected(name):
    """Returns what a use of `RESULTS` gives with JAX's own transforms."""
    return record(RESULTS[name](of_jax()))


@functools.cache
def check_refused_by_jax(name):
    """Checks that a use of `ERRORS` raises with JAX's own transforms."""
    with pytest.raises(Exception):  # noqa: B017, PT011
        ERRORS[name](of_jax())


@clause("TRX-001", MUST, DOCUMENTED, source="nnx_basics#flax-transformations")
class TestPureFunctions:
    """On functions of pytrees of arrays alone, every transform equals its namesake in JAX.

    It takes the same options and keyword arguments, gives the same results in structure, dtypes,
    shapes and values, and raises an error where the function or its arguments do not fit. The
    function may have keyword-only parameters with defaults. `scan` says by default, as
    `jax.lax.scan` does, that the first argument is carried and the second has an axis to scan.
    """

    @each_mode
    @each_named(RESULTS, "use")
    def test_results(self, nnx, mode, use):
        assert record(RESULTS[use](of_target(nnx, mode))) == expected(use)

    @each_mode
    @each_named(ERRORS, "use")
    def test_errors(self, nnx, mode, use):
        check_refused_by_jax(use)
        with pytest.raises(Exception):  # noqa: B017, PT011
            ERRORS[use](of_target(nnx, mode))

    @each_mode
    def test_make_jaxpr(self, nnx, mode):
        """Making a jaxpr may be refused with graph updates, as documented."""
        wanted = evaluated(jax.make_jaxpr(mix)(TREE["a"], Y), X, Y)
        try:
            closed = nnx.make_jaxpr(mix, **mode)(TREE["a"], Y)
        except ValueError:
            assert mode["graph_updates"]
        else:
            assert record(evaluated(closed, X, Y)) == record(wanted)

    @each_mode
    @each_named(["jit", "vmap", "grad", "remat", "vjp", "eval_shape"])
    def test_exceptions_pass_through(self, nnx, mode, transform):
        def fail(x):
            raise LookupError("planned")

        apply = getattr(of_target(nnx, mode), transform)
        with pytest.raises(LookupError, match="planned"):
            apply(fail, X) if transform in ("vjp", "eval_shape") else apply(fail)(X)
