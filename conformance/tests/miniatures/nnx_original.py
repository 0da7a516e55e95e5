"""A very small NNX, which plays Flax's part in tests of the second witness."""

__version__ = "1.0"


class Box:
    """Holds a value."""

    def __init__(self, value):
        self.value = value

    def __init_subclass__(cls, **options):
        """Takes options, as Flax's modules do."""


def double(n):
    return 2 * n


def halve(n):
    return n / 2


def total(numbers):
    return sum(numbers)


def decorate(**options):
    return lambda function: function


class switch:  # noqa: N801
    """A context that is a decorator, too."""

    def __init__(self, mode):
        self.mode = mode

    def __call__(self, function):
        return function


def steps(n):
    return n
