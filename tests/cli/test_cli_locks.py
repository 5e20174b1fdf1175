"""`holdfast locks`: its text and its JSON, and the forced release of a lock."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import providers
import pytest
from commandline import COMMAND, answer, failure, holdfast, other, shape, started, terminal
from waiting import eventually

from holdfast import Client
from holdfast.rules.lock_record import Forced, Holder, Label, LockRecord, Waiter, encode

HOLDER = {
    "owner": "str", "host": "str", "pid": "int", "token": "int", "weight": "int", "since": "str", "age": "float",
    "time_left": "float", "offered": "bool",
}  # fmt: skip
WAITER = {
    "owner": "str", "host": "str", "pid": "int", "position": "int", "weight": "int", "since": "str", "age": "float",
    "time_left": "float",
}  # fmt: skip
FORCED = {"at": "str", "by": "str", "reason": "str", "holders": ["str"]}


def lock(holders=(), waiters=(), forced="NoneType"):
    return {
        "key": "str", "held": "bool", "kind": "str", "permits": "int", "fence": "int", "holders": list(holders),
        "waiters": list(waiters), "waiting": "int", "forced": forced, "error": "str",
    }  # fmt: skip


@pytest.fixture
def url(tmp_path):
    """The address of an existing SQLite file without locks."""
    address = f"sqlite:///{tmp_path}/hf.db"
    Client(address).close()
    return address


@pytest.fixture
def busy(url):
    """The address of a file in which another process holds "invoice:42" and one more waits for it."""
    with (
        other(url, "with hf.lock('invoice:42', ttl=60, owner='ann'): print('ready', flush=True); input()"),
        other(url, "print('ready', flush=True)\nwith hf.lock('invoice:42', ttl=60, owner='bob'): input()"),
        Client(url) as hf,
    ):
        eventually(lambda: hf.locks.inspect("invoice:42").waiters)
        yield url


# -- list and show ------------------------------------------------------------------------------------------


def test_a_list_shows_holders_and_the_length_of_the_queue(busy):
    done = holdfast("locks", "list", "--url", busy)
    assert done.exit_code == 0
    head, row = done.stdout.splitlines()
    assert head.split() == ["KEY", "HOLDER", "FOR", "LEFT", "WAITING", "NOTE"]
    assert row.startswith("invoice:42  ann (")
    assert row.split()[-1] == "1"


def test_the_document_of_a_list_has_this_shape(busy):
    document = answer(holdfast("locks", "list", "--json", "--url", busy))
    assert shape(document) == {"locks": [lock([HOLDER], [WAITER])]}
    (info,) = document["locks"]
    assert info["held"] is True
    assert info["holders"][0]["owner"] == "ann"
    assert info["waiters"][0]["owner"] == "bob"


def test_a_list_accepts_a_prefix_and_says_when_it_is_empty(busy):
    assert len(answer(holdfast("locks", "list", "invoice:", "--json", "--url", busy))["locks"]) == 1
    done = holdfast("locks", "list", "order:", "--url", busy)
    assert (done.exit_code, done.stdout.split(" in ")[0]) == (
        0,
        "No lock with the prefix 'order:' is held or waited for",
    )
    assert answer(holdfast("locks", "list", "order:", "--json", "--url", busy)) == {"locks": []}


def test_a_key_longer_than_a_line_is_shown_in_full_without_a_terminal(url):
    with Client(url) as hf:
        hf.hold("k" * 500, ttl=300)
        hf.hold("l", ttl=300)
    assert [line.split()[0] for line in holdfast("locks", "list", "--url", url).stdout.splitlines()[1:]] == [
        "k" * 500,
        "l",
    ]


def test_every_holder_of_a_semaphore_has_a_line(url):
    with Client(url) as hf, hf.semaphore("s", permits=3, weight=2, owner="ann"), hf.semaphore("s", permits=3):
        rows = holdfast("locks", "list", "--url", url).stdout.splitlines()[1:]
        assert rows[0].startswith("s ")
        assert "2 of 3 permits" in rows[0]
        assert "1 of 3 permits" in rows[1]
        assert "2 permits" in holdfast("locks", "show", "s", "--url", url).stdout


def test_a_held_key_is_shown_with_its_queue_and_ends_with_1(busy):
    done = holdfast("locks", "show", "invoice:42", "--url", busy)
    assert done.exit_code == 1
    assert done.stderr == ""
    first, kind, held, waiting = done.stdout.splitlines()
    token = str(answer(holdfast("locks", "show", "invoice:42", "--json", "--url", busy))["holders"][0]["token"])
    assert kind == f"  kind mutex, last token …{token[-9:]}"
    assert f"token …{token[-9:]}" in held
    assert first == "invoice:42 is held"
    assert "held by ann (" in held
    assert "position 1 in the queue: bob (" in waiting


def test_a_free_key_ends_with_0(url):
    done = holdfast("locks", "show", "invoice:42", "--url", url)
    assert (done.exit_code, done.stdout) == (0, "invoice:42 is free\n")


def test_the_document_of_one_lock_has_this_shape(busy):
    done = holdfast("locks", "show", "invoice:42", "--json", "--url", busy)
    assert done.exit_code == 1
    assert shape(answer(done)) == lock([HOLDER], [WAITER])
    done = holdfast("locks", "show", "free", "--json", "--url", busy)
    assert done.exit_code == 0
    assert shape(answer(done)) == lock()


def test_a_wait_without_an_expiry_has_no_remaining_time(url):
    label = Label("me")
    record = LockRecord(
        fence=2,
        holders=(Holder(id="h", label=label, token=2, since=1, ttl=None, expires_at=None),),
        waiters=(Waiter(id="w", label=label, since=1, ttl=None, expires_at=None),),
    )
    providers.PROVIDERS["sqlite"].plant(url, "default", "a", encode(record).decode())
    document = answer(holdfast("locks", "show", "a", "--json", "--url", url))
    assert document["holders"][0]["time_left"] is None
    assert document["waiters"][0]["time_left"] is None
    assert "without expiry" in holdfast("locks", "show", "a", "--url", url).stdout


def test_a_record_that_cannot_be_read_is_listed_and_refused(url):
    providers.PROVIDERS["sqlite"].plant(url, "default", "broken", '{"holders": 7}')
    done = holdfast("locks", "list", "--url", url)
    assert done.exit_code == 0
    assert "cannot be read" in done.stdout
    (info,) = answer(holdfast("locks", "list", "--json", "--url", url))["locks"]
    assert "cannot be read" in info["error"]
    assert "cannot be read" in failure(holdfast("locks", "show", "broken", "--url", url), 1)


# -- release ------------------------------------------------------------------------------------------------


def test_a_release_removes_the_holder_and_is_recorded(busy):
    done = holdfast("locks", "release", "invoice:42", "--reason", "host 7 is gone", "--yes", "--url", busy)
    assert done.exit_code == 0
    assert done.stdout.startswith("invoice:42 was released: ann (")
    assert "The process was not stopped." in done.stdout
    assert done.stderr == ""
    document = answer(holdfast("locks", "show", "invoice:42", "--json", "--url", busy))
    assert shape(document["forced"]) == FORCED
    assert document["forced"]["reason"] == "host 7 is gone"
    assert document["holders"][0]["owner"] == "bob", "the queue moved up"
    assert "because: host 7 is gone" in holdfast("locks", "show", "invoice:42", "--url", busy).stdout


def test_the_document_of_a_release_has_this_shape(url):
    with Client(url) as hf:
        hf.hold("a", ttl=300)
    release = ("locks", "release", "a", "--reason", "x", "--yes", "--json", "--url", url)
    assert shape(answer(holdfast(*release))) == {"key": "str", "reason": "str", "released": [HOLDER]}
    again = holdfast(*release)
    assert (again.exit_code, answer(again)) == (0, {"key": "a", "reason": "x", "released": []})


def test_releasing_a_free_lock_changes_nothing(url):
    done = holdfast("locks", "release", "a", "--reason", "x", "--yes", "--url", url)
    assert (done.exit_code, done.stdout) == (0, "a has no holder: nothing was changed.\n")


@pytest.mark.parametrize("more", [["--yes"], ["--yes", "--reason", "  "], ["--yes", "--reason", "x" * 1_001]])
def test_a_release_needs_a_reason(busy, more):
    assert "reason" in failure(holdfast("locks", "release", "invoice:42", *more, "--url", busy), 2)
    assert answer(holdfast("locks", "show", "invoice:42", "--json", "--url", busy))["forced"] is None


def test_without_a_terminal_and_without_yes_a_release_is_refused(busy):
    done = holdfast("locks", "release", "invoice:42", "--reason", "x", "--url", busy, input="y\n")
    assert "--yes" in failure(done, 2)
    assert answer(holdfast("locks", "show", "invoice:42", "--json", "--url", busy))["forced"] is None


def test_on_a_terminal_a_release_shows_the_holder_and_asks(busy):
    with terminal("locks", "release", "invoice:42", "--reason", "x", "--url", busy) as screen:
        asked = screen.until("[y/N]")
        assert "held by ann (" in asked
        assert "UTC" in asked
        screen.type("y\n")
        assert "was released" in screen.until("was released")
        assert screen.end() == 0


def test_a_release_that_is_declined_changes_nothing(busy):
    with terminal("locks", "release", "invoice:42", "--reason", "x", "--url", busy) as screen:
        screen.until("[y/N]")
        screen.type("n\n")
        assert screen.end() == 1
        assert "holdfast: The release was declined. Nothing was changed." in screen.seen
    assert answer(holdfast("locks", "show", "invoice:42", "--json", "--url", busy))["forced"] is None


def test_a_lock_that_got_a_new_holder_before_the_answer_is_not_released(url):
    with Client(url) as hf:
        first = hf.lock("a", owner="first").acquire()
        with terminal("locks", "release", "a", "--reason", "x", "--url", url) as screen:
            screen.until("[y/N]")
            first.release()
            with hf.lock("a", owner="second") as second:
                screen.type("y\n")
                assert screen.end() == 1
                assert "got a new holder" in screen.seen
                second.renew()


def test_on_a_terminal_releasing_a_free_lock_asks_nothing(url):
    with terminal("locks", "release", "a", "--reason", "x", "--url", url) as screen:
        assert "a has no holder" in screen.until("a has no holder")
        assert screen.end() == 0


# -- watch --------------------------------------------------------------------------------------------------

WATCH = [*COMMAND, "locks", "watch", "--every", "0.05"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def test_a_watch_prints_each_change_as_a_line_of_json_until_it_is_interrupted(url):
    with Client(url) as hf, started([*WATCH, "--json", "--url", url], **PIPES) as popen:

        def line():
            return json.loads(popen.stdout.readline())

        lease = hf.lock("a", owner="ann").acquire()
        appeared = line()
        assert shape(appeared) == {"at": "str", "change": "str", "key": "str", "lock": lock([HOLDER])}
        assert (appeared["change"], appeared["key"]) == ("appeared", "a")
        with other(url, "print('ready', flush=True)\nwith hf.lock('a', owner='bob'): input()"):
            changed = line()
            assert (changed["change"], shape(changed["lock"])) == ("changed", lock([HOLDER], [WAITER]))
            lease.release()
            while changed["lock"]["holders"][0]["owner"] != "bob" or changed["lock"]["holders"][0]["offered"]:
                changed = line()
                assert changed["change"] == "changed"
        eventually(lambda: hf.locks.force_release("a", reason="its process is gone"))
        gone = line()
        assert shape(gone) == {"at": "str", "change": "str", "key": "str", "lock": "NoneType"}
        assert gone["change"] == "gone"
        popen.send_signal(signal.SIGINT)
        assert popen.stdout.read() == ""
        assert popen.stderr.read() == ""
        assert popen.wait(60) == 0


def test_a_renewal_is_no_change(url):
    with Client(url) as hf, hf.lock("a", ttl=1) as lease, started([*WATCH, "--json", "--url", url], **PIPES) as popen:
        assert json.loads(popen.stdout.readline())["key"] == "a"
        before = lease.expires_at
        eventually(lambda: lease.expires_at > before)
        with hf.lock("b"):
            assert json.loads(popen.stdout.readline())["key"] == "b"


def test_without_a_terminal_a_watch_writes_a_line_for_each_change(busy):
    done = holdfast("locks", "watch", "--for", "0", "--url", busy)
    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    assert "invoice:42  held by ann (" in line
    assert "; waiting: bob (" in line


def test_a_watch_sees_only_its_prefix(busy):
    done = holdfast("locks", "watch", "order:", "--for", "0", "--url", busy)
    assert (done.exit_code, done.output) == (0, "")


def test_on_a_terminal_a_watch_redraws_a_table_and_ends_with_ctrl_c(busy):
    with terminal("locks", "watch", "--every", "0.05", "--url", busy) as screen:
        for _ in range(3):
            screen.seen = ""
            assert "ann (" in screen.until("Ctrl-C ends")
        screen.popen.send_signal(signal.SIGINT)
        assert screen.end() == 0
        assert "Traceback" not in screen.seen
        assert "\x1b[" in screen.seen


def test_a_watch_counts_its_locks(busy):
    with terminal("locks", "watch", "--for", "0", "--url", busy) as screen:
        assert "1 lock in " in screen.until("1 lock in ")
    with Client(busy) as hf, hf.lock("another"), terminal("locks", "watch", "--for", "0", "--url", busy) as screen:
        assert "2 locks in " in screen.until("2 locks in ")


def test_on_a_terminal_a_watch_ends_after_its_count(busy):
    with terminal("locks", "watch", "--for", "0.1 seconds", "--url", busy) as screen:
        assert screen.end() == 0
        assert "invoice:42" in screen.seen


# -- hostile names -------------------------------------------------------------------------------------------

EVIL = "\x1b[2J\x1b]0;owned\x07\r\u202e\u2066[bold red]x[/] :bomb:"
SHOWN = r"\x1b[2J\x1b]0;owned\x07\r\u202e\u2066[bold red]x[/] :bomb:"


@pytest.fixture
def evil(url):
    """A file in which every name contains terminal control characters."""
    now = time.time_ns() // 1_000
    label = Label(EVIL, EVIL, 7)
    times = {"since": now, "ttl": 300_000_000}
    record = LockRecord(
        fence=now,
        holders=(Holder(id="h", label=label, token=now, expires_at=now + 300_000_000, **times),),
        waiters=(Waiter(id="w", label=label, expires_at=now + 50_000_000, **times),),
        forced=Forced(at=now, by=EVIL, reason=EVIL, holders=(EVIL,)),
    )
    plant = providers.PROVIDERS["sqlite"].plant
    plant(url, "default", EVIL, encode(record).decode())
    plant(url, "default", "evil", encode(record).decode())
    plant(url, "default", f"broken {EVIL}", "nothing of ours")
    return url


@pytest.mark.parametrize(
    "arguments",
    [
        ["locks", "list"],
        ["locks", "show", "evil"],
        ["locks", "watch", "--for", "0"],
        ["locks", "release", "evil", "--yes", "--reason", EVIL],
        ["doctor"],
    ],
)
def test_names_from_the_store_do_not_control_a_terminal(evil, arguments):
    done = holdfast(*arguments, "--url", evil)
    assert SHOWN in done.stdout
    assert all(letter.isprintable() or letter == "\n" for letter in done.output)


@pytest.mark.parametrize("arguments", [["locks", "list"], ["locks", "show", "evil"], ["doctor"]])
def test_json_is_plain_ascii(evil, arguments):
    done = holdfast(*arguments, "--json", "--url", evil)
    assert all(" " <= letter <= "~" or letter == "\n" for letter in done.output)
    assert answer(done)


def test_on_a_terminal_only_our_own_escape_codes_are_used(evil):
    with terminal("locks", "list", "--url", evil) as screen:
        screen.end()
        seen = screen.seen.replace("\r\n", "")
        for harm in ("\x1b[2J", "\x1b]", "\x07", "\r", "\u202e", "\u2066", "💣"):
            assert harm not in seen
    with terminal("locks", "release", "evil", "--reason", "x", "--url", evil) as screen:
        assert r"\x1b[2J" in screen.until("[y/N]")
        assert "\x1b[2J" not in screen.seen


def test_arguments_are_escaped_too(url):
    assert r"\x1b" in failure(holdfast("locks", "\x1b[2J", "--url", url), 2)
    done = holdfast("locks", "show", "a\u202e[bold]", "--url", url)
    assert (done.exit_code, done.stdout) == (0, "a\\u202e[bold] is free\n")
