"""`client.runs`: start, read, signal and cancel runs from any process, without driving them: Django, Flask, scripts.

A workflow is given by its definition or by its name; the process needs no engine and none of the workflow's code.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, TypeVar, overload

import msgspec

from ..rules.runs.outcomes import Started
from ..rules.runs.record import NewRun, OnExisting, Scalar
from ..runtime.base import BaseClient
from ..runtime.flows import Flow
from ..runtime.runners import run, run_async
from ..runtime.runners import run as run_sync
from ..runtime.threads import in_thread
from ..validation import Duration
from .definition import Workflow
from .entries import RunEntry, history
from .forking import fork
from .history import RunHistory, export, history_of
from .importing import import_history
from .purging import Purge, PurgeReport, checked_request
from .queries import RunInfo, RunQueries, RunsPage, checked_timeout, wanted_runs
from .requests import RequestQueries
from .streams import StreamItem, StreamReader, read, read_async

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")


class AsyncRunQueries:
    """The methods about runs that an asynchronous client and an engine have in common."""

    def _ready(self) -> RunQueries:
        """The queries of this client; raises when it is closed."""
        raise NotImplementedError

    async def _run(self, flow: Flow[T]) -> T:
        return await run_async(flow, self._ready().client.runtime.batchers)

    async def _start_within(
        self, connection: Any, new: NewRun, workflow: Workflow[Any, Any] | str, *, require_definition: bool
    ) -> Started:
        """Start a run in the transaction that is open on a connection, which is used in another thread meanwhile."""
        queries = self._ready()
        begin = partial(queries.start_within, connection, new, workflow=workflow, require_definition=require_definition)
        started = await in_thread(begin, name="holdfast-transaction")
        await self._run(queries.look_for_workers_of(started.run))
        return started

    async def get(self, run_id: str) -> RunInfo:
        """A run as it is now. Raises `UnknownRun`."""
        return await self._run(self._ready().get(run_id))

    async def history(self, run_id: str) -> tuple[RunEntry, ...]:
        """What a run has recorded, in order: steps, timers, signals, children, locks. Raises `UnknownRun`.

        It is the history of its present generation, whether the run has ended or not.
        """
        return await self._run(history(self._ready(), run_id))

    async def list(
        self,
        *,
        status: str | tuple[str, ...] | builtins.list[str] | None = None,
        workflow: Workflow[Any, Any] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> RunsPage:
        """A page of runs, the newest first; `after` is `next` of the previous page."""
        wanted = wanted_runs(
            status=status, workflow=workflow, since=since, until=until, attributes=attributes, prefix=prefix
        )
        return await self._run(self._ready().list(wanted, after=after, limit=limit))

    @overload
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: type[T]
    ) -> AsyncGenerator[StreamItem[T], None]: ...
    @overload
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: Any = None
    ) -> AsyncGenerator[StreamItem[Any], None]: ...
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: Any = None
    ) -> AsyncGenerator[StreamItem[Any], None]:
        """The items of a stream of a run, as they come, until the run has ended, for `async for`.

        Without `after` it begins with the first item that is kept; with the offset of an item, behind that item. Raises
        `StreamTruncated` if items behind it are not kept any more. `type` is what each item is read as.
        """
        queries = self._ready()
        reader = StreamReader(queries, run_id, name, after=after, type=type)
        return read_async(reader, queries.client.runtime.batchers)

    async def signal(self, run_id: str, name: str, payload: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send a signal to a run that has not ended. It is kept until the run reads it; one key counts once."""
        await self._run(self._ready().signal(run_id, name, payload, idempotency_key))

    async def update(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  (the usual name)
        idempotency_key: str | None = None,
        type: Any = None,
    ) -> Any:
        """Send a request to a run and wait for its reply, read as `type`; the run receives it by `ctx.updates(name)`.

        Raises `UpdateRefused`, `UpdateTimeout` after `timeout`, or `RunEnded` if the run ends without an answer. With
        the `idempotency_key` of an earlier request, that one's answer is returned.
        """
        requests = RequestQueries(self._ready().client, max_bytes=self._ready().max_bytes)
        return await self._run(
            requests.update(
                run_id,
                name,
                payload,
                timeout=checked_timeout(timeout),
                idempotency_key=idempotency_key,
                output=Any if type is None else type,
            )
        )

    async def cancel(self, run_id: str, *, reason: str | None = None) -> None:
        """Cancel a run, in whichever process it is driven; its `finally` blocks have 30 seconds.

        The run and its callers see the `reason`. If the run was cancelled before, that cancel's reason counts.
        """
        await self._run(self._ready().cancel(run_id, reason))

    async def retry(self, run_id: str) -> RunInfo:
        """Continue a failed run from the step that failed, or let a blocked run be tried at once."""
        return await self._run(self._ready().revive(run_id, restart=False))

    async def fail(self, run_id: str, reason: str) -> RunInfo:
        """End a run that no worker drives, such as a blocked run, as failed; its locks are released."""
        return await self._run(self._ready().fail(run_id, reason))

    async def restart(self, run_id: str) -> RunInfo:
        """Start a run again with a new history. Raises `RunLocked` while a worker drives it."""
        return await self._run(self._ready().revive(run_id, restart=True))

    async def fork(
        self, run_id: str, *, from_step: str | None = None, input: Any = msgspec.UNSET, id: str | None = None
    ) -> RunInfo:
        """Start a new run with the history of this one before a step, or before its failure; it continues from there.

        `from_step` is the id of the step as `holdfast runs show` prints it, such as `charge#2`. Kept steps are not
        executed again; the named step and later steps have new idempotency keys. `input` replaces the input.
        """
        return await self._run(fork(self._ready(), run_id, from_step=from_step, input=input, id=id))

    async def purge(
        self,
        *,
        older_than: Duration,
        status: str | Sequence[str] | None = None,
        workflow: Workflow[Any, Any] | str | None = None,
        dry_run: bool = False,
    ) -> PurgeReport:
        """Remove runs that ended longer than `older_than` ago, with their descendants; or count them (`dry_run`).

        `status` and `workflow` select trees by their first run. A tree stays as a whole while one of its runs has not
        ended, or ended more recently.
        """
        request = checked_request(older_than=older_than, status=status, workflow=workflow, dry_run=dry_run)
        return await self._run(Purge(request, events=self._ready().client.events).run())

    async def export(self, run_id: str) -> RunHistory:
        """The history of a run as it is now, for a file or for `holdfast.testing.replay`. Raises `UnknownRun`."""
        return await self._run(export(self._ready(), run_id))

    async def import_(
        self, history: RunHistory | str | PathLike[str], *, id: str | None = None, run: bool = False
    ) -> RunInfo:
        """Store a run that was exported, or its file, in this store. Nothing of it is executed.

        A run that had not ended is written as cancelled. With `run=True` it continues here instead.
        """
        queries = self._ready()
        read = await in_thread(partial(history_of, history), name="holdfast-import")
        return await self._run(import_history(queries, read, id=id, run=run))


class _BaseRuns:
    """What the sync and the async form have in common."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._queries = RunQueries(client, max_bytes=client.max_bytes)

    def _start(
        self, workflow: Workflow[Any, Any] | str, input: Any, *, require_definition: bool, **options: Any
    ) -> Flow[str]:
        new = self._queries.new_run(workflow, input, **options)
        started = yield from self._queries.start(new, workflow=workflow, require_definition=require_definition)
        return started.run.id

    def _start_or_signal(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any,
        *,
        id: str,
        name: str,
        payload: Any,
        idempotency_key: str | None,
        timeout: Duration | None,
        delay: Duration | None,
    ) -> Flow[str]:
        new = self._queries.new_run(workflow, input, id=id, idempotency_key=None, timeout=timeout, delay=delay)
        event = self._queries.signal_event(name, payload, idempotency_key)
        outcome = yield from self._queries.start_or_signal(new, event, workflow=workflow)
        return outcome.run.id


class Runs(_BaseRuns):
    """`client.runs` of a synchronous client.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     run_id = hf.runs.start("order", {"item": 7}, id="order-7")
    ...     hf.runs.get(run_id).status
    'pending'
    """

    @overload
    def start(
        self,
        workflow: Workflow[I, Any],
        input: I,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> str: ...
    @overload
    def start(
        self,
        workflow: Workflow[None, Any],
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> str: ...
    @overload
    def start(
        self,
        workflow: str,
        input: Any = None,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        connection: Any = None,
        require_definition: bool = False,
    ) -> str: ...
    def start(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        connection: Any = None,
        require_definition: bool = False,
    ) -> str:
        """Start a run, which an engine will drive, and return its id.

        The id must be new, unless `on_existing` is "use", which returns the run that has it, or "replace_ended", which
        starts the run in the place of one that has ended and is kept as `<id>~<n>`.

        `timeout` is used instead of that of the workflow. With `delay` the run begins after that time, at the earliest,
        by the store's clock. Until then it is pending, keeps its signals, and holds its places in limits.

        With `connection`, inside the transaction that is open on it: rolled back, the run never existed. With
        `require_definition`, a start by name is refused while no engine has published the workflow and its limits.
        """
        options: dict[str, Any] = {"id": id, "idempotency_key": idempotency_key, "attributes": attributes}
        options |= {"priority": priority, "on_existing": on_existing, "timeout": timeout, "delay": delay}
        if connection is not None:
            new = self._queries.new_run(workflow, input, **options)
            started = self._queries.start_within(
                connection, new, workflow=workflow, require_definition=require_definition
            )
            run(self._queries.look_for_workers_of(started.run), self._client.runtime.batchers)
            return started.run.id
        flow = self._start(workflow, input, **options, require_definition=require_definition)
        return run(flow, self._client.runtime.batchers)

    @overload
    def start_or_signal(
        self,
        workflow: Workflow[I, Any],
        input: I,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> str: ...
    @overload
    def start_or_signal(
        self,
        workflow: Workflow[None, Any],
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> str: ...
    @overload
    def start_or_signal(
        self,
        workflow: str,
        input: Any = None,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> str: ...
    def start_or_signal(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> str:
        """Send a signal to the run with this id; if there is none that has not ended, start one with this signal.

        Both are one step. An ended run is replaced, unless it has received a signal with this idempotency key: then
        nothing is started or sent. Returns the id. If a limit does not admit the new run, the signal is not sent.
        """
        flow = self._start_or_signal(
            workflow,
            input,
            id=id,
            name=name,
            payload=payload,
            idempotency_key=idempotency_key,
            timeout=timeout,
            delay=delay,
        )
        return run(flow, self._client.runtime.batchers)

    def get(self, run_id: str) -> RunInfo:
        """A run as it is now. Raises `UnknownRun`."""
        return run(self._queries.get(run_id), self._client.runtime.batchers)

    def history(self, run_id: str) -> tuple[RunEntry, ...]:
        """What a run has recorded, in order: steps, timers, signals, children, locks. Raises `UnknownRun`.

        It is the history of its present generation, whether the run has ended or not.
        """
        return run(history(self._queries, run_id), self._client.runtime.batchers)

    def list(
        self,
        *,
        status: str | tuple[str, ...] | builtins.list[str] | None = None,
        workflow: Workflow[Any, Any] | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> RunsPage:
        """A page of runs, the newest first; `after` is `next` of the previous page."""
        wanted = wanted_runs(
            status=status, workflow=workflow, since=since, until=until, attributes=attributes, prefix=prefix
        )
        return run(self._queries.list(wanted, after=after, limit=limit), self._client.runtime.batchers)

    @overload
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: type[T]
    ) -> Generator[StreamItem[T], None, None]: ...
    @overload
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: Any = None
    ) -> Generator[StreamItem[Any], None, None]: ...
    def stream(
        self, run_id: str, name: str, *, after: int | None = None, type: Any = None
    ) -> Generator[StreamItem[Any], None, None]:
        """The items of a stream of a run, as they come, until the run has ended, for a `for` loop.

        Without `after` it begins with the first item that is kept; with the offset of an item, behind that item. Raises
        `StreamTruncated` if items behind it are not kept any more. `type` is what each item is read as.
        """
        reader = StreamReader(self._queries, run_id, name, after=after, type=type)
        return read(reader, self._client.runtime.batchers)

    def signal(self, run_id: str, name: str, payload: Any = None, *, idempotency_key: str | None = None) -> None:
        """Send a signal to a run that has not ended."""
        run(self._queries.signal(run_id, name, payload, idempotency_key), self._client.runtime.batchers)

    def update(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        idempotency_key: str | None = None,
        type: Any = None,
    ) -> Any:
        """Send a request to a run and wait for its reply, read as `type`; the run receives it by `ctx.updates(name)`.

        Raises `UpdateRefused`, `UpdateTimeout` after `timeout`, or `RunEnded` if the run ends without an answer. With
        the `idempotency_key` of an earlier request, that one's answer is returned.
        """
        flow = RequestQueries(self._client, max_bytes=self._queries.max_bytes).update(
            run_id,
            name,
            payload,
            timeout=checked_timeout(timeout),
            idempotency_key=idempotency_key,
            output=Any if type is None else type,
        )
        return run(flow, self._client.runtime.batchers)

    def cancel(self, run_id: str, *, reason: str | None = None) -> None:
        """Cancel a run. The run and its callers see the `reason`; the reason of the first cancel counts."""
        run(self._queries.cancel(run_id, reason), self._client.runtime.batchers)

    @overload
    def result(self, run_id: str, timeout: Duration | None = None, *, workflow: Workflow[Any, O]) -> O: ...
    @overload
    def result(self, run_id: str, timeout: Duration | None = None, *, workflow: None = None) -> Any: ...
    def result(
        self, run_id: str, timeout: Duration | None = None, *, workflow: Workflow[Any, Any] | None = None
    ) -> Any:
        """Wait for the result of a run. Raises `WorkflowFailed`, or `RunResultTimeout` after `timeout`."""
        output = Any if workflow is None else workflow.output_type
        return run(self._queries.result(run_id, output, checked_timeout(timeout)), self._client.runtime.batchers)

    def retry(self, run_id: str) -> RunInfo:
        """Continue a failed run from the step that failed, or let a blocked run be tried at once."""
        return run(self._queries.revive(run_id, restart=False), self._client.runtime.batchers)

    def fail(self, run_id: str, reason: str) -> RunInfo:
        """End a run that no worker drives, such as a blocked run, as failed; its locks are released."""
        return run(self._queries.fail(run_id, reason), self._client.runtime.batchers)

    def restart(self, run_id: str) -> RunInfo:
        """Start a run again with a new history. Raises `RunLocked` while a worker drives it."""
        return run(self._queries.revive(run_id, restart=True), self._client.runtime.batchers)

    def fork(
        self, run_id: str, *, from_step: str | None = None, input: Any = msgspec.UNSET, id: str | None = None
    ) -> RunInfo:
        """Start a new run with the history of this one before a step, or before its failure; it continues from there.

        `from_step` is the id of the step as `holdfast runs show` prints it, such as `charge#2`. Kept steps are not
        executed again; the named step and later steps have new idempotency keys. `input` replaces the input.
        """
        flow = fork(self._queries, run_id, from_step=from_step, input=input, id=id)
        return run(flow, self._client.runtime.batchers)

    def purge(
        self,
        *,
        older_than: Duration,
        status: str | Sequence[str] | None = None,
        workflow: Workflow[Any, Any] | str | None = None,
        dry_run: bool = False,
    ) -> PurgeReport:
        """Remove runs that ended longer than `older_than` ago, with their descendants; or count them (`dry_run`).

        `status` and `workflow` select trees by their first run. A tree stays as a whole while one of its runs has not
        ended, or ended more recently.

        >>> from holdfast import Client
        >>> with Client("memory://") as hf:
        ...     run_id = hf.runs.start("order", {"item": 7})
        ...     hf.runs.cancel(run_id)
        ...     hf.runs.purge(older_than="30 days").runs, hf.runs.purge(older_than=0, status="cancelled").runs
        (0, 1)
        """
        request = checked_request(older_than=older_than, status=status, workflow=workflow, dry_run=dry_run)
        return run(Purge(request, events=self._client.events).run(), self._client.runtime.batchers)

    def export(self, run_id: str) -> RunHistory:
        """The history of a run as it is now, for a file or for `holdfast.testing.replay`. Raises `UnknownRun`."""
        return run(export(self._queries, run_id), self._client.runtime.batchers)

    def import_(
        self, history: RunHistory | str | PathLike[str], *, id: str | None = None, run: bool = False
    ) -> RunInfo:
        """Store a run that was exported, or its file, in this store. Nothing of it is executed.

        A run that had not ended is written as cancelled. With `run=True` it continues here instead.
        """
        flow = import_history(self._queries, history_of(history), id=id, run=run)
        return run_sync(flow, self._client.runtime.batchers)


class AsyncRuns(_BaseRuns, AsyncRunQueries):
    """`client.runs` of an asynchronous client."""

    def _ready(self) -> RunQueries:
        return self._queries

    @overload
    async def start(
        self,
        workflow: Workflow[I, Any],
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
    ) -> str: ...
    @overload
    async def start(
        self,
        workflow: Workflow[None, Any],
        *,
        id: str | None = None,
        on_existing: OnExisting = "error",
        idempotency_key: str | None = None,
        attributes: Mapping[str, Scalar] | None = None,
        priority: int = 0,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
        connection: Any = None,
    ) -> str: ...
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
    ) -> str: ...
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
    ) -> str:
        """Start a run, which an engine will drive, and return its id.

        The id must be new, unless `on_existing` is "use", which returns the run that has it, or "replace_ended", which
        starts the run in the place of one that has ended and is kept as `<id>~<n>`.

        `timeout` is used instead of that of the workflow. With `delay` the run begins after that time, at the earliest,
        by the store's clock. Until then it is pending, keeps its signals, and holds its places in limits.

        With `connection`, the run is started in the transaction that is open on this synchronous connection, which is
        used in another thread meanwhile (a sqlite3 connection needs `check_same_thread=False`). With
        `require_definition`, a start by name is refused while no engine has published the workflow and its limits.
        """
        options: dict[str, Any] = {"id": id, "idempotency_key": idempotency_key, "attributes": attributes}
        options |= {"priority": priority, "on_existing": on_existing, "timeout": timeout, "delay": delay}
        if connection is not None:
            new = self._queries.new_run(workflow, input, **options)
            started = await self._start_within(connection, new, workflow, require_definition=require_definition)
            return started.run.id
        return await self._run(self._start(workflow, input, **options, require_definition=require_definition))

    @overload
    async def start_or_signal(
        self,
        workflow: Workflow[I, Any],
        input: I,
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> str: ...
    @overload
    async def start_or_signal(
        self,
        workflow: Workflow[None, Any],
        *,
        id: str,
        name: str,
        payload: Any = None,
        idempotency_key: str | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109
        delay: Duration | None = None,
    ) -> str: ...
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
    ) -> str: ...
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
    ) -> str:
        """Send a signal to the run with this id; if there is none that has not ended, start one with this signal.

        Both are one step. An ended run is replaced, unless it has received a signal with this idempotency key: then
        nothing is started or sent. Returns the id. If a limit does not admit the new run, the signal is not sent.
        """
        flow = self._start_or_signal(
            workflow,
            input,
            id=id,
            name=name,
            payload=payload,
            idempotency_key=idempotency_key,
            timeout=timeout,
            delay=delay,
        )
        return await self._run(flow)

    @overload
    def result(
        self, run_id: str, timeout: Duration | None = None, *, workflow: Workflow[Any, O]
    ) -> Coroutine[Any, Any, O]: ...
    @overload
    def result(
        self, run_id: str, timeout: Duration | None = None, *, workflow: None = None
    ) -> Coroutine[Any, Any, Any]: ...
    async def result(
        self,
        run_id: str,
        timeout: Duration | None = None,  # noqa: ASYNC109  (as everywhere else)
        *,
        workflow: Workflow[Any, Any] | None = None,
    ) -> Any:
        """Wait for the result of a run. Raises `WorkflowFailed`, or `RunResultTimeout` after `timeout`."""
        output = Any if workflow is None else workflow.output_type
        return await self._run(self._queries.result(run_id, output, checked_timeout(timeout)))
