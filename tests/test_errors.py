"""Every error has a message, both flags and the right base classes, and can be pickled."""

import copy
import inspect
import pickle
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

KINDS = sorted(
    (kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, HoldfastError)),
    key=lambda kind: kind.__name__,
)
SAMPLES = {
    "str": "sample",
    "object": ("any", 7),
    "int": 7,
    "float": 1.5,
    "bool": True,
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "dict[str, int]": {"order": 3},
}


def options(kind):
    """A value for each keyword that the class takes, by its annotation."""
    parameters = inspect.signature(kind).parameters.values()
    taken = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return {parameter.name: SAMPLES[str(parameter.annotation).split(" | ")[0]] for parameter in taken}


def test_there_are_enough_error_classes_for_these_tests():
    assert len(KINDS) >= 15


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("It is away", "It is away."),
        ("It is away.", "It is away."),
        ("It is away: it said no..", "It is away: it said no."),
        ("It is away. ", "It is away."),
        ("Is it away?", "Is it away?"),
    ],
)
def test_a_message_ends_with_one_full_stop(given, printed):
    assert str(HoldfastError(given)) == printed


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling_with_its_message_its_fields_and_its_flags(kind, protocol):
    fields = options(kind)
    error = kind("what happened", **fields)
    error.note_of_mine = "kept"
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is kind
    assert str(back) == str(error) == "what happened."
    assert back.args == error.args
    assert {name: getattr(back, name) for name in fields} == fields
    assert (back.retryable, back.ambiguous) == (error.retryable, error.ambiguous)
    assert back.note_of_mine == "kept"


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_same_error(kind):
    error = kind(**options(kind))
    again = copy.copy(error)
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_message_of_an_error_is_its_docstring(kind):
    assert kind.__doc__
    text = str(kind())
    assert text
    assert "\n" not in text
    if kind is not errors.StaleToken:
        assert text == " ".join(kind.__doc__.split())


@pytest.mark.parametrize("kind", KINDS)
def test_an_errors_docstring_is_a_sentence(kind):
    assert kind.__doc__[0].isupper()
    assert kind.__doc__.rstrip().endswith(".")


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_both_flags(kind):
    assert isinstance(kind().retryable, bool)
    assert kind().ambiguous is False


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.LockTimeout, TimeoutError),
        (errors.QueueFull, errors.LockTimeout),
        (errors.InvalidKey, ValueError),
        (errors.InvalidOption, ValueError),
        (errors.InvalidDuration, errors.InvalidOption),
        (errors.InvalidValue, ValueError),
        (errors.NeverFits, ValueError),
        (errors.StoreContended, errors.StoreUnavailable),
        (errors.StoreUnavailable, errors.StoreError),
        (errors.StoreUnusable, errors.StoreError),
        (errors.StoreNotInstalled, errors.StoreError),
        (errors.RecordUnreadable, errors.StoreError),
    ],
)
def test_an_error_also_has_the_matching_base_class(kind, also):
    assert issubclass(kind, also)


def test_exactly_these_errors_are_retryable():
    assert {kind for kind in KINDS if kind.retryable} == {
        errors.LockTimeout,
        errors.QueueFull,
        errors.StoreContended,
        errors.StoreUnavailable,
        errors.RunLocked,
        errors.RunResultTimeout,
        errors.AtomicStateConflictError,
        errors.WorkflowLimitExceeded,
        errors.WorkflowConcurrencyLimitExceededError,
        errors.WorkflowRateLimitExceeded,
        errors.WorkflowQueueFull,
    }


def test_an_error_is_ambiguous_only_if_it_was_created_so():
    assert errors.StoreUnavailable(ambiguous=True).ambiguous
    assert not errors.StoreUnavailable().ambiguous


def test_a_stale_token_error_names_both_tokens():
    text = str(errors.StaleToken(resource="invoice:42", offered=100, highest=200))
    assert "'invoice:42'" in text
    assert "100" in text
    assert "200" in text
    assert "Nothing was written" in text


def test_a_pickled_error_can_be_caught_in_another_process_by_its_builtin_base():
    error = errors.LockTimeout("busy", key="k", holder="host:1", age=2.5, position=3)
    code = """
import pickle, sys
try:
    raise pickle.load(sys.stdin.buffer)
except TimeoutError as error:
    print(type(error).__name__, error, error.key, error.holder, error.age, error.position, error.retryable)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(error), stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert done.stdout.decode().split() == ["LockTimeout", "busy.", "k", "host:1", "2.5", "3", "True"]
