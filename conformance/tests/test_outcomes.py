"""What an exception says about the target, how outcomes join, and what is told of a failure."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, errors, given, settings
from hypothesis import strategies as st

from nnx_conformance.failures import LINES, failure, gist, message_of, muteness
from nnx_conformance.outcomes import Outcome, join, judge
from nnx_conformance.targets import MissingNameError

OWN = {__name__.split(".")[0]}


def caught(function):
    """Returns the exception that a function raises."""
    with pytest.raises(BaseException) as info:  # noqa: PT011
        function()
    return info.value


def undefined():
    return no_such_name  # noqa: F821


def imported():
    import no_such_module  # noqa: F401


def from_elsewhere():
    exec(compile("no_such_name", "target.py", "eval"), {"__name__": "target.inner"})


@pytest.mark.parametrize(
    ("error", "phase", "outcome"),
    [
        (AssertionError(), "call", Outcome.FAIL),
        (RuntimeError(), "call", Outcome.FAIL),
        (NotImplementedError(), "call", Outcome.FAIL),
        (SystemExit(1), "call", Outcome.FAIL),
        (MissingNameError(), "call", Outcome.FAIL),
        (MissingNameError(), "setup", Outcome.FAIL),
        (RuntimeError(), "setup", Outcome.ERROR),
        (AssertionError(), "teardown", Outcome.ERROR),
        (errors.Unsatisfiable(), "call", Outcome.ERROR),
        (errors.FailedHealthCheck(), "call", Outcome.ERROR),
        (errors.InvalidArgument(), "call", Outcome.ERROR),
        (errors.Flaky(), "call", Outcome.ERROR),
        (errors.FlakyFailure("flaky", [AssertionError()]), "call", Outcome.ERROR),
        (ExceptionGroup("two", [AssertionError(), TypeError()]), "call", Outcome.FAIL),
        (ExceptionGroup("two", [AssertionError(), errors.Flaky()]), "call", Outcome.ERROR),
        (NameError(), "call", Outcome.FAIL),
    ],
    ids=repr,
)
def test_judgement(error, phase, outcome):
    assert judge(error, phase, OWN) is outcome


@pytest.mark.parametrize("broken", [undefined, imported])
def test_a_name_that_the_specification_does_not_find_is_its_own_error(broken):
    assert judge(caught(broken), "call", OWN) is Outcome.ERROR


def test_a_name_that_the_target_does_not_find_is_its_failure():
    assert judge(caught(from_elsewhere), "call", OWN) is Outcome.FAIL


def test_no_tests_leave_a_clause_unfinished():
    assert join([]) is Outcome.UNFINISHED


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(outcomes=st.lists(st.sampled_from(Outcome), min_size=1))
def test_joining(outcomes):
    joined = join(outcomes)
    assert joined in outcomes
    assert (joined is Outcome.PASS) == (set(outcomes) == {Outcome.PASS})
    assert (joined is Outcome.ERROR) == (Outcome.ERROR in outcomes)
    assert join(reversed(outcomes)) is joined


def test_a_message_has_no_addresses_and_no_end():
    message = message_of(ValueError(f"{object()} is wrong" + "\nline" * 30))
    assert message.startswith("ValueError: <object object> is wrong\nline")
    assert message.endswith("\n...")
    assert len(message.splitlines()) == LINES + 1


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("<f at 0x7f30a8c2d1d0> is 0x7f30a8c2d1d0", "<f> is 0x..."),
        ("assert not {139847768016752, 94250107432960}", "assert not {<id>, <id>}"),
        ("assert 0xff == 10000000000000 + 1000000000000000", None),
    ],
)
def test_addresses_and_identities_are_left_out(message, told):
    assert message_of(ValueError(message)) == f"ValueError: {told or message}"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("assert False", "says only 'assert False'"),
        ("assert not True", "says only 'assert not True'"),
        ("assert (False or False)", "says only 'assert (False or False)'"),
        ("", "says only ''"),
        (
            "assert False\n +  where False = all(<generator object f at 0x7f30a8>)",
            "says only 'assert False'",
        ),
        ("assert not {139847768016752}", "shows an address"),
        ("assert <object object at 0x7f30a8c2d1d0> is None", "shows an address"),
        ("assert False\n +  where False = isinstance(3, <class 'str'>)", None),
        ("assert not ['left over']", None),
        ("a Variable of the copy is shared: w\nassert False", None),
        ("assert 'Param' == 'Variable'", None),
        ("assert None == 3", None),
        ("assert False == 3", None),
    ],
)
def test_an_assertion_tells_what_was_found(message, complaint):
    error = AssertionError(message)
    assert muteness(error) == complaint
    assert muteness(ExceptionGroup("group", [error])) == complaint


def test_other_errors_are_not_asked_to_tell():
    assert muteness(ValueError("0x7f30a8c2d1d0")) is None


def test_the_gist_of_a_bare_assertion_has_how_it_came_about():
    message = "AssertionError: assert False\n  +  where False = f(3)\n  +    where 3 = g()\nmore"
    assert gist(message) == "\n".join(message.splitlines()[:3])
    assert gist("ValueError: first\n +  where so") == "ValueError: first"


def test_an_example_is_told_without_fixtures():
    error = AssertionError("no")
    error.add_note(
        "Falsifying example: test_it(\n"
        "    self=<t.T object at 0x7f>,\n    nnx=<target t>,\n    n=3,\n)"
    )
    told = failure("test_it", "call", error, parameters="parameters")
    assert told["example"] == "Falsifying example: test_it(\n    n=3,\n)"
    assert told["error"] == "AssertionError: no"


def test_without_an_example_the_parameters_are_told():
    told = failure("test_it", "call", AssertionError(), parameters="1-2")
    assert told["example"] == "1-2"


def test_of_a_group_the_first_is_told():
    group = ExceptionGroup(
        "several", [ExceptionGroup("inner", [ValueError("the one")]), KeyError()]
    )
    assert failure("test_it", "call", group)["error"] == "ValueError: the one"


def test_a_traceback_begins_in_the_specification_and_ends_with_the_error():
    told = failure("test_it", "call", caught(undefined), own=OWN)
    lines = told["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in caught" in lines[1]
    assert lines[-1].startswith("NameError: name 'no_such_name'")
