"""A target that does all that the miniature specification asks for."""

__version__ = "1.2.3"
TROUBLE = 0


def double(n):
    return 2 * n


def ref():
    return "ref"


def please():
    return "please"


def prepare():
    return "ready"


def clone(original):
    return list(original)
