"""Ports for servers and proxies in tests: the system chooses a port, and no other process gets it while it is held.

A port that is free when it is chosen can be in use a moment later. Worse, while a server is down, a client that keeps
connecting can get the server's port as its own source port and connect to itself. So a socket that does not listen
keeps the port bound. On Linux a server can listen on the port beside that socket. On other systems the port is only
chosen, and a server that cannot use it is started again on another port.
"""

from __future__ import annotations

import socket
import sys

LOCALHOST = "127.0.0.1"
HOLDS = sys.platform.startswith("linux")


class HeldPort:
    """A port on 127.0.0.1 that is reserved for one server.

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
        """A socket that listens on this port."""
        listening = _bound(self.number)
        listening.listen(128)
        return listening

    def close(self) -> None:
        """Release the port."""
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
