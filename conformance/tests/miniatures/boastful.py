"""A target that declares a feature which nobody knows."""

__nnx_features__ = {"hijaks": True}
