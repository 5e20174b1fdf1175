"""The demo is what a stranger sees first: it must be true, and it must fail when it is not."""

from __future__ import annotations

import io
import subprocess
import sys

from click.testing import CliRunner
from rich.console import Console

from holdfast.cli.app import app
from holdfast.cli.demo import Demo


def test_the_demo_plays_every_scene_and_succeeds():
    out = io.StringIO()
    assert Demo(Console(file=out, width=200), ttl=1.0).run()
    told = out.getvalue()
    for words in ("eve is killed", "was refused", "each job exactly once", "What to try next"):
        assert words in told


def test_the_demo_fails_when_a_stale_write_gets_through(monkeypatch):
    """With the fence taken away, the late write lands and the demo says that it was not as promised."""
    out = io.StringIO()
    demo = Demo(Console(file=out, width=200), ttl=1.0)
    real = demo._entries
    monkeypatch.setattr(demo, "_entries", lambda: [*real(), {"job": "job-6", "worker": "gus", "token": 1}])
    assert not demo.run()
    assert "not as promised" in out.getvalue()


def test_the_command_line_tells_its_version_and_its_commands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output


def test_without_its_libraries_the_command_line_says_what_to_install():
    blocked = "import sys; sys.modules['click'] = None; from holdfast.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast[cli]'" in done.stderr
