"""Waiting by watches, with polls as the fallback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from conftest import MakeClient, eventually
from proxy import Answer, Hang, Proxy, only

from leasehold import Client, Guard, Held, LeaseholdError, WaitCancelled

T = TypeVar("T")


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


class Background:
    """Calls a function in a thread, and has its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except LeaseholdError as error:
            self.result = error

    def wait(self) -> object:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.result


@pytest.fixture
def waiter(proxy: Proxy, make_client: MakeClient) -> Client:
    """A client that watches."""
    return make_client(proxy.url, poll_interval=None)


def test_waiter_watches_until_the_lock_is_released(
    proxy: Proxy, make_client: MakeClient, waiter: Client, key: str
) -> None:
    holder = make_client(heartbeat_interval=0.2).acquire(key, lease=20).granted()
    waiting = Background(lambda: waiter.acquire(key, wait=30))
    eventually(lambda: proxy.count("watch") > 4)  # one for each heartbeat
    holder.release()
    assert isinstance(waiting.wait(), Guard)
    assert proxy.count("acquire") == 2, "refused once, and granted"


def test_waiter_watches_until_the_lock_is_deleted(
    proxy: Proxy, make_client: MakeClient, waiter: Client, key: str
) -> None:
    holder = make_client(heartbeat_interval=0.2).acquire(key, lease=20).granted()
    waiting = Background(lambda: waiter.acquire(key, wait=30))
    eventually(lambda: proxy.count("watch") > 0)
    holder.release(delete=True)
    result = waiting.wait()
    assert isinstance(result, Guard)
    assert result.outcome == "created"


def test_dead_holder_is_taken_over_after_its_watches(
    proxy: Proxy, make_client: MakeClient, waiter: Client, key: str
) -> None:
    make_client().acquire(key, lease=3, manual_heartbeats=True).granted()
    guard = waiter.acquire(key, wait=30).granted()
    assert guard.outcome == "takenOver"
    assert proxy.count("acquire") == 2
    assert 1 <= proxy.count("watch") <= 2, "the first watch ends with the mark"
    watched = next(request.path for request in proxy.seen if request.action == "watch")
    assert 0 < int(watched.rpartition("waitMs=")[2]) <= 3005, "its lease, a thousandth, and the rounding"


def test_wait_that_ends_has_one_last_look(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str) -> None:
    make_client(owner_name="one").acquire(key, lease=60).granted()
    held = waiter.acquire(key, wait=3)
    assert isinstance(held, Held)
    assert held.lock.owner_name == "one"
    assert proxy.count("acquire") == 2
    assert 1 <= proxy.count("watch") <= 2, "the first watch ends with the mark"


def test_chosen_poll_interval_polls(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=60).granted()
    assert isinstance(make_client(proxy.url, poll_interval=0.05).acquire(key, wait=2), Held)
    assert proxy.count("watch") == 0
    assert proxy.count("acquire") > 2


def test_service_without_watches_is_polled(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str) -> None:
    proxy.fault = only("watch", Answer(404))
    holder = make_client(heartbeat_interval=0.2).acquire(key, lease=20).granted()
    waiting = Background(lambda: waiter.acquire(key, wait=30))
    eventually(lambda: proxy.count("acquire") > 2)
    holder.release()
    assert isinstance(waiting.wait(), Guard)
    assert proxy.count("watch") == 1, "never again"


@pytest.mark.parametrize("answer", [Answer(503), Answer(429)])
def test_watch_that_fails_costs_a_read(
    proxy: Proxy, make_client: MakeClient, waiter: Client, key: str, answer: Answer
) -> None:
    proxy.fault = only("watch", answer, times=2)
    holder = make_client().acquire(key, lease=60).granted()
    waiting = Background(lambda: waiter.acquire(key, wait=30))
    eventually(lambda: proxy.count("watch") > 2)
    assert (proxy.count("acquire"), proxy.count("lock")) == (1, 2), "read after each failure"
    holder.release()
    assert isinstance(waiting.wait(), Guard)


def test_watch_that_answers_early_costs_a_poll(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str) -> None:
    holder = make_client().acquire(key, lease=60, manual_heartbeats=True).granted()
    lock = f"""{{"key": "{key}", "state": "held", "ownerName": "somebody", "leaseDurationMs": 60000,
        "recordVersionNumber": "{holder.record_version_number}"}}"""
    proxy.fault = only("watch", Answer(200, lock.encode()))
    assert isinstance(waiter.acquire(key, wait=1.6), Held)
    assert 1 <= proxy.count("watch") <= 3


def test_clock_of_the_service_is_asked_each_poll(
    proxy: Proxy, make_client: MakeClient, waiter: Client, key: str
) -> None:
    make_client().acquire(key, lease=2, manual_heartbeats=True).granted()
    guard = waiter.acquire(key, wait=30, staleness="clock").granted()
    assert guard.outcome == "takenOver"
    assert proxy.count("acquire") > 2


def is_watching() -> bool:
    return any(thread.name == "leasehold-watch" for thread in threading.enumerate())


def test_close_ends_a_watch(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str, kind: str) -> None:
    proxy.fault = only("watch", Hang())
    make_client().acquire(key, lease=60).granted()
    waiting = Background(lambda: waiter.acquire(key, wait=None))
    eventually(lambda: proxy.count("watch") > 0)
    start = time.monotonic()
    waiter.close()
    assert "closed" in str(waiting.wait())
    assert time.monotonic() - start < 20, "the watch has 25 seconds"
    assert kind != "threads" or is_watching(), "the watch was abandoned, and not waited for"


def test_cancellation_ends_a_watch(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("an event loop has cancellation")
    proxy.fault = only("watch", Hang())
    make_client().acquire(key, lease=60).granted()
    cancel = threading.Event()
    waiting = Background(lambda: waiter.acquire(key, wait=None, cancel=cancel))
    eventually(lambda: proxy.count("watch") > 0)
    cancel.set()
    assert isinstance(waiting.wait(), WaitCancelled)
    assert is_watching(), "the watch was abandoned, and not waited for"
    assert waiter._core.can_watch


def test_hand_over_needs_no_poll(proxy: Proxy, make_client: MakeClient, waiter: Client, key: str) -> None:
    client = make_client(lease=60)
    for number in range(10):
        holder = client.acquire(f"{key}-{number}").granted()
        before = proxy.count("watch")
        waiting = Background(lambda number=number: waiter.acquire(f"{key}-{number}", wait=30))  # type: ignore[misc]
        eventually(lambda before=before: proxy.count("watch") > before)  # type: ignore[misc]
        holder.release()
        result = waiting.wait()
        assert isinstance(result, Guard)
    assert proxy.count("acquire") == 20, "refused once, and granted"
    assert 10 <= proxy.count("watch") <= 20, "a watch ends with the mark"
