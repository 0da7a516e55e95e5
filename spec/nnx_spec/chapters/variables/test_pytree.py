"""Variables as JAX sees them: pytree nodes whose values are traced and whose metadata is not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import CONVENTION, DOCUMENTED, MUST, clause
from nnx_spec.chapters.variables.cases import array, inside
from nnx_spec.oracles import array_record, user_metadata, variable_record
from nnx_spec.plans import VARIABLE_KINDS, build, build_value, classes, variable_class
from nnx_spec.strategies import metadata, variables

METADATA_VALUES = st.sampled_from(["red", "blue", 1, None, ("a", 2)])


@clause("VAR-012", MUST, CONVENTION, source="jax.tree_util.register_pytree_node")
class TestPytreeNode:
    """A Variable is a pytree node: leaves are its value's, class and metadata are static.

    Two Variables have equal treedefs exactly when their classes, metadata and value structures are
    equal. `jax.tree.unflatten` gives a Variable of the same class and metadata that holds whatever
    leaves it is given.
    """

    @given(plan=variables)
    def test_leaves(self, nnx, plan):
        v = build(nnx, plan)
        expected = jax.tree.leaves(build_value(plan.value))
        assert [array_record(x) for x in jax.tree.leaves(v)] == [array_record(x) for x in expected]
        assert jax.tree.structure(v).num_leaves == len(expected)

    def test_the_leaf_is_the_array(self, nnx):
        x = array([1, 2])
        assert jax.tree.leaves(nnx.Param(x))[0] is x

    @given(plan=variables)
    def test_round_trip(self, nnx, plan):
        v = build(nnx, plan)
        leaves, treedef = jax.tree.flatten(v)
        w = jax.tree.unflatten(treedef, leaves)
        assert w is not v
        assert type(w) is type(v)
        assert variable_record(w) == variable_record(v)
        assert jax.tree.structure(w) == treedef

    @given(plan=variables)
    def test_any_leaves(self, nnx, plan):
        v = build(nnx, plan)
        leaves, treedef = jax.tree.flatten(v)
        markers = [object() for _ in leaves]
        w = jax.tree.unflatten(treedef, markers)
        assert all(a is b for a, b in zip(jax.tree.leaves(w), markers, strict=True))
        assert (type(w), user_metadata(w)) == (type(v), user_metadata(v))

    @given(plan=variables)
    def test_equal_variables_have_equal_treedefs(self, nnx, plan):
        first, second = (jax.tree.structure(build(nnx, plan)) for _ in range(2))
        assert first == second
        assert hash(first) == hash(second)

    @given(kind=st.sampled_from(VARIABLE_KINDS), items=metadata, value=METADATA_VALUES)
    def test_metadata_tells_treedefs_apart(self, nnx, kind, items, value):
        x, cls, one = array([1, 2]), variable_class(nnx, kind), {"first": "red", **dict(items)}
        for name in one:
            other = {**one, name: value}
            v, w = cls(x, **one), cls(x, **other)
            assert (jax.tree.structure(v) == jax.tree.structure(w)) == (one == other)
        assert jax.tree.structure(cls(x, **one, extra=value)) != jax.tree.structure(v)

    @pytest.mark.parametrize(("one", "other"), [*itertools.combinations(VARIABLE_KINDS, 2)])
    def test_classes_tell_treedefs_apart(self, nnx, one, other):
        v, w = (variable_class(nnx, kind)(array([1, 2]), tag="t") for kind in (one, other))
        assert jax.tree.structure(v) != jax.tree.structure(w)

    def test_order_of_metadata_does_not_matter(self, nnx):
        v = nnx.Param(array(1), a=1, b=2)
        w = nnx.Param(array(1), b=2, a=1)
        assert jax.tree.structure(v) == jax.tree.structure(w)

    def test_map(self, nnx):
        v = nnx.BatchStat({"a": array([1, 2]), "b": [array(3)]}, tag="t")
        w = jax.tree.map(lambda x, y: x + y, v, v)
        assert (type(w), user_metadata(w)) == (nnx.BatchStat, {"tag": "t"})
        assert w["a"].tolist() == [2, 4]
        assert w["b"][0].tolist() == 6
        assert v["a"].tolist() == [1, 2]

    def test_map_of_two_classes_is_refused(self, nnx):
        with pytest.raises(ValueError):  # noqa: PT011 - the message is JAX's
            jax.tree.map(lambda x, y: x, nnx.Param(array(1)), nnx.BatchStat(array(1)))

    def test_only_structure_causes_a_trace(self, nnx):
        traces = []

        @jax.jit
        def f(v):
            traces.append(user_metadata(v))
            return v.get_value()

        variants = [(1.0, "a"), (2.0, "a"), (3.0, "b"), (4.0, "a")]
        assert [float(f(nnx.Param(array(x), tag=tag))) for x, tag in variants] == [1, 2, 3, 4]
        assert traces == [{"tag": "a"}, {"tag": "b"}]

    def test_prefix_in_vmap(self, nnx):
        v = nnx.Param({"a": array([[1, 2], [3, 4]]), "b": array([5, 6])})
        assert jax.vmap(lambda v: v["a"].sum() + v["b"], in_axes=0)(v).tolist() == [8, 13]
        assert jax.vmap(lambda v: v["b"], in_axes=(nnx.Param(0),))(v).tolist() == [5, 6]


@clause("VAR-013", MUST, DOCUMENTED, source="key_concepts#traced-vs-static-data")
class TestTracedNumbers:
    """A Python number in a Variable is dynamic, while a number that is a plain attribute is static.

    Inside `jax.jit` the first is a tracer, so that branching on it raises
    `jax.errors.TracerBoolConversionError` and a new number costs no new trace; the second is the
    number itself and may be branched on.
    """

    @pytest.mark.parametrize("number", [4, 2.5, True, 1j], ids=repr)
    @pytest.mark.parametrize("holder", ["itself", "Module"])
    def test_wrapped(self, nnx, holder, number):
        def f(tree):
            v = tree if holder == "itself" else tree.v
            assert isinstance(v.get_value(), jax.core.Tracer)
            assert v.get_value().dtype == jnp.asarray(number).dtype
            for condition in (lambda: v.get_value() == number, lambda: v == number):
                with pytest.raises(jax.errors.TracerBoolConversionError):
                    bool(condition())
            return tree

        v = nnx.Param(number)
        jax.eval_shape(f, v if holder == "itself" else inside(nnx, v))
        assert v.get_value() == number

    @pytest.mark.parametrize("number", [4, 2.5, True], ids=repr)
    def test_unwrapped(self, nnx, number):
        model = inside(nnx, nnx.Param(array(1)))
        model.n = number
        seen = []

        def f(model):
            seen.append(model.n)
            return array(1) if model.n == number else array(2)

        assert float(jax.jit(f)(model)) == 1
        assert seen == [number]
        assert type(seen[0]) is type(number)

    def test_a_new_number_needs_no_new_trace(self, nnx):
        traces = []

        @jax.jit
        def f(v):
            traces.append(1)
            return v.get_value() + 1

        assert [int(f(nnx.Param(n))) for n in (1, 5, 9)] == [2, 6, 10]
        assert len(traces) == 1

    def test_a_new_static_number_needs_one(self, nnx):
        traces = []

        @jax.jit
        def f(model):
            traces.append(model.n)
            return model.v.get_value() * model.n

        model = classes(nnx).Net()
        model.v, results = nnx.Param(np.float32(3)), []
        for n in (2, 5, 2):
            model.n = n
            results.append(float(f(model)))
        assert results == [6, 15, 6]
        assert traces == [2, 5]
