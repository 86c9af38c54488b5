"""The edges that users touch: waiting for oneself, leaving in an outage, forgotten guards, durations, pickling."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from conftest import MakeClient, RunPython, eventually, finished
from proxy import Answer, Hang, Proxy, Seen

import leasehold
from leasehold import (
    Client,
    Held,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    Unavailable,
    WouldDeadlock,
    aio,
    errors,
)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Waiting for oneself


def test_waiting_for_ones_own_lock_raises_at_once(service: str, proxy: Proxy, key: str) -> None:
    with Client(proxy.url) as client, client.lock(key) as guard:
        asked = proxy.count("acquire")
        for wait in ("lease", None, 60.0):
            with pytest.raises(WouldDeadlock, match="reentrant=True") as error:
                client.acquire(key, wait=wait)
            assert isinstance(error.value, LeaseholdError)
            assert not error.value.retryable
        with pytest.raises(WouldDeadlock), client.lock_all([f"{key}-other", key]):
            pass
        assert proxy.count("acquire") + proxy.count("acquire-all") == asked, "it sends nothing"
        assert isinstance(client.try_acquire(key), Held), "it does not wait"
        guard.release()
        with client.lock(key):
            pass


def test_reentrant_lock_is_the_outer_one(service: str, key: str) -> None:
    with Client(service) as client:
        with client.lock(key) as outer:
            with client.lock(key, reentrant=True) as inner:
                assert inner is outer
            assert outer.valid, "the inner block releases nothing"
        assert client.get(key).state == "released"
        with client.lock(key, reentrant=True) as guard:
            assert guard is not outer
        assert not guard.valid


def test_other_threads_wait_for_a_lock_as_before(service: str, key: str) -> None:
    with Client(service, poll_interval=0.05) as client:
        guard = client.acquire(key).granted()
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.append(client.acquire(key, wait=60)))
        thread.start()
        time.sleep(0.2)
        guard.release()
        thread.join(60)
        assert got[0].valid


def test_holder_of_all_permits_cannot_wait_for_one(service: str, key: str) -> None:
    with Client(service) as client:
        semaphore = client.semaphore(key, 2)
        with semaphore.hold(2):
            with pytest.raises(WouldDeadlock):
                semaphore.acquire()
            assert isinstance(semaphore.try_acquire(), Held)
        with semaphore.hold(), semaphore.hold():
            pass


def test_tasks_deadlock_with_their_own_flow_only(service: str, key: str) -> None:
    async def main() -> None:
        async with aio.Client(service, poll_interval=0.05) as client:

            async def work() -> None:
                async with client.lock(key, wait=60):
                    await asyncio.sleep(0.01)

            await asyncio.gather(*(work() for _ in range(5)))
            async with client.lock(key) as outer:
                with pytest.raises(WouldDeadlock):
                    await client.acquire(key)
                with pytest.raises(WouldDeadlock):
                    await asyncio.gather(work())  # the outer block waits for it
                async with client.lock(key, reentrant=True) as inner:
                    assert inner is outer

    asyncio.run(main())


# Leaving in an outage


def silent_release(proxy: Proxy) -> Callable[[Seen], Hang | None]:
    return lambda request: Hang() if request.action == "release" else None


def test_leaving_a_block_in_an_outage_is_bounded(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxy.url, lease=60)
    with caplog.at_level(logging.WARNING):
        with client.lock(key):
            proxy.fault = silent_release(proxy)
            begun = time.monotonic()
        took = time.monotonic() - begun
    assert took < 6, "about two seconds, on a busy machine"
    assert not any(", released, " in message for message in caplog.messages)
    assert any("goes on in the background" in message for message in caplog.messages)
    proxy.let_pass()
    looker = make_client()
    eventually(lambda: looker.get(key).state == "released")


def test_leaving_a_block_is_bounded_by_the_rest_of_the_lease(service: str, key: str) -> None:
    from leasehold._world import World

    class Clock(World):
        time = 0.0

        def now(self) -> float:
            return self.time

    class Down:
        async def send(self, call: Any, timeout: float) -> Any:
            clock.time += timeout
            raise Unavailable("down")

        def reset(self) -> None: ...

        async def close(self) -> None: ...

    clock = Clock()
    client = Client(service, world=clock)
    guard = client.acquire(key, lease=4, manual_heartbeats=True).granted()
    clock.time = 3.5
    client._core.api.transport = Down()
    background: list[Any] = []
    client._core.in_background = background.append  # type: ignore[method-assign, assignment]
    with guard:
        pass
    assert 3.5 <= clock.time <= 4.2, "half a second was left of the lease"
    assert ", not released yet, " in repr(guard)
    assert len(background) == 1


def test_close_in_an_outage_is_bounded(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxy.url, lease=60)
    client.acquire(key).granted()
    proxy.fault = silent_release(proxy)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        client.close()
    assert time.monotonic() - begun < 6
    assert any("goes on in the background" in message for message in caplog.messages)
    proxy.let_pass()
    looker = make_client()
    eventually(lambda: looker.get(key).state == "released")


# Holding for too long, and forgetting


def test_hold_ends_with_its_longest_time(make_client: MakeClient, key: str) -> None:
    client = make_client()
    guard = client.acquire(key, max_hold="300ms").granted()
    assert guard.remaining() <= 0.3
    assert guard.wait_lost(60) == "max-hold"
    assert not guard.valid
    with pytest.raises(LockLost, match="max-hold"):
        guard.ensure_held()
    assert make_client().get(key).state == "held", "its work may go on: the lease runs out"
    with pytest.raises(InvalidRequest, match="max_hold: must be above zero"):
        client.acquire(key, max_hold=0)


FORGOTTEN = {
    "threads": """
        import sys, leasehold
        client = leasehold.Client(sys.argv[1])
        guard = client.acquire(sys.argv[2], lease=600).granted()
        print(guard.valid)
        """,
    "asyncio": """
        import asyncio, sys
        from leasehold import aio
        async def main():
            client = aio.Client(sys.argv[1])
            guard = (await client.acquire(sys.argv[2], lease=600)).granted()
            print(guard.valid)
        asyncio.run(main())
        """,
}


def test_forgotten_lock_is_released_at_exit(
    service: str, make_client: MakeClient, run_python: RunPython, key: str, kind: str
) -> None:
    process = run_python(FORGOTTEN[kind], service, key)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "True\n"), err
    assert f"the lock '{key}' was never released" in err
    assert make_client().get(key).state == "released"


def test_released_lock_leaves_no_warning_at_exit(service: str, run_python: RunPython, key: str) -> None:
    code = """
        import sys, leasehold
        client = leasehold.Client(sys.argv[1])
        with client.lock(sys.argv[2]):
            pass
        lost = client.acquire(sys.argv[2], lease=0.2, manual_heartbeats=True).granted()
        lost.wait_lost(60)
        """
    process = run_python(code, service, key)
    assert finished(process) == ""
    err = process.stderr.read() if process.stderr and not process.stderr.closed else ""
    assert "never released" not in err


def test_fork_leaves_its_parents_lock_at_exit(
    service: str, make_client: MakeClient, run_python: RunPython, key: str
) -> None:
    code = """
        import os, sys, leasehold
        client = leasehold.Client(sys.argv[1])
        guard = client.acquire(sys.argv[2], lease=600).granted()
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print(client.get(sys.argv[2]).state)
        guard.release()
        """
    assert finished(run_python(code, service, key)) == "held\n"


# Durations


@pytest.mark.parametrize("lease", [30, 30.0, "30s", "0.5m", "30000ms", "29s1000ms", timedelta(seconds=30)])
def test_lease_is_any_form_of_duration(make_client: MakeClient, key: str, lease: Any) -> None:
    client = make_client(lease=lease)
    assert client.acquire(key).granted().lease == 30
    guard = make_client().acquire(f"{key}-own", lease=lease, wait="1s", heartbeat_interval="1s").granted()
    assert guard.lease == 30
    guard.renew(lease="1m")
    assert guard.lease == 60
    assert client.get(key).lease == 30


@pytest.mark.parametrize("lease", ["20", "20 s", "s", "-1s", "٢s", True, [], "lease"])
def test_text_that_is_no_duration_is_refused(service: str, key: str, lease: Any) -> None:
    with Client(service) as client, pytest.raises(InvalidRequest, match="lease: must be") as error:
        client.acquire(key, lease=lease)
    assert error.value.field == "lease"
    with pytest.raises(InvalidRequest, match="poll_interval"):
        Client(service, poll_interval="often")
    with Client(service) as client, pytest.raises(InvalidRequest, match="wait: must be"):
        client.acquire(key, wait="soon")


# Errors


def test_each_error_says_whether_to_retry() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LeaseholdError)]
    assert len(kinds) > 20
    assert {kind.__name__ for kind in kinds if kind.retryable} == {
        "LockHeld",
        "QueueFull",
        "Superseded",
        "Throttled",
        "TransactionContended",
        "TransactionRolledBack",
        "Unavailable",
    }
    assert {kind.__name__ for kind in kinds} - {"LeaseholdError"} <= set(leasehold.__all__)


def test_clients_and_guards_say_why_they_are_not_pickled(service: str, key: str) -> None:
    with Client(service) as client, client.lock(key) as guard:
        with pytest.raises(InvalidRequest, match="make one in each process"):
            pickle.dumps(client)
        for refuse in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidRequest, match=r"detach\(\)"):
                refuse(guard)
        held = Client(service).try_acquire(key)
        with pytest.raises(LockHeld):
            pickle.loads(pickle.dumps(held)).granted()
    assert pickle.loads(pickle.dumps(WouldDeadlock("k"))).key == "k"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://[::1",
        "http://bad host",
        "http://:80",
        f"http://{'a' * 70}.com",
        "http://double..dot",
        "localhost:8080",
        "http://127.0.0.1?query",
    ],
)
def test_url_that_is_none_is_refused_when_the_client_is_made(make_client: MakeClient, url: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        make_client(url)
    assert error.value.field == "base_url"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"headers": {"X": "secret\nvalue"}}, "headers"),
        ({"headers": {"X\n": "secret"}}, "headers"),
        ({"headers": {"X": 5}}, "headers"),
        ({"token": ""}, "token"),
        ({"token": "secret\n"}, "token"),
        ({"token": lambda: None}, "token"),
    ],
)
def test_header_that_http_cannot_carry_is_refused(
    make_client: MakeClient, key: str, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        make_client(**arguments).try_acquire(key)
    assert error.value.field == field
    assert "secret" not in str(error.value)


def test_content_that_json_does_not_have_is_refused(make_client: MakeClient, key: str) -> None:
    client = make_client()
    for value in (object(), float("nan"), b"bytes", {1}):
        with pytest.raises(InvalidRequest, match="attributes: is not JSON"):
            client.acquire(key, attributes={"a": value})
    with pytest.raises(InvalidRequest, match="attributes: is not Unicode"):
        client.acquire(key, attributes={"a": "\ud800"})
    with pytest.raises(InvalidRequest, match="data: must be bytes or a text, not int"):
        client.acquire(key, data=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="key: is not UTF-8"):
        client.get("\ud800")


def test_wait_says_why_it_goes_on_trying(
    make_client: MakeClient, proxy: Proxy, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fault = lambda request: Answer(502, b"") if request.action == "acquire" else None
    with caplog.at_level(logging.WARNING, "leasehold"), pytest.raises(Unavailable, match="status 502"):
        make_client(proxy.url).acquire(key, wait=1)
    assert [message for message in caplog.messages if "trying again" in message] == [
        "trying again: the answer is status 502, not Leasehold's own"
    ]


def test_host_that_does_not_exist_is_told(make_client: MakeClient, key: str) -> None:
    with pytest.raises(Unavailable, match=r"there is no host no-such-host\.invalid"):
        make_client("http://no-such-host.invalid").try_acquire(key)


def test_wrong_argument_is_told_in_words_of_this_package(
    make_client: MakeClient, service: str, kind: str, key: str
) -> None:
    client = make_client()
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: client.history(key, limit=-1), "limit: must be a whole number, 1 or more, not -1"),
        (lambda: client.history(key, limit=0), "limit: must be a whole number, 1 or more, not 0"),
        (lambda: client.history(key, limit="a"), "limit: must be a whole number, 1 or more, not 'a'"),  # type: ignore[arg-type]
        (lambda: client.history(key, since_ms=1.5), "since_ms: must be a whole number, 0 or more, not 1.5"),  # type: ignore[arg-type]
        (lambda: client.history(key, until_ms=True), "until_ms: must be a whole number, 0 or more, not True"),
        (lambda: list(client.list(page_size=0)), "page_size: must be a whole number, 1 to 1000, not 0"),
        (lambda: list(client.list(page_size=1001)), "page_size: must be a whole number, 1 to 1000, not 1001"),
        (lambda: client.transaction(lambda tx: 1, tries=0), "tries: must be a whole number, 1 or more, not 0"),
        (lambda: client.get(5), "key: must be a text, not 5"),  # type: ignore[arg-type]
        (lambda: client.try_acquire(5), "key must be a string, not the number 5."),  # type: ignore[arg-type]
        (lambda: client.try_acquire(None), "key is missing."),  # type: ignore[arg-type]
        (lambda: client.try_acquire(""), "key must not be empty."),
        (lambda: client.try_acquire(key, lease=float("nan")), "lease: must be 0 or more, not nan"),
        (lambda: client.try_acquire(key, attributes=[1]), "attributes: must be a mapping from texts, not [1]"),  # type: ignore[arg-type]
        (lambda: client.try_acquire(key, attributes={1: 1}), "attributes: must be a mapping from texts, not {1: 1}"),  # type: ignore[dict-item]
        (lambda: client.try_acquire(key, staleness="x"), "staleness must be `rvn` or `clock`, not `x`."),  # type: ignore[arg-type]
        (lambda: client.once(key, "1", None), "body: must be a function, not None"),  # type: ignore[arg-type]
        (lambda: client.load_observations("x"), "observations: no saved observation: a member is missing"),  # type: ignore[arg-type]
        (lambda: make_client(service, token=5).get(key), "token: must be a text that is not empty"),
    ]
    for call, told in calls:
        with pytest.raises(InvalidRequest) as error:
            call()
        assert str(error.value) == told


def test_loss_by_a_heartbeat_is_told_once(make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture) -> None:
    client = make_client()
    guard = client.acquire(key, manual_heartbeats=True).granted()
    client.break_lock(key, client.get(key).record_version_number)
    with caplog.at_level(logging.WARNING, "leasehold"), pytest.raises(LockLost):
        guard.renew()
    assert [message for message in caplog.messages if key in message] == [f"the lock {key!r} is lost: released"]
