"""The engine: starts, drives and queries runs.

    async with Engine("postgresql://...", workflows=[order]) as engine:
        handle = await engine.start(order, Order(id=42))
        receipt = await handle.result()

Any number of engines work on one store; each run is driven by one of them at a time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from msgspec.structs import replace

from ..commands.runs import CountRuns
from ..errors import ClientClosed, InvalidOption, StoreUnusable, WorkflowNotRegistered
from ..events import Events
from ..observe import LoggingSink
from ..platform import elapsed
from ..rules.runs.outcomes import Claim, Posted, RunCounts, Started
from ..rules.runs.record import OnExisting, RunEvent, Scalar, Status
from ..runtime.base import BaseClient
from ..runtime.flows import Flow, send
from ..runtime.misuse import AsyncOnly, require_asyncio
from ..runtime.runners import run_async
from ..runtime.threads import in_thread
from ..stores import Handle
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, checked_ttl, seconds
from .client_runs import AsyncRunQueries
from .definition import Workflow, checked_retention
from .driver import Driver
from .limits import Admission, admission_of
from .queries import Incarnation, RunInfo, RunQueries, checked_timeout, result_of
from .requests import AsyncApprovals, RequestQueries
from .retention import Retention, limits_of
from .streams import StreamItem, StreamReader, read_async
from .worker import Worker

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")

GRACE_SECONDS = 10.0
MAX_STREAM_BYTES = 16 * 1_048_576
SWEEP = 100


class RunHandle(Generic[O]):
    """A run, by its id. Any process may drive it.

    `result` refers to one run: the run that was started, or the first run that this handle has read. If another run
    replaces it, `result` is still the result of the replaced run. All other methods refer to the run that has the id
    now.
    """

    def __init__(
        self,
        queries: RunQueries,
        worker: Worker,
        id: str,
        output: Any,
        *,
        admission: Admission | None = None,
        first: int | None = None,
    ) -> None:
        self._awaited = Incarnation(first)
        self._queries, self._worker, self.id, self._output = queries, worker, id, output
        self.admission = admission
        """What the limits of its workflow decided, where this handle is the result of a start."""

    async def result(self, timeout: Duration | None = None) -> O:  # noqa: ASYNC109  (the usual name)
        """Wait for the result of the run. Raises `WorkflowFailed`, or `RunResultTimeout` after `timeout`."""
        limit, since = checked_timeout(timeout), elapsed()
        # The store need not be asked about a run that ends here.
        ended = await self._worker.end_of(self.id, limit, self._awaited)
        if ended is not None:
            result: O = result_of(ended, self._output)
            return result
        flow = self._queries.result(self.id, self._output, limit, since=since, awaited=self._awaited)
        return await self._run(flow)

    async def status(self) -> Status:
        """The status of the run now."""
        return (await self._run(self._queries.get(self.id))).status

    async def info(self) -> RunInfo:
        """Everything about the run as it is now."""
        return await self._run(self._queries.get(self.id))

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the run. The run and its callers see the reason; the reason of the first cancel counts."""
        await self._run(self._queries.cancel(self.id, reason))

    async def signal(self, name: str, payload: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send the run a signal."""
        await self._run(self._queries.signal(self.id, name, payload, idempotency_key))

    def stream(self, name: str, *, after: int | None = None, type: Any = None) -> AsyncGenerator[StreamItem[Any], None]:
        """The items of a stream of the run, as they come, until it has ended; see `Engine.stream`."""
        reader = StreamReader(self._queries, self.id, name, after=after, type=type)
        return read_async(reader, self._queries.client.runtime.batchers)

    async def update(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  (the usual name)
        idempotency_key: str | None = None,
        type: Any = None,
    ) -> Any:
        """Send the run a request and wait for its reply, read as `type`; it receives it by `ctx.updates(name)`.

        Raises `UpdateRefused`, `UpdateTimeout` after `timeout`, or `RunEnded` if the run ends without an answer.
        """
        requests = RequestQueries(self._queries.client, max_bytes=self._queries.max_bytes)
        flow = requests.update(
            self.id,
            name,
            payload,
            timeout=checked_timeout(timeout),
            idempotency_key=idempotency_key,
            output=Any if type is None else type,
        )
        return await self._run(flow)

    async def _run(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._queries.client.runtime.batchers)

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}>"


class _EngineClient(BaseClient):
    """The client of an engine that was given a store."""

    _opens_at_once = False


class Engine(AsyncRunQueries, AsyncOnly):
    """Drives the runs of its workflows, and starts and queries runs of any workflow.

    The first argument is a store (a URL, or a pool, engine or client of its driver) or an open `Client`. `namespace`,
    `name` and `store_options` are those of `Client`, and are refused beside a client, which has its own.
    When this process crashes, its runs can be claimed by others after `worker_ttl`; heartbeats are sent every third of
    it. With `recover=False` the engine claims nothing by itself: it drives the runs that it starts or resumes.
    `version` names the code of this process, such as a release or a commit; it is recorded in the runs that the engine
    drives, and shown with them.
    `retain`, such as "30 days", is how long ended runs of these workflows are kept, unless a workflow has its own
    `retain`; without it they are kept forever. The engine removes older runs in the background.
    Of each stream of a run the latest `max_stream_bytes` are kept.
    """

    _worker_type: type[Worker] = Worker

    def __init__(
        self,
        url_or_client: str | BaseClient | Handle | None = None,
        *,
        workflows: Sequence[Workflow[Any, Any]] = (),
        name: str | None = None,
        worker_ttl: Duration = 30,
        max_active_runs: int = 1_000,
        recover: bool = True,
        namespace: str | None = None,
        store_options: Mapping[str, object] | None = None,
        park_after: Duration = 10,
        max_bytes: int | None = None,
        max_stream_bytes: int = MAX_STREAM_BYTES,
        grace: Duration = GRACE_SECONDS,
        version: str | None = None,
        retain: Duration | None = None,
    ) -> None:
        self._where = url_or_client
        self._options: dict[str, Any] = {"namespace": namespace, "name": name, "store_options": store_options}
        self._options = {option: value for option, value in self._options.items() if value is not None}
        if isinstance(url_or_client, BaseClient) and self._options:
            raise InvalidOption(
                f"{', '.join(self._options)} cannot be given to an engine on an open client, which has its own: give "
                "this to the client, or give the engine the store's URL"
            )
        self._workflows = _by_type(workflows)
        self._ttl = checked_ttl(worker_ttl, what="worker_ttl") / MICROSECONDS
        self._max_active = checked_count(max_active_runs, what="max_active_runs")
        self._recover = recover
        self._park_after = seconds(park_after, what="park_after")
        self._max_bytes = None if max_bytes is None else checked_count(max_bytes, what="max_bytes")
        self._max_stream_bytes = checked_count(max_stream_bytes, what="max_stream_bytes")
        self._grace = seconds(grace, what="grace")
        self._version = "" if version is None else checked_key(str(version), what="version")
        self._retain = checked_retention(retain)
        self._retention: Retention | None = None
        self._process = 0
        self._client: BaseClient | None = None
        self._worker: Worker | None = None
        self._queries: RunQueries | None = None

    @property
    def events(self) -> Events:
        """The events of this engine: subscribe when it is open."""
        return self._ready().client.events

    @property
    def approvals(self) -> AsyncApprovals:
        """The requests of runs that people answer."""
        return AsyncApprovals(self._ready().client)

    @property
    def active_runs(self) -> int:
        """How many runs this engine has in memory."""
        return 0 if self._worker is None else len(self._worker.drivers)

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store and begin to drive."""
        require_asyncio()
        if self._worker is not None:
            raise InvalidOption("this engine is open already: an engine is opened once")
        self._process = os.getpid()
        where = self._where
        client = where if isinstance(where, BaseClient) else self._new_client(where)
        self._client, self._queries = client, RunQueries(client, max_bytes=self._max_bytes or client.max_bytes)
        try:
            await in_thread(client._open, name="holdfast-opener")  # noqa: SLF001  (reads and writes files)
            await self._begin(client)
        except BaseException:
            await self.close(0)
            raise

    async def _begin(self, client: BaseClient) -> None:
        if not client.runtime.store.capabilities.workflows:
            raise StoreUnusable(
                f"{client.url} cannot run workflows: use SQLite, PostgreSQL, MySQL, MariaDB, Redis or Valkey"
            )
        self._worker = self._new_worker(client)
        await self._publish(client)
        await self._worker.start()
        self._retention = Retention(client, limits_of(self._workflows.values(), self._retain))
        self._start_retention(self._retention)
        unknown = await self.unclaimed()
        if unknown and self._workflows:
            client.events.emit("types_unknown", worker=client.label(None).name, types=unknown)

    async def _publish(self, client: BaseClient) -> None:
        """Publish the limits of the workflows.

        Of several versions of one workflow, the limits with the highest `version=` are published; if equal, those of
        the last in the list.
        """
        latest: dict[str, Workflow[Any, Any]] = {}
        for workflow in self._workflows.values():
            known = latest.get(workflow.name)
            if known is None or workflow.terms.version >= known.terms.version:
                latest[workflow.name] = workflow
        queries = self._ready()
        counts = await asyncio.gather(*(self._run(queries.announce(one.name, one.terms)) for one in latest.values()))
        for workflow, ours in zip(latest.values(), counts, strict=True):
            if not ours:
                client.events.emit("limits_outdated", workflow=workflow.name, version=workflow.terms.version)

    def _new_worker(self, client: BaseClient) -> Worker:
        return self._worker_type(
            client,
            self._workflows,
            name=client.label(None).name,
            ttl=self._ttl,
            max_active=self._max_active,
            park_after=self._park_after,
            max_bytes=self._max_bytes or client.max_bytes,
            max_stream_bytes=self._max_stream_bytes,
            recover=self._recover,
            engine=secrets.token_hex(8),
            code=self._version,
        )

    def _start_retention(self, retention: Retention) -> None:
        retention.start()

    def _new_client(self, where: str | Handle | None) -> BaseClient:
        return _EngineClient(where, **self._options, events=Events(LoggingSink()))

    async def close(self, grace: Duration | None = None) -> None:
        """Wait up to `grace` for the steps in progress, release all runs for other workers, and close."""
        if self._process not in {0, os.getpid()}:
            return  # the child of a fork has nothing to close
        retention, self._retention = self._retention, None
        if retention is not None:
            await retention.stop()
        worker, self._worker = self._worker, None
        client, self._client = self._client, None
        if worker is not None:
            await worker.stop(self._grace if grace is None else seconds(grace, what="grace"))
        if client is not None and client is not self._where:
            await in_thread(client._shut, name="holdfast-closer")  # noqa: SLF001

    async def drain(self, grace: Duration | None = None) -> None:
        """Claim no further run, release each run when its steps in progress have ended, and close."""
        await self.close(grace)

    # -- runs -------------------------------------------------------------------------------------------

    @overload
    async def start(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
        connection: Any = None,
    ) -> RunHandle[O]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[None, O],
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
        connection: Any = None,
    ) -> RunHandle[O]: ...
    @overload
    async def start(
        self,
        workflow: str,
        input: Any = None,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
        connection: Any = None,
        require_definition: bool = False,
    ) -> RunHandle[Any]: ...
    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
        connection: Any = None,
        require_definition: bool = False,
    ) -> RunHandle[Any]:
        """Start a run. With an idempotency key, the run that was started with it is returned, if there is one.

        The id must be new, unless `on_existing` is "use", which returns the run that has the id, whether it has ended
        or not; or "replace_ended", which starts the run in the place of one that has ended. That one is kept as
        `<id>~<n>`, where n is its generation, and callers that wait for its result get it.

        `timeout` is used instead of that of the workflow. With `delay` the run begins after that time, at the earliest,
        by the store's clock. Until then it is pending, keeps its signals, and holds its places in limits.

        With `connection`, the run is started in the transaction that is open on this synchronous connection, which is
        used in another thread meanwhile (a sqlite3 connection needs `check_same_thread=False`).
        """
        queries, worker = self._open()
        known = self._named(workflow)
        new = queries.new_run(
            known,
            input,
            id=id,
            idempotency_key=idempotency_key,
            attributes=attributes,
            priority=priority,
            on_existing=on_existing,
            timeout=timeout,
            delay=delay,
        )
        new = replace(new, code=self._version) if self._version else new
        if connection is not None:
            started = await self._start_within(connection, new, known, require_definition=require_definition)
        elif new.type not in self._workflows or worker.room < 1 or new.delay:
            started = await self._run(queries.start(new, workflow=known, require_definition=require_definition))
        else:
            worker.expect(new.id)
            try:
                started = await self._run(queries.start(new, worker.id, workflow=known))
                await self._drive(started, new.input)
            finally:
                worker.unexpect(new.id)
        return self._handle_of(started, known)

    def _handle_of(self, outcome: Started | Posted, workflow: Workflow[Any, Any] | str) -> RunHandle[Any]:
        """The handle of a run that was started, or that was there."""
        output = workflow.output_type if isinstance(workflow, Workflow) else Any
        admission = admission_of(outcome.verdict) if isinstance(outcome, Started) else None
        return RunHandle(*self._open(), outcome.run.id, output, admission=admission, first=outcome.run.first)

    async def _drive(self, started: Started, input: str, *events: RunEvent) -> None:
        """Drive a run that was started for this worker, with the events that it was started with."""
        worker, run = self._open()[1], started.run
        if not started.fresh or not run.worker or run.worker != worker.id:
            return
        ending = worker.drivers.get(run.id)
        if ending is not None and ending.run.fence != run.fence:  # it has driven the run that this one replaces
            await ending.finished.wait()
        if run.id in worker.drivers:
            return
        if run.posted > len(events) or run.length > 1:  # the start was sent again, and something happened in between
            await worker.claim(limit=1, runs=(run.id,))
        else:
            numbered = tuple(replace(event, number=n, at=run.created_at) for n, event in enumerate(events, 1))
            worker.drive(Claim(run=run, entries=(input,), events=numbered))

    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, O]) -> RunHandle[O]: ...
    @overload
    def handle(self, run_id: str, workflow: None = None) -> RunHandle[Any]: ...
    def handle(self, run_id: str, workflow: Workflow[Any, Any] | None = None) -> RunHandle[Any]:
        """A handle of a run by its id; with its workflow, its result is typed."""
        return RunHandle(*self._open(), run_id, Any if workflow is None else workflow.output_type)

    @overload
    async def start_or_signal(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> RunHandle[O]: ...
    @overload
    async def start_or_signal(
        self,
        workflow: Workflow[None, O],
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> RunHandle[O]: ...
    @overload
    async def start_or_signal(
        self,
        workflow: str,
        input: Any = None,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> RunHandle[Any]: ...
    async def start_or_signal(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> RunHandle[Any]:
        """Send a signal to the run with this id; if there is none that has not ended, start one with this signal.

        Both are one atomic step, so no signal is lost if the run ends meanwhile. A run that has ended is replaced as
        by `start(on_existing="replace_ended")`, unless it has received a signal with this idempotency key: then
        nothing is started or sent. If a limit does not admit the new run, no signal is sent.
        """
        queries, worker = self._open()
        known = self._named(workflow)
        new = queries.new_run(known, input, id=id, idempotency_key=None, timeout=timeout, delay=delay)
        new = replace(new, code=self._version) if self._version else new
        event = queries.signal_event(name, payload, idempotency_key)
        if new.type not in self._workflows or worker.room < 1 or new.delay:
            return self._handle_of(await self._run(queries.start_or_signal(new, event, workflow=known)), known)
        worker.expect(new.id)
        try:
            outcome = await self._run(queries.start_or_signal(new, event, worker.id, workflow=known))
            if isinstance(outcome, Started):
                await self._drive(outcome, new.input, event)
        finally:
            worker.unexpect(new.id)
        return self._handle_of(outcome, known)

    # -- driving ----------------------------------------------------------------------------------------

    async def resume(self, run_id: str) -> RunInfo:
        """Drive a run until it waits or ends, and return its state. If another process drives it, return at once."""
        queries, worker = self._open()
        before = await self._run(queries.get(run_id))
        driver = worker.drivers.get(run_id)
        if driver is None and before.living:
            driver = next(iter(await worker.claim(limit=1, runs=(run_id,))), None)
        while driver is not None:
            await at_rest(driver)
            again = driver.left == "continued"  # its next generation may have been claimed by another worker
            driver = worker.drivers.get(run_id) if again else None
            if again and driver is None:
                driver = next(iter(await worker.claim(limit=1, runs=(run_id,))), None)
        return await self._run(queries.get(run_id))

    async def sweep(self, limit: int = SWEEP) -> int:
        """Drive each due run once, until it waits or ends. Returns their number. For cron and serverless."""
        _, worker = self._open()
        checked_count(limit, what="limit")
        await worker.lock_sweeper.sweep_all()
        drivers = await worker.claim(limit=limit)
        while len(drivers) < limit and (more := await worker.try_blocked(limit - len(drivers))):
            drivers += more
        await asyncio.gather(*(at_rest(driver) for driver in drivers))
        for driver in drivers:
            driver.park()
        await asyncio.gather(*(driver.finished.wait() for driver in drivers if driver.left is None and driver.end))
        return len(drivers)

    async def recover_all(self) -> int:
        """Claim all due runs, also those of crashed workers; returns how many.

        Raises `WorkflowNotRegistered` before anything is claimed if the store has runs of workflows, not
        ended, that this engine does not know.
        """
        _, worker = self._open()
        unknown = await self.unclaimed()
        if unknown:
            found = ", ".join(f"{kind} ({count})" for kind, count in sorted(unknown.items()))
            raise WorkflowNotRegistered(
                f"the store has runs that have not ended, of workflows that this engine does not know: {found}. They "
                "were not changed. Register these workflows (and versions), or let another engine drive them.",
                types=unknown,
            )
        claimed = 0
        while worker.room > 0 and (drivers := await worker.claim(limit=worker.room)):
            claimed += len(drivers)
        return claimed

    async def unclaimed(self) -> dict[str, int]:
        """The number of runs, not ended, of workflows or versions that this engine does not know, by type."""
        outcome, _ = await self._run(send(CountRuns()))
        assert isinstance(outcome, RunCounts)  # noqa: S101
        known = {workflow.any_type for workflow in self._workflows.values()} | set(self._workflows)
        return {kind: count for kind, count in outcome.counts.items() if kind not in known}

    # -- parts ------------------------------------------------------------------------------------------

    def _open(self) -> tuple[RunQueries, Worker]:
        if self._queries is None or self._worker is None:
            raise _not_open()
        self._check_process()
        return self._queries, self._worker

    def _ready(self) -> RunQueries:
        if self._queries is None or self._client is None:
            raise _not_open()
        self._check_process()
        return self._queries

    def _check_process(self) -> None:
        """Raise in the child of a fork: the runs and the event loop belong to its parent."""
        if self._process != os.getpid():
            raise ClientClosed(
                f"this engine was opened by the process {self._process}, and this is a child of that process (fork): "
                "the runs belong to the parent. Open another engine here, or use a Client."
            )

    def _named(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | str:
        """The definition of a workflow whose name is known here; the last one given, if there are several."""
        if isinstance(workflow, str):
            found = [one for one in self._workflows.values() if workflow in (one.name, one.type)]
            return found[-1] if found else workflow
        return workflow

    def __repr__(self) -> str:
        state = "closed" if self._client is None else self._client.url
        return f"<Engine {state} workflows={sorted(self._workflows)}>"


def _not_open() -> ClientClosed:
    return ClientClosed("this engine is not open: use `async with Engine(...) as engine`, or await open()")


async def at_rest(driver: Driver) -> None:
    """Wait until a run waits for time or for others, or is no longer driven here."""
    while driver.left is None and not driver.idle:
        driver.became_idle.clear()
        await driver.became_idle.wait()


def _by_type(workflows: Sequence[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    found: dict[str, Workflow[Any, Any]] = {}
    if isinstance(workflows, Workflow | str) or not isinstance(workflows, Iterable):
        raise InvalidOption(f"workflows={workflows!r} is no list of workflows: give workflows=[...]")
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise InvalidOption(f"{workflow!r} is no workflow: decorate it with @workflow")
        if workflow.type in found:
            raise InvalidOption(f"two workflows are called {workflow.type!r}: give one another name or version")
        found[workflow.type] = workflow
    return found
