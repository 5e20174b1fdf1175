"""Differences between operating systems, and their workarounds."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast import platform as _platform
from holdfast.platform import FileLock, network_file_system

HANG = 60


def run(code, *arguments):
    """Run the code in a separate interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_a_boot_time_clock_the_monotonic_clock_is_used():
    code = """
import time
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME
from holdfast import platform as _platform
print(_platform.elapsed is time.monotonic)
"""
    assert run(code) == "True"


def test_a_boot_time_clock_that_the_kernel_refuses_is_not_used():
    code = """
import time
time.CLOCK_BOOTTIME = 12345
from holdfast import platform as _platform
print(_platform.elapsed is time.monotonic)
"""
    assert run(code) == "True"


def test_the_elapsed_clock_goes_forward():
    first = _platform.elapsed()
    while _platform.elapsed() == first:
        pass
    assert _platform.elapsed() > first


def test_the_host_clock_is_wall_clock_time_in_whole_microseconds():
    before, now, after = time.time_ns() // 1_000, _platform.host_clock(), time.time_ns() // 1_000
    assert isinstance(now, int)
    assert before <= now <= after


def test_without_fork_hooks_there_is_nothing_to_register():
    code = """
import os
for name in ("fork", "register_at_fork"):  # the standard library expects both or none
    if hasattr(os, name):
        delattr(os, name)
from holdfast import platform as _platform, fencing
_platform.after_fork_in_child(lambda: None)
print("fine")
"""
    assert run(code) == "fine"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_hook_runs_in_the_child_and_not_in_the_parent():
    code = """
import os
from holdfast import platform as _platform
ran = []
_platform.after_fork_in_child(lambda: ran.append(True))
child = os.fork()
if child == 0:
    os._exit(7 if ran else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ran)
"""
    assert run(code) == "7 []"


def test_without_fcntl_the_module_imports_and_uses_the_locks_of_windows(tmp_path):
    """A replacement of msvcrt locks a byte with the calls of this system."""
    code = """
import sys, types, os
import asyncio, subprocess  # they look for the real msvcrt
real = None
try:
    import fcntl as real
except ImportError:
    pass
if real is not None:
    sys.modules["fcntl"] = None
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = 2, 0
    def locking(fd, mode, count):
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0 and count == 1
        real.flock(fd, real.LOCK_EX | real.LOCK_NB if mode == 2 else real.LOCK_UN)
    msvcrt.locking = locking
    sys.modules["msvcrt"] = msvcrt
from pathlib import Path
from holdfast import platform as _platform
assert _platform.fcntl is None
one, two = _platform.FileLock(Path(sys.argv[1])), _platform.FileLock(Path(sys.argv[1]))
print(one.try_lock(), two.try_lock(), one.unlock(), two.try_lock())
one.close(); two.close()
"""
    assert run(code, tmp_path / "lock") == "True False None True"


@pytest.fixture
def mounts(tmp_path):
    """A mount table like those of Linux."""
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/sda1 / ext4 rw 0 0\n"
        "server:/export /srv nfs4 rw 0 0\n"
        "/dev/sdb1 /srv/local ext4 rw 0 0\n"
        "//host/share /mnt/my\\040share cifs rw 0 0\n"
        "overlay /srvother overlay rw 0 0\n"
        "broken\n"
        "sshfs#x /home/me/far fuse.sshfs rw 0 0\n"
    )
    return table


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the mount table is one of Linux")
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/holdfast.db", "nfs4"),
        ("/srv", "nfs4"),
        ("/srv/local/holdfast.db", None),
        ("/srvother/holdfast.db", None),
        ("/mnt/my share/holdfast.db", "cifs"),
        ("/home/me/far/holdfast.db", "fuse.sshfs"),
        ("/home/me/holdfast.db", None),
    ],
)
def test_the_network_file_system_under_a_path_is_named(mounts, path, kind):
    assert network_file_system(Path(path), mounts) == kind


def test_an_unknown_file_system_is_not_reported_as_a_network_file_system(tmp_path):
    assert network_file_system(tmp_path / "x", tmp_path / "no-such-table") is None


def test_systems_without_a_mount_table_report_no_network_file_system(mounts, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert network_file_system(Path("/srv/holdfast.db"), mounts) is None


HOLD = """
import sys
from pathlib import Path
from holdfast.platform import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.try_lock(), flush=True)
for line in sys.stdin:
    lock.unlock()
    print("unlocked", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.communicate(timeout=HANG)


def test_a_file_lock_excludes_other_processes_until_it_is_released(tmp_path, holder):
    lock = FileLock(tmp_path / "lock")
    assert not lock.try_lock()
    holder.stdin.write("unlock\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "unlocked\n"
    assert lock.try_lock()
    lock.close()


def test_a_file_lock_ends_with_a_killed_process(tmp_path, holder):
    lock = FileLock(tmp_path / "lock")
    assert not lock.try_lock()
    holder.send_signal(signal.SIGKILL)
    holder.wait(HANG)
    assert lock.try_lock()
    lock.unlock()
    lock.close()


def test_a_file_lock_excludes_other_locks_of_the_same_process_until_it_is_closed(tmp_path):
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_lock()
    assert not two.try_lock()
    one.close()
    assert two.try_lock()
    two.close()


def test_a_file_lock_is_not_inherited_by_child_programs(tmp_path):
    lock = FileLock(tmp_path / "lock")
    assert lock.try_lock()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    assert child.stdout.readline() == b"up\n"
    lock.close()
    again = FileLock(tmp_path / "lock")
    assert again.try_lock()
    again.close()
    child.communicate(timeout=HANG)


class Interrupted(threading.Thread):
    """A thread whose start is interrupted in the middle of CPython's own wait."""

    def start(self):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")


def test_an_interrupt_while_a_thread_starts_is_raised_unchanged():
    with pytest.raises(KeyboardInterrupt):
        _platform.start_thread(Interrupted())


def test_any_other_error_of_a_thread_that_does_not_start_is_raised():
    thread = threading.Thread(target=int)
    _platform.start_thread(thread)
    thread.join()
    with pytest.raises(RuntimeError, match="only be started once"):
        _platform.start_thread(thread)
