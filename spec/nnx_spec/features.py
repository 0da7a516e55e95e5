"""Features: what a target may lack without failing.

A clause, a test or a case names the features that it needs; on a target that lacks one its outcome
is `unsupported`. There are two kinds:

    optional  what implementations do without, or have given up: a target is asked for it
    areas     parts of the API: each is taken to be there, unless a target that is partial on
              purpose denies it; a name that is missing from an area that is not denied fails the
              clauses that use it

Whoever lacks a feature lacks what stands below it: of `hijax` that is `hijax.qdd` and `hijax.ref`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    "randomness": "Random streams: `Rngs` and what splits, forks and reseeds them.",
    "capture": "`sow`, `perturb` and `capture`: intermediate values are recorded.",
    "training": "Optimizers, metrics, and layers with state.",
    "sharding": "Meshes, partition specs, and abstract values with shardings.",
    **{f"transforms.{name}": f"The transform `nnx.{name}`." for name in TRANSFORMS},
}
"""What is taken to be there unless the target denies it."""

OPTIONAL = {
    "hijax": "A Variable can be a hijax value, which carries its updates out of `jax.jit`.",
    "hijax.updates": "A hijax Variable that is no ref may be changed inside a transform.",
    "hijax.qdd": "A hijax Variable may change structure, dtype or shape inside `jax.jit`.",
    "hijax.ref": "A Variable can hold its value in a `jax.Ref` and change it inside `jax.jit`.",
    "mutable-flag": "A Variable can be marked immutable, and writes to it are then refused.",
    "graph-updates.products": "`vjp` and `jvp` in graph mode with graph updates.",
}
"""What a target is asked for."""

FEATURES = {**OPTIONAL, **AREAS}
"""All features, and what it means to have each."""

GROUPS = {"transforms": "All transforms."}
"""Names that stand for all features below them, where a target or a user answers for these."""

IMPLIED = {
    frozenset({"graph-updates", "transforms.vjp"}): "graph-updates.products",
    frozenset({"graph-updates", "transforms.jvp"}): "graph-updates.products",
}
"""What is needed by whoever needs all of these together."""


NAMES = {
    "randomness": (
        "Rngs",
        "RngStream",
        "RngState",
        "RngKey",
        "RngCount",
        "reseed",
        "split_rngs",
        "fork_rngs",
        "with_rngs",
        "backup_keys",
        "restore_rngs",
    ),
    "capture": ("sow", "perturb", "capture", "Intermediate", "Perturbation"),
    "transforms.jit": ("jit", "jit_partial", "cached_partial"),
    "transforms.grad": ("grad", "value_and_grad"),
    "transforms.remat": ("remat", "checkpoint"),
    **{
        f"transforms.{name}": (name,) for name in TRANSFORMS if name not in ("jit", "grad", "remat")
    },
}
"""Names that a target need not have which denies an area: a test that uses one is about the area,
as well as about what it says it needs."""


def closure(needs: Iterable[str]) -> frozenset[str]:
    """Returns needs with all that they imply together."""
    known = frozenset(needs)
    return known.union(implied for together, implied in IMPLIED.items() if together <= known)


def above(feature: str) -> Iterator[str]:
    """Yields what a feature stands below, the nearest first: of `hijax.ref` that is `hijax`."""
    while higher := "graph" if feature == "graph-updates" else feature.rpartition(".")[0]:
        yield higher
        feature = higher
