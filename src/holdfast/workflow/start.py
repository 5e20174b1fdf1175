"""Starting a run under the published limits of its workflow: by definition or by name, alone or in a transaction.

If the caller of a start used other limits than the published ones, the answer contains the published limits. Then the
caller computes the limit keys of the run again, and sends the start again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from ..commands import Command, Failed
from ..commands.purging import PurgeTree
from ..commands.runs import ForkRun, ListWorkers, PublishLimits, ReadLimits, StartOrSignal, StartRun
from ..errors import HoldfastError, InvalidKey, InvalidOption, InvalidValue, RunExists, WorkflowDefinitionRequired
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.limits import WorkflowLimits
from ..rules.runs.outcomes import (
    Limited,
    LimitsDiffer,
    LimitsPublished,
    Obstacle,
    Posted,
    PurgeStep,
    RunTaken,
    Started,
    WorkerGone,
    WorkerList,
)
from ..rules.runs.record import (
    ANY_VERSION,
    NewRun,
    OnExisting,
    Past,
    Run,
    RunEvent,
    Scalar,
    archive_id,
    without_generation,
    workflow_of,
)
from ..runtime.base import BaseClient
from ..runtime.codec import encode_message, encode_value
from ..runtime.flows import Flow, send
from ..stores.contract import Connection, SharesTransactions
from ..validation import MAX_KEY_BYTES, MICROSECONDS, Duration, checked_key, seconds
from .definition import Workflow
from .limits import admission_of, checked_priority, exceeded, not_begun, places_of

LONGEST_REPLACEABLE = MAX_KEY_BYTES - 22
"""Bytes of an id whose run may be replaced: the replaced run is kept under the id, `~` and a number."""
LOOK_FOR_WORKERS = 30.0
"""Seconds after which a start checks again whether a worker knows the workflow."""
TERMS_CHANGE = 10
"""How often the limits of a workflow may change while a run of it is being started."""
PURGE_STEPS = 1_000
"""How many steps of a purge that was stopped one start sends, at most."""


class _KnownWorkflows:
    """What a client has read about workflows; kept with the client, because `client.runs` is a new object each time."""

    def __init__(self) -> None:
        self.terms: dict[str, WorkflowLimits] = {}
        self.published: set[str] = set()  # workflows that an engine has published
        self.looked: dict[str, float] = {}  # when the workers were last read, by type


class RunStarter:
    """The flows that start runs, for one client."""

    def __init__(self, client: BaseClient, *, max_bytes: int) -> None:
        self.client, self.max_bytes = client, max_bytes
        known = client.cache.setdefault("starts", _KnownWorkflows())
        self._terms, self._published, self._looked = known.terms, known.published, known.looked

    def new_run(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        *,
        id: str | None,
        idempotency_key: str | None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        on_existing: OnExisting = "error",
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> NewRun:
        """Check a start, and encode its input."""
        if isinstance(workflow, Workflow):
            kind, name = workflow.type, workflow.name
            if not workflow.takes_input and input is not None:
                raise InvalidValue(f"the workflow {name!r} takes no input, and was given {input!r}")
            text = encode_value(
                workflow.given(input), workflow.input_type, what=f"the input of {name!r}", max_bytes=self.max_bytes
            )
        elif isinstance(workflow, str):
            name = checked_key(workflow, what="workflow name")
            kind = name if "@" in name else name + ANY_VERSION
            text = encode_message(input, what=f"the input of {name!r}", max_bytes=self.max_bytes)
        else:
            raise InvalidOption(f"{workflow!r} is no workflow: decorate it with @workflow, or give its name")
        if on_existing == "replace_ended" and id is not None:
            check_replaceable(id)
        return NewRun(
            id=secrets.token_hex(8) if id is None else checked_run_id(id),
            type=kind,
            input=text,
            request=secrets.token_hex(8),
            key="" if idempotency_key is None else checked_key(idempotency_key, what="idempotency key"),
            attributes=checked_attributes({} if attributes is None else attributes),
            priority=checked_priority(priority),
            on_existing=_checked_answer(on_existing, id),
            timeout=microseconds_of(timeout, "timeout"),
            delay=microseconds_of(delay, "delay") or 0,
        )

    def signal_event(self, name: str, payload: Any, idempotency_key: str | None) -> RunEvent:
        """Check a signal, and encode it. Without an idempotency key it gets one of its own, for its re-sends."""
        key = secrets.token_hex(8) if idempotency_key is None else checked_key(idempotency_key, what="idempotency key")
        name = checked_key(name, what="signal name")
        text = encode_message(payload, what=f"the signal {name!r}", max_bytes=self.max_bytes)
        return RunEvent(kind="signal", name=name, payload=text, key=f"signal/{key}")

    def start(
        self,
        new: NewRun,
        worker: str = "",
        *,
        workflow: Workflow[Any, Any] | str = "",
        require_definition: bool = False,
        past: Past | None = None,
    ) -> Flow[Started]:
        """Start a run under the published limits. If its worker's lease has expired, any worker may claim it.

        With a `past` it continues from there, in any worker.
        """

        def command(counted: NewRun, worker: str) -> Command:
            return StartRun(new=counted, worker=worker) if past is None else ForkRun(new=counted, past=past)

        outcome = yield from self._begin(new, command, worker, workflow, require_definition=require_definition)
        return (yield from self._begun(new, outcome, workflow, fork=past is not None))

    def start_or_signal(
        self, new: NewRun, event: RunEvent, worker: str = "", *, workflow: Workflow[Any, Any] | str = ""
    ) -> Flow[Started | Posted]:
        """Send a signal to the run with this id; if there is none that has not ended, start one with this signal."""
        check_replaceable(new.id)

        def command(counted: NewRun, worker: str) -> Command:
            return StartOrSignal(new=counted, event=event, worker=worker)

        outcome = yield from self._begin(new, command, worker, workflow)
        if isinstance(outcome, Posted):
            return outcome
        started = _started(new, outcome)
        if started.verdict.what in ("skip", "cancel_newest"):
            raise not_begun(new.id, workflow_of(new.type), admission_of(started.verdict))
        return (yield from self._begun(new, started, workflow))

    def _begun(
        self, new: NewRun, outcome: Outcome, workflow: Workflow[Any, Any] | str, *, fork: bool = False
    ) -> Flow[Started]:
        """Emit what is notable about a start, or raise why there was none."""
        started = _started(new, outcome, fork=fork)
        self._emit_if_unpublished(started, workflow)
        yield from self.look_for_workers_of(started.run)
        return started

    def _begin(
        self,
        new: NewRun,
        command: Callable[[NewRun, str], Command],
        worker: str,
        workflow: Workflow[Any, Any] | str,
        *,
        require_definition: bool = False,
    ) -> Flow[Outcome]:
        """Send a start, as the command that is made of it, under the limits that are published at that moment."""
        if isinstance(workflow, str) and workflow_of(new.type) not in self._published:
            outcome, _ = yield from send(ReadLimits(workflow=workflow_of(new.type)))
            self._check_published(new, outcome, require_definition=require_definition)
        for _ in range(TERMS_CHANGE):
            counted = self._counted(new, workflow)
            outcome, _ = yield from send(command(counted, worker))
            if isinstance(outcome, RunTaken) and outcome.run.status == "purged":
                if not (yield from _removed(outcome.run)):
                    break
            elif isinstance(outcome, WorkerGone):
                worker = ""
            elif isinstance(outcome, LimitsDiffer):
                ours = self._unpublished(workflow_of(new.type), workflow, outcome)
                if ours is not None:
                    yield from self.publish(ours)
            else:
                break
        return outcome

    def _check_published(self, new: NewRun, outcome: Outcome, *, require_definition: bool) -> None:
        """With `require_definition`, raise if no engine has published this workflow: no limit would count the run."""
        assert isinstance(outcome, LimitsDiffer)  # noqa: S101
        name = workflow_of(new.type)
        if outcome.terms is not None:
            self._published.add(name)
        elif require_definition:
            raise WorkflowDefinitionRequired(
                f"no engine has published the workflow {name!r} in this namespace: its limits are not known. Nothing "
                "was started. Open an engine with this workflow once, or start the run with the workflow itself."
            )

    def _emit_if_unpublished(self, started: Started, workflow: Workflow[Any, Any] | str) -> None:
        """Emit an event if a run was started by name, and no engine has published its workflow."""
        name = workflow_of(started.run.type)
        if isinstance(workflow, str) and started.fresh and name not in self._published:
            self.client.events.emit("definition_unknown", run=started.run.id, workflow=name)

    def look_for_workers_of(self, run: Run) -> Flow[None]:
        """Emit an event if a run was started, no worker drives it, and no worker has its workflow registered."""
        if run.living and not run.worker:
            yield from self.look_for_workers(run.id, run.type)

    def look_for_workers(self, run: str, type: str) -> Flow[None]:
        """Emit an event if no worker knows the workflow of this run; checked once in a while."""
        if elapsed() - self._looked.get(type, -LOOK_FOR_WORKERS) < LOOK_FOR_WORKERS:
            return
        self._looked[type] = elapsed()
        try:
            able = yield from self.who_can(type)
        except HoldfastError:  # the run was started all the same
            return
        if not able:
            self.client.events.emit("no_worker_knows", run=run, workflow=type.removesuffix(ANY_VERSION))

    def who_can(self, type: str) -> Flow[list[str]]:
        """The names of the workers that can drive runs of this type."""
        outcome, _ = yield from send(ListWorkers(), until=elapsed(), role="queries")
        assert isinstance(outcome, WorkerList)  # noqa: S101
        return sorted({worker.name or worker.id for worker in outcome.workers if type in worker.types})

    def _counted(self, new: NewRun, workflow: Workflow[Any, Any] | str) -> NewRun:
        """The start with the limit keys that count its run, by the limits that are known here."""
        name = workflow_of(new.type)
        given = workflow.limits if isinstance(workflow, Workflow) else ()
        terms = self._terms.get(name) or (workflow.terms if isinstance(workflow, Workflow) else WorkflowLimits())
        if not terms.limits:
            return new
        kind = workflow.input_type if isinstance(workflow, Workflow) else Any
        places = places_of(terms, name, given, new.input, kind)
        return msgspec.structs.replace(new, places=places, terms=terms.digest)

    def _unpublished(self, name: str, workflow: Workflow[Any, Any] | str, latest: LimitsDiffer) -> PublishLimits | None:
        """Our own limits, if they are to be published; otherwise the published ones are remembered."""
        if latest.terms is not None:
            self._published.add(name)
        if isinstance(workflow, Workflow) and (latest.terms is None or workflow.terms.version > latest.terms.version):
            return PublishLimits(workflow=name, terms=workflow.terms)
        self._terms[name] = latest.terms or WorkflowLimits()
        return None

    def announce(self, name: str, terms: WorkflowLimits) -> Flow[bool]:
        """Publish the limits of an engine's workflow; if it has no limits, nothing is written."""
        if not terms.limits:
            outcome, _ = yield from send(ReadLimits(workflow=name))
            assert isinstance(outcome, LimitsDiffer)  # noqa: S101
            if outcome.terms is not None and not outcome.terms.limits:
                return True
        return (yield from self.publish(PublishLimits(workflow=name, terms=terms)))

    def publish(self, command: PublishLimits) -> Flow[bool]:
        """Publish the limits of a workflow, and remember which ones are in force. Returns whether these are."""
        outcome, _ = yield from send(command)
        return self._learn(command, outcome)

    def _learn(self, command: PublishLimits, outcome: Outcome) -> bool:
        assert isinstance(outcome, LimitsPublished)  # noqa: S101
        self._terms[command.workflow] = outcome.terms
        return outcome.terms == command.terms

    def start_within(
        self,
        connection: Any,
        new: NewRun,
        *,
        workflow: Workflow[Any, Any] | str = "",
        require_definition: bool = False,
    ) -> Started:
        """Start a run within the caller's own transaction: rolled back, it never existed.

        The caller runs `look_for_workers_of` next, outside of the transaction.
        """
        store = self.client.runtime.store
        if not isinstance(store, SharesTransactions):
            raise InvalidOption(
                f"connection= needs a store on whose database your own tables can be (SQLite, PostgreSQL, MySQL, "
                f"MariaDB), and this is {store.url}. Start the run after your commit, with an idempotency_key."
            )
        joined = store.join(connection)
        if isinstance(workflow, str) and workflow_of(new.type) not in self._published:
            known = _carried_out(joined, ReadLimits(workflow=workflow_of(new.type)))
            self._check_published(new, known, require_definition=require_definition)
        for _ in range(TERMS_CHANGE):
            outcome = _carried_out(joined, StartRun(new=self._counted(new, workflow)))
            if not isinstance(outcome, LimitsDiffer):
                break
            ours = self._unpublished(workflow_of(new.type), workflow, outcome)
            if ours is not None:
                self._learn(ours, _carried_out(joined, ours))
        started = _started(new, outcome)
        self._emit_if_unpublished(started, workflow)
        return started


def _removed(hidden: Run) -> Flow[bool]:
    """Finish a purge that was stopped after it had hidden the tree of this run. False: parts of the tree are left."""
    command = PurgeTree(root=hidden.root or hidden.id, before=0, purge="", step="remove")
    for _ in range(PURGE_STEPS):
        outcome, _ = yield from send(command)
        assert isinstance(outcome, PurgeStep)  # noqa: S101
        if outcome.state != "hidden":
            return True
    return False


def _carried_out(joined: Connection, command: Command) -> Outcome:
    (outcome,) = joined.execute([command])
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome


def _started(new: NewRun, outcome: Outcome, *, fork: bool = False) -> Started:
    if isinstance(outcome, RunTaken) and outcome.run.status == "purged":
        raise RunExists(
            f"an earlier run with the id {new.id!r} is being purged, in several steps. Nothing was started. Start it "
            "again when the purge has ended. If the purge was stopped, a start outside of a transaction finishes it, "
            "and so does any later purge of this workflow.",
            run_id=new.id,
            status=outcome.run.status,
        )
    if isinstance(outcome, RunTaken):
        run = outcome.run
        raise RunExists(
            f"there is a run with the id {new.id!r} already, of {run.workflow!r} ({run.status}). Nothing was started. "
            + ("Choose another id, or none." if fork else _advice(run, outcome.why)),
            run_id=new.id,
            status=run.status,
        )
    if isinstance(outcome, Limited):
        raise exceeded(workflow_of(new.type), outcome.verdict)
    if isinstance(outcome, LimitsDiffer):
        raise InvalidOption(
            f"the limits of {workflow_of(new.type)!r} keep changing: engines with different limits publish them in "
            "turn. Nothing was started. Give the newer limits a higher version=."
        )
    assert isinstance(outcome, Started)  # noqa: S101
    return outcome


def _advice(run: Run, why: Obstacle) -> str:
    """What can be done about a run that a start can neither use nor replace."""
    match why:
        case "living":
            return 'It has not ended, so it was not replaced. Cancel it first, or use it: on_existing="use".'
        case "workflow":
            return "It is of another workflow, so it was not used. Choose another id."
        case "child":
            return (
                f"It is a child of the run {run.parent!r}, which has not ended, so it was not replaced: its parent "
                "may retry it. Choose another id, or start again when the parent has ended."
            )
        case "archived":
            return (
                f"It was not replaced, because another run has the id under which it would be kept "
                f"({archive_id(run)!r}). Choose another id."
            )
    return (
        "Choose another id, give an idempotency_key to get the run that is there, or say what to do with on_existing: "
        '"use" or "replace_ended".'
    )


def microseconds_of(duration: Duration | None, what: str) -> int | None:
    """A duration of a start, as it is stored."""
    return None if duration is None else round(seconds(duration, what=what) * MICROSECONDS)


def _checked_answer(on_existing: OnExisting, id: str | None) -> OnExisting:
    if on_existing not in get_args(OnExisting):
        raise InvalidOption(f"on_existing={on_existing!r} is none of {', '.join(map(repr, get_args(OnExisting)))}")
    if id is None and on_existing != "error":
        raise InvalidOption(f"on_existing={on_existing!r} is about the run that has the id: give id= too")
    return on_existing


def checked_run_id(id: str) -> str:
    """The id of a run that is to be started. An id such as `order-7~2` is that of a generation of `order-7`."""
    if without_generation(checked_key(id, what="run id")) != id:
        raise InvalidOption(
            f"the run id {id!r} ends in ~ and a number, as the ids of generations of a run do. Nothing was started. "
            "Choose an id that does not end so."
        )
    return id


def check_replaceable(id: str) -> None:
    """Raise if a run with this id could not be replaced, because the id under which it is kept would be too long."""
    size = len(checked_key(id, what="run id").encode())
    if size > LONGEST_REPLACEABLE:
        raise InvalidKey(
            f"the run id {id[:40]!r}... has {size} bytes. A start that may replace an ended run needs an id of at most "
            f"{LONGEST_REPLACEABLE} bytes, because the ended run is kept under this id with ~ and a number. Nothing "
            "was started: use a hash of the long part."
        )


def checked_attributes(attributes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Attributes are names with text, whole numbers or booleans."""
    if not isinstance(attributes, Mapping):
        raise InvalidOption(f'attributes={attributes!r} is no dict of names and values, such as {{"customer": "ann"}}')
    for name, value in attributes.items():
        checked_key(name, what="attribute's name")
        if not isinstance(value, str | int | bool):
            raise InvalidValue(f"the attribute {name!r} is {value!r}: attributes are text, whole numbers or booleans")
    encode_value(dict(attributes), what="the attributes")
    return dict(attributes)
