"""Method outputs: capturing what every method returns."""

import functools

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.capture.models import X, defaults, everything, found, wanted
from nnx_spec.chapters.transforms.modes import each_mode
from nnx_spec.oracles import nodes


@functools.cache
def encoder(nnx):
    """Makes the class of a Module that has Modules, and methods of its own and of its base."""

    class Base(nnx.Module):
        def shifted(self, x, *, by=1):
            return x + by

    class Part(Base):
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x * self.factor

        def twice(self, x):
            return self(self(x))

    class Encoder(nnx.Module):
        def __init__(self):
            self.part = Part(2.0)
            self.more = nnx.List([Part(3.0), Part(5.0)])

        def head(self, x):
            return {"head": x, "pair": (x, -x)}

        def __call__(self, x):
            x = self.more[1].twice(self.more[0](self.part(x)))
            self.sow(nnx.Intermediate, "sown", x)
            return self.head(x + self.part(X(1)))

    return Encoder


def parts(x):
    """Lists what the parts of an Encoder return in a call, by path."""
    return {
        ("part", "__call__"): (2 * x, 2),
        ("more", 0, "__call__"): (6 * x,),
        ("more", 1, "__call__"): (30 * x, 150 * x),
        ("more", 1, "twice"): (150 * x,),
    }


def whole(x):
    """Lists what an Encoder's methods return in a call, by path."""
    y = 150 * x + 2
    output = {"head": y, "pair": (y, -y)}
    return parts(x) | {("__call__",): (output,), ("head",): (output,)}


@clause(
    "CAP-007",
    MUST,
    DOCUMENTED,
    source="guides/extracting_intermediates#capturing-all-intermediate-values",
)
class TestMethodOutputs:
    """With `method_outputs=Type` a capture of that Type has what each method returned, in order.

    It stands at the path of the method's Module under the method's name. Methods of a class are
    those that it defines itself; those of submodules are among them, and so is the call that is
    captured, also if it is a bound method. What is sown is there as well. Results, and what is no
    method of an instance, are as without.
    """

    @each_mode
    def test_module(self, nnx, mode):
        model = encoder(nnx)()
        before = everything(nnx, model)
        with defaults(nnx, mode):
            options = {"method_outputs": nnx.Intermediate}
            result, state = nnx.capture(model, nnx.Intermediate, **options)(X(3))
        assert {key: float(value) for key, value in result.items() if key == "head"} == {
            "head": 452
        }
        expected = whole(3) | {("sown",): (450,)}
        assert found(state, nnx.Intermediate) == wanted(expected)
        assert everything(nnx, model) == before

    def test_a_type_of_its_own(self, nnx):
        class Output(nnx.Intermediate):
            """A kind of intermediate value of the user's own."""

        capturing = nnx.capture(encoder(nnx)(), Output, method_outputs=Output)
        assert found(capturing(X(3))[1], Output) == wanted(whole(3))

    def test_function(self, nnx):
        def f(model, x):
            return model.head(model.part(x)), model.more[0].twice(x)

        kinds = {"method_outputs": nnx.Intermediate}
        _, state = nnx.capture(f, nnx.Intermediate, **kinds)(encoder(nnx)(), X(3))
        expected = {
            ("head",): ({"head": 6, "pair": (6, -6)},),
            ("part", "__call__"): (6,),
            ("more", 0, "__call__"): (9, 27),
            ("more", 0, "twice"): (27,),
        }
        assert found(state) == wanted(expected)

    def test_method(self, nnx):
        model = encoder(nnx)()
        options = {"method_outputs": nnx.Intermediate}
        result, state = nnx.capture(model.part.twice, nnx.Intermediate, **options)(X(3))
        expected = {("__call__",): (6, 12), ("twice",): (12,)}
        assert (float(result), found(state)) == (12, wanted(expected))

    def test_what_is_no_method(self, nnx):
        class Model(nnx.Module):
            @staticmethod
            def helper(x):
                return x + 1

            @classmethod
            def name(cls):
                return cls.__name__

            @property
            def two(self):
                return 2

            def __call__(self, x):
                return {self.name(): self.helper(x) * self.two}

        options = {"method_outputs": nnx.Intermediate}
        result, state = nnx.capture(Model(), nnx.Intermediate, **options)(X(3))
        assert (float(result["Model"]), len(result)) == (8, 1)
        recorded = [path for path in (("__call__",), ("two",)) if path in found(state)]
        assert recorded == [("__call__",)]

    def test_methods_work_as_before_afterwards(self, nnx):
        model = encoder(nnx)()
        classes = [(type(node), dict(vars(type(node)))) for node in nodes(nnx, model)]
        options = {"method_outputs": nnx.Intermediate}
        nnx.capture(model, nnx.Intermediate, **options)(X(3))
        assert [(type(node), dict(vars(type(node)))) for node in nodes(nnx, model)] == classes
        other = nnx.capture(encoder(nnx)(), nnx.Intermediate)(X(3))[1]
        assert found(other) == wanted({("sown",): (450,)})


@clause("CAP-012", SHOULD, OURS, source="a method is one of the object's, wherever it is defined")
def test_inherited_methods(nnx):
    """With `method_outputs`, what inherited methods return is captured as well.

    (Upstream says of its implementation that it does not instrument methods of superclasses.)
    """

    def f(model, x):
        return model.part.shifted(x, by=4), model.more[0].shifted(x)

    options = {"method_outputs": nnx.Intermediate}
    result, state = nnx.capture(f, nnx.Intermediate, **options)(encoder(nnx)(), X(3))
    expected = {("part", "shifted"): (7,), ("more", 0, "shifted"): (4,)}
    assert (tuple(map(float, result)), found(state)) == ((7, 4), wanted(expected))
