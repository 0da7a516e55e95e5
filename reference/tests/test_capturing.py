"""sow, perturb and capture: what is recorded, what is left behind, and transforms."""

import jax
import jax.numpy as jnp
import pytest

import nnx_reference as nnx

MODES = [
    {"graph": False, "graph_updates": False},
    {"graph": True, "graph_updates": False},
    {"graph": True, "graph_updates": True},
]
each_mode = pytest.mark.parametrize("mode", MODES, ids=["tree-mode", "graph-mode", "updates"])

X = jnp.array([1.0, 2.0])


class Seen(nnx.Intermediate):
    pass


class Scale(nnx.Module):
    def __init__(self, factor):
        self.w = nnx.Param(jnp.asarray(factor))

    def __call__(self, x):
        y = self.perturb("y_tangent", x * self.w[...])
        self.sow(nnx.Intermediate, "y", y)
        return y


class Chain(nnx.Module):
    def __init__(self):
        self.first = Scale(2.0)
        self.rest = nnx.List([Scale(3.0)])

    def twice(self, x):
        return 2 * x

    def nothing(self):
        self.sow(Seen, "seen", 1.0, init_fn=lambda: 10.0, reduce_fn=lambda a, b: a + b)

    def me(self):
        return self

    def __call__(self, x):
        self.nothing()
        self.nothing()
        return self.rest[0](self.twice(self.first(x)))


def plain(state):
    return nnx.to_pure_dict(
        state, lambda leaf: jax.tree.map(lambda x: jnp.asarray(x).tolist(), leaf)
    )


def assert_untouched(model):
    assert [type(m) for _, m in nnx.iter_modules(model)] == [Scale, Scale, nnx.List, Chain]
    assert not any(hasattr(m, "__captures__") for _, m in nnx.iter_modules(model))
    assert len(jax.tree.leaves(model)) == 2


def test_a_capture_returns_what_is_sown_by_module_path():
    model = Chain()
    y, intermediates, seen = nnx.capture(model, nnx.Intermediate, Seen)(X)
    assert y.tolist() == [12.0, 24.0]
    assert plain(intermediates) == {
        "first": {"y": ([2.0, 4.0],)},
        "rest": {0: {"y": ([12.0, 24.0],)}},
    }
    assert type(intermediates["first"]["y"]) is nnx.Intermediate
    assert plain(seen) == {"seen": 12.0}
    assert type(seen["seen"]) is Seen
    assert_untouched(model)


def test_what_is_captured():
    model = Scale(3.0)
    assert plain(nnx.capture(model.__call__, nnx.Intermediate)(2.0)[1]) == {"y": (6.0,)}
    by_name = nnx.capture(nnx.Intermediate)(lambda m, x: m(m(x)))(m=model, x=1.0)
    assert plain(by_name[1]) == {"y": (3.0, 9.0)}
    assert nnx.capture(lambda m: m.w[...], nnx.Intermediate)(model) == (3.0, nnx.State({}))
    assert nnx.capture(model)(2.0) == 6.0
    for wrong in (lambda: 0, lambda x: x):
        with pytest.raises(TypeError, match="first argument"):
            nnx.capture(wrong, nnx.Intermediate)(*([1.0] if wrong.__code__.co_argcount else []))
    with pytest.raises(TypeError, match="classes of Variables"):
        nnx.capture(model, int)


def test_other_classes_are_ignored():
    def record(module):
        return module.sow(Seen, "a", 1.0), module.sow(nnx.Intermediate, "b", 2.0)

    result, seen = nnx.capture(record, Seen)(nnx.Module())
    assert result == (True, False)
    assert plain(seen) == {"a": (1.0,)}
    assert nnx.capture(record, nnx.Variable)(nnx.Module()) == ((False, False), nnx.State({}))


def test_the_buffers_during_a_capture():
    def look(module):
        assert [type(buffer) for buffer in module.__captures__] == [nnx.Intermediate, Seen]
        assert [buffer.get_value() for buffer in module.__captures__] == [{}, {}]
        module.sow(Seen, "a", 1.0)
        assert module.__captures__[1].get_value() == {"a": (1.0,)}

    nnx.capture(look, nnx.Intermediate, Seen)(nnx.Module())


def test_nothing_is_left_after_an_error():
    model = Chain()

    def fail(model):
        model(X)
        model.copy = nnx.clone(model.first)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        nnx.capture(fail, nnx.Intermediate, method_outputs=Seen)(model)
    assert type(model.copy) is Scale
    del model.copy
    assert_untouched(model)


def test_captures_nest():
    model = Chain()

    def outer(model):
        model.first(X)
        assert plain(nnx.capture(model, Seen)(X)[1]) == {"seen": (12.0)}
        inner = nnx.capture(model.first, nnx.Intermediate)(2 * X)[1]
        model.first(3 * X)
        return plain(inner)

    inner, intermediates = nnx.capture(outer, nnx.Intermediate, method_outputs=Seen)(model)[:2]
    assert inner == {"y": ([4.0, 8.0],)}
    assert plain(intermediates) == {"first": {"y": ([2.0, 4.0], [6.0, 12.0])}}
    assert_untouched(model)


def test_perturbations():
    model = Chain()
    y, zeros = nnx.capture(model, nnx.Perturbation)(X.astype(jnp.bfloat16))
    assert zeros["first"]["y_tangent"].dtype == jnp.bfloat16
    assert plain(zeros) == {
        "first": {"y_tangent": [0.0, 0.0]},
        "rest": {0: {"y_tangent": [0.0, 0.0]}},
    }
    zeros["first"]["y_tangent"][0] = 5.0
    assert nnx.capture(model, init=zeros)(X).tolist() == [42.0, 24.0]
    assert y.tolist() == [12.0, 24.0]
    assert model.first(X).tolist() == [2.0, 4.0]
    assert plain(nnx.pop(model, nnx.Perturbation)) == {"first": {"y_tangent": [0.0, 0.0]}}


def test_captured_state_is_fed_back():
    model = Scale(3.0)
    _, first = nnx.capture(model, nnx.Intermediate)(1.0)
    _, seen, second = nnx.capture(model, Seen, nnx.Intermediate, init=first)(2.0)
    assert plain(second) == {"y": (3.0, 6.0)}
    assert seen == nnx.State({})
    assert plain(first) == {"y": (3.0,)}
    with pytest.raises(ValueError, match="no Module at \\('a',\\)"):
        nnx.capture(model, init={"a": first})(1.0)
    with pytest.raises(ValueError, match="in a Variable"):
        nnx.capture(model, init={"y": 1.0})(1.0)
    with pytest.raises(ValueError, match="'y_tangent' has the shapes \\(2,\\)"):
        nnx.capture(model, init={"y_tangent": nnx.Perturbation(X)})(1.0)


def test_method_outputs():
    model = Chain()
    y, outputs = nnx.capture(model, method_outputs=nnx.Intermediate)(X)
    assert plain(outputs) == {
        "__call__": (y.tolist(),),
        "twice": ([4.0, 8.0],),
        "nothing": (None, None),
        "first": {"__call__": ([2.0, 4.0],), "y": ([2.0, 4.0],)},
        "rest": {0: {"__call__": (y.tolist(),), "y": (y.tolist(),)}},
    }
    assert_untouched(model)
    assert nnx.capture(model.me, method_outputs=Seen)() == (model, nnx.State({}))
    _, seen = nnx.capture(nnx.jit(lambda m, x: m.twice(x)), method_outputs=Seen)(model, X)
    assert plain(seen) == {"twice": ([2.0, 4.0],)}
    assert plain(nnx.capture(model.twice, method_outputs=Seen)(X)[1]) == {"twice": ([2.0, 4.0],)}


def test_method_outputs_that_jax_cannot_carry_are_not_recorded():
    class Various(nnx.Module):
        def name(self):
            return "name"

        def steps(self):
            yield 1

        def both(self, x):
            return {"x": x, "name": self.name()}

        def __call__(self, x):
            return self.both(x)["x"] * next(self.steps())

    run = nnx.jit(lambda m, x: m(x))
    for f in (run, run.__wrapped__):
        y, outputs = nnx.capture(f, method_outputs=Seen)(Various(), 2.0)
        assert (y, plain(outputs)) == (2.0, {"__call__": (2.0,)})


@each_mode
def test_gradients_and_copies_that_are_returned_do_not_record(mode):
    model = Scale(3.0)

    def run(model):
        gradient = nnx.grad(lambda m: m(2.0), **mode)(model)
        return gradient, nnx.clone(model)

    (gradient, copy), outputs, seen = nnx.capture(run, nnx.Intermediate, method_outputs=Seen)(model)
    assert (plain(outputs), plain(seen)) == ({"y": (6.0,)}, {"__call__": (6.0,)})
    for returned in (gradient, copy):
        assert type(returned) in (Scale, nnx.State)
        assert set(nnx.state(returned)) == {"w"}


def test_copies_record_for_the_capture():
    def run(model):
        return nnx.merge(*nnx.split(model)).first, nnx.merge(*nnx.split(model))(X)

    copy, intermediates = nnx.capture(lambda m: run(m)[0], nnx.Intermediate)(model := Chain())
    assert not hasattr(copy, "__captures__")
    assert plain(intermediates)["first"] == {"y": ([2.0, 4.0],)}
    assert_untouched(model)


@each_mode
def test_copies_share_nothing_else(mode):
    @nnx.jit(**mode)
    def run(model, x):
        graphdef, state = nnx.split([model, nnx.clone(model)], graph=mode["graph"])
        return nnx.merge(graphdef, state)[1](x), nnx.state(nnx.clone(model))

    (y, _), intermediates = nnx.capture(run, nnx.Intermediate)(Scale(3.0), 2.0)
    assert (y, plain(intermediates)) == (6.0, {"y": (6.0,)})


def test_without_a_capture_a_record_is_an_attribute():
    model = Scale(3.0)
    assert model.sow(nnx.Intermediate, "h", 1.0)
    assert model.sow(nnx.Intermediate, "h", 2.0)
    assert type(model.h) is nnx.Intermediate
    assert model.perturb("p", X).tolist() == [1.0, 2.0]
    model.p[...] = X
    assert model.perturb("p", X).tolist() == [2.0, 4.0]
    assert plain(nnx.pop(model, nnx.Intermediate)) == {"h": (1.0, 2.0), "p": [1.0, 2.0]}
    assert nnx.pop(model, nnx.Intermediate) == nnx.State({})
    with pytest.raises(ValueError, match="'w', where it has a Param"):
        model.sow(nnx.Intermediate, "w", 1.0)
    assert nnx.compat.jit(lambda m: m.sow(Seen, "s", X))(model)
    assert plain(nnx.pop(model, Seen)) == {"s": ([1.0, 2.0],)}


def test_a_dict_keeps_its_items():
    class Named(nnx.Module):
        def __init__(self):
            self.layers = nnx.Dict(b=Scale(2.0), a=Scale(3.0))

        def __call__(self, x):
            for layer in self.layers.values():
                x = layer(x)
            return x, list(self.layers)

    (y, names), outputs = nnx.capture(Named(), nnx.Intermediate, method_outputs=Seen)(1.0)[:2]
    assert (y, names) == (6.0, ["b", "a"])
    assert plain(outputs) == {"layers": {"a": {"y": (6.0,)}, "b": {"y": (2.0,)}}}


@each_mode
def test_gradients_of_intermediate_values(mode):
    model = Chain()

    @nnx.jit(**mode)
    def step(model, x):
        _, perturbations = nnx.capture(model, nnx.Perturbation)(x)

        def loss(model, perturbations, x):
            y, seen = nnx.capture(model, Seen, init=perturbations)(x)
            return (y**2).sum() / 2, seen

        gradients = nnx.grad(loss, argnums=(0, 1), has_aux=True, **mode)
        return gradients(model, perturbations, x)

    (of_model, of_values), seen = step(model, X)
    assert plain(of_values) == {
        "first": {"y_tangent": [72.0, 144.0]},
        "rest": {0: {"y_tangent": [12.0, 24.0]}},
    }
    assert plain(nnx.state(of_model)) == {"first": {"w": 360.0}, "rest": {0: {"w": 240.0}}}
    assert plain(seen) == {"seen": 12.0}
    assert_untouched(model)


@each_mode
def test_vmap(mode):
    model = Scale(3.0)

    @nnx.capture(nnx.Perturbation)
    def initialize(model, xs):
        graphdef, buffers, rest = nnx.split(model, nnx.Intermediate, ..., graph=mode["graph"])
        return nnx.vmap(
            lambda b, rest, x: nnx.merge(graphdef, b, rest)(x), in_axes=(0, None, 0), **mode
        )(buffers, rest, xs)

    _, perturbations = initialize(model, X)
    assert plain(perturbations) == {"y_tangent": [0.0, 0.0]}
    run = nnx.vmap(
        lambda m, p, x: nnx.capture(m, nnx.Intermediate, init=p)(x), in_axes=(None, 0, 0), **mode
    )
    perturbations["y_tangent"][1] = 1.0
    y, intermediates = run(model, perturbations, X)
    assert y.tolist() == [3.0, 7.0]
    assert plain(intermediates) == {"y": ([3.0, 7.0],)}
    assert not hasattr(model, "__captures__")


@each_mode
def test_scan_over_layers(mode):
    layers = nnx.vmap(Scale, **mode)(X)
    run = nnx.scan(lambda x, m: (m(x), None), **mode)
    (y, _), seen = nnx.capture(lambda m, x: run(x, m), nnx.Intermediate)(layers, 1.0)
    assert y == 2.0
    assert plain(seen) == {"y": ([1.0, 2.0],)}
    inside = nnx.scan(lambda x, m: nnx.capture(m, nnx.Intermediate)(x), **mode)
    assert plain(inside(1.0, layers)[1]) == {"y": ([1.0, 2.0],)}
    assert not hasattr(layers, "__captures__")


def test_the_document_s_two_train_steps_agree():
    def loss(y):
        return jnp.mean((y - 1) ** 2)

    @nnx.compat.jit
    def old(model, x):
        model(x)
        wrt = nnx.DiffState(0, (nnx.Param, nnx.Perturbation))
        gradients = nnx.compat.grad(lambda m: loss(m(x)), argnums=wrt)(model)
        params, of_values = nnx.state(gradients, nnx.Param, nnx.Perturbation)
        nnx.pop(model, nnx.Intermediate)
        return params, of_values

    @nnx.jit(graph=False)
    def new(model, x):
        _, perturbations = nnx.capture(model, nnx.Perturbation)(x)
        return nnx.grad(lambda m, p: loss(nnx.capture(m, init=p)(x)), argnums=(0, 1), graph=False)(
            model, perturbations
        )

    model = Chain()
    params, of_values = old(model, X)
    nnx.pop(model, Seen)
    new_params, new_of_values = new(model, X)
    assert plain(of_values) == plain(new_of_values)
    assert plain(params) == plain(nnx.state(new_params))
    assert_untouched(model)


def test_a_captured_module_cannot_record():
    model = Scale(3.0)
    for run in (
        lambda x: nnx.capture(model, nnx.Intermediate)(x),
        lambda x: nnx.capture(lambda m, x: nnx.jit(lambda x: m(x))(x), nnx.Intermediate)(model, x),
    ):
        with pytest.raises(nnx.errors.TraceContextError):
            nnx.jit(run)(1.0)
    assert not hasattr(model, "__captures__")
