"""Descriptions: what was tested and on what, and what a rule stands on."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping
from typing import Any

from nnx_conformance import features, targets
from nnx_spec.features import AREAS, GROUPS, OPTIONAL, above


def describe(target: targets.Target, overrides: Mapping[str, bool] | None = None) -> dict[str, Any]:
    """Describes a target and what it runs on, as it stands in a report.

    Returns:
      `{"target": {"name", "version", "features"}, "environment": {...}}` of plain JSON values.

    Raises:
      TargetError: JAX finds no device to run on, or the target declares an unknown feature.
    """
    try:
        environment = describe_environment()
        probed = features.probe(target, overrides)
    except (RuntimeError, features.FeatureError) as error:
        raise targets.TargetError(f"target {target._name!r} cannot run: {error}") from error
    return {
        "target": {
            "name": target._name,
            "version": targets.version(target),
            "features": [name for name, answer in probed.items() if answer.has],
        },
        "environment": environment,
    }


def describe_environment() -> dict[str, Any]:
    """Describes Python, JAX, the machine and the devices, as a report's `environment`."""
    import jax
    import jaxlib

    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def grounds(basis: Any, source: str) -> dict[str, str | None]:
    """Describes what a rule stands on: of what kind that is, where it is found, its address."""
    from nnx_spec.sources import url

    return {"basis": basis.value, "source": source, "url": url(source)}


def headline(description: Mapping[str, Any]) -> str:
    """Puts a description on one line."""
    target, environment = description["target"], description["environment"]
    versions = ("jax", "jaxlib", "python")
    return (
        f"{target['name']} {target['version'] or '(no version)'}"
        f" with {', '.join(f'{name} {environment[name]}' for name in versions)}"
        f" on {environment['devices']} {environment['device']} ({environment['platform']});"
        f" features: {_features(target['features'])}"
    )


def _features(had: Collection[str]) -> str:
    """Names the optional features that a target has, and the areas that it denies."""
    optional = ", ".join(name for name in OPTIONAL if name in had) or "none"
    denied = {name: None for name in AREAS if name not in had}
    for group in GROUPS:
        below = [name for name in AREAS if group in above(name)]
        if set(below) <= denied.keys():
            denied = {group: None, **denied}
            for name in below:
                del denied[name]
    return optional + (f"; without {', '.join(denied)}" if denied else "")
