"""Chapter TREE: tree mode, in which nothing is shared and only Variables change.

In tree mode, `graph=False, graph_updates=False`, an object is a pytree as JAX has them. All clauses
of the chapter on transforms hold in it (`transforms/modes.py`); this chapter has what is so in tree
mode alone.

    test_aliases.py         a Variable at several places is refused
    test_updates.py         what a function writes to Variables leaves it, and nothing else
    test_prefixes.py        StateAxes, DiffState and StateSharding are refused
    test_gradients.py       grad of the whole argument, and of a group that is split off
    test_custom_vjp.py      what a backward rule gets, and returns
    test_split_groups.py    groups of a split, and prefix, in the place of StateAxes
    test_axis_metadata.py   transform_metadata; a name for each axis at every moment
    test_under_jax.py       Modules as arguments of JAX's own transforms
    calls.py                calls in tree mode, and the objects that it does not take
"""
