"""`holdfast state`: a value goes in as JSON and comes out as JSON."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from commandline import answer, failure, holdfast, process

from holdfast import Client
from holdfast.errors import InvalidValue


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/hf.db"


@pytest.mark.parametrize("text", ["1", "-5", "-2.5e3", '"text"', "true", '{"a": [1, null, {"b": "é"}]}', "[]"])
def test_get_returns_the_value_that_was_set(url, text):
    done = holdfast("state", "set", "k", text, "--url", url)
    assert (done.exit_code, done.output) == (0, "k is set.\n")
    with Client(url) as hf:
        value = hf.state("k").get()
    shown = holdfast("state", "get", "k", "--json", "--url", url)
    assert (shown.exit_code, answer(shown)) == (0, value)


def test_without_json_a_value_is_printed_over_several_lines(url):
    with Client(url) as hf:
        hf.state("k").set({"a": [1], "b": "[bold]é"})
    done = holdfast("state", "get", "k", "--url", url)
    assert (done.exit_code, done.stdout) == (0, '{\n  "a": [\n    1\n  ],\n  "b": "[bold]é"\n}\n')


def test_set_prints_the_value_that_was_set(url):
    done = holdfast("state", "set", "k", '{"a": 1}', "--json", "--url", url)
    assert answer(done) == {"key": "k", "value": {"a": 1}}


def test_a_value_may_come_from_standard_input(url):
    assert holdfast("state", "set", "k", "-", "--url", url, input='{"a": 1}').exit_code == 0
    assert answer(holdfast("state", "get", "k", "--json", "--url", url)) == {"a": 1}


def test_a_missing_value_is_a_message_or_null_in_json(url):
    Client(url).close()
    assert "there is no value under k" in failure(holdfast("state", "get", "k", "--url", url), 1)
    done = holdfast("state", "get", "k", "--json", "--url", url)
    assert (done.exit_code, done.output) == (0, "null\n")


@pytest.mark.parametrize(
    "text", ["text", "", "{", "NaN", "[Infinity]", "99999999999999999999", "1e999", "[" * 200 + "]" * 200, "[" * 99_999]
)
def test_a_value_that_is_no_json_ends_with_2_and_sets_nothing(url, text):
    with Client(url) as hf:
        hf.state("k").set("before")
    assert "JSON" in failure(holdfast("state", "set", "k", text, "--url", url), 2)
    assert answer(holdfast("state", "get", "k", "--json", "--url", url)) == "before"


@pytest.mark.parametrize("text", ["{", "99999999999999999999"])
def test_a_refused_value_does_not_create_a_file(url, tmp_path, text):
    failure(holdfast("state", "set", "k", text, "--url", url), 2)
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_row_is_an_error_of_the_store_and_not_a_usage_error(url, tmp_path, monkeypatch):
    with Client(url) as hf:
        hf.state("k").set(1)
    with closing(sqlite3.connect(tmp_path / "hf.db", isolation_level=None)) as db:
        db.execute("UPDATE slots SET past = 'nothing of ours'")
    assert "cannot be read" in failure(holdfast("state", "set", "k", "5", "--url", url), 1)

    def unreadable(*_arguments):
        raise InvalidValue("the state 'k' holds something that is not JSON")

    monkeypatch.setattr("holdfast.state.AtomicState.set", unreadable)
    assert (
        failure(holdfast("state", "set", "k", "5", "--url", url), 1)
        == "holdfast: the state 'k' holds something that is not JSON.\n"
    )


def test_a_value_whose_row_holds_no_json_can_be_replaced(url, tmp_path):
    with Client(url) as hf:
        hf.state("k").set(1)
    with closing(sqlite3.connect(tmp_path / "hf.db", isolation_level=None)) as db:
        db.execute("UPDATE slots SET value = '{'")
    failure(holdfast("state", "get", "k", "--url", url), 1)
    assert holdfast("state", "set", "k", "5", "--url", url).exit_code == 0
    assert answer(holdfast("state", "get", "k", "--json", "--url", url)) == 5


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_value_is_not_set_in_a_store_that_ends_with_the_command(more):
    assert "ends with this command" in failure(holdfast("state", "set", "k", "1", "--url", "memory://", *more), 2)


def test_a_bad_key_ends_with_2(url):
    failure(holdfast("state", "set", "\x1b", "1", "--url", url), 2)
    failure(holdfast("state", "get", "\x1b", "--url", url), 2)


def test_values_do_not_control_a_terminal(url):
    with Client(url) as hf:
        hf.state("k").set({"\x1b[2J\u202e": "\x9b\u2028\u2066"})
    for more in ([], ["--json"]):
        done = holdfast("state", "get", "k", "--url", url, *more)
        assert all(letter.isprintable() or letter == "\n" for letter in done.output)
        assert r"\u202e" in done.output


def test_a_process_sets_what_another_gets(url):
    assert process("state", "set", "k", "-7", "--url", url).returncode == 0
    done = process("state", "get", "k", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-7\n", "")
