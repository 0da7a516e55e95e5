"""nnx.compat: what older code calls, in graph mode with graph updates, whatever the defaults.

    nnx.compat.split    nnx.split with graph=True
    nnx.compat.jit      nnx.jit with graph=True and graph_updates=True

Code that relies on shared references, on changes of structure inside transforms, on `StateAxes` and
`DiffState` goes on working when `nnx.` is replaced by `nnx.compat.` in it. The transforms are
decorators here as well, with options and without.
"""

from __future__ import annotations

from functools import partial

from nnx_reference import caching, functional, sharding, streams, traversal, views
from nnx_reference.transforms import (
    branching,
    checking,
    compilation,
    custom,
    devices,
    differentiation,
    iteration,
    looping,
    mapping,
    products,
    rematerialization,
    tracing,
)

split = partial(functional.split, graph=True)
state = partial(functional.state, graph=True)
clone = partial(functional.clone, graph=True)
graphdef = partial(functional.graphdef, graph=True)
flatten = partial(functional.flatten, graph=True)

iter_graph = partial(traversal.iter_graph, graph=True)
iter_modules = partial(traversal.iter_modules, graph=True)
iter_children = partial(traversal.iter_children, graph=True)
recursive_map = partial(traversal.recursive_map, graph=True)
view = partial(views.view, graph=True)

cached_partial = partial(caching.cached_partial, graph=True, graph_updates=True)

split_rngs = partial(streams.split_rngs, graph=True, graph_updates=True)
fork_rngs = partial(streams.fork_rngs, graph=True, graph_updates=True)
backup_keys = partial(streams.backup_keys, graph=True)
reseed = partial(streams.reseed, graph=True)

jit = partial(compilation.jit, graph=True, graph_updates=True)
grad = partial(differentiation.grad, graph=True, graph_updates=True)
value_and_grad = partial(differentiation.value_and_grad, graph=True, graph_updates=True)
vjp = partial(products.vjp, graph=True, graph_updates=True)
jvp = partial(products.jvp, graph=True, graph_updates=True)
custom_vjp = partial(custom.custom_vjp, graph=True, graph_updates=True)
remat = partial(rematerialization.remat, graph=True, graph_updates=True)
vmap = partial(mapping.vmap, graph=True, graph_updates=True)
pmap = partial(devices.pmap, graph=True, graph_updates=True)
shard_map = partial(devices.shard_map, graph=True, graph_updates=True)
scan = partial(iteration.scan, graph=True, graph_updates=True)
cond = partial(branching.cond, graph=True, graph_updates=True)
switch = partial(branching.switch, graph=True, graph_updates=True)
while_loop = partial(looping.while_loop, graph=True, graph_updates=True)
fori_loop = partial(looping.fori_loop, graph=True, graph_updates=True)
checkify = partial(checking.checkify, graph=True, graph_updates=True)
eval_shape = partial(tracing.eval_shape, graph=True, graph_updates=True)
make_jaxpr = partial(tracing.make_jaxpr, graph=True, graph_updates=True)
get_abstract_model = partial(sharding.get_abstract_model, graph=True)
