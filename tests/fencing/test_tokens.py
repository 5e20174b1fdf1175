"""What is and is not a token."""

from types import SimpleNamespace

import pytest

from holdfast.errors import HoldfastError, InvalidOption
from holdfast.fencing.tokens import MAX_TOKEN, checked_offer


def test_a_bare_token_is_its_own_floor():
    assert checked_offer(7) == (7, 7)


def test_a_lease_brings_its_floor():
    assert checked_offer(SimpleNamespace(token=9, floor=4)) == (9, 4)


@pytest.mark.parametrize("lost", [True, False])
def test_a_lease_that_is_known_to_be_lost_is_judged_by_its_token_all_the_same(lost):
    assert checked_offer(SimpleNamespace(token=9, floor=9, valid=not lost)) == (9, 9)


@pytest.mark.parametrize("wrong", [True, False, 0, -1, MAX_TOKEN + 1])
def test_a_number_that_cannot_be_a_token_is_refused(wrong):
    with pytest.raises(InvalidOption, match="whole number"):
        checked_offer(wrong)


@pytest.mark.parametrize("wrong", ["7", 7.0, None, object()])
def test_what_is_neither_lease_nor_token_is_refused_and_told_what_is(wrong):
    with pytest.raises(InvalidOption, match=r"a lease .* or its token"):
        checked_offer(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        SimpleNamespace(token="9", floor=1),
        SimpleNamespace(token=9, floor=True),
        SimpleNamespace(token=9, floor=None),
        SimpleNamespace(token=9, floor=10),
    ],
)
def test_a_lease_with_an_impossible_token_or_floor_is_refused(wrong):
    with pytest.raises(InvalidOption) as caught:
        checked_offer(wrong)
    assert isinstance(caught.value, HoldfastError)
    assert isinstance(caught.value, ValueError)
