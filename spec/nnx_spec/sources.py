"""Sources: the public documents that the clauses are drawn from.

A clause cites a source by its key, with an anchor where there is one:
`guides/filters_guide#the-filter-protocol`. The keys are the paths of the Flax documentation; `url`
gives the address.
"""

BASE = "https://flax.readthedocs.io/en/latest/"

SOURCES = {
    "nnx_basics": "NNX basics",
    "key_concepts": "Key concepts",
    "hijax/hijax": "Hijax",
    "guides/filters_guide": "Using filters, grouping NNX variables",
    "guides/pytree": "Module and Pytree",
    "guides/randomness": "Randomness",
    "guides/transforms": "Transforms",
    "guides/jax_and_nnx_transforms": "Flax NNX vs JAX transformations",
    "guides/view": "Model views",
    "guides/surgery": "Model surgery",
    "guides/extracting_intermediates": "Extracting intermediate values",
    "guides/flax_gspmd": "Scale up on multiple devices",
    "guides/performance": "Performance considerations",
    "guides/checkpointing": "Save and load checkpoints",
    "api_reference/flax.nnx/graph": "API reference: graph",
    "api_reference/flax.nnx/helpers": "API reference: helpers",
    "api_reference/flax.nnx/module": "API reference: module",
    "api_reference/flax.nnx/object": "API reference: object",
    "api_reference/flax.nnx/state": "API reference: state",
    "api_reference/flax.nnx/variables": "API reference: variables",
    "api_reference/flax.nnx/filterlib": "API reference: filterlib",
    "api_reference/flax.nnx/rnglib": "API reference: rnglib",
    "api_reference/flax.nnx/transforms": "API reference: transforms",
    "flip/5310-tree-mode-nnx": "FLIP 5310: Tree mode NNX",
}


def url(source: str) -> str:
    """Returns the address of a source, anchor included."""
    page, _, anchor = source.partition("#")
    if page.startswith("flip/"):
        return f"https://github.com/google/flax/blob/main/docs_nnx/{page}.md" + (
            f"#{anchor}" if anchor else ""
        )
    return f"{BASE}{page}.html" + (f"#{anchor}" if anchor else "")
