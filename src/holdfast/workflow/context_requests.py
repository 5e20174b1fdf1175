"""`ctx.updates` and `ctx.approve`: requests that workflow code answers, and requests that people answer.

Both are events in the inbox of the run, so they are received and replayed in the order in which they were journaled.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from ..errors import InvalidKey, InvalidValue
from ..rules.runs.record import RunEvent, generation_id, without_generation
from ..rules.runs.requests import NewApproval
from ..runtime.codec import encode_message, encode_value
from ..validation import MICROSECONDS, Duration, checked_key, seconds, time_of
from .definition import checked_name

if TYPE_CHECKING:
    from .replay import Replay

T = TypeVar("T")

DETAILS_BYTES = 65_536
"""The largest size of the details of a run, as JSON."""


LONGEST_TEXT = 2_000
"""How many characters the comment of an approval and the reason of a refused update have at most."""


def checked_text(text: str, *, what: str) -> str:
    """A text that a person reads, as it is stored. Raises `InvalidValue`."""
    if not isinstance(text, str):
        raise InvalidValue(f"{what} must be text, not {type(text).__name__}: nothing was answered")
    if len(text) > LONGEST_TEXT:
        raise InvalidValue(
            f"{what} has {len(text)} characters, and may have {LONGEST_TEXT}: nothing was answered. Store long texts "
            "elsewhere, and name their place"
        )
    encode_value(text, what=what)
    return text


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a person to a request of a run."""

    approved: bool
    by: str
    comment: str
    at: datetime


class _Answer(msgspec.Struct, frozen=True):
    approved: bool
    by: str
    comment: str


_read_answer = msgspec.json.Decoder(_Answer).decode


class UpdateRequest(Generic[T]):
    """A request to this run. Its sender waits until the run calls `reply` or `refuse`, once."""

    def __init__(self, code: Replay, event: RunEvent, payload: T) -> None:
        self._code, self._event = code, event
        self.name, self.payload = event.name, payload

    def reply(self, value: Any = None) -> None:
        """Answer the request. The sender sees the answer when it is stored."""
        what = f"the reply to the update {self.name!r}"
        text = encode_message(value, what=what, max_bytes=self._code.max_bytes)
        self._code.requests.answer(self._event, text, refused=False)

    def refuse(self, reason: str) -> None:
        """Refuse the request: `update` raises `UpdateRefused` with this reason, of at most 2,000 characters."""
        text = checked_text(reason, what=f"the reason to refuse the update {self.name!r}")
        self._code.requests.answer(self._event, text, refused=True)

    def __repr__(self) -> str:
        return f"<UpdateRequest {self.name}>"


class Updates(Generic[T]):
    """The updates of one name, in the order of their arrival: `async for request in ctx.updates(name)`."""

    def __init__(self, context: ContextRequests, name: str, type: Any) -> None:
        self._context, self._name, self._type = context, name, type

    def __aiter__(self) -> Updates[T]:
        return self

    async def __anext__(self) -> UpdateRequest[T]:
        """Wait for the next request. One whose payload cannot be read as the type is refused."""
        code = self._context._code  # noqa: SLF001
        while True:
            if code.over:
                await code.out()
            place = self._context._next_id(f"update:{self._name}")  # noqa: SLF001
            event = await code.wait_for_event("update", self._name, place)
            try:
                payload = await code.read(event.payload, self._type, id=place, what=f"the update {self._name!r}")
            except InvalidValue as error:
                UpdateRequest(code, event, None).refuse(_cut(str(error)))
                continue
            if not code.was_unreadable(place):
                return UpdateRequest(code, event, payload)
            UpdateRequest(code, event, None).refuse("")  # other code could not read it, and has refused it


def _cut(text: str) -> str:
    return text.encode(errors="replace").decode()[:LONGEST_TEXT]


class ContextRequests:
    """The part of a context that is about updates, approvals and details."""

    _code: Replay
    generation: int

    def _next_id(self, name: str) -> str:
        raise NotImplementedError

    @overload
    def updates(self, name: str, *, type: type[T]) -> Updates[T]: ...
    @overload
    def updates(self, name: str, *, type: Any = None) -> Updates[Any]: ...
    def updates(self, name: str, *, type: Any = None) -> Updates[Any]:
        """The requests that are sent by `update(name, ...)`, one after the other; each must be answered.

        `type` is what a payload is read as. A request that the run has received and not answered is received again by
        its next generation; when the run ends, the senders of unanswered requests get `RunEnded`.
        """
        self._code.check()
        return Updates(self, checked_key(name, what="update name"), Any if type is None else type)

    async def approve(
        self,
        name: str,
        data: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109
    ) -> Approval:
        """Ask people to approve something, and wait for the answer of one of them.

        Raises `TimeoutError` after `timeout`; from then on the request cannot be answered.
        """
        if self._code.over:
            await self._code.out()
        self._code.check()
        checked_name(name, "name of an approval")
        if without_generation(name) != name:
            raise InvalidKey(f"the name {name!r} of an approval ends in ~ and a number: choose another one")
        text = encode_message(data, what=f"the data of the approval {name!r}", max_bytes=self._code.max_bytes)
        length = None if timeout is None else seconds(timeout, what="timeout")
        place = self._next_id(f"approval:{name}")
        wanted = generation_id(place.removeprefix("approval:"), self.generation)
        now = self._code.loop.now
        until = None if length is None else now + round(length * MICROSECONDS)
        self._code.requests.ask(NewApproval(id=wanted, name=name, data=text, at=now, until=until))
        try:
            async with asyncio.timeout(length):
                event = await self._code.wait_for_event("approval", wanted, place)
        except (TimeoutError, asyncio.CancelledError):
            self._code.requests.close(wanted)
            raise
        answer = _read_answer(event.payload)
        at = time_of(event.at)
        return Approval(approved=answer.approved, by=answer.by, comment=answer.comment, at=at)

    async def set_details(self, value: Any) -> None:
        """Set what `runs show` and `RunInfo.details` say about this run now: any value, of at most 64 KiB as JSON."""
        if self._code.over:
            await self._code.out()
        self._code.check()
        self._code.set_details(encode_message(value, what="the details of a run", max_bytes=DETAILS_BYTES))
