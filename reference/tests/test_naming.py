"""Names of the classes of Variables."""

import pytest

import nnx_reference as nnx
from nnx_reference import naming


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    """Leaves the registered names as they were."""
    monkeypatch.setattr(naming, "_kinds", dict(naming._kinds))


KNOWN = {
    "params": nnx.Param,
    "batch_stats": nnx.BatchStat,
    "cache": nnx.Cache,
    "intermediates": nnx.Intermediate,
    "perturbations": nnx.Perturbation,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_names(name):
    assert nnx.variable_type_from_name(name) is KNOWN[name]
    assert nnx.variable_name_from_type(KNOWN[name]) == name


def test_a_name_is_given():
    @nnx.register_variable_name("counts")
    class Count(nnx.Variable):
        pass

    assert nnx.variable_type_from_name("counts") is Count
    assert nnx.variable_name_from_type(Count) == "counts"
    assert nnx.register_variable_name("tallies", Count) is Count
    assert nnx.variable_name_from_type(Count) == "counts"


def test_a_name_is_taken():
    with pytest.raises(ValueError, match="'params' stands for Param already"):
        nnx.register_variable_name("params", nnx.Cache)
    assert nnx.variable_type_from_name("params") is nnx.Param
    nnx.register_variable_name("params", nnx.Cache, overwrite=True)
    assert nnx.variable_type_from_name("params") is nnx.Cache


def test_unknown_names():
    with pytest.raises(ValueError, match="'counts' stands for no class"):
        nnx.variable_type_from_name("counts")
    made = nnx.variable_type_from_name("counts", base=nnx.BatchStat, allow_register=True)
    assert (made.__name__, made.__bases__) == ("counts", (nnx.BatchStat,))
    assert nnx.variable_type_from_name("counts") is made
    assert nnx.variable_name_from_type(made) == "counts"


def test_unnamed_classes():
    class Count(nnx.Variable):
        pass

    with pytest.raises(ValueError, match="Count has no name"):
        nnx.variable_name_from_type(Count)
    assert nnx.variable_name_from_type(Count, allow_register=True) == "Count"
    assert nnx.variable_type_from_name("Count") is Count
