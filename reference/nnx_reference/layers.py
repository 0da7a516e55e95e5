"""Layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from nnx_reference.pytree import Module, data
from nnx_reference.rngs import Rngs, RngStream
from nnx_reference.variables import BatchStat, Param

A = TypeVar("A")

Initializer = Callable[..., Any]
"""A function of a key, a shape and a dtype that makes a parameter's first value."""


class Linear(Module):
    """An affine map of the last axis, `x @ kernel + bias`.

    Attributes:
      kernel: a Param of shape (in_features, out_features).
      bias: a Param of shape (out_features,), or None.
      in_features: the size of the input's last axis.
      out_features: the size of the output's last axis.
      dtype: the dtype in which to compute; None for the one to which input and parameters promote,
        at least a float.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),  # noqa: B008 (made once, a pure function)
        bias_init: Initializer = jax.nn.initializers.zeros,
        rngs: Rngs,
    ):
        """Draws one key of `rngs.params` for the kernel and one for the bias, in this order.

        Args:
          in_features: the size of the input's last axis.
          out_features: the size of the output's last axis.
          use_bias: whether there is a bias.
          dtype: the dtype in which to compute, None for the promoted one.
          param_dtype: the dtype of the parameters.
          precision: the precision of the product, as `jax.lax.dot_general` takes it.
          kernel_init: makes the kernel.
          bias_init: makes the bias.
          rngs: the random streams.
        """
        self.kernel = Param(kernel_init(rngs.params(), (in_features, out_features), param_dtype))
        bias = Param(bias_init(rngs.params(), (out_features,), param_dtype)) if use_bias else None
        self.bias: Param[jax.Array] | None = data(bias)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def __call__(self, x: Any) -> jax.Array:
        """Maps the last axis of x, (..., in_features) to (..., out_features)."""
        bias = None if self.bias is None else self.bias.get_value()
        x, kernel, bias = promote((x, self.kernel.get_value(), bias), self.dtype)
        y = jnp.matmul(x, kernel, precision=self.precision)
        return y if bias is None else y + bias


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
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] | None = None,
        scale_metadata: Mapping[str, Any] | None = None,
    ):
        """Draws one key of `rngs.params` for the scale and one for the bias, in this order.

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
          rngs: the random streams.
          bias_metadata: metadata of the bias.
          scale_metadata: metadata of the scale.
        """
        shape = (num_features,)
        scale = Param(scale_init(rngs.params(), shape, param_dtype), **(scale_metadata or {}))
        bias = Param(bias_init(rngs.params(), shape, param_dtype), **(bias_metadata or {}))
        self.mean = BatchStat(jnp.zeros(shape, jnp.float32))
        self.var = BatchStat(jnp.ones(shape, jnp.float32))
        self.scale = data(scale if use_scale else None)
        self.bias = data(bias if use_bias else None)
        self.num_features = num_features
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance

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
        mode = _first_given(self, "use_running_average", use_running_average)
        x = jnp.asarray(x)
        shape = [1] * x.ndim
        shape[self.axis] = self.num_features
        if mode:
            mean, var = self.mean.get_value(), self.var.get_value()
        else:
            mean, var = self._statistics(x, mask)
            self._average(mean, var)
        scale, bias = (None if p is None else p.get_value() for p in (self.scale, self.bias))
        x, mean, var, scale, bias = promote((x, mean, var, scale, bias), self.dtype)
        factor = jax.lax.rsqrt(var + self.epsilon)
        factor = factor if scale is None else factor * scale
        y = (x - mean.reshape(shape)) * factor.reshape(shape)
        return y if bias is None else y + bias.reshape(shape)

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


class Dropout(Module):
    """Sets random elements to zero, and scales up the others so that the mean is kept.

    Attributes:
      rate: the probability of zero.
      deterministic: whether nothing is dropped; None if each call says so.
      rngs: an `RngStream`, forked from the one that was given, or None.
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ):
        """Forks a random stream, so that the layer has one of its own.

        Args:
          rate: the probability that an element is set to zero.
          broadcast_dims: the axes along which all elements share one fate.
          deterministic: whether nothing is dropped.
          rng_collection: the name of the stream in `rngs`.
          rngs: random streams, or a stream; None if each call brings some.
        """
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        stream = rngs[rng_collection] if isinstance(rngs, Rngs) else rngs
        self.rngs = data(None if stream is None else stream.fork())

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets the mode; None leaves it."""
        if deterministic is not None:
            self.deterministic = deterministic

    def __call__(
        self,
        inputs: Any,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Drops elements of the inputs, which may be of any shape.

        Args:
          inputs: the inputs.
          deterministic: the mode of this call; None for the layer's.
          rngs: random streams, a stream or a key to use instead of the layer's stream.

        Raises:
          ValueError: neither the call nor the layer says which mode, or has random numbers.
        """
        mode = _first_given(self, "deterministic", deterministic)
        inputs = jnp.asarray(inputs)
        if mode or self.rate == 0:
            return inputs
        if self.rate == 1:
            return jnp.zeros_like(inputs)
        shape = list(inputs.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        kept = jax.random.bernoulli(self._key(rngs), 1 - self.rate, tuple(shape))
        return jnp.where(kept, inputs / (1 - self.rate), 0).astype(inputs.dtype)

    def _key(self, rngs: Rngs | RngStream | jax.Array | None) -> jax.Array:
        source = self.rngs if rngs is None else rngs
        if source is None:
            raise ValueError(
                "a Dropout that drops needs random numbers: make it with Dropout(..., rngs=rngs),"
                " or call it with rngs="
            )
        if isinstance(source, Rngs):
            source = source[self.rng_collection]
        return source() if isinstance(source, RngStream) else source


def _first_given(layer: Module, name: str, given: A | None) -> A:
    """Returns what a call says about a mode, or else what the layer says."""
    mode = getattr(layer, name) if given is None else given
    if mode is None:
        kind = type(layer).__name__
        raise ValueError(
            f"a {kind} has to know {name}: pass it to the constructor, to the call, or to"
            f" nnx.view(model, {name}=...)"
        )
    return mode


def promote(arrays: tuple[Any, ...], dtype: DTypeLike | None) -> tuple[Any, ...]:
    """Casts arrays, but not None, to a dtype, or else to the float that they promote to."""
    if dtype is None:
        dtype = jnp.result_type(*(x for x in arrays if x is not None))
        if not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.promote_types(jnp.float32, dtype)
    return tuple(None if x is None else jnp.asarray(x, dtype) for x in arrays)
