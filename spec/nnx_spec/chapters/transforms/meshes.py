"""Meshes: a few devices in a row."""

import jax
import numpy as np
from jax.sharding import Mesh


def mesh_of(size: int, axis: str = "x") -> Mesh:
    """Makes a mesh of the first devices there are, with one axis."""
    return Mesh(np.array(jax.devices()[:size]), (axis,))
