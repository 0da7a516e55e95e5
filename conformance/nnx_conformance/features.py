"""Features: what a target has, declared by the target or probed from what it lets be seen.

A probe asks what the target claims, not whether the claim holds: that a Variable marked `hijax`
does carry its updates out of `jax.jit` is for the clauses to find out. A probe that raises
therefore counts as a claim. The exception is `hijax.qdd`: to drop a change of structure silently is
to be without it, and a clause of its own forbids that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnx_spec.features import FEATURES

DECLARATION = "__nnx_features__"
"""Where a target declares its features: a mapping of some to bool, or a collection of all it
has."""


class FeatureError(ValueError):
    """A feature is declared that the specification does not know."""


def probe(nnx: Any, overrides: Mapping[str, bool] | None = None) -> dict[str, bool]:
    """Tells for every feature whether a target has it.

    Args:
      nnx: the target.
      overrides: answers that win over both declaration and probe.

    Raises:
      FeatureError: the declaration or `overrides` has a name that is no feature.
    """
    known = {**declared(nnx), **(overrides or {})}
    if unknown := known.keys() - FEATURES.keys():
        raise FeatureError(
            f"{', '.join(sorted(unknown))}: no such feature; there are {', '.join(FEATURES)}"
        )
    return {name: known[name] if name in known else claims(nnx, name) for name in FEATURES}


def declared(nnx: Any) -> dict[str, bool]:
    """Returns the features on which a target declares itself."""
    declaration = getattr(nnx, DECLARATION, None)
    if declaration is None:
        return {}
    if isinstance(declaration, Mapping):
        return {name: bool(has) for name, has in declaration.items()}
    return dict.fromkeys(FEATURES, False) | dict.fromkeys(declaration, True)


def claims(nnx: Any, feature: str) -> bool:
    """Tells whether a target claims a feature; an area that nothing asks for is there."""
    try:
        return feature not in PROBES or PROBES[feature](nnx)
    except Exception:
        return True


def _hijax(nnx: Any) -> bool:
    import jax.numpy as jnp

    return bool(nnx.Variable(jnp.zeros(()), hijax=True).hijax)


def _hijax_qdd(nnx: Any) -> bool:
    import jax
    import jax.numpy as jnp

    variable = nnx.Variable({}, hijax=True)

    @jax.jit
    def grow(variable: Any) -> None:
        variable["key"] = jnp.zeros(())

    grow(variable)
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
    "hijax.qdd": _hijax_qdd,
    "hijax.ref": _hijax_ref,
    "mutable-flag": _mutable_flag,
    "graph-updates.products": _products,
}
