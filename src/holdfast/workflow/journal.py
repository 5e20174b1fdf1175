"""The entries of a journal: everything that was delivered to a run, in order.

An entry is readable JSON text. If the entries are delivered in their order to the same code, the code reaches the
same state. `at` is the time of the delivery on the store's clock, and the workflow's time until the next delivery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ..errors import RecordUnreadable
from ..rules.runs.record import without_generation

HASH_BYTES = 8


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception as text, never as an object. `bases` are its nearest base classes that are built into Python."""

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
    """When the run was first driven, which is when its time begins. It delivers nothing.

    The store knows this time too, until a run is retried by hand and its timeout begins again. So the entry is written
    for workflows that have a `timeout`, at any position in the journal.
    """


class StepDone(Entry, frozen=True, tag="step", kw_only=True):
    """A step's result. `args` is a hash of its arguments, to check that they are the same in a replay."""

    id: str
    args: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")


class StepLost(Entry, frozen=True, tag="failed", kw_only=True):
    """A step has failed and is not retried, or a child could not be started."""

    id: str
    args: str = ""
    attempts: int = 1
    child: bool = False
    error: Failure


class Attempted(Entry, frozen=True, tag="attempt", kw_only=True):
    """A step has failed and is retried at `again_at`. It delivers nothing."""

    id: str
    attempts: int
    again_at: int
    error: Failure


class TimerEnded(Entry, frozen=True, tag="timer", kw_only=True):
    """A timer has ended."""

    number: int


class Signalled(Entry, frozen=True, tag="signal", kw_only=True):
    """The code has received a signal, an update, or the answer to an approval: the event with this number.

    `id` is the wait that received it. Its beginning says what it is: `signal:`, `update:` or `approval:`.
    """

    id: str
    event: int


class Unread(Entry, frozen=True, tag="unread", kw_only=True):
    """The code could not read what it received: a signal, or the result of a child. It raised `InvalidValue`.

    It delivers nothing. Where this entry is missing, code that cannot read the same value does not fit the history.
    """

    id: str


class Replied(Entry, frozen=True, tag="replied", kw_only=True):
    """The code has answered an update: the event with this number. It delivers nothing.

    `answer` is JSON, or the reason why it was refused.
    """

    event: int
    answer: str
    refused: bool = False


class ApprovalAsked(Entry, frozen=True, tag="approval-asked", kw_only=True):
    """The code has asked for an approval with this id. It delivers nothing. `data` is JSON."""

    id: str
    data: str = "null"


class ChildEnded(Entry, frozen=True, tag="child", kw_only=True):
    """A child has ended: the event with this number."""

    id: str
    event: int


class CancelAsked(Entry, frozen=True, tag="cancel", kw_only=True):
    """The run is to be cancelled. Event 0: because its timeout has expired."""

    event: int


class LockGranted(Entry, frozen=True, tag="lock", kw_only=True):
    """The run got the lock that it requested with this number."""

    number: int
    key: str
    token: int
    floor: int


class LockRefused(Entry, frozen=True, tag="no-lock", kw_only=True):
    """The run cannot get the lock that it requested with this number."""

    number: int
    why: Literal["deadlock", "mismatch", "too_heavy"]
    detail: str = ""


class LockLost(Entry, frozen=True, tag="lock-lost", kw_only=True):
    """The run has lost a lock: its lease expired, or it was released by force."""

    number: int


class LockGiven(Entry, frozen=True, tag="lock-given", kw_only=True):
    """The run has released a lock. It delivers nothing: it marks where the block ended."""

    number: int


class Left(Entry, frozen=True, tag="left", kw_only=True):
    """The run has ended before these children. Their ends are not delivered to it any more."""

    children: tuple[str, ...]


class BegunAgain(Entry, frozen=True, tag="again", kw_only=True):
    """The workflow has failed and is retried: earlier entries do not count any more. It pauses until `again_at`.

    `children` had not ended. They are cancelled, and the next attempt begins when they have ended.
    """

    again_at: int
    error: Failure
    children: tuple[str, ...] = ()


class AttemptBegun(Entry, frozen=True, tag="attempt-begun", kw_only=True):
    """The next attempt begins, or the first one after a restart. Events up to `seen` belong to earlier attempts."""

    seen: int


class CarriedLock(msgspec.Struct, frozen=True, array_like=True):
    """A lock that the run has kept from an earlier generation: the number of its request, and what was requested."""

    number: int
    key: str
    kind: str
    weight: int = 1
    ttl: int | None = None


class Continued(Entry, frozen=True, tag="continued", kw_only=True):
    """The second entry of a generation that follows another one. It delivers nothing.

    `because` the workflow asked for it, or returned with unread signals. `signals` are the events with which the
    generation begins, `children` those that earlier generations have started and that had not ended; of these,
    `abandoned` and `cancelled` were started with that `on_parent_end`. The numbers of its requests for locks are higher
    than `first_lock`, except for `locks`, which keep theirs.
    """

    because: Literal["asked", "unread"] = "asked"
    signals: tuple[int, ...] = ()
    children: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    locks: tuple[CarriedLock, ...] = ()
    first_lock: int = 0


class Patched(Entry, frozen=True, tag="patch", kw_only=True):
    """The run takes the new branch of `ctx.patched(name)`. It delivers nothing."""

    name: str


class Streamed(Entry, frozen=True, tag="streamed", kw_only=True):
    """This attempt of the workflow has written so many items to a stream. It delivers nothing."""

    name: str
    count: int


class Forked(Entry, frozen=True, tag="forked", kw_only=True):
    """This run is a fork: the next `kept` entries are those of another run, up to the step `step`. It delivers nothing.

    `runs` are that run in its generation, and those of which it is a fork itself: children in `children` have ended
    under ids that begin with one of them, and are not started again. `seed` and `began` are those of the other run, so
    that its random numbers and times are the same. `at` is the same as `began`. `continued` is how the generation of
    the other run began, without its children and signals.
    """

    runs: tuple[str, ...]
    step: str = ""
    seed: str
    began: int
    kept: int
    children: tuple[str, ...] = ()
    continued: Continued | None = None

    @property
    def origin(self) -> str:
        """The run of which this one is a fork."""
        return without_generation(self.runs[0])


AnyEntry = (
    Begun
    | StepDone
    | StepLost
    | Attempted
    | TimerEnded
    | Signalled
    | Unread
    | Replied
    | ApprovalAsked
    | ChildEnded
    | CancelAsked
    | LockGranted
    | LockRefused
    | LockLost
    | LockGiven
    | Left
    | BegunAgain
    | AttemptBegun
    | Continued
    | Patched
    | Forked
    | Streamed
)

_FIRST = '{"kind":"continued",', '{"kind":"forked",'
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEntry)
# In a fixed order: the order of a set of strings differs from process to process.
_lenient = msgspec.json.Encoder(enc_hook=lambda value: type(value).__qualname__, order="deterministic")


def encode_entry(entry: AnyEntry) -> str:
    """Encode an entry."""
    return _encoder.encode(entry).decode()


def decode_entry(text: str) -> AnyEntry:
    """Decode an entry."""
    try:
        entry: AnyEntry = _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(
            f"an entry of a journal cannot be read ({error}). It was not changed. It may be damaged, or written by a "
            "newer version of Holdfast: then upgrade this process."
        ) from error
    return entry


def continued_entry(texts: Sequence[str]) -> Continued | None:
    """The entry with which a generation after the first one begins, read from its journal."""
    if len(texts) < 2 or not texts[1].startswith(_FIRST):  # noqa: PLR2004
        return None
    entry = decode_entry(texts[1])
    return entry.continued if isinstance(entry, Forked) else entry if isinstance(entry, Continued) else None


def beginning(texts: Sequence[str]) -> int:
    """How many entries a journal begins with before anything has happened: the input, and how the generation began.

    A restart removes what a fork has from another run.
    """
    return 2 if len(texts) > 1 and texts[1].startswith(_FIRST[0]) else 1


class Ended(msgspec.Struct, frozen=True):
    """The end of a child, as its parent receives it."""

    status: str
    result: msgspec.Raw


_ended = msgspec.json.Decoder(Ended)
_failure = msgspec.json.Decoder(Failure)


def read_end(payload: str) -> Ended:
    """Decode the end of a child."""
    return _ended.decode(payload)


def read_failure(text: str | bytes | msgspec.Raw) -> Failure:
    """Decode a failure; text that cannot be decoded becomes the message."""
    try:
        return _failure.decode(text)
    except msgspec.MsgspecError:
        return Failure("Unknown", text if isinstance(text, str) else bytes(text).decode(errors="replace"))


def write_failure(failure: Failure) -> str:
    """Encode a failure."""
    return _encoder.encode(failure).decode()


def arguments_hash(args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """A hash of the arguments of a call. Of values that cannot be encoded, only the type counts."""
    if not args and not options:
        return ""
    try:
        text = _lenient.encode((args, options) if options else args)
    except Exception:  # a value that raises while it is encoded: such arguments are not compared
        return "?"
    return hashlib.blake2b(text, digest_size=HASH_BYTES).hexdigest()
