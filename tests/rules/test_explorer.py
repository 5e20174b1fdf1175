"""Every interleaving, not a sample of them. `python -m tests.rules.explorer --depth 8` goes deeper."""

import pytest

from holdfast.commands import Renew
from holdfast.rules import lock_outcomes as out

from . import explorer
from .proof import SEARCHING

DEPTH = 8 if SEARCHING else 6
OWNERS = 4 if SEARCHING else 3


@pytest.mark.parametrize("permits", [1, 2])
def test_owners_are_safe_in_every_interleaving_that_there_is(permits, capsys):
    report = explorer.explore(owners=OWNERS, permits=permits, depth=explorer.TO_THE_END, trouble=False)
    if SEARCHING:
        with capsys.disabled():
            print(f"\n{OWNERS} owners, {permits} permits, plain, {report}")  # noqa: T201 - a proof shows its size
    assert report.complete
    assert report.depth >= 8
    assert explorer.too_quiet(report, permits=permits, trouble=False) == ""


@pytest.mark.parametrize("permits", [1, 2])
def test_three_owners_are_safe_when_replies_are_lost_and_messages_are_late(permits, capsys):
    report = explorer.explore(owners=3, permits=permits, depth=DEPTH)
    if SEARCHING:
        with capsys.disabled():
            print(f"\n3 owners, {permits} permits, in trouble, {report}")  # noqa: T201 - a proof shows its size
    assert explorer.too_quiet(report, permits=permits, trouble=True) == ""


def test_a_search_that_hardly_looks_is_no_proof():
    report = explorer.explore(owners=2, permits=1, depth=4)
    assert "too quiet" in explorer.too_quiet(report, permits=1, trouble=True)


def test_a_rule_that_lies_is_found_out_with_the_way_there(monkeypatch):
    """Renewing what has ended says yes: an owner that believes it does not hold."""

    def lying(self, record, now):
        return record, out.Renewed(floor=record.fence, expires_at=now + self.ttl)

    monkeypatch.setattr(Renew, "apply", lying)
    with pytest.raises(explorer.Broken, match=r"tick -> .*renew [abc]\.1"):
        explorer.explore(owners=2, permits=1, depth=8, trouble=False)
