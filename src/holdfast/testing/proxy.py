"""A TCP proxy with faults, between a client and a server: cut, refuse, stall, delay, lose a direction or one reply.

    with Proxy(server.host, server.port) as proxy:
        client = connect(proxy.url_for(server.url))
        proxy.stall()

The proxy knows no protocol: a request is everything that a client sends until the server answers. A fault is active
when the method that sets it returns, for open and for new connections. One thread does all the work, and ends with the
block.
"""

from __future__ import annotations

import errno
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Literal, Self
from urllib.parse import parse_qsl, urlsplit

from .ports import LOCALHOST, HeldPort

Direction = Literal["to_server", "to_client"]

_CHUNK = 65_536
_FULL = 1_048_576
"""Bytes buffered in one direction; above this the proxy stops reading, so the sender has to wait."""
_REMEMBERED = 65_536
"""How many bytes of a request are searched for the `containing` of `drop_next_reply`."""
_RESET = struct.pack("ii", 1, 0)
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Way:
    """One direction of one connection: the bytes read from `source`, and when each may be sent to `sink`."""

    def __init__(self, direction: Direction, source: socket.socket, sink: socket.socket) -> None:
        self.direction, self.source, self.sink = direction, source, sink
        self.queue: deque[tuple[float, bytes]] = deque()
        """Empty bytes mark the end of the stream."""
        self.size = 0
        self.ended = False
        """The source has reached its end."""
        self.done = False
        """The end was forwarded to the sink."""

    def put(self, data: bytes, due: float) -> None:
        self.queue.append((due, data))
        self.size += len(data)

    def due(self) -> float | None:
        return self.queue[0][0] if self.queue else None


class _Link:
    """One connection: two sockets and two directions."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.to_server = _Way("to_server", client, server)
        self.to_client = _Way("to_client", server, client)
        self.ways = (self.to_server, self.to_client)
        self.connected = False
        self.answered = True
        self.request = b""
        self.loses_its_reply = False
        self.lossy = False
        """Bytes of this connection were dropped, so it cannot be used any more."""
        self.cut_off = False
        """The client side is closed; the server may still finish."""

    def close(self, *, reset: bool) -> None:
        for end in (self.client, self.server):
            _close(end, reset=reset)


class Proxy:
    """A proxy to one server, on its own port. Close it, or use it as a context manager."""

    host = LOCALHOST

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        found = socket.getaddrinfo(target_host, target_port, type=socket.SOCK_STREAM)[0]
        self._family, self._address = found[0], found[4]
        self.connections = 0
        """Connections accepted so far."""
        self.requests = 0
        """Requests forwarded so far."""
        self.bytes_to_server = 0
        """Bytes forwarded to the server so far."""
        self.bytes_to_client = 0
        """Bytes forwarded to clients so far."""
        self.bytes_dropped = 0
        """Bytes read and dropped so far."""
        self.replies_dropped = 0
        """Replies that `drop_next_reply` has dropped so far."""
        self._links: list[_Link] = []
        self._stalled = False
        self._delay = 0.0
        self._dropped: Direction | None = None
        self._armed: bytes | None = None
        self._closing = False
        self._orders: SimpleQueue[tuple[Callable[[], None], threading.Event]] = SimpleQueue()
        self._held = HeldPort()
        self._listening: socket.socket | None = self._held.listen()
        self._listening.settimeout(0)
        self._bell, self._ring = socket.socketpair()
        self._bell.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, _READ)
        self._interests: dict[socket.socket, int] = {}
        self._thread = threading.Thread(target=self._run, name="holdfast-proxy", daemon=True)
        self._thread.start()

    # -- address ----------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 that clients connect to."""
        return self._held.number

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open now."""
        return sum(not link.cut_off for link in list(self._links))

    def url_for(self, url: str) -> str:
        """The same URL, with the address of this proxy instead of the server's, also in an option `endpoint`.

        >>> with Proxy("127.0.0.1", 5432) as proxy:
        ...     url = proxy.url_for("postgresql://me:secret@127.0.0.1:5432/db?x=1")
        ...     url == f"postgresql://me:secret@127.0.0.1:{proxy.port}/db?x=1"
        True
        """
        parts = urlsplit(url)
        endpoint = dict(parse_qsl(parts.query)).get("endpoint", "")
        if "://" in endpoint:
            return url.replace(endpoint, self.url_for(endpoint))
        if parts.port is not None and parts.port != self.target[1]:
            raise ValueError(f"this proxy forwards to port {self.target[1]}, but the URL has port {parts.port}")
        person, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{person}{at}{self.host}:{self.port}").geturl()

    # -- faults -----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset all connections, now. Bytes that were buffered are lost; new connections are accepted."""
        self._order(self._cut)

    def refuse(self) -> None:
        """Refuse new connections, as if no server were running; the open ones stay."""
        self._order(self._refuse)

    def stall(self) -> None:
        """Forward nothing in either direction. Connections stay open, and new ones are accepted."""
        self._order(lambda: setattr(self, "_stalled", True))

    def delay(self, seconds: float) -> None:
        """Forward everything that much later, in each direction. Bytes that are buffered already are not delayed."""
        if seconds < 0:
            raise ValueError("a delay must not be negative: nothing arrives before it was sent")
        self._order(lambda: setattr(self, "_delay", seconds))

    def half_open(self, lost: Direction = "to_client") -> None:
        """Drop everything in one direction, also the end of a connection; neither side is notified."""
        if lost not in {"to_client", "to_server"}:
            raise ValueError(f"a direction is 'to_client' or 'to_server', not {lost!r}")
        self._order(lambda: setattr(self, "_dropped", lost))

    def drop_next_reply(self, containing: bytes = b"") -> None:
        """Forward the next request, drop its reply, and reset that connection for the client.

        With `containing`, the next request with these bytes in it. The server receives the whole request and then the
        end of the connection, so it executes the request. `replies_dropped` counts the dropped replies.
        """
        self._order(lambda: setattr(self, "_armed", containing))

    def go_on(self) -> None:
        """End all faults. Stalled bytes are forwarded; connections that have lost bytes are reset."""
        self._order(self._go_on)

    def close(self) -> None:
        """Reset all connections, and release the port."""
        if self._thread.is_alive():
            with suppress(RuntimeError):
                self._order(lambda: setattr(self, "_closing", True))
        self._thread.join()
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Proxy on {self.host}:{self.port} to {self.target[0]}:{self.target[1]}>"

    def _order(self, what: Callable[[], None]) -> None:
        """Run a function in the proxy's thread, between two of its steps."""
        done = threading.Event()
        self._orders.put((what, done))
        with suppress(OSError):
            self._ring.send(b"!")
        while not done.wait(0.1):
            if not self._thread.is_alive() and not done.is_set():
                raise RuntimeError("the proxy is closed")

    # -- the proxy's thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._step()
        finally:
            for link in self._links:
                link.close(reset=True)
            self._links.clear()
            for end in (self._listening, self._bell, self._ring):
                if end is not None:
                    end.close()
            self._selector.close()

    def _step(self) -> None:
        self._set_interests()
        for key, events in self._selector.select(self._time_to_next()):
            if key.fileobj is self._bell:
                self._bell.recv(4096)
            elif key.fileobj is self._listening:
                self._accept()
            else:
                link: _Link = key.data
                if link in self._links:
                    self._serve(link, key.fileobj, events)
        while not self._orders.empty():
            what, done = self._orders.get()
            what()
            done.set()

    def _set_interests(self) -> None:
        """Wait only for the sockets that can be used now. Most faults are sockets that are not selected."""
        now = time.monotonic()
        wanted: dict[socket.socket, tuple[int, _Link | None]] = {}
        if self._listening is not None:
            wanted[self._listening] = _READ, None
        for link in self._links:
            for end in (link.client, link.server):
                wish = self._wish(link, end, now)
                if wish:
                    wanted[end] = wish, link
        for end in [end for end in self._interests if end not in wanted]:
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            del self._interests[end]
        for end, (wish, owner) in wanted.items():
            if end not in self._interests:
                self._selector.register(end, wish, owner)
            elif self._interests[end] != wish:
                self._selector.modify(end, wish, owner)
            self._interests[end] = wish

    def _wish(self, link: _Link, end: socket.socket, now: float) -> int:
        if end.fileno() < 0:
            return 0
        if not link.connected:
            return _WRITE if end is link.server else 0
        if self._stalled:
            return 0
        wish = 0
        for way in link.ways:
            if way.source is end and not way.ended and way.size < _FULL:
                wish |= _READ
            due = way.due()
            if way.sink is end and due is not None and due <= now:
                wish |= _WRITE
        return wish

    def _time_to_next(self) -> float | None:
        if self._stalled:
            return None
        dues = [due for link in self._links if link.connected for way in link.ways if (due := way.due()) is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _accept(self) -> None:
        while self._listening is not None:
            try:
                client, _ = self._listening.accept()
            except OSError:  # no server is running, or it has just ended
                return
            self.connections += 1
            server = socket.socket(self._family)
            link = _Link(client, server)
            for end in (client, server):
                end.settimeout(0)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(link)
            if server.connect_ex(self._address) not in {0, errno.EINPROGRESS}:
                self._drop(link)

    def _serve(self, link: _Link, end: object, events: int) -> None:
        if not link.connected:
            if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._drop(link)
            link.connected = True
            return
        for way in link.ways:
            if events & _READ and way.source is end and not way.ended:
                self._read(link, way)
            if events & _WRITE and way.sink is end:
                self._write(link, way)

    def _read(self, link: _Link, way: _Way) -> None:
        try:
            data = way.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            way.ended = True
            if self._dropped != way.direction:
                self._drop(link)
            return
        way.ended = not data
        if self._dropped == way.direction:
            self.bytes_dropped += len(data)
            link.lossy = True
            return
        if data and way is link.to_server:
            self._note_request(link, data)
        elif data:
            link.answered = True
            if link.loses_its_reply:
                self._lose_reply(link, data)
        if link.cut_off and way is link.to_client:
            if way.ended:
                self._drop(link, reset=False)
            return
        way.put(data, time.monotonic() + self._delay)
        self._write(link, way)

    def _note_request(self, link: _Link, data: bytes) -> None:
        if link.answered:
            link.answered, link.request = False, b""
            self.requests += 1
        link.request = (link.request + data)[-_REMEMBERED:]
        if self._armed is not None and self._armed in link.request:
            self._armed, link.loses_its_reply = None, True

    def _lose_reply(self, link: _Link, data: bytes) -> None:
        """Reset the client at the first byte of its reply; the server still reads everything that was sent."""
        self.bytes_dropped += len(data)
        if not link.cut_off:
            self.replies_dropped += 1
            link.cut_off = True
            _close(link.client, reset=True)
            link.to_server.ended = True
            link.to_server.put(b"", 0.0)
            link.to_client.queue.clear()
            self._write(link, link.to_server)

    def _write(self, link: _Link, way: _Way) -> None:
        now = time.monotonic()
        while way.queue and way.queue[0][0] <= now and not self._stalled:
            due, data = way.queue.popleft()
            try:
                if not data:
                    way.done = True
                    way.sink.shutdown(socket.SHUT_WR)
                    continue
                sent = way.sink.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(link)
                return
            way.size -= sent
            if way is link.to_server:
                self.bytes_to_server += sent
            else:
                self.bytes_to_client += sent
            if sent < len(data):
                way.queue.appendleft((due, data[sent:]))
                return
        if all(each.done for each in link.ways):
            self._drop(link, reset=False)

    def _drop(self, link: _Link, *, reset: bool = True) -> None:
        if link in self._links:
            self._links.remove(link)
            link.close(reset=reset)

    # -- commands to the thread -------------------------------------------------------------------------------

    def _cut(self) -> None:
        if self._listening is not None:
            self._accept()
        for link in list(self._links):
            self._drop(link)

    def _refuse(self) -> None:
        if self._listening is not None:
            self._accept()
            self._listening.close()
            self._listening = None

    def _go_on(self) -> None:
        self._stalled, self._delay, self._dropped, self._armed = False, 0.0, None, None
        for link in list(self._links):
            if link.lossy:
                self._drop(link)
            for way in link.ways:
                way.queue = deque((0.0, data) for _, data in way.queue)
        if self._listening is None:
            self._listening = self._held.listen()
            self._listening.settimeout(0)


def _close(end: socket.socket, *, reset: bool) -> None:
    if reset:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()
