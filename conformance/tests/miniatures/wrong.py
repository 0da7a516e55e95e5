"""A target that gets everything wrong."""

__nnx_features__ = {"hijax.ref": True}
TROUBLE = 1


def double(n):
    return 2 * n + (n > 100)


def ref():
    raise NotImplementedError("references are not supported")


def please():
    return "now"


def prepare():
    raise RuntimeError("not prepared")


def clone(original):
    return original
