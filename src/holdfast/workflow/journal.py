"""The entries of a journal: what was delivered to a run, in order.

An entry is JSON text, made for people to read as well. Replaying them in their order to the same code leads to the same
place. `at` is the moment of the delivery on the store's clock, and the time of the workflow from then on.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from ..errors import RecordUnreadable

HASH_BYTES = 8


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong: never an object, only its text. `bases` are the nearest base classes that are Python's own."""

    type: str
    message: str
    traceback: str = ""
    bases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class Entry(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, kw_only=True):
    """The root of all entries."""

    at: int


class Begun(Entry, frozen=True, tag="begun", kw_only=True):
    """When the run was first driven, which is where its time begins. Nothing is delivered by it.

    The store knows that too, until a run is retried by hand and gets all its time again. So it is kept for workflows
    that have a `timeout`, wherever in the journal.
    """


class StepDone(Entry, frozen=True, tag="step", kw_only=True):
    """A step's result. `args` tells whether it was called with the same arguments."""

    id: str
    args: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")


class StepLost(Entry, frozen=True, tag="failed", kw_only=True):
    """A step has failed for good, or a child could not be started."""

    id: str
    args: str = ""
    attempts: int = 1
    child: bool = False
    error: Failure


class Attempted(Entry, frozen=True, tag="attempt", kw_only=True):
    """A step has failed and will be tried again at `again_at`. Nothing is delivered by it."""

    id: str
    attempts: int
    again_at: int
    error: Failure


class TimerEnded(Entry, frozen=True, tag="timer", kw_only=True):
    """A timer has ended."""

    number: int


class Signalled(Entry, frozen=True, tag="signal", kw_only=True):
    """A waiting place has got a signal: the event with this number."""

    id: str
    event: int


class ChildEnded(Entry, frozen=True, tag="child", kw_only=True):
    """A child has ended: the event with this number."""

    id: str
    event: int


class CancelAsked(Entry, frozen=True, tag="cancel", kw_only=True):
    """The run is to be cancelled. Event 0: because its own time is over."""

    event: int


class LockGranted(Entry, frozen=True, tag="lock", kw_only=True):
    """The run got the lock that it asked for by this number."""

    number: int
    key: str
    token: int
    floor: int


class LockRefused(Entry, frozen=True, tag="no-lock", kw_only=True):
    """The run cannot have the lock that it asked for by this number."""

    number: int
    why: Literal["deadlock", "mismatch", "too_heavy"]
    detail: str = ""


class LockLost(Entry, frozen=True, tag="lock-lost", kw_only=True):
    """The run has lost a lock: its lease ran out, or it was taken from it by force."""

    number: int


class LockGiven(Entry, frozen=True, tag="lock-given", kw_only=True):
    """The run has given a lock back. Nothing is delivered by it: it tells where its block ended."""

    number: int


class Left(Entry, frozen=True, tag="left", kw_only=True):
    """The run has ended without having heard of the ends of these children. Nobody tells it of them any more."""

    children: tuple[str, ...]


class BegunAgain(Entry, frozen=True, tag="again", kw_only=True):
    """The workflow has failed and begins again: what was before counts no more. It pauses until `again_at`.

    `children` had not ended. They are cancelled, and the next attempt begins when they have ended.
    """

    again_at: int
    error: Failure
    children: tuple[str, ...] = ()


class AttemptBegun(Entry, frozen=True, tag="attempt-begun", kw_only=True):
    """The next attempt begins, or the first one after a restart. Events up to `seen` belong to earlier attempts."""

    seen: int


AnyEntry = (
    Begun
    | StepDone
    | StepLost
    | Attempted
    | TimerEnded
    | Signalled
    | ChildEnded
    | CancelAsked
    | LockGranted
    | LockRefused
    | LockLost
    | LockGiven
    | Left
    | BegunAgain
    | AttemptBegun
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEntry)
# In one order, whatever a set's or a dict's is: that of a set of texts differs from process to process.
_lenient = msgspec.json.Encoder(enc_hook=lambda value: type(value).__qualname__, order="deterministic")


def encode_entry(entry: AnyEntry) -> str:
    """Write an entry."""
    return _encoder.encode(entry).decode()


def decode_entry(text: str) -> AnyEntry:
    """Read an entry."""
    try:
        entry: AnyEntry = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(
            f"an entry of a journal cannot be read ({error}). It was left untouched. It may be damaged, or written by "
            "a newer version of Holdfast."
        ) from error
    return entry


class Ended(msgspec.Struct, frozen=True):
    """What a parent hears of a child's end."""

    status: str
    result: msgspec.Raw


_ended = msgspec.json.Decoder(Ended)
_failure = msgspec.json.Decoder(Failure)


def read_end(payload: str) -> Ended:
    """Read what a parent hears of a child's end."""
    return _ended.decode(payload)


def read_failure(text: str | bytes | msgspec.Raw) -> Failure:
    """Read what went wrong; what cannot be read is shown as it is."""
    try:
        return _failure.decode(text)
    except msgspec.MsgspecError:
        return Failure("Unknown", text if isinstance(text, str) else bytes(text).decode(errors="replace"))


def write_failure(failure: Failure) -> str:
    """Write what went wrong."""
    return _encoder.encode(failure).decode()


def arguments_hash(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Tell calls apart by their arguments; what cannot be written is told apart by its type alone."""
    if not args and not options:
        return ""
    try:
        text = _lenient.encode((args, options) if options else args)
    except Exception:  # a value that is not even made for it: it is not told apart
        return "?"
    return hashlib.blake2b(text, digest_size=HASH_BYTES).hexdigest()
