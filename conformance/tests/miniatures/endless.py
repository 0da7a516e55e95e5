"""A target that never comes back from `clone`'s clause."""

import threading

from faithful import TROUBLE, double, please, prepare, ref

__all__ = ["TROUBLE", "double", "please", "prepare", "ref"]


def clone(original):
    threading.Event().wait()
