"""Model surgery: replacing parts of a model, tying them together and taking them apart."""

import jax
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted, layers
from nnx_spec.oracles import array_record, state_items
from nnx_spec.plans import classes

X = np.float32([[1, 2, 3]])


def two_layers(nnx):
    """Makes a Module that applies the Linears `first` and `second`, three to three."""

    class TwoLayers(nnx.Module):
        def __init__(self):
            self.first = layers(nnx).Linear(3, 3)
            self.second = layers(nnx).Linear(3, 3, start=2)

        def __call__(self, x):
            return self.second(self.first(x))

    return TwoLayers()


def paths(nnx, model):
    """Lists the paths of a model's State."""
    return [path for path, _ in state_items(nnx.state(model))]


def rebuilt(nnx, model):
    """Splits and merges a model."""
    return nnx.merge(*nnx.split(model))


ALL = [(layer, name) for layer in ("first", "second") for name in ("bias", "kernel")]


@clause("MOD-015", MUST, DOCUMENTED, source="guides/surgery#pythonic-nnx-module-manipulation")
class TestSurgery:
    """A part of a model can be replaced by assignment, which counts in calls, states and splits.

    A submodule may give way to another, of any class, to one that wraps it, to one that stands
    elsewhere in the model, and to a plain function. A Variable that is assigned in two places is
    one, in the State and after split and merge; assigning another one separates the places again.
    """

    def check(self, nnx, model, expected, found):
        assert array_record(model(X)) == array_record(expected)
        assert array_record(rebuilt(nnx, model)(X)) == array_record(expected)
        assert paths(nnx, model) == found

    def test_swap(self, nnx):
        model = two_layers(nnx)
        first, second = model.first, model.second
        model.first, model.second = second, first
        self.check(nnx, model, first(second(X)), ALL)
        assert array_record(first(second(X))) != array_record(second(first(X)))

    def test_another_class(self, nnx):
        class Scale(nnx.Module):
            def __init__(self):
                self.factor = nnx.BatchStat(counted((3,)))

            def __call__(self, x):
                return x * self.factor

        model = two_layers(nnx)
        model.second = Scale()
        self.check(
            nnx, model, model.first(X) * np.float32([1, 2, 3]), [*ALL[:2], ("second", "factor")]
        )

    def test_wrapper(self, nnx):
        class Adapted(nnx.Module):
            def __init__(self, linear):
                self.linear = linear
                self.low, self.high = nnx.LoRAParam(counted((3, 1))), nnx.LoRAParam(counted((1, 3)))

            def __call__(self, x):
                return self.linear(x) + x @ self.low @ self.high

        model = two_layers(nnx)
        linear, unadapted = model.first, model(X)
        model.first = Adapted(model.first)
        low, high = np.asarray(counted((3, 1))), np.asarray(counted((1, 3)))
        expected = [("first", "high"), *[("first", "linear", name) for name in ("bias", "kernel")]]
        expected += [("first", "low"), *ALL[2:]]
        self.check(nnx, model, model.second(linear(X) + X @ low @ high), expected)
        assert model.first.linear is linear
        model.first = model.first.linear
        self.check(nnx, model, unadapted, ALL)

    def test_plain_function(self, nnx):
        model = two_layers(nnx)
        model.second = lambda x: x + 1
        expected = model.first(X) + 1
        assert array_record(model(X)) == array_record(expected)
        assert array_record(rebuilt(nnx, model)(X)) == array_record(expected)
        found = state_items(nnx.state(model, nnx.Param))
        assert [path for path, _ in found] == ALL[:2]

    def test_shared_module(self, nnx):
        model = two_layers(nnx)
        model.second = model.first
        self.check(nnx, model, model.first(model.first(X)), ALL[:2])
        copy = rebuilt(nnx, model)
        assert copy.second is copy.first
        assert copy.first is not model.first

    def test_tied_and_untied_variables(self, nnx):
        model = two_layers(nnx)
        first, second = model.first, model.second
        kernel = first.kernel
        first.kernel = second.kernel
        assert first.kernel is second.kernel
        weights = np.asarray(second.kernel.get_value())
        hidden = X @ weights + np.asarray(first.bias.get_value())
        expected = hidden @ weights + np.asarray(second.bias.get_value())
        self.check(nnx, model, expected, [*ALL[:2], ("second", "bias")])
        copy = rebuilt(nnx, model)
        assert copy.first.kernel is copy.second.kernel

        first.kernel = kernel
        assert paths(nnx, model) == ALL
        second.kernel[...] = 0.0
        assert array_record(first.kernel.get_value()) == array_record(counted((3, 3)))
        copy = rebuilt(nnx, model)
        assert copy.first.kernel is not copy.second.kernel

    def test_removed_and_added_parts(self, nnx):
        model = net(nnx, a=param(nnx, 1.0), b=net(nnx, w=param(nnx, 2.0)))
        del model.b
        model.c = nnx.List([param(nnx, 3.0)])
        model.c.append(net(nnx, w=param(nnx, 4.0)))
        assert paths(nnx, model) == [("a",), ("c", 0), ("c", 1, "w")]
        assert jax.tree.leaves(rebuilt(nnx, model)) == [1, 3, 4]

    @pytest.mark.parametrize("kind", ["Net", "Tree"])
    def test_replacing_all_of_a_kind(self, nnx, kind):
        model = net(nnx, a=layers(nnx).Linear(3, 3), b=net(nnx, c=layers(nnx).Linear(3, 3)), n=3)
        for path, module in [*nnx.iter_modules(model)]:
            for name, child in [*nnx.iter_children(module)]:
                if isinstance(child, layers(nnx).Linear):
                    replacement = getattr(classes(nnx), kind)()
                    replacement.v = nnx.Param(counted((1,), len(path)))
                    setattr(module, name, replacement)
        assert paths(nnx, model) == [("a", "v"), ("b", "c", "v")]
        assert [leaf.tolist() for leaf in jax.tree.leaves(model)] == [[0], [1]]
