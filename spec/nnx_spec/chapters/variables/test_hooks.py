"""Hooks that a class of Variables has: methods that run when a value is made, read or written."""

import functools

import jax
import numpy as np
import pytest

from nnx_spec import OURS, SHOULD, TESTED, clause, stands_on
from nnx_spec.chapters.variables.cases import SECONDS, array

pytestmark = pytest.mark.filterwarnings("ignore:.*[Hh]ooks are deprecated")

CONTAINERS = "tests/nnx/containers_test.py::TestContainers::"


@functools.cache
def hooked(nnx):
    """Makes a class of Variables with every hook; each changes the value or adds a call."""

    class Hooked(nnx.Param):
        def on_create_value(self, value):
            return value + 1

        def on_set_value(self, value):
            return value + 10

        def on_get_value(self, value):
            return value + 100

        def on_add_axis(self, index, name):
            calls.append(("add", index, name))

        def on_remove_axis(self, index, name):
            calls.append(("remove", index, name))

    calls = []
    return Hooked, calls


@clause("VAR-028", SHOULD, OURS, source="a kind of Variable has its hooks wherever one is made")
class TestHooksOfClasses:
    """A class of Variables has hooks as methods: each runs as the hook of that name in metadata.

    They are `on_create_value`, `on_get_value`, `on_set_value`, `on_add_axis` and `on_remove_axis`;
    subclasses inherit them, copies have them, and metadata of that name takes the method's place.
    Flax's Variable declares them so; its documents tell of those in metadata alone, and say that a
    class may also override `get_value` and `set_value`.
    """

    def test_values(self, nnx):
        v = hooked(nnx)[0](array(5))
        assert (float(v.get_raw_value()), float(v[...]), float(v.get_value())) == (6, 106, 106)
        v[...] = array(7)
        assert (float(v.get_raw_value()), float(v[...])) == (17, 117)
        v.set_value(array(8))
        assert (float(v.get_raw_value()), float(v.get_value())) == (18, 118)

    def test_axes(self, nnx):
        cls, calls = hooked(nnx)
        calls.clear()
        v = cls(array(5))
        v.add_axis(0, "layers")
        v.remove_axis(1, None)
        assert calls == [("add", 0, "layers"), ("remove", 1, None)]

    def test_subclasses_and_siblings(self, nnx):
        class Under(hooked(nnx)[0]):
            def on_get_value(self, value):
                return value + 1000

        assert float(Under(array(5))[...]) == 1006
        assert float(nnx.Param(array(5))[...]) == 5

    def test_metadata_takes_their_place(self, nnx):
        v = hooked(nnx)[0](array(5), on_get_value=lambda v, value: value + 2)
        assert (float(v.get_raw_value()), float(v[...])) == (6, 8)

    @pytest.mark.parametrize("way", SECONDS)
    def test_copies(self, nnx, way):
        v = hooked(nnx)[0](array([5.0]))
        v.set_raw_value(array([6.0]))
        w = SECONDS[way](nnx, v)
        start = float(w.get_raw_value()[0])
        assert float(w[...][0]) == start + 100
        w[...] = array([7])
        assert float(w.get_raw_value()[0]) == 17

    def test_in_a_trace(self, nnx):
        @jax.jit
        def f(v, y):
            v[...] = y
            return v.get_raw_value(), v[...]

        raw, read = f(hooked(nnx)[0](array(5)), np.float32(7))
        assert (float(raw), float(read)) == (17, 117)

    @stands_on(TESTED, CONTAINERS + "test_module_box")
    def test_overridden_access(self, nnx):
        class Shifted(nnx.Param):
            def get_value(self, **kwargs):
                return super().get_value(**kwargs) + 3

            def set_value(self, value, **kwargs):
                super().set_value(value + 7, **kwargs)

        v = Shifted(array(1))
        assert float(v[...]) == float(v.get_value()) == 4
        v[...] = array(5)
        assert (float(v.get_raw_value()), float(v[...])) == (12, 15)
