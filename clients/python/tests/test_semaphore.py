"""Semaphores, read/write locks and fair locks on the real service."""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import pytest
import urllib3
from conftest import MakeClient, eventually
from proxy import Answer, Delay, DropAnswer, Late, Proxy, Refuse, Seen, only
from test_watching import Background

from leasehold import (
    Client,
    ExceedsCapacity,
    Handover,
    Held,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    PermitGuard,
    PermitsMismatch,
    SemaphoreView,
    VersionMismatch,
    WaitCancelled,
    WrongKind,
)
from leasehold._runtime import run


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


@pytest.fixture
def client(make_client: MakeClient) -> Client:
    return make_client(poll_interval=None)


@pytest.fixture
def observed(proxy: Proxy, make_client: MakeClient) -> Client:
    """A client behind the proxy."""
    return make_client(proxy.url, poll_interval=None)


def view_of(client: Client, key: str) -> SemaphoreView:
    """The semaphore, whose permits add up."""
    view = client.get_semaphore(key)
    assert view.available == max(0, view.capacity - sum(holder.permits for holder in view.holders))
    return view


def test_permits_are_granted_up_to_the_capacity(client: Client, make_client: MakeClient, key: str) -> None:
    semaphore = client.semaphore(key, 3)
    first = semaphore.try_acquire(data="10.0.0.1", owner_name="first")
    assert isinstance(first, PermitGuard)
    assert (first.key, first.permits, first.capacity, first.outcome) == (key, 1, 3, "created")
    assert first.holder_id.startswith("h-")
    assert 0 < first.remaining() <= first.lease == 60
    second = semaphore.try_acquire(2).granted()
    assert second.fencing_token > first.fencing_token
    held = make_client().semaphore(key, 3).try_acquire()
    assert isinstance(held, Held)
    assert isinstance(held.lock, SemaphoreView)
    assert (held.lock.holders[0].owner_name, held.lock.holders[0].permits) == ("first", 1)
    assert held.lock.holders[0].data == b"10.0.0.1"
    assert held.lock.available == 0
    assert 0 < held.stale_in <= 60.06
    with pytest.raises(LockHeld, match="'first'"):
        held.granted()
    first.release()
    first.release()
    assert not first.valid
    assert view_of(client, key).available == 1
    assert second.valid


def test_heartbeats_keep_permits_for_longer_than_their_lease(client: Client, key: str) -> None:
    guard = client.semaphore(key, 1).acquire(lease=3, heartbeat_interval=0.2).granted()
    version, token = guard.version, guard.fencing_token
    time.sleep(3.2)
    assert guard.valid
    assert guard.version != version
    assert guard.fencing_token == token
    # A heartbeat may come between the look and the comparison.
    eventually(lambda: view_of(client, key).holders[0].version == guard.version)


def test_block_gives_the_permits_back(client: Client, key: str) -> None:
    with client.semaphore(key, 5).hold(2) as guard:
        assert view_of(client, key).available == 3
        guard.keep(1)
        assert guard.permits == 1
        assert view_of(client, key).available == 4
        with pytest.raises(InvalidRequest):
            guard.keep(2)
    assert view_of(client, key).available == 5
    with pytest.raises(KeyError, match="mine"), client.semaphore(key, 5).hold():
        raise KeyError("mine")
    assert view_of(client, key).available == 5


def test_waiter_is_granted_as_soon_as_permits_come_back(
    proxy: Proxy, observed: Client, client: Client, key: str
) -> None:
    holder = client.semaphore(key, 2).acquire(2).granted()
    waiting = Background(lambda: observed.semaphore(key, 2).acquire(wait=30))
    eventually(lambda: proxy.count("watch") > 0)
    assert len(view_of(client, key).queue) == 1
    holder.release()
    guard = waiting.wait()
    assert isinstance(guard, PermitGuard)
    assert view_of(client, key).queue == ()
    assert (proxy.count("acquire"), proxy.count("enqueue")) == (2, 1)


def test_queue_is_in_order(make_client: MakeClient, client: Client, key: str) -> None:
    holder = client.fair_lock(key).acquire().granted()
    order: list[int] = []
    waiters = []

    def work(number: int) -> None:
        with make_client(poll_interval=None).fair_lock(key).hold(wait=60):
            order.append(number)

    for number in range(5):
        waiters.append(Background(partial(work, number)))
        eventually(lambda: len(view_of(client, key).queue) == len(waiters))
    assert isinstance(client.fair_lock(key).try_acquire(), Held)
    holder.release()
    for waiter in waiters:
        waiter.wait()
    assert order == [0, 1, 2, 3, 4]


def test_dead_permit_is_taken_by_the_servers_clock(client: Client, make_client: MakeClient, key: str) -> None:
    client.semaphore(key, 1).acquire(lease=1.0, manual_heartbeats=True).granted()
    time.sleep(2.2)  # the lease, and the bound of the skew of a second
    assert isinstance(make_client().semaphore(key, 1).try_acquire(), Held)
    guard = make_client().semaphore(key, 1).try_acquire(staleness="clock").granted()
    guard.release()


def test_try_acquire_does_not_pass_the_queue(client: Client, make_client: MakeClient, key: str) -> None:
    semaphore = client.semaphore(key, 2)
    holder = semaphore.acquire().granted()
    waiting = Background(lambda: make_client().semaphore(key, 2).acquire(2, wait=30))
    eventually(lambda: view_of(client, key).queue)
    held = semaphore.try_acquire()
    assert isinstance(held, Held)
    assert isinstance(held.lock, SemaphoreView)
    assert held.lock.available == 1, "free, and for those who wait"
    holder.release()
    assert isinstance(waiting.wait(), PermitGuard)


def test_dead_holder_is_taken_over_alone(client: Client, make_client: MakeClient, key: str) -> None:
    other = make_client()
    alive = other.semaphore(key, 3).acquire(lease=30, heartbeat_interval=0.2).granted()
    dead = other.semaphore(key, 3).acquire(2, lease=1.2, manual_heartbeats=True).granted()
    start = time.monotonic()
    guard = client.semaphore(key, 3).acquire(2, wait=30).granted()
    assert time.monotonic() - start >= 1.2
    assert guard.outcome == "takenOver"
    assert guard.fencing_token > dead.fencing_token
    assert alive.valid
    eventually(lambda: dead.lost == "expired")
    assert {holder.holder_id for holder in view_of(client, key).holders} == {alive.holder_id, guard.holder_id}


def test_writer_passes_25_dead_readers(proxy: Proxy, observed: Client, service: str, key: str) -> None:
    reader = {"key": key, "ownerName": "dead", "capacity": 100, "leaseDurationMs": 1500}
    with Client(service) as plain:
        for number in range(25):
            run(plain._core.api.acquire_permits({**reader, "leaseId": f"{key}-{number}"}, 5.0))
    writer = observed.read_write_lock(key).write().acquire(wait=30).granted()
    assert (writer.permits, writer.outcome) == (100, "takenOver")
    assert [holder.holder_id for holder in view_of(observed, key).holders] == [writer.holder_id]
    assert (proxy.count("enqueue"), proxy.count("acquire")) == (3, 2), "ten with a ticket, ten more, and five"


def test_dead_of_earlier_calls_are_named(client: Client, make_client: MakeClient, key: str) -> None:
    make_client().semaphore(key, 1).acquire(lease=0.5, manual_heartbeats=True).granted()
    semaphore = client.semaphore(key, 1)
    assert isinstance(semaphore.try_acquire(), Held)
    time.sleep(0.55)
    assert semaphore.try_acquire().granted().outcome == "takenOver"


def test_dead_waiters_are_passed(client: Client, make_client: MakeClient, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("the dead are the same ones")
    holder = client.semaphore(key, 1).acquire().granted()
    for number in range(3):
        dead_ticket(make_client(), key, number, 3000)
    holder.release()
    start = time.monotonic()
    guard = client.semaphore(key, 1).acquire(wait=30).granted()
    assert guard.valid
    assert 2.9 < time.monotonic() - start < 8, "one ticket lease, for all of them together"


def dead_ticket(client: Client, key: str, number: int, lease_ms: int, permits: int = 1) -> None:
    """Makes a ticket that is never refreshed, for all the permits."""
    request = {"key": key, "ownerName": "dead", "capacity": permits, "permits": permits}
    request["leaseDurationMs"] = lease_ms
    run(client._core.api.enqueue({**request, "leaseId": f"{key}-{number}"}, 5.0))


def test_waiter_that_was_cut_off_goes_to_the_end(
    proxy: Proxy, observed: Client, client: Client, make_client: MakeClient, service: str, key: str
) -> None:
    holder = client.semaphore(key, 2).acquire().granted()
    with Client(service) as plain:
        dead_ticket(plain, key, 1, 3000, permits=2)
    cut_off = Background(lambda: observed.semaphore(key, 2).acquire(wait=60, ticket_lease=1.5))
    eventually(lambda: proxy.count("watch"))
    proxy.fault = lambda request: Refuse()
    passing = make_client().semaphore(key, 2)
    assert isinstance(passing.try_acquire(), Held)
    time.sleep(3.1)
    other = passing.try_acquire()
    assert isinstance(other, PermitGuard), "one of two is free, and nobody alive waits"
    large = Background(lambda: make_client().semaphore(key, 2).acquire(2, wait=60))
    eventually(lambda: view_of(client, key).queue)
    holder.release()
    proxy.let_pass()
    eventually(lambda: len(view_of(client, key).queue) == 2)
    reads = proxy.count("watch")
    eventually(lambda: proxy.count("watch") > reads)
    assert [ticket.permits for ticket in view_of(client, key).queue] == [2, 1], "its old view does not count"
    other.release()
    granted = large.wait()
    assert isinstance(granted, PermitGuard)
    granted.release()
    assert isinstance(cut_off.wait(), PermitGuard)


def test_ticket_is_renewed_while_its_waiter_lives(
    proxy: Proxy, observed: Client, client: Client, make_client: MakeClient, key: str
) -> None:
    holder = client.semaphore(key, 1).acquire().granted()
    first = Background(lambda: observed.semaphore(key, 1).acquire(wait=60, ticket_lease=3))
    eventually(lambda: view_of(client, key).queue)
    second = Background(lambda: make_client().semaphore(key, 1).acquire(wait=6, lease=60))
    eventually(lambda: proxy.count("enqueue") > 6)
    assert view_of(client, key).queue[0].number == 1
    assert isinstance(second.wait(), Held)
    numbers = [r.body["sequence"] for r in proxy.seen if r.action in ("acquire", "enqueue")]
    assert numbers == list(range(1, len(numbers) + 1))
    holder.release()
    assert isinstance(first.wait(), PermitGuard)


def test_ticket_that_was_broken_begins_again(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    holder = client.semaphore(key, 1).acquire().granted()
    waiting = Background(lambda: observed.semaphore(key, 1).acquire(wait=30))
    eventually(lambda: view_of(client, key).queue)
    ticket = view_of(client, key).queue[0]
    assert client.break_entry(key, ticket.ticket_id, ticket.version) == "released"
    eventually(lambda: {t.ticket_id for t in view_of(client, key).queue} - {ticket.ticket_id})
    holder.release()
    assert isinstance(waiting.wait(), PermitGuard)
    assert len({r.body["leaseId"] for r in proxy.seen if r.action == "enqueue"}) == 2


def test_giving_up_leaves_no_ticket(client: Client, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="one").semaphore(key, 1).acquire().granted()
    semaphore = client.semaphore(key, 1)
    held = semaphore.acquire(wait=0.5)
    assert isinstance(held, Held)
    eventually(lambda: view_of(client, key).queue == ())
    assert isinstance(semaphore.acquire(wait=0), Held)
    assert view_of(client, key).queue == (), "without a wait there is no ticket"


def test_default_wait_is_the_longest_lease_ahead(client: Client, make_client: MakeClient, key: str) -> None:
    for lease in (3, 4):
        make_client(heartbeat_interval=0.2).semaphore(key, 2).acquire(lease=lease).granted()
    start = time.monotonic()
    assert isinstance(make_client(wait_margin=0.2).semaphore(key, 2).acquire(2), Held)
    assert 4.2 <= time.monotonic() - start < 30


def test_cancelled_waiter_leaves_no_ticket(client: Client, make_client: MakeClient, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("an event loop has cancellation: test_aio.py")
    make_client().semaphore(key, 1).acquire().granted()
    cancel = threading.Event()
    waiting = Background(lambda: client.semaphore(key, 1).acquire(wait=None, cancel=cancel))
    eventually(lambda: view_of(client, key).queue)
    cancel.set()
    assert isinstance(waiting.wait(), WaitCancelled)
    eventually(lambda: view_of(client, key).queue == ())


def test_close_gives_permits_and_tickets_back(client: Client, make_client: MakeClient, key: str) -> None:
    operator = make_client()
    guard = client.semaphore(key, 2).acquire(2).granted()
    waiting = Background(lambda: client.semaphore(key, 2).acquire(wait=None))
    eventually(lambda: view_of(operator, key).queue)
    client.close()
    assert "closed" in str(waiting.wait())
    assert not guard.valid
    eventually(lambda: not client._core.unsettled and not view_of(operator, key).entries)


def test_readers_share_and_a_writer_is_alone(client: Client, make_client: MakeClient, key: str) -> None:
    lock, other = client.read_write_lock(key), make_client().read_write_lock(key)
    readers = [lock.read().acquire().granted(), other.read().acquire().granted()]
    assert isinstance(other.write().try_acquire(), Held)
    writing = Background(lambda: make_client(poll_interval=None).read_write_lock(key).write().acquire(wait=30))
    eventually(lambda: view_of(client, key).queue)
    assert isinstance(other.read().try_acquire(), Held), "a writer that waits is not starved"
    for reader in readers:
        reader.release()
    writer = writing.wait()
    assert isinstance(writer, PermitGuard)
    assert writer.permits == 100
    assert isinstance(lock.read().try_acquire(), Held)
    writer.downgrade()
    assert writer.permits == 1
    with lock.read().hold():
        assert view_of(client, key).available == 98
    assert writer.valid


def test_lost_holder_learns_it_from_its_heartbeat(client: Client, make_client: MakeClient, key: str) -> None:
    operator = make_client()
    guard = client.semaphore(key, 1).acquire(heartbeat_interval=0.2).granted()
    told: list[object] = []
    guard.on_lost(told.append)
    with pytest.raises(VersionMismatch):
        operator.break_entry(key, guard.holder_id, "another")
    while guard.valid:
        try:
            operator.break_entry(key, guard.holder_id, view_of(operator, key).holders[0].version)
        except VersionMismatch:
            continue
        break
    assert guard.wait_lost(60) == "released"
    eventually(lambda: told == [guard])
    with pytest.raises(LockLost):
        guard.release()


def test_same_ask_is_not_repeated_at_once(
    proxy: Proxy, observed: Client, client: Client, service: str, key: str
) -> None:
    holder = client.semaphore(key, 1).acquire().granted().detach()
    lock = f"""{{"key": "{key}", "state": "released", "ownerName": "leasehold:semaphore",
        "leaseDurationMs": 1, "recordVersionNumber": "v", "kind": "semaphore", "capacity": 1,
        "available": 1, "changed": "c", "holders": [], "queue": []}}"""
    refused = f"""{{"type": "held", "status": 423, "lock": {lock}}}"""

    def fault(seen: Seen) -> Answer | None:
        if seen.action == "acquire":
            return Answer(423, refused.encode())
        if seen.method == "GET":
            # The waiter has its ticket, and the permit is free.
            body = json.dumps({"key": key, "leaseId": holder.lease_id})
            headers = {"Content-Type": "application/json"}
            urllib3.request("POST", f"{service}/v1/semaphore/release", body=body, headers=headers)
        return None

    proxy.fault = fault
    assert isinstance(observed.semaphore(key, 1).acquire(wait=1.6), Held)
    assert 2 <= proxy.count("acquire") <= 5


def test_permits_are_handed_on(client: Client, make_client: MakeClient, key: str) -> None:
    here, there = client.semaphore(key, 3), make_client().semaphore(key, 3)
    guard = here.acquire(2).granted()
    guard.renew()
    detached = guard.detach()
    with there.resume(detached) as resumed:
        assert (resumed.permits, resumed.holder_id) == (2, guard.holder_id)
        assert (resumed.outcome, resumed.capacity, resumed.lease) == ("resumed", 3, 60)
        assert resumed.fencing_token == guard.fencing_token
        resumed.keep(1)
    assert view_of(client, key).available == 3
    with pytest.raises(LockLost):
        there.resume(Handover(key, detached.lease_id))


def test_refusals_have_kinds_of_their_own(client: Client, key: str) -> None:
    with pytest.raises(ExceedsCapacity):
        client.semaphore(key, 3).try_acquire(4)
    with pytest.raises(LockNotFound):
        client.get_semaphore(key)
    guard = client.semaphore(key, 3).acquire().granted()
    with pytest.raises(ExceedsCapacity):
        client.semaphore(key, 9).acquire(4)
    with pytest.raises(WrongKind):
        client.try_acquire(key)
    with pytest.raises(WrongKind):
        client.get(key)
    client.acquire(f"{key}-lock").granted()
    with pytest.raises(WrongKind):
        client.semaphore(f"{key}-lock", 1).acquire()
    with pytest.raises(InvalidRequest):
        client.semaphore(key, 3).acquire(0)
    with pytest.raises(TypeError, match=r"acquire\(\) got an unexpected keyword argument 'lese'"):
        client.semaphore(key, 3).acquire(lese=1)  # type: ignore[call-arg]
    assert guard.valid


def test_operator_changes_the_capacity(client: Client, key: str) -> None:
    guard = client.semaphore(key, 3).acquire(2).granted()
    assert client.set_capacity(key, 1, 3) == 0
    with pytest.raises(VersionMismatch):
        client.set_capacity(key, 9, 3)
    view = client.get_semaphore(key)
    assert (view.capacity, view.available) == (1, 0)
    waiting = Background(lambda: client.semaphore(key, 1).acquire(wait=30))
    eventually(lambda: client.get_semaphore(key).queue)
    assert client.set_capacity(key, 4, 1) == 2
    assert isinstance(waiting.wait(), PermitGuard)
    guard.release()


def test_waiter_for_more_than_a_cut_capacity_is_told(client: Client, make_client: MakeClient, key: str) -> None:
    make_client().semaphore(key, 3).acquire().granted()
    waiting = Background(lambda: client.semaphore(key, 3).acquire(3, wait=30))
    eventually(lambda: view_of(client, key).queue)
    client.set_capacity(key, 2, 3)
    assert isinstance(waiting.wait(), ExceedsCapacity)
    eventually(lambda: client.get_semaphore(key).queue == ())


def test_listings_show_both_kinds(client: Client, key: str) -> None:
    client.semaphore(key, 2).acquire().granted()
    client.acquire(f"{key}-lock").granted()
    (semaphore,) = client.list(key=key)
    (lock,) = client.list(key=f"{key}-lock")
    assert isinstance(semaphore, SemaphoreView)
    assert (semaphore.state, semaphore.capacity, semaphore.holders[0].permits) == ("held", 2, 1)
    assert not isinstance(lock, SemaphoreView)


def test_semaphores_on_a_table_with_a_sort_key(sorted_service: str, make_client: MakeClient, key: str) -> None:
    client = make_client(sorted_service)
    guard = client.semaphore(key, 1, sort_key="a").acquire().granted()
    with client.semaphore(key, 1, sort_key="b").hold() as other:
        assert other.sort_key == "b"
        assert isinstance(make_client(sorted_service).semaphore(key, 1, sort_key="a").acquire(wait=0.3), Held)
    assert client.get_semaphore(key, sort_key="a").holders[0].holder_id == guard.holder_id
    guard.renew(lease=30)
    assert guard.lease == 30
    guard.release()


@pytest.mark.parametrize("fault", [DropAnswer(), Answer(503)])
def test_lost_answer_of_an_acquire_takes_no_permit_twice(
    proxy: Proxy, observed: Client, client: Client, key: str, fault: DropAnswer | Answer
) -> None:
    proxy.fault = only("acquire", fault, times=2)
    guard = observed.semaphore(key, 3).acquire(2).granted()
    assert view_of(client, key).available == 1
    assert len({r.content for r in proxy.seen if r.action == "acquire"}) == 1, "byte for byte"
    assert guard.outcome == "created"
    guard.release()
    assert view_of(client, key).available == 3


def test_lost_answer_of_an_enqueue_makes_one_ticket(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    holder = client.semaphore(key, 1).acquire().granted()
    proxy.fault = only("enqueue", DropAnswer(), times=2)
    waiting = Background(lambda: observed.semaphore(key, 1).acquire(wait=30))
    eventually(lambda: proxy.count("watch") > 0)
    assert len(view_of(client, key).queue) == 1
    holder.release()
    assert isinstance(waiting.wait(), PermitGuard)
    assert len({r.content for r in proxy.seen if r.action == "enqueue"}) == 1


def test_late_copies_make_no_ghosts(proxy: Proxy, observed: Client, client: Client, service: str, key: str) -> None:
    semaphore = observed.semaphore(key, 1)
    # A client that knows no epoch yet names none.
    semaphore.try_acquire().granted().release()
    holder = client.semaphore(key, 1).try_acquire().granted()
    waiting = Background(lambda: semaphore.acquire(wait=30))
    eventually(lambda: proxy.count("watch") > 0)
    holder.release()
    guard = waiting.wait()
    assert isinstance(guard, PermitGuard)
    guard.release()
    for _ in range(20):
        client.semaphore(key, 1).try_acquire().granted().release()
    requests = [r for r in proxy.seen if r.action in ("acquire", "enqueue")]
    copies = [r for r in requests if r.body["leaseId"] != requests[0].body["leaseId"]]
    assert len(copies) >= 2
    for copy in copies:
        headers = {"content-type": "application/json"}
        late = urllib3.request("POST", service + copy.path, body=copy.content, headers=headers)
        assert late.status != 200, copy
    view = view_of(client, key)
    assert (view.holders, view.queue) == ((), ())
    # The client's own epoch is as old as the copies': its one request is repeated.
    semaphore.try_acquire().granted().release()


def test_grant_removes_the_dead_ahead(client: Client, service: str, key: str) -> None:
    holder = client.semaphore(key, 1).try_acquire().granted()
    dead = {"key": key, "capacity": 1, "ownerName": "dead", "leaseId": "dead", "leaseDurationMs": 1000}
    assert urllib3.request("POST", f"{service}/v1/semaphore/enqueue", json=dead).status == 200
    waiting = Background(lambda: client.semaphore(key, 1).acquire(wait=30))
    eventually(lambda: len(view_of(client, key).queue) == 2)
    holder.release()
    guard = waiting.wait()
    assert isinstance(guard, PermitGuard)
    assert view_of(client, key).queue == ()
    guard.release()


@pytest.mark.parametrize("times", [1, 2])
def test_lost_answer_of_a_release_is_a_release(
    proxy: Proxy, observed: Client, client: Client, key: str, times: int
) -> None:
    guard = observed.semaphore(key, 2).acquire(2).granted()
    proxy.fault = only("release", DropAnswer(), times)
    guard.release()
    assert view_of(client, key).available == 2


def test_lost_answer_of_a_downgrade_is_repeated(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    guard = observed.semaphore(key, 5).acquire(5).granted()
    proxy.fault = only("heartbeat", DropAnswer(), times=2)
    guard.downgrade()
    assert (guard.permits, view_of(client, key).available) == (1, 4)


@pytest.mark.parametrize("action", ["acquire", "enqueue"])
@pytest.mark.parametrize("fault", [DropAnswer(), Late(0.3)])
def test_wait_given_up_leaks_no_permit(
    proxy: Proxy, observed: Client, client: Client, key: str, action: str, fault: DropAnswer | Late
) -> None:
    holder = client.semaphore(key, 2).acquire(1 if action == "acquire" else 2).granted()
    proxy.fault = only(action, fault)
    try:
        assert isinstance(observed.semaphore(key, 2).acquire(wait=0.5), Held)
    except LeaseholdError:
        assert action == "acquire", "no answer ever came"
    eventually(lambda: not observed._core.unsettled)
    proxy.let_pass()
    view = view_of(client, key)
    assert ([h.holder_id for h in view.holders], view.queue) == ([holder.holder_id], ())


def test_grant_that_arrives_after_its_lease_is_asked_for_again(
    proxy: Proxy, observed: Client, client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.fault = only("acquire", Delay(2.1), times=1)
    # A lease of two seconds would give its requests half a second.
    monkeypatch.setattr("leasehold._timing._SHORTEST_TIMEOUT_MS", 20_000)
    guard = observed.semaphore(key, 2).acquire(lease=2, wait=60, manual_heartbeats=True).granted()
    assert guard.outcome == "created", "as the late grant told"
    assert proxy.count("acquire") >= 2
    assert len(view_of(client, key).holders) == 1


def test_service_without_watches_is_polled(proxy: Proxy, observed: Client, client: Client, key: str) -> None:
    proxy.fault = only("watch", Answer(404))
    holder = client.semaphore(key, 1).acquire().granted()
    waiting = Background(lambda: observed.semaphore(key, 1).acquire(wait=30))
    eventually(lambda: proxy.count("semaphore") > 1)
    holder.release()
    assert isinstance(waiting.wait(), PermitGuard)
    assert (proxy.count("watch"), proxy.count("acquire")) == (1, 2)


def test_full_queue_is_entered_past_its_dead(client: Client, service: str, key: str) -> None:
    holder = client.semaphore(key, 1).acquire().granted()
    with Client(service) as plain:
        for number in range(100):
            dead_ticket(plain, key, number, 1000)
    waiting = Background(lambda: client.semaphore(key, 1).acquire(wait=60))
    eventually(lambda: len(view_of(client, key).queue) == 91)
    assert [ticket.number for ticket in view_of(client, key).queue] == [*range(11, 101), 101]
    holder.release()
    assert isinstance(waiting.wait(), PermitGuard)


def test_downgrade_of_other_permits_is_mismatched(proxy: Proxy, observed: Client, key: str) -> None:
    guard = observed.semaphore(key, 5).acquire(3, manual_heartbeats=True).granted()
    proxy.fault = only("heartbeat", Answer(409, b'{"type": "permits-mismatch", "status": 409}'))
    with pytest.raises(PermitsMismatch):
        guard.keep(2)
    assert guard.valid
    assert guard.permits == 3


def test_no_more_permits_are_out_than_there_are(make_client: MakeClient, client: Client, key: str) -> None:
    out: list[int] = []
    most: list[int] = []
    tokens: list[int] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        own = make_client(poll_interval=None)
        for turn in range(3):
            permits = 1 + (number + turn) % 3
            with own.semaphore(key, 4).hold(permits, wait=60) as guard:
                with lock:
                    out.append(permits)
                    most.append(sum(out))
                    tokens.append(guard.fencing_token)
                time.sleep(0.005)
                with lock:
                    out.remove(permits)

    workers = [Background(lambda number=number: work(number)) for number in range(8)]  # type: ignore[misc]
    for worker in workers:
        worker.wait()
    assert len(most) == 24
    assert max(most) <= 4
    assert len(set(tokens)) == 24
    assert view_of(client, key).available == 4
