"""Random histories: the outcomes and the stored records are exactly those of the pure rules."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from ... import commands as c
from ...rules.lock_record import LockRecord
from ..builders import read
from ..lock_histories import LockHistoryGenerator, LockModel
from .comparison import CHUNKS, HistoryComparison

EVERY_ANSWER = {
    "Granted", "Queued", "Busy", "Renewed", "Released", "Abandoned", "Transferred", "NotHolder", "TargetHolds",
    "Mismatch", "TooHeavy", "Gone", "ForceReleased", "Settled", "LockSeen", "LockPage", "Swept", "SlotSeen", "Swapped",
    "Conflict", "PassedOver",
}  # fmt: skip


class HistoryTests(HistoryComparison):
    """Comparison with the rules: commands, re-sent commands, slots, and steps of the clock."""

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_a_random_history_has_the_outcomes_and_records_of_the_rules(self, chunk: int) -> None:
        kinds: set[str] = set()
        for seed in self.chunk_of_seeds(chunk):
            name, model = f"history-{seed}", LockModel()
            generator = LockHistoryGenerator(seed, second=self.second, listens=not self.notices)
            kinds |= self.compare_history(name, model, generator, partial(_final_reads, model))
            stored = self.dump(self.address, name)
            assert stored is None or _unversioned(stored) == _unversioned(model.records), f"{name}, as stored"
        self.seen_all(kinds, EVERY_ANSWER)


def _unversioned(records: dict[str, LockRecord]) -> dict[str, LockRecord]:
    return {key: replace(record, version=0) for key, record in records.items()}


def _final_reads(model: LockModel) -> list[c.Command]:
    return [c.ListLocks(limit=1000), *(read(address) for address in model.slots)]
