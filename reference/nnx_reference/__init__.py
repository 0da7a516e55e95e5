"""The reference implementation of the NNX API: small, complete for its chapters, and readable.

    import nnx_reference as nnx

Read it in this order; each module says at its top what its idea is.

    variables.py      Variables: a value, metadata, a class.
                      With them operators.py, metadata.py, values.py and describing.py.
                      variablelib.py: names for what a Variable may be.
    naming.py         Names for the classes of Variables.
    hijax.py          Values held by reference. cells.py: the ones that change their structure.
    attributes.py     What is data and what is static.
    pytree.py         Pytree and Module: Python objects that are JAX pytrees.
    containers.py     List and Dict.
    showing.py        What objects look like in print.
    exactness.py      Static values that == takes for the same, told apart.
    filters.py        Which Variables are meant. grouping.py: which of several filters takes one.
    state.py          State: Variables as a nested mapping, and its algebra.
    nodes.py          What has children, and how each kind is taken apart and built.
    tables.py         GraphDef, flatten, unflatten: a graph as a table. All the rest stands on it.
    remembering.py    How an unchanged graph is flattened without walking through it.
    functional.py     split, merge, state, clone. nesting.py: how leaves become a State.
    updating.py       update and pop.
    everywhere.py     set_metadata, with_vars, as_pure.
    traversal.py      iter_graph, recursive_map, find_duplicates.
    views.py          view, with_attributes.
    trees.py          to_tree and from_tree.
    caching.py        cached_partial.
    configuration.py  The defaults of graph=, graph_updates=, of new Variables, of eager sharding.
    capturing.py      sow, perturb, capture: what Modules record while they run.
    rngs.py           Random streams. streams.py: splitting, forking and reseeding them.
    transforms/       The transforms: core.py, then a module for each family.
    sharding.py       Which part of each array lives on which device.
                      partitioning.py: what the annotations of a Variable say about that.
    compat.py         The same functions in graph mode, whatever the defaults.
    initializers.py   How arrays get their first values.
    layers/           What models are made of. activations.py: functions between the layers.
    training.py       Optimizer: what models are trained with.
"""

from nnx_reference import compat, errors, initializers, variablelib
from nnx_reference import filters as filterlib
from nnx_reference.activations import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
    tanh,
)
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
from nnx_reference.calling import call
from nnx_reference.capturing import capture
from nnx_reference.configuration import (
    set_graph_mode,
    set_graph_updates,
    use_eager_sharding,
    using_eager_sharding,
    var_defaults,
)
from nnx_reference.containers import Dict, List
from nnx_reference.everywhere import as_pure, pure, set_metadata, vars_as, with_vars
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
from nnx_reference.jax_private import quasi_dynamic as has_quasi_dynamic_types
from nnx_reference.layers import BatchNorm, Dropout, Linear, LoRA, LoRALinear, Sequential
from nnx_reference.metadata import VariableMetadata, with_metadata
from nnx_reference.naming import (
    register_variable_name,
    variable_name_from_type,
    variable_type_from_name,
)
from nnx_reference.partitioning import logical_axis_rules
from nnx_reference.pytree import Module, Object, Pytree, check_pytree, dataclass
from nnx_reference.rngs import Rngs, RngStream
from nnx_reference.sharding import (
    as_abstract,
    get_abstract_model,
    get_named_sharding,
    get_partition_spec,
    with_partitioning,
)
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
from nnx_reference.tables import GraphDef
from nnx_reference.training import OptArray, Optimizer, OptVariable
from nnx_reference.transforms.axes import StateAxes
from nnx_reference.transforms.axis_metadata import PARTITION_NAME, transform_metadata
from nnx_reference.transforms.branching import cond, switch
from nnx_reference.transforms.checking import checkify
from nnx_reference.transforms.compilation import jit, jit_partial
from nnx_reference.transforms.custom import custom_vjp
from nnx_reference.transforms.devices import pmap, shard_map
from nnx_reference.transforms.differentiation import DiffState, grad, value_and_grad
from nnx_reference.transforms.iteration import Carry, scan
from nnx_reference.transforms.looping import fori_loop, while_loop
from nnx_reference.transforms.mapping import vmap
from nnx_reference.transforms.prefixes import prefix
from nnx_reference.transforms.products import jvp, vjp
from nnx_reference.transforms.rematerialization import remat
from nnx_reference.transforms.shardings import StateSharding
from nnx_reference.transforms.tracing import eval_shape, make_jaxpr
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
    A,
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

__nnx_features__ = {
    "hijax": True,
    "hijax.qdd": has_quasi_dynamic_types(),
    "hijax.ref": True,
    "mutable-flag": True,
}
