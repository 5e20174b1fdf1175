"""Who decides whether a step or a workflow is tried again: the exception, the predicate, the number of attempts."""

from __future__ import annotations

import pytest

from holdfast import Engine, Retry, StepFailed, WorkflowFailed, current_step, step, workflow
from holdfast.errors import DoNotRetry, InvalidOption, RetryAfter

SOON = {"initial": "1 ms", "jitter": False}


def result_of(played, *flows, **options):
    """The result of a run of the first workflow in memory."""

    async def scenario():
        async with Engine("memory://", workflows=list(flows), **options) as engine:
            return await (await engine.start(flows[0])).result(timeout=20)

    return played(scenario)


def test_a_step_that_raises_do_not_retry_is_not_tried_again(url, played, engine_on):
    tries = []

    @step(retry=Retry(max_attempts=5, **SOON))
    def charge() -> None:
        tries.append(current_step().attempt)
        raise DoNotRetry("the card was refused")

    @workflow
    async def order(ctx, _none: None) -> tuple[str, int, str]:
        try:
            await charge()
        except StepFailed as error:
            return error.kind, error.attempts, error.detail
        raise AssertionError

    async def scenario():
        async with engine_on(url, [order]) as engine:
            return await (await engine.start(order)).result(timeout=20)

    assert played(scenario) == ("holdfast.errors.DoNotRetry", 1, "the card was refused.")
    assert tries == [1]


def test_a_subclass_of_do_not_retry_keeps_its_own_type(played):
    class CardRefused(DoNotRetry, PermissionError):
        """The bank has refused the card."""

    @step(retry=Retry(max_attempts=5, **SOON))
    def charge() -> None:
        raise CardRefused

    @workflow
    async def order(ctx, _none: None) -> int:
        try:
            await charge()
        except PermissionError as error:
            return error.attempts
        raise AssertionError

    assert result_of(played, order) == 1


@pytest.mark.parametrize("retry", [None, Retry(max_attempts=3, initial="1 hour")])
def test_a_step_that_raises_retry_after_is_tried_again_after_that_time(url, played, engine_on, retry):
    @step(retry=retry)
    def fetch() -> int:
        if current_step().attempt < 3:
            raise RetryAfter("the service is busy", delay="10 ms")
        return current_step().attempt

    @workflow
    async def flow(ctx, _none: None) -> int:
        return await fetch()

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            return await (await engine.start(flow)).result(timeout=20)

    assert played(scenario) == 3


def test_retry_after_does_not_exceed_the_number_of_attempts(played):
    tries = []

    @step(retry=Retry(max_attempts=2))
    def fetch() -> None:
        tries.append(1)
        raise RetryAfter(delay=0)

    @workflow
    async def flow(ctx, _none: None) -> int:
        try:
            await fetch()
        except StepFailed as error:
            return error.attempts
        raise AssertionError

    assert result_of(played, flow) == len(tries) == 2


def test_a_delay_of_retry_after_that_is_no_duration_is_the_failure_of_the_step(played):
    @step
    def fetch() -> None:
        raise RetryAfter(delay="soon")

    @workflow
    async def flow(ctx, _none: None) -> str:
        try:
            await fetch()
        except StepFailed as error:
            return error.kind + error.traceback
        raise AssertionError

    told = result_of(played, flow)
    assert told.startswith("holdfast.errors.InvalidDuration")
    assert "RetryAfter" in told


def test_a_predicate_decides_whether_a_step_is_tried_again(played):
    seen = []

    def is_temporary(error):
        seen.append(str(error))
        return "temporary" in str(error)

    @step(retry=Retry(max_attempts=5, retry_if=is_temporary, **SOON))
    def fetch() -> None:
        raise OSError("temporary" if current_step().attempt < 3 else "gone")

    @workflow
    async def flow(ctx, _none: None) -> int:
        try:
            await fetch()
        except OSError as error:
            return error.attempts
        raise AssertionError

    assert result_of(played, flow) == 3
    assert seen == ["temporary", "temporary", "gone"]


def test_an_exception_of_the_predicate_is_recorded_with_that_of_the_step(played):
    @step(retry=Retry(max_attempts=5, retry_if=lambda error: error.status >= 500, **SOON))
    def fetch() -> None:
        raise ValueError("unreadable answer")

    @workflow
    async def flow(ctx, _none: None) -> str:
        try:
            await fetch()
        except StepFailed as error:
            return error.kind + error.traceback
        raise AssertionError

    told = result_of(played, flow)
    assert told.startswith("AttributeError")
    assert "unreadable answer" in told


def test_a_workflow_that_raises_do_not_retry_has_one_attempt(played):
    attempts = []

    @workflow(retry=Retry(max_attempts=3, **SOON))
    async def flow(ctx, _none: None) -> None:
        attempts.append(ctx.attempt)
        raise DoNotRetry

    with pytest.raises(WorkflowFailed, match="cannot succeed"):
        result_of(played, flow)
    assert attempts == [1]


class Refused(DoNotRetry):
    """The bank does not pay."""


@pytest.mark.parametrize("error", [DoNotRetry, Refused])
def test_a_workflow_is_not_tried_again_after_a_step_that_raised_do_not_retry(played, error):
    attempts = []

    @step
    def charge() -> None:
        raise error

    @workflow(retry=Retry(max_attempts=3, **SOON))
    async def flow(ctx, _none: None) -> None:
        attempts.append(ctx.attempt)
        await charge()

    with pytest.raises(WorkflowFailed):
        result_of(played, flow)
    assert set(attempts) == {1}


def test_a_workflow_that_raises_retry_after_begins_its_next_attempt_after_that_time(played):
    @workflow(retry=Retry(max_attempts=3, initial="1 hour"))
    async def flow(ctx, _none: None) -> int:
        if ctx.attempt < 2:
            raise RetryAfter(delay="10 ms")
        return ctx.attempt

    assert result_of(played, flow) == 2


def test_a_predicate_of_a_workflow_is_given_the_failure_of_its_step(played):
    seen = []

    def is_temporary(error):
        seen.append(error.kind)
        return False

    @workflow(retry=Retry(max_attempts=3, retry_if=is_temporary, **SOON))
    async def flow(ctx, _none: None) -> None:
        await ctx.step("divide", lambda: 1 / 0)

    with pytest.raises(WorkflowFailed, match="ZeroDivisionError"):
        result_of(played, flow)
    assert seen == ["ZeroDivisionError"]


async def later(error):
    """A predicate cannot be async."""


@pytest.mark.parametrize("predicate", ["yes", True, later])
def test_a_predicate_must_be_a_plain_function(predicate):
    with pytest.raises(InvalidOption, match="plain function"):
        Retry(retry_if=predicate)
