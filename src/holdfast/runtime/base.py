"""What a client is made of: a store, three lanes, a keeper, and the flags of those who wait.

`BaseClient` is everything that the synchronous and the asynchronous client have in common; locks are built on
it, and the two public classes in `api.py` only add the words. Nothing is opened before it is needed. After
a fork the child starts with nothing: what its parent opened and holds stays the parent's.
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

from .. import platform
from ..commands import Abandon, Acquire, LockCommand, Release, Settle
from ..errors import ClientClosed, HoldfastError, InvalidOption
from ..events import Events
from ..platform import start_thread
from ..rules import lock_outcomes as out
from ..rules.lock import RETENTION
from ..rules.lock_record import Label
from ..stores import Handle, open_store, redacted
from ..stores.contract import OutOfProcess, SessionBound, Store, UsesClientClocks, Watch
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, seconds
from .batcher import Batcher
from .codec import MAX_BYTES
from .grant import LocalGrant
from .heartbeats import Callbacks, Heartbeats, LoopProbe, run_orphaned_callbacks
from .notifier import Notifier, running_loop
from .renewable_grants import Granting
from .runners import Batchers

DEFAULT_URL = "sqlite:///holdfast.db"
QUERIES_IDLE = 60.0
"""Seconds after which the connection for queries is closed if nobody asks anything."""
FAREWELL = 30 * MICROSECONDS
"""For how long an attempt that was given up by closing its client is kept from coming back."""


class Runtime:
    """The moving parts of a client in one process: made when first needed, never carried across a fork."""

    def __init__(self, store: Store, events: Events, retention: int, name: str) -> None:
        self.store = store
        self.channel = secrets.token_hex(8)
        out_of_process = isinstance(store, OutOfProcess)
        batcher = partial(Batcher, place=store.identity, out_of_process=out_of_process)
        heartbeats = batcher(partial(store.connect, "heartbeats"), "heartbeats")
        commands = batcher(partial(Granting, partial(store.connect, "commands"), heartbeats), "commands")
        queries = batcher(partial(store.connect, "queries"), "queries", idle=QUERIES_IDLE)
        self.batchers: Batchers = {"commands": commands, "heartbeats": heartbeats, "queries": queries}
        self.heartbeats = Heartbeats(heartbeats, commands, events, retention, rest=queries.rest)
        self.callbacks = Callbacks()
        self._events = events
        self._attempts = itertools.count(1)
        # Weak: a flow whose event loop was closed is collected, and gives its place back as it goes.
        self._waiting: dict[str, tuple[str, weakref.ref[Notifier]]] = {}
        self._taking: dict[str, str] = {}  # from before it is asked for until the keeper has it: its key
        self.runs: dict[str, object] = {}  # the leases of runs that this client holds, by key
        self._listeners: tuple[Callable[[Collection[str] | None], None], ...] = ()  # engines, which wait for runs
        self._hearing = threading.Lock()
        self._flags: dict[str, weakref.ref[Notifier]] = {}
        self._watch: Watch | None = None
        self._unheard: set[str] = set()  # attempts that may have been sent before the watch was there
        self._watching = threading.Lock()
        self.severings = 0  # how often everything that the store had granted has ended at once
        self._over = False  # whether no watch may be opened any more
        self._probes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopProbe] = weakref.WeakKeyDictionary()
        if isinstance(store, SessionBound):
            store.on_severed(self._severed)
        if isinstance(store, UsesClientClocks):
            # Not a method of ours: the store, which the keeper's thread holds, would keep a dropped client alive.
            store.on_differing_clock(name, partial(_clock_differs, events))

    def new_attempt(self) -> str:
        """The id of one attempt: never used before, by anyone. Its channel is where hints are sent."""
        return f"{self.channel}.{next(self._attempts)}"

    def probe(self) -> LoopProbe | None:
        """The pulse of the running event loop, if there is one."""
        loop = running_loop()
        if loop is None:
            return None
        return self._probes.get(loop) or self._probes.setdefault(loop, LoopProbe(loop))

    # -- the desk of waiting flows ----------------------------------------------------------------------

    def listen(self, command: Acquire) -> Notifier:
        """A flag that is set when there is a hint for the attempt."""
        self.heartbeats.start()  # so that a finaliser never has to
        flag = Notifier()
        self._waiting[command.id] = (command.key, weakref.ref(flag))
        if self.heartbeats.retired:  # after: whoever closes looks at the list after that
            del self._waiting[command.id]
            raise ClientClosed
        return flag

    def flag(self, id: str) -> Notifier:
        """A flag that is set when there is a hint for this id, which is no attempt to take anything."""
        self.heartbeats.start()
        flag = Notifier()
        self._flags[id] = weakref.ref(flag)
        return flag

    def unflag(self, id: str) -> None:
        """Nobody waits for this any more."""
        self._flags.pop(id, None)

    def taking(self, command: Acquire) -> None:
        """The attempt is on its way: closing gives it back, also in the moment before the keeper has it."""
        self._taking[command.id] = command.key

    def taken(self, command: Acquire) -> None:
        """The attempt is in the keeper's care, or over."""
        self._taking.pop(command.id, None)

    @property
    def listens(self) -> bool:
        """Whether hints are sent to this client. Not known before it has begun to wait for them."""
        watch = self._watch
        return watch is not None and not watch.polls and self.store.capabilities.notifies

    def expect(self, id: str, *, eager: bool) -> bool:
        """The attempt waits. True if it was sent before hints began to flow: one may have been lost."""
        self.watched().expect(id, eager=eager)
        if id not in self._unheard:
            return False
        self._unheard.discard(id)
        return True

    def watched(self) -> Watch:
        """The watch on this client's channel; opened when it is first needed."""
        if self._watch is None:
            with self._watching:
                if self._over:
                    raise ClientClosed
                if self._watch is None:
                    watch = self.store.watch(self.channel, self._hinted)
                    self._unheard.update(list(self._waiting))  # all of them, whichever of them opened it
                    self._watch = watch
        return self._watch

    def forget(self, id: str) -> None:
        """The attempt waits no longer. May run in a finaliser, so the watch is told by the keeper."""
        self._waiting.pop(id, None)
        self._unheard.discard(id)
        if self._watch is not None:
            watch = self._watch
            self.heartbeats.soon(lambda: watch.forget(id))

    def give_back(self, command: Abandon) -> None:
        """Give an attempt up, without waiting for it."""
        self.heartbeats.give_back(command)

    def offered(self, key: str) -> None:
        """A lock was offered to a waiter, which may be dead: the keeper looks at it again."""
        self.heartbeats.look_after(key)

    def permits_changed(self, command: Acquire, before: int) -> None:
        """Say that this attempt changed the number of permits."""
        self._events.emit("permits_changed", key=command.key, before=before, after=command.permits)

    def long_wait(self, command: Acquire, waited: float, outcome: out.Queued) -> None:
        """Say that somebody has waited for long, and for whom."""
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
        """Everything that was granted by the store has ended with its connection."""
        self.severings += 1  # first: a grant that is on its way to the keeper sees it
        self.heartbeats.soon(lambda: self.heartbeats.lose_all(reason))

    def hear(self, listener: Callable[[Collection[str] | None], None]) -> Callable[[], None]:
        """Let somebody hear of every hint, on whatever thread it comes. Returns the way to end that."""
        with self._hearing:
            self._listeners += (listener,)

        def end() -> None:
            with self._hearing:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return end

    def _hinted(self, ids: Collection[str] | None) -> None:
        for listener in self._listeners:
            listener(ids)
        for attempt in [*self._waiting, *self._flags] if ids is None else ids:
            _key, waiting = self._waiting.get(attempt, ("", self._flags.get(attempt)))
            flag = None if waiting is None else waiting()
            if flag is not None:
                flag.set()

    # -- the end ----------------------------------------------------------------------------------------

    def shut(self, give_back: list[LocalGrant], *, quietly: bool) -> None:
        """Release what is held, leave the queues, and end every thread and connection.

        Whoever still holds something is told, because its work may go on; not when the whole process ends.
        """
        ended = [held for held in give_back if (held.end() if quietly else held.lose("its client was closed"))]
        under_way = self._taking | {attempt: key for attempt, (key, _) in list(self._waiting.items())}
        farewell: list[LockCommand] = [Release(key=held.key, id=held.id, token=held.token) for held in ended]
        farewell += [Abandon(key=key, id=attempt, ttl=FAREWELL) for attempt, key in under_way.items()]
        call = self.batchers["commands"].call  # in this thread: a process that ends can start no other
        with suppress(HoldfastError):  # it expires by itself, then
            said = call(farewell) if farewell else []
            offers = {one.key for one, outcome in zip(farewell, said, strict=False) if outcome.woken}
            if offers := offers.union(self.heartbeats.open_offers()):
                call([Settle(key=key, leaving=True) for key in offers])
        self.heartbeats.stop()
        for batcher in self.batchers.values():
            batcher.close()
        self._hinted(None)  # whoever waits finds the lanes closed
        with self._watching:
            self._over = True
            if self._watch is not None:
                self._watch.close()
        self.store.close()

    def shut_soon(self) -> None:
        """Shut without waiting, from a thread of its own."""
        with suppress(RuntimeError):  # no thread can be had: what is held ends with its ttl
            closer = threading.Thread(
                target=lambda: self.shut(self.heartbeats.retire(), quietly=False), name="holdfast-closer", daemon=True
            )
            start_thread(closer)


class BaseClient:
    """What `Client` and `AsyncClient` have in common."""

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
            raise InvalidOption("the store's address is empty: leave it out for the default, or say where the store is")
        self._url: str | Handle = os.environ.get("HOLDFAST_URL") or DEFAULT_URL if url is None else url
        self._store_options = dict(store_options or {})
        self._namespace = checked_key(namespace, what="namespace")
        self._name = _process_name() if name is None else checked_key(name, what="name")
        self.retention = round(seconds(retention, what="retention") * MICROSECONDS)
        if self.retention < MICROSECONDS:
            raise InvalidOption("retention cannot be less than a second: tokens must not meet their own past")
        self.max_bytes = checked_count(max_bytes, what="max_bytes")
        self.events = events or Events()
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._store: Store | None = None
        self._label: Label | None = None
        self._closed = False
        self._open()
        _clients.add(self)

    @property
    def url(self) -> str:
        """The store's address, without any password."""
        return redacted(str(self._url)) if self._store is None else self._store.url

    @property
    def namespace(self) -> str:
        """The part of the store that this client sees."""
        return self._namespace

    @property
    def runtime(self) -> Runtime:
        """The moving parts; for the locks that are built on this client."""
        return self._runtime or self._open()

    def label(self, owner: str | None) -> Label:
        """Who this is, for people."""
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
                    store = open_store(self._url, namespace=self._namespace, options=self._store_options)
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
        """This is a child now: leave everything that is open to the parent, and begin afresh when needed."""
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
            runtime.heartbeats.soon(runtime.shut_soon)
            warnings.warn(
                f"{self!r} was not closed: use `with`, or call close()", ResourceWarning, stacklevel=2, source=self
            )


def _clock_differs(events: Events, name: str, host: str, pid: int, ahead: float) -> None:
    """A process on a SQLite file has a clock that differs from the one that stamps the store's files."""
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
