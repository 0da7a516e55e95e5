"""Caching: binding a function to objects whose structure does not change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nnx_reference.functional import read
from nnx_reference.tables import Flat, flatten, unflatten


def cached_partial(
    f: Callable[..., Any],
    /,
    *cached_args: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Binds the first arguments of a function, usually a transformed one, to objects.

    The function gets copies of the objects that hold the same Variables, so what it writes reaches
    the originals, and what is done to the originals' attributes later does not reach the function.

    Args:
      f: the function.
      *cached_args: the objects, or containers of objects.
      graph: True for graph mode, False for tree mode, None for the default.
      graph_updates: accepted for the transforms' sake; a change of structure is an error in any
        case.

    Returns:
      A function of the remaining arguments. It raises ValueError if `f` leaves the objects with
      another structure or other Variables; the cached objects are as before then.

    Raises:
      ValueError: in tree mode, something is shared.
    """
    return partial(_call, f, _Cached(read(cached_args, graph, "cached_partial")))


class _Cached:
    """Objects with the structure that they must keep."""

    def __init__(self, flat: Flat) -> None:
        self.graphdef = flat.graphdef
        self.leaves = flat.leaves
        self.arguments: tuple[Any, ...] = unflatten(flat.graphdef, flat.leaves)

    def check(self) -> None:
        """Checks that the structure is unchanged; puts it right and raises if it is not."""
        now = flatten(self.arguments)
        same = now.graphdef == self.graphdef
        if same:
            pairs = zip(self.graphdef.leaves, self.leaves, now.leaves, strict=True)
            same = all(record is None or old is new for record, old, new in pairs)
        if not same:
            changed = sorted(set(map(str, now.graphdef.paths)) ^ set(map(str, self.graphdef.paths)))
            self.arguments = unflatten(self.graphdef, self.leaves)
            raise ValueError(
                "the function changed the structure of the objects that cached_partial holds for it"
                + (f", at {', '.join(changed[:10])}" if changed else "")
                + ". Only the values of Variables may change: undo other changes before it returns,"
                " or call it without cached_partial."
            )


def _call(f: Callable[..., Any], cached: _Cached, /, *args: Any, **kwargs: Any) -> Any:
    result = f(*cached.arguments, *args, **kwargs)
    cached.check()
    return result
