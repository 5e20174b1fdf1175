"""Writes the journal of one run: collects the entries that are not stored yet, and sends one record at a time.

Entries are written in the order of their delivery, after the check of the run's fence. A record whose outcome is
unknown is sent again unchanged; the store recognises it by its request id. A barrier states what must be stored
before an effect begins. The driver decides what is delivered, and when a record is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from ..commands.runs import RecordRun
from ..errors import HoldfastError, StoreUnavailable
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import Recorded
from ..rules.runs.record import Ending, Run
from . import journal as j
from .driver_host import RETRY_SECONDS, DriverHost
from .replay import Replay
from .step_heartbeats import StepHeartbeats

Barrier = tuple[int, int]
"""An effect begins when so many journal entries and so many writes of children and attributes are stored."""


class Recorder:
    """The records of one run that is driven here."""

    def __init__(
        self,
        host: DriverHost,
        code: Replay,
        run: Run,
        recorded: Callable[[RecordRun, Recorded], None],
        refused: Callable[[Outcome | HoldfastError], None],
        *,
        heartbeats: StepHeartbeats,
    ) -> None:
        """`recorded` is called when a record was stored, `refused` when the store refuses one."""
        self._host, self._code, self._recorded, self._refused = host, code, recorded, refused
        self._heartbeats = heartbeats
        self._run_id, self._fence = run.id, run.fence
        self._left = False
        self._unsent: list[str] = []  # entries that were delivered and are in no record yet
        self._kept = ""  # the entry that `discard` keeps
        self._delivered = self._durable = run.length  # number of entries
        self._written = self._floor = 0  # writes of children and attributes: stored; required by every barrier
        self._polls = self._polls_sent = 0  # requests to read events with a record: made; sent
        self._polled = 0  # the last timer of length 0 before whose end new events were read
        # The number of events that the run had seen when it last reported that it is stuck; -1: it did not.
        self._stuck_at = -1 if run.stuck is None else run.stuck.seen
        self._count = 0
        self._mark = secrets.token_hex(4)  # one worker may drive a run twice under one fence: request ids must differ
        self._under_way: RecordRun | None = None
        self._writing = self._polling = 0  # the new `_written` and `_polled` when the record under way is answered
        self.sent_at = 0.0
        """When the last record was sent."""

    @property
    def under_way(self) -> RecordRun | None:
        """The record that was sent and has no answer yet."""
        return self._under_way

    @property
    def length(self) -> int:
        """The number of entries that the journal has in the store."""
        return self._durable

    @property
    def polled(self) -> int:
        """The last timer of length 0 before which new events were read: it may end now."""
        return self._polled

    @property
    def last_immediate(self) -> int:
        """The last timer of length 0. Before it ends, new events are read with a record, which may be empty."""
        return max(self._code.loop.immediate, default=0)

    @property
    def has_content(self) -> bool:
        """Whether there is something to record, or events are to be read."""
        code = self._code
        if self._unsent or code.unstarted or code.replay_locks.lock_requests:
            return True
        if code.attributes is not None or code.details is not None or code.requests.has_content:
            return True
        if code.streams.has_unsent or self._heartbeats.has_ends:
            return True
        return self.last_immediate > self._polled or self._polls > self._polls_sent

    def append(self, entry: j.AnyEntry, *, keep: bool = False) -> str:
        """Put an entry into the next record; returns its text. With `keep`, `discard` does not remove it."""
        if isinstance(entry, j.BegunAgain | j.Left):  # no note comes between them and the end of the attempt
            self._note_streams()
        text = j.encode_entry(entry)
        self._unsent.append(text)
        self._delivered += 1
        if keep:
            self._kept = text
        return text

    def _note_streams(self) -> None:
        """Note how many items the code has written to its streams."""
        for note in self._code.streams.notes(self._host.now()):
            self._unsent.append(j.encode_entry(note))
            self._delivered += 1

    def poll(self) -> None:
        """Read new events with the next record, which may be empty."""
        self._polls += 1

    def discard(self) -> None:
        """Remove the entries that are in no record yet, because the run fails."""
        self._unsent = [entry for entry in self._unsent if entry is self._kept]
        under_way = 0 if self._under_way is None else len(self._under_way.entries)
        self._delivered = self._durable + under_way + len(self._unsent)
        self._floor = 0
        self._code.streams.discard()

    def leave(self) -> None:
        """Send nothing more, and ignore late answers."""
        self._left = True

    # -- barriers ---------------------------------------------------------------------------------------

    def barrier(self) -> Barrier:
        """What must be stored before an effect that is requested now begins: all that was delivered or requested."""
        return self._delivered, self._code.writes

    def reached(self, barrier: Barrier) -> bool:
        """Whether everything up to this barrier is stored."""
        delivered, writes = barrier
        return delivered <= self._durable and max(writes, self._floor) <= self._written

    def require_writes(self) -> None:
        """From now on every barrier includes the writes that were requested until now."""
        self._floor = self._code.writes

    def writes_are_stored(self) -> None:
        """After a replay: everything that the code requested is in the store already."""
        self._written = self._code.writes

    def children_under_way(self) -> dict[str, Barrier]:
        """The children that the record under way starts, each with the barrier at which it is stored."""
        children = () if self._under_way is None else (new.id for new in self._under_way.children)
        return dict.fromkeys(children, (0, self._writing))

    # -- stuck runs -------------------------------------------------------------------------------------

    def reported_stuck(self, seen: int) -> bool:
        """Whether the store knows that the run is stuck after so many events."""
        return self._stuck_at == seen

    def forget_stuck(self) -> None:
        """The store does not count the run as stuck."""
        self._stuck_at = -1

    # -- records ----------------------------------------------------------------------------------------

    def send(self, *, seen: int, then: Ending | None, stuck: tuple[str, ...] | None) -> None:
        """Send a record with everything that is not stored yet. `then` parks or ends the run."""
        code = self._code
        if code.preface is not None:
            self._unsent.insert(0, j.encode_entry(code.preface))
            self._delivered += 1
            code.preface = None
        self._note_streams()
        entries, self._unsent = tuple(self._unsent), []
        children, code.unstarted = tuple(code.unstarted), []
        attributes, code.attributes = code.attributes, None
        details, code.details = code.details, None
        lock_requests = tuple(code.replay_locks.lock_requests.values())
        code.replay_locks.lock_requests.clear()
        self._writing, self._polling = code.writes, self.last_immediate
        self._polls_sent = self._polls
        self._stuck_at = -1 if stuck is None else seen
        self.sent_at = elapsed()
        self._under_way = RecordRun(
            run=self._run_id,
            fence=self._fence,
            at=self._durable,
            request=self._next_request(),
            entries=entries,
            seen=seen,
            then=then,
            children=children,
            attributes=attributes,
            details=details,
            lock_requests=lock_requests,
            stuck=stuck,
            streams=code.streams.take(self._host.max_stream_bytes),
            requests=code.requests.take(),
            attempt_ends=self._heartbeats.take(),
        )
        self._host.send(self._under_way, self._answered)

    def transaction(self, seen: int) -> RecordRun:
        """The record of a transaction, which adds its own entry. Until it has ended, nothing else may be sent."""
        self._stuck_at = -1
        return RecordRun(run=self._run_id, fence=self._fence, at=self._durable, request=self._next_request(), seen=seen)

    def transaction_recorded(self) -> None:
        """The entry of a transaction was stored."""
        self._durable += 1
        self._delivered += 1

    def _next_request(self) -> str:
        self._count += 1
        return f"{self._fence}.{self._mark}.{self._count}"

    def _answered(self, answer: Outcome | HoldfastError) -> None:
        command = self._under_way
        if self._left or command is None:
            return
        if isinstance(answer, StoreUnavailable):  # sent again unchanged: it is recognised if it was executed
            self._host.emit("record_failed", run=self._run_id, error=str(answer))
            self._host.later(RETRY_SECONDS, self._send_again)
        elif isinstance(answer, Recorded):
            self._under_way = None
            self._durable += len(command.entries)
            self._written, self._polled = max(self._written, self._writing), max(self._polled, self._polling)
            self._recorded(command, answer)
        else:
            self._refused(answer)

    def _send_again(self) -> None:
        if self._under_way is not None and not self._left:
            self._host.send(self._under_way, self._answered)
