"""What a target has and what it lacks, and how that is found."""

from __future__ import annotations

import types

import pytest

from nnx_conformance import features
from nnx_conformance.features import Answer, How
from nnx_spec.features import AREAS, FEATURES, GROUPS, IMPLIED, OPTIONAL, TRANSFORMS, above, closure


class Claims:
    """A target whose Variables claim what they are told to."""

    def __init__(self, **claimed):
        self.claimed = claimed

    def Variable(self, value, **flags):  # noqa: N802
        return types.SimpleNamespace(**self.claimed, get_raw_value=lambda: value)


def had(declaration=None, **overrides):
    """Returns what a target has that declares so much, or nothing, and can't be probed."""
    nnx = types.SimpleNamespace(__nnx_features__=declaration)
    return features.features_of(features.probe(nnx, overrides))


def below(name):
    return {feature for feature in FEATURES if name in (feature, *above(feature))}


def test_every_optional_feature_has_a_probe():
    assert features.PROBES.keys() == OPTIONAL.keys()


def test_features_are_told_apart():
    assert not OPTIONAL.keys() & AREAS.keys()
    assert not FEATURES.keys() & GROUPS.keys()
    assert {
        name for name in FEATURES if not set(above(name)) <= FEATURES.keys() | GROUPS.keys()
    } == set()


def test_a_claim_is_believed_and_a_denial_too():
    denied = features.probe(Claims(hijax=False))
    assert denied["hijax"] == Answer(False, How.PROBED)
    assert denied["mutable-flag"] == Answer(False, How.PROBED)
    claimed = features.probe(Claims(hijax=True, mutable=False))
    assert claimed["hijax"] == Answer(True, How.PROBED)
    assert claimed["hijax.ref"] == Answer(False, How.PROBED)
    assert claimed["mutable-flag"] == Answer(True, How.PROBED)


def test_what_lies_below_is_not_probed_once_that_is_denied():
    denied = features.probe(Claims(hijax=False))
    assert denied["hijax.ref"] == Answer(False, How.PROBED, above="hijax")
    assert denied["hijax.ref"].reason == "probed: no hijax"


def test_a_probe_that_raises_counts_as_a_claim():
    assert had() == set(FEATURES)


def test_products_are_denied_by_a_refusal_alone():
    def refuse(*args, **options):
        raise NotImplementedError

    nnx = types.SimpleNamespace(vjp=refuse)
    assert features.features_of(features.probe(nnx)) == FEATURES.keys() - {"graph-updates.products"}


def test_areas_are_taken_for_granted():
    answers = features.probe(Claims())
    assert {answers[area] for area in AREAS} == {Answer(True, How.GRANTED)}


@pytest.mark.parametrize(
    "name", ["hijax", "graph", "graph-updates", "transforms", "capture", "transforms.scan"]
)
def test_a_mapping_denies_what_it_mentions_and_what_lies_below(name):
    assert FEATURES.keys() - had({name: False}) == below(name) != set()


def test_what_lies_below():
    assert below("graph") == {"graph", "graph-updates", "graph-updates.products"}
    assert below("transforms") == {f"transforms.{name}" for name in TRANSFORMS}


def test_a_mapping_may_keep_some_of_what_it_denies():
    kept = had({"transforms": False, "transforms.jit": True})
    assert kept & below("transforms") == {"transforms.jit"}


def test_a_collection_names_the_optional_features_and_leaves_areas_alone():
    assert had(("hijax", "hijax.ref")) == {"hijax", "hijax.ref", *AREAS}
    assert had(()) == AREAS.keys()
    assert had(["capture"]) == AREAS.keys()


def test_an_override_wins_and_takes_with_it_what_lies_below():
    assert "hijax" in had((), hijax=True)
    denied = had({"transforms.jit": True, "hijax.ref": True}, transforms=False, hijax=False)
    assert not denied & (below("transforms") | below("hijax"))
    assert below("hijax") <= had({"hijax": False}, hijax=True)


def test_it_is_said_how_an_answer_was_found():
    nnx = types.SimpleNamespace(__nnx_features__={"graph": False, "hijax": True})
    answers = features.probe(nnx, {"capture": False})
    reasons = {
        name: answers[name].reason for name in ("graph", "graph-updates", "capture", "hijax")
    }
    assert reasons == {
        "graph": "declared",
        "graph-updates": "declared: no graph",
        "capture": "given by the user",
        "hijax": "declared",
    }


@pytest.mark.parametrize("declaration", [["hijaks"], {"hijaks": True}])
def test_an_unknown_feature_is_refused(declaration):
    with pytest.raises(features.FeatureError, match="hijaks: no such feature; there are hijax"):
        had(declaration)


@pytest.mark.parametrize(("together", "implied"), IMPLIED.items())
def test_what_is_needed_together_implies_more(together, implied):
    assert closure(together) == together | {implied}
    assert {closure({need}) for need in together} == {frozenset({need}) for need in together}
