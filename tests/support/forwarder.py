"""A port that passes each connection on to one of several processes: the first of them that accepts it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Forwarder:
    """`used` are the ports of the processes that got connections, in order."""

    def __init__(self, ports: list[int]) -> None:
        self.ports, self.used = ports, list[int]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def _run(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            self._sockets.append(client)
            for port in self.ports:
                with suppress(OSError):
                    process = socket.create_connection(("127.0.0.1", port))
                    self._sockets.append(process)
                    self.used.append(port)
                    self._run(_pipe, client, process)
                    self._run(_pipe, process, client)
                    break
            else:
                _shut(client)

    def close(self) -> None:
        """End all connections."""
        _shut(self._server)
        self._server.close()
        self._threads[0].join(10)
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join(10)
        for one in self._sockets:
            one.close()


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    _shut(target)
    _shut(source)
