"""Features: what a target may lack without failing.

A clause, a test or a case names the features that it needs; on a target that is declared or probed
not to have them its outcome is `unsupported`. Some features are whole *areas* of the API: a target
that is partial on purpose denies them, and what is about them is not held against it. An area is
taken to be there unless the target denies it: a name that is missing from an area that it does not
deny fails the clauses that use it.
"""

from __future__ import annotations

from collections.abc import Iterable

TRANSFORMS = (
    "jit",
    "grad",
    "vjp",
    "jvp",
    "custom_vjp",
    "vmap",
    "pmap",
    "shard_map",
    "scan",
    "while_loop",
    "fori_loop",
    "cond",
    "switch",
    "remat",
    "checkify",
    "eval_shape",
)
"""The transforms that a target may lack, each an area of its own: `transforms.scan`."""

AREAS = {
    "graph": "Graph mode: objects may be shared and lead back to themselves.",
    "graph-updates": "Graph updates: what a transformed function changes in the structure of its"
    " arguments reaches the caller.",
    "hijax": "A Variable can be a hijax value, which carries its updates out of `jax.jit`.",
    "hijax.ref": "A Variable can hold its value in a `jax.Ref` and change it inside `jax.jit`.",
    "randomness": "Random streams: `Rngs` and what splits, forks and reseeds them.",
    "capture": "`sow`, `perturb` and `capture`: intermediate values are recorded.",
    "training": "Optimizers, metrics, and layers with state.",
    "sharding": "Meshes, partition specs, and abstract values with shardings.",
    **{f"transforms.{name}": f"The transform `nnx.{name}`." for name in TRANSFORMS},
}
"""What is there unless the target denies it."""

FEATURES = {
    **AREAS,
    "hijax.qdd": "A hijax Variable may change structure, dtype or shape inside `jax.jit`.",
    "mutable-flag": "A Variable can be marked immutable, and writes to it are then refused.",
    "graph-updates.products": "`vjp` and `jvp` in graph mode with graph updates.",
}
"""All features, and what it means to have each."""

IMPLIED = {
    frozenset({"graph-updates"}): "graph",
    frozenset({"hijax.qdd"}): "hijax",
    frozenset({"graph-updates", "transforms.vjp"}): "graph-updates.products",
    frozenset({"graph-updates", "transforms.jvp"}): "graph-updates.products",
}
"""What is needed by whoever needs all of these."""


def closure(needs: Iterable[str]) -> frozenset[str]:
    """Returns needs with all that they imply."""
    known = set(needs)
    for _ in IMPLIED:
        known |= {implied for together, implied in IMPLIED.items() if together <= known}
    return frozenset(known)
