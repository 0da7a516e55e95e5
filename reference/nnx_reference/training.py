"""Training: an optax transformation applied to a model's Variables, in place.

Optax sees the values of the selected Variables, as a State of plain arrays. What it keeps for each
of them, such as a momentum, has the same path somewhere in its state; it is stored as an
`OptVariable` with the metadata of the Variable that it mirrors, so that what shards the parameters
shards it, too, unless the metadata `optimizer_sharding` says otherwise. All else, such as a count,
is an `OptArray`. An array that an object holds without a Variable can be selected like one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nnx_reference.everywhere import as_pure
from nnx_reference.filters import Filter, to_predicate
from nnx_reference.functional import read, state
from nnx_reference.metadata import DEFAULTS, HOOKS
from nnx_reference.nodes import plain_key
from nnx_reference.pytree import Path, Pytree, data
from nnx_reference.state import State, from_flat_state, to_flat_state
from nnx_reference.updating import update
from nnx_reference.variables import OptState, Variable


class OptArray(OptState[Any]):
    """State of an optimizer that mirrors no Variable of the model, such as a count."""

    __slots__ = ()


class OptVariable(OptState[Any]):
    """State of an optimizer that mirrors a Variable of the model, such as a momentum."""

    __slots__ = ()


class Optimizer(Pytree):
    """An optax transformation with its state for some of a model's Variables.

    Attributes:
      step: an `OptState`: the number of updates so far, uint32 of shape ().
      tx: the optax transformation.
      wrt: the filter that selects the Variables.
      graph: as given.
      opt_state: what `tx.init` gave, with every array in an `OptArray` or `OptVariable`.
    """

    def __init__(
        self,
        model: Any,
        tx: optax.GradientTransformation,
        *,
        wrt: Filter,
        graph: bool | None = None,
    ) -> None:
        """Initializes the transformation's state.

        Args:
          model: the model, or a container of models.
          tx: the optax transformation.
          wrt: selects the Variables, and arrays of objects, that the optimizer updates.
          graph: whether the model may share references; None for the default.

        Raises:
          ValueError: a Variable is annotated with how it is partitioned, and there is no mesh.
        """
        self.step = OptState(jnp.array(0, jnp.uint32))
        self.tx = tx
        self.wrt = tuple(wrt) if isinstance(wrt, list) else wrt
        self.graph = graph
        variables = self._selected(model)
        self.opt_state = data(_boxed(tx.init(_values(variables)), variables))

    def update(self, model: Any, grads: Any, /, **kwargs: Any) -> Any:
        """Updates what is selected of a model, and the optimizer's own state, in place.

        Args:
          model: the model that the optimizer was made for, or one of the same structure.
          grads: the gradients: a State, or a model that holds them; what `wrt` does not select is
            ignored.
          **kwargs: further arguments of `tx.update`, such as `value=`; Variables in them are passed
            on as their values.

        Returns:
          What was added: a State of arrays.

        Raises:
          ValueError: the gradients lack a Variable, have one too many, or one of another shape; or
            the transformation changes the structure of its state. Nothing has changed then.
          ImmutableVariableError: a Variable is not mutable; likewise.
          TraceContextError: a Variable belongs to another trace level; likewise.
        """
        variables = self._selected(model)
        params, old = _values(variables), as_pure(self.opt_state)
        gradients = _checked(self._gradients(grads), variables)
        updates, new = self.tx.update(gradients, old, params, **as_pure(kwargs))
        structures: list[Any] = [jax.tree.structure(old), jax.tree.structure(new)]
        if structures[0] != structures[1]:
            raise ValueError(
                "the optax transformation changed the structure of its state, which is to stay as"
                f" it was: from {structures[0]} to {structures[1]}"
            )
        self._write(model, variables, optax.apply_updates(params, updates), new)
        return updates

    def _selected(self, model: Any) -> dict[Path, Any]:
        """Returns what the optimizer updates: the model's own Variables, and arrays, by path."""
        flat, selects = read(model, self.graph, "Optimizer"), to_predicate(self.wrt)
        pairs = zip(flat.graphdef.paths, flat.leaves, strict=True)
        return {path: leaf for path, leaf in pairs if selects(path, leaf)}

    def _gradients(self, grads: Any) -> dict[Path, Any]:
        """Returns the gradients' values by path, without those of Variables not selected."""
        mapping = grads if _is_mapping(grads) else state(grads, self.wrt, graph=self.graph)
        selects = to_predicate(self.wrt)
        return {
            path: _value(leaf)
            for path, leaf in to_flat_state(mapping)
            if not isinstance(leaf, Variable) or selects(path, leaf)
        }

    def _write(self, model: Any, selected: dict[Path, Any], values: State, opt_state: Any) -> None:
        own = jax.tree.leaves(self.opt_state, is_leaf=_is_variable)
        writes = [
            (leaf, _at(values, path)) for path, leaf in selected.items() if _is_variable(leaf)
        ]
        writes += zip(own, jax.tree.leaves(opt_state), strict=True)
        writes.append((self.step, self.step.get_value() + 1))
        for variable, value in writes:
            variable._check_write(value)
        arrays = {path: _at(values, path) for path, x in selected.items() if not _is_variable(x)}
        if arrays:
            update(model, from_flat_state(arrays))
        for variable, value in writes:
            variable.set_value(value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, Pytree)


def _is_variable(value: Any) -> bool:
    return isinstance(value, Variable)


def _value(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def _values(selected: Mapping[Path, Any]) -> State:
    return from_flat_state({path: _value(leaf) for path, leaf in selected.items()})


def _at(values: State, path: Path) -> Any:
    for key in path:
        values = values[key]
    return values


def _checked(gradients: dict[Path, Any], variables: Mapping[Path, Any]) -> State:
    """Makes a State of gradients that agree with the Variables in paths and shapes."""
    missing = sorted(map(str, variables.keys() - gradients.keys()))
    surplus = sorted(map(str, gradients.keys() - variables.keys()))
    if missing or surplus:
        raise ValueError(
            "the gradients do not match the Variables that the optimizer updates:"
            + (f" there is none for {', '.join(missing)};" if missing else "")
            + (
                f" there is one for {', '.join(surplus)}, which `wrt` does not select;"
                if surplus
                else ""
            )
            + " take them with respect to the same filter."
        )
    for path, variable in variables.items():
        wanted, given = _shapes(_value(variable)), _shapes(gradients[path])
        if wanted != given:
            raise ValueError(
                f"the gradient at {path} does not match its {type(variable).__name__}: it has shape"
                f" {given}, not {wanted}"
            )
    return from_flat_state({path: gradients[path] for path in variables})


def _shapes(value: Any) -> Any:
    return jax.tree.map(jnp.shape, value)


def _boxed(opt_state: Any, selected: Mapping[Path, Any]) -> Any:
    """Puts every leaf of an optax state into an OptVariable or OptArray."""
    mirrored = {
        (*path, *_keys(inner)): (jnp.shape(leaf), variable)
        for path, variable in selected.items()
        if isinstance(variable, Variable)
        for inner, leaf in jax.tree_util.tree_leaves_with_path(variable.get_value())
    }

    def box(path: tuple[Any, ...], leaf: Any) -> OptState[Any]:
        keys = _keys(path)
        for start in range(len(keys)):
            shape, variable = mirrored.get(keys[start:], (None, None))
            if variable is not None and shape == jnp.shape(leaf):
                return OptVariable(leaf, **_inherited(variable))
        return OptArray(leaf)

    return jax.tree_util.tree_map_with_path(box, opt_state)


def _keys(path: tuple[Any, ...]) -> Path:
    return tuple(map(plain_key, path))


def _inherited(variable: Variable[Any]) -> dict[str, Any]:
    """Returns the metadata that also holds for what mirrors a Variable.

    It is all but hooks, and but flags other than whether values are placed as annotated.
    """
    own = variable.get_metadata()
    metadata = {k: v for k, v in own.items() if k not in HOOKS and k not in DEFAULTS}
    metadata["eager_sharding"] = own["eager_sharding"]
    if "optimizer_sharding" in metadata:
        metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    return metadata
