"""Workflow code that blocks its event loop is named by its line; code of steps is not workflow code."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time

from holdfast import Context, Engine, step, workflow
from holdfast.workflow import blocking_code, current_run


def events_of(played, flow, name="code_blocking"):
    """The events of this name of one run in memory."""
    found = []

    async def scenario():
        async with Engine("memory://", workflows=[flow]) as engine:
            engine.events.subscribe(lambda event: found.append(event) if event.name == name else None)
            await (await engine.start(flow)).result(timeout=20)

    played(scenario)
    return found


def test_a_line_that_blocks_the_event_loop_is_named_once(played, caplog, monkeypatch):
    monkeypatch.setattr(blocking_code, "LONGEST_TURN", 0.2)
    monkeypatch.setattr(blocking_code, "LOOK_EVERY", 0.02)
    named = threading.Event()

    def wait_for_the_warning():
        assert named.wait(10)

    class Handler(logging.Handler):
        def emit(self, record):
            if "blocked its event loop" in record.getMessage():
                named.set()

    @workflow
    async def flow(ctx, _none: None) -> None:
        wait_for_the_warning()  # this line

    logging.getLogger("holdfast.workflow").addHandler(handler := Handler())
    try:
        (event,) = events_of(played, flow)
    finally:
        logging.getLogger("holdfast.workflow").removeHandler(handler)
    first = inspect.getsourcelines(wait_for_the_warning)[1] + 1
    assert event.fields["line"] == f"{__file__}:{first} in wait_for_the_warning"
    assert event.fields["seconds"] >= 0.2


def test_code_that_lets_no_other_thread_run_is_reported_when_it_ends(played, monkeypatch, caplog):
    monkeypatch.setattr(blocking_code, "LONGEST_TURN", 0.1)
    monkeypatch.setattr(blocking_code, "LOOK_EVERY", 0.02)

    @workflow
    async def flow(ctx, _none: None) -> None:
        before = sys.getswitchinterval()
        sys.setswitchinterval(60)  # as a long match of a regular expression, which never releases the GIL
        try:
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
            await ctx.sleep(0.001)
        finally:
            sys.setswitchinterval(before)

    (event,) = events_of(played, flow)
    assert "did not let other threads run" in event.fields["line"]
    assert event.fields["seconds"] >= 0.3
    assert "at a line that is not known" in caplog.text


def test_an_engine_ends_although_a_sink_of_events_does_not_return(played, monkeypatch):
    monkeypatch.setattr(blocking_code, "LONGEST_TURN", 0.1)
    monkeypatch.setattr(blocking_code, "LOOK_EVERY", 0.02)
    in_sink, leave = threading.Event(), threading.Event()

    def sink(event):
        if event.name == "code_blocking":
            in_sink.set()
            leave.wait(60)

    @workflow
    async def flow(ctx, _none: None) -> None:
        in_sink.wait(20)

    async def scenario():
        async with Engine("memory://", workflows=[flow]) as engine:
            engine.events.subscribe(sink)
            await (await engine.start(flow)).result(timeout=20)

    try:
        played(scenario)
        assert in_sink.is_set()
    finally:
        leave.set()


def test_a_step_that_blocks_its_thread_is_not_named(played, monkeypatch):
    monkeypatch.setattr(blocking_code, "LONGEST_TURN", 0.05)
    monkeypatch.setattr(blocking_code, "LOOK_EVERY", 0.01)

    @step
    def slow() -> None:
        time.sleep(0.4)

    @workflow
    async def flow(ctx, _none: None) -> None:
        await slow()

    assert events_of(played, flow) == []


def test_current_run_is_the_context_in_workflow_code_and_none_elsewhere(played):
    seen = []

    @step
    def body() -> None:
        seen.append(current_run())

    @workflow
    async def flow(ctx: Context, _none: None) -> None:
        seen.append(current_run() is ctx)
        await body()

    events_of(played, flow)
    assert [*seen, current_run()] == [True, None, None]
