"""eval_shape and make_jaxpr: what a function would do, without doing it."""

import gc

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from nnx_spec import CONVENTION, DOCUMENTED, MUST, SOUND, TESTED, clause, stands_on
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import assert_no_tracers, snapshot, state_items, user_metadata, variables
from nnx_spec.plans import classes

HUGE = 2**44
"""A number of elements that no machine has room for."""


def model_of(nnx, size=3):
    """Makes a Module of Variables of several classes, with metadata and static attributes."""
    w = nnx.Param(jnp.ones((2, size), "bfloat16"), tag="w")
    inner = net(nnx, n=count(nnx, 0, tag="n"), name="inner")
    layers = nnx.List([nnx.BatchStat({"mean": jnp.zeros(size), "n": jnp.int32(1)})])
    return net(nnx, w=w, inner=inner, layers=layers, constant=jnp.arange(size), size=size)


def step(model, x):
    """Changes a model; returns an array."""
    model.w[...] += 1
    model.inner.n[...] += 1
    return (x @ model.w[...].astype("float32"), {"n": model.inner.n[...] * 2})


def shape_of(leaf):
    """Describes an abstract array, which it has to be, by shape and dtype."""
    kind = type(leaf).__name__
    assert isinstance(leaf, jax.ShapeDtypeStruct), f"a {kind} stands for an abstract array"
    return leaf.shape, str(leaf.dtype)


def describe(nnx, made):
    """Describes the abstract Variables of an object: class, shapes and dtypes, and metadata."""
    return [
        (type(v), jax.tree.map(shape_of, v.get_value()), user_metadata(v))
        for v in variables(nnx, made)
    ]


@clause(
    "TRX-025",
    MUST,
    DOCUMENTED,
    source="api_reference/flax.nnx/transforms#flax.nnx.eval_shape",
)
class TestEvalShape:
    """`eval_shape` runs nothing, allocates nothing and changes nothing, and gives what the function
    returns in abstract: arrays and the values of Variables become `jax.ShapeDtypeStruct`.

    A Module stays a Module of its class, with its Variables' classes and metadata and its static
    attributes, and a State a State; no tracer is left in it. The arguments may be abstract, too. In
    a mesh, the abstract value of a Variable has the sharding that its `out_sharding` says, at once
    or after `as_abstract`. (The docstring promises it at once; since 0.12.7 upstream's tests ask
    for it at once on meshes with explicit axes only.)
    """

    @each_mode
    def test_module(self, nnx, mode):
        made = nnx.eval_shape(lambda: model_of(nnx), **mode)
        assert type(made).__name__ == type(model_of(nnx)).__name__
        assert describe(nnx, made) == [
            (classes(nnx).Count, ((), "int32"), {"tag": "n"}),
            (nnx.BatchStat, {"mean": ((3,), "float32"), "n": ((), "int32")}, {}),
            (nnx.Param, ((2, 3), "bfloat16"), {"tag": "w"}),
        ]
        assert_no_tracers(nnx, made)
        assert (made.constant.shape, str(made.constant.dtype)) == ((3,), "int32")
        assert (made.size, made.inner.name) == (3, "inner")

    @each_mode
    def test_state(self, nnx, mode):
        state = nnx.eval_shape(lambda: nnx.state(model_of(nnx), nnx.Param), **mode)
        assert isinstance(state, nnx.State), f"a State became a {type(state).__name__}"
        ((path, leaf),) = state_items(state)
        assert path == ("w",)
        assert shape_of(leaf.get_value()) == ((2, 3), "bfloat16")

    @each_mode
    @pytest.mark.parametrize("abstract", [False, True], ids=["concrete", "abstract"])
    def test_changes_nothing(self, nnx, mode, abstract):
        model = model_of(nnx)
        x = jax.ShapeDtypeStruct((5, 2), "float32") if abstract else jnp.ones((5, 2))
        if abstract:
            model = nnx.eval_shape(lambda: model_of(nnx), **mode)
        before = None if abstract else snapshot(nnx, model, identities=True)
        shapes = None if not abstract else describe(nnx, model)
        y, rest = nnx.eval_shape(step, model, x, **mode)
        assert (shape_of(y), shape_of(rest["n"])) == (((5, 3), "float32"), ((), "int32"))
        if abstract:
            assert describe(nnx, model) == shapes
        else:
            is_unchanged = snapshot(nnx, model, identities=True) == before
            assert is_unchanged, "what was passed in has changed"
            assert_no_tracers(nnx, model)

    @each_mode
    def test_keywords(self, nnx, mode):
        def f(x, *, model, factor):
            return model.w[...] * factor + x

        found = nnx.eval_shape(f, 1.0, model=model_of(nnx), factor=jnp.ones((4, 1, 1)), **mode)
        assert shape_of(found) == ((4, 2, 3), "float32")

    @each_mode
    def test_allocates_nothing(self, nnx, mode):
        def make(x):
            huge = jnp.zeros(HUGE) + x[:1]
            return net(nnx, w=nnx.Param(huge * 2), total=nnx.Cache(huge.sum()))

        gc.collect()
        before = {id(array) for array in jax.live_arrays()}
        made = nnx.eval_shape(make, jax.ShapeDtypeStruct((HUGE,), "float32"), **mode)
        new = [array.shape for array in jax.live_arrays() if id(array) not in before]
        assert new == [], "arrays have been allocated"
        assert shape_of(made.w.get_value()) == ((HUGE,), "float32")
        assert shape_of(made.total.get_value()) == ((), "float32")

    @each_mode
    def test_runs_nothing(self, nnx, mode):
        calls = []

        def f(model, x):
            jax.debug.callback(lambda x: calls.append("run"), x)
            calls.append("traced")
            return step(model, x)

        nnx.eval_shape(f, model_of(nnx), jnp.ones((5, 2)), **mode)
        jax.effects_barrier()
        assert calls == ["traced"]

    @each_mode
    @pytest.mark.parametrize("axes", ["auto", "explicit"])
    @stands_on(TESTED, "tests/nnx/spmd_test.py::TestSPMD::test_eval_shape_with_sharding1")
    def test_sharding(self, nnx, mode, axes):
        kind = jax.sharding.AxisType.Auto if axes == "auto" else jax.sharding.AxisType.Explicit
        mesh = jax.make_mesh((2,), ("a",), (kind,), devices=jax.devices()[:2])
        with jax.set_mesh(mesh):
            made = nnx.eval_shape(
                lambda: net(nnx, w=nnx.Param(jnp.ones((2, 4)), out_sharding=("a", None))), **mode
            )
            if made.w.get_value().sharding is None:
                made = nnx.as_abstract(made)
        assert shape_of(made.w.get_value()) == ((2, 4), "float32")
        sharding = made.w.get_value().sharding
        assert sharding is not None, "the abstract value has no sharding"
        assert sharding.spec == PartitionSpec("a", None)
        assert dict(sharding.mesh.shape) == {"a": 2}

    @each_mode
    @stands_on(SOUND, "an exception leaves tracers behind")
    def test_exceptions_pass_through(self, nnx, mode):
        def fail(model, x):
            step(model, x)
            raise LookupError("planned")

        model = model_of(nnx)
        before = snapshot(nnx, model, identities=True)
        with pytest.raises(LookupError, match="planned"):
            nnx.eval_shape(fail, model, jnp.ones((5, 2)), **mode)
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"


@clause(
    "TRX-033",
    MUST,
    TESTED,
    source="tests/nnx/transforms_test.py::TestMakeJaxpr::test_make_jaxpr_with_variable_update",
)
class TestMakeJaxpr:
    """`make_jaxpr` shows the pure computation of a function of objects, and changes nothing.

    Its inputs are the arrays of the arguments, those of Variables among them, and the arrays of the
    result are among its outputs. Arguments in `static_argnums` are not among the inputs. It may
    refuse graph updates, with ValueError.
    """

    @staticmethod
    def jaxpr_of(nnx, mode, f, *args, **options):
        """Makes a jaxpr; returns None where graph updates are refused."""
        try:
            return nnx.make_jaxpr(f, **options, **mode)(*args)
        except ValueError:
            assert mode["graph_updates"], "make_jaxpr may refuse graph updates only"
            return None

    @each_mode
    def test_computation(self, nnx, mode):
        def f(model, x):
            model.w[...] += x
            model.inner.n[...] += 1
            return {"y": jnp.sin(model.w[...]) * 2, "n": model.inner.n[...] - 3}

        model = net(nnx, w=param(nnx, [1.0, 2.0]), inner=net(nnx, n=count(nnx, 7)))
        before = snapshot(nnx, model, identities=True)
        jaxpr = self.jaxpr_of(nnx, mode, f, model, jnp.float32(5))
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"
        assert_no_tracers(nnx, model)
        if jaxpr is None:
            return
        primitives = [str(equation.primitive) for equation in jaxpr.jaxpr.eqns]
        assert primitives.count("sin") == 1
        assert set(primitives) <= {"add", "sin", "mul", "sub", "broadcast_in_dim"}
        inputs = {((2,), "float32"): [1.0, 2.0], ((), "float32"): 5.0, ((), "int32"): 7}
        kinds = [(aval.shape, str(aval.dtype)) for aval in jaxpr.in_avals]
        assert sorted(kinds) == sorted(inputs)
        compute = jax.extend.core.jaxpr_as_fun(jaxpr)
        found = compute(*(np.asarray(inputs[kind], kind[1]) for kind in kinds))
        outputs = [(x.shape, str(x.dtype), np.asarray(x).tolist()) for x in found]
        assert ((), "int32", 5) in outputs
        wanted = np.sin(np.float32([6, 7])) * 2
        assert any(x.shape == (2,) and np.allclose(x, wanted, rtol=1e-6) for x in found), (
            f"no output is {wanted.tolist()}: {outputs}"
        )

    @each_mode
    @stands_on(CONVENTION, "jax.make_jaxpr")
    def test_like_the_function_of_arrays(self, nnx, mode):
        """Reads a Variable as the function of arrays reads an array."""

        def f(w, x):
            return jnp.cos(w) @ x

        x = jnp.ones((2, 3))
        v = param(nnx, [1.0, 2.0])
        jaxpr = self.jaxpr_of(nnx, mode, lambda v, x: f(v[...], x), v, x)
        if jaxpr is None:
            return
        pure = jax.make_jaxpr(f)(v[...], x)
        primitives = [[str(e.primitive) for e in closed.jaxpr.eqns] for closed in (jaxpr, pure)]
        assert primitives[0] == primitives[1]
        assert [*map(str, jaxpr.out_avals)] == [*map(str, pure.out_avals)]

    @each_mode
    @stands_on(CONVENTION, "jax.make_jaxpr")
    def test_static(self, nnx, mode):
        def f(model, times):
            assert type(times) is int, f"a static argument came as {type(times).__name__}"
            return sum((model.w[...] for _ in range(times)), jnp.float32(0))

        model = net(nnx, w=param(nnx, 2.0))
        jaxpr = self.jaxpr_of(nnx, mode, f, model, 3, static_argnums=1)
        if jaxpr is not None:
            assert [str(e.primitive) for e in jaxpr.jaxpr.eqns].count("add") == 3
            assert len(jaxpr.in_avals) == 1
            assert float(jax.extend.core.jaxpr_as_fun(jaxpr)(jnp.float32(2))[0]) == 6

    @each_mode
    @stands_on(SOUND, "an exception leaves tracers behind")
    def test_exceptions_pass_through(self, nnx, mode):
        def fail(model):
            model.w[...] += 1
            raise LookupError("planned")

        model = net(nnx, w=param(nnx, 2.0))
        before = snapshot(nnx, model, identities=True)
        with pytest.raises((LookupError, ValueError)) as caught:
            nnx.make_jaxpr(fail, **mode)(model)
        assert mode["graph_updates"] or caught.type is LookupError, f"it raised {caught.type}"
        is_unchanged = snapshot(nnx, model, identities=True) == before
        assert is_unchanged, "what was passed in has changed"
