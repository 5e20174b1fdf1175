"""What the script left to the client: records that are not exactly as this version writes them.

They are decided by the rules themselves, at the moment that the script named, and written only if they are still the
very same text. Where somebody was faster, the command is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from .. import commands as c
from ..errors import RecordUnreadable, StoreUnavailable
from ..rules import lock
from ..rules import outcomes as out
from ..rules.asks import attempt_of
from ..rules.outcomes import Outcome
from ..rules.record import Kind, Label, LockRecord, encode
from ..run_commands import RunCommand
from . import redis_script as s
from .redis_batch import (
    Answer,
    Reply,
    Row,
    following,
    key_texts,
    outcome_of,
    pack,
    pack_commands,
    readable,
    reason_against,
    row_of,
)
from .shared import at_least_one, failed

TRIES = 50
"""How often others may be faster. Each time one of them has done something, so this is not a matter of waiting."""

QUESTIONS = 1_000
"""How many questions about locks a command about runs may have."""

Call = Callable[[bytes], Reply]

_question = msgspec.json.Decoder(tuple[str, int, str, bool, Kind, int, int, int | None])


def execute(commands: Sequence[c.Command], call: Call) -> list[Outcome]:
    """Carry out a batch: as one script where all commands can be written down and all records are ours."""
    payload = pack_commands(commands)
    if payload is None:
        return _without_the_bad(commands, call)
    reply = call(payload)
    answers = reply.answers
    for answer in answers:
        if type(answer) is list and (answer[0] == s.FOREIGN or (answer[0] == s.SWEPT and answer[5])):
            return _finish(commands, reply, call)
    if len(answers) < len(commands):
        return _finish(commands, reply, call)
    return [outcome_of(command, answer, reply) for command, answer in zip(commands, answers, strict=True)]


def _without_the_bad(commands: Sequence[c.Command], call: Call) -> list[Outcome]:
    """Some cannot even be written down: they fail alone, and the others are sent without them."""
    refused = [reason_against(command) for command in commands]
    good = [command for command, reason in zip(commands, refused, strict=True) if reason is None]
    done = iter(execute(good, call) if good else ())
    return [next(done) if reason is None else reason for reason in refused]


def _finish(commands: Sequence[c.Command], reply: Reply, call: Call, tries: int = TRIES) -> list[Outcome]:
    """Decide what was left to the client; then send what comes after it."""
    outcomes: dict[int, Outcome] = {}
    left: dict[str, list[int]] = {}
    texts: dict[str, bytes] = {}
    for place, answer in enumerate(reply.answers):
        command = commands[place]
        if type(answer) is not list or answer[0] not in (s.FOREIGN, s.SWEPT):
            outcomes[place] = outcome_of(command, answer, reply)
        elif isinstance(command, RunCommand):
            outcomes[place] = _answer_questions(command, answer, reply, call)
        elif isinstance(command, c.LockCommand):
            left.setdefault(command.key, []).append(place)
            texts[command.key] = reply.texts[answer[2]]
        elif isinstance(command, c.SettleDue) and answer[0] == s.FOREIGN:
            outcomes[place] = _settle_due(command, call)
        else:
            outcomes[place] = _clean_up(command, answer, reply, call)
    stale = _decide(commands, left, texts, call, now=reply.now, outcomes=outcomes)
    if stale:
        again = [commands[place] for place in stale]
        if tries == 0:
            lost = StoreUnavailable("others changed the record each time before this could. Nothing was changed.")
            outcomes.update(dict.fromkeys(stale, c.Failed(error=lost)))
        else:
            payload = pack_commands(again)
            assert payload is not None  # noqa: S101  (they have been sent before)
            outcomes.update(zip(stale, _finish(again, call(payload), call, tries - 1), strict=True))
    done = len(reply.answers)
    rest = execute(commands[done:], call) if done < len(commands) else []
    return [*(outcomes[place] for place in range(done)), *rest]


def _decide(
    commands: Sequence[c.Command],
    left: dict[str, list[int]],
    texts: dict[str, bytes],
    call: Call,
    *,
    now: int,
    outcomes: dict[int, Outcome],
) -> list[int]:
    """Decide the commands of each key in their order. Returns the places of those for which somebody was faster."""
    rows: dict[str, Row] = {}
    for key, places in left.items():
        before = readable(key, texts[key])
        if isinstance(before, RecordUnreadable):
            outcomes.update(dict.fromkeys(places, c.Failed(error=before)))
            continue
        after = before
        woken: list[str] = []
        for place in places:
            command = commands[place]
            assert isinstance(command, c.LockCommand)  # noqa: S101  (others are not left)
            try:
                after, outcomes[place] = command.apply(after, now)
                woken += outcomes[place].woken
            except Exception as error:  # a bad command fails alone
                outcomes[place] = failed(command, error)
        if after is not before:
            rows[key] = _row(key, texts[key], after, woken)
    replaced = _replace(rows.values(), call)
    return sorted(place for key, done in zip(rows, replaced, strict=True) if not done for place in left[key])


def _row(key: str, before: bytes, after: LockRecord | None, woken: Sequence[str] = ()) -> Row:
    text = None if after is None else encode(after).decode()
    return s.REPLACE, key, before.decode(), text, None if after is None else after.due_at, woken


def _replace(rows: Iterable[Row], call: Call) -> list[bool]:
    """Write each of these if nobody has changed it meanwhile."""
    batch = list(rows)
    return [answer == s.REPLACED for answer in call(pack(batch)).answers] if batch else []


def _answer_questions(command: RunCommand, answer: Answer, reply: Reply, call: Call) -> Outcome:
    """A command about runs has come to locks that are not ours. Send it again with what the rules say about them."""
    rows: list[Row] = []
    while len(rows) < QUESTIONS:
        rows.append(_decided(reply.texts[answer[3]], reply.texts[answer[2]], reply.now))
        reply = call(pack([*rows, row_of(command)]))
        answer = reply.answers[-1]
        if type(answer) is not list or answer[0] != s.FOREIGN:
            return outcome_of(command, answer, reply)
    lost = StoreUnavailable("others changed a lock each time before this could. Nothing was changed.")
    return c.Failed(error=lost)


def _decided(question: bytes, text: bytes, now: int) -> Row:
    """What becomes of a lock when a run takes it or gives it back; without a text of before: it cannot be read."""
    run, number, key, give, kind, permits, weight, ttl = _question.decode(question)
    before, attempt = readable(key, text), attempt_of(run, number)
    if isinstance(before, RecordUnreadable):
        return s.DECIDED, question.decode(), None
    if give:
        after, outcome = lock.abandon(before, now, id=attempt, ttl=0)
    else:
        label = Label(name=f"run {run}")
        after, outcome = lock.acquire(
            before,
            now,
            id=attempt,
            label=label,
            kind=kind,
            permits=permits,
            weight=weight,
            ttl=ttl,
            queue=True,
            waiter_ttl=None,
        )
    changed = encode(after).decode() if after is not before else None
    return s.DECIDED, question.decode(), text.decode(), changed, after.due_at, _said(outcome)


def _said(outcome: Outcome) -> Row:
    """An outcome as the script tells it, as far as a run is told of it."""
    match outcome:
        case out.Granted():
            return s.GRANTED, outcome.woken, outcome.token, outcome.floor
        case out.Queued():
            return s.QUEUED, outcome.woken
        case out.Abandoned():
            return s.ABANDONED, outcome.woken
        case out.Mismatch():
            return s.MISMATCH, outcome.woken, outcome.found
        case out.TooHeavy():
            return s.TOO_HEAVY, outcome.woken
        case _:
            return s.GONE, outcome.woken


def _settle_due(command: c.SettleDue, call: Call) -> Outcome:
    """Settle what is due. What cannot be read is passed over, or it would hide what comes after it."""
    limit = at_least_one(command.limit)
    count = limit + 1
    while True:
        reply = call(pack([(s.LOOK_AT_DUE, count)]))
        page = key_texts(reply.answers[0], reply)
        due = [(key, text, record) for key, text in page if isinstance(record := readable(key, text), LockRecord)]
        if len(due) > limit or len(page) < count:
            break
        count *= 2
    rows, woken = [], []
    for key, text, before in due[:limit]:
        after, more = lock.settle(before, reply.now)
        if after is not before:
            rows.append(_row(key, text, after, more))
            woken.append(more)
    done = _replace(rows, call)  # one that somebody else has settled in the meantime needs it no more
    told = tuple(attempt for more, kept in zip(woken, done, strict=True) if kept for attempt in more)
    following = due[limit - 1][0] if len(due) > limit else None
    return c.Swept(seen=len(due[:limit]), changed=sum(done), next=following, woken=told)


def _clean_up(command: c.Command, answer: list[object], reply: Reply, call: Call) -> Outcome:
    """Remove what the rules allow of the records that are not ours; the script has removed the others."""
    assert isinstance(command, c.Cleanup | c.SettleDue)  # noqa: S101  (nothing else is swept)
    _, _, seen, changed, place, strange = answer
    outcome = outcome_of(command, answer, reply)
    if not strange or not isinstance(command, c.Cleanup):
        return outcome
    assert isinstance(strange, list)  # noqa: S101  (the script's own)
    assert isinstance(seen, int)  # noqa: S101
    assert isinstance(changed, int)  # noqa: S101
    assert isinstance(place, int)  # noqa: S101
    rows = []
    for number in strange:
        key, text = reply.texts[number].decode(errors="replace"), reply.texts[number + 1]
        record = readable(key, text)
        if isinstance(record, LockRecord) and lock.removable(record, reply.now, retention=command.retention):
            rows.append(_row(key, text, None))
    changed += sum(_replace(rows, call))
    return c.Swept(seen=seen, changed=changed, next=following(place, reply))
