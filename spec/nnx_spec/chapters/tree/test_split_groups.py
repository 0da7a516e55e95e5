"""Axes for groups of Variables without StateAxes: split and merge, and tree prefixes."""

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, OURS, SHOULD, clause
from nnx_spec.chapters.transforms.axes import batched, counted
from nnx_spec.chapters.transforms.axis_names import GRAPH, TREE, UPDATES
from nnx_spec.filter_plans import build_filter, group_of
from nnx_spec.oracles import array_record, at, graph_items, names_path, snapshot
from nnx_spec.plans import build, classes
from nnx_spec.strategies import filter_groups, trees

SIZE, WIDTH = 3, 2
KINDS = ("Param", "BatchStat", "Cache")


def model_of(nnx, mapped, axis):
    """Makes a Module with a Variable of each kind, stacked along the axis if the kind is mapped."""
    own = classes(nnx)
    model = own.Net()
    model.block = own.Net()
    for number, kind in enumerate(KINDS):
        shape = batched((WIDTH,), axis if kind in mapped else None, SIZE)
        holder = model.block if number % 2 else model
        setattr(holder, kind.lower(), getattr(nnx, kind)(counted(shape, start=number), tag=kind))
    return model


def body_for(mapped):
    """Makes a function of a model that changes what is mapped by all, and the rest by itself."""

    def body(model):
        variables = dict(zip(KINDS, (model.param, model.block.batchstat, model.cache), strict=True))
        total = sum(v[...] for v in variables.values())
        for kind, variable in variables.items():
            variable[...] = variable + total if kind in mapped else variable * 2 + 1
        return total

    return body


@clause("TREE-006", MUST, DOCUMENTED, source="flip/5310-tree-mode-nnx#prefix-filters")
class TestSplitGroups:
    """`vmap` over the groups of a `split`, with `merge` inside, equals `vmap` with StateAxes.

    `in_axes=(axis, None)` for the group of a filter and the rest, in tree mode, stands for
    `StateAxes({filter: axis, ...: None})`, in outputs and in the state that the function leaves.
    """

    @given(mapped=st.sets(st.sampled_from(KINDS), min_size=1), axis=st.sampled_from([0, 1, -1, -2]))
    def test_equals_state_axes(self, nnx, mapped, axis):
        kinds = tuple(getattr(nnx, kind) for kind in sorted(mapped))
        model, plain = (model_of(nnx, mapped, axis) for _ in range(2))
        body = body_for(mapped)
        axes = nnx.StateAxes({kinds: axis, ...: None})
        expected = nnx.vmap(body, in_axes=(axes,), **UPDATES)(plain)
        graphdef, chosen, rest = nnx.split(model, kinds, ..., graph=False)

        def function(chosen, rest):
            model = nnx.merge(graphdef, chosen, rest)
            output = body(model)
            states = nnx.split(model, kinds, ..., graph=False)[1:]
            return output, *jax.tree.map(lambda x: x, states)

        mapping = nnx.vmap(function, in_axes=(axis, None), out_axes=(0, axis, None), **TREE)
        output, *states = mapping(chosen, rest)
        assert array_record(output) == array_record(expected)
        assert snapshot(nnx, nnx.merge(graphdef, *states)) == snapshot(nnx, plain)

    def test_jax_vmap(self, nnx):
        model, plain = (model_of(nnx, {"Param"}, 0) for _ in range(2))
        graphdef, params, rest = nnx.split(model, nnx.Param, ..., graph=False)

        def function(params, rest):
            return body_for({"Param"})(nnx.merge(graphdef, params, rest))

        axes = nnx.StateAxes({nnx.Param: 0, ...: None})
        expected = nnx.vmap(body_for({"Param"}), in_axes=(axes,), **UPDATES)(plain)
        found = jax.vmap(function, in_axes=(0, None))(params, rest)
        assert array_record(found) == array_record(expected)


def weights(nnx):
    """Makes a Module with a kernel, a shared scale, and a count of calls in another Module."""
    own = classes(nnx)
    model = own.Net()
    model.kernel = nnx.Param(counted((2, SIZE)))
    model.scale = nnx.BatchStat(counted((2,), start=1))
    model.block = own.Net()
    model.block.calls = own.Count(counted((SIZE,), "int32"))
    return model


def use(model):
    """Reads all of `weights`, and counts the call."""
    model.block.calls[...] += 1
    return model.kernel * model.scale


AXES = {
    "mapping": lambda nnx: {nnx.Param: 1, nnx.BatchStat: None, ...: 0},
    "first filter": lambda nnx: {nnx.PathContains("block"): 0, nnx.Param: 1, nnx.Variable: None},
    "function": lambda nnx: lambda path, _: {"kernel": 1, "calls": 0}.get(path[-1]),
}
"""Axes for `weights`, as `prefix` takes them."""


def is_hashable(value):
    """Tells whether a value can be a key, with all that is in it."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


modes = pytest.mark.parametrize("mode", [TREE, GRAPH], ids=["tree-mode", "graph-mode"])


@clause("TREE-009", MUST, DOCUMENTED, source="api_reference/flax.nnx/graph#flax.nnx.prefix")
class TestPrefix:
    """`prefix(node, {filter: value, ...})` makes a tree prefix of a node for `in_axes` and so on.

    In the place of each Variable and array it has the value of the first filter that selects it. A
    function of path and value may stand for the filters. What no filter selects raises ValueError.
    """

    @modes
    @pytest.mark.parametrize("axes", AXES)
    def test_in_axes(self, nnx, mode, axes):
        model = weights(nnx)
        prefix = nnx.prefix(model, AXES[axes](nnx), graph=mode["graph"])
        y = nnx.vmap(use, in_axes=(prefix,), **mode)(model)
        assert y.tolist() == [[0, 6], [1, 8], [2, 10]]
        assert model.block.calls.get_value().tolist() == [1, 2, 3]
        assert model.scale.get_value().tolist() == [1, 2]

    @modes
    def test_several_arguments(self, nnx, mode):
        def function(first, second, x):
            first.block.calls[...] += x
            return first.kernel + second.kernel

        models = (weights(nnx), weights(nnx))
        prefixes = nnx.prefix(models, AXES["mapping"](nnx), graph=mode["graph"])
        y = nnx.vmap(function, in_axes=(*prefixes, None), **mode)(*models, 2)
        assert y.tolist() == [[0, 6], [2, 8], [4, 10]]
        assert [m.block.calls.get_value().tolist() for m in models] == [[2, 3, 4], [0, 1, 2]]

    def test_scan(self, nnx):
        model = weights(nnx)
        prefix = nnx.prefix(model, {nnx.Param: 1, nnx.BatchStat: None, ...: 0}, graph=False)
        y = nnx.scan(use, in_axes=(prefix,), out_axes=0, **TREE)(model)
        assert y.tolist() == [[0, 6], [1, 8], [2, 10]]
        assert model.block.calls.get_value().tolist() == [1, 2, 3]

    def test_out_axes(self, nnx):
        def create(kernel):
            model = weights(nnx)
            model.kernel = nnx.Param(kernel)
            model.block.calls = classes(nnx).Count(np.int32(7))
            return model

        prefix = nnx.prefix(weights(nnx), AXES["mapping"](nnx), graph=False)
        model = nnx.vmap(create, out_axes=prefix, **TREE)(counted((SIZE, 2)))
        assert model.kernel.get_value().tolist() == [[0, 2, 4], [1, 3, 5]]
        assert model.scale.get_value().tolist() == [1, 2]
        assert model.block.calls.get_value().tolist() == [7] * SIZE

    def test_jax_vmap(self, nnx):
        model = weights(nnx)
        prefix = nnx.prefix(model, AXES["mapping"](nnx), graph=False)
        y = jax.vmap(use, in_axes=(prefix,))(model)
        assert y.tolist() == [[0, 6], [1, 8], [2, 10]]

    def test_shared_objects(self, nnx):
        def function(first, second):
            first.block.calls[...] += 1
            return first is second

        model = weights(nnx)
        prefixes = nnx.prefix((model, model), AXES["mapping"](nnx), graph=True)
        same = nnx.vmap(function, in_axes=prefixes, out_axes=None, **GRAPH)(model, model)
        assert same, "an object that was passed twice is two inside"
        assert model.block.calls.get_value().tolist() == [1, 2, 3]

    @given(plan=trees(), filter_plans=filter_groups())
    def test_any_filters(self, nnx, plan, filter_plans):
        node, values = build(nnx, plan), {}
        for number, item in enumerate(filter_plans):
            selector = build_filter(nnx, item)
            assume(is_hashable(selector))
            values.setdefault(selector, number)
        full = jax.tree.broadcast(nnx.prefix(node, values, graph=False), node)
        for path, item in graph_items(plan):
            found = at(nnx, full, path)
            found = found.get_value() if isinstance(found, nnx.Variable) else found
            assert set(jax.tree.leaves(found)) == {group_of(filter_plans, path, item)}

    @modes
    def test_what_no_filter_selects(self, nnx, mode):
        model = weights(nnx)
        with pytest.raises(ValueError):  # noqa: PT011
            nnx.prefix(model, {nnx.Param: 0, nnx.BatchStat: None}, graph=mode["graph"])


@clause("TREE-016", SHOULD, OURS, source="who reads the error has to find what has no axis")
@modes
def test_the_path_without_a_value_is_named(nnx, mode):
    """The error of `prefix` for what no filter selects names its path."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        nnx.prefix(weights(nnx), {nnx.Param: 0, nnx.BatchStat: None}, graph=mode["graph"])
    said = str(caught.value)
    assert names_path(said, ("block", "calls")), f"the error does not name block.calls: {said}"
