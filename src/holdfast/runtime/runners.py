"""Two small runners for flows: one blocks its thread, the other awaits on its event loop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ..stores.contract import Role
from .batcher import Batcher
from .flows import Flow, Submit
from .misuse import require_asyncio

T = TypeVar("T")
Batchers = Mapping[Role, Batcher]


def run(flow: Flow[T], batchers: Batchers) -> T:
    """Drive a flow to its end from this thread."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            request = flow.send(answer) if error is None else flow.throw(error)
            answer = error = None
            try:
                if isinstance(request, Submit):
                    answer = batchers[request.role].run(request.command)
                else:
                    answer = request.flag.wait(request.timeout)
            except BaseException as raised:  # (the flow decides, also about KeyboardInterrupt)
                error = raised
    except StopIteration as stop:
        result: T = stop.value
        return result
    except BaseException as raised:
        # Raised by the flow, which has ended then; or an interrupt between two of its steps, which is thrown into it.
        with suppress(BaseException):
            flow.throw(raised)
        raise
    finally:
        flow.close()
        error = None  # break the cycle of the traceback


async def run_async(flow: Flow[T], batchers: Batchers) -> T:
    """Drive a flow to its end on this event loop."""
    require_asyncio()
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            request = flow.send(answer) if error is None else flow.throw(error)
            answer = error = None
            try:
                if isinstance(request, Submit):
                    answer = await batchers[request.role].submit(request.command)
                else:
                    answer = await request.flag.wait_async(request.timeout)
            except BaseException as raised:  # (the flow decides, also about cancellation)
                error = raised
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        flow.close()
        error = None  # break the cycle of the traceback
