"""A `RecordSource` for Redis: one script reads the records for a decision, another one writes the changes.

The second script writes only if everything that the decision depends on is still as it was read (`write.lua`). If
another client was faster, everything is read and decided again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import msgspec
import redis.exceptions

from ...commands import Command
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.runs.record import Run, worker_key
from ..batch_view import FEW
from ..common import woken_among
from ..contract import Clock
from ..questions import Changes, LockByKey, Members, Question, RegisteredWorkers, RunById, Snapshot
from ..repository import BatchRepository
from .connection import RedisLink
from .keys import Layout
from .lists import Lists
from .reading import Commands, ReadRefused, RedisReader
from .scripts import READ, WRITE
from .writing import Known, RedisWriter

MOST_GUESSES = 5_000
"""How many runs and queues a connection remembers, to read in one step what the end of a run will need."""
PAUSE = 0.002
"""The longest delay in seconds before the second try after another client was faster; later delays are longer."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[int, list[Any]]).decode
_written = msgspec.msgpack.Decoder(list[Any]).decode


class LikelyReads(Snapshot):
    """Runs whose end affects other runs, and heads of queues, as this connection last read them."""

    def note(self, run: Run) -> None:
        """Note a run that was read or written."""
        if run.living and (run.places or run.locks or run.parent):
            if len(self._answers) >= MOST_GUESSES:
                self._answers.clear()
            self.put(RunById(run.id), run)
        else:
            self._answers.pop(RunById(run.id), None)

    def __contains__(self, run: object) -> bool:
        return type(run) is str and RunById(run) in self._answers


class RedisSource:
    """The records of one namespace, by one connection."""

    def __init__(self, link: RedisLink, layout: Layout, clock: Clock | None) -> None:
        self._link, self._layout, self._clock = link, layout, clock
        self._reading = RedisReader(layout)
        self._writing = RedisWriter(layout, self._reading)
        self._lists = Lists(layout, self.ask)
        self._workers: tuple[str, ...] = ()  # as last read: their leases are read in the same step
        self.guesses: LikelyReads = LikelyReads(0)
        self._known: Known = {}
        self._plain = False  # whether something that was read for this decision is not text
        self._tries = 0
        self.began = False
        """Whether something of this batch may have been written."""
        self.unheard: list[str] = []
        """The attempts whose hints no process received."""

    def begin(self) -> None:
        """Begin a batch."""
        self.began, self._tries, self.unheard = False, 0, []

    def ask(self, commands: Commands, *, changing: bool = False) -> tuple[int, list[Any]]:
        """The time of the server, and its replies to these commands, all in one step."""
        arguments = (_pack(commands), self._time(), b"0" if changing else b"1")
        reply = self._link.call(READ, *arguments)
        try:
            return _unpack(reply)
        except (msgspec.MsgspecError, UnicodeError):  # a reply contains something that is not text
            self._plain = True
            now, replies = self._link.call(READ, *arguments, b"1")
            return int(now), [_decoded(reply) for reply in replies]

    def _time(self) -> bytes:
        return b"" if self._clock is None else b"%d" % self._clock()

    def read(self, questions: Collection[Question], *, changing: Collection[Question]) -> Snapshot:
        """Read the answers in one step."""
        wanted = dict.fromkeys(questions)
        if RegisteredWorkers() in wanted:
            wanted.update(dict.fromkeys(LockByKey(worker_key(worker)) for worker in self._workers))
        reading, self._plain = self._reading, False
        asked = [reading.commands(question) for question in wanted]
        now, replies = self.ask(list(chain.from_iterable(asked)), changing=bool(changing))
        snapshot, self._known = Snapshot(now), {}
        self._writing.begin()
        left = iter(replies)
        try:
            for question, commands in zip(wanted, asked, strict=True):
                some = list(islice(left, len(commands)))
                self._known[question] = commands, some
                answer = reading.answer(question, some)
                snapshot.put(question, answer)
                if isinstance(answer, Run):
                    self.guesses.note(answer)
                elif isinstance(question, Members) and question.queued and not isinstance(answer, Exception):
                    self.guesses.put(Members(None, question.group, queued=True), answer[:FEW])
        except ReadRefused as refused:
            raise self._link.refused(redis.exceptions.ResponseError(str(refused))) from None
        if RegisteredWorkers() in wanted:
            with suppress(RecordUnreadable):
                self._workers = tuple(worker.id for worker in snapshot.get(RegisteredWorkers()))
        return snapshot

    def write(self, repository: BatchRepository, hints: Sequence[str], woken: Sequence[str]) -> bool:
        """Write the changes if nothing was changed in between, and notify the waiters."""
        writes = self._writing.writes(repository, self._known)
        names = dict.fromkeys(command[2] if command[0] == "UNLESS" else command[0] for command in writes)
        messages = [
            (self._layout.channel(channel), "\n".join(ids)) for channel, ids in woken_among((*woken, *hints)).items()
        ]
        checks = self._writing.checks(repository, self._known)
        if self._plain:
            checks = _packable(checks)
        payload = _pack((checks, list(names), writes, messages))
        reply = self._link.call(WRITE, payload, self._time(), b"%d" % repository.now)
        failed, *heard = _written(reply)
        if failed:
            self._tries += 1
            if self._tries > 1:
                time.sleep(random.uniform(0, PAUSE * min(self._tries, 10)))
            return False
        self.began, self._tries = True, 0
        for run in repository.changes.runs.values():
            self.guesses.note(run)
        self.unheard += [
            attempt
            for (_, message), receivers in zip(messages, heard[0], strict=True)
            if receivers == 0
            for attempt in message.split("\n")
        ]
        return True

    def check(self, changes: Changes) -> None:
        """Raise for what cannot be stored."""
        self._writing.check(changes)

    def undo(self) -> None:
        """Nothing to undo: nothing is locked between a read and a write."""

    def scan(self, command: Command) -> Outcome:
        """Answer a list."""
        try:
            return self._lists.answer(command)
        except ReadRefused as refused:
            raise self._link.refused(redis.exceptions.ResponseError(str(refused))) from None


def _packable(value: Any) -> Any:
    """The same value with bytes encoded as texts are: the server's Lua has only one string type."""
    if isinstance(value, bytes):
        return msgspec.Raw(b"\xdb%s%s" % (len(value).to_bytes(4, "big"), value))
    return [_packable(part) for part in value] if isinstance(value, list | tuple) else value


def _decoded(reply: Any) -> Any:
    """A plain reply, decoded; bytes that are not valid text stay bytes and count as unreadable."""
    if isinstance(reply, list):
        return [_decoded(part) for part in reply]
    if isinstance(reply, bytes):
        try:
            return reply.decode()
        except UnicodeDecodeError:
            return reply
    return False if reply is None else reply
