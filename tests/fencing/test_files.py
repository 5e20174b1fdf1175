"""The fence around a file: order of tokens, complete content, and what a kill leaves."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import InvalidDuration, InvalidOption, StaleToken, StoreUnavailable, StoreUnusable
from holdfast.fencing import fenced_read, fenced_replace, files

T0 = 1_790_000_000_000_000

WORKER = Path(__file__).with_name("worker.py")
HANG = 120
"""Seconds after which a test is broken rather than slow."""


def start(*arguments):
    words = [sys.executable, WORKER, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def start_together(racing):
    """Start the processes when all are ready, so that they run at the same time."""
    for racer in racing:
        assert racer.stdout.readline() == "ready\n"
    for racer in racing:
        racer.stdin.write("go\n")
        racer.stdin.flush()


def body(token):
    return f"{token}\n" * 2_000


def whole(text):
    """The token whose complete content this is; fails if the content is incomplete."""
    token = int(text.partition("\n")[0])
    assert text == body(token), "the file holds a mixture or a part"
    return token


@pytest.fixture
def file(tmp_path):
    return tmp_path / "data.txt"


def names(file):
    return sorted(path.name for path in file.parent.iterdir())


def test_the_first_write_creates_the_file_and_its_fence(file):
    fenced_replace(file, "new", 100)
    assert file.read_text() == "new"
    assert names(file) == ["data.txt", "data.txt.fence", "data.txt.fence.lock"]


def test_a_higher_and_the_same_token_pass(file):
    for token, text in ((100, "a"), (200, "b"), (200, "c")):
        fenced_replace(file, text, token)
    assert file.read_text() == "c"


def test_a_lower_token_is_refused_and_nothing_was_written(file):
    fenced_replace(file, "newer", 200)
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    with pytest.raises(StaleToken) as caught:
        fenced_replace(file, "older", 100)
    assert (caught.value.resource, caught.value.offered, caught.value.highest) == (str(file), 100, 200)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


def test_a_fenced_read_refuses_older_writers_from_then_on(file):
    """Otherwise a late write between a successor's reading and writing would be accepted and then overwritten."""
    fenced_replace(file, b"0", T0)
    assert fenced_read(file, T0 + 2) == b"0"
    with pytest.raises(StaleToken):
        fenced_replace(file, b"late", T0 + 1)
    with pytest.raises(StaleToken):
        fenced_read(file, T0 + 1)
    fenced_replace(file, b"1", T0 + 2)
    assert file.read_bytes() == b"1"


def test_a_fenced_read_of_a_missing_file_also_refuses_older_writers(file):
    """The reader will create the file; a late write in between would be accepted and then overwritten."""
    with pytest.raises(FileNotFoundError):
        fenced_read(file, T0)
    with pytest.raises(StaleToken):
        fenced_replace(file, b"late", T0 - 1)
    assert not file.exists()
    fenced_replace(file, b"first", T0)
    assert file.read_bytes() == b"first"


def test_holders_of_a_semaphore_do_not_refuse_each_other(file):
    fenced_replace(file, "b", SimpleNamespace(token=200, floor=100))
    fenced_replace(file, "a", SimpleNamespace(token=100, floor=100))
    assert file.read_text() == "a"


def test_a_semaphore_holder_that_fell_below_the_floor_is_refused_and_an_older_floor_lowers_nothing(file):
    fenced_replace(file, "c", SimpleNamespace(token=300, floor=200))
    fenced_replace(file, "b", SimpleNamespace(token=200, floor=100))
    with pytest.raises(StaleToken):
        fenced_replace(file, "a", SimpleNamespace(token=199, floor=100))
    assert file.read_text() == "b"


@pytest.mark.parametrize("data", [b"\x00\xff", bytearray(b"ab"), memoryview(b"ab"), b""])
def test_bytes_are_written_as_they_are(file, data):
    fenced_replace(file, data, 100)
    assert file.read_bytes() == bytes(data)


def test_text_is_written_as_utf8_with_its_line_ends(file):
    fenced_replace(str(file), "é\r\n", 100)
    assert file.read_bytes() == b"\xc3\xa9\r\n"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_an_existing_file_keeps_its_mode(file, mode):
    file.write_text("old")
    file.chmod(mode)
    fenced_replace(file, "new", 100)
    assert file.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_gets_the_mode_that_the_umask_leaves(file, umask):
    before = os.umask(umask)
    try:
        fenced_replace(file, "new", 100)
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_symbolic_link_is_followed_and_shares_the_fence_of_its_target(file, tmp_path):
    fenced_replace(file, "newer", 200)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(StaleToken):
        fenced_replace(link, "older", 100)
    fenced_replace(link, "newest", 300)
    assert link.is_symlink()
    assert file.read_text() == "newest"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"17000",
        b'{"holdfast_fence":1,"floor":20',
        b'{"holdfast_fence":2,"floor":200}',
        b'{"holdfast_fence":1,"floor":-1}',
        b'{"holdfast_fence":1,"floor":"200"}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_fence_is_refused_with_what_to_do_and_not_taken_for_an_empty_one(file, damage):
    fenced_replace(file, "old", 100)
    fence = file.with_name("data.txt.fence")
    fence.write_bytes(damage)
    with pytest.raises(StoreUnusable, match=r"(?s)data\.txt\.fence.*delete that file"):
        fenced_replace(file, "new", 200)
    assert file.read_text() == "old"
    assert fence.read_bytes() == damage


@pytest.mark.parametrize("wrong", [True, -1, "100", None])
def test_a_bad_token_is_refused_before_anything_is_touched(file, wrong):
    with pytest.raises(InvalidOption):
        fenced_replace(file, "new", wrong)
    assert names(file) == []


def test_bad_content_a_folder_and_a_bad_wait_are_refused(file, tmp_path):
    with pytest.raises(InvalidOption, match="bytes or text, not int"):
        fenced_replace(file, 7, 100)
    with pytest.raises(InvalidOption, match="regular file"):
        fenced_replace(tmp_path, "new", 100)
    with pytest.raises(InvalidDuration):
        fenced_replace(file, "new", 100, wait=-1)


def test_a_folder_that_does_not_exist_is_the_file_systems_own_error(file):
    with pytest.raises(FileNotFoundError):
        fenced_replace(file.parent / "nowhere" / "data.txt", "new", 100)


def test_a_failing_disk_leaves_the_old_content_and_no_temporary_file(file, monkeypatch):
    fenced_replace(file, "old", 100)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        fenced_replace(file, "new", 200)
    monkeypatch.undo()
    assert file.read_text() == "old"
    assert names(file) == ["data.txt", "data.txt.fence", "data.txt.fence.lock"]
    fenced_replace(file, "same lease", 100)


def test_the_floor_is_on_disk_before_the_new_content_can_be_seen(file, monkeypatch):
    """The order of the system calls is what survives a loss of power."""
    fenced_replace(file, "old", 100)
    seen, opened = [], {}

    def spy(name, original):
        def call(*arguments):
            subject = arguments[0]
            result = original(*arguments)
            if name == "open":
                opened[result] = Path(arguments[0]).name
            else:
                seen.append((name, opened.get(subject) if name == "fsync" else Path(subject).name))
            return result

        return call

    for name in ("open", "fsync", "replace"):
        monkeypatch.setattr(os, name, spy(name, getattr(os, name)))
    fenced_replace(file, "new", 200)
    folder = file.parent.name
    assert seen == [
        ("fsync", "data.txt.fence.tmp"),
        ("fsync", "data.txt.fence.new"),
        ("replace", "data.txt.fence.new"),
        ("fsync", folder),
        ("replace", "data.txt.fence.tmp"),
        ("fsync", folder),
    ]


def test_an_error_after_the_rename_is_reported_as_ambiguous(file, monkeypatch):
    calls = []

    def last_fails(folder):
        calls.append(folder)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_sync_folder", last_fails)
    with pytest.raises(StoreUnavailable) as caught:
        fenced_replace(file, "new", 100)
    assert caught.value.ambiguous
    assert file.read_text() == "new"


def test_a_kill_at_any_step_leaves_complete_content_and_refuses_older_tokens(file):
    outcomes = set()
    for step in range(1, 100):
        for path in file.parent.iterdir():
            path.unlink()
        fenced_replace(file, body(100), 100)
        writer = start("crash", file, 200, step)
        answer = writer.communicate(timeout=HANG)[0]
        found = whole(file.read_text())
        assert found in (100, 200)
        try:
            fenced_replace(file, body(150), 150)
            older_was_let_in = True
        except StaleToken:
            older_was_let_in = False
        assert not (found == 200 and older_was_let_in), f"step {step}: 150 came after 200"
        outcomes.add((found, older_was_let_in))
        fenced_replace(file, body(300), 300)
        assert names(file) == ["data.txt", "data.txt.fence", "data.txt.fence.lock"], f"step {step}"
        if answer:
            assert (answer, writer.returncode) == ("survived\n", 0)
            break
        assert writer.returncode == -signal.SIGKILL
    assert step > 10, "too few steps were seen"
    assert outcomes == {(100, True), (100, False), (200, False)}, "not every kind of end was seen"


def test_a_kill_at_a_random_moment_never_loses_confirmed_content(file):
    chance = random.Random()
    best = 10
    for _ in range(8):
        writer = start("raise_tokens", file, best + 1)
        for _ in range(chance.randint(1, 40)):
            confirmed = int(writer.stdout.readline())
        writer.kill()
        rest = writer.communicate(timeout=HANG)[0].split()
        confirmed = max([confirmed, *map(int, rest)])
        best = whole(file.read_text())
        assert best >= confirmed
        with pytest.raises(StaleToken):
            fenced_replace(file, body(confirmed - 1), confirmed - 1)


def test_eight_processes_with_random_tokens_never_replace_newer_content_by_older(file):
    rounds, processes, seed = 40, 8, random.randrange(10**6)
    fenced_replace(file, body(1), 1)
    racing = [start("race", file, seed + number, 100_000, rounds) for number in range(processes)]
    start_together(racing)
    seen, reads = 0, 0
    while any(racer.poll() is None for racer in racing):
        found = whole(file.read_text())
        assert found >= seen, f"{found} came after {seen} (seed {seed})"
        seen, reads = found, reads + 1
    answers = [list(map(int, racer.communicate(timeout=HANG)[0].split())) for racer in racing]
    assert [racer.returncode for racer in racing] == [0] * processes
    assert sum(accepted + refused for accepted, refused, _ in answers) == rounds * processes
    assert sum(refused for _, refused, _ in answers) > 0
    assert reads > 10
    assert whole(file.read_text()) == max(best for _, _, best in answers)
    assert names(file) == ["data.txt", "data.txt.fence", "data.txt.fence.lock"]


def test_other_writers_time_out_with_an_error_while_a_writer_is_stopped_and_it_then_finishes(file):
    fenced_replace(file, body(100), 100)
    writer = start("stop", file, 200)
    _, status = os.waitpid(writer.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    try:
        with pytest.raises(StoreUnavailable, match=r"(?s)fence\.lock.*Nothing was written") as caught:
            fenced_replace(file, body(300), 300, wait=0.1)
        assert caught.value.retryable
        assert not caught.value.ambiguous
        assert whole(file.read_text()) == 100
    finally:
        writer.send_signal(signal.SIGCONT)
    assert writer.communicate(timeout=HANG)[0] == "done\n"
    assert whole(file.read_text()) == 200
    with pytest.raises(StaleToken):
        fenced_replace(file, body(150), 150)
    fenced_replace(file, body(300), 300)


def test_waiting_writers_continue_when_the_stopped_writer_continues(file):
    fenced_replace(file, body(100), 100)
    writer = start("stop", file, 200)
    _, status = os.waitpid(writer.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    waiting = threading.Thread(target=fenced_replace, args=(file, body(300), 300), kwargs={"wait": HANG})
    waiting.start()
    writer.send_signal(signal.SIGCONT)
    waiting.join(HANG)
    assert writer.communicate(timeout=HANG)[0] == "done\n"
    assert whole(file.read_text()) == 300


def test_threads_of_one_process_keep_the_order_too(file):
    tokens = list(range(1, 41))
    random.shuffle(tokens)
    accepted, failed = [], []

    def write(mine):
        for token in mine:
            try:
                fenced_replace(file, body(token), token, wait=HANG)
                accepted.append(token)
            except StaleToken:
                pass
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=write, args=(tokens[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert not failed
    assert whole(file.read_text()) == max(accepted) == 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_does_not_keep_the_file_lock_of_its_killed_parent(file):
    """A parent forks in the middle of a replacement and is killed; its child keeps running."""
    code = """
import os, signal, sys
from holdfast.fencing import files, fenced_replace
original = os.replace
def fork_and_die(*arguments):
    child = os.fork()
    if child == 0:
        print("child", flush=True)
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = fork_and_die
fenced_replace(sys.argv[1], "new", 200)
"""
    fenced_replace(file, "old", 100)
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout.readline() == "child\n"
    assert parent.wait(HANG) == -signal.SIGKILL
    fenced_replace(file, "after", 300, wait=5)
    assert file.read_text() == "after"
    parent.communicate("", timeout=HANG)
