"""Values: how a Variable holds one, gives it back, shows it, and stands for a container."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import CONVENTION, DOCUMENTED, MUST, OURS, SHOULD, TESTED, clause
from nnx_spec.oracles import array_record, value_record
from nnx_spec.plans import classes

KINDS = ("Variable", "Param", "BatchStat", "Cache", "Intermediate")


@clause("VAR-001", MUST, TESTED, source="tests/nnx/variable_test.py::TestVariable::test_pytree")
class TestHeldValue:
    """A Variable holds the value that it is made of: `get_value()` and, for an array, `v[...]` give
    an equal one.

    Equal means the same dtype, shape and elements; a pytree comes back with the same structure and
    equal leaves. `get_raw_value()` gives the very array that is stored.
    """

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "dtype", ["float32", "int32", "uint8", "bool", "bfloat16", "complex64"]
    )
    @pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 1, 3)], ids=str)
    def test_array(self, nnx, kind, shape, dtype):
        size = int(np.prod(shape))
        x = jnp.asarray(np.arange(1, size + 1).reshape(shape).astype(jnp.dtype(dtype)))
        v = getattr(nnx, kind)(x)
        assert array_record(v[...]) == array_record(x)
        assert array_record(v.get_value()) == array_record(x)
        assert v.get_raw_value() is x

    @pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
    def test_numpy_array(self, nnx, dtype):
        x = np.array([[0, 1, 2]], dtype)
        v = nnx.Variable(x)
        assert array_record(v[...]) == array_record(x)
        assert array_record(v.get_value()) == array_record(x)
        assert v.get_raw_value() is x

    def test_random_key(self, nnx):
        key = jax.random.key(3)
        v = nnx.Variable(key)
        assert array_record(v[...]) == array_record(key)
        assert v.get_raw_value() is key

    @pytest.mark.parametrize("number", [3, -1.5, True, 2j], ids=repr)
    def test_python_number(self, nnx, number):
        assert nnx.Variable(number).get_value() == number
        assert type(nnx.Variable(number).get_value()) is type(number)

    @pytest.mark.parametrize(
        "value",
        [
            {},
            {"b": np.arange(3), "a": 1.5},
            [np.ones(2), 2],
            (np.zeros((1, 2)), None),
            {"x": [np.int32(1), {"y": (np.ones(2),)}]},
        ],
        ids=["empty", "dict", "list", "tuple", "nested"],
    )
    def test_pytree(self, nnx, value):
        v = nnx.Variable(value)
        assert value_record(v.get_value()) == value_record(value)
        assert value_record(v.get_raw_value()) == value_record(value)


@clause("VAR-018", MUST, DOCUMENTED, source="key_concepts#what-is-flax")
class TestValueAccessor:
    """The accessor `.value` reads and writes an array value as `v[...]` does, or it raises.

    Pages of the documentation use it; releases since have deprecated it. Where a release has
    removed it, reading and writing raise `AttributeError`, and nothing changes.
    """

    ATTEMPTS = pytest.mark.filterwarnings("ignore::DeprecationWarning")

    @ATTEMPTS
    def test_reads(self, nnx):
        x = jnp.asarray(np.array([1.0, 2.0], np.float32))
        v = nnx.Param(x)
        try:
            value = v.value
        except AttributeError:
            return
        assert array_record(value) == array_record(v[...]) == array_record(x)

    @ATTEMPTS
    def test_writes(self, nnx):
        old = jnp.asarray(np.array([1.0, 2.0], np.float32))
        new = jnp.asarray(np.array([3.0, 5.0], np.float32))
        v = nnx.Param(old, tag="t")
        try:
            v.value = new
        except AttributeError:
            new = old
        assert array_record(v[...]) == array_record(new)
        assert type(v) is nnx.Param
        assert v.tag == "t"

    @ATTEMPTS
    def test_augmented_assignment(self, nnx):
        v = nnx.Param(jnp.asarray(np.array([1, 2], np.int32)))
        expected = [11, 12]
        try:
            v.value += 10
        except AttributeError:
            expected = [1, 2]
        assert v[...].tolist() == expected
        assert type(v) is nnx.Param

    @ATTEMPTS
    def test_every_holder_sees_the_write(self, nnx):
        model = classes(nnx).Net()
        model.a = nnx.Param(jnp.asarray(np.float32(1)))
        model.b = held = model.a
        with contextlib.suppress(AttributeError):
            held.value = jnp.asarray(np.float32(2))
        assert model.a is model.b is held
        assert float(model.a[...]) == float(held[...])


def edits():
    """Draws one edit of a dict or list: its name, a key or position, and a value."""
    return st.tuples(
        st.sampled_from(["set", "delete", "whole"]), st.integers(0, 3), st.integers(-9, 9)
    )


@clause("VAR-014", MUST, CONVENTION, source="operator.setitem")
class TestContainers:
    """A Variable's value may be any pytree, and the Variable acts as that container under item
    access.

    Getting, setting and deleting an item, `len`, iteration and `in` do on the Variable what they do
    on the value; a key or position that is not there raises what the value raises, and an operation
    that the value refuses (a tuple takes no writes) changes nothing.
    """

    @staticmethod
    def assert_agrees(v, model):
        assert v.get_value() == model
        assert type(v.get_value()) is type(model)
        assert len(v) == len(model)
        assert list(v) == list(v.get_value())
        for key in model if isinstance(model, dict) else range(len(model)):
            assert v[key] == model[key]
        for item in [*model, "absent", -77]:
            assert (item in v) == (item in model)

    @given(
        start=st.dictionaries(st.sampled_from("abcd"), st.integers(-9, 9)),
        program=st.lists(edits()),
    )
    def test_dict_follows_an_edit_program(self, nnx, start, program):
        v, model = nnx.Variable(dict(start)), dict(start)
        for name, position, number in program:
            key = "abcd"[position]
            if name == "set":
                v[key] = model[key] = number
            elif name == "delete" and key in model:
                del v[key], model[key]
            elif name == "delete":
                with pytest.raises(KeyError):
                    del v[key]
            else:
                model = {key: number}
                v.set_value(dict(model))
            self.assert_agrees(v, model)

    @given(start=st.lists(st.integers(-9, 9), max_size=4), program=st.lists(edits()))
    def test_list_follows_an_edit_program(self, nnx, start, program):
        v, model = nnx.Variable(list(start)), list(start)
        for name, position, number in program:
            if name == "whole":
                model = [number] * position
                v.set_value(list(model))
            elif position >= len(model):
                with pytest.raises(IndexError):
                    v[position] = number
            elif name == "set":
                v[position] = model[position] = number
            else:
                del v[position], model[position]
            self.assert_agrees(v, model)

    def test_tuple_is_read_only(self, nnx):
        v = nnx.Variable((1, (2, 3)))
        self.assert_agrees(v, (1, (2, 3)))
        assert v[1][0] == 2
        with pytest.raises(TypeError):
            v[0] = 9
        with pytest.raises(TypeError):
            del v[0]
        self.assert_agrees(v, (1, (2, 3)))

    def test_nested_value(self, nnx):
        v = nnx.Variable({"x": {"y": [1, 2]}, "z": (3,)})
        assert v["x"]["y"][1] == 2
        v["x"] = {"y": [4]}
        v["new"] = {"deep": {"deeper": 5}}
        assert v.get_value() == {"x": {"y": [4]}, "z": (3,), "new": {"deep": {"deeper": 5}}}
        del v["x"]
        assert set(v) == {"z", "new"}

    def test_array_items(self, nnx):
        v = nnx.Variable({"a": jnp.asarray(np.array([1, 2]))})
        v["a"] += 3
        v["b"] = v["a"] * 2
        assert v["a"].tolist() == [4, 5]
        assert v["b"].tolist() == [8, 10]

    def test_array_value(self, nnx):
        x = jnp.asarray(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
        v = nnx.Variable(x)
        assert len(v) == 2
        assert [row.tolist() for row in v] == [[1.0, 2.0], [3.0, 4.0]]
        assert v[1, 0].tolist() == 3.0
        assert v[:, 1].tolist() == [2.0, 4.0]
        w = nnx.Variable(x[0])
        assert 2.0 in w
        assert 9.0 not in w

    @pytest.mark.parametrize("value", [{"a": 1}, [1], (1,)], ids=["dict", "list", "tuple"])
    def test_missing_items(self, nnx, value):
        v = nnx.Variable(value)
        with pytest.raises(KeyError if isinstance(value, dict) else IndexError):
            v["missing" if isinstance(value, dict) else 5]
        self.assert_agrees(v, value)


@clause(
    "VAR-022", SHOULD, OURS, source="who prints a Variable wants to know which it is, and no more"
)
class TestRepr:
    """`repr` of a Variable shows its class, its value or that value's shape and dtype, and the
    user's metadata.

    It works on abstract values and inside a trace too, where it adds no computation to the traced
    program.
    """

    @staticmethod
    def assert_shows(text, elements, shape, dtype):
        short = f"{dtype.kind}{8 * dtype.itemsize}"
        sizes = r"\D+".join(map(str, shape))
        is_aval = re.search(sizes, text) and (str(dtype) in text or short in text)
        assert is_aval or all(str(n) in text for n in elements)

    @pytest.mark.parametrize("kind", [*KINDS, "Count"])
    @pytest.mark.parametrize("shape", [(), (3,), (2, 5)], ids=str)
    def test_class_and_value(self, nnx, kind, shape):
        x = np.arange(100, 100 + np.prod(shape), dtype="float32").reshape(shape)
        cls = classes(nnx).Count if kind == "Count" else getattr(nnx, kind)
        text = repr(cls(jnp.asarray(x)))
        assert kind in text
        self.assert_shows(text, x.astype(int).ravel().tolist(), shape, x.dtype)

    def test_metadata(self, nnx):
        x = jnp.asarray(np.float32(1))
        text = repr(nnx.Param(x, owner="encoder", rank=17))
        assert all(part in text for part in ("owner", "encoder", "rank", "17"))
        assert "owner" not in repr(nnx.Param(x))

    def test_pytree_value(self, nnx):
        text = repr(nnx.Variable({"mean": 1.25, "count": [31]}))
        assert all(part in text for part in ("mean", "1.25", "count", "31"))

    def test_abstract_value(self, nnx):
        abstract = jax.eval_shape(lambda: nnx.Param(jnp.zeros((7, 5), "int32"), tag="deep"))
        text = repr(abstract)
        assert "Param" in text
        assert "deep" in text
        self.assert_shows(text, ["no elements"], (7, 5), np.dtype("int32"))

    def test_inside_a_trace(self, nnx):
        texts = []

        def show(v):
            texts.extend([repr(v), str(v)])
            return v

        x = jnp.asarray(np.ones((3, 2), np.float32))
        traced = jax.make_jaxpr(show)(nnx.Param(x, tag="deep"))
        assert len(traced.eqns) == 0
        assert all("Param" in text and "deep" in text for text in texts)
        self.assert_shows(texts[0], ["no elements"], (3, 2), np.dtype("float32"))
