"""Several devices for the tests, on a CPU as well."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
