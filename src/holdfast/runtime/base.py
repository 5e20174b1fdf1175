"""The parts of a client: a store, three batchers, the heartbeat thread, and the notifiers of waiting callers.

`BaseClient` contains everything that the sync and the async client have in common. Locks are built on it, and the two
public classes in `client.py` only add the public methods. Connections and threads are created when they are first
needed. After a fork the client in the child has no connections, threads or locks; those of the parent stay with the
parent.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import secrets
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .. import platform
from ..commands import Abandon, Acquire, LockCommand, Release, Settle
from ..errors import ClientClosed, HoldfastError, InvalidOption
from ..events import Events
from ..platform import start_thread
from ..rules import lock_outcomes as out
from ..rules.lock import RETENTION
from ..rules.lock_record import Label
from ..stores import Handle, anchored, open_store, opener_of, redacted
from ..stores.contract import OutOfProcess, SessionBound, Store, UsesClientClocks, Watch
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, seconds
from .batcher import Batcher
from .callbacks import Callbacks, run_orphaned_callbacks
from .codec import MAX_BYTES
from .grant import LocalGrant
from .heartbeats import Heartbeats
from .loop_probe import LoopProbe
from .notifier import Notifier, running_loop
from .renewable_grants import Granting
from .runners import Batchers

DEFAULT_URL = "sqlite:///holdfast.db"
QUERIES_IDLE = 60.0
"""Seconds after which the connection for queries is closed if it was not used."""
ABANDON_TTL = 30 * MICROSECONDS
"""For how long the store refuses an attempt that was abandoned because its client was closed."""


class Runtime:
    """The threads, connections and waiters of a client in one process: created when needed, not used across a fork."""

    def __init__(self, store: Store, events: Events, retention: int, name: str) -> None:
        self.store = store
        self.channel = secrets.token_hex(8)
        out_of_process = isinstance(store, OutOfProcess)
        batcher = partial(Batcher, place=store.identity, out_of_process=out_of_process)
        heartbeats = batcher(partial(store.connect, "heartbeats"), "heartbeats")
        commands = batcher(partial(Granting, partial(store.connect, "commands"), heartbeats), "commands")
        queries = batcher(partial(store.connect, "queries"), "queries", idle=QUERIES_IDLE)
        self.batchers: Batchers = {"commands": commands, "heartbeats": heartbeats, "queries": queries}
        self.heartbeats = Heartbeats(heartbeats, commands, events, retention, close_idle=queries.close_if_idle)
        self.callbacks = Callbacks()
        self._events = events
        self._attempts = itertools.count(1)
        # Weak: a flow whose event loop was closed is collected, and its finaliser gives its position back.
        self._waiting: dict[str, tuple[str, weakref.ref[Notifier]]] = {}
        self._acquiring: dict[str, str] = {}  # by attempt: its key, until the heartbeat thread has it
        self.runs: dict[str, object] = {}  # by key: the run locks that this client holds
        self._listeners: tuple[Callable[[Collection[str] | None], None], ...] = ()  # engines, which wait for runs
        self._listeners_lock = threading.Lock()
        self._flags: dict[str, weakref.ref[Notifier]] = {}
        self._watch: Watch | None = None
        self._unwatched: set[str] = set()  # attempts that may have been sent before the watch began
        self._watching = threading.Lock()
        self.severed_count = 0  # how often all grants of the store ended at once
        self._over = False  # whether the client is closed, so that no watch may be opened
        self._probes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopProbe] = weakref.WeakKeyDictionary()
        if isinstance(store, SessionBound):
            store.on_severed(self._severed)
        if isinstance(store, UsesClientClocks):
            # Not a bound method: the heartbeat thread references the store, which would keep a dropped client alive.
            store.on_differing_clock(name, partial(_clock_differs, events))

    def new_attempt(self) -> str:
        """A new id of one attempt, unique among all clients. Notifications are sent to its channel."""
        return f"{self.channel}.{next(self._attempts)}"

    def probe(self) -> LoopProbe | None:
        """The probe of the running event loop, if there is one."""
        loop = running_loop()
        if loop is None:
            return None
        return self._probes.get(loop) or self._probes.setdefault(loop, LoopProbe(loop))

    # -- waiting flows ----------------------------------------------------------------------------------

    def listen(self, command: Acquire) -> Notifier:
        """A notifier that is set when the attempt is notified."""
        self.heartbeats.start()  # so that a finaliser never has to start it
        flag = Notifier()
        self._waiting[command.id] = (command.key, weakref.ref(flag))
        if self.heartbeats.retired:  # checked last: closing sets it before it reads the list
            del self._waiting[command.id]
            raise ClientClosed
        return flag

    def flag(self, id: str) -> Notifier:
        """A notifier that is set when this id is notified. The id is not an attempt to acquire a lock."""
        self.heartbeats.start()
        flag = Notifier()
        self._flags[id] = weakref.ref(flag)
        return flag

    def unflag(self, id: str) -> None:
        """The notifier of this id is not needed any more."""
        self._flags.pop(id, None)

    def begin_acquire(self, command: Acquire) -> None:
        """The attempt is being sent: closing abandons it, also before the heartbeat thread has the lease."""
        self._acquiring[command.id] = command.key

    def end_acquire(self, command: Acquire) -> None:
        """The heartbeat thread has the lease, or the attempt has ended."""
        self._acquiring.pop(command.id, None)

    @property
    def listens(self) -> bool:
        """Whether this client receives notifications. Not known before it has begun to wait for one."""
        watch = self._watch
        return watch is not None and not watch.polls and self.store.capabilities.notifies

    def expect(self, id: str, *, eager: bool) -> bool:
        """The attempt waits. True if it was sent before notifications were received: one may have been missed."""
        self.watched().expect(id, eager=eager)
        if id not in self._unwatched:
            return False
        self._unwatched.discard(id)
        return True

    def watched(self) -> Watch:
        """The watch on this client's channel, which is opened when it is first needed."""
        if self._watch is None:
            with self._watching:
                if self._over:
                    raise ClientClosed
                if self._watch is None:
                    watch = self.store.watch(self.channel, self._notified)
                    self._unwatched.update(list(self._waiting))  # all of them, whichever attempt opened the watch
                    self._watch = watch
        return self._watch

    def forget(self, id: str) -> None:
        """The attempt waits no longer. May run in a finaliser, so the heartbeat thread calls the watch."""
        self._waiting.pop(id, None)
        self._unwatched.discard(id)
        if self._watch is not None:
            watch = self._watch
            self.heartbeats.call_soon(lambda: watch.forget(id))

    def give_back(self, command: Abandon) -> None:
        """Abandon an attempt, without waiting for the answer."""
        self.heartbeats.give_back(command)

    def offered(self, key: str) -> None:
        """A lock was offered to a waiter, which may have crashed: the heartbeat thread settles it again later."""
        self.heartbeats.recheck_offer(key)

    def permits_changed(self, command: Acquire, before: int) -> None:
        """Emit that this attempt changed the number of permits."""
        self._events.emit("permits_changed", key=command.key, before=before, after=command.permits)

    def long_wait(self, command: Acquire, waited: float, outcome: out.Queued) -> None:
        """Emit that a caller has waited for long, and for which holder."""
        holder = str(outcome.holders[0].label) if outcome.holders else ""
        self._events.emit(
            "wait_long",
            key=command.key,
            owner=command.label.name,
            waited=waited,
            holder=holder,
            position=outcome.position,
        )

    def _severed(self, reason: str) -> None:
        """Everything that the store granted has ended with its connection."""
        self.severed_count += 1  # first: a grant that the heartbeat thread does not have yet sees it
        self.heartbeats.call_soon(lambda: self.heartbeats.lose_all(reason))

    def add_listener(self, listener: Callable[[Collection[str] | None], None]) -> Callable[[], None]:
        """Call this with the ids of each notification, in the thread that receives it. Returns a function to end it."""
        with self._listeners_lock:
            self._listeners += (listener,)

        def end() -> None:
            with self._listeners_lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return end

    def _notified(self, ids: Collection[str] | None) -> None:
        for listener in self._listeners:
            listener(ids)
        for attempt in [*self._waiting, *self._flags] if ids is None else ids:
            _key, waiting = self._waiting.get(attempt, ("", self._flags.get(attempt)))
            flag = None if waiting is None else waiting()
            if flag is not None:
                flag.set()

    # -- the end ----------------------------------------------------------------------------------------

    def shut(self, give_back: list[LocalGrant], *, quietly: bool) -> None:
        """Release leases, leave the queues, and end every thread and connection.

        Holders are notified of the loss, because their work may go on; not when the whole process ends.
        """
        ended = [held for held in give_back if (held.end() if quietly else held.lose("its client was closed"))]
        under_way = self._acquiring | {attempt: key for attempt, (key, _) in list(self._waiting.items())}
        commands: list[LockCommand] = [Release(key=held.key, id=held.id, token=held.token) for held in ended]
        commands += [Abandon(key=key, id=attempt, ttl=ABANDON_TTL) for attempt, key in under_way.items()]
        call = self.batchers["commands"].call  # in this thread: a process that exits cannot start a thread
        with suppress(HoldfastError):  # then leases and positions expire by themselves
            outcomes = call(commands) if commands else []
            offers = {one.key for one, outcome in zip(commands, outcomes, strict=False) if outcome.woken}
            if offers := offers.union(self.heartbeats.open_offers()):
                call([Settle(key=key, leaving=True) for key in offers])
        self.heartbeats.stop()
        for batcher in self.batchers.values():
            batcher.close()
        self._notified(None)  # waiting callers find the batchers closed
        with self._watching:
            self._over = True
            if self._watch is not None:
                self._watch.close()
        self.store.close()

    def shut_soon(self) -> None:
        """Shut without waiting, from a thread of its own."""
        with suppress(RuntimeError):  # no thread can be started: leases expire with their ttl
            closer = threading.Thread(
                target=lambda: self.shut(self.heartbeats.retire(), quietly=False), name="holdfast-closer", daemon=True
            )
            start_thread(closer)


class BaseClient:
    """The common part of `Client` and `AsyncClient`."""

    _opens_at_once = True
    """Whether the store is opened by the constructor; otherwise when it is first used."""

    def __init__(
        self,
        url: str | Handle | None = None,
        *,
        namespace: str = "default",
        name: str | None = None,
        retention: Duration = RETENTION / MICROSECONDS,
        store_options: Mapping[str, object] | None = None,
        max_bytes: int = MAX_BYTES,
        events: Events | None = None,
    ) -> None:
        if url == "":
            raise InvalidOption("the store's URL is empty: leave it out for the default, or pass a URL")
        place = os.environ.get("HOLDFAST_URL") or DEFAULT_URL if url is None else url
        self._url: str | Handle = anchored(place) if isinstance(place, str) else place
        self._store_options = dict(store_options or {})
        self._namespace = checked_key(namespace, what="namespace")
        self._name = _process_name() if name is None else checked_key(name, what="name")
        self.retention = round(seconds(retention, what="retention") * MICROSECONDS)
        if self.retention < MICROSECONDS:
            raise InvalidOption(
                "retention cannot be less than a second: tokens could decrease after a record is removed"
            )
        self.max_bytes = checked_count(max_bytes, what="max_bytes")
        self.events = events or Events()
        self.cache: dict[str, Any] = {}  # what the layers above remember about this client's store
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._store: Store | None = None
        self._label: Label | None = None
        self._closed = False
        self._open_store = open_store  # as it is now: tests install another one for the clients that they make
        if self._opens_at_once:
            self._open()
        else:
            opener_of(self._url)  # what is wrong with the address is raised here all the same
        _clients.add(self)

    @property
    def url(self) -> str:
        """The store's URL, without any password."""
        return redacted(str(self._url)) if self._store is None else self._store.url

    @property
    def namespace(self) -> str:
        """The namespace within the store that this client uses."""
        return self._namespace

    @property
    def runtime(self) -> Runtime:
        """The threads and connections, for the locks that are built on this client."""
        return self._runtime or self._open()

    def label(self, owner: str | None) -> Label:
        """The label that is shown in lists and messages: owner, host and process id."""
        if owner is None and self._label is not None:
            return self._label
        label = Label(name=owner or self._name, host=platform.HOST, pid=os.getpid())
        if owner is None:
            self._label = label
        return label

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    def _open(self) -> Runtime:
        run_orphaned_callbacks()
        with self._lock:
            if self._closed:
                raise ClientClosed
            if self._runtime is None:
                if self._store is None:
                    store = self._open_store(self._url, namespace=self._namespace, options=self._store_options)
                else:
                    store = self._store.reopen()
                self._store = store
                self._runtime = Runtime(store, self.events, self.retention, self._name)
                self.events.emit("store_opened", url=store.url, namespace=self._namespace)
            return self._runtime

    def _shut(self, *, quietly: bool = False) -> None:
        with self._lock:
            runtime, self._runtime, self._closed = self._runtime, None, True
        _clients.discard(self)
        if runtime is not None:
            runtime.shut(runtime.heartbeats.retire(), quietly=quietly)

    def _forked(self) -> None:
        """After a fork, in the child: leave what is open to the parent, and open new connections when needed."""
        if self._runtime is not None:
            _left_to_parent.append(self._runtime)
        self._runtime = self._label = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"namespace={self._namespace!r}"
        return f"<{type(self).__name__} {self.url} {state}>"

    def __del__(self) -> None:
        runtime = getattr(self, "_runtime", None)
        if runtime is not None:
            runtime.heartbeats.call_soon(runtime.shut_soon)
            how = "use `with`, or call close()" if self._opens_at_once else "use `async with`, or await close()"
            warnings.warn(f"{self!r} was not closed: {how}", ResourceWarning, stacklevel=2, source=self)


def _clock_differs(events: Events, name: str, host: str, pid: int, ahead: float) -> None:
    """A process that uses a SQLite file has a clock that differs from the clock of the file's timestamps."""
    events.emit("clock_differs", client=name, host=host, pid=pid, ahead=ahead)


def _process_name() -> str:
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    readable = "".join(letter for letter in name.encode(errors="replace").decode() if letter.isprintable())
    return readable[:100] or "python"


_clients: weakref.WeakSet[BaseClient] = weakref.WeakSet()
_left_to_parent: list[Runtime] = []


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()  # noqa: SLF001


def _at_exit() -> None:
    for client in list(_clients):
        with suppress(Exception):
            client._shut(quietly=True)  # noqa: SLF001


platform.after_fork_in_child(_after_fork)
atexit.register(_at_exit)
