"""The waiters of one client for one lock: one asks, and the others stand in line."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from conftest import MakeClient, broken, eventually
from proxy import Hang, Proxy

from leasehold import Client, Guard, Held, LeaseholdError, LockLost, Unavailable, WaitCancelled

TURNS = 20


@pytest.fixture(params=["threads", "asyncio", "trio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Apart(ThreadPoolExecutor):
    """Threads that run one call each: a lock is held by the thread that acquired it."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments, **named))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run).start()
        return future


def in_line(client: Client, key: str, waiters: int) -> None:
    """Waits until so many stand in line behind the one with the turn."""
    lines = client._core.lines._lines
    eventually(lambda: (key, None) in lines and len(lines[key, None]._waiting) >= waiters)


def test_turn_of_a_herd_costs_an_acquire_and_a_release(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url, poll_interval=None)
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with client.lock(key, wait=120):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(TURNS) as threads:
        list(threads.map(work, range(TURNS)))
    assert max(most) == 1
    sent = Counter(request.action for request in proxy.seen)
    assert sent == {"acquire": TURNS, "release": TURNS}, "and less than 6 a turn"
    assert client._core.lines._lines == {}


def test_lock_that_nobody_wants_is_taken_again_without_a_pause(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url, poll_interval=None)
    pauses: list[float] = []
    returns = client._core.returns
    client._core.returns = lambda *given: pauses.append(returns(*given)) or pauses[-1]  # type: ignore[func-returns-value, method-assign]
    for _ in range(6):
        with client.lock(key):
            pass
    assert pauses[0] == 0
    assert sum(pause == 0 for pause in pauses) >= 5, "a busy machine may take more than a second for a series"
    assert Counter(request.action for request in proxy.seen) == {"acquire": 6, "release": 6}


def test_other_client_gets_its_turn_before_a_herd_is_done(make_client: MakeClient, key: str) -> None:
    herd, other = make_client(poll_interval=None), make_client(poll_interval=None)
    order: list[str] = []

    def work(client: Client, name: str) -> None:
        with client.lock(key, wait=120):
            order.append(name)
            time.sleep(0.3)

    with ThreadPoolExecutor(20) as threads:
        for _ in range(12):
            threads.submit(work, herd, "herd")
        in_line(herd, key, 5)
        threads.submit(work, other, "other")
    assert len(order) == 13
    assert order.index("other") < 12, "a herd does not starve the others"


def test_waiter_in_line_is_told_who_holds_the_lock(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url, owner_name="the herd")
    with Apart() as threads:
        guard = threads.submit(client.acquire, key, wait=60).result().granted()
        held = threads.submit(client.acquire, key, wait=0.5).result()
        assert isinstance(held, Held)
        assert (held.lock.owner_name, held.lock.fencing_token) == ("the herd", guard.fencing_token)
        assert held.lock.record_version_number == guard.record_version_number
        assert proxy.count("acquire") == 1, "who is not at the head sends nothing"
        blocker = make_client().acquire(f"{key}-other").granted()
        waits = [threads.submit(client.acquire, f"{key}-other", wait=seconds) for seconds in (30, 1)]
        assert isinstance(waits[1].result(), Held)
        blocker.release()
        assert isinstance(waits[0].result(), Guard)


def test_turn_passes_on_with_the_end_of_the_hold(make_client: MakeClient, key: str) -> None:
    client = make_client(poll_interval=0.05)

    def next_after(end: str) -> None:
        name = f"{key}-{end}"
        with Apart() as threads:
            guard = threads.submit(client.acquire, name).result().granted()
            waiting: Future[Guard | Held] = threads.submit(client.acquire, name, wait=120)
            in_line(client, name, 1)
            match end:
                case "release":
                    guard.release()
                case "loss":
                    broken(client, name)
                    with pytest.raises(LockLost):
                        guard.renew()
                case "detach":
                    handed = guard.detach()
                    client.release(name, handed.lease_id)
            assert waiting.result().granted().valid

    for end in ("release", "loss", "detach"):
        next_after(end)


def test_waiter_that_leaves_the_line_gives_its_place_up(make_client: MakeClient, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("an event loop cancels its tasks")
    client = make_client()
    cancel = threading.Event()
    with Apart() as threads:
        guard = threads.submit(client.acquire, key).result().granted()
        leaving = threads.submit(client.acquire, key, wait=None, cancel=cancel)
        in_line(client, key, 1)
        staying = threads.submit(client.acquire, key, wait=None)
        in_line(client, key, 2)
        cancel.set()
        with pytest.raises(WaitCancelled):
            leaving.result()
        guard.release()
        assert staying.result().granted().valid
        last = threads.submit(client.acquire, key, wait=None)
        in_line(client, key, 1)
        client.close()
        with pytest.raises(LeaseholdError, match="closed"):
            last.result()


def test_waiters_in_line_outlive_the_failure_of_their_head(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    proxy.fault = lambda request: Hang()
    with Apart() as threads:
        head = threads.submit(client.acquire, key, wait=1)
        in_line_after = threads.submit(client.acquire, key, wait=60)
        with pytest.raises(Unavailable):
            head.result()
        proxy.let_pass()
        assert in_line_after.result().granted().valid
