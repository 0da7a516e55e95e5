"""A target that takes the interpreter with it when something is cloned."""

import os

from faithful import TROUBLE, double, please, prepare, ref

__all__ = ["TROUBLE", "double", "please", "prepare", "ref"]


def clone(original):
    os._exit(41)
