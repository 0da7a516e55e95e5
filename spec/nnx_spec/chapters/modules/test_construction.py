"""Modules as Python objects: they are there once constructed, and behave as their classes say."""

import abc
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.chapters.modules.models import counted, layers
from nnx_spec.oracles import array_record, state_items
from nnx_spec.plans import classes

X = np.float32([[1, 2], [3, 4]])


def affine(x, linear):
    """Computes what a Linear gives, in NumPy."""
    return x @ np.asarray(linear.kernel.get_value()) + np.asarray(linear.bias.get_value())


@clause("MOD-001", MUST, DOCUMENTED, source="nnx_basics#the-flax-nnx-module-system")
class TestConstruction:
    """A Module is complete once it is constructed: what it holds can be read, replaced and called.

    `__init__` runs at once and once. Parameters are arrays from then on, submodules are the very
    objects that were assigned, methods can be called without any further step, and a replaced
    attribute counts in the next call.
    """

    def test_parameters_are_there(self, nnx):
        model = layers(nnx).MLP()
        assert type(model.first) is layers(nnx).Linear
        assert (model.first.din, model.second.dout, model.factor) == (2, 2, 2)
        assert array_record(model.first.kernel.get_value()) == array_record(counted((2, 3)))
        assert array_record(model.second.bias.get_value()) == array_record(counted((2,), 2))

    def test_init_runs_once(self, nnx):
        calls = []

        class Recorded(nnx.Module):
            def __init__(self, *args, **kwargs):
                calls.append((args, kwargs))

        recorded = Recorded(1, b=2)
        assert calls == [((1,), {"b": 2})]
        jax.tree.map(lambda x: x, recorded)
        nnx.merge(*nnx.split(recorded))
        assert len(calls) == 1

    def test_calls(self, nnx):
        model = layers(nnx).MLP()
        hidden = affine(X, model.first) * 2 + 1
        assert array_record(model.first(X)) == array_record(affine(X, model.first))
        assert array_record(model(X)) == array_record(affine(hidden, model.second))
        assert array_record(model.second(model.first(X) * 2 + 1)) == array_record(model(X))

    def test_attributes_are_the_objects_assigned(self, nnx):
        layer, weight, names = layers(nnx).Linear(2, 2), param(nnx, 1.0), ["a", "b"]
        model = net(nnx, layer=layer, weight=weight, names=names)
        assert model.layer is layer
        assert model.weight is weight
        assert model.names is names

    def test_replacements_count_in_the_next_call(self, nnx):
        model = layers(nnx).MLP()
        model.factor = 3
        model.shifted = False
        model.first.kernel = nnx.Param(counted((2, 3), 5))
        model.second = layers(nnx).Linear(3, 1, start=4)
        first = X @ np.asarray(counted((2, 3), 5)) + np.asarray(counted((3,)))
        second = first * 3 @ np.asarray(counted((3, 1), 4)) + np.float32([4])
        assert array_record(model(X)) == array_record(second)

    def test_calls_that_change_state(self, nnx):
        class Counter(nnx.Module):
            def __init__(self):
                self.count = count(nnx, 0)

            def step(self, by):
                self.count[...] += by
                return self.count.get_value()

        counter = Counter()
        assert [int(counter.step(by)) for by in (1, 2, 3)] == [1, 3, 6]
        assert int(Counter().count.get_value()) == 0


T = TypeVar("T")


@clause("MOD-018", MUST, CONVENTION, source="object")
class TestPythonClasses:
    """Attributes and inheritance of Modules work as for any Python class.

    This holds for `setattr`, `delattr`, `hasattr`, `getattr` and `vars`, for attributes of the
    class, properties, class methods and static methods, for `super().__init__`, mixins, generic and
    abstract classes. Objects compare and hash by identity.
    """

    def test_attributes(self, nnx):
        model = net(nnx, a=1)
        setattr(model, "b", "two")  # noqa: B010 (the function is what is tested)
        model.w = weight = param(nnx, 1.0)
        assert {n: v for n, v in vars(model).items() if not n.startswith("_")} == {
            "a": 1,
            "b": "two",
            "w": weight,
        }
        assert hasattr(model, "b")
        assert not hasattr(model, "zone")
        assert getattr(model, "zone", "default") == "default"
        with pytest.raises(AttributeError, match="zone"):
            _ = model.zone

    @pytest.mark.parametrize("kind", ["static", "Variable", "array", "Module"])
    def test_deletion(self, nnx, kind):
        value = {
            "static": lambda: 1,
            "Variable": lambda: param(nnx, 1.0),
            "array": lambda: counted((2,)),
            "Module": lambda: net(nnx, v=param(nnx, 1.0)),
        }[kind]()
        model = net(nnx, a=value, b=param(nnx, 2.0))
        del model.a
        assert not hasattr(model, "a")
        assert [leaf.tolist() for leaf in jax.tree.leaves(model)] == [2]
        assert [path for path, _ in state_items(nnx.state(model))] == [("b",)]
        with pytest.raises(AttributeError, match="a"):
            del model.a
        model.a = "again"
        assert model.a == "again"

    def test_class_attributes(self, nnx):
        class Layer(nnx.Module):
            kind = "layer"
            shared = nnx.Param(counted((2,)))

        one, other = Layer(), Layer()
        one.kind = "own"
        assert (one.kind, other.kind, Layer.kind) == ("own", "layer", "layer")
        del one.kind
        assert one.kind == "layer"
        assert one.shared is other.shared
        assert jax.tree.leaves(one) == []

    def test_properties(self, nnx):
        class Scaled(nnx.Module):
            def __init__(self):
                self.weight = nnx.Param(counted((2,)))

            @property
            def doubled(self):
                return self.weight.get_value() * 2

            @doubled.setter
            def doubled(self, value):
                self.weight.set_value(value / 2)

            @property
            def fixed(self):
                return "fixed"

        scaled = Scaled()
        scaled.doubled = jnp.asarray([6.0, 8.0])
        assert scaled.weight.get_value().tolist() == [3, 4]
        assert scaled.doubled.tolist() == [6, 8]
        assert [name for name in vars(scaled) if not name.startswith("_")] == ["weight"]
        with pytest.raises(AttributeError):
            scaled.fixed = "loose"
        assert scaled.fixed == "fixed"

    def test_methods_of_the_class(self, nnx):
        class Layer(nnx.Module):
            def __init__(self, width):
                self.width = width

            @classmethod
            def narrow(cls):
                return cls(1)

            @staticmethod
            def double(x):
                return 2 * x

            def __len__(self):
                return self.width

        class Wide(Layer):
            pass

        narrow = Wide.narrow()
        assert type(narrow) is Wide
        assert (narrow.width, len(narrow), narrow.double(4)) == (1, 1, 8)

    def test_inheritance(self, nnx):
        class Base(nnx.Module):
            def __init__(self, width):
                self.width = width
                self.w = nnx.Param(counted((width,)))

            def name(self):
                return "base"

        class Named:
            def __init__(self, *args, tag, **kwargs):
                super().__init__(*args, **kwargs)
                self.tag = tag

        class Derived(Named, Base):
            def __init__(self, width):
                super().__init__(width, tag="t")
                self.bias = nnx.Param(counted((1,)))

            def name(self):
                return "derived of " + super().name()

        derived = Derived(2)
        assert isinstance(derived, Base)
        assert (derived.width, derived.tag, derived.name()) == (2, "t", "derived of base")
        assert [leaf.tolist() for leaf in jax.tree.leaves(derived)] == [[1], [1, 2]]

    def test_subclass_hooks_and_generic_classes(self, nnx):
        class Registered(nnx.Module, Generic[T]):
            def __init_subclass__(cls, tag=None, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.tag = tag

            def __init__(self, value):
                self.value = value

        class Tagged(Registered[int], tag="t"):
            pass

        assert (Tagged(3).value, Tagged(3).tag) == (3, "t")
        assert jax.tree.structure(Tagged(3)) == jax.tree.structure(Tagged(3))

    def test_abstract_classes(self, nnx):
        class Layer(nnx.Module):
            @abc.abstractmethod
            def name(self):
                """Names the layer."""

        class Named(Layer):
            def name(self):
                return "named"

        with pytest.raises(TypeError, match="abstract"):
            Layer()
        assert Named().name() == "named"

    def test_computed_attributes(self, nnx):
        class Open(nnx.Module):
            def __getattr__(self, name):
                if name.startswith("made_"):
                    return name.removeprefix("made_")
                raise AttributeError(name)

        model = Open()
        model.w = param(nnx, 1.0)
        assert (model.made_up, hasattr(model, "zone")) == ("up", False)
        assert nnx.clone(model).made_up == "up"

    @pytest.mark.parametrize("kind", ["Net", "Tree"])
    def test_identity(self, nnx, kind):
        one, other = getattr(classes(nnx), kind)(), getattr(classes(nnx), kind)()
        assert one == one
        assert one != other
        assert len({one, other, one}) == 2
