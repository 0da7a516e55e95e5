"""Features: what a target may lack without failing.

A clause names the features that it needs; on a target that is declared or probed not to have them
its outcome is `unsupported`. A name of the specified surface is never a feature: a target that
lacks one fails the clauses that use it.
"""

FEATURES = {
    "hijax": "A Variable can be a hijax value, which carries its updates out of `jax.jit`.",
    "hijax.qdd": "A hijax Variable may change structure, dtype or shape inside `jax.jit`.",
    "hijax.ref": "A Variable can hold its value in a `jax.Ref` and change it inside `jax.jit`.",
    "mutable-flag": "A Variable can be marked immutable, and writes to it are then refused.",
}
