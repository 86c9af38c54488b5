"""Behaviour that only shows under an event loop: cancellation, loss, and the end of the loop.

The locks themselves have the tests of the synchronous client: test_locking.py and test_faults.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import pytest
from conftest import TABLE, Bank, MakeClient, RunPython, eventually, finished
from proxy import Answer, Crowd, Delay, Fault, Hang, Late, Proxy, Refuse, Seen, only

from leasehold import (
    Client,
    Held,
    Leader,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    Transaction,
    Unavailable,
    VersionMismatch,
    aio,
)

pytestmark = [
    pytest.mark.anyio,
    # A request that is cancelled under trio leaves generators of httpx to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

T = TypeVar("T")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def garbage_is_collected_here() -> Iterator[None]:
    """Collects garbage here, and not in another test, where it is an error."""
    yield
    gc.collect()


@asynccontextmanager
async def client_of(url: str, **arguments: Any) -> AsyncIterator[aio.Client]:
    async with aio.Client(url, **{"lease": 60.0, "poll_interval": 0.1, **arguments}) as client:
        yield client


async def broken(operator: aio.Client, key: str) -> None:
    """Breaks the lock, even if heartbeats come in between."""
    while True:
        try:
            await operator.break_lock(key, (await operator.get(key)).record_version_number)
        except VersionMismatch:
            continue
        return


class Interrupted:
    """Awaits, and cancels itself at the n-th point where it waits. Returns whether there was one."""

    def __init__(self, work: Awaitable[T], at: int, scope: anyio.CancelScope | None) -> None:
        self._work = work
        self._at = at
        self._scope = scope
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        answer: Any = None
        failure: BaseException | None = None
        count = 0
        while True:
            try:
                waits_for = steps.send(answer) if failure is None else steps.throw(failure)
            except StopIteration as end:
                return end.value
            count += 1
            if count == self._at:
                self.cancelled = True
                if self._scope is None:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                else:
                    self._scope.cancel()
            answer, failure = None, None
            try:
                answer = yield waits_for
            except BaseException as error:
                failure = error


async def interrupt(work: Callable[[], Awaitable[object]], at: int, *, native: bool = False) -> bool:
    """Does the work in a task of its own, cancelled at this point. False if it ended before."""
    if native:
        interrupted = Interrupted(work(), at, None)

        async def run() -> None:
            await interrupted

        task = asyncio.create_task(run())
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or AssertionError
        return interrupted.cancelled
    with anyio.CancelScope() as scope:
        interrupted = Interrupted(work(), at, scope)
        await interrupted
    return interrupted.cancelled


async def acquire(client: aio.Client, key: str) -> None:
    guard = (await client.acquire(key)).granted()
    await guard.release()


async def block(client: aio.Client, key: str) -> None:
    async with client.lock(key):
        await anyio.sleep(0.001)
        await anyio.sleep(0.001)


async def renew(client: aio.Client, key: str) -> None:
    async with (await client.acquire(key)).granted() as guard:
        await guard.renew(data="x")


@pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
@pytest.mark.parametrize("work", [acquire, block, renew])
async def test_cancellation_at_any_point_leaves_no_lock(
    service: str, key: str, anyio_backend: str, native: bool, work: Any
) -> None:
    if native and anyio_backend != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    points = 0
    async with client_of(service) as client, client_of(service) as other:
        while True:
            points += 1
            name = f"{key}-{points}"
            if not await interrupt(partial(work, client, name), points, native=native):
                break
            with anyio.fail_after(60):
                while not isinstance(result := await other.try_acquire(name), aio.Guard):
                    await anyio.sleep(0.01)
            await result.release()
    assert points > 5, "it was cancelled again and again"


async def test_cancellation_in_the_queue_leaves_no_ticket(service: str, key: str) -> None:
    async with client_of(service, poll_interval=None) as client, client_of(service) as other:
        holder = (await other.semaphore(key, 2).acquire(2)).granted()

        async def queue_up() -> None:
            assert isinstance(await client.semaphore(key, 2).acquire(wait=3), Held)

        points = 1
        while await interrupt(queue_up, points):
            points += 3
        with anyio.fail_after(60):
            while client._core.unsettled:
                await anyio.sleep(0.01)
        view = await other.get_semaphore(key)
        assert ([h.holder_id for h in view.holders], view.queue) == ([holder.holder_id], ())
        assert points > 10, "it was cancelled again and again"


async def test_loss_of_permits_cancels_the_body(service: str, key: str) -> None:
    async with client_of(service) as client, client_of(service) as operator:
        with anyio.fail_after(60), pytest.raises(LockLost):
            async with client.semaphore(key, 1).hold(lease=60, heartbeat_interval=0.1) as guard:
                while True:
                    version = (await operator.get_semaphore(key)).holders[0].version
                    try:
                        await operator.break_entry(key, guard.holder_id, version)
                    except VersionMismatch:
                        continue
                    break
                await anyio.sleep(60)
        assert guard.lost == "released"


@pytest.mark.parametrize("fault", [Delay(30), Late(2)])
async def test_cancelled_acquire_gives_back_what_it_may_have_got(
    proxy: Proxy, service: str, key: str, fault: Fault
) -> None:
    proxy.fault = only("acquire", fault, times=1)
    async with client_of(proxy.url) as client, client_of(service) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.acquire, key)
            while not proxy.count("acquire"):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while True:
                seen = [lock.state async for lock in other.list(key=key)]
                if seen == ["released"] and not client._core.unsettled:
                    break
                await anyio.sleep(0.01)


async def test_grant_that_came_with_a_cancellation_is_given_back(
    service: str, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[BaseException] = []  # with its traceback, and so the guard that nobody received
    async with client_of(service) as other, client_of(service) as client:
        with anyio.CancelScope() as scope:
            send = client._core.api.transport.send

            async def send_and_cancel(*arguments: Any) -> Any:
                answer = await send(*arguments)
                scope.cancel()
                return answer

            monkeypatch.setattr(client._core.api.transport, "send", send_and_cancel)
            try:
                await client.acquire(key)
            except BaseException as error:
                kept.append(error)
                raise
        assert kept
        with anyio.fail_after(60):
            await (await other.acquire(key, wait=None)).granted().release()
            await (await other.acquire(key, wait=None)).granted().release()
    assert not caplog.records, caplog.text


async def test_cancelled_wait_asks_no_more(proxy: Proxy, service: str, key: str) -> None:
    async with client_of(service) as holder, client_of(proxy.url) as client:
        guard = (await holder.acquire(key)).granted()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.acquire, key, wait=None))
            while proxy.count("acquire") < 2:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        while client._core.unsettled:  # a request was under way
            await anyio.sleep(0.01)
        asked = proxy.count("acquire")
        await guard.release()
        await anyio.sleep(0.4)
        assert proxy.count("acquire") == asked
        assert (await holder.get(key)).state == "released"


async def test_cancelled_wait_ends_its_watch(proxy: Proxy, service: str, key: str) -> None:
    proxy.fault = only("watch", Hang())
    async with client_of(service) as holder, client_of(proxy.url, poll_interval=None) as client:
        await holder.acquire(key)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(client.acquire, key, wait=None))
                while not proxy.count("watch"):
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
        assert (proxy.count("acquire"), proxy.count("watch")) == (1, 1)
        assert client._core.can_watch


async def test_handler_that_is_cancelled_releases(service: str, key: str) -> None:
    async with client_of(service) as client:
        started = anyio.Event()

        async def handler() -> None:
            async with client.lock(key):
                started.set()
                await anyio.sleep(60)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handler)
            await started.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while (await client.get(key)).state != "released":
                await anyio.sleep(0.01)


async def test_cancellation_is_not_held_up_by_a_release_that_hangs(proxy: Proxy, service: str, key: str) -> None:
    proxy.fault = only("release", Delay(8), times=1)
    async with client_of(proxy.url) as client:
        with anyio.CancelScope() as scope:
            async with client.lock(key):
                start = time.monotonic()
                scope.cancel()
                await anyio.sleep(60)
        assert time.monotonic() - start < 7
    async with client_of(service) as other:
        assert (await other.get(key)).state == "released"


async def test_loss_cancels_the_body(service: str, key: str) -> None:
    async with client_of(service) as client, client_of(service) as operator:
        reached = False
        with anyio.fail_after(60), pytest.raises(LockLost) as error:
            async with client.lock(key, lease=30, heartbeat_interval=0.2) as guard:
                await broken(operator, key)
                await anyio.sleep(60)
                reached = True
        assert not reached
        assert (error.value.key, error.value.reason) == (key, "released")
        assert guard.lost == "released"
        await anyio.sleep(0.01)  # the task itself is not cancelled


async def test_body_may_choose_not_to_be_cancelled(service: str, key: str) -> None:
    async with client_of(service) as client, client_of(service) as operator:
        with pytest.raises(LockLost):
            async with client.lock(key, lease=30, heartbeat_interval=0.2, cancel_on_loss=False) as guard:
                await broken(operator, key)
                assert await guard.wait_lost(60) == "released"
                await anyio.sleep(0.05)
        with pytest.raises(KeyError, match="mine"):
            async with client.lock(key, lease=30, heartbeat_interval=0.2) as guard:
                await broken(operator, key)
                try:
                    await anyio.sleep(60)
                finally:
                    raise KeyError("mine")


async def test_block_says_who_holds_the_lock(service: str, key: str) -> None:
    async with client_of(service, owner_name="one") as one, client_of(service) as two:
        async with one.lock(key):
            with pytest.raises(LockHeld) as error:
                async with two.lock(key, wait=0):
                    pytest.fail("the body must not run")
            assert error.value.lock.owner_name == "one"
        assert not isinstance(await two.try_acquire(key), Held)


async def test_callbacks_may_be_coroutines(service: str, key: str) -> None:
    told = anyio.Event()

    async def callback(guard: aio.Guard) -> None:
        await anyio.sleep(0)
        told.set()

    async with client_of(service) as client:
        guard = (await client.acquire(key, lease=0.3, manual_heartbeats=True)).granted()
        guard.on_lost(callback)
        with anyio.fail_after(60):
            await told.wait()


async def test_heartbeats_go_on_without_the_task_that_acquired(service: str, key: str) -> None:
    guards: list[aio.Guard] = []

    async with client_of(service, lease=3, heartbeat_interval=0.2) as client:

        async def work() -> None:
            guards.append((await client.acquire(key)).granted())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
        await anyio.sleep(3.2)
        assert guards[0].valid
    assert not guards[0].valid, "closing the client releases"


async def test_idle_connection_that_was_closed_costs_nothing(proxy: Proxy, key: str) -> None:
    async with client_of(proxy.url) as client:
        await (await client.acquire(key, manual_heartbeats=True)).granted().release()
        proxy.fault = only("acquire", Refuse(), times=1)
        guard = (await client.try_acquire(key)).granted()
        sent = [request.body["leaseId"] for request in proxy.seen if request.action == "acquire"]
        assert sent[1:] == [guard.lease_id] * 2
    proxy.seen.clear()
    proxy.fault = lambda request: Refuse()
    async with client_of(proxy.url) as client:
        with pytest.raises(Unavailable, match=f"from {proxy.url}/v1/acquire"):
            await client.try_acquire(key)
    assert proxy.count("acquire") == 1, "a new connection is no idle one"


async def test_errors_of_the_network_are_told(proxy: Proxy, key: str) -> None:
    async with client_of("http://127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match=r"from http://127\.0\.0\.1:1/v1/acquire") as error:
            await client.try_acquire(key)
        assert not error.value.sent
    proxy.fault = only("acquire", Delay(5))
    async with client_of(proxy.url, lease=1) as client:
        with pytest.raises(Unavailable, match="timed out") as error:
            await client.try_acquire(key)
        assert error.value.sent
        proxy.let_pass()


async def test_tokens_are_fetched_outside_of_the_event_loop(proxy: Proxy, key: str) -> None:
    ticks = 0

    def token() -> str:
        eventually(lambda: ticks > 5)
        return "slow"

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.02)
            ticks += 1

    proxy.fault = lambda request: Answer(404, b'{"type":"not-found","status":404}')
    async with client_of(proxy.url, token=token) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with pytest.raises(LeaseholdError):
            await client.get(key)
        tasks.cancel_scope.cancel()
    assert proxy.seen[0].headers["Authorization"] == "Bearer slow"


async def test_proxy_of_the_environment_is_used(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url)
    proxy.fault = lambda request: Answer(404, b'{"type":"not-found","status":404}')
    async with client_of("http://service.example/prod") as client:
        with pytest.raises(LeaseholdError):
            await client.get("x")
    assert proxy.seen[0].path == "http://service.example/prod/v1/lock?key=x"


def test_end_of_the_event_loop_gives_back(
    service: str, proxy: Proxy, make_client: MakeClient, run_python: RunPython, key: str
) -> None:
    """A program that is cancelled in an acquire, and ends at once."""
    answered: list[Seen] = []

    def fault(request: Seen) -> Fault | None:
        answered.append(request)
        return Delay(30) if request.action == "acquire" else None

    proxy.fault = fault
    code = """
        import asyncio, sys
        from leasehold import aio
        from leasehold.aio import _tasks

        _tasks._AT_EXIT = 20.0

        async def main():
            client = aio.Client(sys.argv[1], lease=60)
            try:
                await asyncio.wait_for(client.acquire(sys.argv[2]), 4.5)
            except asyncio.TimeoutError:
                print("cancelled", flush=True)

        asyncio.run(main())
        """
    process = run_python(code, proxy.url, key)
    assert finished(process) == "cancelled\n"
    assert make_client(service).get(key).state == "released"


def test_signatures_are_explicit() -> None:

    for kind in (Client, aio.Client):
        for method in ("try_acquire", "acquire", "lock"):
            shown = inspect.signature(getattr(kind, method)).parameters
            assert {"lease", "data", "staleness", "hold_on_unavailable"} <= set(shown), (kind, method)
            assert shown["replace_data"].default is True
            assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
    for transaction in (Transaction, aio.Transaction):
        written = inspect.signature(transaction.update).parameters
        assert [*written][1:5] == ["table", "key", "expression", "values"]
        assert {"condition", "names", "return_values"} == {*[*written][5:]}
        assert "return_values" not in inspect.signature(transaction.check).parameters
    with pytest.raises(TypeError, match=r"try_acquire\(\) got an unexpected keyword argument 'lese'"):
        Client("http://127.0.0.1:1").try_acquire("x", lese=1)  # type: ignore[call-arg]


async def test_loss_cancels_the_leader_which_campaigns_again(service: str, key: str) -> None:
    tokens: list[int] = []
    async with (
        aio.Client(service, heartbeat_interval=0.1, lease=30) as client,
        aio.Client(service, poll_interval=None) as operator,
    ):

        async def body(guard: aio.Guard) -> str:
            tokens.append(guard.fencing_token)
            if len(tokens) == 1:
                while True:
                    try:
                        view = await operator.get(key)
                        await operator.break_lock(key, view.record_version_number)
                    except VersionMismatch:
                        continue
                    break
                await anyio.sleep(60)
            return "done"

        with anyio.fail_after(60):
            assert await aio.Election(client, key, "10.0.0.1").lead(body) == "done"
        assert len(tokens) == 2
        async with aclosing(aio.Election(operator, key).observe()) as leaders:
            assert await anext(leaders) is None
            guard = await aio.Election(client, key, b"10.0.0.2").campaign()
            with anyio.fail_after(60):
                leader = await anext(leaders)
        assert leader == Leader(guard.owner_name or "", b"10.0.0.2", guard.fencing_token)


async def move(tx: aio.Transaction, source: str, target: str) -> None:
    await tx.update(TABLE, {"id": source}, "ADD balance :amount", {":amount": -1})
    await tx.update(TABLE, {"id": target}, "ADD balance :amount", {":amount": 1})


async def in_block(client: aio.Client, source: str, target: str) -> None:
    async with await client.begin_transaction() as tx:
        await move(tx, source, target)


async def in_body(client: aio.Client, source: str, target: str) -> None:
    await client.transaction(partial(move, source=source, target=target))


@pytest.mark.parametrize("native", [False, True], ids=["scope", "task"])
@pytest.mark.parametrize("work", [in_block, in_body])
async def test_cancellation_leaves_no_transaction_open(bank: Bank, anyio_backend: str, native: bool, work: Any) -> None:
    if native and anyio_backend != "asyncio":
        pytest.skip("only asyncio cancels tasks")
    outcomes = []
    point = 1
    cancelled = True
    async with client_of(bank.url) as client:
        while cancelled:
            moe, larry = bank.open(0), bank.open(0)
            cancelled = await interrupt(partial(work, client, moe, larry), point, native=native)
            with anyio.fail_after(60):
                while client._core.unsettled:
                    await anyio.sleep(0.01)
            outcomes.append((bank.balance(moe), bank.balance(larry)))
            point += 2
    assert {*outcomes} == {(0, 0), (-1, 1)}
    assert outcomes[-1] == (-1, 1), "it was not cancelled"
    assert len(outcomes) > 5, "it was cancelled again and again"


@pytest.mark.parametrize(
    ("action", "fault", "state"),
    [
        ("begin", Delay(2), "rolled-back"),
        ("add", Late(1), "rolled-back"),
        ("commit", Late(30), "rolled-back"),
        ("commit", Delay(2), "committed"),
    ],
)
async def test_closing_waits_for_what_a_cancelled_transaction_left(
    bank: Bank, action: str, fault: Fault, state: str
) -> None:
    moe, larry = bank.open(0), bank.open(0)
    faults: dict[str, Fault] = {action: fault, "rollback": Delay(2)}
    with Proxy(bank.url) as proxy:
        proxy.fault = lambda request: faults.get(request.action)
        async with client_of(bank.url) as looker, client_of(proxy.url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(in_block, client, moe, larry)
            while not proxy.count(action):
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)
            (transaction_id,) = {request.body["transactionId"] for request in proxy.seen}
            while state == "committed" and (await looker.transaction_status(transaction_id)).state != state:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    async with client_of(bank.url) as client:
        status = await client.transaction_status(transaction_id)
    assert status.state == state
    expected = (-1, 1) if state == "committed" else (0, 0)
    assert (bank.balance(moe), bank.balance(larry)) == expected


async def test_rollback_goes_on_after_the_cancelled_block(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold._timing._LEAVE_BOUND_MS", 30_000)
    moe, larry = bank.open(0), bank.open(0)
    with Proxy(bank.url) as proxy:
        proxy.fault = only("rollback", Answer(503, headers={"Retry-After": "2"}), times=1)
        async with client_of(proxy.url) as client:
            with anyio.CancelScope() as scope:
                async with await client.begin_transaction() as tx:
                    await move(tx, moe, larry)
                    scope.cancel()
                    await anyio.sleep(60)
            assert client._core.unsettled, "the block did not wait for it"
    assert (bank.balance(moe), bank.balance(larry)) == (0, 0)


async def test_side_by_side_transactions_neither_make_nor_lose_money(bank: Bank) -> None:
    accounts = [bank.open(100) for _ in range(3)]
    async with client_of(bank.url) as client, anyio.create_task_group() as tasks:
        for number in range(6):
            body = partial(move, source=accounts[number % 3], target=accounts[(number + 1) % 3])
            tasks.start_soon(partial(client.transaction, body, tries=100, deadline=60))
    assert [bank.balance(account) for account in accounts] == [100] * 3


async def test_close_bounds_the_releases_at_once(proxy: Proxy, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold._timing._LEAVE_BOUND_MS", 60_000)  # none goes on in the background
    crowd = proxy.fault = Crowd("release", 0.05)
    async with client_of(proxy.url) as client:
        for number in range(60):
            (await client.acquire(f"{key}-{number}")).granted()
    assert 1 < max(crowd.sizes) <= 32, "at once, and as with threads"


async def test_many_requests_at_once_share_few_connections(proxy: Proxy, key: str) -> None:
    crowd = proxy.fault = Crowd("lock", 0.7)

    async def look() -> None:
        with contextlib.suppress(LockNotFound, Unavailable):  # a busy machine has no answer in time
            await client.get(key)

    async with client_of(proxy.url) as client, anyio.create_task_group() as tasks:
        for _ in range(150):
            tasks.start_soon(look)
    assert len(crowd.sizes) > 64
    given_up = max(0, len(crowd.sizes) - 150)  # on a busy machine: the proxy still counts them beside their repeats
    assert max(crowd.sizes) <= 64 + given_up


async def views_of(client: aio.Client, key: str) -> None:
    async with aclosing(client.observe(key)) as views:
        async for _ in views:
            pass


async def test_long_requests_keep_no_heartbeat_waiting(proxy: Proxy, key: str) -> None:
    proxy.fault = only("watch", Hang())
    async with client_of(proxy.url, poll_interval=None) as client:
        guard = (await client.acquire(key)).granted()
        async with anyio.create_task_group() as tasks:
            for number in range(70):
                tasks.start_soon(views_of, client, f"{key}-{number}")
            while proxy.count("watch") < 70:
                await anyio.sleep(0.01)
            with anyio.fail_after(60):
                await guard.renew()
            tasks.cancel_scope.cancel()
