"""Capturing: what Modules record while they run.

    class Net(Module):
        def __call__(self, x):
            h = self.encode(x)
            self.sow(Intermediate, "h", h)      # recorded, if somebody captures Intermediates
            return self.decode(self.perturb("h_tangent", h))

    y, intermediates = capture(net, Intermediate)(x)

While the function runs, each Module has an attribute `__captures__`, a tuple of buffers: a Variable
for each class that is captured, whose value is a dict by name. `sow` and `perturb` fill these. As
the attribute is data, the buffers go through transforms as all Variables do, and what is recorded
inside comes out. Copies of a Module (`split`, `merge`, `clone`) hold the very buffers that it
holds, so that what they record is captured, too. When the function is done, the attribute is gone.

Nobody captures, and a Module records all the same: then the record becomes an attribute of the
Module, a Variable, which `pop` takes out.

To record what methods return, a Module gets another class for the time: a subclass of its own with
the same name, whose methods record. So transforms, which rebuild objects by their class, rebuild
Modules that record.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnx_reference.attributes import data
from nnx_reference.containers import Dict, List
from nnx_reference.everywhere import as_pure
from nnx_reference.pytree import CAPTURES, Key, Module, Path, attributes_of
from nnx_reference.state import State, from_flat_state, to_flat_state
from nnx_reference.transforms.core import is_object
from nnx_reference.traversal import iter_modules
from nnx_reference.variables import Perturbation, Variable, new_variable

Kind = type[Variable[Any]]


def sow(
    module: Module,
    variable_type: Kind,
    name: str,
    value: Any,
    reduce_fn: Callable[[Any, Any], Any],
    init_fn: Callable[[], Any],
) -> bool:
    """Records a value; see `Module.sow`."""
    value = as_pure(value)
    if (buffers := _buffers_of(module)) is None:
        held = _attribute(module, variable_type, name)
        if held is None:
            setattr(module, name, variable_type(reduce_fn(init_fn(), value)))
        else:
            held.set_value(reduce_fn(held.get_value(), value))
        return True
    if (buffer := _find(buffers, variable_type)) is None:
        return False
    entries = buffer._load()
    before = entries[name] if name in entries else init_fn()
    buffer.set_raw_value({**entries, name: reduce_fn(before, value)})
    return True


def perturb(module: Module, name: str, value: Any, variable_type: Kind | None) -> Any:
    """Adds the perturbation of a name; see `Module.perturb`."""
    value, variable_type = as_pure(value), variable_type or Perturbation
    if (buffers := _buffers_of(module)) is None:
        held = _attribute(module, variable_type, name)
        if held is None:
            held = variable_type(jax.tree.map(jnp.zeros_like, value))
            setattr(module, name, held)
        return _plus(value, held.get_value(), name)
    if (buffer := _find(buffers, variable_type)) is None:
        return value
    entries = buffer._load()
    if name not in entries:
        entries = {**entries, name: jax.tree.map(jnp.zeros_like, value)}
        buffer.set_raw_value(entries)
    return _plus(value, entries[name], name)


def _buffers_of(module: Module) -> tuple[Variable[Any], ...] | None:
    return attributes_of(module).get(CAPTURES)


def _find(buffers: tuple[Variable[Any], ...], kind: Kind) -> Variable[Any] | None:
    return next((buffer for buffer in buffers if type(buffer) is kind), None)


def _attribute(module: Module, kind: Kind, name: str) -> Variable[Any] | None:
    """Returns the Variable of a class that a Module has under a name.

    Raises:
      ValueError: it has something else there.
    """
    found = getattr(module, name, None)
    if found is None or type(found) is kind:
        return found
    raise ValueError(
        f"a {type(module).__name__} cannot record a {kind.__name__} as {name!r}, where it has a"
        f" {type(found).__name__}: choose another name"
    )


def _plus(value: Any, perturbation: Any, name: str) -> Any:
    total = jax.tree.map(jnp.add, value, perturbation)
    if jax.tree.map(jnp.shape, total) != jax.tree.map(jnp.shape, value):
        raise ValueError(
            f"the perturbation {name!r} has the shapes {jax.tree.map(jnp.shape, perturbation)}, but"
            f" the value to add it to has {jax.tree.map(jnp.shape, value)}: initialize it with a"
            " run on values of these shapes"
        )
    return total


def capture(
    fn: Callable[..., Any] | Kind,
    *var_types: Kind,
    init: Mapping[Key, Any] | None = None,
    method_outputs: Kind | None = None,
) -> Callable[..., Any]:
    """Makes a function that also returns what a Module, and all Modules in it, record meanwhile.

    Args:
      fn: a Module, a bound method of one, or a function whose first argument is one. A class of
        Variables counts as the first of `var_types`, and the result is a decorator.
      *var_types: the classes of Variables to capture; `sow` and `perturb` name one, and each is
        captured only as itself.
      init: a State of what has been recorded before, such as perturbations. Its Variables' classes
        are captured, too, but returned only if they are among `var_types`.
      method_outputs: a class to record in what methods return, under their names: `__call__` and
        all that do not begin with an underscore. It is returned even if not among `var_types`. What
        JAX cannot carry out, such as a string, a generator or a Module, is not recorded.

    Returns:
      A function that returns the result if no class is to be returned, and else a tuple of it and a
      State for each class, by the Modules' paths and the recorded names. It raises TypeError if
      there is no Module; ValueError if `init` has a path that leads to none, or a leaf that is no
      Variable; TraceContextError if a Module belongs to another trace level. When it returns or
      raises, the Modules are as they were, but for what `fn` did.

    Raises:
      TypeError: one of `var_types` is no class of Variables.
    """
    if isinstance(fn, type) and issubclass(fn, Variable):
        kinds = (fn, *var_types)
        return functools.partial(_capture, kinds=kinds, init=init, method_outputs=method_outputs)
    return _capture(fn, var_types, init, method_outputs)


def _capture(
    fn: Callable[..., Any],
    kinds: tuple[Kind, ...],
    init: Mapping[Key, Any] | None,
    method_outputs: Kind | None,
) -> Callable[..., Any]:
    returned = tuple(dict.fromkeys((*kinds, *(() if method_outputs is None else [method_outputs]))))
    for kind in returned:
        if not (isinstance(kind, type) and issubclass(kind, Variable)):
            raise TypeError(f"capture takes classes of Variables, not {kind!r}")
    bound = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)

    def captured(*args: Any, **kwargs: Any) -> Any:
        module = bound if isinstance(bound, Module) else _first_argument(fn, args, kwargs)
        recording = _Recording(module, returned, init)
        with recording.installed(method_outputs):
            result = _current(fn)(*args, **kwargs)
            recording.clean(result)
        states = recording.states()
        return (result, *states) if states else result

    return captured if isinstance(fn, Module) else functools.wraps(fn)(captured)


def _first_argument(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Module:
    """Returns the Module that is a function's first argument.

    Raises:
      TypeError: there is none.
    """
    try:
        first = next(iter(inspect.signature(fn).parameters), "")
    except (TypeError, ValueError):
        first = ""
    module = args[0] if args else kwargs.get(first)
    if not isinstance(module, Module):
        raise TypeError(
            "capture takes a Module, a method of one, or a function whose first argument is one,"
            f" not a {type(module).__name__}"
        )
    return module


def _current(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as it is now: for a bound method, the one that records if there is one."""
    own = getattr(getattr(fn, "__self__", None), getattr(fn, "__name__", ""), fn)
    return own if getattr(own, "__wrapped__", None) is getattr(fn, "__func__", fn) else fn


class _Recording:
    """One call during which a Module records.

    Attributes:
      root: the Module that was given.
      modules: all Modules in it that can record, with their paths; a Dict has items only.
      returned: the classes of which there shall be States.
      buffers: the buffers of each Module.
      outer: the ids of the buffers of captures that run already.
    """

    def __init__(
        self, module: Module, returned: tuple[Kind, ...], init: Mapping[Key, Any] | None
    ) -> None:
        self.root = module
        self.modules = [
            (path, found)
            for path, found in iter_modules(module, graph=True)
            if not isinstance(found, Dict)
        ]
        self.returned = returned
        first = _by_module(init or {}, {path for path, _ in self.modules})
        kinds = dict.fromkeys((*returned, *(kind for kinds in first.values() for kind in kinds)))
        self.buffers = [
            tuple([_buffer(kind, first.get(path, {}).get(kind, {})) for kind in kinds])
            for path, _ in self.modules
        ]
        self.outer = {
            id(buffer) for _, module in self.modules for buffer in _buffers_of(module) or ()
        }

    @contextmanager
    def installed(self, method_outputs: Kind | None) -> Iterator[None]:
        """Gives the Modules their buffers, for a block, and if need be classes that record."""
        before = [(module, _buffers_of(module), type(module)) for _, module in self.modules]
        try:
            for (_, module), buffers in zip(self.modules, self.buffers, strict=True):
                kind = _usual_class(module)
                _put(module, buffers, recorder(kind, method_outputs) if method_outputs else kind)
            yield
        finally:
            self.clean(self.root)
            for module, own, kind in before:
                _put(module, own, kind)

    def clean(self, tree: Any) -> None:
        """Takes the buffers out of a pytree's Modules that are like ours: copies, gradients."""
        originals = {id(module) for _, module in self.modules}
        for _, module in list(iter_modules(tree, graph=True)):
            buffers = _buffers_of(module)
            if id(module) in originals or buffers is None:
                continue
            if self.outer.isdisjoint(map(id, buffers)):
                _put(module, None, _usual_class(module))

    def states(self) -> list[State]:
        """Returns what has been recorded, as a State for each class."""
        return [
            from_flat_state(
                [
                    ((*path, name), new_variable(kind, value, kind._no_metadata))
                    for (path, _), buffers in zip(self.modules, self.buffers, strict=True)
                    for buffer in buffers
                    if type(buffer) is kind
                    for name, value in buffer._load().items()
                ]
            )
            for kind in self.returned
        ]


def _usual_class(module: Module) -> type[Module]:
    """Returns the class that a Module has when it does not record what its methods return."""
    return getattr(module, "_pytree_records_for", None) or type(module)


def _put(module: Module, buffers: tuple[Variable[Any], ...] | None, kind: type) -> None:
    """Gives a Module buffers, or takes them away, and a class."""
    if buffers is None and CAPTURES in attributes_of(module):
        delattr(module, CAPTURES)
    elif buffers is not _buffers_of(module):
        setattr(module, CAPTURES, data(buffers))
    if type(module) is not kind:
        object.__setattr__(module, "__class__", kind)


def _buffer(kind: Kind, entries: dict[str, Any]) -> Variable[Any]:
    return new_variable(kind, entries, kind._no_metadata)


def _by_module(init: Mapping[Key, Any], paths: set[Path]) -> dict[Path, dict[Kind, dict[str, Any]]]:
    """Sorts a State's values by the Module's path, the class and the name.

    Raises:
      ValueError: a path leads to no Module, or a leaf is no Variable.
    """
    found: dict[Path, dict[Kind, dict[str, Any]]] = {}
    for path, leaf in to_flat_state(init):
        if not isinstance(leaf, Variable):
            raise ValueError(
                f"init of capture has a {type(leaf).__name__} at {path}: put it in a Variable of"
                " the class that it was recorded as"
            )
        if path[:-1] not in paths:
            raise ValueError(
                f"init of capture has a {type(leaf).__name__} at {path}, but there is no Module at"
                f" {path[:-1]}, only at {', '.join(map(str, sorted(paths, key=str)))}"
            )
        kinds = found.setdefault(path[:-1], {})
        kinds.setdefault(type(leaf), {})[str(path[-1])] = leaf._load()
    return found


_SILENT = {*Module.__mro__, *List.__mro__, *Dict.__mro__}
"""Classes whose methods are not recorded."""


_recorders: dict[tuple[type[Module], Kind], type[Module]] = {}


def recorder(kind: type[Module], output_type: Kind) -> type[Module]:
    """Returns a subclass of a Module class whose methods record what they return; always the same.

    Args:
      kind: the class.
      output_type: the class of Variables to record in.
    """
    known = _recorders.get((kind, output_type))
    return known or _recorders.setdefault((kind, output_type), _make_recorder(kind, output_type))


def _make_recorder(kind: type[Module], output_type: Kind) -> type[Module]:
    methods: dict[str, Any] = {
        name: _recording(function, name, output_type)
        for name in dir(kind)
        for owner in [next(cls for cls in kind.__mro__ if name in vars(cls))]
        for function in [vars(owner)[name]]
        if owner not in _SILENT and inspect.isfunction(function)
        if name == "__call__" or not name.startswith("_")
    }
    namespace = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__slots__": (),
        **methods,
        "_pytree_records_for": kind,
    }
    make: Any = type(kind)
    made: type[Module] = make(kind.__name__, (kind,), namespace)
    return made


def _recording(function: Callable[..., Any], name: str, kind: Kind) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Module, *args: Any, **kwargs: Any) -> Any:
        output = function(self, *args, **kwargs)
        if _buffers_of(self) is not None and _is_recordable(output):
            self.sow(kind, name, output)
        return output

    return method


_RECORDABLE = (Variable, jax.Array, np.ndarray, np.generic, int, float, complex)


def _is_recordable(output: Any) -> bool:
    """Tells whether a pytree has only Variables, arrays and numbers, which JAX can carry out."""
    if isinstance(output, Iterator):
        return False
    leaves = jax.tree.leaves(output, is_leaf=is_object)
    return all(isinstance(leaf, _RECORDABLE) for leaf in leaves)
