"""A thread for each test."""

from __future__ import annotations

import contextvars
import threading

import jax
import pytest

from nnx_conformance.isolation import in_own_thread

VARIABLE = contextvars.ContextVar("VARIABLE", default="default")


class Deep:
    """A node of JAX's that holds another, or raises."""

    def __init__(self, child):
        self.child = child

    def flatten(self):
        if self.child is None:
            raise LookupError("no child")
        return (self.child,), None


jax.tree_util.register_pytree_node(Deep, Deep.flatten, lambda _, children: Deep(*children))


def frames_left():
    try:
        return 1 + frames_left()
    except RecursionError:
        return 1


def test_it_gives_the_value_back():
    assert in_own_thread(divmod)(7, 3) == (2, 1)


def test_it_raises_what_was_raised():
    error = ValueError("this one")

    def fail():
        raise error

    with pytest.raises(ValueError, match="this one") as caught:
        in_own_thread(fail)()
    assert caught.value is error


def test_what_belongs_to_a_thread_ends_with_it():
    local = threading.local()
    in_own_thread(setattr)(local, "left", 1)
    assert not hasattr(local, "left")


def test_context_variables_are_seen():
    token = VARIABLE.set("set")
    try:
        assert in_own_thread(VARIABLE.get)() == "set"
    finally:
        VARIABLE.reset(token)


def test_errors_inside_jax_cost_no_frames():
    def flatten():
        jax.tree.flatten(Deep(Deep(Deep(None))))

    before = frames_left()
    for _ in range(10):
        with pytest.raises(LookupError, match="no child"):
            in_own_thread(flatten)()
    assert frames_left() == before
