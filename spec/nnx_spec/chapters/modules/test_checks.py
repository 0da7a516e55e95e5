"""Checks: data in static attributes, and changes from another trace level."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnx_spec import DOCUMENTED, MUST, clause
from nnx_spec.chapters.functional.making import net, param
from nnx_spec.chapters.modules.models import counted
from nnx_spec.oracles import snapshot

VALUES = {
    "array": lambda nnx: counted((2,)),
    "NumPy array": lambda nnx: np.zeros(2),
    "Variable": lambda nnx: param(nnx, 1.0),
    "Ref": lambda nnx: jax.new_ref(jnp.zeros(2)),
    "Module": lambda nnx: net(nnx),
}
"""Values that are data."""

WRAPPERS = {
    "list": lambda x: ["text", x],
    "tuple": lambda x: (1, x),
    "dict": lambda x: {"k": x},
    "nested": lambda x: [{"k": (x,)}],
}
"""Plain containers around a value."""

WITH_DATA = {
    **{f"list of {name}": (name, "list") for name in VALUES},
    **{f"{name} of array": ("array", name) for name in ("tuple", "dict", "nested")},
}
"""Containers of data: what is in them, and how."""


def with_data(nnx, case):
    """Makes a container that holds data."""
    value, wrapper = WITH_DATA[case]
    return WRAPPERS[wrapper](VALUES[value](nnx))


def assert_refused(change):
    """Asserts that ValueError is raised."""
    with pytest.raises(ValueError):  # noqa: PT011 (its text is not specified)
        change()


@clause("MOD-005", MUST, DOCUMENTED, source="guides/pytree#attribute-checks")
class TestDataInStaticAttributes:
    """Data that would end up in a static attribute raises ValueError.

    This holds for data itself where the attribute is static already or `static(...)` says so, and
    for a list, tuple or dict that holds data at any depth and is not annotated as data. What is put
    into such a container during `__init__` is found at its end. A refused assignment changes
    nothing.
    """

    @pytest.mark.parametrize("case", WITH_DATA)
    def test_containers(self, nnx, case):
        node, value = net(nnx), with_data(nnx, case)
        assert_refused(lambda: setattr(node, "layers", value))
        assert not hasattr(node, "layers")
        node.layers = nnx.data(value)
        assert node.layers is value

    @pytest.mark.parametrize("case", ["array", "Variable", "Module", *WITH_DATA])
    def test_known_static_attributes(self, nnx, case):
        node = net(nnx, layers="none", w=param(nnx, 1.0))
        before = snapshot(nnx, node, identities=True)
        value = VALUES[case](nnx) if case in VALUES else with_data(nnx, case)
        assert_refused(lambda: setattr(node, "layers", value))
        assert snapshot(nnx, node, identities=True) == before

    @pytest.mark.parametrize("case", [*VALUES, *WITH_DATA])
    def test_annotated_as_static(self, nnx, case):
        node = net(nnx)
        value = VALUES[case](nnx) if case in VALUES else with_data(nnx, case)
        assert_refused(lambda: setattr(node, "layers", nnx.static(value)))
        assert not hasattr(node, "layers")

    @pytest.mark.parametrize("base", ["Module", "Pytree"])
    @pytest.mark.parametrize(
        "fill",
        [
            lambda nnx, node: node.items.append(counted((2,))),
            lambda nnx, node: node.items.append(("deep", [param(nnx, 1.0)])),
            lambda nnx, node: node.table.update(k=net(nnx)),
            lambda nnx, node: node.table["inner"].append(np.zeros(2)),
        ],
        ids=["array in a list", "Variable deep in a list", "Module in a dict", "array deep"],
    )
    def test_found_after_init(self, nnx, base, fill):
        class Filled(getattr(nnx, base)):
            def __init__(self):
                self.items = []
                self.table = {"inner": []}
                fill(nnx, self)

        assert_refused(Filled)

    def test_found_after_the_last_init(self, nnx):
        class Base(nnx.Module):
            def __init__(self):
                self.items = []

        class Derived(Base):
            def __init__(self):
                super().__init__()
                self.items.append(counted((2,)))

        assert Base().items == []
        assert_refused(Derived)

    def test_elements_of_containers(self, nnx):
        items, table = nnx.List([1]), nnx.Dict(a=1)
        for change in (
            lambda: items.append([counted((2,))]),
            lambda: items.insert(0, (param(nnx, 1.0),)),
            lambda: table.update(b=[counted((2,))]),
            lambda: nnx.List([[counted((2,))]]),
            lambda: nnx.Dict(a=[counted((2,))]),
        ):
            assert_refused(change)
        assert (list(items), dict(table)) == ([1], {"a": 1})

    def test_what_is_no_data_is_taken(self, nnx):
        values = {"a": [1, "t", None], "b": {"k": (2, [3])}, "c": (), "d": [nnx.Param, abs]}
        node = net(nnx, **values)
        assert {name: getattr(node, name) for name in values} == values


ANNOTATED = {
    "data in a list": lambda nnx: [nnx.data(1)],
    "static in a dict": lambda nnx: {"k": nnx.static(1)},
    "data in a tuple": lambda nnx: (0, nnx.data(1)),
    "deep": lambda nnx: [{"k": (nnx.static(1),)}],
    "in data": lambda nnx: nnx.data([nnx.data(1)]),
    "in static": lambda nnx: nnx.static([nnx.static(1)]),
}
"""Annotations that are inside of what is assigned."""


@clause("MOD-006", MUST, DOCUMENTED, source="api_reference/flax.nnx/object#flax.nnx.check_pytree")
class TestCheckPytree:
    """`check_pytree` raises ValueError for an object with data in a static attribute.

    It finds what was put into containers after `__init__`, and changes nothing. Annotations that
    stand inside a plain list, tuple or dict raise ValueError, where they are assigned, at the end
    of `__init__`, and in `check_pytree`.
    """

    @pytest.mark.parametrize("kind", VALUES)
    def test_finds_data(self, nnx, kind):
        node = net(nnx, items=[], table={"inner": ()}, w=param(nnx, 1.0))
        nnx.check_pytree(node)
        node.items.append((VALUES[kind](nnx),))
        assert_refused(lambda: nnx.check_pytree(node))
        assert len(node.items) == 1
        node.items.clear()
        node.table["inner"] = {"deep": VALUES[kind](nnx)}
        assert_refused(lambda: nnx.check_pytree(node))
        node.table.clear()
        nnx.check_pytree(node)

    def test_takes_what_is_right(self, nnx):
        values = {"a": counted((2,)), "w": param(nnx, 1.0), "n": [1, ("t", None)], "f": abs}
        node = net(nnx, **values, items=nnx.List([param(nnx, 2.0)]), d=nnx.data([counted((1,))]))
        node.d.append(counted((2,)))
        before = snapshot(nnx, node, identities=True)
        assert nnx.check_pytree(node) is None
        assert snapshot(nnx, node, identities=True) == before

    @pytest.mark.parametrize("case", ANNOTATED)
    def test_nested_annotations(self, nnx, case):
        node = net(nnx)
        assert_refused(lambda: setattr(node, "layers", ANNOTATED[case](nnx)))
        assert not hasattr(node, "layers")

    @pytest.mark.parametrize("mark", ["data", "static"])
    def test_nested_annotations_found_later(self, nnx, mark):
        class Filled(nnx.Module):
            def __init__(self):
                self.items = []
                self.items.append(getattr(nnx, mark)(1))

        assert_refused(Filled)
        node = net(nnx, table={})
        node.table["k"] = [getattr(nnx, mark)(1)]
        assert_refused(lambda: nnx.check_pytree(node))


CHANGES = {
    "existing": lambda nnx, node: setattr(node, "count", 1),
    "new": lambda nnx, node: setattr(node, "new", 1),
    "static": lambda nnx, node: setattr(node, "name", "other"),
    "Variable": lambda nnx, node: setattr(node, "w", nnx.Param(0)),
    "annotated": lambda nnx, node: setattr(node, "count", nnx.static(1)),
    "nested": lambda nnx, node: setattr(node.inner, "count", 1),
    "deleted": lambda nnx, node: delattr(node, "count"),
    "appended to a List": lambda nnx, node: node.items.append(3),
    "item of a List": lambda nnx, node: node.items.__setitem__(0, 3),
    "deleted from a List": lambda nnx, node: node.items.__delitem__(0),
    "popped from a List": lambda nnx, node: node.items.pop(),
    "item of a Dict": lambda nnx, node: node.table.__setitem__("k", 3),
    "new in a Dict": lambda nnx, node: node.table.update(new=3),
    "deleted from a Dict": lambda nnx, node: node.table.__delitem__("k"),
    "cleared Dict": lambda nnx, node: node.table.clear(),
}
"""Changes of an object that has been captured."""

TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(1.0),
    "vmap": lambda f: jax.vmap(f)(np.arange(2.0)),
    "grad": lambda f: jax.grad(f)(1.0),
    "scan": lambda f: jax.lax.scan(lambda carry, x: (f(carry), x), 1.0, None, length=2),
    "eval_shape": lambda f: jax.eval_shape(f, 1.0),
    "checkpoint": lambda f: jax.checkpoint(f)(1.0),
    "inner jit": lambda f: jax.jit(lambda x: jax.jit(f)(x))(1.0),
}
"""JAX transforms that trace a function of one number."""


@clause("MOD-010", MUST, DOCUMENTED, source="guides/pytree#trace-level-awareness")
class TestTraceLevel:
    """Changing a Pytree that a traced function has captured raises TraceContextError.

    The object is as before: nothing is set, deleted, appended or taken out. Objects that are
    arguments of the traced function, or made in it, may be changed, and it does not matter whether
    the new value is traced.
    """

    @pytest.mark.parametrize("change", CHANGES)
    def test_changes(self, nnx, change):
        self.check(nnx, CHANGES[change], TRANSFORMS["eval_shape"])

    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_transforms(self, nnx, transform):
        self.check(nnx, CHANGES["existing"], TRANSFORMS[transform])

    @pytest.mark.parametrize("base", ["Pytree", "Object"])
    def test_other_classes(self, nnx, base):
        node = type("Thing", (getattr(nnx, base),), {})()
        node.count = 0

        def f(x):
            with pytest.raises(nnx.errors.TraceContextError):
                node.count = x
            return x

        jax.eval_shape(f, 1.0)
        assert node.count == 0

    def check(self, nnx, change, transform):
        node = net(nnx, count=nnx.data(0), name="n", w=param(nnx, 1.0))
        node.items, node.table = nnx.List([1, 2]), nnx.Dict(k=1)
        node.inner = net(nnx, count=0)
        before, calls = snapshot(nnx, node, identities=True), []

        def f(x):
            with pytest.raises(nnx.errors.TraceContextError):
                change(nnx, node)
            calls.append(x)
            return x

        transform(f)
        assert calls
        assert snapshot(nnx, node, identities=True) == before

    def test_traced_values(self, nnx):
        node = net(nnx, count=nnx.data(0))

        def f(x):
            with pytest.raises(nnx.errors.TraceContextError):
                node.count = x
            with pytest.raises(nnx.errors.TraceContextError):
                node.count += x
            return x

        jax.jit(f)(1.0)
        assert node.count == 0

    def test_arguments_and_new_objects(self, nnx):
        def f(node, x):
            node.count = nnx.data(x + 1)
            node.items.append(node.w)
            del node.name
            made = net(nnx, v=nnx.Param(x))
            made.n = 5
            return node, made

        node = net(nnx, count=nnx.data(0), name="n", w=param(nnx, 1.0), items=nnx.List([]))
        changed, made = jax.jit(f)(node, 2.0)
        assert (float(changed.count), len(changed.items), hasattr(changed, "name")) == (3, 1, False)
        assert (made.n, float(made.v.get_value())) == (5, 2)
        assert (node.count, len(node.items), node.name) == (0, 0, "n")

    def test_argument_of_an_outer_function(self, nnx):
        def f(node):
            def g(x):
                with pytest.raises(nnx.errors.TraceContextError):
                    node.count = 1
                return x

            jax.eval_shape(g, 1.0)
            node.count = 2
            return node

        assert jax.jit(f)(net(nnx, count=0, w=param(nnx, 1.0))).count == 2
