"""Classes: the surface's kinds of Variable, and those that users define."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.variables.cases import SECONDS, array, inside
from nnx_spec.oracles import array_record, user_metadata, variable_record
from nnx_spec.plans import build_value, classes
from nnx_spec.strategies import metadata, variables

PARENTS = {
    "Param": "Variable",
    "BatchStat": "Variable",
    "Cache": "Variable",
    "Intermediate": "Variable",
    "Perturbation": "Variable",
    "RngState": "Variable",
    "RngKey": "RngState",
    "RngCount": "RngState",
    "OptState": "Variable",
    "LoRAParam": "Param",
}
"""The surface's classes of Variable, and for each a class that it is under."""

UNRELATED = ("Param", "BatchStat", "Cache", "Intermediate", "RngState", "OptState")
"""Classes of which no two have anything in common but `Variable`."""


@clause("VAR-019", MUST, DOCUMENTED, source="api_reference/flax.nnx/variables")
class TestSurfaceClasses:
    """The surface has ten classes of Variable; a class is under another only as said here.

    They are Param, BatchStat, Cache, Intermediate, Perturbation, RngState, RngKey, RngCount,
    OptState and LoRAParam, all under Variable; RngKey and RngCount are under RngState, LoRAParam is
    under Param. Siblings are no subclasses of one another, so that a filter tells them apart.
    """

    @pytest.mark.parametrize(("name", "parent"), PARENTS.items())
    def test_parents(self, nnx, name, parent):
        cls = getattr(nnx, name)
        assert issubclass(cls, getattr(nnx, parent))
        assert issubclass(cls, nnx.Variable)
        assert cls is not getattr(nnx, parent)
        assert cls.__name__ == name

    @pytest.mark.parametrize(
        ("one", "other"),
        [*itertools.permutations(UNRELATED, 2), ("RngKey", "RngCount"), ("RngCount", "RngKey")],
    )
    def test_siblings(self, nnx, one, other):
        assert not issubclass(getattr(nnx, one), getattr(nnx, other))

    @pytest.mark.parametrize("name", ["Variable", *PARENTS])
    def test_parents_are_not_children(self, nnx, name):
        under = {child for child, parent in PARENTS.items() if name == parent}
        for child in under:
            assert not issubclass(getattr(nnx, name), getattr(nnx, child))

    @pytest.mark.parametrize("name", PARENTS)
    def test_instances(self, nnx, name):
        x = array([1, 2])
        v = getattr(nnx, name)(x, tag="t")
        assert type(v) is getattr(nnx, name)
        assert array_record(v[...]) == array_record(x)
        assert v.tag == "t"

    @pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
    def test_filters(self, nnx, graph):
        model = classes(nnx).Net()
        for name in PARENTS:
            setattr(model, name, getattr(nnx, name)(array(1)))
        for name in UNRELATED:
            cls = getattr(nnx, name)
            expected = {child for child in PARENTS if issubclass(getattr(nnx, child), cls)}
            assert set(nnx.state(model, cls, graph=graph)) == expected
        assert set(nnx.state(model, nnx.RngState)) == {"RngState", "RngKey", "RngCount"}
        assert set(nnx.state(model, nnx.Param)) == {"Param", "LoRAParam"}


def pass_through(v):
    """Gives back what it gets."""
    return v


def loop(f, v):
    """Runs a `while_loop` of one round over a counter and the Variable."""
    return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1])), (0, v))[1]


TRANSFORMS = {
    "jit": lambda f, v: jax.jit(f)(v),
    "checkpoint": lambda f, v: jax.checkpoint(f)(v),
    "vmap": lambda f, v: jax.vmap(f)(v),
    "vmap-axis-1": lambda f, v: jax.vmap(f, in_axes=1, out_axes=1)(v),
    "scan-carry": lambda f, v: jax.lax.scan(lambda c, _: (f(c), None), v, length=2)[0],
    "scan-over": lambda f, v: jax.lax.scan(lambda c, x: (c, f(x)), 0, v)[1],
    "map": lambda f, v: jax.lax.map(f, v),
    "cond": lambda f, v: jax.lax.cond(np.True_, f, pass_through, v),
    "switch": lambda f, v: jax.lax.switch(1, [pass_through, f], v),
    "while_loop": loop,
    "fori_loop": lambda f, v: jax.lax.fori_loop(0, 2, lambda i, c: f(c), v),
    "eval_shape": lambda f, v: jax.eval_shape(f, v),
    "jvp": lambda f, v: jax.jvp(f, (v,), (v,))[0],
    "jvp-tangent": lambda f, v: jax.jvp(f, (v,), (v,))[1],
    "vjp": lambda f, v: jax.vjp(f, v)[0],
    "vjp-cotangent": lambda f, v: jax.vjp(f, v)[1](v)[0],
    "grad": lambda f, v: jax.grad(lambda v: f(v).get_value().sum())(v),
    "value_and_grad": lambda f, v: jax.value_and_grad(lambda v: f(v)[...].sum())(v)[1],
    "linearize": lambda f, v: jax.linearize(f, v)[0],
    "device_put": lambda f, v: jax.device_put(f(v)),
}
"""Transforms of JAX that take a pytree and give one of the same structure, by name."""


@clause("VAR-011", MUST, DOCUMENTED, source="api_reference/flax.nnx/variables#flax.nnx.Variable")
class TestUserClasses:
    """A user-defined subclass is a kind of its own, which nothing that NNX or JAX does to it loses.

    `isinstance`, filters and `split` see it as its class and as its bases, and tell it from its
    siblings. Class and metadata survive `copy`, `replace`, `clone`, `split` and `merge`,
    `jax.tree.map`, and every transform of JAX that takes the Variable as an argument.
    """

    @staticmethod
    def family(nnx):
        """Makes a Module with a Param `a`, three classes under it `b` to `d`, a BatchStat `e`."""

        class Kernel(nnx.Param):
            pass

        class Deep(Kernel):
            pass

        class Other(nnx.Param):
            pass

        model = classes(nnx).Net()
        for name, cls in zip("abcde", (nnx.Param, Kernel, Deep, Other, nnx.BatchStat), strict=True):
            setattr(model, name, cls(array(1)))
        return model, Kernel, Deep, Other

    def test_isinstance(self, nnx):
        model, kernel, deep, other = self.family(nnx)
        for base in (deep, kernel, nnx.Param, nnx.Variable):
            assert isinstance(model.c, base)
        assert not isinstance(model.c, other)
        assert not isinstance(model.c, nnx.BatchStat)
        assert not isinstance(model.b, deep)
        assert [type(model.b), type(model.c)] == [kernel, deep]

    @pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
    def test_filters_and_split(self, nnx, graph):
        model, kernel, deep, other = self.family(nnx)
        for cls, names in (
            (deep, "c"),
            (kernel, "bc"),
            (other, "d"),
            (nnx.Param, "abcd"),
            (nnx.BatchStat, "e"),
            (nnx.Variable, "abcde"),
        ):
            assert set(nnx.state(model, cls, graph=graph)) == set(names)
            _, chosen, rest = nnx.split(model, cls, ..., graph=graph)
            assert set(chosen) == set(names)
            assert set(rest) == set("abcde") - set(names)

    @pytest.mark.parametrize("graph", [False, True], ids=["tree-mode", "graph-mode"])
    def test_the_first_filter_that_matches_takes_it(self, nnx, graph):
        model, kernel, deep, _ = self.family(nnx)
        _, *groups = nnx.split(model, deep, kernel, nnx.Param, ..., graph=graph)
        assert [set(group) for group in groups] == [{"c"}, {"b"}, {"a", "d"}, {"e"}]

    @pytest.mark.parametrize("way", SECONDS)
    @given(items=metadata, plan=variables)
    def test_survives(self, nnx, way, items, plan):
        cls = classes(nnx).SpecialParam
        v = cls(build_value(plan.value), **dict(items))
        w = SECONDS[way](nnx, v)
        assert w is not v
        assert type(w) is cls
        assert variable_record(w) == variable_record(v)

    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_survives_transforms(self, nnx, name):
        cls, seen = classes(nnx).SpecialParam, []

        def f(v):
            seen.append((type(v), user_metadata(v)))
            return v

        w = TRANSFORMS[name](f, cls(array([[1, 2], [3, 4]]), tag="t", note=("a", None)))
        expected = (cls, {"tag": "t", "note": ("a", None)})
        assert seen
        assert all(record == expected for record in [*seen, (type(w), user_metadata(w))])

    @pytest.mark.parametrize("name", ["jit", "vmap", "scan-carry", "vjp-cotangent", "eval_shape"])
    @pytest.mark.parametrize("holder", ["Module", "State"])
    def test_survives_transforms_inside(self, nnx, holder, name):
        cls, seen = classes(nnx).SpecialParam, []
        model = inside(nnx, cls(array([[1, 2], [3, 4]]), tag="t"))
        tree = model if holder == "Module" else nnx.state(model)

        def f(tree):
            seen.append((type(tree.v), user_metadata(tree.v)))
            return tree

        w = TRANSFORMS[name](f, tree).v
        assert seen
        assert all(r == (cls, {"tag": "t"}) for r in [*seen, (type(w), user_metadata(w))])

    def test_methods_and_attributes_of_the_class(self, nnx):
        class Scaled(nnx.Param):
            factor = 3

            def scaled(self):
                return self[...] * self.factor

        v = Scaled(array([1, 2]))
        assert v.scaled().tolist() == v.copy().scaled().tolist() == [3, 6]
        assert jax.jit(lambda v: v.scaled())(v).tolist() == [3, 6]
