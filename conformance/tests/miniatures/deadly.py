"""A target that ends the interpreter when it is imported."""

import os

os._exit(7)
