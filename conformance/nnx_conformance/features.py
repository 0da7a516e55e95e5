"""Features: what a target has and what it lacks, and how that was found.

A target declares itself in `__nnx_features__`, in one of two ways:

    {"graph": False, "transforms.scan": False, "hijax": True}
        A mapping answers for what it mentions, areas among it, and for nothing else. To lack a
        feature is to lack what stands below it, unless the mapping mentions that too:
        {"transforms": False, "transforms.jit": True} has `jit` and no other transform.
    ("hijax", "hijax.ref")
        A collection names the optional features that the target has; it lacks the optional ones
        that are not named. Areas are there all the same: only a mapping denies one.

What is not declared is probed. A probe asks what the target claims, not whether the claim holds:
that a Variable marked `hijax` does carry its updates out of `jax.jit` is for the clauses to find
out. A probe that raises therefore counts as a claim. The exception is `hijax.qdd`: to drop a change
of structure silently is to be without it, and a clause of its own forbids that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnx_spec.features import FEATURES, GROUPS, NAMES, OPTIONAL, above

DECLARATION = "__nnx_features__"
"""Where a target declares its features."""


class FeatureError(ValueError):
    """A feature is declared that the specification does not know."""


class How(enum.Enum):
    """How an answer was found."""

    GIVEN = "given by the user"
    DECLARED = "declared"
    PROBED = "probed"
    GRANTED = "taken for granted"


@dataclass(frozen=True)
class Answer:
    """Whether a target has a feature.

    Attributes:
      has: whether it does.
      how: how that was found.
      above: the feature whose absence it follows from, if it does.
    """

    has: bool
    how: How
    above: str | None = None

    @property
    def reason(self) -> str:
        """How the answer was found, in words."""
        return f"{self.how.value}: no {self.above}" if self.above else self.how.value


def probe(nnx: Any, overrides: Mapping[str, bool] | None = None) -> dict[str, Answer]:
    """Tells for every feature whether a target has it.

    Args:
      nnx: the target.
      overrides: answers that win over both declaration and probe.

    Raises:
      FeatureError: the declaration or `overrides` has a name that is no feature.
    """
    told = _checked(nnx, overrides)
    answers: dict[str, Answer] = {}
    for name in sorted(FEATURES, key=lambda name: len(list(above(name)))):
        answers[name] = _said(name, told) or _denied_above(name, answers) or _claimed(nnx, name)
    return {name: answers[name] for name in FEATURES}


def features_of(answers: Mapping[str, Answer]) -> set[str]:
    """Returns the features that a target has."""
    return {name for name, answer in answers.items() if answer.has}


def denied_names(nnx: Any, overrides: Mapping[str, bool] | None = None) -> dict[str, str]:
    """Returns the names of the areas that the target or the user denies, each with its area.

    Raises:
      FeatureError: as `probe` does.
    """
    told = _checked(nnx, overrides)
    denied = [area for area in NAMES if (said := _said(area, told)) is not None and not said.has]
    return {name: area for area in denied for name in NAMES[area]}


def declared(nnx: Any) -> dict[str, bool]:
    """Returns the features on which a target declares itself."""
    declaration = getattr(nnx, DECLARATION, None)
    if declaration is None:
        return {}
    if isinstance(declaration, Mapping):
        return {name: bool(has) for name, has in declaration.items()}
    return dict.fromkeys(OPTIONAL, False) | dict.fromkeys(declaration, True)


def _checked(nnx: Any, overrides: Mapping[str, bool] | None) -> dict[str, Answer]:
    """Returns what the target and the user say, if it is about features that there are."""
    told = _told(declared(nnx), overrides or {})
    if unknown := told.keys() - FEATURES.keys() - GROUPS.keys():
        raise FeatureError(
            f"{', '.join(sorted(unknown))}: no such feature; there are {', '.join(FEATURES)}"
        )
    return told


def _told(declared: Mapping[str, bool], given: Mapping[str, bool]) -> dict[str, Answer]:
    """Joins what the target and the user say; whom the user denies loses what is below as well."""
    denied = {name for name, has in given.items() if not has}
    kept = {name: has for name, has in declared.items() if not denied & set(above(name))}
    return {name: Answer(has, How.DECLARED) for name, has in kept.items()} | {
        name: Answer(has, How.GIVEN) for name, has in given.items()
    }


def _said(feature: str, told: Mapping[str, Answer]) -> Answer | None:
    """Returns what is said of a feature, or else what follows from the nearest above it."""
    if feature in told:
        return told[feature]
    for higher in filter(told.__contains__, above(feature)):
        return None if told[higher].has else Answer(False, told[higher].how, higher)
    return None


def _denied_above(feature: str, answers: Mapping[str, Answer]) -> Answer | None:
    for higher in above(feature):
        if higher in answers and not answers[higher].has:
            return Answer(False, answers[higher].how, higher)
    return None


def _claimed(nnx: Any, feature: str) -> Answer:
    if feature not in PROBES:
        return Answer(True, How.GRANTED)
    try:
        return Answer(PROBES[feature](nnx), How.PROBED)
    except Exception:
        return Answer(True, How.PROBED)


def _hijax(nnx: Any) -> bool:
    import jax.numpy as jnp

    return bool(nnx.Variable(jnp.zeros(()), hijax=True).hijax)


def _hijax_updates(nnx: Any) -> bool:
    import jax
    import jax.numpy as jnp

    variable = nnx.Variable(jnp.zeros(()), hijax=True, ref=False)
    increment = jax.jit(lambda variable: variable.set_value(variable.get_value() + 1))
    try:
        increment(variable)
    except nnx.errors.ImmutableVariableError:
        return False
    return True


def _hijax_qdd(nnx: Any) -> bool:
    import jax
    import jax.numpy as jnp

    variable = nnx.Variable({}, hijax=True)

    @jax.jit
    def grow(variable: Any) -> None:
        variable["key"] = jnp.zeros(())

    try:
        grow(variable)
    except nnx.errors.ImmutableVariableError:
        return False
    return "key" in variable.get_value()


def _hijax_ref(nnx: Any) -> bool:
    import jax
    import jax.numpy as jnp

    return isinstance(nnx.Variable(jnp.zeros(()), ref=True).get_raw_value(), jax.Ref)


def _mutable_flag(nnx: Any) -> bool:
    import jax.numpy as jnp

    return hasattr(nnx.Variable(jnp.zeros(())), "mutable")


def _products(nnx: Any) -> bool:
    import jax.numpy as jnp

    try:
        nnx.vjp(lambda x: x, jnp.zeros(()), graph=True, graph_updates=True)
    except NotImplementedError:
        return False
    return True


PROBES: dict[str, Callable[[Any], bool]] = {
    "hijax": _hijax,
    "hijax.updates": _hijax_updates,
    "hijax.qdd": _hijax_qdd,
    "hijax.ref": _hijax_ref,
    "mutable-flag": _mutable_flag,
    "graph-updates.products": _products,
}
"""What asks a target for each optional feature."""
