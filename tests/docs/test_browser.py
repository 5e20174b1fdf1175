"""The program of the page about browsers, as written, in a real browser, while its processes are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path

from chromium import new_page
from forwarder import Forwarder

from holdfast import Client
from holdfast.testing.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "workflows" / "streaming-to-a-browser.md"
FILES = dict(re.findall(r"^```\w+ title=\"([a-z_.]+)\"\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.read_text(), re.MULTILINE)
LONGEST = 60_000.0
"""Milliseconds: playwright's unit."""
RECORD = """
window.texts = []
new MutationObserver(() => texts.push(document.querySelector('#answer').textContent))
  .observe(document.querySelector('#answer'), {childList: true})
"""


class Process:
    """A command of the page, in the folder of its files, and the lines that it prints."""

    def __init__(self, command: str, folder: Path) -> None:
        module, *arguments = command.split()
        name = {"holdfast": "holdfast.cli", "uvicorn": "uvicorn"}[module]
        env = {one: value for one, value in os.environ.items() if one != "HOLDFAST_URL"} | {"PYTHONUNBUFFERED": "1"}
        self.lines: list[str] = []
        self.popen = subprocess.Popen(
            [sys.executable, "-m", name, *arguments],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        self.lines += iter(self.popen.stdout.readline, "")

    def found(self, pattern: str) -> str:
        """What the first line with this pattern has in its group."""
        found: list[str] = []

        def printed() -> bool:
            assert self.popen.poll() is None, self.lines
            found[:] = re.findall(pattern, "".join(self.lines))
            return bool(found)

        eventually(printed, within=30)
        return found[0]

    def kill(self) -> None:
        """SIGKILL."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def end(self) -> None:
        """Kill it, and wait for the thread that reads what it prints."""
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def test_a_browser_shows_each_token_once_though_a_worker_and_a_web_process_are_killed(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    words = re.search(r"ANSWER = \((.*?)\)", FILES["chat.py"], re.DOTALL)[1]
    answer = "".join(re.findall(r'"(.*?)"', words)) + " "
    with ExitStack() as stack:
        page = stack.enter_context(new_page())

        def started(command: str) -> Process:
            process = Process(command, tmp_path)
            stack.callback(process.end)
            return process

        assert [command.split()[0] for command in COMMANDS] == ["holdfast", "holdfast", "uvicorn", "uvicorn"]
        workers = [started(command) for command in COMMANDS[:2]]
        webs = [started(re.sub(r"--port \d+", "--port 0", command)) for command in COMMANDS[2:]]
        ports = {int(web.found(r"running on http://127\.0\.0\.1:(\d+)")): web for web in webs}
        front = stack.enter_context(closing(Forwarder(list(ports))))
        client = stack.enter_context(Client(f"sqlite:///{tmp_path}/chat.db"))

        loads: list[str] = []
        page.on("framenavigated", lambda frame: loads.append(frame.url))
        page.goto(f"http://127.0.0.1:{front.port}/")
        page.evaluate(RECORD)
        page.click("button")

        page.wait_for_function("items.length >= 5", timeout=LONGEST)
        run = client.runs.get(client.runs.list().runs[0].id)
        assert run.status == "running", "tokens are shown before the end"
        driving = [worker for worker in workers if f"chat-{worker.popen.pid}" == run.holder]
        driving[0].kill()
        page.wait_for_function("items.length >= 5 && items[0].began > 0", timeout=LONGEST)

        serving = front.used[-1]
        connections = len(front.used)
        ports[serving].kill()
        shown = page.evaluate("items.length")
        page.wait_for_function("shown => items.length > shown", arg=shown, timeout=LONGEST)
        assert client.runs.get(run.id).living
        assert set(front.used[connections:]) == {*ports} - {serving}

        page.wait_for_function("source.readyState === EventSource.CLOSED", timeout=LONGEST)
        assert page.text_content("#answer") == answer
        assert page.evaluate("items.map(item => item.value)") == [f"{word} " for word in answer.split()]
        assert loads == [f"http://127.0.0.1:{front.port}/"], "nothing was loaded again"
        texts = page.evaluate("texts")
        assert all(answer.startswith(text) for text in texts), "no text was shown with a part twice or missing"
        assert client.runs.result(run.id, timeout=10) == answer.strip()
