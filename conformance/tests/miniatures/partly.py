"""A target that is partial on purpose: it says so, and has no scan and no captures."""

from faithful import TROUBLE, double, please, prepare, ref

__all__ = ["TROUBLE", "double", "please", "prepare", "ref"]
__nnx_features__ = {"transforms": False, "transforms.jit": True, "capture": False, "graph": False}
