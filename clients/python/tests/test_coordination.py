"""Several locks at once, occurrences, observers, elections and delays, on the real service."""

from __future__ import annotations

import inspect
import threading
import time
from functools import partial
from typing import Any

import pytest
from conftest import MakeClient, broken, eventually, serve, stop
from proxy import Answer, DropAnswer, Proxy, Refuse, Seen, only
from test_watching import Background

from leasehold import (
    AllGuard,
    AlreadyDone,
    Client,
    Guard,
    Held,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    LockView,
    OccurrenceDone,
    Permits,
    Ran,
    SemaphoreView,
    VersionMismatch,
    WrongKind,
)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client(poll_interval=None, lease=30)


@pytest.fixture
def observed(proxy: Proxy, make_client: MakeClient) -> Client:
    """A client behind the proxy."""
    return make_client(proxy.url, poll_interval=None, lease=30)


def pair(key: str) -> list[str]:
    return [f"{key}-a", f"{key}-b"]


def states(client: Client, keys: list[str]) -> list[str]:
    return [next((lock.state for lock in client.list(key=key)), "absent") for key in keys]


# Several locks at once


def test_all_locks_are_granted_under_one_token(client: Client, key: str) -> None:
    guard = client.try_acquire_all(pair(key))
    assert isinstance(guard, AllGuard)
    assert guard.keys == tuple(pair(key))
    assert guard.valid
    assert 0 < guard.remaining() <= guard.lease == 30
    assert {client.get(name).fencing_token for name in pair(key)} == {guard.fencing_token}
    guard.renew(lease=40)
    assert guard.lease == 40
    guard.release()
    guard.release()
    assert not guard.valid
    assert guard.lost is None
    assert states(client, pair(key)) == ["released", "released"]


def test_none_is_granted_where_one_is_held(client: Client, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="bob").acquire(pair(key)[1]).granted()
    held = client.try_acquire_all(pair(key))
    assert isinstance(held, Held)
    assert (held.lock.key, held.lock.owner_name) == (pair(key)[1], "bob")
    with pytest.raises(LockHeld, match="'bob'"):
        held.granted()
    assert states(client, pair(key)) == ["absent", "held"]


def test_heartbeats_keep_all_locks(make_client: MakeClient, key: str) -> None:
    guard = make_client().acquire_all(pair(key), lease=3, heartbeat_interval=0.2).granted()
    time.sleep(3.2)
    assert guard.valid
    assert isinstance(make_client().try_acquire(pair(key)[0]), Held)


def test_one_lost_is_all_lost(client: Client, make_client: MakeClient, key: str) -> None:
    guard = make_client(heartbeat_interval=0.1).acquire_all(pair(key), lease=30).granted()
    told: list[object] = []
    guard.on_lost(told.append)
    broken(client, pair(key)[1])
    assert guard.wait_lost(60) == "released"
    eventually(lambda: told == [guard])
    with pytest.raises(LockLost) as error:
        guard.ensure_held()
    assert error.value.key == pair(key)[1]
    assert not guard.valid
    eventually(lambda: states(client, pair(key)) == ["released", "released"])
    with pytest.raises(LockLost):
        guard.release()


def test_block_releases_all(client: Client, key: str) -> None:
    with client.lock_all(pair(key)) as guard:
        assert states(client, pair(key)) == ["held", "held"]
        assert guard.valid
    assert states(client, pair(key)) == ["released", "released"]


def test_waiter_for_several_locks_looks_and_does_not_ask(
    proxy: Proxy, observed: Client, client: Client, key: str
) -> None:
    holders = [client.acquire(name, heartbeat_interval=0.2).granted() for name in pair(key)]
    waiting = Background(lambda: observed.acquire_all(pair(key), wait=30))
    eventually(lambda: proxy.count("watch") > 2)
    holders[0].release()
    seen = proxy.count("watch")
    eventually(lambda: proxy.count("watch") > seen + 2)
    assert proxy.count("acquire-all") == 1, "the other one is held and alive"
    holders[1].release()
    assert isinstance(waiting.wait(), AllGuard)
    assert proxy.count("acquire-all") == 2


def test_dead_holders_of_several_locks_are_taken_over(client: Client, make_client: MakeClient, key: str) -> None:
    dead = [make_client().acquire(name, lease=1, manual_heartbeats=True).granted() for name in pair(key)]
    guard = client.acquire_all(pair(key), wait=30).granted()
    assert guard.fencing_token > max(lock.fencing_token for lock in dead)
    assert [lock.lost for lock in dead] == ["expired", "expired"]


def test_several_locks_are_polled_without_watches(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    proxy.fault = only("watch", Answer(404))
    holder = client.acquire(pair(key)[0]).granted()
    waiting = Background(lambda: observed.acquire_all(pair(key), wait=30))
    eventually(lambda: proxy.count("lock") > 1)
    holder.release()
    assert isinstance(waiting.wait(), AllGuard)
    assert (proxy.count("watch"), proxy.count("acquire-all")) == (1, 2)


def test_crossed_callers_get_all_or_none(make_client: MakeClient, key: str) -> None:
    inside: list[str] = []

    def work(name: str, keys: list[str]) -> None:
        own = make_client(poll_interval=None)
        for _ in range(2):
            with own.lock_all(keys, wait=60):
                inside.append(name)
                assert len(inside) == 1
                time.sleep(0.01)
                inside.remove(name)

    workers = [Background(partial(work, "one", pair(key))), Background(partial(work, "two", pair(key)[::-1]))]
    assert [worker.wait() for worker in workers] == [None, None]


@pytest.mark.parametrize("fault", [DropAnswer(), Refuse()])
def test_lost_answer_of_several_costs_a_retry(
    proxy: Proxy, observed: Client, key: str, fault: DropAnswer | Refuse
) -> None:
    proxy.fault = only("acquire-all", fault, times=2)
    guard = observed.acquire_all(pair(key)).granted()
    assert guard.valid
    assert len({r.content for r in proxy.seen if r.action == "acquire-all"}) == 1, "byte for byte"


def test_several_locks_that_were_given_up_are_taken_back(
    proxy: Proxy, observed: Client, client: Client, key: str
) -> None:
    proxy.fault = only("acquire-all", DropAnswer())
    with pytest.raises(LeaseholdError):
        observed.try_acquire_all(pair(key))
    eventually(lambda: states(client, pair(key)) == ["released", "released"])


def test_remaining_locks_are_released_when_one_is_lost(
    proxy: Proxy, observed: Client, client: Client, key: str
) -> None:
    """The answer to a grant is lost, and an operator breaks one of the locks."""

    def fault(request: Seen) -> Any:
        if request.action != "acquire-all" or proxy.count("acquire-all") > 2:
            return None
        if proxy.count("acquire-all") == 2:
            broken(client, pair(key)[0])
            return None
        return DropAnswer()

    proxy.fault = fault
    guard = observed.acquire_all(pair(key), wait=20).granted()
    used = [r.body["leaseId"] for r in proxy.seen if r.action == "acquire-all"]
    assert used[0] == used[1] != used[-1] == guard.lease_id


def test_malformed_sets_of_locks_are_refused(client: Client, key: str) -> None:
    for wrong in ([], [key], key, [key, key]):
        with pytest.raises(InvalidRequest) as error:
            client.try_acquire_all(wrong)
        assert error.value.field == "keys"
    client.semaphore(f"{key}-b", 1).acquire().granted()
    with pytest.raises(WrongKind):
        client.acquire_all(pair(key))


# Permits among several keys


def mixed(key: str, permits: int = 2) -> list[str | tuple[str, str] | Permits]:
    return [f"{key}-a", Permits(f"{key}-pool", permits, of=3)]


def free(client: Client, key: str) -> int:
    return client.get_semaphore(f"{key}-pool").available


def test_lock_and_permits_are_granted_under_one_token(client: Client, key: str) -> None:
    guard = client.try_acquire_all(mixed(key))
    assert isinstance(guard, AllGuard)
    assert (guard.keys, guard.permits) == ((f"{key}-a", f"{key}-pool"), {f"{key}-pool": 2})
    (holder,) = client.get_semaphore(f"{key}-pool").holders
    assert holder.fencing_token == client.get(f"{key}-a").fencing_token == guard.fencing_token
    guard.renew(lease=40)
    assert guard.lease == 40
    guard.release()
    assert (states(client, [f"{key}-a"]), free(client, key)) == (["released"], 3)


def test_none_is_granted_where_permits_are_missing(client: Client, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="bob").semaphore(f"{key}-pool", 3).acquire(2).granted()
    held = client.try_acquire_all(mixed(key))
    assert isinstance(held, Held)
    assert isinstance(held.lock, SemaphoreView)
    assert held.lock.available == 1
    assert states(client, [f"{key}-a"]) == ["absent"]
    with client.lock_all(mixed(key, 1)) as guard:
        assert guard.valid


def test_waiter_for_permits_among_several_looks(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    holder = client.semaphore(f"{key}-pool", 3).acquire(2, heartbeat_interval=0.2).granted()
    waiting = Background(lambda: observed.acquire_all(mixed(key), wait=30))
    eventually(lambda: proxy.count("watch") > 0)
    assert proxy.count("acquire-all") == 1
    holder.release()
    assert isinstance(waiting.wait(), AllGuard)
    assert proxy.count("acquire-all") == 2


def test_dead_holder_of_permits_makes_way_for_several(client: Client, make_client: MakeClient, key: str) -> None:
    dead = make_client().semaphore(f"{key}-pool", 3).acquire(3, lease=1, manual_heartbeats=True).granted()
    guard = client.acquire_all(mixed(key), wait=30).granted()
    assert guard.fencing_token > dead.fencing_token
    assert free(client, key) == 1


def broken_entry(operator: Client, key: str) -> None:
    """Breaks the one holder, even if heartbeats come in between."""
    while True:
        (holder,) = operator.get_semaphore(key).holders
        try:
            operator.break_entry(key, holder.holder_id, holder.version)
        except VersionMismatch:
            continue
        return


def test_lost_permits_lose_the_lock_beside_them(client: Client, make_client: MakeClient, key: str) -> None:
    guard = make_client(heartbeat_interval=0.1).acquire_all(mixed(key), lease=30).granted()
    broken_entry(client, f"{key}-pool")
    assert guard.wait_lost(60) == "released"
    eventually(lambda: states(client, [f"{key}-a"]) == ["released"])
    guard = make_client(heartbeat_interval=0.1).acquire_all(mixed(key), lease=30).granted()
    broken(client, f"{key}-a")
    assert guard.wait_lost(60) == "released"
    eventually(lambda: free(client, key) == 3)


def test_permits_that_were_given_up_are_taken_back(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    proxy.fault = only("acquire-all", DropAnswer())
    with pytest.raises(LeaseholdError):
        observed.try_acquire_all(mixed(key))
    eventually(lambda: states(client, [f"{key}-a"]) == ["released"] and free(client, key) == 3)


# The history


def test_history_tells_who_held_the_lock(make_client: MakeClient, key: str) -> None:
    process, url = serve("--history", "1d")
    try:
        keeper = make_client(url=url)
        keeper.acquire(key).granted().release()
        seen = keeper.acquire(key).granted()
        keeper.break_lock(key, seen.record_version_number)
        eventually(lambda: len(keeper.history(key)) == 4)
        entries = keeper.history(key)
        assert [entry.event for entry in entries] == ["broken", "acquired", "released", "acquired"]
        assert entries[0].fencing_token == seen.fencing_token
        assert keeper.history(key, limit=1) == entries[:1]
        assert keeper.history(key, until_ms=entries[-1].at_ms - 1) == ()
        assert keeper.history(key, since_ms=entries[-1].at_ms) == entries
    finally:
        stop(process)


def test_service_without_a_history_says_so(client: Client, key: str) -> None:
    with pytest.raises(LockNotFound):
        client.history(key)


# Once an occurrence


def test_occurrence_is_set_back_by_an_operator(client: Client, key: str, kind: str) -> None:
    def run(occurrence: str) -> Ran[Any] | AlreadyDone:
        return client.once(key, occurrence, as_body(lambda guard: None, kind))

    run("9999")
    assert isinstance(run("2026-2"), AlreadyDone)
    seen = client.get(key).record_version_number
    version = client.set_occurrence(key, "2026-1", seen)
    assert client.get(key).record_version_number == version
    assert isinstance(run("2026-2"), Ran)
    with pytest.raises(VersionMismatch):
        client.set_occurrence(key, "2026-1", seen)


def test_occurrence_runs_once(client: Client, make_client: MakeClient, key: str, kind: str) -> None:
    ran: list[int] = []

    def run(guard: Guard) -> str:
        ran.append(guard.fencing_token)
        return "41 rows"

    body = as_body(run, kind)
    first = client.once(key, "2026-11-21T02", body)
    assert first == Ran("41 rows")
    again = make_client().once(key, "2026-11-21T02", body)
    assert isinstance(again, AlreadyDone)
    assert again.data == b"41 rows"
    assert again.lock is not None
    assert again.lock.last_occurrence == "2026-11-21T02"
    assert isinstance(make_client().once(key, "2026-11-21T01", body), AlreadyDone), "an earlier one is late"
    assert len(ran) == 1
    assert isinstance(make_client().once(key, "2026-11-21T03", body), Ran)
    with pytest.raises(OccurrenceDone):
        client.try_acquire(key, occurrence="2026-11-21T03")


def as_body(function: Any, kind: str) -> Any:
    """Makes a body of a function: a coroutine function under an event loop."""

    async def later(guard: Guard) -> Any:
        result = function(guard)
        return await result if inspect.isawaitable(result) else result

    return function if kind == "threads" else later


def test_occurrence_that_failed_is_tried_again(client: Client, key: str, kind: str) -> None:
    def raise_mine(guard: Guard) -> Any:
        raise KeyError("mine")

    fail = as_body(raise_mine, kind)
    with pytest.raises(KeyError, match="mine"):
        client.once(key, "1", fail)
    assert client.get(key).state == "released"
    assert client.once(key, "1", as_body(lambda guard: None, kind)) == Ran(None)
    with pytest.raises(KeyError, match="mine"):
        client.once(key, "2", fail, at_most_once=True)
    assert isinstance(client.once(key, "2", fail), AlreadyDone)


def test_completion_is_repeated_until_it_is_stored(
    proxy: Proxy, observed: Client, client: Client, key: str, kind: str
) -> None:
    proxy.fault = only("release", Refuse(), times=3)
    assert observed.once(key, "1", as_body(lambda guard: b"left", kind)) == Ran(b"left")
    assert client.get(key).last_occurrence == "1"


def test_completion_that_failed_is_never_a_plain_release(
    proxy: Proxy, observed: Client, client: Client, key: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold._core.OPERATION_BOUND_MS", 300)
    proxy.fault = only("release", Refuse())
    with pytest.raises(LeaseholdError):
        observed.once(key, "1", as_body(lambda guard: "left", kind))
    monkeypatch.undo()
    proxy.fault = lambda request: None
    observed.close()
    assert all(r.body["completed"] == "1" for r in proxy.seen if r.action == "release")
    assert client.get(key).last_occurrence == "1"


def test_occurrence_that_was_broken_is_not_done(client: Client, key: str, kind: str) -> None:
    operator = client

    def body(guard: Guard) -> Any:
        guard_key = guard.key
        if kind == "threads":
            broken(operator, guard_key)
            return "too late"

        async def later() -> str:
            inner: Any = operator
            view = await inner._inner.get(guard_key)
            await inner._inner.break_lock(guard_key, view.record_version_number)
            return "too late"

        return later()

    with pytest.raises(LockLost):
        client.once(key, "1", as_body(body, kind))
    assert client.get(key).last_occurrence is None


# Lock delay


def test_holder_with_a_delay_believes_in_less(client: Client, key: str) -> None:
    guard = client.acquire(key, lease=36, lock_delay=30, manual_heartbeats=True).granted()
    assert guard.remaining() <= 6
    assert client.get(key).lease == 36
    guard.renew()
    assert guard.remaining() <= 6
    assert guard.wait_lost(60) == "expired"
    assert isinstance(client.try_acquire(key), Held), "nobody else may have it yet"
    for delay in (3, -1):
        with pytest.raises(InvalidRequest) as error:
            client.acquire(f"{key}-other", lease=3, lock_delay=delay)
        assert error.value.field == "lock_delay"


def test_heartbeats_keep_pace_with_the_shorter_time(client: Client, key: str) -> None:
    guard = client.acquire(key, lease=40, lock_delay=34).granted()
    assert guard.wait_lost(7) is None, "a second and a half between two"
    assert guard.valid
    with pytest.raises(InvalidRequest):
        client.acquire(f"{key}-other", lease=20, lock_delay=19, heartbeat_interval=0.6)


# Observers and elections


class Followed:
    """The values of a stream, gathered in a thread."""

    def __init__(self, stream: Any, kind: str, client: Any) -> None:
        self.seen: list[Any] = []
        self._cancel = threading.Event()
        self._client = client
        if kind == "threads":
            self._work = Background(lambda: self._follow(stream(cancel=self._cancel)))
        else:
            self._work = Background(lambda: client._portal.call(self._follow_async, stream))

    def _follow(self, views: Any) -> None:
        for view in views:
            self.seen.append(view)

    async def _follow_async(self, stream: Any) -> None:
        async for view in stream():
            self.seen.append(view)

    def stop(self) -> None:
        self._cancel.set()
        self._client.close()
        self._work.wait()


def test_observer_sees_each_change(make_client: MakeClient, client: Client, key: str, kind: str) -> None:
    own: Any = make_client(poll_interval=None)
    stream = partial(getattr(own, "_inner", own).observe, key)
    followed = Followed(stream, kind, own)
    eventually(lambda: followed.seen == [None])
    guard = client.acquire(key, data="one", manual_heartbeats=True).granted()
    eventually(lambda: len(followed.seen) == 2)
    guard.renew(data="two")
    eventually(lambda: len(followed.seen) == 3)
    guard.release(delete=True)
    eventually(lambda: len(followed.seen) == 4)
    followed.stop()
    one, two = followed.seen[1:3]
    assert isinstance(one, LockView)
    assert (one.data, two.data, followed.seen[3]) == (b"one", b"two", None)


def test_observer_of_a_semaphore_sees_the_queue(
    proxy: Proxy, make_client: MakeClient, client: Client, key: str, kind: str
) -> None:
    proxy.fault = only("watch", Answer(404))
    own: Any = make_client(proxy.url, poll_interval=0.1)
    guard = client.semaphore(key, 2).acquire(2).granted()
    followed = Followed(partial(getattr(own, "_inner", own).observe, key), kind, own)
    eventually(lambda: len(followed.seen) == 1)
    guard.release()
    eventually(lambda: len(followed.seen) == 2)
    followed.stop()
    assert all(isinstance(view, SemaphoreView) for view in followed.seen)
    assert [view.available for view in followed.seen] == [0, 2]


def test_observer_of_a_semaphore_sees_a_grant(make_client: MakeClient, client: Client, key: str, kind: str) -> None:
    own: Any = make_client(poll_interval=0.1)
    guard = client.semaphore(key, 2).acquire(1, manual_heartbeats=True).granted()
    followed = Followed(partial(getattr(own, "_inner", own).observe, key), kind, own)
    eventually(lambda: len(followed.seen) == 1)
    other = client.semaphore(key, 2).acquire(1, manual_heartbeats=True).granted()
    eventually(lambda: len(followed.seen) == 2)
    followed.stop()
    assert [view.available for view in followed.seen if isinstance(view, SemaphoreView)] == [1, 0]
    guard.release()
    other.release()
