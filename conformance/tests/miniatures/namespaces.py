"""A module that holds targets as objects."""

import faithful


class sharing:  # noqa: N801
    """A conforming target but for a `clone` that shares with the original."""

    TROUBLE = 0
    double = staticmethod(faithful.double)
    please = staticmethod(faithful.please)
    prepare = staticmethod(faithful.prepare)
    ref = staticmethod(faithful.ref)

    @staticmethod
    def clone(original):
        return original
