"""Ports for servers and proxies in tests: the system chooses, and nobody else gets the port while it is held.

A port that was merely seen to be free can be taken by the time it is used; worse, while a server is down, a client
that keeps trying can be given the server's port as its own and reach itself. So the port stays bound by a socket that
does not listen. Linux lets a server listen beside it; elsewhere the port is only chosen, and who starts there tries
again.
"""

from __future__ import annotations

import socket
import sys

LOCALHOST = "127.0.0.1"
HOLDS = sys.platform.startswith("linux")


class HeldPort:
    """A port of this machine's own address, kept for one server.

    >>> port = HeldPort()
    >>> with port.listen() as listening:
    ...     listening.getsockname() == (LOCALHOST, port.number)
    True
    >>> port.close()
    """

    def __init__(self) -> None:
        self._holding = _bound(0)
        self.number: int = self._holding.getsockname()[1]
        if not HOLDS:
            self._holding.close()

    def listen(self) -> socket.socket:
        """A socket that listens there."""
        listening = _bound(self.number)
        listening.listen(128)
        return listening

    def close(self) -> None:
        """Give the port back."""
        self._holding.close()


def _bound(number: int) -> socket.socket:
    made = socket.socket()
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOCALHOST, number))
    except BaseException:
        made.close()
        raise
    return made
