"""call: methods of an object that is given as structure and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnx_reference.functional import merge, split


def call(graphdef_state: tuple[Any, ...], /) -> Call:
    """Returns a stand-in for an object, whose methods can be called in pure functions.

        y, (graphdef, state) = call((graphdef, state))(x)
        y, (graphdef, state) = call((graphdef, state)).decoder["head"].forward(x)

    A call merges the object, calls the method that attributes and items lead to, and splits the
    object again. It returns the method's output and the new pair.

    Args:
      graphdef_state: what `split` gives: a GraphDef and one State or several.
    """
    return Call(graphdef_state)


class Call:
    """A place in an object that is given as structure and state; see `call`."""

    def __init__(
        self,
        graphdef_state: tuple[Any, ...],
        find: Callable[[Any], Any] = lambda node: node,
    ) -> None:
        self._graphdef_state = graphdef_state
        self._find = find

    def __getattr__(self, name: str) -> Call:
        find = self._find
        return Call(self._graphdef_state, lambda node: getattr(find(node), name))

    def __getitem__(self, key: Any) -> Call:
        find = self._find
        return Call(self._graphdef_state, lambda node: find(node)[key])

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, Any]]:
        """Calls what stands there; returns its output and the new GraphDef and State."""
        node = merge(*self._graphdef_state)
        output = self._find(node)(*args, **kwargs)
        return output, split(node)
