"""Dataclasses that are Pytrees or Modules."""

import dataclasses
from dataclasses import field
from typing import Any

import jax
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.modules.test_attributes import data_names

DECORATORS = {
    "nnx.dataclass": lambda nnx: nnx.dataclass,
    "dataclasses.dataclass": lambda nnx: dataclasses.dataclass,
}
"""The ways to make a dataclass."""

BASES = ("Pytree", "Module")


@clause("MOD-008", MUST, DOCUMENTED, source="guides/pytree#dataclasses")
class TestDataclasses:
    """Fields of dataclasses honour `data()`, `static()` and the metadata key `static`.

    Fields that say nothing go by their values. Defaults, default factories, keyword-only fields and
    inherited fields work as in any dataclass, for `nnx.dataclass` and for `dataclasses.dataclass`
    alike. A static field refuses data.
    """

    @pytest.mark.parametrize("base", BASES)
    @pytest.mark.parametrize("decorator", DECORATORS)
    def test_fields(self, nnx, decorator, base):
        @DECORATORS[decorator](nnx)
        class Block(getattr(nnx, base)):
            rank: int = nnx.data()
            weight: Any
            width: int
            layers: list = nnx.data()
            name: str = nnx.static(default="hi", kw_only=True)

        weight = param(nnx, 1.0)
        block = Block(3, weight, 4, [counted((1,)), 5])
        assert (block.rank, block.width, block.name) == (3, 4, "hi")
        assert block.weight is weight
        assert data_names(block) == ["layers", "rank", "weight"]
        assert Block(3, weight, 4, [], name="other").name == "other"
        with pytest.raises(TypeError):
            Block(3, weight, 4, [], "other")

    @pytest.mark.parametrize("base", BASES)
    @pytest.mark.parametrize("decorator", DECORATORS)
    def test_metadata_of_fields(self, nnx, decorator, base):
        @DECORATORS[decorator](nnx)
        class Block(getattr(nnx, base)):
            a: int = field(metadata={"static": False})
            b: str = field(metadata={"static": True})
            c: int = field(default=1, metadata={"note": "other"})

        block = Block(10, "hello")
        assert data_names(block) == ["a"]
        assert (block.a, block.b, block.c) == (10, "hello", 1)
        assert data_names(Block(10, "hello", counted((1,)))) == ["a", "c"]

    @pytest.mark.parametrize("decorator", DECORATORS)
    def test_defaults(self, nnx, decorator):
        @DECORATORS[decorator](nnx)
        class Block(nnx.Pytree):
            rate: float = nnx.data(default=0.5)
            items: list = nnx.data(default_factory=list)
            names: tuple = nnx.static(default=("a",))
            width: int = nnx.static(kw_only=True)

        one, other = Block(width=1), Block(2.5, [7], ("b",), width=2)
        assert (one.rate, one.items, one.names, one.width) == (0.5, [], ("a",), 1)
        assert (other.rate, other.items, other.names, other.width) == (2.5, [7], ("b",), 2)
        assert one.items is not Block(width=1).items
        assert jax.tree.leaves(one) == [0.5]
        assert jax.tree.leaves(other) == [7, 2.5]
        with pytest.raises(TypeError):
            Block()

    def test_options_of_the_decorator(self, nnx):
        @nnx.dataclass(kw_only=True)
        class Block(nnx.Module):
            a: int = nnx.data(default=1)
            b: int

        assert data_names(Block(b=2)) == ["a"]
        with pytest.raises(TypeError):
            Block(1, 2)

    def test_inherited_fields(self, nnx):
        @nnx.dataclass
        class Base(nnx.Pytree):
            a: int = nnx.data()
            b: str = nnx.static()

        @nnx.dataclass
        class Derived(Base):
            c: int = nnx.data(default=3)

            def __post_init__(self):
                self.total = self.a + self.c

        derived = Derived(1, "b")
        assert data_names(derived) == ["a", "c"]
        assert (derived.a, derived.b, derived.c, derived.total) == (1, "b", 3, 4)

    @pytest.mark.parametrize("decorator", DECORATORS)
    @pytest.mark.parametrize("kind", ["array", "Variable", "list"])
    def test_static_fields_refuse_data(self, nnx, decorator, kind):
        @DECORATORS[decorator](nnx)
        class Block(nnx.Pytree):
            name: Any = nnx.static()

        value = {
            "array": lambda: counted((1,)),
            "Variable": lambda: param(nnx, 1.0),
            "list": lambda: [counted((1,))],
        }[kind]()
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            Block(value)

    def test_rebuilding(self, nnx):
        @nnx.dataclass
        class Block(nnx.Pytree):
            a: Any = nnx.data()
            b: str = nnx.static(default="b")

        doubled = jax.tree.map(lambda x: x * 2, Block(3))
        assert (type(doubled), doubled.a, doubled.b) == (Block, 6, "b")
        assert nnx.clone(Block(3)).a == 3
