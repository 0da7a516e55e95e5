"""What the reference promises of Pytrees beyond the clauses, and how its errors read."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_reference as nnx
from nnx_reference.errors import TraceContextError


class Box(nnx.Pytree):
    """An object with whatever attributes it is given."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


@nnx.dataclass
class Point(nnx.Pytree):
    """A dataclass with every way to say what is data."""

    weight: float = nnx.data()
    items: list = nnx.data(default_factory=list)
    name: str = nnx.static(default="p", kw_only=True)


class Declared(nnx.Pytree):
    """A class that declares its attributes by annotation, some of them as text."""

    rows: nnx.Data[list]
    size: "nnx.Static[int]"
    cells: "nnx.Data[list]"

    def __init__(self):
        self.rows = [jnp.ones(1)]
        self.cells = [2.0]
        self.size = 3


def leaves_with_paths(tree):
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in found}


class TestStatus:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (np.ones(1), True),
            (jax.ShapeDtypeStruct((1,), "float32"), True),
            (nnx.Object(), True),
            (nnx.List(), True),
            (np.float32(1), False),
            (nnx.State({"a": np.ones(1)}), False),
            ([np.ones(1)], False),
            (nnx.Param, False),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_is_data(self, value, expected):
        assert nnx.is_data(value) is expected

    def test_has_data_lists_what_it_finds(self):
        array, variable = np.ones(1), nnx.Param(1.0)
        assert nnx.has_data({"a": (array, 1), "b": [variable]}) == [array, variable]
        assert nnx.has_data("text") == []

    def test_declarations(self):
        assert leaves_with_paths(Declared()) == {".rows[0]": 1.0, ".cells[0]": 2.0}
        assert leaves_with_paths(Point(1.0, [5], name="q")) == {".weight": 1.0, ".items[0]": 5}

    def test_plain_dataclass_with_field_metadata(self):
        @dataclasses.dataclass
        class Pair(nnx.Pytree):
            a: int = dataclasses.field(metadata={"static": False})
            b: str = dataclasses.field(default="b", metadata={"static": True})

        assert leaves_with_paths(Pair(10)) == {".a": 10}

    def test_what_is_put_into_vars_speaks_for_itself(self):
        box = Box(a=1)
        vars(box)["b"] = jnp.ones(1)
        assert list(leaves_with_paths(box)) == [".b"]
        vars(box)["b"] = 5
        assert jax.tree.leaves(box) == []

    def test_property_with_a_setter(self):
        class Scaled(nnx.Pytree):
            @property
            def twice(self):
                return 2 * self.once

            @twice.setter
            def twice(self, value):
                self.once = value / 2

        scaled = Scaled()
        scaled.twice = jnp.ones(1)
        assert list(vars(scaled)) == ["once"]
        assert leaves_with_paths(scaled) == {".once": 0.5}

    def test_registered_types(self):
        @dataclasses.dataclass(frozen=True)
        class Token:
            value: int

        assert not nnx.is_data(Token(1))
        assert nnx.register_data_type(Token) is Token
        assert jax.tree.leaves(Box(t=Token(1))) == [Token(1)]


class TestErrors:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: Box(layers=[jnp.ones(1)]), ("'layers'", "Box", "list", "nnx.List")),
            (lambda: Box(x=nnx.static(nnx.Param(1.0))), ("'x'", "Param", "nnx.static", "nnx.data")),
            (lambda: Box(x=[nnx.data(1)]), ("'x'", "Box", "data(1)", "nnx.List")),
            (lambda: nnx.List([[jnp.ones(1)]]), ("0", "List", "nnx.data")),
            (lambda: Point(1.0, name=jnp.ones(1)), ("'name'", "Point", "declares")),
        ],
    )
    def test_data_where_it_would_not_be_seen(self, make, words):
        with pytest.raises(ValueError, match="attribute") as caught:
            make()
        assert [word for word in words if word not in str(caught.value)] == []

    def test_a_refused_value_changes_nothing(self):
        box = Box(name="a")
        with pytest.raises(ValueError, match="when it was first assigned"):
            box.name = jnp.ones(1)
        assert box.name == "a"

    def test_a_refused_extension_adds_nothing(self):
        items = nnx.List([1])
        with pytest.raises(ValueError, match="static"):
            items.extend([2, [jnp.ones(1)]])
        assert list(items) == [1]

    def test_unhashable_static_value_is_named_when_it_is_hashed(self):
        box = Box(sizes=[1, 2])
        _, static_part = jax.tree_util.default_registry.flatten_one_level(box)
        with pytest.raises(TypeError, match="'sizes' of a Box"):
            hash(static_part)
        with pytest.raises(TypeError, match=r"'inner\.sizes' of a Box"):
            hash(nnx.graphdef(Box(inner=box)))
        assert nnx.graphdef(box) == nnx.graphdef(Box(sizes=[1, 2]))

    def test_slots_are_refused(self):
        with pytest.raises(ValueError, match="__dict__"):
            nnx.dataclass(slots=True)


class TestTraceLevel:
    @pytest.mark.parametrize(
        "change",
        [
            lambda box: setattr(box, "a", 2),
            lambda box: setattr(box, "new", 2),
            lambda box: delattr(box, "a"),
            lambda box: box.items.append(2),
            lambda box: box.items.reverse(),
            lambda box: box.items.__delitem__(0),
            lambda box: box.table.update(k=3),
            lambda box: box.table.pop("k"),
        ],
    )
    def test_captured_objects_refuse_changes(self, change):
        box = Box(a=1, items=nnx.List([1]), table=nnx.Dict(k=1))
        with pytest.raises(TraceContextError, match="belongs to another trace level"):
            jax.jit(lambda: change(box))()
        assert (box.a, list(box.items), dict(box.table)) == (1, [1], {"k": 1})

    def test_rebuilt_objects_take_changes(self):
        @jax.jit
        def step(box):
            box.a = box.a + 1
            box.items.append(box.a)
            return box

        box = step(Box(a=jnp.ones(()), items=nnx.List()))
        assert leaves_with_paths(box) == {".a": 2.0, ".items[0]": 2.0}


class TestContainers:
    def test_status_goes_with_the_element(self):
        items = nnx.List([1, nnx.data(2), jnp.ones(())])
        items.insert(0, "first")
        assert jax.tree.leaves(items) == [2, 1.0]
        items.reverse()
        assert jax.tree.leaves(items) == [1.0, 2]
        del items[0]
        assert jax.tree.leaves(items) == [2]

    def test_list_with_attributes(self):
        class Blocks(nnx.List):
            def __init__(self, blocks):
                super().__init__(blocks)
                self.scale = nnx.Param(2.0)
                self.name = "blocks"

        blocks = Blocks([nnx.Param(1.0)])
        assert leaves_with_paths(blocks) == {"[0].value": 1.0, ".scale.value": 2.0}
        again = nnx.clone(blocks)
        assert (again[0][...], again.scale[...], again.name, len(again)) == (1.0, 2.0, "blocks", 1)

    def test_dict_keys(self):
        table = nnx.Dict({"keys": 1, 10: nnx.Param(10.0), 9: nnx.Param(9.0)})
        assert list(table.keys()) == ["keys", 10, 9]
        assert jax.tree.leaves(table) == [9.0, 10.0]
        with pytest.raises(TypeError, match="strings and integers"):
            table[1.5] = 1
        with pytest.raises(AttributeError, match="no attribute or key 'missing'"):
            _ = table.missing

    def test_dict_items_as_attributes(self):
        table = nnx.Dict(a=1)
        table.b = nnx.Param(2.0)
        assert table["b"] is table.b
        del table.a
        assert list(table) == ["b"]


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda node: pickle.loads(pickle.dumps(node)),
}


class TestPythonProtocols:
    @pytest.mark.parametrize("name", COPIES)
    def test_copies_keep_status_and_are_independent(self, name):
        box = Box(
            a=nnx.data(1),
            b=nnx.static("s"),
            items=nnx.List([nnx.data(2)]),
            d=nnx.Dict(k=nnx.data(3)),
        )
        other = COPIES[name](box)
        assert leaves_with_paths(other) == leaves_with_paths(box)
        other.c = 4
        other.a = nnx.static(1)
        assert leaves_with_paths(box)[".a"] == 1
        assert not hasattr(box, "c")

    def test_repr_of_a_cycle(self):
        box = Box(n=1)
        box.me = box
        assert repr(box) == "Box(n=1, me=...)"

    def test_mixing_with_other_bases(self):
        class Mixin:
            def twice(self):
                return 2 * self.n

        class Both(Mixin, nnx.Module):
            pass

        both = Both()
        both.n = 2
        assert both.twice() == 4
