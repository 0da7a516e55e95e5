"""Stages: what `trace` and `lower` of a compiled function give, short of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnx_reference.transforms.core import Inputs
from nnx_reference.transforms.dispatching import Compiled, finish
from nnx_reference.transforms.plans import Passed, Plan
from nnx_reference.transforms.statics import mark, unmarked
from nnx_reference.transforms.tracing import eval_shape


class Stage:
    """A stage of compilation: that of `jax.stages`, with the way back to objects.

    What it has no method for, it asks JAX's own stage for.
    """

    def __init__(self, stage: Any, plan: Plan, open_call: Callable[..., Inputs]) -> None:
        self._stage = stage
        self._plan = plan
        self._open_call = open_call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Traced(Stage):
    """A function that is traced: `jax.stages.Traced`."""

    def lower(self, **options: Any) -> Lowered:
        """Lowers it to StableHLO."""
        return Lowered(self._stage.lower(**options), self._plan, self._open_call)


class Lowered(Stage):
    """A function that is lowered to StableHLO: `jax.stages.Lowered`."""

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Executable:
        """Compiles it."""
        return Executable(self._stage.compile(compiler_options), self._plan, self._open_call)


class Executable(Stage):
    """A function that is compiled for good: `jax.stages.Compiled`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it on arguments like those for which it was traced.

        Raises:
          TypeError: objects among the arguments have another structure.
        """
        inputs = self._open_call(*args, **kwargs)
        if inputs.structure.graphdef != self._plan.structure.graphdef:
            raise TypeError(
                "the function was compiled for objects of the structure"
                f" {self._plan.structure.graphdef}, not {inputs.structure.graphdef}"
            )
        passed = Passed(self._plan, inputs)
        result, carried, output = self._stage(
            passed.donated, passed.groups, *passed.args, **passed.kwargs
        )
        return finish(inputs, result, carried, output)


def add_stages(
    jitted: Any,
    compiled: Compiled,
    function: Callable[..., Any],
    graph: bool | None,
    graph_updates: bool | None,
) -> None:
    """Gives a compiled function the methods `trace`, `lower` and `eval_shape`."""

    def open_call(*args: Any, **kwargs: Any) -> Inputs:
        args, kwargs = mark(compiled.options.static, args, kwargs)
        return Inputs(function, args, kwargs, graph, graph_updates)

    def trace(*args: Any, **kwargs: Any) -> Traced:
        """Traces the function for arguments; nothing is run, and nothing changes."""
        inputs = open_call(*args, **kwargs)
        plan = compiled.plan(inputs, args)
        passed = Passed(plan, inputs)
        traced = compiled.compiled[plan].trace(  # type: ignore[attr-defined]
            passed.donated, passed.groups, *passed.args, **passed.kwargs
        )
        return Traced(traced, plan, open_call)

    def lower(*args: Any, **kwargs: Any) -> Lowered:
        """Traces the function for arguments and lowers it to StableHLO; nothing changes."""
        return trace(*args, **kwargs).lower()

    def abstract(*args: Any, **kwargs: Any) -> Any:
        """Finds the shapes and dtypes of the function's output; nothing changes."""
        args, kwargs = mark(compiled.options.static, args, kwargs)
        mode = {"graph": graph, "graph_updates": graph_updates}
        return eval_shape(unmarked(function), *args, **mode, **kwargs)

    jitted.trace = trace
    jitted.lower = lower
    jitted.eval_shape = abstract
