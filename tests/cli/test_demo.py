"""The demo is the first thing that a new user sees: its statements must be true, and it must fail if one is not."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from holdfast.cli.app import app
from holdfast.cli.demo import Demo


def new_demo():
    out = io.StringIO()
    return Demo(Console(file=out, width=200), ttl=1.0), out


@pytest.fixture(scope="module")
def printed():
    demo, out = new_demo()
    assert demo.run()
    return out.getvalue()


def test_the_demo_shows_every_part_and_succeeds(printed):
    for words in ("eve is killed", "was refused", "each job exactly once", "What to try next"):
        assert words in printed


def test_the_demo_shows_a_workflow_that_survives_a_kill(printed):
    assert "ivy is killed in the middle of the step ship" in printed
    shown = [line.strip() for line in printed.splitlines() if " begun by " in line]
    assert shown == [
        "reserve  begun by ivy, completed by ivy",
        "charge   begun by ivy, completed by ivy",
        "ship     begun by ivy and jon, completed by jon  <- in progress at the kill, so it was executed again",
        "notify   begun by jon, completed by jon",
    ]
    assert "each completed step was executed once" in printed


def test_the_demo_shortens_tokens(printed):
    assert "token …" in printed
    assert not [word for word in printed.replace(",", " ").split() if word.isdigit() and len(word) > 9]


def test_the_demo_fails_when_a_stale_write_gets_through(monkeypatch):
    """Without the fence the late write would be in the ledger."""
    demo, out = new_demo()
    real = demo._entries
    monkeypatch.setattr(demo, "_entries", lambda: [*real(), {"job": "job-6", "worker": "gus", "token": 1}])
    assert not demo.run()
    assert "not as promised" in out.getvalue()


@pytest.mark.parametrize("event", ["begins", "completes"])
def test_the_demo_fails_when_a_completed_step_is_executed_again(monkeypatch, event):
    demo, out = new_demo()
    for scene in ("_show_queue", "_show_kill", "_show_pause", "_show_ledger"):
        monkeypatch.setattr(demo, scene, lambda _hf: None)
    real = demo._steps
    monkeypatch.setattr(demo, "_steps", lambda: [*real(), {"event": event, "step": "charge", "worker": "jon"}])
    assert not demo.run()
    assert "not as promised" in out.getvalue()
    assert "the step charge was begun by" in out.getvalue()


def test_the_help_lists_the_demo():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output


def test_without_its_dependencies_the_command_line_says_what_to_install():
    blocked = "import sys; sys.modules['click'] = None; from holdfast.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast[cli]'" in done.stderr
