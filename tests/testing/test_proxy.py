"""The faults of the proxy, with an echo server and with real servers."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
import real_servers
from drivers import session
from waiting import PATIENCE, eventually

from holdfast.testing.ports import HeldPort
from holdfast.testing.proxy import Proxy

BLINK = 0.1
"""Seconds during which an event must not happen."""


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it receives, and stores it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), None)
        self.port = self.server_address[1]
        self.received = b""
        self.ends: list[str] = []

    def finish_request(self, request, client_address):
        try:
            while data := request.recv(65_536):
                self.received += data
                request.sendall(data)
            self.ends.append("end")
        except OSError:
            self.ends.append("reset")


@pytest.fixture
def echo():
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo):
    with Proxy("127.0.0.1", echo.port) as made:
        yield made


@contextmanager
def connected(proxy):
    with socket.create_connection((proxy.host, proxy.port), PATIENCE) as made:
        yield made


def exchange(connection, data):
    """Send data and receive it again."""
    connection.sendall(data)
    received = b""
    while len(received) < len(data):
        data = connection.recv(65_536)
        assert data, "the connection has ended"
        received += data
    return received


def silent(connection):
    """Whether nothing arrives for a moment."""
    connection.settimeout(BLINK)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        connection.settimeout(PATIENCE)


def test_bytes_are_forwarded_in_both_directions_and_counted(proxy, echo):
    with connected(proxy) as one, connected(proxy) as two:
        assert exchange(one, b"hello") == b"hello"
        assert exchange(one, b"again") == b"again"
        assert exchange(two, b"me too") == b"me too"
        assert proxy.open_connections == 2
    assert (proxy.connections, proxy.requests, proxy.bytes_to_server) == (2, 3, 16)
    eventually(lambda: proxy.open_connections == 0)
    assert (proxy.bytes_to_client, proxy.bytes_dropped, proxy.replies_dropped) == (16, 0, 0)


def test_much_data_arrives_completely_although_it_is_not_read_at_first(proxy, echo):
    sent = bytes(range(256)) * 40_000
    with connected(proxy) as connection, ThreadPoolExecutor() as pool:
        sending = pool.submit(connection.sendall, sent)
        received = b""
        while len(received) < len(sent):
            received += connection.recv(65_536)
        sending.result(PATIENCE)
    assert received == sent == echo.received
    assert proxy.requests >= 1


def test_the_end_of_each_direction_is_forwarded(proxy, echo):
    with connected(proxy) as connection:
        connection.sendall(b"last data")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while data := connection.recv(100):
            received += data
    assert received == b"last data"
    eventually(lambda: echo.ends == ["end"])


def test_cut_resets_all_connections_and_accepts_new_ones(proxy, echo):
    with connected(proxy) as one, connected(proxy) as two:
        exchange(one, b"1")
        exchange(two, b"2")
        proxy.cut()
        assert proxy.open_connections == 0
        for connection in (one, two):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    eventually(lambda: echo.ends == ["reset", "reset"])
    with connected(proxy) as three:
        assert exchange(three, b"3") == b"3"


def test_refuse_accepts_no_new_connection_and_keeps_open_ones(proxy):
    with connected(proxy) as one:
        exchange(one, b"1")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError), connected(proxy):
            pass
        assert exchange(one, b"still there") == b"still there"
        proxy.refuse()
        proxy.go_on()
        with connected(proxy) as two:
            assert exchange(two, b"2") == b"2"
        assert exchange(one, b"here too") == b"here too"


def test_stalled_bytes_are_forwarded_after_the_stall(proxy, echo):
    with connected(proxy) as one:
        exchange(one, b"1")
        proxy.stall()
        one.sendall(b"late")
        with connected(proxy) as two:
            two.sendall(b"later")
            assert silent(one)
            assert silent(two)
            assert echo.received == b"1"
            proxy.go_on()
            assert one.recv(10) == b"late"
            assert two.recv(10) == b"later"


def test_delayed_bytes_arrive_later_and_in_order(proxy):
    with connected(proxy) as connection:
        exchange(connection, b"1")
        proxy.delay(BLINK)
        began = time.monotonic()
        connection.sendall(b"a")
        connection.sendall(b"b")
        received = connection.recv(1) + connection.recv(1)
        assert received == b"ab"
        assert time.monotonic() - began >= 2 * BLINK
        proxy.delay(3_600)
        connection.sendall(b"c")
        assert silent(connection)
        proxy.go_on()
        assert connection.recv(1) == b"c"
        with pytest.raises(ValueError, match="before it was sent"):
            proxy.delay(-1)


def test_half_open_to_the_client_the_server_still_receives_bytes(proxy, echo):
    with connected(proxy) as one, connected(proxy) as untouched:
        exchange(one, b"1")
        exchange(untouched, b"2")
        proxy.half_open("to_client")
        one.sendall(b"unanswered")
        eventually(lambda: echo.received.endswith(b"unanswered"))
        assert silent(one)
        eventually(lambda: proxy.bytes_dropped == len(b"unanswered"))
        proxy.go_on()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert exchange(untouched, b"3") == b"3"


def test_half_open_to_the_server_it_receives_nothing_not_even_the_end(proxy, echo):
    with connected(proxy) as one:
        exchange(one, b"1")
        proxy.half_open("to_server")
        one.sendall(b"unheard")
        eventually(lambda: proxy.bytes_dropped == len(b"unheard"))
    assert silent_about_the_end(echo)
    assert echo.received == b"1"
    proxy.go_on()
    eventually(lambda: echo.ends == ["reset"])
    with pytest.raises(ValueError, match="sideways"):
        proxy.half_open("sideways")


def silent_about_the_end(echo):
    time.sleep(BLINK)
    return echo.ends == []


def test_only_the_next_reply_is_dropped(proxy, echo):
    with connected(proxy) as one, connected(proxy) as two:
        exchange(one, b"1")
        exchange(two, b"2")
        proxy.drop_next_reply()
        one.sendall(b"lost reply")
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        assert proxy.replies_dropped == 1
        assert echo.received == b"12lost reply"
        assert exchange(two, b"3") == b"3"
        eventually(lambda: echo.ends == ["end"])
        with connected(proxy) as three:
            assert exchange(three, b"4") == b"4"
    assert proxy.replies_dropped == 1


def test_the_reply_to_a_request_with_certain_bytes_is_dropped(proxy, echo):
    with connected(proxy) as connection:
        proxy.drop_next_reply(containing=b"COMMIT")
        assert exchange(connection, b"BEGIN") == b"BEGIN"
        connection.sendall(b"please COMMIT this")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert echo.received == b"BEGINplease COMMIT this"
    assert proxy.replies_dropped == 1


def test_without_a_server_the_client_is_reset():
    port = HeldPort()
    try:
        with Proxy("127.0.0.1", port.number) as proxy:
            with (
                pytest.raises(ConnectionResetError),
                connected(proxy) as connection,
            ):  # it may be so fast that it arrives first
                connection.recv(1)
            eventually(lambda: proxy.open_connections == 0)
    finally:
        port.close()


def test_a_closed_proxy_refuses_connections_and_calls(echo):
    with Proxy("127.0.0.1", echo.port) as proxy, connected(proxy) as connection:
        exchange(connection, b"1")
        proxy.stall()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        with pytest.raises(ConnectionRefusedError), connected(proxy):
            pass
        with pytest.raises(RuntimeError, match="closed"):
            proxy.cut()


def test_a_url_of_another_server_is_refused():
    with Proxy("localhost", 5432) as proxy:
        assert proxy.url_for("redis://:pass@localhost/3") == f"redis://:pass@127.0.0.1:{proxy.port}/3"
        with pytest.raises(ValueError, match="5432"):
            proxy.url_for("postgresql://localhost:5433/db")


# -- real servers ---------------------------------------------------------------------------------------------


class Connections:
    """A connection through the proxy, a direct one, and threads for calls that may hang."""

    def __init__(self, kind, server, proxy, pool):
        self.kind, self.proxy, self.pool = kind, proxy, pool
        self.url = proxy.url_for(server.url)
        self.beside = session(kind, server.url)

    def hangs(self, future):
        with pytest.raises(TimeoutError):
            future.result(BLINK)
        return True


@pytest.fixture(params=list(real_servers.KINDS))
def kind(request):
    return request.param


@pytest.fixture
def connections(kind, request):
    server = real_servers.shared(kind)
    with ThreadPoolExecutor() as pool, Proxy(server.host, server.port) as proxy:
        yield Connections(kind, server, proxy, pool)


def test_real_connections_are_cut(connections):
    with session(connections.kind, connections.url) as client:
        client.add()
        connections.proxy.cut()
        with suppress(*client.errors) if client.reconnects else pytest.raises(client.errors):
            client.add()
    with session(connections.kind, connections.url) as client:
        client.add()


def test_real_connections_are_refused(connections):
    with session(connections.kind, connections.url) as client:
        client.add()
        connections.proxy.refuse()
        with pytest.raises(client.errors), session(connections.kind, connections.url) as another:
            another.add()
        client.add()
        connections.proxy.go_on()
    with session(connections.kind, connections.url) as client:
        client.add()


def test_real_connections_stall_and_continue(connections):
    with session(connections.kind, connections.url) as client, connections.beside as beside:
        client.add()
        before = beside.value()
        connections.proxy.stall()
        adding = connections.pool.submit(client.add)
        assert connections.hangs(adding)
        assert beside.value() == before
        connections.proxy.go_on()
        adding.result(PATIENCE)
        assert beside.value() == before + 1


def test_real_connections_are_delayed(connections):
    with session(connections.kind, connections.url) as client:
        client.add()
        connections.proxy.delay(BLINK)
        began = time.monotonic()
        client.value()
        assert time.monotonic() - began >= 2 * BLINK


def test_real_servers_execute_a_request_although_no_answer_arrives(connections):
    with session(connections.kind, connections.url) as client, connections.beside as beside:
        client.add()
        before = beside.value()
        connections.proxy.half_open("to_client")
        adding = connections.pool.submit(client.add)
        eventually(lambda: beside.value() == before + 1)
        assert connections.hangs(adding)
        connections.proxy.go_on()
        with pytest.raises(client.errors):
            adding.result(PATIENCE)


def test_real_servers_are_not_reached_while_their_direction_is_lost(connections):
    with session(connections.kind, connections.url) as client, connections.beside as beside:
        client.add()
        before = beside.value()
        connections.proxy.half_open("to_server")
        adding = connections.pool.submit(client.add)
        assert connections.hangs(adding)
        connections.proxy.go_on()
        with pytest.raises(client.errors):
            adding.result(PATIENCE)
        assert beside.value() == before


def test_a_real_reply_is_lost_and_the_request_is_executed_once(connections):
    with session(connections.kind, connections.url) as client, connections.beside as beside:
        client.add()
        before = beside.value()
        connections.proxy.drop_next_reply(containing=client.adding)
        with pytest.raises(client.errors):
            client.add()
        assert connections.proxy.replies_dropped == 1
        assert beside.value() == before + 1
    with session(connections.kind, connections.url) as client:
        client.add()
        assert client.value() == before + 2
