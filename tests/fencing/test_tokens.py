"""Which values are accepted as tokens."""

from types import SimpleNamespace

import pytest

from holdfast.errors import HoldfastError, InvalidOption
from holdfast.fencing.tokens import MAX_TOKEN, checked_offer


def test_a_bare_token_is_its_own_floor():
    assert checked_offer(7) == (7, 7)


def test_the_floor_of_a_lease_is_used():
    assert checked_offer(SimpleNamespace(token=9, floor=4)) == (9, 4)


@pytest.mark.parametrize("lost", [True, False])
def test_a_lost_lease_is_still_compared_by_its_token(lost):
    assert checked_offer(SimpleNamespace(token=9, floor=9, valid=not lost)) == (9, 9)


@pytest.mark.parametrize("wrong", [True, False, 0, -1, MAX_TOKEN + 1])
def test_a_number_that_cannot_be_a_token_is_refused(wrong):
    with pytest.raises(InvalidOption, match="whole number"):
        checked_offer(wrong)


@pytest.mark.parametrize("wrong", ["7", 7.0, None, object()])
def test_an_object_that_is_neither_lease_nor_token_is_refused_with_what_is_accepted(wrong):
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
