"""The limits of a workflow, `Concurrency` and `Rate`, and the keys by which a run is counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from ..errors import (
    InvalidOption,
    WorkflowConcurrencyLimitExceededError,
    WorkflowDefinitionRequired,
    WorkflowLimitExceeded,
    WorkflowQueueFull,
    WorkflowRateLimitExceeded,
)
from ..rules.runs.limits import STRICTEST_FIRST, Limit, LimitKey, LimitVerdict, OnExcess, WorkflowLimits
from ..runtime.codec import decode_value
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, seconds

_NAME = re.compile(r"[\w .:-]+")
Key = str | Callable[[Any], Any] | None
WHOLE_INPUT = "."
"""The path of a key that is the input itself."""
MAX_LIMIT = 1_000_000
MAX_PRIORITY = 2**31 - 1


class Concurrency(msgspec.Struct, frozen=True):
    """At most `max` runs of the workflow at a time; with `key`, at most `max` for each value of the key.

    `key` is a path into the input ("customer.id"), or a function of the input. `on_excess` is what happens to a start
    above the limit. At most `max_queue` runs wait (None: any number). If you change a limit, give it a higher
    `version`: otherwise an older engine that is started later publishes the old limit again.

    >>> Concurrency(max=2, key="customer_id", on_excess="queue").limit().name
    'concurrency:customer_id'
    """

    max: int
    key: Key = None
    on_excess: OnExcess = "reject"
    max_queue: int | None = None
    name: str | None = None
    version: int = 0

    def __post_init__(self) -> None:
        """Check the options."""
        if self.on_excess not in STRICTEST_FIRST:
            raise InvalidOption(f"on_excess={self.on_excess!r} is not one of {', '.join(STRICTEST_FIRST)}")
        _check(self)

    def limit(self) -> Limit:
        """The limit in the form that stores use."""
        return _limit(self, "concurrency", per=0)


class Rate(msgspec.Struct, frozen=True):
    """At most `max` starts of the workflow within `per`; with `key`, at most `max` for each value of the key.

    A start above the limit is rejected, or with `on_excess="queue"` begins as soon as the limit allows.

    >>> Rate(10, per="1 minute").limit().per
    60000000
    """

    max: int
    per: Duration
    key: Key = None
    on_excess: Literal["reject", "queue"] = "reject"
    max_queue: int | None = None
    name: str | None = None
    version: int = 0

    def __post_init__(self) -> None:
        """Check the options."""
        if self.on_excess not in ("reject", "queue"):
            raise InvalidOption(f"on_excess={self.on_excess!r} is not one of reject, queue")
        if seconds(self.per, what="per") <= 0:
            raise InvalidOption(f"per={self.per!r} must be longer than 0")
        _check(self)

    def limit(self) -> Limit:
        """The limit in the form that stores use."""
        return _limit(self, "rate", per=round(seconds(self.per) * MICROSECONDS))


AnyLimit = Concurrency | Rate


class Admission(msgspec.Struct, frozen=True):
    """The result of a start: which limit applied, for which key, and when to try again, if that is known."""

    outcome: Literal["admitted", "queued", "delayed", "skipped", "cancelled", "replaces"]
    limit: str | None = None
    partition_key: Any = None
    max: int | None = None
    retry_after: float | None = None


_OUTCOMES: dict[str, Literal["admitted", "queued", "skipped", "cancelled", "replaces"]] = {
    "admit": "admitted",
    "queue": "queued",
    "skip": "skipped",
    "cancel_newest": "cancelled",
    "cancel_oldest": "replaces",
}


def admission_of(verdict: LimitVerdict) -> Admission:
    """The public form of a verdict."""
    if verdict.what == "admit":
        return Admission("admitted")
    after = None if verdict.retry_in is None else verdict.retry_in / MICROSECONDS
    outcome = "delayed" if verdict.what == "queue" and after is not None else _OUTCOMES[verdict.what]
    return Admission(outcome, verdict.limit, _value(verdict.key), verdict.max, after)


def terms_of(concurrency: Any, rate: Any) -> tuple[tuple[AnyLimit, ...], WorkflowLimits]:
    """The limits of a workflow: checked, and in the form that stores use."""
    given = (*_all(concurrency, Concurrency, "concurrency"), *_all(rate, Rate, "rate"))
    limits = tuple(one.limit() for one in given)
    names = [limit.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"two limits of one workflow have the name {name!r}: give one of them another name=")
    return given, WorkflowLimits(limits=limits, version=max((one.version for one in given), default=0))


def places_of(
    terms: WorkflowLimits, workflow: str, given: Iterable[AnyLimit], input: str, type: Any
) -> tuple[LimitKey, ...]:
    """The limit keys that count a run; `given` are the limits that the caller has defined, `input` is JSON text."""
    own = {one.limit().name: one.key for one in given}
    return tuple(
        LimitKey(limit.name, _key_of(limit, workflow, own.get(limit.name), input, type)) for limit in terms.limits
    )


def exceeded(workflow: str, verdict: LimitVerdict) -> WorkflowLimitExceeded:
    """The error for a start that a limit refuses."""
    after = None if verdict.retry_in is None else verdict.retry_in / MICROSECONDS
    whose = f" for the key {verdict.key}" if verdict.key else ""
    kind: type[WorkflowLimitExceeded]
    if verdict.what == "queue_full":
        kind, why = WorkflowQueueFull, f"the queue of the limit {verdict.limit!r}{whose} is full (`max_queue`)"
    elif after is not None:
        kind = WorkflowRateLimitExceeded
        why = f"the limit {verdict.limit!r} of {verdict.max} starts{whose} is reached; try again in {after:.3g} s"
    else:
        kind = WorkflowConcurrencyLimitExceededError
        why = f"the limit {verdict.limit!r} of {verdict.max or 'some'} runs at a time{whose} is reached"
    return kind(
        f"a run of {workflow!r} was not started: {why}. Nothing was changed.",
        workflow_type=workflow,
        partition_key=_value(verdict.key),
        limit=verdict.max,
        name=verdict.limit,
        retry_after=after,
    )


def not_begun(id: str, workflow: str, admission: Admission) -> WorkflowLimitExceeded:
    """The error for a signal to a run that a limit does not allow to begin."""
    how = (
        "the run was recorded as cancelled" if admission.outcome == "cancelled" else "another run is kept instead of it"
    )
    return WorkflowConcurrencyLimitExceededError(
        f"the run {id!r} of {workflow!r} does not begin: the limit {admission.limit!r} is reached, and {how}. The "
        "signal was not sent.",
        workflow_type=workflow,
        partition_key=admission.partition_key,
        limit=admission.max or 0,
        name=admission.limit or "",
    )


def checked_priority(priority: int) -> int:
    """Check a priority: a whole number; the highest comes first."""
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidOption(f"priority={priority!r} is not a whole number between -{MAX_PRIORITY} and {MAX_PRIORITY}")
    return priority


def _check(given: AnyLimit) -> None:
    if checked_count(given.max, what="max") > MAX_LIMIT:
        raise InvalidOption(f"max={given.max} is more than {MAX_LIMIT}")
    if given.max_queue is not None:
        checked_count(given.max_queue, what="max_queue")
        if given.on_excess not in ("queue", "cancel_oldest"):
            raise InvalidOption(
                f'max_queue={given.max_queue} has no effect with on_excess="{given.on_excess}", where no run waits'
            )
    if given.key is not None and not callable(given.key):
        checked_key(given.key, what="key")
        if given.key != WHOLE_INPUT and not all(given.key.split(".")):
            raise InvalidOption(
                f'key={given.key!r} is not a path into the input, such as "customer.id", or "." for the input itself'
            )
    if given.name is not None and not _NAME.fullmatch(checked_key(given.name, what="name of the limit")):
        raise InvalidOption(f"name={given.name!r}: the name of a limit may contain letters, digits, blanks and _.:-")
    if isinstance(given.version, bool) or not isinstance(given.version, int) or given.version < 0:
        raise InvalidOption(f"version={given.version!r} is not a whole number of 0 or more")


def _limit(given: AnyLimit, kind: str, *, per: int) -> Limit:
    path = given.key if isinstance(given.key, str) else ""
    by_code = given.key is not None and not path
    label = "input" if path == WHOLE_INPUT else path or (getattr(given.key, "__name__", "key") if by_code else "")
    name = given.name or re.sub(r"[^\w .:-]", "_", f"{kind}:{label}".rstrip(":"))
    return Limit(
        name=name,
        max=given.max,
        per=per,
        path=path,
        by_code=by_code,
        on_excess=given.on_excess,
        max_queue=given.max_queue,
    )


def _all(given: Any, kind: type[AnyLimit], what: str) -> tuple[AnyLimit, ...]:
    if given is None:
        return ()
    found = (given,) if isinstance(given, Concurrency | Rate) or not isinstance(given, Iterable) else tuple(given)
    for one in found:
        if not isinstance(one, kind):
            raise InvalidOption(f"{what}={one!r}: give a {kind.__name__}(...), or a list of them")
    return found


def _key_of(limit: Limit, workflow: str, key: Key, input: str, type: Any) -> str:
    """The key of a run at a limit, as JSON text; empty if all runs are counted together."""
    if limit.by_code:
        if key is None or isinstance(key, str):
            raise WorkflowDefinitionRequired(
                f"the limit {limit.name!r} of {workflow!r} computes its key by a function, which this process does not "
                "have. Nothing was started. Start the run with the workflow itself instead of its name, or give the "
                "limit a path as its key."
            )
        value = decode_value(input, type, what=f"the input of {workflow!r}")  # as the workflow will receive it
        try:
            found = key(value)
        except Exception as error:
            raise InvalidOption(
                f"the key of the limit {limit.name!r} of {workflow!r} is unknown: its function raised {error!r}"
            ) from error
        return _text(found, limit, workflow)
    if not limit.path:
        return ""
    found = msgspec.json.decode(input)
    for part in () if limit.path == WHOLE_INPUT else limit.path.split("."):
        if not isinstance(found, dict) or part not in found:
            raise InvalidOption(
                f"the input of {workflow!r} has no {limit.path!r}, which is the key of the limit {limit.name!r}"
            )
        found = found[part]
    return _text(found, limit, workflow)


def _text(found: Any, limit: Limit, workflow: str) -> str:
    if found is not None and not isinstance(found, str | int | bool):
        raise InvalidOption(
            f"the key of the limit {limit.name!r} of {workflow!r} is {found!r}: a key is text, a whole number, a "
            "boolean or nothing. Give the path to such a value in the input, or a function."
        )
    return msgspec.json.encode(found).decode()


def _value(key: str) -> Any:
    return msgspec.json.decode(key) if key else None
