"""What implementations of the NNX API cost, against what plain JAX costs for the same work.

Two kinds of figure. Counters, such as the Python calls of an operation, have no noise and are the
same on every machine. Times are ratios: in each round a target and its *floor*, the same work on a
plain nested dict, are timed one after the other, in shuffled order and in one process; what counts
is the median of their ratio over the rounds, with a bootstrap interval.

    suites/        the benchmarks, a module for each suite
    models.py      models of a given number of Variables, and the plain tree with the same leaves
    sampling.py    timing contestants side by side
    statistics.py  ratios with intervals
    counters.py    figures without noise
    plugin.py      the pytest plugin: targets, rounds, and what pytest-benchmark stores
    report.py      reading what was stored, and the table
    cli.py         the command `nnx-conformance perf`

pytest-benchmark runs the benchmarks and stores the samples, together with the machine, JAX and the
devices, in its own JSON format.
"""
