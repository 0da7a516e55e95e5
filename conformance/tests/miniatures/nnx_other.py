"""A very small NNX that lacks names, is wrong in one, and does not return from another."""

import os
import time

from nnx_original import Box, double

__all__ = ["Box", "double", "steps", "total"]
__version__ = "0.3"


def total(numbers):
    return sum(numbers) + 1


def steps(n):
    """Does not come back from 3, and takes the interpreter down with 4."""
    if n == 3:
        time.sleep(60)
    if n == 4:
        os._exit(9)
    return n
