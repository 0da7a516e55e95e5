"""Memory and threads: what transforms keep, and what calls at the same time do."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import MUST, SOUND, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.transforms.applying import APPLY, each_transform
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import nodes, variables


def all_but(leaking):
    """Lists the transforms, but for one whose namesake in JAX leaks."""
    return [name for name in APPLY if name != leaking]


def model_of(nnx, start=1.0):
    """Makes a Module of Variables, with another Module below."""
    inner = net(nnx, n=count(nnx, 0), scale=param(nnx, [start, start]))
    return net(nnx, w=param(nnx, [start, start + 1]), inner=inner)


def step(model, x):
    """Changes a model; returns an array like x."""
    model.w[...] += x
    model.inner.n[...] += 1
    return model.w[...] * model.inner.scale[...]


def watch(nnx, model, *arrays):
    """Makes weak references to a model, to the nodes and the arrays in it, and to other arrays."""
    held = [*nodes(nnx, model), *arrays]
    held += [v.get_value() for v in variables(nnx, model)]
    return [weakref.ref(x) for x in held]


def alive(watched):
    """Lists the classes of those of the watched things that are alive."""
    gc.collect()
    return [type(x).__name__ for x in [ref() for ref in watched] if x is not None]


@clause("TRX-031", MUST, SOUND, source="memory of what the caller has given up is never freed")
class TestMemory:
    """Transforms keep no memory alive that the caller has given up.

    After a call, the inputs and their arrays, those from before the call and those that it wrote,
    and the outputs can be freed, while the transformed function lives on; when that is given up as
    well, what it captured can be freed. So it is after an exception, too.
    """

    @each_transform()
    def test_inputs_and_outputs(self, nnx, transform, mode):
        transformed = APPLY[transform](nnx, step, mode)
        assert alive(self.call(nnx, transformed)) == []
        before = len(jax.live_arrays())
        assert alive(self.call(nnx, transformed)) == []
        more = len(jax.live_arrays()) - before
        assert more <= 0, f"a further call keeps {more} arrays alive"

    @staticmethod
    def call(nnx, transformed):
        """Calls a transformed function on a model of its own, and watches what takes part."""
        model, x = model_of(nnx), jnp.ones(2)
        refs = watch(nnx, model, x)
        y = transformed(model, x)
        assert int(model.inner.n[...]) == 1
        return refs + watch(nnx, model, y)

    @each_transform(*all_but("checkify"))
    def test_exceptions(self, nnx, transform, mode):
        def fail(model, x):
            step(model, x)
            raise LookupError("planned")

        transformed = APPLY[transform](nnx, fail, mode)
        assert alive(self.fail(nnx, transformed)) == []

    @staticmethod
    def fail(nnx, transformed):
        """Calls a transformed function that raises, and watches its arguments."""
        model, x = model_of(nnx), jnp.ones(2)
        with pytest.raises(LookupError, match="planned"):
            transformed(model, x)
        return watch(nnx, model, x)

    @each_transform(*all_but("pmap"))
    def test_captured(self, nnx, transform, mode):
        assert alive(self.capture(nnx, APPLY[transform], mode)) == []

    @staticmethod
    def capture(nnx, apply, mode):
        """Applies a transform to a function that captures a model, and watches the model."""
        captured = model_of(nnx, 3.0)
        refs = watch(nnx, captured)

        def f(model, x):
            return x * captured.w[...] + captured.inner.scale[...] + model.w[...]

        y = apply(nnx, f, mode)(model_of(nnx), jnp.ones(2))
        np.testing.assert_array_equal(y, [7, 9])
        return refs

    @each_mode
    def test_output_that_is_kept(self, nnx, mode):
        """Keeps an output that was made of an input, and gives up the input."""

        @nnx.jit(**mode)
        def make(model):
            model.w[...] += 1
            return net(nnx, w=nnx.Param(model.w[...] * 2))

        model = model_of(nnx)
        refs = watch(nnx, model)
        made = make(model)
        refs += watch(nnx, model)
        del model
        assert alive(refs) == []
        np.testing.assert_array_equal(made.w[...], [4, 6])


THREADS = 4


@clause("TRX-032", MUST, SOUND, source="state of one thread silently ends up in another")
class TestThreads:
    """Calls of one transformed function in several threads, on different models, do not mix state.

    Each model ends up, and each result is, as if its calls had been the only ones, also where the
    function is being traced in several threads at once.
    """

    @each_mode
    @pytest.mark.parametrize("name", ["jit", "vmap", "grad", "scan"])
    def test_every_model_by_itself(self, nnx, mode, name):
        transformed = APPLY[name](nnx, step, mode)

        def use(start):
            model, found = model_of(nnx, start), []
            for x in range(1, 4):
                found.append(transformed(model, jnp.full(2, float(x))).tolist())
            return model.w[...].tolist(), int(model.inner.n[...]), found

        for start, (w, n, found) in enumerate(self.in_threads(use)):
            assert (w, n) == ([start + 6, start + 7], 3)
            assert found == [[(start + s) * start, (start + 1 + s) * start] for s in (1, 3, 6)]

    @each_mode
    @pytest.mark.parametrize("name", ["vmap", "grad", "value_and_grad"])
    def test_inside_at_once(self, nnx, mode, name):
        """Has every thread inside the function, with its model changed, before any goes on."""
        barrier = threading.Barrier(THREADS, timeout=60)

        def wait(model, x):
            model.w[...] += x
            barrier.wait()
            model.inner.n[...] += 1
            barrier.wait()
            return model.w[...] * model.inner.n[...]

        transformed = APPLY[name](nnx, wait, mode)

        def use(start):
            model = model_of(nnx, start)
            y = transformed(model, jnp.full(2, float(start)))
            return model.w[...].tolist(), int(model.inner.n[...]), y.tolist()

        for start, (w, n, y) in enumerate(self.in_threads(use)):
            assert (w, n, y) == ([2 * start, 2 * start + 1], 1, [2 * start, 2 * start + 1])

    @each_mode
    def test_different_structures(self, nnx, mode):
        """Has every thread trace one function of `jit` for a structure of its own."""
        jitted = nnx.jit(lambda model, x: step(model, x) * model.factor, **mode)

        def use(factor):
            model = model_of(nnx)
            model.factor = factor
            model.extra = nnx.List([param(nnx, n) for n in range(factor)])
            return jitted(model, jnp.ones(2)).tolist(), model.w[...].tolist(), len(model.extra)

        for factor, found in enumerate(self.in_threads(use)):
            assert found == ([2 * factor, 3 * factor], [2, 3], factor)

    @staticmethod
    def in_threads(use):
        """Calls a function of a number in several threads at once."""
        start = threading.Barrier(THREADS, timeout=60)

        def run(number):
            start.wait()
            return use(number)

        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(run, range(THREADS)))
