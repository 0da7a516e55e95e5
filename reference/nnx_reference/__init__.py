"""The reference implementation of the NNX API: small, complete for its chapters, and readable.

    import nnx_reference as nnx

Read it in this order; each module says at its top what its idea is.

    variables.py      Variables: a value, metadata, a class. With them operators.py, metadata.py and values.py.
    attributes.py     What is data and what is static.
    pytree.py         Pytree and Module: Python objects that are JAX pytrees. containers.py: List and Dict.
    filters.py        Which Variables are meant. grouping.py: which of several filters takes a value.
    state.py          State: Variables as a nested mapping, and its algebra.
    nodes.py          What has children, and how each kind is taken apart and built.
    graph.py          GraphDef, flatten, unflatten: a graph as a table. All that follows stands on it.
    functional.py     split, merge, state, clone. nesting.py: how leaves become a State.
    updating.py       update and pop.
    everywhere.py     set_metadata, with_vars, as_pure.
    traversal.py      iter_graph, recursive_map, find_duplicates.
    trees.py          to_tree and from_tree.
    caching.py        cached_partial.
    configuration.py  The defaults of graph= and graph_updates=.
"""

from nnx_reference import errors
from nnx_reference import filters as filterlib
from nnx_reference.attributes import (
    Data,
    Static,
    data,
    has_data,
    is_data,
    register_data_type,
    static,
)
from nnx_reference.caching import cached_partial
from nnx_reference.configuration import set_graph_mode, set_graph_updates
from nnx_reference.containers import Dict, List
from nnx_reference.everywhere import as_pure, pure, set_metadata, with_vars
from nnx_reference.filters import (
    All,
    Any,
    Everything,
    Not,
    Nothing,
    OfType,
    PathContains,
    WithTag,
)
from nnx_reference.functional import (
    GraphState,
    clone,
    flatten,
    graphdef,
    merge,
    split,
    state,
    unflatten,
    unpack,
    variables,
)
from nnx_reference.functional import map_leaves as map
from nnx_reference.graph import GraphDef
from nnx_reference.layers import Linear
from nnx_reference.metadata import VariableMetadata, with_metadata
from nnx_reference.pytree import Module, Object, Pytree, check_pytree, dataclass
from nnx_reference.rngs import Rngs, RngStream
from nnx_reference.state import (
    FlatState,
    State,
    filter_state,
    from_flat_state,
    map_state,
    merge_state,
    replace_by_pure_dict,
    restore_int_paths,
    split_state,
    to_flat_state,
    to_pure_dict,
)
from nnx_reference.streams import (
    backup_keys,
    fork_rngs,
    reseed,
    restore_rngs,
    split_rngs,
    with_rngs,
)
from nnx_reference.training import OptArray, Optimizer, OptVariable
from nnx_reference.transforms.axes import StateAxes
from nnx_reference.transforms.mapping import vmap
from nnx_reference.traversal import (
    find_duplicates,
    iter_children,
    iter_graph,
    iter_module_children,
    iter_modules,
    recursive_map,
)
from nnx_reference.trees import NodeStates, from_tree, to_tree
from nnx_reference.updating import pop, update
from nnx_reference.variables import (
    BatchStat,
    Cache,
    Intermediate,
    LoRAParam,
    OptState,
    Param,
    Perturbation,
    RngCount,
    RngKey,
    RngState,
    Variable,
)
from nnx_reference.views import view, with_attributes
