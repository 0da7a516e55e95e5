"""Normalization over the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from nnx_reference.layers.initialization import NONE, Initializer, Metadata, parameter
from nnx_reference.layers.modes import first_given
from nnx_reference.layers.promotion import PromoteDtype, common_dtype, promote_dtype
from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs
from nnx_reference.variables import BatchStat, Param


class BatchNorm(Module):
    """Normalization over the batch: each feature gets mean 0 and variance 1, then scale and bias.

    In training the mean and variance are those of the input, and running averages of them are kept;
    afterwards these are used. The averages get no gradients.

    Attributes:
      mean: a BatchStat of shape (num_features,): the running mean.
      var: a BatchStat of shape (num_features,): the running variance.
      scale: a Param of shape (num_features,), or None.
      bias: a Param of shape (num_features,), or None.
      use_running_average: whether the running averages are used; None if each call says so.
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = jax.nn.initializers.zeros,
        scale_init: Initializer = jax.nn.initializers.ones,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NONE,
        scale_metadata: Metadata = NONE,
    ):
        """Draws one key of `rngs.params` for the scale and one for the bias, if there are such.

        Args:
          num_features: the size of the feature axis.
          use_running_average: whether the running averages are used.
          axis: the feature axis; the others are averaged over.
          momentum: the weight of the past in the running averages.
          epsilon: added to the variance before it divides.
          dtype: the dtype of the output, None for the promoted one.
          param_dtype: the dtype of scale and bias.
          use_bias: whether there is a bias.
          use_scale: whether there is a scale.
          bias_init: makes the bias.
          scale_init: makes the scale.
          axis_name: a mapped axis that is averaged over, too.
          axis_index_groups: groups of indices on that axis to average over separately.
          use_fast_variance: whether the variance is the mean square less the squared mean, which
            takes one pass over the input but is less exact.
          promote_dtype: casts (input, mean, variance, scale, bias) to the dtype in which to
            normalize.
          rngs: the random streams.
          bias_metadata: metadata of the bias.
          scale_metadata: metadata of the scale.
        """
        shape = (num_features,)
        scale = bias = None
        if use_scale:
            scale = parameter(Param, scale_init, rngs, shape, param_dtype, scale_metadata)
        if use_bias:
            bias = parameter(Param, bias_init, rngs, shape, param_dtype, bias_metadata)
        self.mean = BatchStat(jnp.zeros(shape, jnp.float32))
        self.var = BatchStat(jnp.ones(shape, jnp.float32))
        self.scale = data(scale)
        self.bias = data(bias)
        self.num_features = num_features
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Sets the mode; None leaves it."""
        if use_running_average is not None:
            self.use_running_average = use_running_average

    def __call__(
        self,
        x: Any,
        use_running_average: bool | None = None,
        *,
        mask: Any = None,
    ) -> jax.Array:
        """Normalizes x, and in training updates the running averages.

        Args:
          x: the input, of any shape with `num_features` at the feature axis.
          use_running_average: the mode of this call; None for the layer's.
          mask: which elements count, of a shape that broadcasts to that of x.

        Raises:
          ValueError: neither the call nor the layer says which mode.
        """
        mode = first_given(self, "use_running_average", use_running_average)
        x = jnp.asarray(x)
        shape = [1] * x.ndim
        shape[self.axis] = self.num_features
        if mode:
            mean, var = self.mean.get_value(), self.var.get_value()
        else:
            mean, var = self._statistics(x, mask)
            self._average(mean, var)
        scale, bias = (None if p is None else p.get_value() for p in (self.scale, self.bias))
        operands = (x, mean, var, scale, bias)
        x, mean, var, scale, bias = self.promote_dtype(operands, dtype=self.dtype)
        factor = jax.lax.rsqrt(var + self.epsilon)
        factor = factor if scale is None else factor * scale
        y = (x - mean.reshape(shape)) * factor.reshape(shape)
        y = y if bias is None else y + bias.reshape(shape)
        return jnp.asarray(y, common_dtype((x, scale, bias), self.dtype))

    def _statistics(self, x: jax.Array, mask: Any) -> tuple[jax.Array, jax.Array]:
        """Returns mean and variance over all axes but the feature axis, (num_features,) each."""
        axes = tuple(n for n in range(x.ndim) if n != self.axis % x.ndim)
        x = x.astype(jnp.promote_types(jnp.float32, x.dtype))

        def average(values: jax.Array) -> jax.Array:
            mean = jnp.mean(values, axes, where=mask)
            if self.axis_name is None:
                return mean
            groups = self.axis_index_groups
            return jax.lax.pmean(mean, self.axis_name, axis_index_groups=groups)

        mean = average(x)
        if self.use_fast_variance:
            return mean, jnp.maximum(average(_square(x)) - _square(mean), 0)
        centred = x - jnp.expand_dims(mean, axes)
        return mean, average(_square(centred))

    def _average(self, mean: jax.Array, var: jax.Array) -> None:
        for running, new in ((self.mean, mean), (self.var, var)):
            new = jax.lax.stop_gradient(new)
            running[...] = self.momentum * running.get_value() + (1 - self.momentum) * new


def _square(x: jax.Array) -> jax.Array:
    return jnp.square(jnp.abs(x)) if jnp.iscomplexobj(x) else jnp.square(x)
