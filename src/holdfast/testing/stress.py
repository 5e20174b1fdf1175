"""Concurrent load on one store, from threads or processes: a counter in a slot, and turns at a mutex."""

from __future__ import annotations

import time
from pathlib import Path

from ..commands import Command, Failed
from ..errors import StoreContended
from ..rules import lock_outcomes as out
from ..rules.slot import Conflict, SlotSeen, Swapped
from ..stores.contract import Connection, Store
from .builders import read, release, swap, wait

PAUSE = 0.001
PATIENCE = 60.0


def count(store: Store, me: str, times: int, patience: float = PATIENCE) -> int:
    """Add one to a number in a slot so many times. Returns the number of conflicts."""
    give_up = time.monotonic() + patience
    connection = store.connect("commands")
    try:
        outcome = _sent(connection, read(), give_up)
        done = conflicts = 0
        while done < times:
            if not isinstance(outcome, SlotSeen | Conflict):
                raise AssertionError(f"expected SlotSeen or Conflict, got {outcome}")  # noqa: TRY004
            command = swap(f"{me}.{done + conflicts}", outcome.last, outcome.version, str(int(outcome.value or 0) + 1))
            time.sleep(PAUSE / 10)  # long enough for another writer to be faster
            answer = _sent(connection, command, give_up)
            if isinstance(answer, Swapped):
                done += 1
                outcome = SlotSeen(version=answer.version, last=command.request, value=command.value)
            else:
                conflicts += 1
                outcome = answer
                _check(give_up, f"{done} of {times} writes within {patience:g} s; {conflicts} conflicts")
        return conflicts
    finally:
        connection.close()


def take_turns(store: Store, me: str, times: int, ledger: Path, patience: float = PATIENCE) -> None:
    """Acquire a mutex so many times. While it is held, read a file and write it back with one more line."""
    give_up = time.monotonic() + patience
    connection = store.connect("commands")
    try:
        for turn in range(times):
            attempt = f"{me}.{turn}"
            while True:
                outcome = _sent(connection, wait("turns", attempt, ttl=60), give_up)
                if isinstance(outcome, out.Granted):
                    break
                _check(give_up, f"{attempt} was not granted the mutex within {patience:g} s: {outcome}")
                time.sleep(PAUSE)
            lines = ledger.read_text().splitlines()
            time.sleep(PAUSE)  # long enough for another holder to enter, if the lock failed
            ledger.write_text("\n".join([*lines, f"{outcome.token} {attempt}"]) + "\n")
            _sent(connection, release("turns", attempt, token=outcome.token), give_up)
    finally:
        connection.close()


def _sent(connection: Connection, command: Command, give_up: float) -> out.Outcome:
    """Send a command. It is sent again after `StoreContended`: nothing was done, because its row was in use."""
    while True:
        (outcome,) = connection.execute([command])
        if not (isinstance(outcome, Failed) and isinstance(outcome.error, StoreContended)):
            return outcome
        _check(give_up, f"the row was in use by others for the whole time: {outcome}")


def _check(give_up: float, message: str) -> None:
    if time.monotonic() >= give_up:
        raise AssertionError(message)


def check_ledger(ledger: Path, expected: int) -> None:
    """Check that every turn left its line, and that tokens increase from line to line."""
    tokens = [int(line.split()[0]) for line in ledger.read_text().splitlines()]
    if len(tokens) != expected:
        raise AssertionError(f"{expected} turns left {len(tokens)} lines: two holders were inside at once")
    if tokens != sorted(set(tokens)):
        raise AssertionError(f"tokens do not increase from one holder to the next: {tokens}")
