"""Several devices for the tests, on a CPU as well; and what several of them need."""

import gc
import sys

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
def python_calls():
    """Counts the Python functions that a call enters, none that garbage collection enters."""

    def count_calls(function, *args):
        count = 0

        def profile(frame, event, argument):
            nonlocal count
            count += event == "call"

        gc.disable()  # JAX has a callback there
        sys.setprofile(profile)
        try:
            function(*args)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    return count_calls
