"""A conforming target whose import makes a mess."""

import os
import sys
import warnings

from faithful import TROUBLE, clone, double, please, prepare, ref

__all__ = ["TROUBLE", "clone", "double", "please", "prepare", "ref"]

print("{}" * 1000)
print("noise", file=sys.stderr)
os.chdir("/")
warnings.warn("made by the target", DeprecationWarning, stacklevel=1)
warnings.simplefilter("error")
