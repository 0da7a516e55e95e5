"""Chapter TRX: transforms of functions that take and change objects, in every mode.

A transform of NNX is the one of JAX that has its name, for functions that are given objects: the
function may write to their Variables, and what it writes is there after the call. The clauses say
this for all transforms first, and then what each of them adds.

All transforms:

    test_pure.py              on functions of arrays they are what JAX has
    test_programs.py          any program under jit does what it does eagerly
    test_updates.py           what is written back, what is left alone, what an exception leaves
    test_captured.py          objects that are captured can be read, not changed
    test_outputs.py           objects that are made inside and returned
    test_aliases.py           one Variable that is to be transformed in two ways
    test_nesting.py           transforms in transforms
    test_mixing.py            transforms of NNX and of JAX in one another
    test_memory.py            what is kept alive, and calls in several threads
    test_confused.py          static values that equality confuses
    test_escapes.py           Variables that leave a trace by other ways than the output
    test_traced_once.py       how often functions are called

Compiling and tracing:

    test_jit.py               the options of jit, and what it decorates
    test_tracing.py           when jit traces, and when it does not
    test_jitted.py            lower, trace and eval_shape of a jitted function; jit_partial; call
    test_abstract.py          eval_shape and make_jaxpr
    test_checkify.py          checkify

Derivatives:

    test_gradients.py         grad and value_and_grad
    test_products.py          vjp and jvp
    test_update_gradients.py  gradients through writes
    test_custom_vjp.py        rules of the user's own
    test_remat.py             remat

Axes, loops and branches:

    test_vmap.py              vmap
    test_scan.py              scan, over layers too, and carries that change their type
    test_control_flow.py      cond, switch, while_loop and fori_loop
    test_devices.py           pmap and shard_map

What they share, and the chapters on the modes with them:

    modes.py                  the three modes; the two clauses that gather cases by mode
    applying.py               each transform applied such that it does what one call does
    nestings.py               transforms around each other, each with what it means
    programs.py               generated programs on generated models
    changes.py                what a caller may do to a model between two calls
    namesakes.py              the transforms of JAX and of the target under one roof
    counting.py               functions that count their calls, for both of these
    derivatives.py            a model to differentiate; gradients and tangents
    meshes.py                 devices in a row
    axes.py, axis_names.py    arrays along axes, and Variables whose axes have names
"""
