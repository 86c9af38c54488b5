"""Functions whose work would be done after the lock, the occurrence, the lead or the transaction."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from conftest import Bank
from proxy import Proxy
from test_handlers import Context

from leasehold import Client, Election, Guard, InvalidRequest, LockNotFound, Ran, Unavailable, aio
from leasehold.handlers import idempotent
from leasehold.handlers import locked as locked_handler


def plain(_: Any) -> str:
    return "done"


def generator(_: Any) -> Iterator[int]:
    yield 1


async def coroutine(_: Any) -> str:
    return "done"


async def async_generator(_: Any) -> AsyncIterator[int]:
    yield 1


class Job:
    async def __call__(self, _: Any) -> str:
        return "done"

    def plain(self, _: Any) -> str:
        return "done"

    def generator(self, _: Any) -> Iterator[int]:
        yield 1


class Lazy:
    def __call__(self, _: Any) -> Iterator[int]:
        yield 1


def refused(refusal: str, calls: list[Callable[[], Any]]) -> None:
    """Each of these calls is refused in the same words."""
    told = set()
    for call in calls:
        with pytest.raises(InvalidRequest) as error:
            call()
        told.add(str(error.value).partition(": ")[2])
    (told_by_all,) = told
    assert refusal in told_by_all


SYNC: list[tuple[Any, str]] = [
    (generator, "generator is a generator function, whose work begins after it has returned: let it do all its work"),
    (async_generator, "async_generator is an async generator function, whose work"),
    (coroutine, "coroutine is of the other kind: leasehold.Client takes functions, and leasehold.aio"),
    (functools.partial(coroutine), "coroutine is of the other kind"),
    (functools.partial(functools.partial(generator)), "generator is a generator function"),
    (Job(), "Job is of the other kind"),
    (Job().generator, "Job.generator is a generator function"),
    (Lazy(), "Lazy is a generator function"),
]


@pytest.mark.parametrize(("body", "refusal"), SYNC)
def test_late_work_is_refused_before_anything_is_sent(body: Any, refusal: str, proxy: Proxy, key: str) -> None:
    with Client(proxy.url) as client:
        refused(
            refusal,
            [
                lambda: client.locked(key)(body),
                lambda: client.once_every(key, hours=1)(body),
                lambda: client.once(key, "1", body, wait=0),
                lambda: Election(client, key).lead(body),
                lambda: client.transaction(body, tries=1),
            ],
        )
    assert proxy.seen == []


ASYNC: list[tuple[Any, str]] = [
    (generator, "generator is a generator function"),
    (async_generator, "async_generator is an async generator function"),
    (plain, "plain is of the other kind"),
    (functools.partial(plain), "plain is of the other kind"),
    (Job().plain, "Job.plain is of the other kind"),
    (Lazy(), "Lazy is a generator function"),
]


@pytest.mark.parametrize(("body", "refusal"), ASYNC)
def test_coroutines_late_work_is_refused_before_sending(body: Any, refusal: str, proxy: Proxy, key: str) -> None:
    async def main() -> None:
        async with aio.Client(proxy.url) as client:
            refused(refusal, [lambda: client.locked(key)(body), lambda: client.once_every(key, hours=1)(body)])
            started: list[Callable[[], Awaitable[Any]]] = [
                lambda: client.once(key, "1", body, wait=0),
                lambda: aio.Election(client, key).lead(body),
                lambda: client.transaction(body, tries=1),
            ]
            for call in started:
                with pytest.raises(InvalidRequest, match=refusal):
                    await call()

    asyncio.run(main())
    assert proxy.seen == []


RESULTS: list[Any] = [
    lambda *_: coroutine(None),
    lambda *_: generator(None),
    lambda *_: async_generator(None),
    lambda *_: map(str, [1]),
    lambda *_: filter(None, [1]),
]


@pytest.mark.parametrize("body", RESULTS)
def test_late_results_complete_nothing(body: Any, service: str, bank: Bank, key: str) -> None:
    with Client(service) as client, Client(bank.url) as banker:
        for call in (
            lambda: client.locked(key)(body)(),
            lambda: client.once_every(key, hours=1)(body)(),
            lambda: client.once(key, "1", body),
            lambda: Election(client, key).lead(body),
        ):
            with pytest.raises(InvalidRequest, match=r"<lambda> returned a .*, whose work is still to be done: let it"):
                call()
            lock = client.get(key)
            assert (lock.state, lock.last_occurrence) == ("released", None)
        assert client.once(key, "1", lambda guard: "done") == Ran("done")

        def write(tx: Any) -> Any:
            tx.put("accounts", {"id": key})
            return body()

        with pytest.raises(InvalidRequest, match=r"write returned a .*, whose work is still to be done"):
            banker.transaction(write)
        assert banker.read_item("accounts", {"id": key}) is None


def test_iterator_that_has_no_work_left_is_a_result(service: str, bank: Bank, key: str) -> None:
    with Client(service) as client, Client(bank.url) as banker, open(__file__) as file:
        for result in (iter([1]), zip([1], [2], strict=True), file, [1], (1,)):

            def body(*_: object, it: object = result) -> object:
                return it

            assert client.locked(key)(body)() is result
            assert Election(client, key).lead(body) is result
            assert banker.transaction(body) is result


async def late_task() -> Any:
    return asyncio.get_running_loop().create_future()


async def late_generator() -> Any:
    return generator(None)


ASYNC_RESULTS: list[tuple[Any, str]] = [
    (lambda *_: "done", "returned a str: let it be a coroutine function"),
    (lambda *_: async_generator(None), "returned a async_generator, whose work is still to be done"),
    (lambda *_: late_task(), "returned a .*Future, whose work is still to be done"),
    (lambda *_: late_generator(), "returned a generator, whose work is still to be done"),
]


@pytest.mark.parametrize(("body", "refusal"), ASYNC_RESULTS)
def test_coroutines_late_results_complete_nothing(body: Any, refusal: str, service: str, bank: Bank, key: str) -> None:
    async def main() -> None:
        async with aio.Client(service) as client, aio.Client(bank.url) as banker:
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: client.locked(key)(body)(),
                lambda: client.once_every(key, hours=1)(body)(),
                lambda: client.once(key, "1", body),
                lambda: aio.Election(client, key).lead(body),
            ]
            for call in calls:
                with pytest.raises(InvalidRequest, match=refusal):
                    await call()
                lock = await client.get(key)
                assert (lock.state, lock.last_occurrence) == ("released", None)
            assert await client.once(key, "1", lambda guard: coroutine(guard)) == Ran("done")

            async def write(tx: Any) -> Any:
                await tx.put("accounts", {"id": key})
                return generator(tx)

            with pytest.raises(InvalidRequest, match=r"write returned a .*, whose work is still to be done"):
                await banker.transaction(write)
            assert await banker.read_item("accounts", {"id": key}) is None

    asyncio.run(main())


def test_partials_and_objects_run_under_their_lock(service: str, key: str) -> None:
    class State:
        def __call__(self, prefix: str, *, guard: Guard) -> str:
            assert guard.valid
            return prefix + client.get(key).state

    with Client(service) as client:
        assert client.locked(key)(functools.partial(State(), "is "))() == "is held"
        assert client.locked(key)(State())("is ") == "is held"  # type: ignore[call-arg]
        assert client.locked(key)(Mock(return_value=7))() == 7
        assert client.once_every(key, hours=1)(functools.partial(plain, None))() == Ran("done")
        for nameless in (functools.partial(plain, None), State()):
            with pytest.raises(InvalidRequest, match=r"key: is needed, for a (partial|State) has no name"):
                client.once_every(hours=1)(nameless)
        with pytest.raises(LockNotFound):
            client.get("functools.partial")

    async def main() -> None:
        async with aio.Client(service) as client:
            assert await client.locked(key)(functools.partial(coroutine, None))() == "done"
            assert await client.locked(key)(Job())(None) == "done"
            assert await client.locked(key)(AsyncMock(return_value=7))() == 7
            assert await aio.Election(client, key).lead(Job()) == "done"

    asyncio.run(main())


def test_handlers_late_work_is_refused(service: str, key: str) -> None:
    def late(event: Any, context: Any) -> Iterator[int]:
        yield 1

    async def works(event: Any, context: Any) -> str:
        return "done"

    class Handler:
        async def __call__(self, event: Any, context: Any) -> str:
            return "done"

    with Client(service) as client, Client("http://127.0.0.1:1") as nobody:
        for decorate in (locked_handler(key=key, client=nobody), idempotent(key=key, client=nobody)):
            with pytest.raises(InvalidRequest, match="late is a generator function"):
                decorate(late)
            with pytest.raises(Unavailable):
                decorate(works)({}, Context())
        for decorate in (locked_handler(key=key, client=client), idempotent(key=key, client=client)):
            for body in RESULTS:
                with pytest.raises(InvalidRequest, match="whose work is still to be done"):
                    decorate(body)({}, Context())
            assert decorate(Handler())({}, Context()) == "done"


def test_callback_that_nobody_would_await_is_refused(service: str, key: str) -> None:
    with Client(service) as client:

        @locked_handler(key=key, client=client)
        def handler(event: Any, context: Any) -> str:
            with pytest.raises(InvalidRequest, match="callback: coroutine is of the other kind"):
                context.leasehold.on_lost(coroutine)
            return "done"

        assert handler({}, Context()) == "done"
