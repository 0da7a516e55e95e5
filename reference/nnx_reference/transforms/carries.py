"""The carry of a loop: what of it goes from step to step, and what comes out at the end.

A step may change a carry in three ways. It writes to Variables: these are the caller's, and every
loop carries their values anyway. It puts other arrays into attributes of objects, an optimizer's
state for example. And it returns other objects of the same structure, as it may return other
tuples: new ones around the caller's Variables, or a State with other Variables in it, as
`jax.tree.map` makes it. So what a step returns is compared with what it was passed (`Passed`). Both
must have the same structure; a Variable must be the same one, unless it is in a State. What differs
are values, and they go along as those of written Variables do.

At the end (`last_carry`), the caller gets his own objects where nothing but Variables has changed.
Where arrays in attributes have, he gets his own with graph updates, which say that such changes
reach them; otherwise others, and his are as they were. Where a step returned another object, he
gets another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
from jax.tree_util import keystr

from nnx_reference.pytree import Path, Pytree
from nnx_reference.state import State
from nnx_reference.tables import Flat, GraphDef, flatten
from nnx_reference.transforms.carrying import Renewed, Table, table_of, tabulate
from nnx_reference.transforms.core import (
    Opened,
    Structure,
    build_around,
    change_children,
    check_tree,
    close_tree,
    is_object,
    is_same,
    leaf_number,
    open_tree,
    raw_value,
    spell_root,
)
from nnx_reference.variables import Variable, variable_of


def open_carry(carry: Any) -> Opened:
    """Flattens a carry down to its objects."""
    return open_tree(carry, lambda path: "the carry" + keystr(path))


class Carried(NamedTuple):
    """What goes from one step to the next.

    Attributes:
      arrays: the arrays of the carry.
      inside: the values that have changed otherwise than by a write to a Variable that was passed,
        each by its number in the structure.
      renewed: where these are, and which objects are other ones.
    """

    arrays: list[Any]
    inside: dict[int, Any]
    renewed: Renewed


class Passed:
    """The carry that a step is passed, as it was then."""

    def __init__(self, what: str, args: Sequence[Any], position: int, structure: Structure) -> None:
        """Looks at the carry.

        Args:
          what: what the step belongs to, for errors.
          args: the arguments of the step.
          position: the position of the carry among them.
          structure: the structure of the arguments.
        """
        self.what = what
        self.structure = structure
        self.opened = opened = open_carry(args[position])
        self.names = opened.objects(opened.names)
        self.objects = opened.objects(opened.leaves)
        self.flat = flatten(self.objects)
        self.values = [raw_value(leaf) for leaf in self.flat.leaves]
        self.in_state = opened.objects(_in_states(args[position]))
        self.first_root = sum(sum(open_tree(arg, keystr).is_object) for arg in args[:position])

    def compare(self, returned: Any) -> Carried:
        """Compares the carry that the step returns.

        With graph updates, arrays in attributes are put back to what they were, so that the loop
        alone carries the others.

        Raises:
          TypeError: it has another structure of tuples, lists and dicts.
          ValueError: its objects have another structure; a Variable is another one; an object was
            changed as well as replaced; something is shared in tree mode.
        """
        new = open_carry(returned)
        self._check_containers(new)
        flat = flatten(new.objects(new.leaves))
        if not self.structure.graph:
            check_tree(flat.graphdef, new.objects(new.names))
        self._check_objects(flat)
        pairs = enumerate(zip(self.flat.nodes, flat.nodes, strict=True))
        nodes = [n for n, (old, node) in pairs if old is not node and isinstance(node, Pytree)]
        leaf_pairs = enumerate(zip(self.flat.leaves, flat.leaves, strict=True))
        leaves = [n for n, (old, leaf) in leaf_pairs if old is not leaf]
        self._check_unwritten(leaves)
        values = [raw_value(flat.leaves[n]) for n in leaves]
        if self.structure.updates:
            self._put_back(flat)
            self._check_unchanged()
        numbers = [self._number_of(self.flat.graphdef.paths[n]) for n in leaves]
        renewed = Renewed(tuple(nodes), tuple(leaves), tuple(numbers))
        arrays = new.arrays(new.leaves)
        return Carried(arrays, dict(zip(numbers, values, strict=True)), renewed)

    def _check_containers(self, new: Opened) -> None:
        old = self.opened
        if (new.treedef, new.is_object) == (old.treedef, old.is_object):
            return
        raise TypeError(
            f"a step of {self.what} returns a carry of the structure that it is passed,"
            f" {old.treedef}, not {new.treedef}{_first_difference(new, old)}"
        )

    def _check_objects(self, flat: Flat) -> None:
        before, after = self._table(self.flat), self._table(flat)
        for name in [*before, *after]:
            old, new = before.get(name), after.get(name)
            if old == new:
                continue
            if old and new and old[:2] == new[:2] and old.kind is not None:
                raise ValueError(
                    f"{name} is another {old.kind.__name__} than the step of {self.what} was"
                    " passed: write to that one and return it, or carry the State that nnx.split"
                    " gives"
                )
            raise ValueError(
                f"a step of {self.what} changes more than values of Variables: {name} was"
                f" {old or 'not there'} and is {new or 'gone'}; make that change outside, or keep"
                " it in a Variable"
            )
        if self.flat.graphdef != flat.graphdef:
            raise ValueError(
                f"a step of {self.what} changes what is shared in {', '.join(self.names)}: make"
                " that change outside"
            )

    def _table(self, flat: Flat) -> Table:
        """Lists what is in a carry, where only Variables have to be the same ones."""
        known = {id(leaf): n for n, leaf in enumerate(self.flat.leaves)}
        paths = flat.graphdef.paths
        origins = [
            known.get(id(leaf)) if self._is_fixed(leaf, path) else 0
            for leaf, path in zip(flat.leaves, paths, strict=True)
        ]
        return tabulate(flat.graphdef, self.names, [0] * len(flat.nodes), origins)

    def _is_fixed(self, leaf: Any, path: Path) -> bool:
        """Tells whether what stands at a place is a Variable that must stay there."""
        if not isinstance(leaf, Variable):
            return False
        return len(path) > 1 or not self.in_state[cast(int, path[0])] or leaf._metadata.by_reference

    def _check_unwritten(self, leaves: Sequence[int]) -> None:
        """Checks that no Variable was written to before another one was put in its place."""
        for n in leaves:
            if not is_same(raw_value(self.flat.leaves[n]), self.values[n]):
                place = spell_root(self.names, self.flat.graphdef.paths[n])
                raise ValueError(
                    f"a step of {self.what} writes to {place} and puts another one in its place: do"
                    " one of the two"
                )

    def _put_back(self, flat: Flat) -> None:
        """Puts arrays back into the objects that have been returned as well as passed."""
        nodes = zip(self.flat.graphdef.nodes, self.flat.nodes, flat.nodes, strict=True)
        for record, node, returned in list(nodes)[1:]:
            if node is returned:
                children = {key: self.flat.leaves[n] for key, n in record.leaves} | {
                    key: self.flat.nodes[n] for key, n in record.nodes
                }
                change_children(node, children, {key: value for key, _, value in record.static})

    def _check_unchanged(self) -> None:
        """Checks that what was passed is as it was, but for values of Variables."""
        before = table_of(self.flat, self.flat, self.names)
        after = table_of(self.flat, flatten(self.objects), self.names)
        for name in [*before, *after]:
            if before.get(name) != after.get(name):
                raise ValueError(
                    f"a step of {self.what} changes {name} and returns another object: return the"
                    " one that it changes"
                )

    def _number_of(self, path: Path) -> int:
        """Finds the number in the structure of the value at a path in the carry."""
        graphdef, root = self.structure.graphdef, cast(int, path[0])
        first = len(self.structure.names) - graphdef.num_leaves
        return first + leaf_number(graphdef, (self.first_root + root, *path[1:]))


def _in_states(carry: Any) -> list[bool]:
    """Tells of each leaf of a carry whether it is in a State."""
    parts = jax.tree.leaves(carry, is_leaf=lambda x: is_object(x) or isinstance(x, State))
    return [
        flag
        for part in parts
        for flag in [isinstance(part, State)] * len(open_tree(part, keystr).leaves)
    ]


def _first_difference(new: Opened, old: Opened) -> str:
    ours = dict(zip(new.names, new.is_object, strict=True))
    theirs = dict(zip(old.names, old.is_object, strict=True))
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            return f"; they differ at {name}"
    return ""


def last_carry(
    carry: Any, arrays: Sequence[Any], inside: Sequence[Any], renewed: Renewed, updates: bool
) -> Any:
    """Builds the carry that comes out of a loop; Variables have been written to before.

    Args:
      carry: the one that went in.
      arrays: the last arrays.
      inside: the last values of what is renewed.
      renewed: what is.
      updates: whether changes of structure reach the caller's objects.
    """
    opened = open_carry(carry)
    objects = opened.objects(opened.leaves)
    if renewed.nodes or renewed.leaves:
        objects = _renew(flatten(objects), inside, renewed, updates)
    return close_tree(opened.treedef, opened.is_object, objects, arrays)


def _renew(flat: Flat, inside: Sequence[Any], renewed: Renewed, updates: bool) -> Any:
    """Builds a graph with other values and objects in it."""
    leaves = list(flat.leaves)
    for number, value in zip(renewed.leaves, inside, strict=True):
        record = flat.graphdef.leaves[number]
        leaves[number] = (
            value if record is None else variable_of(record.kind, value, record.metadata)
        )
    others = set(renewed.nodes)
    if not updates:
        others = _holders(flat.graphdef, set(renewed.leaves), others)
    own = [
        node if isinstance(node, Pytree) and n not in others else None
        for n, node in enumerate(flat.nodes)
    ]
    return build_around(flat.graphdef, leaves, own, change=updates)


def _holders(graphdef: GraphDef[Any], leaves: set[int], nodes: set[int]) -> set[int]:
    """Returns nodes with all that hold one of them or one of some leaves, at any depth."""
    found, grown = nodes, True
    while grown:
        before = len(found)
        found = found | {
            number
            for number, node in enumerate(graphdef.nodes)
            if any(n in leaves for _, n in node.leaves) or any(n in found for _, n in node.nodes)
        }
        grown = len(found) > before
    return found
