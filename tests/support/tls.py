"""TLS in tests: a test certificate authority, and a tunnel that adds TLS to a server that is built without it."""

from __future__ import annotations

import select
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def make_certificates(folder: Path) -> Path:
    """Create a certificate authority (`ca.crt`) and a server certificate for localhost, in this folder."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the program openssl, which creates the certificates, is not installed")

    def run(*words):
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
        "-subj", "/CN=Test authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    run("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    # Python 3.13 is strict: both certificates must contain their usage and their issuer.
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nkeyUsage=digitalSignature,keyEncipherment\n"
    (folder / "names").write_text(f"{names}authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    run("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "server.crt", "-days", "2", "-extfile", "names")  # fmt: skip
    return folder


@contextmanager
def tunnel(folder: Path, target: int) -> Iterator[int]:
    """The port of a tunnel to the server at the port `target`."""
    with _Tunnel(folder, target) as made:
        serving = threading.Thread(target=made.serve_forever, args=(0.02,))
        serving.start()
        yield made.server_address[1]
        made.shutdown()
        serving.join()


class _Tunnel(socketserver.ThreadingTCPServer):
    """Terminates TLS and forwards everything, as stunnel does: the servers of the wheels are built without TLS."""

    daemon_threads = True

    def __init__(self, folder, target):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.context.set_alpn_protocols(["postgresql"])  # libpq sends this request first; other drivers do not
        self.target = target
        super().__init__(("127.0.0.1", 0), _Passing)


class _Passing(socketserver.BaseRequestHandler):
    def handle(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as inner:
            with self.server.context.wrap_socket(self.request, server_side=True) as outer:
                outer.settimeout(0.01)  # reading and writing alternate: one TLS connection, one thread
                while True:
                    with suppress(TimeoutError):
                        data = outer.recv(65_536)
                        if not data:
                            return
                        inner.sendall(data)
                    while select.select([inner], [], [], 0)[0]:
                        data = inner.recv(65_536)
                        if not data:
                            return
                        outer.sendall(data)
