"""What the reference promises of Variables beyond the clauses, and how its errors read."""

import copy
import gc
import math
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_reference.describing import describe
from nnx_reference.errors import ImmutableVariableError, TraceContextError
from nnx_reference.jax_private import current_trace
from nnx_reference.metadata import SHOWN, Metadata, VariableMetadata, with_metadata
from nnx_reference.variables import BatchStat, Param, Variable, new_variable


class Doubled(Variable):
    """Reads twice what is stored, and stores one more than what is written."""

    def get_value(self, **index):
        return 2 * super().get_value(**index)

    def set_value(self, value, **index):
        super().set_value(value + 1, **index)


class TestOverriding:
    """A subclass that overrides `get_value` or `set_value` changes every way of access."""

    @pytest.mark.parametrize(
        "read",
        [
            lambda v: v[...],
            lambda v: v.value,
            lambda v: v + 0,
            lambda v: jnp.negative(-v),
            lambda v: v.T,
            lambda v: np.asarray(v),
            lambda v: jnp.stack([v[0], v[1]]),
            lambda v: jnp.stack(list(v)),
        ],
    )
    def test_reading(self, read):
        assert read(Doubled(jnp.arange(2.0))).tolist() == [0.0, 2.0]

    def test_writing(self):
        v = Doubled(jnp.zeros(2))
        v[...] = 5.0
        assert v.get_raw_value().tolist() == [6.0, 6.0]
        v[0] = 1.0
        assert v.get_raw_value().tolist() == [2.0, 6.0]
        v.value = jnp.zeros(2)
        assert v.get_raw_value().tolist() == [1.0, 1.0]

    def test_structure_and_copies_hold_what_is_stored(self):
        v = Doubled(jnp.ones(2))
        assert jax.tree.leaves(v)[0].tolist() == [1.0, 1.0]
        assert v.copy().get_raw_value().tolist() == [1.0, 1.0]


class TestItems:
    def test_whole_of_an_array_is_fitted_to_it(self):
        v = Variable(jnp.zeros(2, jnp.int32))
        v[...] = 3
        assert v[...].tolist() == [3, 3]
        assert v.dtype == jnp.int32
        with pytest.raises(ValueError, match="broadcast"):
            v[...] = jnp.ones(3, jnp.int32)
        assert v[...].tolist() == [3, 3]

    def test_an_array_of_the_same_type_is_stored_itself(self):
        v, array = Variable(jnp.zeros(2)), jnp.ones(2)
        v[...] = array
        assert v.get_raw_value() is array

    @pytest.mark.parametrize("value", [3, {"a": 1}, (1, 2), None])
    def test_ellipsis_is_the_whole_of_what_is_no_array(self, value):
        v = Variable(value)
        assert v[...] is value
        v[...] = "other"
        assert v.get_raw_value() == "other"

    def test_numpy_values_stay_numpy_and_are_copied(self):
        array = np.arange(3.0)
        v = Variable(array)
        v[1] = 9
        assert isinstance(v.get_raw_value(), np.ndarray)
        assert (v.get_raw_value().tolist(), v.dtype) == ([0.0, 9.0, 2.0], np.float64)
        assert array.tolist() == [0.0, 1.0, 2.0]

    def test_numpy_values_take_tracers(self):
        def set_first(x):
            v = Variable(np.zeros(2, np.float32))
            v[0] = x
            return v[...]

        assert jax.jit(set_first)(4.0).tolist() == [4.0, 0.0]

    def test_containers_are_copied_before_a_write(self):
        given = {"a": 1}
        v = Variable(given)
        v["b"] = 2
        del v["a"]
        assert v.get_value() == {"b": 2}
        assert given == {"a": 1}

    def test_copies_share_no_inner_container(self):
        v = Variable({"a": {"b": [1]}, "c": np.zeros(1)})
        w = v.copy()
        w["a"]["b"].append(2)
        w["c"][0] = 5
        assert v.get_value() == {"a": {"b": [1]}, "c": np.zeros(1)}

    def test_copies_keep_the_order_of_keys(self):
        assert list(Variable({"b": 1, "a": 2}).copy()) == ["b", "a"]

    @pytest.mark.parametrize(("value", "name"), [((1, 2), "tuple"), (3, "int")])
    def test_values_without_settable_items(self, value, name):
        v = Variable(value)
        with pytest.raises(TypeError, match=name):
            v[0] = 5
        with pytest.raises(TypeError, match=name):
            del v[0]
        assert v.get_value() == value

    def test_variables_as_items_and_indexes_give_their_values(self):
        v = Variable([1, 2, 3])
        v[Variable(1)] = Variable(7)
        assert v.get_value() == [1, 7, 3]
        assert v[Variable(1)] == 7
        v.set_value(Variable(4))
        assert v.get_raw_value() == 4


class TestProtocols:
    def test_conversions(self):
        v = Variable(2.5)
        assert (int(v), float(v), complex(v), bool(v)) == (2, 2.5, 2.5 + 0j, True)
        assert (round(v), math.trunc(v), math.floor(v), math.ceil(v)) == (2, 2, 2, 3)
        assert (f"{v:.2f}", [10, 20, 30][Variable(1)]) == ("2.50", 20)
        assert pow(Variable(3), 2, 5) == 4
        assert list(reversed(Variable([1, 2]))) == [2, 1]

    def test_numpy_on_the_left_gives_what_the_values_give(self):
        result = np.ones(2, np.float32) + Variable(jnp.ones(2))
        assert isinstance(result, jax.Array)
        assert result.tolist() == [2.0, 2.0]

    def test_unhashable(self):
        with pytest.raises(TypeError, match="unhashable type: 'Param'"):
            hash(Param(1))

    @pytest.mark.parametrize("name", ["__length_hint__", "__cuda_array_interface__", "_private"])
    def test_special_and_private_names_are_not_looked_up_in_the_value(self, name):
        value = type("Value", (), {name: 1})()
        assert not hasattr(Variable(value), name)

    def test_in_place_error_names_the_way(self):
        v = Param(jnp.ones(2))
        with pytest.raises(TypeError, match=r"Param; use `v\[\.\.\.\] \*\*= x`"):
            v **= 2

    def test_unknown_attribute(self):
        with pytest.raises(AttributeError, match="Param has no attribute or metadata 'missing'"):
            _ = Param(1).missing

    def test_attributes_cannot_be_set_or_deleted(self):
        v = Param(1, note="a")
        with pytest.raises(AttributeError, match=r"'note' of a Param.*set_metadata\(note="):
            v.note = "b"
        with pytest.raises(AttributeError, match=r"'note' of a Param.*del_metadata\('note'\)"):
            del v.note
        assert v.get_metadata() == SHOWN | {"note": "a"}

    def test_subclass_may_have_properties_with_setters(self):
        class Scaled(Variable):
            @property
            def percent(self):
                return self.get_value() * 100

            @percent.setter
            def percent(self, percent):
                self.set_value(percent / 100)

        v = Scaled(0.5)
        v.percent = 25
        assert (v.percent, v.get_value()) == (25, 0.25)

    def test_generic(self):
        v = Param[jax.Array](jnp.ones(1), note="a")
        assert type(v) is Param
        assert v.note == "a"


class TestMetadata:
    def test_flags_that_say_the_default_are_not_kept(self):
        v = Param(1, hijax=False, ref=False, mutable=True)
        assert v.get_metadata() == SHOWN
        assert (v.hijax, v.ref, v.mutable) == (False, False, True)

    @pytest.mark.parametrize("mode", ["hijax", "ref"])
    def test_modes_are_not_changed_in_place(self, mode):
        v, w = Param(1.0), Param(1.0, **{mode: True})
        for change in (
            lambda: v.set_metadata(**{mode: True}),
            lambda: v.set_metadata({mode: True}),
            lambda: w.set_metadata(mode, False),
            lambda: w.del_metadata(mode),
        ):
            with pytest.raises(ValueError, match=rf"{mode}.* of a Param.*with_vars\(v, {mode}="):
                change()
        w.set_metadata({"note": "a"})
        assert (v.get_metadata(), w.get_metadata()) == (SHOWN, SHOWN | {mode: True, "note": "a"})

    def test_three_ways_to_set(self):
        v = Param(1, a=1)
        v.set_metadata(b=2)
        v.set_metadata("c", 3)
        assert v.get_metadata() == SHOWN | {"a": 1, "b": 2, "c": 3}
        v.set_metadata({"d": 4})
        assert v.get_metadata() == SHOWN | {"d": 4}

    @pytest.mark.parametrize("args", [(), ("a",), ("a", 1, 2), (1, 2)])
    def test_other_ways_to_set(self, args):
        with pytest.raises(TypeError, match="set_metadata takes"):
            Param(1).set_metadata(*args)

    def test_missing_entries(self):
        v = Param(1)
        assert v.get_metadata("a", None) is None
        for look in (v.get_metadata, v.del_metadata):
            with pytest.raises(KeyError, match="Param has no metadata 'a'"):
                look("a")

    def test_mappings_are_immutable_and_shared(self):
        v = Param(1, a=1)
        structure, w = jax.tree.structure(v), v.copy()
        v.set_metadata(a=2)
        assert structure == jax.tree.structure(w)
        assert structure != jax.tree.structure(v)
        kept = Metadata(Param, {"a": 1})
        for change in (lambda: kept.update(a=2), kept.clear, lambda: kept.pop("a")):
            with pytest.raises(
                TypeError, match="metadata of a Param is changed by its set_metadata"
            ):
                change()
        assert kept == {"a": 1}

    def test_hash(self):
        assert hash(Metadata(Param, {"a": 1, "b": 2})) == hash(Metadata(Param, {"b": 2, "a": 1}))
        with pytest.raises(TypeError, match=r"metadata 'b' of a Param is not hashable: \[1\]"):
            hash(Metadata(Param, {"a": 1, "b": [1]}))

    def test_initializers_and_other_variables(self):
        init = with_metadata(with_metadata(jax.nn.initializers.ones, a=1, b=1), b=2)
        v = Param(init(jax.random.key(0), (2,)), b=3, c=3)
        assert v.get_metadata() == SHOWN | {"a": 1, "b": 2, "c": 3}
        assert BatchStat(v, b=4).get_metadata() == SHOWN | {"a": 1, "b": 4, "c": 3}
        assert BatchStat(v).get_raw_value() is v.get_raw_value()


class TestHooks:
    def test_several_run_in_order(self):
        made = VariableMetadata(1, on_create_value=(lambda _, x: x + 1, lambda _, x: x * 10))
        v = Variable(made)
        assert v.get_raw_value() == 20
        assert Variable(v).get_raw_value() == 20

    def test_run_at_their_moment_only(self):
        log = []

        def hook(name):
            return lambda variable, value: log.append((name, type(variable))) or value

        names = ("on_create_value", "on_get_value", "on_set_value")
        v = Param(1, **{name: hook(name) for name in names})
        assert log == [("on_create_value", Param)]
        for act, name in ((v.get_value, "on_get_value"), (lambda: v.set_value(2), "on_set_value")):
            log.clear()
            act()
            assert log == [(name, Param)]
        log.clear()
        v.set_raw_value(v.copy().get_raw_value())
        repr(jax.tree.map(lambda x: x, v))
        assert log == []

    def test_axis_hooks(self):
        log = []
        v = Param(1, on_add_axis=lambda *a: log.append(("add", *a[1:])))
        v.add_axis(0, "layers")
        v.remove_axis(0, "layers")
        assert log == [("add", 0, "layers")]

    def test_a_failing_hook_leaves_the_value(self):
        v = Param(1, on_set_value=lambda _, x: 1 / x)
        with pytest.raises(ZeroDivisionError):
            v.set_value(0)
        assert v.get_raw_value() == 1


WRITES = [
    lambda v: v.set_value(2.0),
    lambda v: v.set_raw_value(2.0),
    lambda v: v.__setitem__(..., 2.0),
    lambda v: v.__setitem__("k", 2.0),
    lambda v: v.__delitem__("k"),
    lambda v: setattr(v, "value", 2.0),
    lambda v: v.copy_from(Param(2.0)),
    lambda v: v.update_from_state(Param(2.0)),
    lambda v: v.set_metadata(note="b"),
    lambda v: v.del_metadata("note"),
]


class TestRefusedWrites:
    @pytest.mark.parametrize("write", WRITES)
    def test_immutable(self, write):
        v = Param({"k": 1.0}, note="a", mutable=False)
        with pytest.raises(ImmutableVariableError, match=r"Param.*with_vars\(v, mutable=True\)"):
            write(v)
        assert v.get_raw_value() == {"k": 1.0}
        assert v.get_metadata() == SHOWN | {"note": "a", "mutable": False}

    @pytest.mark.parametrize("write", WRITES)
    def test_from_an_inner_trace_level(self, write):
        v = Param({"k": 1.0}, note="a")
        with pytest.raises(TraceContextError, match=r"Param belongs to another trace level"):
            jax.eval_shape(lambda: write(v))
        assert v.get_raw_value() == {"k": 1.0}
        assert v.get_metadata() == SHOWN | {"note": "a"}

    def test_mutability_is_not_copied_from_another(self):
        v = Param(1)
        v.copy_from(Param(2, note="a", mutable=False))
        assert (v.get_value(), v.get_metadata()) == (2, SHOWN | {"note": "a"})

    def test_replace_gives_a_mutable_one(self):
        v = Param(1, mutable=False).replace(mutable=True)
        v.set_value(2)
        assert (v.get_value(), v.get_metadata()) == (2, SHOWN)

    def test_copy_from_what_is_no_variable_of_the_class(self):
        v = Param(1)
        with pytest.raises(ValueError, match="a Param copies from another Param, not from a Batch"):
            v.copy_from(BatchStat(2))
        with pytest.raises(TypeError, match="a Param copies from another Param, not from a int"):
            v.copy_from(2)
        assert v.get_value() == 1


class TestTraceLevel:
    def test_a_leaked_variable_is_refused_and_keeps_no_trace_alive(self):
        leaked = []

        def leak(x):
            leaked.extend([Param(0), current_trace()])
            return x

        jax.jit(leak)(1.0)
        gc.collect()
        assert leaked[1]() is None
        with pytest.raises(TraceContextError):
            leaked[0].set_value(1)

    def test_a_variable_rebuilt_inside_belongs_inside(self):
        def add(v):
            v[...] += 1
            return v

        v = Param(jnp.zeros(2), note="a")
        with jax.checking_leaks():
            w = jax.jit(add)(v)
        w[...] += 1
        assert (v[...].tolist(), w[...].tolist(), w.note) == ([0, 0], [2, 2], "a")


class TestPytree:
    def test_unflatten_takes_any_leaf(self):
        structure = jax.tree.structure(Param(1, note="a"))
        for leaf in (object(), None, "text"):
            v = jax.tree.unflatten(structure, [leaf])
            assert v.get_raw_value() is leaf
            assert v.note == "a"

    def test_key_path(self):
        [(path, _)] = jax.tree_util.tree_leaves_with_path(Param({"k": 1}))
        assert jax.tree_util.keystr(path) == ".value['k']"

    def test_new_variable_runs_no_hook(self):
        kept = Metadata(Param, {"on_create_value": lambda _, x: x + 1})
        assert new_variable(Param, 1, kept).get_raw_value() == 1


class TestCopies:
    @pytest.mark.parametrize(
        "duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
    )
    def test_keep_class_value_and_metadata(self, duplicate):
        v = Param({"k": jnp.arange(2)}, names=("a", None), mutable=False)
        w = duplicate(v)
        assert type(w) is Param
        assert w.get_metadata() == SHOWN | {"names": ("a", None), "mutable": False}
        assert w.get_value()["k"].tolist() == [0, 1]

    def test_weak_references(self):
        v = Param(1)
        assert weakref.ref(v)() is v


class TestRepr:
    def test_value_and_metadata(self):
        v = Param(jnp.arange(2.0), tag="a", names=("x", None))
        shown = "Param(value=Array([0., 1.], dtype=float32), tag='a', names=('x', None))"
        assert repr(v) == shown

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (3, "3"),
            ((1,), "(1,)"),
            ({"a": [np.arange(2)]}, "{'a': [array([0, 1], dtype=int64)]}"),
            (np.zeros((2, 9), np.float32), "array(shape=(2, 9), dtype=float32)"),
            ("two  spaces", "'two  spaces'"),
        ],
    )
    def test_describe(self, value, text):
        assert describe(value) == text

    def test_keys_tracers_and_deleted_arrays(self):
        assert describe(jax.random.key(0)) == "Array(shape=(), dtype=key<fry>)"
        deleted = jnp.zeros(3)
        deleted.delete()
        assert describe(deleted) == "Array(shape=(3,), dtype=float32)"
        shown = []
        jax.eval_shape(lambda x: shown.append(repr(Param(x))), jnp.zeros(3))
        assert "float32[3]" in shown[0]


@pytest.mark.parametrize(
    ("value", "truth"),
    [
        (jnp.zeros(3), True),
        (jnp.zeros(1), True),
        (jnp.zeros(0), False),
        (jnp.zeros((0, 2)), False),
        (jnp.zeros(()), False),
        (jnp.ones(()), True),
        (0, False),
        (2, True),
        ({}, False),
        ([0], True),
    ],
    ids=repr,
)
def test_truth_is_whether_there_is_something_or_that_of_a_scalar(value, truth):
    assert bool(Param(value)) is truth


def test_a_call_calls_the_value():
    assert Variable(lambda x, *, y: x - y)(5, y=3) == 2
    with pytest.raises(TypeError, match="not callable"):
        Variable(3)(5)
