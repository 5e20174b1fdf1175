"""The workflow code of one run in memory: what it waits for, and the delivery of journal entries to it.

If the same entries are delivered in the same order to the same code, the code reaches the same state. If it does not,
a `NonDeterminismError` names what the history contains and what the code does. This module does not call the store
and begins no effect: it passes the requests of the code to the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any, Protocol

import msgspec

from ..errors import HoldfastError, InvalidValue, NonDeterminismError, NotInWorkflow, WorkflowFailed
from ..rules.runs.cancel_reasons import reason_in
from ..rules.runs.record import End, EventKind, NewRun, OnParentEnd, Run, RunEvent, Scalar, generation_id
from ..runtime.codec import decode_value, output_of
from . import journal as j
from .attempts import is_marked, marked
from .blocking_code import BlockingCodeWatch
from .code_streams import CodeStreams
from .context import Context, Received, SlotWork, StepCall, untaken_signals
from .context_children import ChildSignal, signal_of
from .continuing import ContinueAsNew, inherited_children
from .definition import ONCE, Workflow, current_context
from .failures import how_it_ended, step_failed
from .loop import WorkflowLoop
from .patches import Patches, begins_here
from .replay_locks import ReplayLocks
from .replay_requests import ReplayRequests

GRACE = 30_000_000
"""Microseconds that `finally` blocks have after a run was cancelled."""
MAX_CALLS_LEAVING = 1_000
"""While this process leaves the run, so many calls of the code raise; after that the code is suspended forever."""
MAX_CHILDREN_NAMED = 999
"""A run that waits for more children at once does not report them, and is left out of the search for deadlocks."""
LOCK_EVENTS = ("lock", "deadlock")
"""Events that only mean that a lock must be requested again."""


DELIVERING = (
    j.StepDone,
    j.StepLost,
    j.TimerEnded,
    j.Signalled,
    j.ChildEnded,
    j.CancelAsked,
    j.LockGranted,
    j.LockRefused,
    j.LockLost,
)
"""The entries that the code receives. All others are notes, which a driver may write at another place."""


NOTES = (
    j.Begun,
    j.Left,
    j.AttemptBegun,
    j.Unread,
    j.Patched,
    j.Continued,
    j.Forked,
    j.Replied,
    j.ApprovalAsked,
    j.Streamed,
)
"""Entries that change nothing when they are delivered."""


class RunLeft(BaseException):
    """This process has stopped driving the run: later operations of the code are not recorded."""


class Effects(Protocol):
    """Executes the requests of the code: the driver."""

    watch: BlockingCodeWatch

    def called(self, call: StepCall) -> None:
        """A step was called."""

    def dropped(self, call: StepCall) -> None:
        """The code does not wait for a step any more."""

    def cancel_child(self, id: str, reason: str) -> None:
        """A child is to be cancelled, for this reason if there is one."""

    def reclaim(self, new: NewRun) -> None:
        """A child is requested that an earlier attempt may have started."""

    def refused(self, error: NotInWorkflow) -> None:
        """The code waits for a thread, which is not allowed. Called from that thread."""

    def blocking(self, seconds: float, line: str) -> None:
        """The code has blocked its thread for long, at this line. Called from another thread, while it still runs."""

    def noted(self, entry: j.AnyEntry) -> None:
        """The code did something that is written to the journal."""


class Replay:
    """The code of one run, and everything that the code waits for."""

    def __init__(  # noqa: PLR0915  (each part of the code's state)
        self, run: Run, workflow: Workflow[Any, Any], effects: Effects, *, max_bytes: int, transactional: bool
    ) -> None:
        self.run, self.workflow, self.max_bytes, self.transactional = run, workflow, max_bytes, transactional
        self.loop = WorkflowLoop(  # type: ignore[abstract]
            run.created_at, effects.refused, effects.watch, effects.blocking
        )
        self.root: asyncio.Task[Any] | None = None
        self.replaying = True
        self.attempt = 1
        self.over = False
        self._calls_leaving = 0  # calls of the code since the run was left
        self.context: Context | None = None
        self.calls: dict[str, StepCall] = {}
        self.tries: dict[str, j.Attempted] = {}
        self.inbox: dict[int, RunEvent] = {}
        self.unstarted: list[NewRun] = []
        self.attributes: dict[str, Scalar] | None = None
        self.details: str | None = None
        self.writes = 0
        """How many children and changes of attributes and details the code requested: stored before the next effect."""
        self.ends: dict[str, int] = {}
        """The event of the last known end of each child."""
        self.earlier = 0
        """Events up to this number belong to earlier attempts."""
        self.after_others = self.restarted = False
        """Whether earlier attempts, of this run or of one above it, or a removed history may have started children."""
        self.signals_again: list[StepCall] = []
        """Signals that the run of which this one is a fork has sent to children that this run starts again."""
        self.unclaimed: set[str] = set()
        """Children that are being looked up: an earlier attempt may have left them for this one."""
        self.input_unreadable = False
        self._unread: set[str] = set()  # what the code could not read when it first received it
        self._unfit: InvalidValue | None = None  # the code cannot read what it could read before
        self.continued: j.Continued | None = None
        """How this generation began; None in the first one."""
        self.continuing: ContinueAsNew | None = None
        """Set when the code has asked for its next generation: it begins nothing more."""
        self.delivered = 1
        """How many entries of this generation were delivered, its input included."""
        self.forked: j.Forked | None = None
        """What this run has from the run of which it is a fork."""
        self._inherits = False  # the entries that are being delivered are those of the other run
        self.preface: j.Begun | None = None  # written before the first entry that is recorded
        self.end_as: End | None = None
        self.cancel_reason: str | None = None
        """Why the run was cancelled, if its cancel was delivered and says why."""
        self.stop_at: int | None = None  # the end of the grace period after a cancel
        self._effects = effects
        self._input, self._input_text = None, "null"  # as it was read, and as it is stored
        self._event_waits: dict[str, tuple[EventKind, str, asyncio.Future[RunEvent]]] = {}
        self._child_waits: dict[str, asyncio.Future[Any]] = {}
        self._waiters: dict[str, int] = {}  # how many waits there are for each child
        self._ended: dict[str, asyncio.Future[Any]] = {}  # the results of children
        self.taken: dict[str, j.Failure] = {}  # children that could not be started
        self._children: dict[str, NewRun] = {}  # children that are not known to have ended
        self._inherited: dict[str, OnParentEnd] = {}  # those of earlier generations
        self._stopped: set[str] = set()  # children that were cancelled
        self.replay_locks = ReplayLocks(self)
        self.patches = Patches(self, (), fresh=False)
        self.streams = CodeStreams(self, ())
        self.requests = ReplayRequests(self, ())

    # -- called by the driver ---------------------------------------------------------------------------

    def replay(self, texts: tuple[str, ...], events: tuple[RunEvent, ...]) -> None:
        """Begin the code, and deliver its history. The first entry is the input."""
        entries = [j.decode_entry(text) for text in texts[1:]]
        self.continued, self.continuing, self.delivered = j.continued_entry(texts), None, 1
        self._inherited = inherited_children(self.continued)
        again = [index for index, entry in enumerate(entries) if isinstance(entry, j.BegunAgain)]
        start = again[-1] + 1 if again else 0
        self.attempt = 1 + len(again)
        self.forked = entries[0] if entries and isinstance(entries[0], j.Forked) else None
        self._inherits = self.forked is not None
        self.signals_again = []
        self.loop.now = self._beginning(entries)
        self.replay_locks = ReplayLocks(self)
        before = entries[:start] if again else None
        self.patches = Patches(self, entries[start:], fresh=begins_here(self.run, texts), before=before)
        self.streams = CodeStreams(self, entries[start:])
        self.requests = ReplayRequests(self, entries[start:])
        self.inbox, self.ends = {}, {}
        begun = [index for index, entry in enumerate(entries) if isinstance(entry, j.AttemptBegun)]
        self.after_others = bool(begun) or is_marked(self.run.id)
        self.restarted = bool(begun) and not any(index < begun[0] for index in again)
        self.earlier = max((entry.seen for entry in entries if isinstance(entry, j.AttemptBegun)), default=0)
        self._unread = {entry.id for entry in entries[start:] if isinstance(entry, j.Unread)}
        self.receive(events)
        self._begin(texts[0])
        for index in range(start, len(entries)):
            self._inherits = self.forked is not None and index <= self.forked.kept
            self.deliver(entries[index])
        self._inherits = False
        self.signals_again = [call for call in self.signals_again if signal_of(call).child in self._children]
        self.unstarted = [new for new in self.unstarted if new.id in self._children]
        if self.attributes == self.run.attributes:
            self.attributes = None
        if self.details == self.run.details:
            self.details = None

    def receive(self, events: Iterable[RunEvent]) -> None:
        """Put events into the inbox. The failure of a child of an earlier attempt is not delivered to this attempt."""
        for event in events:
            if event.kind in LOCK_EVENTS:
                continue
            if event.kind == "child":
                self.ends[event.name] = event.number
                if event.name in self._inherited:  # this generation has not started it
                    continue
                if event.number <= self.earlier and j.read_end(event.payload).status != "completed":
                    continue
            self.inbox[event.number] = event

    @property
    def timeout(self) -> int | None:
        """The timeout of the run in microseconds: that of its start, otherwise that of its workflow."""
        return self.workflow.timeout if self.run.timeout is None else self.run.timeout

    def _beginning(self, entries: list[j.AnyEntry]) -> int:
        """When workflow time begins: when the run was first driven, or when its current attempt began."""
        if self.attempt > 1:
            return next(entry.at for entry in reversed(entries) if isinstance(entry, j.AttemptBegun))
        begun = next((entry for entry in entries if isinstance(entry, j.Begun)), None)
        if begun is None and self.forked is not None:
            return self.forked.began
        if begun is None:
            begun = j.Begun(at=self.run.started_at or self.run.created_at)
            self.preface = begun if self.timeout is not None else None
        return begun.at

    def _begin(self, text: str) -> None:
        run = self.run
        context = Context(self, seed=f"{seed_of(run, self.forked)}:{self.attempt}")
        try:
            value = self.workflow.read_input(text, what=f"the input of the run {run.id!r}")
        except InvalidValue:
            self.input_unreadable = True
            raise
        self._input, self._input_text = value, text
        self.context = context
        scope = copy_context()
        scope.run(current_context.set, context)
        self.root = self.loop.create_task(self._main(context, value), name=self.workflow.name, context=scope)
        self._run_until_quiet()

    def _run_until_quiet(self) -> None:
        """Run the code until it waits. Raises if it cannot read what it could read when it first received it."""
        self.loop.run_until_quiet()
        if self._unfit is not None:
            raise self._unfit

    async def _main(self, context: Context, value: Any) -> Any:
        return await self.workflow(context, value)

    @property
    def done(self) -> bool:
        """Whether the code has ended."""
        return self.root is None or self.root.done()

    def deliver(self, entry: j.AnyEntry) -> None:  # noqa: C901, PLR0912  (one for each kind of entry)
        """Deliver an entry to the code, and run the code until it waits again."""
        self.loop.now = max(self.loop.now, entry.at)
        if isinstance(entry, NOTES):
            return
        self.delivered += isinstance(entry, DELIVERING)
        match entry:
            case j.StepDone():
                call = self._call_of(entry.id, entry.args)
                what = f"the result of the step {call.id!r}"
                if self._inherits and isinstance(call.function, ChildSignal) and bytes(entry.value) == b"null":
                    self.signals_again.append(call)
                _resolve(call.future, decode_value(entry.value, call.output, what=what))
            case j.StepLost():
                error = step_failed(entry.id, entry.error, entry.attempts)
                if not entry.child:
                    _resolve(self._call_of(entry.id, entry.args).future, None, error)
                elif (waiting_for := self._child_waits.get(entry.id)) is not None:
                    self._children.pop(entry.id, None)  # a later replay does not start it again
                    self.taken[entry.id] = entry.error  # and a later wait for it gets the same error
                    _resolve(waiting_for, None, error)
                else:
                    raise self._differs(
                        f"the child {entry.id!r} was refused", f"the children {sorted(self._child_waits)}"
                    )
            case j.Attempted():
                self.tries[entry.id] = entry
            case j.TimerEnded():
                if not self.loop.fire(entry.number):
                    raise self._differs(f"the timer {entry.number} ended", f"{len(self.loop.timers)} timers")
            case j.Signalled():
                waiting = self._event_waits.get(entry.id)
                event = self.inbox.pop(entry.event, None)
                if waiting is None or event is None:
                    raise self._differs(f"{entry.id!r} was delivered", f"signals {sorted(self._event_waits)}")
                self.requests.received(event)
                _resolve(waiting[2], event)
            case j.ChildEnded():
                self._child_ended(entry)
            case j.CancelAsked():
                self._cancelled(entry)
            case j.LockGranted() | j.LockRefused() | j.LockLost() | j.LockGiven():
                self._about_lock(entry)
            case _:
                raise self._differs(f"an entry {type(entry).__name__} follows", "another entry")
        self._run_until_quiet()

    def next_event(self, now: int) -> j.AnyEntry | None:
        """The next event of the inbox that can be delivered: in order of arrival, to the wait that began first."""
        for child, failure in self.taken.items():
            if child in self._child_waits:
                return j.StepLost(at=now, id=child, child=True, error=failure)
        for number, event in self.inbox.items():
            if event.kind == "cancel":
                if self.end_as is None:
                    return j.CancelAsked(at=now, event=number)
            elif event.kind == "child":
                if event.name in self._child_waits and event.name not in self.unclaimed:
                    return j.ChildEnded(at=now, id=event.name, event=number)
            else:
                for wait, (kind, name, future) in self._event_waits.items():
                    if kind == event.kind and name == event.name and not future.done():
                        return j.Signalled(at=now, id=wait, event=number)
        return None

    def next_time(self) -> int | None:
        """When the first timer ends or the first step is retried."""
        first = None
        for call in self.calls.values():
            if call.again_at and (first is None or call.again_at < first):
                first = call.again_at
        timer = self.loop.next_timer() if self.loop.timers else None
        if timer is None:
            return first
        ends = round(timer.when() * 1_000_000)
        return ends if first is None else min(first, ends)

    def stuck(self) -> tuple[str, ...] | None:
        """The children that the run waits for, if it can continue only by them, by locks, or by an event from outside.

        None if something else lets it continue. Also None if it cannot be part of a deadlock, because it has no locks
        and is not a child of another run.
        """
        waits = bool(self._child_waits) or any(lock.waits for lock in self.replay_locks.pending.values())
        matters = bool(self.replay_locks.pending or self.replay_locks.carried or self.run.parent)
        stuck = (
            waits
            and matters
            and not self.done
            and not self.calls
            and not self.loop.timers
            and not self._event_waits
            and len(self._child_waits) <= MAX_CHILDREN_NAMED
        )
        return tuple(self._child_waits) if stuck else None

    @property
    def waits(self) -> tuple[str, ...]:
        """A readable list of what the code waits for, without timers."""
        return (
            *(f"the step {step!r}" for step in self.calls),
            *(f"the {kind} {name!r}" for kind, name, _ in self._event_waits.values()),
            *(f"the child {child!r}" for child in self._child_waits),
            *(f"the lock {lock.request.key!r}" for lock in self.replay_locks.pending.values() if lock.waits),
        )

    @property
    def first_cancel(self) -> RunEvent | None:
        """The first cancel that was not delivered yet."""
        return next((event for event in self.inbox.values() if event.kind == "cancel"), None)

    @property
    def untaken(self) -> tuple[RunEvent, ...]:
        """Signals that were delivered, and that the code has not got."""
        return () if self.context is None else untaken_signals(self.context)

    @property
    def children(self) -> tuple[str, ...]:
        """The children that this generation has started and that are not known to have ended."""
        return tuple(self._children)

    @property
    def living_children(self) -> tuple[str, ...]:
        """All children that are not known to have ended, also those of earlier generations."""
        return tuple(dict.fromkeys((*self._inherited, *self._children)))

    def with_policy(self, on_parent_end: OnParentEnd) -> frozenset[str]:
        """Those of the living children that were started with this `on_parent_end`."""
        return frozenset(child for child in self.living_children if self.policy_of(child) == on_parent_end)

    def policy_of(self, child: str) -> OnParentEnd:
        """The `on_parent_end` of a living child."""
        new = self._children.get(child)
        return self._inherited.get(child, "") if new is None else new.on_parent_end

    def refuse_child(self, id: str, why: HoldfastError) -> None:
        """The child was not started: its id is that of another run, or a limit refused it."""
        self._children.pop(id, None)
        self.taken[id] = j.Failure(f"holdfast.errors.{type(why).__name__}", str(why))

    def leave(self) -> None:
        """End the code at once. Every call that it still makes raises `RunLeft`."""
        self.over = True
        self.loop.abandon()

    # -- called by the context --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if this process has stopped driving the run, or if the caller is not the code of the run."""
        if self.over:
            raise RunLeft
        if current_context.get() is not self.context:
            raise NotInWorkflow(
                "ctx can be used only in the code of its workflow, which is replayed, not in the body of a step or in "
                "a thread. Do this in the workflow, and pass values to the step as arguments; current_step() returns "
                "the step's idempotency key."
            )
        if self.continuing is not None:
            raise self.continuing

    async def out(self) -> None:
        """Raise in code that awaits something after its run was left; code that ignores this is suspended for good."""
        self._calls_leaving += 1
        if self._calls_leaving > MAX_CALLS_LEAVING:
            await self.loop.create_future()
        raise RunLeft

    def new_call(self, *, function: Any, **more: Any) -> StepCall:
        """The code calls a step."""
        self.check()
        call = StepCall(
            function=function,
            output=function.output if isinstance(function, SlotWork) else output_of(function),
            future=self.loop.create_future(),
            **more,
        )
        self.calls[call.id] = call
        if not self.replaying:
            self._effects.called(call)
        return call

    def signal_child(self, signal: ChildSignal, id: str) -> StepCall:
        """The code sends a signal to a child."""
        function: Any = signal
        call = StepCall(
            id=id,
            name=id,
            function=function,
            args=(),
            options={},
            arguments=j.arguments_hash((signal.name, signal.payload), {}),
            output=Any,
            retry=ONCE,
            timeout=None,
            transaction=False,
            future=self.loop.create_future(),
        )
        self.calls[id] = call
        if not self.replaying:
            self._effects.called(call)
        return call

    def drop_call(self, call: StepCall) -> None:
        """The code does not wait for this step any more."""
        self.calls.pop(call.id, None)
        self._effects.dropped(call)

    async def wait_for_signal(self, name: str, id: str, type: Any) -> Received:
        """Wait for the next signal of this name, and read it as this type."""
        event = await self.wait_for_event("signal", name, id)
        return Received(event, await self.read(event.payload, type, id=id, what=f"the signal {name!r}"))

    async def wait_for_event(self, kind: EventKind, name: str, id: str) -> RunEvent:
        """Wait for the next event of this kind and name.

        Its waiter receives it in the delivery that resolves the future, so nothing can cancel the waiter in between.
        """
        self.check()
        future: asyncio.Future[RunEvent] = self.loop.create_future()
        self._event_waits[id] = (kind, name, future)
        try:
            return await future
        finally:
            self._event_waits.pop(id, None)

    def was_unreadable(self, id: str) -> bool:
        """Whether the code that first received something by this wait could not read it."""
        return id in self._unread

    async def read(self, text: str, type: Any, *, id: str, what: str, recorded: bool = False) -> Any:
        """Read a value that the code has received; `id` is the wait that received it.

        The first time, a value that cannot be read is an error of the workflow, unless it is `recorded`: other code of
        this project has written it. In a replay, code that cannot read a value which it could read then does not fit
        the history. Such code does not continue.
        """
        try:
            return decode_value(text, type, what=what)
        except InvalidValue as error:
            if id not in self._unread:
                if self.replaying or recorded:
                    self._unfit = error
                    await self.loop.create_future()
                self._unread.add(id)
                self.note(j.Unread(at=self.loop.now, id=id))
            raise

    def inherited_child(self, place: str) -> str | None:
        """The id under which a child has ended in the run of which this one is a fork; None: there is no such child."""
        if self.forked is not None:
            for run in self.forked.runs:
                child = marked(f"{run}/{place}", self.attempt)
                if child in self.forked.children:
                    return child
        return None

    def start_child(self, new: NewRun) -> None:
        """Start a child with the next record. A start that is repeated after a replay is recognised by the store."""
        if self.forked is not None and new.id in self.forked.children:
            return  # it has ended
        self._children[new.id] = new
        self.taken.pop(new.id, None)  # it may be admitted this time
        self.writes += 1
        if self.replaying or not self.after_others:
            self.unstarted.append(new)
        else:
            self._effects.reclaim(new)

    async def wait_for_child(self, id: str) -> str:
        """Wait for a child's end. Several waits for one child are allowed, also after its end."""
        self.check()
        future = self._ended.get(id) or self._child_waits.setdefault(id, self.loop.create_future())
        self._waiters[id] = self._waiters.get(id, 0) + 1
        try:
            result: str = await asyncio.shield(future)
        finally:
            self._waiters[id] -= 1
            if not self._waiters[id]:
                self._child_waits.pop(id, None)
        return result

    def cancel_child(self, id: str, reason: str = "") -> None:
        """Cancel a child, once."""
        if self.over or self.continuing is not None or id in self._stopped:
            return
        if id in self._children or id in self._inherited:
            self._stopped.add(id)
            if self._inherits and self.forked is not None:  # this run has not started it, and does not need to
                self.refuse_child(id, WorkflowFailed(f"the child was cancelled in the run {self.forked.origin!r}"))
                return
            self._effects.cancel_child(id, reason)

    def continue_as_new(self, input: str) -> ContinueAsNew:
        """The code asks for the next generation of its run, with this input."""
        self.check()
        self.continuing = ContinueAsNew(input)
        return self.continuing

    def note(self, entry: j.AnyEntry) -> None:
        """Write an entry about something that the code did."""
        self._effects.noted(entry)

    def set_attributes(self, attributes: dict[str, Scalar]) -> None:
        """Change the attributes of the run, with the next record."""
        self.check()
        before = self.run.attributes if self.attributes is None else self.attributes
        self.attributes = before | attributes
        self.writes += 1

    def set_details(self, text: str) -> None:
        """Change the details of the run, with the next record."""
        self.check()
        self.details = text
        self.writes += 1

    # -- parts of the delivery --------------------------------------------------------------------------

    def _call_of(self, id: str, arguments: str) -> StepCall:
        call = self.calls.pop(id, None)
        if call is None:
            raise self._differs(f"the step {id!r} ended", f"the steps {sorted(self.calls)}")
        if call.arguments != arguments and self._arguments_as_stored(call) != arguments:
            raise self._differs(
                f"the step {id!r} was called with arguments that hash to {arguments or 'nothing'}",
                f"the same step with arguments that hash to {call.arguments or 'nothing'}",
            )
        return call

    def _arguments_as_stored(self, call: StepCall) -> str:
        """The hash of a step's arguments with the stored text of the input, where the input itself is an argument.

        An input that older code has stored may have got fields since, by defaults or by `upgrade=`.
        """

        def stored(value: Any) -> Any:
            return msgspec.Raw(self._input_text.encode()) if value is self._input else value

        return j.arguments_hash(
            tuple(map(stored, call.args)), {name: stored(one) for name, one in call.options.items()}
        )

    def _differs(self, history: str, code: str) -> NonDeterminismError:
        found, cause = how_it_ended(self.root) if self.done else (f"waits for {code}", None)
        of_a_fork = (
            f" The run is a fork, and has this from the run {self.forked.origin!r}: another input or another "
            "ctx.run_id may lead the code elsewhere. Fork from an earlier step."
            if self._inherits and self.forked is not None
            else ""
        )
        error = NonDeterminismError(
            f"the run {self.run.id!r} of {self.workflow.type!r} does not follow its history. There {history}; the code "
            f"{found}. The workflow was changed while the run was in progress, or decides by something that is not "
            "recorded (time, random numbers, a global). Give the changed workflow a new version, or use ctx.patched(), "
            f"ctx.now(), ctx.random() and steps.{of_a_fork}",
            recorded=history,
            found=found,
        )
        error.__cause__ = cause  # its traceback shows where the code has raised
        return error

    def _child_ended(self, entry: j.ChildEnded) -> None:
        future = self._child_waits.get(entry.id)
        event = self.inbox.pop(entry.event, None)
        if future is None or event is None:
            raise self._differs(f"the child {entry.id!r} ended", f"the children {sorted(self._child_waits)}")
        self._children.pop(entry.id, None)
        self._ended[entry.id] = future
        end = j.read_end(event.payload)
        if end.status == "completed":
            _resolve(future, bytes(end.result).decode())
            return
        failure = j.read_failure(end.result)
        error = WorkflowFailed(
            f"the child {entry.id!r} is {end.status}: {failure}",
            run_id=entry.id,
            status=end.status,
            kind=failure.type,
            detail=failure.message,
            traceback=failure.traceback,
        )
        _resolve(future, None, error)

    def _about_lock(self, entry: j.LockGranted | j.LockRefused | j.LockLost | j.LockGiven) -> None:
        match entry:
            case j.LockGranted():
                instead, what = self.replay_locks.granted(entry), f"the lock {entry.key!r} was granted"
            case j.LockRefused():
                instead, what = self.replay_locks.refused(entry), "a lock was refused"
            case j.LockGiven():
                instead, what = self.replay_locks.released(entry.number), "a lock was released"
            case _:
                self.replay_locks.lost(entry.number)
                return
        if instead:
            raise self._differs(what, instead)

    def _cancelled(self, entry: j.CancelAsked) -> None:
        event = self.inbox.pop(entry.event, None)
        self.cancel_reason = (reason_in(event.payload) or None) if event is not None else None
        self.end_as = "cancelled" if entry.event else "timed_out"
        self.stop_at = entry.at + GRACE
        for child in [one for one in self.living_children if self.policy_of(one) != "abandon"]:
            self.cancel_child(child, (self.cancel_reason or "") if entry.event else "its timeout has expired")
        if self.root is not None:
            self.root.cancel(self.cancel_reason)


def seed_of(run: Run, forked: j.Forked | None) -> str:
    """What the random numbers of a run depend on, besides its attempt: a fork has those of the other run."""
    own = f"{generation_id(run.id, run.generation)}:{run.request}:{run.created_at}"
    return own if forked is None else forked.seed


def _resolve(future: asyncio.Future[Any], value: Any, error: BaseException | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
