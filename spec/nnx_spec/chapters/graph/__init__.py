"""Chapter GRA: graph mode and graph updates.

In graph mode, `graph=True`, objects may be shared and lead back to themselves. With graph updates,
`graph_updates=True`, changes of their structure leave a transform as well, and prefix filters say
how a part of an object is transformed. All clauses of the chapter on transforms hold in both
(`transforms/modes.py`); this chapter has what they add.

    test_references.py      what is shared goes in and comes out so; inputs that are returned
    test_shared_arguments.py  what is differentiated at one place and not at another
    test_graph_updates.py   edits of structure reach the caller, and are traced once
    test_state_axes.py      StateAxes; prefixes that contradict each other; names of axes
    test_diff_state.py      DiffState
    test_state_sharding.py  StateSharding
    test_custom_vjp.py      what a backward rule gets, and returns
    test_compat.py          nnx.compat
"""
