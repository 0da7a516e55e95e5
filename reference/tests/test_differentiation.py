"""nnx.grad and nnx.value_and_grad: gradients, their types, propagation, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx

MODES = [{}, {"graph": True, "graph_updates": False}, {"graph": False}]
MODE_IDS = ["updates", "graph-mode", "tree-mode"]
both = pytest.mark.parametrize("mode", MODES, ids=MODE_IDS)
pure = pytest.mark.parametrize("mode", MODES[1:], ids=MODE_IDS[1:])

X = np.array([1.0, 2.0, 3.0], "float32")


class Scale(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array([2.0, 3.0, 4.0]), tag="t")
        self.b = nnx.Param(jnp.asarray(5.0))
        self.mean = nnx.BatchStat(jnp.asarray(0.0))

    def loss(self, x):
        self.mean[...] = x.mean()
        return (self.w[...] * x).sum() ** 2 / 2 + self.b[...]


def test_a_module_stands_for_its_parameters():
    scale = Scale()
    gradient = nnx.grad(Scale.loss)(scale, X)
    assert type(gradient) is nnx.State
    assert set(gradient) == {"w", "b"}
    assert type(gradient["w"]) is nnx.Param
    assert gradient["w"].tag == "t"
    assert gradient["w"][...].tolist() == [20.0, 40.0, 60.0]
    assert gradient["b"][...] == 1.0
    assert scale.mean[...] == 2.0
    assert scale.w[...].tolist() == [2.0, 3.0, 4.0]


@pure
def test_without_graph_updates_the_gradient_is_like_the_argument(mode):
    scale = Scale()
    gradient = nnx.grad(Scale.loss, **mode)(scale, X)
    assert type(gradient) is Scale
    assert type(gradient.mean) is nnx.BatchStat
    assert gradient.w[...].tolist() == [20.0, 40.0, 60.0]
    assert (gradient.b[...], gradient.mean[...]) == (1.0, 0.0)
    assert scale.mean[...] == 2.0


@both
def test_value_and_gradients_of_several_arguments(mode):
    scale = Scale()
    value, gradients = nnx.value_and_grad(Scale.loss, argnums=(1, 0), **mode)(scale, X)
    assert value == 205.0
    assert isinstance(gradients, tuple)
    assert gradients[0].tolist() == [40.0, 60.0, 80.0]
    assert nnx.to_pure_dict(nnx.state(gradients[1]))["w"].tolist() == [20.0, 40.0, 60.0]
    (single,) = nnx.grad(Scale.loss, argnums=[-1], **mode)(scale, X)
    assert single.tolist() == [40.0, 60.0, 80.0]


@both
def test_auxiliary_output_may_hold_objects(mode):
    @nnx.value_and_grad(has_aux=True, **mode)
    def loss(x, scale):
        return scale.loss(x), {"seen": nnx.Cache(x * 2), "sum": x.sum()}

    scale = Scale()
    (value, aux), gradient = loss(jnp.asarray(X), scale)
    assert (value, aux["sum"]) == (205.0, 6.0)
    assert type(aux["seen"]) is nnx.Cache
    assert aux["seen"][...].tolist() == [2.0, 4.0, 6.0]
    assert gradient.tolist() == [40.0, 60.0, 80.0]
    assert scale.mean[...] == 2.0
    gradient, aux = nnx.grad(lambda x: (x**2, x), has_aux=True, **mode)(3.0)
    assert (gradient, aux) == (6.0, 3.0)


def test_diff_state_selects_variables():
    scale = Scale()
    argnum = nnx.DiffState(0, nnx.PathContains("b"))
    gradient = nnx.grad(Scale.loss, argnums=argnum)(scale, X)
    assert set(gradient) == {"b"}
    both_of = nnx.grad(Scale.loss, argnums=(nnx.DiffState(0, ...), 1))(scale, X)
    assert set(both_of[0]) == {"w", "b", "mean"}
    assert both_of[1].tolist() == [40.0, 60.0, 80.0]


@both
def test_pytrees_of_modules_variables_and_arrays(mode):
    @nnx.grad(**mode)
    def gradient(tree):
        return tree["scale"].loss(X) * tree["factor"] + tree["v"][0][...] ** 2

    found = gradient({"factor": 2.0, "scale": Scale(), "v": [nnx.BatchStat(jnp.asarray(3.0))]})
    assert found["factor"] == 205.0
    assert nnx.to_pure_dict(nnx.state(found["scale"]))["w"].tolist() == [40.0, 80.0, 120.0]
    assert type(found["v"][0]) is nnx.BatchStat
    assert found["v"][0][...] == 6.0


def test_what_is_shared_gets_the_whole_derivative_once():
    scale = Scale()
    pair = nnx.Dict(first=scale, second=scale)
    gradient = nnx.grad(lambda pair: pair["first"].loss(X) + pair["second"].loss(X))(pair)
    assert set(gradient) == {"first"}
    assert gradient["first"]["w"][...].tolist() == [40.0, 80.0, 120.0]


def test_gradients_go_through_writes():
    def loss(v):
        v[...] = v[...] ** 2
        return v[...] * 3

    v = nnx.Param(jnp.asarray(2.0))
    assert nnx.grad(loss)(v)[...] == 12.0
    assert v[...] == 4.0


def test_options_are_those_of_jax():
    found = nnx.grad(lambda z: z**2, holomorphic=True)(1.0 + 2.0j)
    assert found == 2.0 + 4.0j
    counted = nnx.grad(lambda n: jnp.float32(1.0), allow_int=True)(3)
    assert counted.dtype == jax.dtypes.float0
    with pytest.raises(NotImplementedError, match="reduce_axes"):
        nnx.grad(lambda x: x, reduce_axes=("batch",))(1.0)


def test_what_is_refused():
    scale = Scale()
    with pytest.raises(TypeError, match="real- or complex-valued"):
        nnx.grad(lambda n: n * 1.0)(3)
    with pytest.raises(TypeError, match="scalar"):
        nnx.grad(lambda x: x)(X)
    with pytest.raises(TypeError, match=r"not the Param .* v\[\.\.\.\]"):
        nnx.grad(lambda scale: scale.b)(scale)
    with pytest.raises(TypeError, match="has_aux"):
        nnx.grad(lambda x: x, has_aux=True)(1.0)
    with pytest.raises(TypeError, match=r"argnums has 2.*2 positional"):
        nnx.grad(Scale.loss, argnums=2)(scale, X)
    with pytest.raises(ValueError, match=r"argnums has -3.*2 positional"):
        nnx.grad(Scale.loss, argnums=-3)(scale, X)
    with pytest.raises(ValueError, match=r"nnx\.split"):
        nnx.grad(Scale.loss, argnums=nnx.DiffState(0, ...), graph=False)(scale, X)
    with pytest.raises(ValueError, match=r"a.*and b"):
        nnx.grad(lambda a, b: a.loss(X), graph=False)(scale, scale)
    assert scale.mean[...] == 0.0


def test_an_exception_changes_nothing_and_captured_variables_are_not_written():
    scale = Scale()

    def fail(scale):
        scale.mean[...] = 1.0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nnx.grad(fail)(scale)
    with pytest.raises(nnx.errors.TraceContextError, match="BatchStat"):
        nnx.grad(lambda x: scale.loss(x))(X)
    assert scale.mean[...] == 0.0


@both
def test_inside_jit(mode):
    @nnx.jit(**mode)
    def train(scale, x):
        gradient = nnx.grad(lambda x, scale: scale.loss(x), **mode)(x, scale)
        scale.b[...] -= 1.0
        return gradient

    scale = Scale()
    assert train(scale, X).tolist() == [40.0, 60.0, 80.0]
    assert (scale.b[...], scale.mean[...]) == (4.0, 2.0)


@pytest.mark.parametrize("mode", MODES[:2], ids=MODE_IDS[:2])
@pytest.mark.parametrize("argnums", [0, 1, (0,)])
def test_one_object_is_differentiated_everywhere_or_nowhere(mode, argnums):
    def loss(one, other):
        return (one.w[...] * other.w[...]).sum()

    scale = Scale()
    with pytest.raises(ValueError, match="one") as raised:
        nnx.grad(loss, argnums=argnums, **mode)(scale, scale)
    assert "other" in str(raised.value)
    by_one, by_other = nnx.grad(loss, argnums=(0, 1), **mode)(scale, scale)
    found = by_one.w if mode else by_one["w"]
    assert found[...].tolist() == [4.0, 6.0, 8.0]
    assert type(by_other) is type(by_one)
