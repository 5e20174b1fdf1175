"""Hints beside a SQLite file: by sockets, or by polling, and their faults."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing, suppress

import pytest
from providers import open_files
from waiting import eventually

from holdfast.commands import Inspect
from holdfast.stores.sqlite import hints as wakeup
from holdfast.testing.builders import abandon, acquire, release, wait
from holdfast.testing.processes import running


@pytest.fixture
def received():
    return []


@pytest.fixture
def watching(received):
    """Watch a channel of a store until the end of the test."""
    watches = []

    def watch(store, channel="b"):
        watches.append(store.watch(channel, lambda ids: received.append(None if ids is None else list(ids))))
        return watches[-1]

    yield watch
    for made in watches:
        made.close()
        made.close()


RELEASER = """
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("commands")
for key in sys.argv[2:]:
    granted, = connection.execute([acquire(key)])
    report(granted.token)
    sys.stdin.readline()
    connection.execute([release(key, token=granted.token)])
report("released")
sys.stdin.readline()
"""


@pytest.mark.parametrize("options", ["", "?wakeup=poll"])
@pytest.mark.parametrize("depth", [0, 12], ids=["short path", "path longer than a socket's name may be"])
@pytest.mark.parametrize("channel", ["b", "/b/√ and more" * 9], ids=["plain channel", "odd channel"])
def test_a_hint_from_another_process_is_received(tmp_path, opened, watching, received, options, depth, channel):  # noqa: PLR0917
    folder = tmp_path.joinpath(*["folder-name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:///{folder}/locks.db{options}"
    store = opened(url)
    watch = watching(store, channel)
    assert type(watch) is (wakeup.PollingWatch if options else wakeup.SocketWatch)
    connection = store.connect("commands")
    with running(RELEASER, url, "k") as other:
        other.read_line()
        connection.execute([wait(id=f"{channel}.1")])
        watch.expect(f"{channel}.1", eager=True)
        received.clear()
        other.send_line()
        eventually(lambda: [None if options else [f"{channel}.1"]] == received[:1])
        assert other.read_line() == "released"


def test_a_process_that_polls_sends_hints_to_sockets(tmp_path, opened, watching, received):
    url = f"sqlite:///{tmp_path}/locks.db"
    store = opened(url)
    watching(store)
    connection = store.connect("commands")
    with running(RELEASER, f"{url}?wakeup=poll", "k") as other:
        other.read_line()
        connection.execute([wait(id="b.1")])
        other.send_line()
        assert other.read_line() == "released"
        assert eventually(lambda: received) == [["b.1"]]


def test_polling_also_finds_changes_without_an_eager_waiter(tmp_path, opened, watching, received):
    store = opened(f"sqlite:///{tmp_path}/locks.db?wakeup=poll")
    watching(store, "other")
    connection = store.connect("commands")
    eventually(lambda: connection.execute([acquire(id=f"b.{len(received)}")]) and received)
    assert received[0] is None


def test_the_store_polls_if_a_socket_cannot_be_bound(tmp_path, opened, watching):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    (tmp_path / "locks.db-wake").write_text("in the way")
    assert isinstance(watching(store), wakeup.PollingWatch)


def test_the_socket_of_an_ended_process_is_removed_after_a_while(tmp_path, opened, watching):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    folder = tmp_path / "locks.db-wake"
    folder.mkdir()
    for name in ("old", "fresh"):
        dead_socket(folder / name)
    os.utime(folder / "old", (1, 1))
    watching(store)
    assert sorted(path.name for path in folder.iterdir()) == ["b", "fresh"]


def dead_socket(path):
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as dead:
        dead.bind(str(path))


def hand_over(connection, *waiters):
    """Let these attempts wait for a key in turn, and release it. Returns the record after that."""
    (held,) = connection.execute([acquire()])
    connection.execute([*waiters])
    connection.execute([release(token=held.token)])
    (seen,) = connection.execute([Inspect(key="k")])
    return seen.record


def test_an_offer_to_an_ended_process_is_passed_over_at_once_and_the_next_are_hinted(
    tmp_path, opened, watching, received
):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    watching(store)
    dead_socket(tmp_path / "locks.db-wake" / "dead")
    dead = [wait(id=f"dead.{n}", listens=True) for n in range(3)]
    record = hand_over(store.connect("commands"), *dead, wait(id="b.1", listens=True))
    assert record.holders == ()
    assert [(one.id, one.passed, one.missed) for one in record.waiters] == [
        ("dead.0", True, 1), ("dead.1", True, 0), ("dead.2", True, 0), ("b.1", True, 0)
    ]  # fmt: skip
    assert received == [["b.1"]]


def test_a_waiter_without_a_socket_is_not_passed_over(tmp_path, opened):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    connection = store.connect("commands")
    (tmp_path / "locks.db-wake").mkdir()
    dead_socket(tmp_path / "locks.db-wake" / "dead")
    record = hand_over(connection, wait(id="dead.1"), wait(id="b.1"))
    assert [holder.id for holder in record.holders] == ["dead.1"]


def test_a_missing_or_full_socket_does_not_count_as_an_ended_process(tmp_path, opened):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    folder = tmp_path / "locks.db-wake"
    folder.mkdir()
    connection = store.connect("commands")
    assert [one.id for one in hand_over(connection, wait(id="gone.1", listens=True)).holders] == ["gone.1"]
    connection.execute([abandon(id="gone.1")])
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as paused:
        paused.bind(str(folder / "paused"))
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender, suppress(BlockingIOError):
            sender.setblocking(False)  # noqa: FBT003
            while True:
                sender.sendto(b"x", str(folder / "paused"))
        assert [one.id for one in hand_over(connection, wait(id="paused.1", listens=True)).holders] == ["paused.1"]


def test_a_watch_does_not_remove_a_socket_that_is_being_created(tmp_path, opened, watching):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    folder = tmp_path / "locks.db-wake"
    folder.mkdir()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as unfinished:
        unfinished.bind(str(folder / f"{wakeup._UNFINISHED}1-1"))
    watching(store)
    assert (folder / f"{wakeup._UNFINISHED}1-1").exists()


def test_a_watch_works_again_after_its_folder_was_deleted(tmp_path, opened, watching, received, monkeypatch):
    monkeypatch.setattr(wakeup, "CHECK_SECONDS", 0.01)
    url = f"sqlite:///{tmp_path}/locks.db"
    store = opened(url)
    watching(store)
    connection = store.connect("commands")
    folder = tmp_path / "locks.db-wake"
    (folder / "b").unlink()
    folder.rmdir()
    eventually(lambda: (folder / "b").exists())
    with running(RELEASER, url, "k") as other:
        other.read_line()
        connection.execute([wait(id="b.1")])
        other.send_line()
        assert eventually(lambda: received) == [["b.1"]]


def test_a_full_or_missing_receiver_does_not_affect_the_sender(tmp_path, opened):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    connection = store.connect("commands")
    folder = tmp_path / "locks.db-wake"
    folder.mkdir()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as deaf:
        deaf.bind(str(folder / "b"))
        for n in range(600):
            store._sender.send({"b": [f"b.{n}"], "nobody": ["nobody.1"]})
        (held,) = connection.execute([acquire(), wait()])[:1]
        assert type(connection.execute([release(token=held.token)])[0]).__name__ == "Released"


def test_many_hints_at_once_become_one_hint_without_names(tmp_path, opened, watching, received):
    store = opened(f"sqlite:///{tmp_path}/locks.db")
    watch = watching(store)
    wakeup._local_hints.forget()  # as another process sees it
    store._sender.send({"b": [f"b.{n:0500}" for n in range(100)]})
    assert eventually(lambda: received) == [None]
    watch.close()


def test_an_error_in_a_callback_ends_neither_thread_nor_command(tmp_path, opened, caplog):
    def mistaken(_):
        raise RuntimeError("mistake")

    store = opened(f"sqlite:///{tmp_path}/locks.db")
    connection = store.connect("commands")
    watch = store.watch("b", mistaken)
    (held,) = connection.execute([acquire(), wait()])[:1]
    connection.execute([release(token=held.token)])
    assert "mistake" in caplog.text
    watch.close()


@pytest.mark.parametrize("options", ["", "?wakeup=poll"])
def test_nothing_is_left_open_after_close(tmp_path, opened, options):
    before = set(os.listdir("/proc/self/fd")), threading.enumerate()  # noqa: PTH208
    store = opened(f"sqlite:///{tmp_path}/locks.db{options}")
    connections = [store.connect(role) for role in ("commands", "heartbeats", "queries")]
    watch = store.watch("b", print)
    (held,) = connections[0].execute([acquire(), wait(id="other.1")])[:1]
    connections[1].execute([release(token=held.token)])
    watch.close()
    for connection in connections:
        connection.close()
    store.close()
    assert (set(os.listdir("/proc/self/fd")), threading.enumerate()) == before  # noqa: PTH208
    assert open_files() == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"locks.db", "locks.db-turn", "locks.db-wake"}
