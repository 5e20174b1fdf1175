"""The command line as a whole: its options, its exit codes, and its error messages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from commandline import COMMAND, answer, environment, failure, holdfast, process, started

import holdfast as package
from holdfast import Client, Engine
from holdfast.cli.output import escaped, format_duration, format_token


@pytest.fixture
def url(tmp_path):
    """A SQLite file in which "a" is held for a long time."""
    address = f"sqlite:///{tmp_path}/hf.db"
    with Client(address) as hf:
        assert hf.hold("a", ttl=300)
    return address


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "URL", "--json", "locks", "list"],
        ["locks", "--url", "URL", "--json", "list"],
        ["locks", "list", "--url", "URL", "--json"],
        ["--json", "--url", "memory://", "locks", "list", "--url", "URL"],
    ],
)
def test_common_options_may_be_before_the_group_or_after_the_command_and_the_last_one_applies(url, arguments):
    done = holdfast(*[url if word == "URL" else word for word in arguments])
    assert [lock["key"] for lock in answer(done)["locks"]] == ["a"]


def test_the_address_may_come_from_the_environment(url):
    assert answer(holdfast("locks", "list", "--json", url=url))["locks"]


def test_without_an_address_the_clients_default_file_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "holdfast.db") in failure(holdfast("locks", "list"), 1)
    with Client("sqlite:///holdfast.db") as hf:
        hf.hold("b", ttl=300)
    assert [lock["key"] for lock in answer(holdfast("locks", "list", "--json"))["locks"]] == ["b"]


def test_a_command_shows_only_its_namespace(url):
    assert answer(holdfast("locks", "list", "--json", "--url", url, "--namespace", "other")) == {"locks": []}


@pytest.mark.parametrize("arguments", [["--version"], ["locks", "list", "--version"]])
def test_the_version_is_printed(arguments):
    done = holdfast(*arguments)
    assert (done.exit_code, done.output) == (0, f"holdfast {package.__version__}\n")


@pytest.mark.parametrize("group", [[], ["locks"], ["state"], ["runs"]])
def test_without_a_command_the_help_is_shown_and_that_is_a_usage_error(group):
    done = holdfast(*group)
    assert done.exit_code == 2
    assert "--help" in done.output
    assert answer(holdfast("--json", *group))["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense'. See 'holdfast --help'."),
        (["locks", "list", "--nonsense"], "See 'holdfast locks list --help'."),
        (["locks", "show"], "Missing argument 'KEY'"),
        (["locks", "show", "a\x1b"], r"control character '\x1b'"),
        (["locks", "show", "k" * 600], "use a hash"),
        (["locks", "list", "--namespace", "\t"], "namespace"),
        (["locks", "list", "--namespace", ""], "Invalid value for '--namespace': it is empty"),
        (["--namespace", "", "doctor"], "Invalid value for '--namespace': it is empty"),
        (["locks", "list", "--url", ""], "Invalid value for '--url': it is empty"),
        (["locks", "list", "--url", "nonsense://x"], "not known"),
        (["locks", "list", "--url", "hf.db"], "begins with a scheme"),
        (["locks", "list", "--url", "sqlite://hf.db"], "three slashes"),
        (["locks", "watch", "--every", "soon"], "'soon'"),
        (["doctor", "--url", "nonsense://x"], "not known"),
    ],
)
def test_a_usage_error_ends_with_2_and_one_line(arguments, words):
    assert words in failure(holdfast(*arguments, url="memory://"), 2)


READING = [
    ["locks", "list"],
    ["locks", "show", "a"],
    ["locks", "watch", "--for", "0"],
    ["locks", "release", "a", "--yes", "--reason", "x"],
    ["state", "get", "a"],
    ["runs", "list"],
    ["runs", "show", "a"],
    ["runs", "cancel", "a"],
]


@pytest.mark.parametrize("arguments", READING)
def test_reading_a_file_that_does_not_exist_is_refused_and_creates_none(tmp_path, arguments):
    address = f"sqlite:///{tmp_path}/missing.db"
    assert f"there is no file {tmp_path}/missing.db" in failure(holdfast(*arguments, "--url", address), 1)
    (tmp_path / "empty.db").touch()
    assert "is empty" in failure(holdfast(*arguments, "--url", f"sqlite:///{tmp_path}/empty.db"), 1)
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("empty.db", 0)]


@pytest.mark.parametrize("arguments", [["locks", "list"], ["locks", "show", "a"], ["doctor"]])
def test_a_file_that_is_no_store_ends_with_1(tmp_path, arguments):
    (tmp_path / "hf.db").write_text("this is a letter to my aunt" * 100)
    done = holdfast(*arguments, "--json", "--url", f"sqlite:///{tmp_path}/hf.db")
    assert done.exit_code == 1
    assert "not a SQLite database" in done.stdout


def test_with_json_an_error_is_a_document_on_stdout_and_a_line_on_stderr(tmp_path):
    done = holdfast("locks", "list", "--json", "--url", f"sqlite:///{tmp_path}/missing.db")
    line = failure(done, 1)
    document = answer(done)
    assert list(document) == ["error"]
    assert list(document["error"]) == ["type", "message"]
    assert document["error"]["type"] == "StoreUnusable"
    assert line == f"holdfast: {document['error']['message']}\n"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["--json", "locks", "show", "\x07"], "InvalidKey"),
        (["--json", "locks", "list", "--url", "nonsense://"], "StoreNotInstalled"),
        (["locks", "list", "--json", "--nonsense"], "UsageError"),
        (["--json", "locks", "watch", "--every", "-1"], "InvalidDuration"),
    ],
)
def test_with_json_a_usage_error_is_a_document_too(arguments, kind):
    done = holdfast(*arguments, url="memory://")
    failure(done, 2)
    assert answer(done)["error"]["type"] == kind


def test_an_internal_error_is_one_line_and_its_traceback_is_printed_on_demand(monkeypatch):
    def broken(*_arguments):
        raise ZeroDivisionError("one\nby zero")

    monkeypatch.setattr("holdfast.locks.admin.Locks.list", broken)
    assert "ZeroDivisionError: one by zero" in failure(holdfast("locks", "list", url="memory://"), 1)
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in holdfast("locks", "list", url="memory://").stderr


def test_an_interrupt_is_one_line(monkeypatch):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.locks.admin.Locks.list", interrupted)
    done = holdfast("locks", "list", url="memory://")
    assert (done.exit_code, done.stderr.strip()) == (1, "holdfast: interrupted.")


def test_a_store_on_a_network_file_system_is_reported_in_one_line(url, monkeypatch):
    monkeypatch.setattr("holdfast.stores.sqlite.store.network_file_system", lambda _path: "nfs")
    monkeypatch.setattr("holdfast.stores.sqlite.store._warned", set())
    done = holdfast("locks", "list", "--json", "--url", url)
    assert answer(done)["locks"]
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1
    assert "(nfs)" in done.stderr


def test_as_a_separate_process_the_output_and_the_exit_code_are_the_same(url):
    done = process("locks", "show", "a", "--json", "--url", url)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["held"] is True
    done = process("locks", "show", "b", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "b is free\n", "")
    done = process("locks", "show", "--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: Missing argument")


def test_a_pipe_gets_no_escape_codes_even_if_colours_are_forced(url):
    for command in (["locks", "list"], ["locks", "show", "a"], ["locks", "watch", "--for", "0"], ["doctor"]):
        done = process(*command, "--url", url, FORCE_COLOR="1", CLICOLOR_FORCE="1", TERM="xterm-256color", COLUMNS="20")
        assert "\x1b" not in done.stdout + done.stderr
        assert done.stdout


def test_an_encoding_that_lacks_characters_does_not_break_the_output(url):
    with Client(url) as hf:
        hf.hold("überfällig", ttl=300)
    done = process("locks", "list", "--url", url, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"\xfcberf\xe4llig" in done.stdout


LOOKING = [
    ["locks", "list"],
    ["locks", "show", "a"],
    ["locks", "watch", "--for", "0"],
    ["state", "get", "a"],
    ["runs", "list"],
    ["doctor"],
]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("arguments", LOOKING)
def test_a_read_by_root_leaves_the_file_usable_for_the_applications_user(url, tmp_path, arguments):
    os.chown(tmp_path / "hf.db", 65_534, 65_534)
    (tmp_path / "hf.db-turn").unlink()
    assert holdfast(*arguments, "--url", url).exit_code in (0, 1)
    assert {path.name: path.stat().st_uid for path in tmp_path.iterdir()} == {"hf.db": 65_534, "hf.db-turn": 65_534}


def shell(redirection, *arguments, **more):
    """Run a command through a shell, which can close its streams."""
    line = f"exec {shlex.join([*COMMAND, *arguments])} {redirection}"
    done = subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, env=environment(**more), timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done


ANSWERING = [
    *LOOKING[:3],
    ["state", "set", "a", "1"],
    ["doctor"],
    ["runs", "list"],
    ["--help"],
    ["--version"],
    ["demo"],
]


ANSWERING_JSON = [[*command, "--json"] for command in ANSWERING[:6]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ANSWERING + ANSWERING_JSON)
def test_output_that_cannot_be_written_is_reported_in_one_line(url, arguments):
    done = shell(">/dev/full", *arguments, HOLDFAST_URL=url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("holdfast: the output could not be written (No space left on device)")
    assert shell(">/dev/full", *arguments, HOLDFAST_URL=url, PYTHONUNBUFFERED="1").stderr == done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_if_nothing_can_be_written_the_exit_code_still_reports_the_error(url):
    assert shell(">/dev/full 2>/dev/full", "locks", "list", "--json", "--url", url).returncode == 1
    assert shell("2>/dev/full", "locks", "list", "--nonsense", "--url", url).returncode == 2


@pytest.mark.parametrize(
    "arguments", [*ANSWERING, ANSWERING_JSON[0], ["locks", "release", "a", "--yes", "--reason", "x"]]
)
def test_without_a_standard_output_nothing_is_done_and_one_line_says_so(url, arguments):
    done = shell(">&-", *arguments, HOLDFAST_URL=url)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "standard output is closed" in done.stderr
    with Client(url) as hf:
        assert hf.locks.inspect("a").held
        assert hf.state("a").get() is None


def test_without_a_standard_error_everything_else_works(url):
    done = shell("2>&-", "locks", "list", "--json", "--url", url)
    assert (done.returncode, json.loads(done.stdout)["locks"][0]["key"]) == (0, "a")
    done = shell("2>&-", "locks", "show", "--json", "--url", url)
    assert (done.returncode, json.loads(done.stdout)["error"]["type"]) == (2, "UsageError")
    assert shell(">&- 2>&-", "locks", "list", "--url", url).returncode == 1
    assert shell(">&- 2>&- <&-", "doctor", "--url", url).returncode == 1


def test_without_a_standard_input_the_message_says_what_to_do(url):
    done = shell("<&-", "state", "set", "k", "-", "--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input is closed" in done.stderr
    done = shell("<&-", "locks", "release", "a", "--reason", "x", "--url", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    done = shell("<&-", "locks", "list", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--json", "demo"], ["demo", "--json"]])
def test_the_demo_has_no_json(arguments):
    done = holdfast(*arguments)
    failure(done, 2)
    assert answer(done)["error"]["type"] == "UsageError"


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_closed_output_pipe_ends_the_command_quietly(url, more):
    with started(
        [*COMMAND, "locks", "list", "--url", url, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as popen:
        popen.stdout.close()
        assert popen.stderr.read() == ""
        assert popen.wait(60) == 1


def test_without_rich_the_message_says_what_to_install():
    blocked = "import sys; sys.modules['rich'] = None; from holdfast.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast[cli]'" in done.stderr


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain [bold] text é 漢", "plain [bold] text é 漢"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("\r\n\t\x7f\x9b", r"\r\n\t\x7f\x9b"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\U000e0041\ue000\u2028", r"\U000e0041\ue000\u2028"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text, seen):
    assert escaped(text) == seen


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (9.96, "10.0 s"), (59, "59 s"), (3_600, "1 h"), (90_061, "1 d 1 h"), (86_401, "1 d")],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds, words):
    assert format_duration(seconds) == words


@pytest.mark.parametrize(
    ("token", "words"),
    [(0, "0"), (999_999_999, "999999999"), (1_000_000_000, "…000000000"), (1763466500123456, "…500123456")],
)
def test_a_token_is_shown_by_its_last_digits(token, words):
    assert format_token(token) == words


ROOT = Path(__file__).parents[2]
SHOWN = [
    (page.name, line)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for line in re.findall(r"^\$ holdfast (?!worker )(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def test_the_documentation_contains_commands():
    assert {page for page, _ in SHOWN} >= {"cli.md", "runbook.md"}


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_the_commands_in_the_documentation_are_valid(page, line, url, tmp_path, monkeypatch):
    words = [word.replace("sqlite:////var/lib/app/holdfast.db", url) for word in shlex.split(line)]
    words = [url if before == "--url" else word for before, word in zip(["", *words], words, strict=False)]
    if words[:2] == ["locks", "watch"]:
        words += ["--for", "0"]
    if words[:2] in (["locks", "release"], ["runs", "restart"]) and "--yes" not in words:
        words += ["--yes"]
    if words[0] == "runs":
        with Client(url) as hf:
            hf.runs.start("order", None, id="order-42")
    if words[:2] == ["runs", "retry"]:
        holdfast("runs", "cancel", "order-42", url=url)
    monkeypatch.chdir(tmp_path)
    if words[:2] == ["runs", "replay"]:
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "myapp", ModuleType("myapp"))
        monkeypatch.setitem(sys.modules, "myapp.flows", flows := ModuleType("myapp.flows"))
        flows.engine = Engine(url, workflows=[])
        words = [word for word in words if not word.endswith(".json")]
    done = holdfast(*words, url=url)
    assert done.exit_code in (0, 1), done.output
    # Valid, but refused here: nothing to show or to answer, no step to fork from, no file to import.
    assert done.exit_code == 0 or words[1] in ("show", "get", "resume", "fork", "import", "answer")
