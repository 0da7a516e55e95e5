"""Attributes: which are data and which are static, and how an assignment says so."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import state_items
from nnx_spec.plans import classes


class Color(enum.Enum):
    """A value of the user's own."""

    RED = 1


class Point:
    """An object of the user's own."""


DATA = {
    "jax.Array": lambda nnx: jnp.zeros(2),
    "PRNG key": lambda nnx: jax.random.key(0),
    "NumPy array": lambda nnx: np.zeros(2),
    "NumPy array without dimensions": lambda nnx: np.zeros(()),
    "Variable": lambda nnx: nnx.Variable(jnp.zeros(2)),
    "Param": lambda nnx: nnx.Param(1),
    "Variable of the user's own": lambda nnx: classes(nnx).Count(1),
    "Ref": lambda nnx: jax.new_ref(jnp.zeros(2)),
    "Module": lambda nnx: classes(nnx).Net(),
    "Pytree": lambda nnx: classes(nnx).Tree(),
    "Object": lambda nnx: type("Thing", (nnx.Object,), {})(),
    "List": lambda nnx: nnx.List([1]),
    "Dict": lambda nnx: nnx.Dict(a=1),
    "Rngs": lambda nnx: nnx.Rngs(0),
}
"""Values that are data by themselves."""

STATIC = {
    "int": lambda nnx: 42,
    "bool": lambda nnx: True,
    "float": lambda nnx: 2.5,
    "complex": lambda nnx: 1j,
    "str": lambda nnx: "hello",
    "None": lambda nnx: None,
    "function": lambda nnx: abs,
    "lambda": lambda nnx: lambda x: x,
    "class": lambda nnx: nnx.Param,
    "enum": lambda nnx: Color.RED,
    "object": lambda nnx: Point(),
    "list": lambda nnx: [1, 2],
    "dict": lambda nnx: {"a": 1},
    "tuple": lambda nnx: (1, ("a", None)),
    "shape and dtype": lambda nnx: ((2, 3), jnp.float32),
}
"""Values that are static by themselves."""

CONTAINERS_OF_DATA = {
    "list": lambda x: [1, x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"k": x},
}
"""Plain containers around a value."""

HOLDERS = ("Net", "Tree")
"""Classes whose attributes are looked at: a Module and a Pytree."""


def data_names(node):
    """Lists the attributes of an object that hold leaves."""
    found, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    names = [path[0].name for path, _ in found]
    return [name for name in names if not name.startswith("_")]


def holder(nnx, kind, **attributes):
    """Makes a Module or Pytree with the given attributes."""
    node = getattr(classes(nnx), kind)()
    for name, value in attributes.items():
        setattr(node, name, value)
    return node


@clause("MOD-003", MUST, DOCUMENTED, source="guides/pytree#nnx-pytree")
class TestDataAndStatic:
    """Arrays, Variables, Refs, Pytrees and registered types are data; all other values are static.

    `is_data` tells which. What is assigned to an attribute is a child of the pytree if it is data,
    and part of its structure if it is static. A traced array is an array. Plain lists, tuples and
    dicts are static, and not data whatever they hold.
    """

    @pytest.mark.parametrize("name", DATA)
    def test_is_data(self, nnx, name):
        assert nnx.is_data(DATA[name](nnx)) is True

    @pytest.mark.parametrize("name", STATIC)
    def test_is_static(self, nnx, name):
        assert nnx.is_data(STATIC[name](nnx)) is False

    @pytest.mark.parametrize("container", CONTAINERS_OF_DATA)
    @pytest.mark.parametrize("name", ["jax.Array", "Param", "Module"])
    def test_containers_are_not_data(self, nnx, name, container):
        assert nnx.is_data(CONTAINERS_OF_DATA[container](DATA[name](nnx))) is False

    @pytest.mark.parametrize("kind", HOLDERS)
    def test_attributes(self, nnx, kind):
        values = {f"a{n}": make(nnx) for n, make in enumerate(DATA.values())}
        node = holder(nnx, kind, **values, s=1)
        assert data_names(node) == sorted(values)
        assert all(getattr(node, name) is value for name, value in values.items())

    @pytest.mark.parametrize("kind", HOLDERS)
    def test_static_attributes(self, nnx, kind):
        values = {f"a{n}": make(nnx) for n, make in enumerate(STATIC.values())}
        node = holder(nnx, kind, **values)
        assert jax.tree.leaves(node) == []
        assert all(getattr(node, name) is value for name, value in values.items())
        rebuilt = jax.tree.map(lambda x: x, node)
        assert all(getattr(rebuilt, name) == value for name, value in values.items())

    def test_traced_arrays(self, nnx):
        seen = []

        def f(x):
            node = net(nnx, given=x, made=x * 2, items=nnx.List([x]), n=1)
            seen.extend([nnx.is_data(x), data_names(node)])
            return node

        result = jax.eval_shape(f, counted((2,)))
        assert seen == [True, ["given", "items", "made"]]
        assert [leaf.shape for leaf in jax.tree.leaves(result)] == [(2,)] * 3


@clause("MOD-004", MUST, DOCUMENTED, source="guides/pytree#attribute-updates")
class TestAnnotations:
    """`data(x)` and `static(x)` decide an attribute's status, which then stays for later values.

    Only another annotation changes it. Without one the first value decides. What is stored is the
    value, never the annotation.
    """

    @pytest.mark.parametrize("kind", HOLDERS)
    @pytest.mark.parametrize("name", STATIC)
    def test_data(self, nnx, kind, name):
        value = STATIC[name](nnx)
        node = holder(nnx, kind, a=nnx.data(value), b=nnx.static(value))
        assert data_names(node) == ["a"]
        assert node.a is value
        assert node.b is value
        assert vars(node)["a"] is value

    @pytest.mark.parametrize("name", DATA)
    def test_data_of_data(self, nnx, name):
        value = DATA[name](nnx)
        node = net(nnx, a=nnx.data(value))
        assert node.a is value
        assert data_names(node) == ["a"]

    @pytest.mark.parametrize("kind", HOLDERS)
    def test_status_stays(self, nnx, kind):
        node = holder(nnx, kind, array=counted((1,)), text="t", number=nnx.data(3.5), w=nnx.data(1))
        node.array, node.text, node.number = "now a text", 5, 7
        node.w = param(nnx, 2.0)
        node.w = 3
        assert data_names(node) == ["array", "number", "w"]
        assert jax.tree.leaves(node) == ["now a text", 7, 3]
        assert node.text == 5

    @pytest.mark.parametrize("kind", HOLDERS)
    def test_status_is_overridden(self, nnx, kind):
        node = holder(nnx, kind, array=counted((1,)), text="t", number=nnx.data(3.5))
        node.array, node.text, node.number = nnx.static(1), nnx.data(42), nnx.static(0.5)
        assert data_names(node) == ["text"]
        assert (node.array, node.text, node.number) == (1, 42, 0.5)
        node.array, node.text, node.number = 2, 43, 1.5
        assert data_names(node) == ["text"]
        node.text, node.array = nnx.static("t"), nnx.data(counted((1,)))
        assert data_names(node) == ["array"]

    def test_optional_values(self, nnx):
        node = net(nnx, bias=nnx.data(None))
        assert jax.tree.leaves(node) == []
        node.bias = bias = param(nnx, 1.0)
        assert node.bias is bias
        assert jax.tree.leaves(node) == [1.0]

    def test_lists_of_data_are_state(self, nnx):
        items = nnx.data([counted((2,)), {"k": param(nnx, 1.0)}])
        node = net(nnx, items=items, w=param(nnx, 2.0), text="t")
        paths = [path for path, _ in state_items(nnx.state(node))]
        assert paths == [("items", 0), ("items", 1, "k"), ("w",)]

    def test_status_survives_rebuilding(self, nnx):
        node = net(nnx, number=nnx.data(3), name=nnx.static("n"))
        for copy in (jax.tree.map(lambda x: x, node), nnx.merge(*nnx.split(node)), nnx.clone(node)):
            copy.number, copy.name = 4, 5
            assert jax.tree.leaves(copy) == [4]
            assert copy.name == 5


@clause(
    "MOD-021", MUST, DOCUMENTED, source="api_reference/flax.nnx/object#flax.nnx.register_data_type"
)
class TestRegisteredTypes:
    """`register_data_type` makes instances of a class data, and returns the class.

    It serves as a decorator. An instance is then a leaf wherever it is assigned, and refused in a
    static attribute; instances of other classes stay static.
    """

    def test_leaf(self, nnx):
        class Token:
            pass

        before = Token()
        assert nnx.is_data(before) is False
        node = net(nnx, old=before)
        assert nnx.register_data_type(Token) is Token
        token = Token()
        assert nnx.is_data(token) is True
        node.new = token
        assert jax.tree.leaves(node) == [token]
        assert jax.tree.leaves(nnx.List([1, token, "t"])) == [token]

    def test_decorator(self, nnx):
        @nnx.register_data_type
        class Token:
            def __init__(self, value):
                self.value = value

        class Other:
            pass

        node = net(nnx, token=Token(1), other=Other())
        mapped = jax.tree.map(lambda token: Token(token.value + 1), node)
        assert (mapped.token.value, node.token.value) == (2, 1)
        assert nnx.is_data(Other()) is False

    def test_refused_in_static_attributes(self, nnx):
        @nnx.register_data_type
        class Token:
            pass

        node = net(nnx, name="n")
        for value in (Token(), [Token()]):
            with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
                node.name = value
        assert node.name == "n"
