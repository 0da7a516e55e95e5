"""Models of the user's own, made on a target: small ones whose arithmetic is exact."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_spec.chapters.functional.making import net
from nnx_spec.plans import classes


def counted(shape: tuple[int, ...], start: int = 1) -> jax.Array:
    """Makes a float32 array that counts up from `start`."""
    return jnp.asarray(np.arange(start, start + np.prod(shape), dtype="float32").reshape(shape))


@functools.cache
def layers(nnx: Any) -> SimpleNamespace:
    """Makes the user's classes on a target: Linear and MLP, Dropout and Norm."""

    class Linear(nnx.Module):
        """An affine map whose weights are small whole numbers."""

        def __init__(self, din, dout, start=1):
            self.kernel = nnx.Param(counted((din, dout), start))
            self.bias = nnx.Param(counted((dout,), start))
            self.din, self.dout = din, dout

        def __call__(self, x):
            return x @ self.kernel + self.bias

    class MLP(nnx.Module):
        """Two Linears, with a factor between them."""

        def __init__(self):
            self.first = Linear(2, 3)
            self.second = Linear(3, 2, start=2)
            self.factor = 2
            self.shifted = True

        def __call__(self, x):
            hidden = self.first(x) * self.factor
            return self.second(hidden + 1 if self.shifted else hidden)

    class Dropout(nnx.Module):
        """A layer with the mode `deterministic`."""

        def __init__(self):
            self.deterministic = False
            self.rate = 0.5

        def set_view(self, deterministic: bool | None = None, rate: float | None = None):
            """Sets the modes that are not None."""
            if deterministic is not None:
                self.deterministic = deterministic
            if rate is not None:
                self.rate = rate

    class Norm(nnx.Module):
        """A layer with the mode `use_running_average`, a statistic and an array."""

        def __init__(self):
            self.use_running_average = False
            self.mean = nnx.BatchStat(counted((2,)))
            self.table = counted((3,))

        def set_view(self, use_running_average: bool | None = None):
            """Sets the mode if it is not None."""
            if use_running_average is not None:
                self.use_running_average = use_running_average

    return SimpleNamespace(Linear=Linear, MLP=MLP, Dropout=Dropout, Norm=Norm)


def model_with_modes(nnx: Any) -> Any:
    """Makes a Module with Dropouts and Norms in Modules, a List, a Dict, a Pytree and a list."""
    own = layers(nnx)
    tree = classes(nnx).Tree()
    tree.drop = own.Dropout()
    return net(
        nnx,
        drop=own.Dropout(),
        blocks=nnx.List([own.Norm(), net(nnx, drop=own.Dropout())]),
        table=nnx.Dict(norm=own.Norm()),
        tree=tree,
        plain=nnx.data([own.Dropout()]),
        weight=nnx.Param(counted((2,))),
    )


def modes(model: Any) -> dict[str, Any]:
    """Reads all modes of a `model_with_modes`."""
    return {
        "drop": model.drop.deterministic,
        "blocks.0": model.blocks[0].use_running_average,
        "blocks.1.drop": model.blocks[1].drop.deterministic,
        "table.norm": model.table["norm"].use_running_average,
        "tree.drop": model.tree.drop.deterministic,
        "plain.0": model.plain[0].deterministic,
    }


def with_modes(dropout: Any, norm: Any, **others: Any) -> dict[str, Any]:
    """Returns what `modes` reads if all Dropouts and all Norms, but for `others`, are set alike."""
    expected = {"drop": dropout, "blocks.0": norm, "blocks.1.drop": dropout}
    expected |= {"table.norm": norm, "tree.drop": dropout, "plain.0": dropout}
    return {**expected, **others}
