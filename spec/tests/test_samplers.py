"""The table of samplers, against the `jax.random` that is installed."""

from nnx_spec.chapters.randomness.samplers import NO_SAMPLERS, SAMPLERS, keyed_functions


def test_the_table_has_every_sampler_of_jax_random():
    assert set(keyed_functions()) - NO_SAMPLERS <= set(SAMPLERS)
