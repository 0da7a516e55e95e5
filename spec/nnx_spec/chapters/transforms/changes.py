"""What a caller may do to a model between two calls: changes of its structure, and others.

The structure of a model is its classes, names, static values, metadata, what is shared, and the
shapes and dtypes of its arrays: all but the numbers in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec.chapters.functional.making import count, net, param
from nnx_spec.oracles import Path, children, is_node, user_metadata
from nnx_spec.plans import classes, is_array

Change = Callable[[Any, Any], Any]
"""A function of the target and a model."""


def model_of(nnx: Any, w: Any = (1.0, 2.0)) -> Any:
    """Makes a Module with all that can be changed: parts, containers, arrays, static values."""
    inner = net(nnx, n=count(nnx, 0, tag="n"), size=3)
    layers = nnx.List([param(nnx, 5.0), param(nnx, 6.0)])
    return net(
        nnx,
        w=param(nnx, w),
        inner=inner,
        layers=layers,
        named=nnx.Dict(first=net(nnx, v=param(nnx, 7.0))),
        items=nnx.data([nnx.BatchStat(jnp.float32(8))]),
        table=nnx.data({"a": nnx.BatchStat(jnp.float32(9))}),
        constant=jnp.ones(2),
    )


def structure(nnx: Any, model: Any) -> tuple[Any, ...]:
    """Describes the structure of a model, concrete or traced: equal ones compare equal."""
    numbers: dict[int, int] = {}

    def visit(path: Path, item: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(item, nnx.Variable) or is_node(nnx, item):
            if id(item) in numbers:
                yield path, numbers[id(item)]
                return
            numbers[id(item)] = len(numbers)
        yield path, _kind(nnx, item)
        for key, child in children(nnx, item):
            yield from visit((*path, key), child)

    return tuple(visit((), model))


def _kind(nnx: Any, item: Any) -> Any:
    if isinstance(item, nnx.Variable):
        leaves, treedef = jax.tree.flatten(item.get_value())
        metadata = tuple(sorted(user_metadata(item).items()))
        return type(item), treedef, (*map(_kind_of_array, leaves),), metadata
    if is_array(item):
        return _kind_of_array(item)
    container = is_node(nnx, item) or isinstance(item, (list, dict))
    return type(item) if container else (type(item), item)


def _kind_of_array(array: Any) -> tuple[str, tuple[int, ...]]:
    return str(array.dtype), array.shape


def _write(nnx: Any, model: Any) -> None:
    model.w[...] = 7.0
    model.inner.n.set_value(jnp.int32(9))


def _change_and_undo(nnx: Any, model: Any) -> None:
    model.extra = param(nnx)
    del model.extra
    model.layers.append(param(nnx))
    model.layers.pop()


def _rename(node: Any, old: str, new: str) -> None:
    value = getattr(node, old)
    delattr(node, old)
    setattr(node, new, value)


def _tree_of(nnx: Any, module: Any) -> Any:
    tree = classes(nnx).Tree()
    tree.n, tree.size = module.n, module.size
    return tree


def _relabelled(variable: Any) -> Any:
    return variable.replace(variable.get_value(), label="copied")


ALIKE: Mapping[str, Change] = MappingProxyType(
    {
        "nothing": lambda nnx, m: None,
        "values": _write,
        "values by update": lambda nnx, m: nnx.update(m, {"w": jnp.asarray([4.0, 3.0])}),
        "another Variable": lambda nnx, m: setattr(m, "w", param(nnx, [8.0, 9.0])),
        "another node": lambda nnx, m: setattr(m, "inner", model_of(nnx).inner),
        "another array": lambda nnx, m: setattr(m, "constant", m.constant + 1),
        "another item of a List": lambda nnx, m: m.layers.__setitem__(1, param(nnx, 3.0)),
        "another item of a Dict": lambda nnx, m: m.named.__setitem__(
            "first", net(nnx, v=param(nnx, 2.0))
        ),
        "another item of a list": lambda nnx, m: m.items.__setitem__(
            0, nnx.BatchStat(jnp.float32(1))
        ),
        "another item of a dict": lambda nnx, m: m.table.__setitem__(
            "a", nnx.BatchStat(jnp.float32(2))
        ),
        "changed and undone": _change_and_undo,
    }
)
"""Changes that leave the structure of a `model_of` as it is."""

ANEW: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "another like it": lambda nnx, model: model_of(nnx),
        "other values": lambda nnx, model: model_of(nnx, w=(-3.0, np.nan)),
        "a clone": lambda nnx, model: nnx.clone(model, graph=True),
        "merged": lambda nnx, model: nnx.merge(*nnx.split(model, graph=True)),
    }
)
"""Ways to make another model of the structure of a `model_of`."""

DIFFERENT: Mapping[str, Change] = MappingProxyType(
    {
        "shape": lambda nnx, m: m.w.set_value(jnp.ones(3)),
        "rank": lambda nnx, m: m.w.set_value(jnp.ones((1, 2))),
        "dtype": lambda nnx, m: m.inner.n.set_value(jnp.int16(1)),
        "shape of an array": lambda nnx, m: setattr(m, "constant", jnp.ones(3)),
        "static attribute": lambda nnx, m: setattr(m.inner, "size", 4),
        "new static attribute": lambda nnx, m: setattr(m, "name", "name"),
        "new Variable": lambda nnx, m: setattr(m, "extra", param(nnx)),
        "Variable removed": lambda nnx, m: delattr(m.inner, "n"),
        "Variable renamed": lambda nnx, m: _rename(m.inner, "n", "m"),
        "longer List": lambda nnx, m: m.layers.append(param(nnx)),
        "shorter List": lambda nnx, m: m.layers.pop(),
        "larger Dict": lambda nnx, m: m.named.__setitem__("second", param(nnx)),
        "longer list": lambda nnx, m: m.items.append(nnx.BatchStat(jnp.float32(3))),
        "larger dict": lambda nnx, m: m.table.__setitem__("b", nnx.BatchStat(jnp.float32(4))),
        "item of a list": lambda nnx, m: m.items.__setitem__(0, nnx.Cache(jnp.float32(5))),
        "Variable of another class": lambda nnx, m: setattr(
            m.inner, "n", nnx.BatchStat(jnp.int32(0), tag="n")
        ),
        "node of another class": lambda nnx, m: setattr(m, "inner", _tree_of(nnx, m.inner)),
        "metadata": lambda nnx, m: m.w.set_metadata("tag", "other"),
        "metadata copied": lambda nnx, m: m.w.copy_from(_relabelled(m.w)),
        "value of another structure": lambda nnx, m: m.layers[0].set_value({"a": jnp.float32(1)}),
    }
)
"""Changes after which the structure of a `model_of` is another."""

SHARING: Mapping[str, Change] = MappingProxyType(
    {
        "Variable shared": lambda nnx, m: setattr(m, "again", m.w),
        "node shared": lambda nnx, m: setattr(m, "other", m.named["first"]),
        "item of a List shared": lambda nnx, m: m.layers.__setitem__(0, m.w),
        "item of a list shared": lambda nnx, m: m.items.__setitem__(0, m.w),
    }
)
"""Changes of structure that are not for tree mode."""
