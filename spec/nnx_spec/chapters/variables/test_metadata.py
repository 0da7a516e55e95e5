"""Metadata: what a Variable carries besides its value."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnx_spec import DOCUMENTED, MUST, SOUND, clause, stands_on
from nnx_spec.chapters.variables.cases import SECONDS, array, inside
from nnx_spec.oracles import IMPLICIT_METADATA, array_record, user_metadata

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, "", "text"])
VALUES = SCALARS | st.tuples(SCALARS, SCALARS)
NAMES = st.text("abyz_09", min_size=1, max_size=3).map("my_".__add__)
MAPPINGS = st.dictionaries(NAMES, VALUES, max_size=4)
"""Metadata: hashable values, false ones among them, by names that no array has."""


@clause(
    "VAR-008",
    MUST,
    DOCUMENTED,
    source="api_reference/flax.nnx/variables#flax.nnx.Variable.get_metadata",
)
class TestReadingMetadata:
    """Keyword arguments of the constructor are the Variable's metadata, whole and by name.

    Each is an attribute; `get_metadata()` gives all of them as a dict, `get_metadata(name)` one,
    or the default that is passed where there is none. An attribute that neither the metadata nor
    the value has raises `AttributeError`.
    """

    @given(metadata=MAPPINGS)
    def test_all_ways_agree(self, nnx, metadata):
        v = nnx.Param(array([1, 2]), **metadata)
        assert user_metadata(v) == metadata
        assert isinstance(v.get_metadata(), dict)
        for name, value in metadata.items():
            assert getattr(v, name) is value
            assert v.get_metadata(name) is value
            assert v.get_metadata(name, "default") is value

    @given(metadata=MAPPINGS)
    def test_in_a_trace(self, nnx, metadata):
        def f(x):
            assert user_metadata(nnx.Param(x, **metadata)) == metadata
            return x

        jax.eval_shape(f, np.float32(1))

    @pytest.mark.parametrize("kind", ["Variable", "Param", "BatchStat", "Cache"])
    def test_without_metadata(self, nnx, kind):
        v = getattr(nnx, kind)(array(1))
        assert set(v.get_metadata()) <= IMPLICIT_METADATA
        assert v.get_metadata("tag", 5) == 5
        assert v.get_metadata("tag", None) is None

    @pytest.mark.parametrize("value", [array([1, 2]), np.ones(2), {"k": 1}, 3], ids=type)
    def test_unknown_name(self, nnx, value):
        v = nnx.Param(value, tag="t")
        assert not hasattr(v, "unknown")
        with pytest.raises(AttributeError):
            v.unknown  # noqa: B018 - reading is what is tested


EDITS = st.tuples(st.sampled_from(["name", "keyword", "whole", "delete"]), NAMES, VALUES)


ELSEWHERE = "what is assigned beside the metadata gets lost in copies and traces"


@clause(
    "VAR-009",
    MUST,
    DOCUMENTED,
    source="api_reference/flax.nnx/variables#flax.nnx.Variable.set_metadata",
)
class TestChangingMetadata:
    """`set_metadata` and `del_metadata` change metadata, and nothing else does.

    `set_metadata` takes a name and a value, keywords, or a dict that replaces all there is.
    Assigning or deleting an attribute raises `AttributeError` and changes nothing, whether there is
    metadata of that name or not; nor does it matter what becomes of a dict that `get_metadata` has
    given or `set_metadata` has taken.
    """

    @given(start=MAPPINGS, program=st.lists(EDITS, max_size=6))
    def test_edit_program(self, nnx, start, program):
        x = array([1, 2])
        v, model = nnx.Param(x, **start), dict(start)
        for edit, name, value in program:
            if edit == "name":
                v.set_metadata(name, value)
                model[name] = value
            elif edit == "keyword":
                v.set_metadata(**{name: value, "my_other": edit})
                model |= {name: value, "my_other": edit}
            elif edit == "whole":
                v.set_metadata({name: value})
                model = {name: value}
            elif name in model:
                v.del_metadata(name)
                del model[name]
            assert user_metadata(v) == model
        assert v.get_raw_value() is x

    @stands_on(SOUND, ELSEWHERE)
    @pytest.mark.parametrize("name", ["tag", "fresh"], ids=["present", "absent"])
    def test_assignment_is_refused(self, nnx, name):
        v = nnx.Param(array(1), tag="t")
        with pytest.raises(AttributeError):
            setattr(v, name, "changed")
        assert user_metadata(v) == {"tag": "t"}
        assert v.tag == "t"

    @stands_on(SOUND, ELSEWHERE)
    @pytest.mark.parametrize("name", ["tag", "fresh"], ids=["present", "absent"])
    def test_deletion_is_refused(self, nnx, name):
        v = nnx.Param(array(1), tag="t")
        with pytest.raises(AttributeError):
            delattr(v, name)
        assert user_metadata(v) == {"tag": "t"}

    @stands_on(SOUND, ELSEWHERE)
    def test_assignment_is_refused_in_a_trace(self, nnx):
        def f(v):
            with pytest.raises(AttributeError):
                v.tag = "changed"
            assert v.tag == "t"
            return v

        assert jax.eval_shape(f, nnx.Param(array(1), tag="t")).tag == "t"

    @stands_on(SOUND, "a change to a dict changes a Variable that nobody wrote to")
    def test_dicts_outside_do_not_matter(self, nnx):
        v = nnx.Param(array(1), tag="t")
        v.get_metadata()["tag"] = "changed"
        assert user_metadata(v) == {"tag": "t"}
        replacement = {"note": "n"}
        v.set_metadata(replacement)
        replacement["note"] = "changed"
        assert user_metadata(v) == {"note": "n"}

    def test_deleted_metadata_is_gone(self, nnx):
        v = nnx.Param(array(1), tag="t", note="n")
        v.del_metadata("tag")
        assert not hasattr(v, "tag")
        assert user_metadata(v) == {"note": "n"}


def copied_from(nnx, v):
    """Makes a Variable and lets it copy from another."""
    other = type(v)(array(0), old="gone")
    other.copy_from(v)
    return other


def updated_from_state(nnx, v):
    """Makes a Variable and updates it from another."""
    other = type(v)(array(0), old="gone")
    other.update_from_state(v)
    return other


def updated_model(nnx, v):
    """Updates a Module of equal metadata with the state of one that holds the Variable."""
    model = inside(nnx, type(v)(array(0), **user_metadata(v)))
    nnx.update(model, nnx.state(inside(nnx, v)))
    return model.v


OTHERS = {
    **SECONDS,
    "copy_from": copied_from,
    "update_from_state": updated_from_state,
    "update": updated_model,
    "set_metadata": lambda nnx, v: (w := type(v)(array(0)), w.set_metadata(v.get_metadata()))[0],
    "copy-of-copy": lambda nnx, v: v.copy().copy(),
}
"""Ways to make, from a Variable, another one with the same metadata, by name."""


@clause("VAR-010", MUST, SOUND, source="a change to one Variable changes another one silently")
class TestUnsharedMetadata:
    """No two Variables share their metadata: to change one's leaves the other's alone.

    It does not matter how the one was made from the other, or both of one dict or initializer. What
    `copy.copy` shares is not ruled: by Python's convention it is shallow.
    """

    @pytest.mark.parametrize("way", OTHERS)
    @given(metadata=MAPPINGS)
    def test_both_ways(self, nnx, way, metadata):
        v = nnx.Param(array([1, 2]), **metadata, tag="t")
        w = OTHERS[way](nnx, v)
        assert user_metadata(w) == user_metadata(v) == {**metadata, "tag": "t"}
        w.set_metadata("tag", "changed")
        w.set_metadata(my_new=1)
        assert user_metadata(v) == {**metadata, "tag": "t"}
        v.del_metadata("tag")
        assert user_metadata(w) == {**metadata, "tag": "changed", "my_new": 1}

    def test_one_dict(self, nnx):
        metadata = {"tag": "t"}
        v, w = nnx.Param(array(1), **metadata), nnx.Param(array(1))
        w.set_metadata(metadata)
        u = nnx.Param(array(1))
        u.set_metadata(metadata)
        w.set_metadata("tag", "changed")
        assert [v.tag, w.tag, u.tag, metadata] == ["t", "changed", "t", {"tag": "t"}]

    def test_one_initializer(self, nnx):
        init = nnx.with_metadata(jax.nn.initializers.zeros, tag="t")
        key = jax.random.key(0)
        v, w = nnx.Param(init(key, (2,))), nnx.Param(init(key, (2,)))
        result = init(key, (2,))
        x, y = nnx.Param(result), nnx.Param(result)
        v.set_metadata("tag", "changed")
        x.del_metadata("tag")
        assert (v.tag, w.tag, y.tag) == ("changed", "t", "t")
        assert nnx.Param(init(key, (2,))).tag == "t"

    def test_through_transforms(self, nnx):
        v = nnx.Param(array([1, 2]), tag="t")
        w = jax.jit(lambda v: v)(v)
        u = jax.jit(lambda v: v)(v)
        w.set_metadata("tag", "changed")
        assert (v.tag, u.tag) == ("t", "t")
        treedef = jax.tree.structure(v)
        v.set_metadata("tag", "later")
        assert jax.tree.unflatten(treedef, [array([3, 4])]).tag == "t"


@clause(
    "VAR-023",
    MUST,
    DOCUMENTED,
    source="api_reference/flax.nnx/variables#flax.nnx.with_metadata",
)
@pytest.mark.filterwarnings("ignore:.*[Hh]ooks are deprecated")
class TestInitializersWithMetadata:
    """`with_metadata(init, **meta)` is an initializer; a Variable of its result has the metadata.

    The Variable's value is what `init` gives for the same arguments. A hook given that way runs at
    its moment, `on_create_value`, `on_set_value` and `on_get_value` when a value is put in first,
    replaced and read, `on_add_axis` and `on_remove_axis` with `add_axis` and `remove_axis`; or, in
    a release without hooks, it is refused.
    """

    @pytest.mark.parametrize("kind", ["Variable", "Param", "BatchStat"])
    @given(metadata=MAPPINGS)
    def test_metadata(self, nnx, kind, metadata):
        init = nnx.with_metadata(lambda key, shape, dtype: array(np.ones(shape), dtype), **metadata)
        v = getattr(nnx, kind)(init(None, (1, 2), "int32"))
        assert type(v) is getattr(nnx, kind)
        assert user_metadata(v) == metadata
        assert array_record(v[...]) == array_record(array([[1, 1]], "int32"))

    @pytest.mark.parametrize("name", ["lecun_normal", "uniform"])
    def test_same_values(self, nnx, name):
        init = getattr(jax.nn.initializers, name)()
        key = jax.random.key(3)
        v = nnx.Param(nnx.with_metadata(init, owner="me")(key, (2, 3), "float32"))
        assert array_record(v[...]) == array_record(init(key, (2, 3), "float32"))
        assert v.owner == "me"

    def test_constructor_arguments_join(self, nnx):
        v = nnx.Param(nnx.with_metadata(lambda: array(1), owner="me")(), tag="t")
        assert user_metadata(v) == {"owner": "me", "tag": "t"}

    @staticmethod
    def hooked(nnx, hook, function):
        """Makes a Variable of value 1 with a hook, or gives None if the hook is refused."""
        try:
            return nnx.Param(nnx.with_metadata(lambda: array(1), **{hook: function})())
        except Exception:
            return None

    def test_create_hook(self, nnx):
        calls = []
        v = self.hooked(nnx, "on_create_value", lambda v, x: (calls.append(float(x)), x + 10)[1])
        if v is not None:
            assert float(v[...]) == 11
            v[...] = array(2)
            assert float(v[...]) == 2
            assert calls == [1.0]

    def test_set_hook(self, nnx):
        calls = []
        v = self.hooked(nnx, "on_set_value", lambda v, x: (calls.append(float(x)), x + 10)[1])
        if v is not None:
            assert float(v[...]) == 1
            v[...] = array(2)
            assert float(v[...]) == 12
            v.set_value(array(3))
            assert float(v[...]) == 13
            assert calls == [2.0, 3.0]

    def test_get_hook(self, nnx):
        v = self.hooked(nnx, "on_get_value", lambda v, x: x + 10)
        if v is not None:
            assert float(v[...]) == float(v.get_value()) == 11
            assert float(v.get_raw_value()) == 1

    @pytest.mark.parametrize("name", ["add_axis", "remove_axis"])
    def test_axis_hook(self, nnx, name):
        calls = []
        v = self.hooked(nnx, f"on_{name}", lambda v, index, axis: calls.append((v, index, axis)))
        if v is not None:
            getattr(v, name)(1, "layers")
            assert [(call[0] is v, *call[1:]) for call in calls] == [(True, 1, "layers")]
