"""Every interleaving, not a sample. `python -m tests.rules.explorer --depth 8` explores further."""

import pytest

from holdfast.commands import Renew
from holdfast.rules import lock_outcomes as out

from . import explorer
from .hypothesis_settings import SEARCHING

DEPTH = 8 if SEARCHING else 6
OWNERS = 4 if SEARCHING else 3


@pytest.mark.parametrize("permits", [1, 2])
def test_exclusion_holds_in_every_interleaving(permits, capsys):
    report = explorer.explore(owners=OWNERS, permits=permits, depth=explorer.TO_THE_END, trouble=False)
    if SEARCHING:
        with capsys.disabled():
            print(f"\n{OWNERS} owners, {permits} permits, plain, {report}")  # noqa: T201 - a proof shows its size
    assert report.complete
    assert report.depth >= 8
    assert explorer.why_insufficient(report, permits=permits, trouble=False) == ""


@pytest.mark.parametrize("permits", [1, 2])
def test_exclusion_holds_for_three_owners_when_replies_are_lost_and_messages_are_late(permits, capsys):
    report = explorer.explore(owners=3, permits=permits, depth=DEPTH)
    if SEARCHING:
        with capsys.disabled():
            print(f"\n3 owners, {permits} permits, in trouble, {report}")  # noqa: T201 - a proof shows its size
    assert explorer.why_insufficient(report, permits=permits, trouble=True) == ""


def test_a_search_that_is_too_small_is_reported_as_no_proof():
    report = explorer.explore(owners=2, permits=1, depth=4)
    assert "too quiet" in explorer.why_insufficient(report, permits=1, trouble=True)


def test_a_wrong_rule_is_found_with_the_steps_that_lead_to_it(monkeypatch):
    """A rule that renews an expired grant: an owner then believes that it holds, and does not."""

    def lying(self, record, now):
        return record, out.Renewed(floor=record.fence, expires_at=now + self.ttl)

    monkeypatch.setattr(Renew, "apply", lying)
    with pytest.raises(explorer.Broken, match=r"tick -> .*renew [abc]\.1"):
        explorer.explore(owners=2, permits=1, depth=8, trouble=False)
