"""A lock around a function: its signature stays, its key comes from its arguments."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
from holdfast.errors import InvalidKey


@pytest.fixture
def hf():
    with Client("memory://") as client:
        yield client


def held(client):
    return [info.key for info in client.locks.list()]


def test_the_key_is_a_template_over_the_arguments(hf):
    @hf.lock("invoice:{invoice_id}:{options[kind]}")
    def charge(invoice_id: int, *, options: dict[str, str], amount: float = 1.5) -> list[str]:
        """Charge it."""
        return held(hf)

    assert charge(42, options={"kind": "card"}) == ["invoice:42:card"]
    assert held(hf) == []
    assert charge.__name__ == "charge"
    assert charge.__doc__ == "Charge it."
    assert list(inspect.signature(charge).parameters) == ["invoice_id", "options", "amount"]


def test_the_key_may_be_a_default_or_a_callable(hf):
    @hf.lock("region:{region}")
    def by_default(region: str = "eu") -> list[str]:
        return held(hf)

    @hf.lock(lambda order: f"order:{order['id']}")
    def by_callable(order: dict[str, int]) -> list[str]:
        return held(hf)

    assert by_default() == ["region:eu"]
    assert by_callable({"id": 7}) == ["order:7"]


@pytest.mark.parametrize("template", ["{nobody}", "{0}", "{}", "{invoice_id", "{invoice_id.}x}"])
def test_a_template_that_cannot_work_is_refused_at_decoration(hf, template):
    with pytest.raises(InvalidKey):

        @hf.lock("invoice:" + template)
        def charge(invoice_id: int) -> None:
            raise AssertionError


@pytest.mark.parametrize("template", ["{amount:{nobody}}", "{amount:>{}}", "{amount:{amount:{amount}}}"])
def test_a_template_whose_format_cannot_work_is_refused_at_decoration(hf, template):
    with pytest.raises(InvalidKey):

        @hf.lock("invoice:" + template)
        def charge(amount: int) -> None:
            raise AssertionError


def test_a_format_may_come_from_the_arguments_too(hf):
    @hf.lock("invoice:{amount:>{width}}")
    def charge(amount: int, width: int) -> list[str]:
        return held(hf)

    assert charge(7, width=3) == ["invoice:  7"]


@pytest.mark.parametrize(
    "maker",
    [
        lambda: "k",
        lambda order: "k",
        lambda order, amount, extra, *, dry: "k",
        lambda order, amount: "k",
        lambda order, amount, *, wet: "k",
    ],
)
def test_a_key_function_that_cannot_take_the_arguments_is_refused_at_decoration(hf, maker):
    with pytest.raises(InvalidKey, match="charge"):

        @hf.lock(maker)
        def charge(order: int, amount: int = 1, *, dry: bool = False) -> None:
            raise AssertionError


@pytest.mark.parametrize(
    "maker",
    [
        lambda order, amount=1, *, dry=False: f"order:{order}",
        lambda order, *_, **__: f"order:{order}",
        lambda *args, **_: f"order:{args[0]}",
    ],
)
def test_a_key_function_that_can_take_every_call_is_accepted(hf, maker):
    @hf.lock(maker)
    def charge(order: int, amount: int = 1, *, dry: bool = False) -> list[str]:
        return held(hf)

    assert charge(7) == charge(7, 2, dry=True) == ["order:7"]


def test_a_key_function_of_a_variadic_or_unknown_function_is_checked_at_each_call(hf):
    @hf.lock(lambda order, **_: f"order:{order}")
    def forward(*args: int, **kwargs: int) -> list[str]:
        return held(hf)

    assert forward(order=7) == ["order:7"]
    assert hf.lock(str)(lambda order: held(hf))(7) == ["7"]


def test_a_computed_key_that_is_invalid_is_refused_at_the_call(hf):
    @hf.lock("{name}")
    def greet(name: str) -> None:
        raise AssertionError

    with pytest.raises(InvalidKey):
        greet("")


def test_generators_are_refused_because_their_body_runs_later(hf):
    with pytest.raises(TypeError, match="generator"):

        @hf.lock("a")
        def numbers():
            yield 1


def test_a_sync_function_that_returns_a_coroutine_is_refused_because_it_would_run_unprotected(hf):
    async def work():
        raise AssertionError

    with pytest.raises(TypeError, match="after the lock was released"):
        hf.lock("a")(lambda: work())()

    class Callable:
        async def __call__(self):
            return held(hf)

    assert asyncio.run(hf.lock("a")(Callable())()) == ["a"]


def test_a_busy_lock_raises_by_default_and_skips_the_call_on_request(hf):
    calls = []

    @hf.lock("a", wait=0)
    def strict() -> str:
        calls.append("strict")
        return "done"

    @hf.lock("a", wait=0, on_busy="skip")
    def relaxed() -> str:
        calls.append("relaxed")
        return "done"

    entered, leave = threading.Event(), threading.Event()

    @hf.lock("a")
    def occupy() -> None:
        entered.set()
        leave.wait(20)

    thread = threading.Thread(target=occupy)
    thread.start()
    assert entered.wait(10)
    with pytest.raises(LockTimeout):
        strict()
    assert relaxed() is None
    assert calls == []
    leave.set()
    thread.join(10)
    assert strict() == relaxed() == "done"


def test_a_timeout_of_the_body_itself_is_not_taken_for_busy(hf):
    @hf.lock("a", on_busy="skip")
    def work() -> None:
        raise LockTimeout("the body's own")

    with pytest.raises(LockTimeout, match="body's own"):
        work()


def test_async_functions_are_guarded_by_either_client(hf):
    @hf.lock("sync:{n}")
    async def by_sync_client(n: int) -> list[str]:
        return held(hf)

    async def main() -> None:
        assert await by_sync_client(1) == ["sync:1"]
        async with AsyncClient("memory://") as client:

            @client.lock("async:{n}", wait=0, on_busy="skip")
            async def by_async_client(n: int) -> list[str]:
                await asyncio.sleep(0.01)
                return [info.key for info in await client.locks.list()]

            first, second = await asyncio.gather(by_async_client(2), by_async_client(2))
            assert sorted([first, second], key=str) == [None, ["async:2"]] or [first, second] == [["async:2"], None]
            assert inspect.iscoroutinefunction(by_async_client)

    asyncio.run(main())


def test_a_lost_lease_makes_the_guarded_function_raise_lease_lost(hf):
    @hf.lock("a")
    def work() -> str:
        hf.locks.force_release("a", reason="test")
        return "nobody gets this"

    with pytest.raises(LeaseLost):
        work()
