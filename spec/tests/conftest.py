"""A target in plain Python, for what the spec itself promises: classes, and no functions at all."""

from types import ModuleType

import pytest


class Variable:
    def __init__(self, value, **metadata):
        self.value = value
        self.metadata = metadata

    def get_value(self):
        return self.value

    def get_raw_value(self):
        return self.value

    def get_metadata(self):
        return {**self.metadata, "hijax": False}


class Param(Variable):
    pass


class BatchStat(Variable):
    pass


class Cache(Variable):
    pass


class Intermediate(Variable):
    pass


class Pytree:
    pass


class Module(Pytree):
    pass


class Object(Pytree):
    pass


class List(Module):
    def __init__(self, items):
        self._items = list(items)

    def append(self, item):
        self._items.append(item)

    def __iter__(self):
        return iter(self._items)


class Dict(Module):
    def __init__(self, items):
        self._items = dict(items)

    def __setitem__(self, key, item):
        self._items[key] = item

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)


CLASSES = (Variable, Param, BatchStat, Cache, Intermediate, Pytree, Module, Object, List, Dict)


@pytest.fixture(scope="session")
def plain():
    """The target: a namespace of the classes that plans use."""
    namespace = ModuleType("plain")
    for cls in CLASSES:
        setattr(namespace, cls.__name__, cls)
    return namespace
