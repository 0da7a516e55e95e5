"""Profiles: how much each of them tries."""

import pytest

from nnx_spec import profiles


@pytest.mark.parametrize("name", ["default", "thorough"])
def test_every_case_is_tried(name):
    assert list(profiles.cases(name, range(100))) == list(range(100))


@pytest.mark.parametrize(("size", "tried"), [(0, []), (1, [0]), (2, [1]), (5, [2]), (100, [50])])
def test_smoke_tries_a_case_from_the_middle(size, tried):
    assert list(profiles.cases("smoke", range(size))) == tried


def test_an_unknown_profile_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no profile 'brisk'; there are smoke, default, thorough"):
        profiles.activate("brisk")
