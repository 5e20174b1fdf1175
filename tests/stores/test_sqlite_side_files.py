"""Files beside a SQLite database, among users who do not trust each other: real users, in separate processes."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from waiting import eventually

from holdfast.errors import StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.stores.sqlite import hints as wakeup
from holdfast.testing.builders import acquire, release, wait
from holdfast.testing.processes import running

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
as_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")
NOBODY = 65_534
ANN, BOB, TEAM, STAFF = 61_001, 61_002, 62_000, 62_001

BECOME = """
import os, fcntl, stat
from pathlib import Path
# now: another user may not be able to read where Python lives
import holdfast.stores.sqlite.store, holdfast.stores.sqlite.hints
user, group = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([62000] if user in (61001, 61002) else [])
os.setgid(group); os.setuid(user)
os.umask(0o022)
path = Path(sys.argv[3])
url = f"sqlite:///{path}"
"""


@pytest.fixture
def folder():
    """A folder that every user can enter, and where every user may make files, as in /tmp.

    It is not pytest's own: that one is closed to other users whenever another test run begins.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-users-") as place:
        Path(place).chmod(0o1777)
        yield Path(place)


@pytest.fixture
def path(folder):
    return folder / "locks.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@pytest.fixture
def watch():
    """Listen on a store until the end of the test."""
    with ExitStack() as stack:

        def listen(store, channel="b"):
            return stack.enter_context(closing(store.watch(channel, print)))

        yield listen


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def beside(path, suffix):
    return Path(f"{path}{suffix}")


# -- modes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_database_and_its_side_files_are_private_to_their_user(url, path, opened, umask, watch):
    before = os.umask(umask)
    try:
        store = opened(url)
        connection = store.connect("commands")
        watch(store)
        connection.execute([acquire()])
    finally:
        os.umask(before)
    modes = {name: mode(beside(path, name)) for name in ("", "-turn", "-wal", "-shm", "-wake", "-wake/b")}
    assert modes == {"": 0o600, "-turn": 0o600, "-wal": 0o600, "-shm": 0o600, "-wake": 0o700, "-wake/b": 0o600}


@pytest.mark.parametrize("asked", [0o600, 0o640, 0o644, 0o660, 0o664, 0o666])
def test_the_mode_of_an_existing_database_is_kept_and_copied_to_its_side_files(url, path, opened, asked, watch):
    path.touch()
    path.chmod(asked)
    before = os.umask(0o077)
    try:
        store = opened(url)
        connection = store.connect("commands")
        watch(store)
        connection.execute([acquire()])
    finally:
        os.umask(before)
    writers = asked & 0o222 | (asked & 0o222) << 1
    modes = {name: mode(beside(path, name)) for name in ("", "-turn", "-wal", "-shm", "-wake", "-wake/b")}
    assert modes == {
        "": asked,
        "-turn": writers,
        "-wal": asked,
        "-shm": asked,
        "-wake": writers | writers >> 1 & 0o111,
        "-wake/b": writers,
    }


SPY = (
    BECOME
    + """
for name in ("", "-wal", "-shm", "-turn"):
    try:
        file = os.open(f"{path}{name}", os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        report(name, "taken")
    except PermissionError as error:
        report(name, "refused")
"""
)


@as_root
def test_another_user_can_neither_read_the_database_nor_take_its_turn_lock(url, path, opened):
    before = os.umask(0o000)
    try:
        connection = opened(url).connect("commands")
        connection.execute([acquire()])
    finally:
        os.umask(before)
    with running(SPY, str(NOBODY), str(NOBODY), str(path)) as spy:
        printed = [spy.read_line() for _ in range(4)]
    assert printed == ["refused", "-wal refused", "-shm refused", "-turn refused"]
    assert isinstance(connection.execute([acquire("other")])[0], out.Granted)


MAKER = """
sys.stdin.readline()
store = open_store(sys.argv[1], namespace="default")
connection = store.connect("commands")
granted, = connection.execute([acquire(sys.argv[2])])
report(granted.token > 0)
sys.stdin.readline()
"""


def test_processes_that_create_the_database_at_the_same_moment_create_one_private_database(url, path, opened):
    with (
        running(MAKER, url, "a") as a,
        running(MAKER, url, "b") as b,
        running(MAKER, url, "c") as c,
        running(MAKER, url, "d") as d,
    ):
        for process in (a, b, c, d):
            process.send_line()
        assert [process.read_line() for process in (a, b, c, d)] == ["True"] * 4
        assert {mode(beside(path, name)) for name in ("", "-turn", "-wal", "-shm")} == {0o600}
    connection = opened(url).connect("commands")
    assert [type(one) for one in connection.execute([acquire(key, "z.1") for key in "abcd"])] == [out.Busy] * 4


# -- a database of a group ---------------------------------------------------------------------------------------

HOLDER = (
    BECOME
    + """
store = open_store(url, namespace="default")
connection = store.connect("commands")
granted, = connection.execute([acquire()])
report(type(granted).__name__)
sys.stdin.readline()
connection.execute([release(token=granted.token)])
report("released")
sys.stdin.readline()
"""
)
WAITER = (
    BECOME
    + """
import threading
received = threading.Event()
store = open_store(url, namespace="default")
watch = store.watch("b", lambda ids: received.set())
connection = store.connect("commands")
queued, = connection.execute([wait(id="b.1")])
report(type(watch).__name__, type(queued).__name__)
report(received.wait(20))
granted, = connection.execute([wait(id="b.1")])
report(type(granted).__name__)
connection.execute([release(id="b.1", token=granted.token)])
watch.close(); connection.close(); store.close()
report("closed")
"""
)


@as_root
@pytest.mark.parametrize("first", [ANN, BOB], ids=["by its owner", "by another of the group"])
@pytest.mark.parametrize("group", [TEAM, STAFF], ids=["their own group", "the folder's group"])
def test_two_users_of_a_group_share_a_database_and_its_hints(path, first, group):
    path.touch()
    os.chown(path, ANN, TEAM)
    path.chmod(0o660)
    if group == STAFF:
        os.chown(path.parent, 0, TEAM)
        path.parent.chmod(0o3770)
    holder, waiter = (ANN, BOB) if first == ANN else (BOB, ANN)
    with running(HOLDER, str(holder), str(group), str(path)) as one:
        assert one.read_line() == "Granted"
        with running(WAITER, str(waiter), str(STAFF), str(path)) as other:
            assert other.read_line() == "SocketWatch Queued"
            one.send_line()
            assert one.read_line() == "released"
            assert [other.read_line() for _ in range(3)] == ["True", "Granted", "closed"]


# -- root and others -----------------------------------------------------------------------------------------------


@as_root
def test_root_uses_the_database_of_another_user_and_leaves_it_usable(path, opened, watch):
    """Root polls, gives the files that it creates to the owner, and changes no other file."""
    path.touch()
    os.chown(path, ANN, STAFF)
    path.chmod(0o600)
    store = opened(f"sqlite:///{path}")
    connection = store.connect("commands")
    (granted,) = connection.execute([acquire()])
    assert isinstance(watch(store, "root"), wakeup.PollingWatch)
    owners = {(status.st_uid, status.st_gid) for status in (beside(path, one).stat() for one in ("", "-turn", "-wal"))}
    assert owners == {(ANN, STAFF)}
    with running(WAITER, str(ANN), str(STAFF), str(path)) as other:
        assert other.read_line() == "SocketWatch Queued"
        connection.execute([release(token=granted.token)])
        assert [other.read_line() for _ in range(3)] == ["True", "Granted", "closed"]


@as_root
def test_a_user_may_not_use_the_database_of_root_unless_its_mode_allows_it(path, opened):
    opened(f"sqlite:///{path}").close()
    with running(BECOME + TRY, str(ANN), str(STAFF), str(path)) as user:
        assert user.read_line().startswith("StoreUnusable")


TRY = """
try:
    open_store(url, namespace="default")
    report("opened")
except Exception as error:
    report(type(error).__name__, error)
"""

PLANT = (
    BECOME
    + """
if sys.argv[4] == "-wake":
    Path(f"{path}-wake").mkdir()
else:
    Path(f"{path}{sys.argv[4]}").touch()
    Path(f"{path}{sys.argv[4]}").chmod(0o666)
report("planted")
"""
)


def plant(path, suffix):
    with running(PLANT, str(NOBODY), str(NOBODY), str(path), suffix) as other:
        assert other.read_line() == "planted"


@as_root
@pytest.mark.parametrize("suffix", ["-turn", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("before", ["missing", "existing"])
def test_a_side_file_of_another_user_is_refused(url, path, opened, suffix, before):
    if before == "existing":
        opened(url).close()
        beside(path, "-turn").unlink()
    plant(path, suffix)
    with pytest.raises(StoreUnusable, match=f"locks.db{suffix} is refused: it belongs to another user") as caught:
        opened(url)
    assert "Nothing was changed" in str(caught.value)
    assert beside(path, suffix).stat().st_uid == NOBODY
    assert mode(beside(path, suffix)) == 0o666


@as_root
def test_no_hint_is_received_or_sent_in_a_folder_of_another_user(url, path, opened, watch):
    store = opened(url)
    plant(path, "-wake")
    connection = store.connect("commands")
    assert isinstance(watch(store), wakeup.PollingWatch)
    (held,) = connection.execute([acquire(), wait(id="elsewhere.1")])[:1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trap:
        trap.setblocking(False)  # noqa: FBT003
        trap.bind(str(beside(path, "-wake") / "elsewhere"))
        connection.execute([release(token=held.token)])
        with pytest.raises(BlockingIOError):
            trap.recv(100)
    assert (beside(path, "-wake").stat().st_uid, mode(beside(path, "-wake"))) == (NOBODY, 0o755)


# -- links ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["symbolic", "dangling", "hard"])
@pytest.mark.parametrize("suffix", ["-turn", "-wal", "-shm"])
def test_no_side_file_is_opened_through_a_link(url, path, opened, kind, suffix):
    opened(url).close()
    beside(path, "-turn").unlink()
    secret = path.with_name("secret")
    if kind != "dangling":
        secret.write_text("secret")
        secret.chmod(0o640)
    if kind == "hard":
        beside(path, suffix).hardlink_to(secret)
    else:
        beside(path, suffix).symlink_to(secret)
    with pytest.raises(StoreUnusable, match=f"locks.db{suffix} is refused: .*link"):
        opened(url)
    if kind == "dangling":
        assert not secret.exists()
    else:
        assert (secret.read_text(), mode(secret)) == ("secret", 0o640)


def test_a_wake_up_folder_that_is_a_link_is_not_used(url, path, opened, folder, watch):
    store = opened(url)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    beside(path, "-wake").symlink_to(elsewhere)
    assert isinstance(watch(store), wakeup.PollingWatch)
    assert (list(elsewhere.iterdir()), mode(elsewhere)) == ([], 0o755)


def test_a_file_with_content_is_neither_given_away_nor_used_as_a_turn_lock(url, path, opened):
    opened(url).close()
    turn = beside(path, "-turn")
    turn.write_text("a log of root's that somebody moved here")
    turn.chmod(0o644)
    with pytest.raises(StoreUnusable, match="not empty"):
        opened(url)
    assert mode(turn) == 0o644


@as_root
def test_a_folder_with_something_in_it_is_not_given_to_the_owner_of_the_database(url, path, opened, watch):
    store = opened(url)
    moved = beside(path, "-wake")
    moved.mkdir(mode=0o700)
    (moved / "secret").write_text("secret")
    os.chown(path, ANN, STAFF)
    watch(store)
    assert (moved.stat().st_uid, mode(moved)) == (0, 0o700)


@as_root
def test_an_empty_turn_file_that_root_left_is_given_to_the_owner_of_the_database(url, path, opened):
    opened(url).close()
    os.chown(path, ANN, STAFF)
    opened(url).close()
    status = beside(path, "-turn").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (ANN, STAFF, 0o600)


WATCHED = """
import os, sys, threading
from pathlib import Path
from holdfast.stores.sqlite import hints as wakeup
changed, touched = [], threading.Event()
def hook(event, arguments):
    if event in ("os.chmod", "os.chown"):
        changed.append((event, arguments[0]))
    elif event == "os.utime":
        name, *_, folder = arguments
        changed.append((event, name if folder == -1 or "/" in str(name) else folder))
        touched.set()
sys.addaudithook(hook)
wakeup.CHECK_SECONDS = 0.01
path = Path(sys.argv[1])
os.umask(int(sys.argv[2], 8))
store = open_store(f"sqlite:///{path}", namespace="default")
watch = store.watch("b", print)
report(type(watch).__name__)
assert touched.wait(20)
by_path = [what for what in changed if not isinstance(what[1], int) and not str(what[1]).startswith("/proc/self/fd/")]
report(by_path)
watch.close()
"""


@pytest.mark.parametrize("asked", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("umask", ["000", "077"])
def test_owners_and_modes_are_never_changed_by_path(path, asked, umask):
    """A path may lead to another file by the time of the change; only files with an open descriptor are changed."""
    path.touch()
    path.chmod(asked)
    with running(WATCHED, str(path), umask) as process:
        assert process.read_line() == "SocketWatch"
        assert process.read_line() == "[]"


def test_the_time_of_a_file_behind_a_link_is_not_changed_and_the_link_is_replaced(url, path, opened, watch):
    store = opened(url)
    secret = path.with_name("secret")
    secret.touch()
    os.utime(secret, (1_000, 1_000))
    received = watch(store)
    assert isinstance(received, wakeup.SocketWatch)
    place = beside(path, "-wake") / "b"
    link = place.with_name("link")
    link.symlink_to(secret)
    link.rename(place)
    received._rebind_if_missing()
    assert secret.stat().st_mtime == 1_000
    assert place.is_socket()


@as_root
def test_the_mode_of_a_socket_that_was_replaced_is_not_changed(path, opened, monkeypatch, watch):
    path.touch()
    path.chmod(0o660)
    secret = path.with_name("secret")
    secret.write_text("secret")
    secret.chmod(0o600)
    store = opened(f"sqlite:///{path}")
    share = wakeup.share_socket

    def exchanged(place, name, database):
        os.unlink(name, dir_fd=place)
        os.symlink(secret, name, dir_fd=place)
        share(place, name, database)

    monkeypatch.setattr(wakeup, "share_socket", exchanged)
    assert isinstance(watch(store), wakeup.PollingWatch)
    assert mode(secret) == 0o600


def test_the_turn_file_follows_a_changed_mode_of_the_database_at_the_next_opening(url, path, opened):
    opened(url).close()
    path.chmod(0o660)
    opened(url).close()
    assert eventually(lambda: mode(beside(path, "-turn"))) == 0o660
