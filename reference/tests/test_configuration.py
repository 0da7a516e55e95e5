"""Settings: what one object of a setting may be used for, and what threads see of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import nnx_reference as nnx

SWITCHES = {
    "set_graph_mode": (nnx.set_graph_mode, nnx.set_graph_mode.current_value),
    "set_graph_updates": (nnx.set_graph_updates, nnx.set_graph_updates.current_value),
    "use_eager_sharding": (nnx.use_eager_sharding, nnx.using_eager_sharding),
    "var_defaults": (lambda value: nnx.var_defaults(ref=value), lambda: nnx.var_defaults().ref),
}


@pytest.fixture(params=SWITCHES)
def switch(request):
    """Gives what sets a switch and what reads it, and sets it back."""
    setter, read = SWITCHES[request.param]
    before = read()
    yield setter, read
    setter(before)


def test_one_object_decorates_several_functions(switch):
    setter, read = switch
    setter(False)
    scope = setter(True)
    first, second = scope(read), scope(read)
    assert [read(), first(), second(), read()] == [False, True, True, False]


def test_decorating_twice_takes_back_what_was_set_once(switch):
    setter, read = switch
    setter(False)
    scope = setter(True)
    scope(read)
    setter(True)
    scope(read)
    assert read() is True


def test_one_object_is_entered_again(switch):
    setter, read = switch
    setter(False)
    scope = setter(True)
    found = []
    with scope:
        with scope:
            found.append(read())
        found.append(read())
    found.append(read())
    assert found == [True, True, False]


def test_a_decorated_function_is_called_in_several_threads(switch):
    setter, read = switch
    setter(False)

    @setter(True)
    def descend(depth):
        return [read(), *(descend(depth - 1) if depth else ())]

    with ThreadPoolExecutor(max_workers=4) as pool:
        found = list(pool.map(descend, range(20)))
    assert found == [[True] * (depth + 1) for depth in range(20)]
    assert read() is False
