"""JAX's transforms, for functions of Modules and Variables: a reader's guide.

JAX transforms functions of arrays. Users write functions of objects that change in place. One way
leads from the one to the other and back, and every transform takes it:

     caller's objects                                    caller's objects, changed
            |                                                     ^
            |  Inputs: open the arguments                         |  finish: write new values into
            |  -> Structure, and values                           |  the caller's own Variables
            v                                                     |
    ~~~~~~~~~~~~~~~~~~ the JAX transform: it sees values, and nothing else ~~~~~~~~~~~~~~~~~~
            |                                                     ^
            |  Structure.run: build twins of                      |  compare: what has changed?
            |  the objects around traced values                   |  -> Outcome, and these values
            v                                                     |
        the twins  ----------->  the user's function  ------->  the twins, changed; an output

Three things meet at the line in the middle. *Values* are arrays: what JAX maps, compiles,
differentiates. A *Structure* is what the arguments are besides: classes, names, static values,
metadata and what is shared with what, as one table (`tables.py`). An *Outcome* is what the function
did to them, likewise without any value: which Variables changed, which objects are those that went
in, which are new. Structure and Outcome are hashable and part of treedefs, so JAX keeps them with
the trace that they belong to. Only what changed crosses the line on its way back; a Variable that
did not change keeps the very array that it had.

What the modes differ in:

- tree mode: nothing may be shared, neither among the arguments nor between them and the output
  (`check_tree` names every path);
- graph mode: what is shared is one entry in the table, met by several paths;
- graph updates: the arguments themselves are compared too, so that attributes, sharing and static
  values that have changed are put into the caller's objects.

Read in this order:

    core.py               the way itself: Inputs, Structure, Run, Outcome
    rematerialization.py  the shortest transform; differentiation.py: one that chooses values
    axes.py, placing.py   what is said of each value (an axis, a spec, a sharding) by prefix; a
                          layer on the core, for vmap (mapping.py), pmap and shard_map (devices.py)
    tracing.py            a function traced once, by itself, before JAX builds control flow of it,
                          for as long as it captures the same (closures.py);
                          branching.py: cond and switch; carries.py and carrying.py: what goes from
                          step to step;
                          looping.py: while_loop and fori_loop; iteration.py: scan
    products.py           vjp and jvp; custom.py: custom_vjp; forms.py: objects made of cotangents
    plans.py              what jit (compilation.py) compiles for; dispatching.py: why a call that
                          changes no structure walks through none
"""
