"""List and Dict: containers of data that behave as `list` and `dict`."""

import itertools

import jax
import pytest
from hypothesis import given
from jax.tree_util import SequenceKey

from nnx_spec import CONVENTION, DOCUMENTED, MUST, SHOULD, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.chapters.modules.programs import (
    DICT_MOVES,
    DICT_REPLACEMENTS,
    MOVES,
    REPLACEMENTS,
    RESIZING,
    SEARCHES,
    Slot,
    contents,
    data_pool,
    mixed_pool,
    programs,
    run,
    same,
    static_pool,
)
from nnx_spec.oracles import state_items


def assert_alike(items, model, step, pool):
    """Runs a step on a container and on its model, and compares what it gives and leaves."""
    found, expected = run(items, step, pool), run(model, step, pool)
    assert same(found, expected), f"{step} gives {found!r} instead of {expected!r}"
    assert contents(items, pool) == contents(model, pool), f"after {step}"


def assert_leaves(nnx, items, values, after):
    """Compares the leaves of a container with those of the values that it should hold."""
    found = jax.tree.leaves(items)
    expected = [leaf for x in values if nnx.is_data(x) for leaf in jax.tree.leaves(x)]
    names = {id(leaf): f"leaf {n}" for n, leaf in enumerate(expected)}
    assert [names.get(id(leaf), leaf) for leaf in found] == [
        names[id(leaf)] for leaf in expected
    ], f"after {after}"


def check_list(nnx, program, pool):
    """Runs a program on a List and on a list, and compares them after each step."""
    items, model = nnx.List(pool[2:5]), pool[2:5]
    for step in program:
        assert_alike(items, model, step, pool)
        assert (len(items), bool(items)) == (len(model), bool(model)), f"after {step}"
        assert_leaves(nnx, items, model, step)
    found, _ = jax.tree_util.tree_flatten_with_path(items)
    assert {path[0] for path, _ in found} == {
        SequenceKey(n) for n, x in enumerate(model) if nnx.is_data(x)
    }


INDEXED = {"get": (), "set": (Slot(4),), "insert": (Slot(4),), "pop at": (), "delete": ()}
"""Operations at an index, with their further arguments."""

SLICED = {"get slice": (), "set slice": ([Slot(4)],), "delete slice": ()}
"""Operations on a slice, with their further arguments."""


@clause("MOD-007", MUST, DOCUMENTED, source="api_reference/flax.nnx/helpers#flax.nnx.List")
class TestListAndDict:
    """`List` and `Dict` behave as a mutable sequence and a mutable mapping, `list` and `dict`.

    Every operation has the result, the error and the effect that it has on a `list` or `dict`, by
    position, by slice and by key; a Dict keeps the order of insertion. They are Modules and
    pytrees: the elements that are data, and no others, are children under their index or key,
    wherever they have been moved.
    """

    @given(program=programs(MOVES, REPLACEMENTS, SEARCHES))
    def test_lists_of_static_values(self, nnx, program):
        check_list(nnx, program, static_pool())

    @given(program=programs(MOVES, REPLACEMENTS))
    def test_lists_of_data(self, nnx, program):
        check_list(nnx, program, data_pool(nnx))

    @given(program=programs(MOVES))
    def test_lists_of_both(self, nnx, program):
        check_list(nnx, program, mixed_pool(nnx))

    @pytest.mark.parametrize("name", INDEXED)
    def test_every_index(self, nnx, name):
        for index in range(-5, 6):
            self.check_step(nnx, name, index)

    @pytest.mark.parametrize("name", SLICED)
    def test_every_slice(self, nnx, name):
        ends = (None, *range(-4, 5))
        for start, stop, step in itertools.product(ends, ends, (None, 1, 2, -1, -2)):
            self.check_step(nnx, name, slice(start, stop, step))

    def check_step(self, nnx, name, place):
        pool = static_pool()
        items, model = nnx.List(pool[:3]), pool[:3]
        step = (name, place, *{**INDEXED, **SLICED}[name])
        assert_alike(items, model, step, pool)

    @given(program=programs(DICT_MOVES, DICT_REPLACEMENTS))
    def test_dicts_of_static_values(self, nnx, program):
        self.check_dict(nnx, program, static_pool())

    @given(program=programs(DICT_MOVES, DICT_REPLACEMENTS))
    def test_dicts_of_data(self, nnx, program):
        self.check_dict(nnx, program, data_pool(nnx))

    @given(program=programs(DICT_MOVES))
    def test_dicts_of_both(self, nnx, program):
        self.check_dict(nnx, program, mixed_pool(nnx))

    def check_dict(self, nnx, program, pool):
        model = {"z": pool[2], "a": pool[3]}
        items = nnx.Dict(model)
        for step in program:
            assert_alike(items, model, step, pool)
            assert [*items] == [*items.keys()] == [*model]
            assert (len(items), bool(items)) == (len(model), bool(model))
        assert_leaves(nnx, items, [model[key] for key in sorted(model)], program)

    def test_popitem(self, nnx):
        table, items = nnx.Dict(b=1, a=param(nnx, 2.0)), {}
        while table:
            key, value = table.popitem()
            items[key] = value
        assert sorted(items) == ["a", "b"]
        assert jax.tree.leaves(table) == []
        with pytest.raises(KeyError):
            table.popitem()

    def test_construction(self, nnx):
        assert [*nnx.List()] == [*nnx.List([])] == []
        assert [*nnx.List(n for n in (1, 2))] == [1, 2]
        assert {**nnx.Dict()} == {}
        assert {**nnx.Dict({"a": 1}, b=2)} == {**nnx.Dict([("a", 1)], b=2)} == {"a": 1, "b": 2}

    def test_annotated_elements(self, nnx):
        items = nnx.List([nnx.data(1), 2])
        items.append(nnx.data(3))
        table = nnx.Dict(a=nnx.data(4), b=5)
        assert jax.tree.leaves([items, table]) == [1, 3, 4]
        items.insert(0, "first")
        del items[2]
        assert [*items] == ["first", 1, 3]
        assert jax.tree.leaves(items) == [1, 3]

    def test_in_a_module(self, nnx):
        layers = nnx.List([net(nnx, w=param(nnx, n)) for n in range(11)])
        model = net(nnx, layers=layers, table=nnx.Dict(b=param(nnx, 20.0), a=counted((1,)), f=abs))
        assert isinstance(layers, nnx.Module)
        assert model.layers is layers
        paths = [path for path, _ in state_items(nnx.state(model))]
        expected = [("layers", n, "w") for n in range(11)]
        assert paths == [*expected, ("table", "a"), ("table", "b")]
        layers.pop(3)
        layers[0] = net(nnx, w=param(nnx, 30.0))
        assert jax.tree.leaves(model) == [30, 1, 2, 4, 5, 6, 7, 8, 9, 10, 1, 20]

    def test_subclasses(self, nnx):
        class Blocks(nnx.List):
            def __init__(self, count):
                super().__init__(param(nnx, n) for n in range(count))

            def total(self):
                return sum(w.get_value() for w in self)

        class Table(nnx.Dict):
            def names(self):
                return sorted(self)

        assert float(Blocks(4).total()) == 6
        assert Table(b=1, a=2).names() == ["a", "b"]
        mapped = jax.tree.map(lambda x: x + 1, Blocks(4))
        assert (type(mapped), float(mapped.total())) == (Blocks, 10)


@clause("MOD-024", SHOULD, CONVENTION, source="list")
class TestSlicesOfOtherLengths:
    """A slice of a `List` can be replaced by more or fewer elements, as that of a `list`.

    Where the step is not 1 the lengths must agree, or ValueError is raised and nothing is changed.
    """

    @given(program=programs(MOVES, RESIZING))
    def test_lists_of_both(self, nnx, program):
        check_list(nnx, program, mixed_pool(nnx))

    def test_slices_of_other_lengths(self, nnx):
        items = nnx.List([1, 2, 3])
        items[:1] = [7, 8]
        items[4:] = [9]
        assert [*items] == [7, 8, 2, 3, 9]
        with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
            items[::2] = [1]
        assert [*items] == [7, 8, 2, 3, 9]


@clause("MOD-025", SHOULD, CONVENTION, source="dict")
@pytest.mark.parametrize("key", ["items", "keys", "values", "get", "pop", "update", "a.b", ""])
def test_any_string_is_a_key(nnx, key):
    """Any string is a key of a `Dict` like any other, the names of its own methods included."""
    table = nnx.Dict(a=1)
    assert key not in list(table)
    assert (key in table) is False
    assert table.get(key) is None
    table[key] = w = param(nnx, 2.0)
    assert table[key] is w
    assert [*table.items()] == [("a", 1), (key, w)]
    assert jax.tree.leaves(table) == [2.0]
    assert table.pop(key) is w
    assert [*table.keys()] == ["a"]
