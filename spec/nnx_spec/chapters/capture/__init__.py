"""Chapter CAP: sow, perturb and capture.

A Module sows values, and perturbs values, on the way to its result; `capture` collects what a call
sows, provides its perturbations, and leaves the Module as it was.

    test_capture.py         what a capture gives
    test_sow.py             how values are collected, in a capture and without one
    test_perturb.py         perturbations, gradients with respect to them, and init
    test_method_outputs.py  capturing what every method returns
    test_traces.py          nothing is left behind
    test_composition.py     together with transforms; the documented train step
    models.py               Modules that sow and perturb, and what a capture of them gives
"""
