"""hijax and ref Variables: how their values are held, shared and replaced, and what is refused."""

import copy
import pickle

import jax
import jax.numpy as jnp
import optax
import pytest

import nnx_reference as nnx
from nnx_reference import hijax
from nnx_reference.jax_private import quasi_dynamic
from nnx_reference.metadata import SHOWN

needs_cells = pytest.mark.skipif(not quasi_dynamic(), reason="JAX has no quasi-dynamic types")
without_cells = pytest.mark.skipif(quasi_dynamic(), reason="JAX has quasi-dynamic types")


class Net(nnx.Module):
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


def variable(value, **metadata):
    return nnx.Param(jnp.asarray(value, jnp.float32), hijax=True, **metadata)


def table(**values):
    return nnx.Param({key: jnp.float32(x) for key, x in values.items()}, hijax=True)


def put(v, key, value):
    v[key] = value


def increment(v):
    v[...] += 1


class TestHolding:
    def test_eager_code_alone_needs_no_ref(self):
        x = jnp.ones(3)
        v = nnx.Param(x, hijax=True)
        assert v[...] is v.get_raw_value() is x
        v.set_value({"k": x})
        assert v["k"] is x
        assert type(v._value) is hijax.Unshared

    def test_a_ref_is_made_when_it_is_flattened_and_then_kept(self):
        v = variable([1, 2])
        (ref,) = jax.tree.leaves(v)
        assert isinstance(ref, jax.Ref)
        assert jax.tree.leaves(v)[0] is ref
        v[...] = jnp.array([3.0, 4.0])
        read = v[...]
        ref[...] = jnp.zeros(2)
        assert (v[...].tolist(), read.tolist()) == ([0, 0], [3, 4])

    def test_a_given_ref_is_used(self):
        ref = jax.new_ref(jnp.float32(1))
        v = nnx.Param(ref, ref=True)
        increment(v)
        assert v.get_raw_value() is ref
        assert ref[...] == 2

    @pytest.mark.parametrize("captured", [False, True])
    def test_what_was_read_stays(self, captured):
        v = variable(1)
        jax.jit(lambda: increment(v))() if captured else jax.jit(increment)(v)
        read = v[...]
        increment(v)
        assert (read, v[...]) == (2, 3)

    @pytest.mark.parametrize("kind", [jnp.full(2, 3.0), 3 * jnp.ones(2)], ids=["weak", "strong"])
    def test_it_may_be_set_to_an_array_of_a_weak_type(self, kind):
        v = nnx.Param(jnp.full(2, 1.0), ref=True)
        total = jax.jit(lambda v: v[...].sum())
        assert total(v) == 2
        v[...] = kind
        assert total(v) == 6

    def test_rebuilt_around_arrays_it_is_a_hijax_variable_again(self):
        v = variable([1, 2])
        w = jax.tree.map(lambda x: x[...] * 2, v)
        jax.jit(increment)(w)
        assert (w.hijax, w[...].tolist(), v[...].tolist()) == (True, [3, 5], [1, 2])

    def test_rebuilt_around_anything_else_it_holds_that(self):
        v = jax.tree.map(lambda _: "mark", variable([1, 2]))
        assert jax.tree.leaves(v) == ["mark"]

    @pytest.mark.parametrize("of", [jnp.ones(2), {"k": jnp.ones(2)}], ids=["array", "dict"])
    @pytest.mark.parametrize("flag", ["hijax", "ref"])
    @pytest.mark.parametrize(
        "copied",
        [copy.copy, copy.deepcopy, nnx.clone, lambda v: pickle.loads(pickle.dumps(v)), nnx.Param],
        ids=["copy", "deepcopy", "clone", "pickle", "Param"],
    )
    def test_copies_are_independent(self, copied, flag, of):
        v = nnx.Param(of, note="a", **{flag: True})
        jax.tree.leaves(v)
        w = copied(v)
        assert w.get_metadata() == SHOWN | {flag: True, "note": "a"}
        w.set_value(jax.tree.map(lambda x: x * 3, of))
        assert [x.tolist() for x in jax.tree.leaves(v.get_value())] == [[1, 1]]
        assert [x.tolist() for x in jax.tree.leaves(w.get_value())] == [[3, 3]]

    def test_a_state_and_what_is_merged_of_it_share(self):
        model = Net(w=variable(1))
        graphdef, state = nnx.split(model)
        increment(nnx.merge(graphdef, state).w)
        assert (model.w[...], state["w"][...]) == (2, 2)
        increment(nnx.merge(graphdef, state, copy=True).w)
        assert model.w[...] == 2


class TestFlags:
    @pytest.mark.parametrize("make", [nnx.with_vars, lambda v, **flags: v.replace(**flags)])
    def test_had_ref(self, make):
        v = nnx.Param(1.0, ref=True)
        frozen = make(v, mutable=False)
        assert frozen.get_metadata() == SHOWN | {"mutable": False, "had_ref": True}
        assert frozen.get_raw_value() == 1
        assert make(frozen, mutable=True).get_metadata() == SHOWN | {"ref": True}
        assert nnx.with_vars(frozen, mutable=True, ref=False).get_metadata() == SHOWN
        assert nnx.Param(1.0, ref=True, mutable=False).get_metadata() == frozen.get_metadata()

    def test_freezing_in_place(self):
        v = variable(1)
        jax.jit(increment)(v)
        v.set_metadata(mutable=False)
        assert isinstance(jax.tree.leaves(v)[0], jax.Array)
        assert jax.grad(lambda v: v[...] ** 2)(v)[...] == 4
        with pytest.raises(nnx.errors.ImmutableVariableError):
            increment(v)

    def test_copy_from_keeps_them(self):
        v, w = variable(1, note="a"), nnx.Param(jnp.float32(2), ref=True, note="b")
        v.copy_from(w)
        assert (v[...], v.get_metadata()) == (2, SHOWN | {"hijax": True, "note": "b"})

    def test_metadata_is_the_variables_own(self):
        v, w = variable(1), variable(2, note="b")

        @jax.jit
        def f():
            with pytest.raises(nnx.errors.TraceContextError, match="Param"):
                v.set_metadata(note="a")
            with pytest.raises(nnx.errors.TraceContextError, match="Param"):
                v.copy_from(w)
            v.copy_from(nnx.Param(jnp.float32(5)))

        f()
        assert (v[...], v.get_metadata()) == (5, SHOWN | {"hijax": True})


class TestChangesOfStructure:
    @pytest.mark.parametrize("flag", ["hijax", "ref"])
    def test_outside(self, flag):
        v = nnx.Param(jnp.float32(1), **{flag: True})
        jax.jit(increment)(v)
        v.set_value(jnp.arange(3))
        jax.jit(increment)(v)
        assert v[...].tolist() == [1, 2, 3]

    def test_a_function_that_captured_the_old_ref_is_told(self):
        v = variable(1)
        f = jax.jit(lambda: increment(v))
        f()
        v.set_value(jnp.arange(2))
        with pytest.raises(RuntimeError, match="deleted"):
            f()
        assert v[...].tolist() == [0, 1]

    @pytest.mark.parametrize(
        "value", [jnp.int32(1), jnp.ones(2), {"k": jnp.float32(1)}, "text"], ids=str
    )
    def test_inside_it_is_refused_for_an_array(self, value):
        v = variable(1)

        @jax.jit
        def f(v):
            with pytest.raises(ValueError, match=r"a Param that holds float32\[\] cannot be set"):
                v.set_value(value)
            increment(v)

        f(v)
        assert v[...] == 2

    def test_several_variables_are_left_alone_if_one_is_refused(self):
        model = Net(a=variable(1), b=variable(2))

        @jax.jit
        def f(model):
            with pytest.raises(ValueError, match="a Param that holds float32"):
                nnx.update(model, {"a": jnp.float32(5), "b": jnp.ones(2)})
            other = Net(a=nnx.Param(jnp.float32(5)), b=nnx.Param(jnp.ones(2)))
            with pytest.raises(ValueError, match="a Param that holds float32"):
                nnx.update(model, nnx.state(other))

        f(model)
        assert (model.a[...], model.b[...]) == (1, 2)

    @without_cells
    def test_inside_it_is_refused_for_a_container(self):
        v = table(a=1)

        @jax.jit
        def f(v):
            for change in (lambda: put(v, "b", 1.0), lambda: v.__delitem__("a")):
                with pytest.raises(ValueError, match=r"a Param that holds {'a': 'float32\[\]'}"):
                    change()
            v["a"] += 1

        f(v)
        assert v.get_value() == {"a": 2}

    @needs_cells
    def test_the_same_change_again_in_one_trace(self):
        v = table()

        @jax.jit
        def f(v):
            for n in range(4):
                put(v, "a", jnp.float32(n))
                del v["a"]
            put(v, "a", jnp.float32(9))
            del v["a"]

        f(v)
        f(v)
        assert v.get_value() == {}

    @needs_cells
    def test_made_inside(self):
        @jax.jit
        def f(x):
            v = nnx.Param({}, hijax=True)
            put(v, "a", x)
            jax.jit(lambda v: put(v, "b", v["a"] * 2))(v)
            return nnx.with_vars(v, hijax=False)

        assert f(jnp.float32(3)).get_value() == {"a": 3, "b": 6}

    @needs_cells
    @pytest.mark.parametrize(
        "around",
        [
            lambda f: jax.lax.cond(True, f, lambda: None),
            lambda f: jax.lax.scan(lambda c, x: (c, f()), 0, jnp.ones(2)),
            lambda f: jax.lax.cond(True, jax.jit(f), lambda: None),
        ],
        ids=["cond", "scan", "jit-in-cond"],
    )
    def test_control_flow_refuses(self, around):
        v = table(a=1)

        def grow():
            put(v, "b", jnp.float32(2))

        with pytest.raises(NotImplementedError, match="a change of a hijax Variable's structure"):
            around(grow)
        assert v.get_value() == {"a": 1}

    @needs_cells
    @pytest.mark.parametrize("f", [lambda v, w: put(v, "b", 1.0), lambda v, w: v["a"] + 1])
    def test_aliases_are_refused(self, f):
        v = table(a=1)
        with pytest.raises(ValueError, match="only one reference"):
            jax.jit(f)(v, v)
        with pytest.raises(ValueError, match="closed over"):
            jax.jit(lambda w: f(v, w))(v)

    @needs_cells
    def test_transforms_without_cells_say_so(self):
        with pytest.raises(NotImplementedError, match="whose value is a container"):
            jax.checkpoint(lambda v: v["a"] * 2)(table(a=1))


class TestRefusals:
    @pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))])
    @pytest.mark.parametrize("v", [variable(1), table(a=1)], ids=["array", "dict"])
    def test_a_differentiated_value_from_outside(self, v, transform):
        def loss(x):
            v.set_value(jax.tree.map(lambda _: x, v.get_value()))
            return x

        with pytest.raises(ValueError, match=r"written to a .*stop_gradient"):
            transform(loss)(2.0)
        assert jax.tree.leaves(v.get_value()) == [1]

    def test_a_differentiated_value_to_what_is_made_inside(self):
        def loss(x):
            v = nnx.Param(x, hijax=True)
            v[...] *= x
            return v[...]

        assert jax.grad(loss)(3.0) == 6

    @pytest.mark.parametrize("v", [variable(1), table(a=1)], ids=["array", "dict"])
    def test_differentiating_with_respect_to_it(self, v):
        for differentiate in (jax.grad, jax.value_and_grad):
            with pytest.raises((ValueError, TypeError), match=r"with_vars|Ref"):
                differentiate(lambda v: jax.tree.leaves(v.get_value())[0] ** 2)(v)
        with pytest.raises(ValueError, match="a mutable Param"):
            jax.jvp(lambda v: v[...], (variable(1),), (variable(1),))

    def test_the_condition_of_a_while_loop(self):
        v = variable(1)

        def condition(n):
            increment(v)
            return n < 3

        with pytest.raises(ValueError, match="condition of a while_loop"):
            jax.lax.while_loop(condition, lambda n: n + 1, 0)
        assert v[...] == 1

    def test_a_default_that_is_no_bool(self):
        with pytest.raises(TypeError, match="hijax=True or hijax=False, not 'yes'"):
            nnx.var_defaults(hijax="yes")
        assert nnx.var_defaults() == {"hijax": False, "ref": False}


class TestDefaults:
    def test_a_context_can_be_entered_again(self):
        with nnx.var_defaults(ref=True) as context:
            with context:
                assert dict(nnx.var_defaults()) == {"hijax": False, "ref": True}
            assert nnx.var_defaults().ref is True
        with context:
            assert nnx.var_defaults().ref is True
        assert nnx.var_defaults().ref is False

    def test_only_what_is_given_changes(self):
        with nnx.var_defaults(hijax=True), nnx.var_defaults(ref=True):
            assert nnx.Param(1.0).get_metadata() == SHOWN | {"hijax": True, "ref": True}
            assert nnx.Param(1.0, hijax=False).get_metadata() == SHOWN | {"ref": True}


class TestWithTheRest:
    def test_optimizer_and_model_captured(self):
        with nnx.var_defaults(hijax=True):
            rngs = nnx.Rngs(0)
            model = nnx.Linear(2, 3, rngs=rngs)
            optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
            x, y = rngs.uniform((4, 2)), rngs.uniform((4, 3))

        @jax.jit
        def step():
            view = nnx.with_vars(model, mutable=False)
            loss, grads = jax.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(view)
            optimizer.update(model, grads)
            return loss

        losses = jnp.stack([step() for _ in range(3)])
        assert jnp.allclose(losses, jnp.array([0.85250294, 0.8165137, 0.7814907]), rtol=1e-6)
        assert optimizer.step[...] == 3

    def test_vmap_makes_a_stack_of_layers(self):
        with nnx.var_defaults(hijax=True):
            keys = nnx.Rngs(0).split(3)
            stack = nnx.vmap(lambda rngs: nnx.Linear(2, 2, rngs=rngs))(keys)
        assert (stack.kernel.hijax, stack.kernel.shape) == (True, (3, 2, 2))
        assert keys.default.count[...].tolist() == [2, 2, 2]

        def layer(x, linear):
            increment(linear.bias)
            return linear(x), None

        y, _ = jax.jit(lambda stack: jax.lax.scan(layer, jnp.ones(2), stack))(stack)
        expected = jnp.ones(2)
        for kernel in stack.kernel[...]:
            expected = expected @ kernel + 1
        assert jnp.allclose(y, expected, rtol=1e-6)
        assert stack.bias[...].tolist() == [[1, 1]] * 3


class TestHijaxVariable:
    @pytest.mark.parametrize("hijax", [True, False])
    def test_tells_hijax_variables_from_others(self, hijax):
        v = nnx.Param(1.0, hijax=hijax)
        assert isinstance(v, nnx.variablelib.HijaxVariable) == hijax
        assert isinstance(v, nnx.Param)
        assert not isinstance(1.0, nnx.variablelib.HijaxVariable)

    def test_cannot_be_made(self):
        with pytest.raises(TypeError, match="made by its own class"):
            nnx.variablelib.HijaxVariable()

    def test_a_variable_of_metadata(self):
        v = nnx.Param.from_metadata(1, {"tag": "a", "hijax": True, "ref": False})
        assert (type(v), v.hijax, v.ref, v.tag) == (nnx.Param, True, False, "a")
