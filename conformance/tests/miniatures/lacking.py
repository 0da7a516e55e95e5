"""A target that lacks names, and declares that it lacks references."""

from faithful import TROUBLE, please

__all__ = ["TROUBLE", "please"]
__nnx_features__ = ["hijax"]
