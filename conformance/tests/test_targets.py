"""Loading targets."""

from __future__ import annotations

import os
import sys

import pytest

from nnx_conformance import targets


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Makes a module of the working directory, and gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def make(source, name="own_target"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return make


def test_the_package_registers_the_reference_and_flax():
    assert (
        targets.registered().items() >= {"reference": "nnx_reference", "flax": "flax.nnx"}.items()
    )


def test_a_registered_name_is_located_without_an_import():
    assert targets.locate("flax") == ("flax.nnx", "")


def test_a_module_and_an_attribute_are_located_without_an_import():
    assert targets.locate("no.such.module") == ("no.such.module", "")
    assert targets.locate("no.such:space.inner") == ("no.such", "space.inner")


def test_a_module_of_the_working_directory_is_located(module):
    assert targets.locate(module("")) == ("own_target", "")


@pytest.mark.parametrize(("wrong", "near"), [("flox", "flax"), ("referense", "reference")])
def test_an_unknown_name_brings_up_the_near_ones(wrong, near):
    with pytest.raises(targets.UnknownTargetError, match=f"{wrong}.*did you mean {near}"):
        targets.locate(wrong)


def test_names_are_read_through(module):
    target = targets.load(module("split = 'the split'"))
    assert target.split == "the split"
    assert repr(target) == "<target own_target>"


def test_an_attribute_of_an_attribute_is_a_target(module):
    name = module("class outer:\n    class inner:\n        split = 1")
    assert targets.load(f"{name}:outer.inner").split == 1


def test_a_replaced_name_leaves_the_implementation_alone(module, monkeypatch):
    target = targets.load(module("split = 1"))
    monkeypatch.setattr(target, "split", 2)
    assert (target.split, sys.modules["own_target"].split) == (2, 1)
    monkeypatch.undo()
    assert target.split == 1


def test_a_missing_name_is_named(module):
    target = targets.load(module(""))
    with pytest.raises(targets.MissingNameError, match="'own_target' has no name 'split'"):
        _ = target.split
    assert not hasattr(target, "split")


def test_error_classes_are_the_namespaces_own(module):
    assert targets.load(module("class errors:\n    Oops = 1")).errors.Oops == 1


def test_error_classes_are_else_those_of_the_root_package(tmp_path, monkeypatch):
    package = tmp_path / "rooted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "errors.py").write_text("Oops = 2")
    (package / "nnx.py").write_text("class space: pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert targets.load("rooted.nnx").errors.Oops == 2
    assert targets.load("rooted.nnx:space").errors.Oops == 2


def test_without_either_errors_is_a_missing_name(module):
    with pytest.raises(targets.MissingNameError, match="'errors'"):
        _ = targets.load(module("")).errors


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
    ],
)
def test_a_failing_import_says_why_on_one_line(module, source, reason):
    with pytest.raises(targets.TargetError) as caught:
        targets.load(module(source))
    assert str(caught.value) == f"target 'own_target' cannot be loaded: {reason}"


def test_a_missing_attribute_is_an_error_of_loading(module):
    with pytest.raises(targets.TargetError, match=r"AttributeError: .*'space'"):
        targets.load(module("") + ":space")


def test_the_import_leaves_directory_and_warnings_as_they_were(module, tmp_path):
    name = module("import os, warnings\nos.chdir('/')\nwarnings.simplefilter('error')\n")
    import warnings

    filters = list(warnings.filters)
    targets.load(name)
    assert os.getcwd() == str(tmp_path)
    assert warnings.filters == filters


def test_a_version_is_the_modules_or_its_root_packages(module, tmp_path, monkeypatch):
    assert targets.version(targets.load(module("__version__ = '4.5'"))) == "4.5"
    package = tmp_path / "versioned"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '6.7'")
    (package / "inner.py").touch()
    assert targets.version(targets.load("versioned.inner")) == "6.7"


def test_a_version_is_else_the_distributions_or_none(module):
    assert targets.version(targets.load("_pytest.outcomes")) == pytest.__version__
    assert targets.version(targets.load(module(""))) is None
