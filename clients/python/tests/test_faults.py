"""Outages, lost answers and slow answers: a proxy before the real service."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

import pytest
from conftest import MakeClient, eventually
from proxy import Answer, Crowd, Delay, DropAnswer, Fault, Hang, Late, Proxy, Refuse, Seen, only

from leasehold import (
    CloseError,
    Forbidden,
    Guard,
    Held,
    InvalidRequest,
    LockLost,
    Throttled,
    Unavailable,
    WaitCancelled,
)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


def test_lost_answer_of_an_acquire_costs_a_retry(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    proxy.fault = only("acquire", DropAnswer(), times=2)
    guard = make_client(proxy.url).acquire(key).granted()
    assert guard.outcome == "created", "as the first request was answered, which was carried out"
    assert len({request.content for request in proxy.seen[:3]}) == 1, "byte for byte"
    assert {request.body["leaseId"] for request in proxy.seen[:3]} == {guard.lease_id}


def test_lost_answer_of_a_heartbeat_is_no_loss(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    guard = make_client(proxy.url, heartbeat_interval=0.5).acquire(key).granted()
    proxy.fault = only("heartbeat", DropAnswer(), times=3)
    eventually(lambda: proxy.count("heartbeat") >= 5)
    assert guard.valid
    assert all(r.body["leaseDurationMs"] == 20_000 for r in proxy.seen if r.action == "heartbeat")


def test_heartbeat_by_lease_id_is_repeated_under_its_number(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    guard = client.acquire(key, lease=60, manual_heartbeats=True).granted()
    guard.renew()
    proxy.fault = only("heartbeat", DropAnswer(), times=1)
    seen = len(proxy.seen)
    renewed = client.heartbeat(key, guard.lease_id, data=b"stateless")
    # The first number is below the guard's; the one above it has no answer, and is repeated.
    sent = [(r.body["sequence"], r.body["requestId"]) for r in proxy.seen[seen:] if r.action == "heartbeat"]
    assert [number for number, _ in sent] == [1, 1, 3], sent
    assert client.get(key).record_version_number == renewed.record_version_number
    assert client.get(key).data == b"stateless"


@pytest.mark.parametrize("times", [1, 2])
def test_lost_answer_of_a_release_is_a_release(proxy: Proxy, make_client: MakeClient, key: str, times: int) -> None:
    client = make_client(proxy.url)
    with client.lock(key):
        proxy.fault = only("release", DropAnswer(), times)
    assert client.get(key).state == "released"
    with client.lock(key) as guard:
        proxy.fault = only("release", DropAnswer())
        threading.Timer(0.5, lambda: setattr(proxy, "fault", lambda request: None)).start()
        guard.release(delete=True)


def test_request_given_up_is_taken_back(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    proxy.fault = only("acquire", DropAnswer())
    client = make_client(proxy.url)
    with pytest.raises(Unavailable):
        client.try_acquire(key, lease=60)
    eventually(lambda: client.get(key).state == "released")


def test_wait_given_up_is_taken_back(proxy: Proxy, make_client: MakeClient, service: str, key: str) -> None:
    proxy.fault = only("acquire", Late(0.3))
    with pytest.raises(Unavailable):
        make_client(proxy.url).acquire(key, wait=0.5, lease=60)
    direct = make_client(service)
    eventually(lambda: [lock.state for lock in direct.list(key=key)] == ["released"])


def test_wait_without_any_answer_is_unavailable_in_time(
    proxy: Proxy, make_client: MakeClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold._timing._LAST_LOOK", 1.0)
    proxy.fault = lambda request: Hang()
    start = time.monotonic()
    with pytest.raises(Unavailable):
        make_client(proxy.url).acquire(key, wait=0.6, lease=60)
    assert time.monotonic() - start < 4.5, "not the five seconds of a request"


def test_wait_that_saw_the_holder_tells_of_it(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    make_client(owner_name="holder").acquire(key).granted()
    proxy.fault = lambda request: None if proxy.count("acquire") == 1 else Refuse()
    held = make_client(proxy.url).acquire(key, wait=1.5)
    assert isinstance(held, Held)
    assert held.lock.owner_name == "holder"


@pytest.mark.parametrize("interrupted", [Delay(30), Late(0.8)])
def test_interrupted_acquire_is_taken_back(
    proxy: Proxy, make_client: MakeClient, service: str, key: str, interrupted: Fault, kind: str
) -> None:
    """The request may reach the service only after the interrupt, and after a first release."""
    if kind != "threads":
        pytest.skip("an event loop has cancellation")

    def fault(request: Seen) -> Fault | None:
        if request.action != "acquire" or proxy.count("acquire") > 1:
            return None
        os.kill(os.getpid(), signal.SIGINT)
        return interrupted

    proxy.fault = fault
    client = make_client(proxy.url)
    with pytest.raises(KeyboardInterrupt):
        client.acquire(key, lease=60)
    direct = make_client(service)
    eventually(lambda: any(lock.state == "released" for lock in direct.list() if lock.key == key))
    assert not any(isinstance(guard, Guard) and guard.valid for guard in client._core.guards)


def test_lock_granted_to_a_cancelled_wait_is_given_back(
    proxy: Proxy, make_client: MakeClient, service: str, key: str, kind: str
) -> None:
    if kind != "threads":
        pytest.skip("an event loop has cancellation")
    cancel = threading.Event()

    def fault(request: Seen) -> None:
        if request.action == "acquire":
            cancel.set()

    proxy.fault = fault
    client = make_client(proxy.url)
    with pytest.raises(WaitCancelled):
        client.acquire(key, lease=60, cancel=cancel)
    direct = make_client(service)
    eventually(lambda: direct.get(key).state == "released")


def test_lease_id_that_has_ended_is_not_used_again(
    proxy: Proxy, make_client: MakeClient, service: str, key: str
) -> None:
    operator = make_client(service)

    def fault(request: Seen) -> Fault | None:
        if request.action == "acquire" and proxy.count("acquire") == 1:
            return DropAnswer()
        if request.action == "acquire" and proxy.count("acquire") == 2:
            operator.break_lock(key, operator.get(key).record_version_number)
        return None

    proxy.fault = fault
    guard = make_client(proxy.url, lease=20).acquire(key).granted()
    first, second, third = (request.body["leaseId"] for request in proxy.seen[:3])
    assert first == second != third == guard.lease_id
    assert guard.outcome == "reacquired"


def test_grant_that_arrives_after_its_lease_is_asked_for_again(
    proxy: Proxy, make_client: MakeClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.fault = only("acquire", Delay(2.1), times=1)
    # A lease of two seconds would give its requests half a second.
    monkeypatch.setattr("leasehold._timing._SHORTEST_TIMEOUT_MS", 20_000)
    guard = make_client(proxy.url).acquire(key, lease=2, wait=60, manual_heartbeats=True).granted()
    assert proxy.count("acquire") >= 2
    assert guard.outcome == "created", "as the late grant told"


@pytest.mark.parametrize(
    "answer", [Answer(429, headers={"Retry-After": "1"}), Answer(503, headers={"Retry-After": "1"})]
)
def test_retry_after_is_waited_for(proxy: Proxy, make_client: MakeClient, key: str, answer: Fault) -> None:
    proxy.fault = only("acquire", answer, times=1)
    start = time.monotonic()
    assert make_client(proxy.url).acquire(key).granted().valid
    assert time.monotonic() - start >= 1


def test_retry_after_beyond_the_wait_ends_it(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    proxy.fault = lambda request: Answer(429, headers={"Retry-After": "30"})
    start = time.monotonic()
    with pytest.raises(Throttled):
        make_client(proxy.url).acquire(key, wait=25)
    assert time.monotonic() - start < 20
    assert proxy.count("acquire") == 1


@pytest.mark.parametrize("trouble", [Refuse(), Hang(), Answer(503), Answer(429), Answer(403), Answer(200), Answer(400)])
def test_outage_shorter_than_the_lease_is_no_loss(
    proxy: Proxy, make_client: MakeClient, key: str, trouble: Fault
) -> None:
    guard = make_client(proxy.url).acquire(key, heartbeat_interval=0.2).granted()
    version = guard.record_version_number
    proxy.fault = lambda request: trouble
    before = proxy.count("heartbeat")
    eventually(lambda: proxy.count("heartbeat") > before + (0 if isinstance(trouble, Hang) else 2))
    proxy.fault = lambda request: None
    eventually(lambda: guard.record_version_number != version)
    assert guard.valid
    assert guard.lost is None


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [(Refuse(), Unavailable), (Answer(403), Forbidden), (Answer(400), InvalidRequest), (Hang(), Unavailable)],
)
def test_outage_longer_than_the_lease_is_a_loss_by_expiry(
    proxy: Proxy, make_client: MakeClient, key: str, trouble: Fault, cause: type[Exception]
) -> None:
    client = make_client(proxy.url)
    guard = client.acquire(key, lease=3, heartbeat_interval=0.2).granted()
    told = threading.Event()
    guard.on_lost(lambda guard: told.set())
    proxy.fault = lambda request: trouble
    assert guard.wait_lost(60) == "expired"
    assert told.wait(60)
    with pytest.raises(LockLost) as error:
        guard.ensure_held()
    assert isinstance(error.value.__cause__, cause)
    proxy.fault = lambda request: None
    assert not guard.valid, "what was lost stays lost"
    assert client.get(key).state == "held", "and is not released"


def test_patience_does_not_cost_the_lock(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    """A service that asks for a longer pause than is left of the lease is asked all the same."""
    guard = make_client(proxy.url).acquire(key, lease=4, heartbeat_interval=0.3).granted()
    proxy.fault = only("heartbeat", Answer(503, headers={"Retry-After": "60"}), times=1)
    assert guard.wait_lost(4.5) is None
    assert guard.valid


def test_answer_after_the_lease_does_not_revive_it(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    guard = make_client(proxy.url).acquire(key, lease=0.3, manual_heartbeats=True).granted()
    time.sleep(0.22)
    proxy.fault = only("heartbeat", Delay(0.13))  # within the time-out of the request, but not within the lease
    with pytest.raises(LockLost) as error:
        guard.renew()
    assert error.value.reason == "expired"


def test_heartbeat_and_resume_count_from_before_the_sending(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    guard = client.acquire(key, lease=20, manual_heartbeats=True).granted()
    proxy.fault = only("heartbeat", Delay(0.3))
    guard.renew()
    assert guard.remaining() <= 19.7
    handed = guard.detach()
    resumed = client.resume(handed, manual_heartbeats=True)
    assert resumed.remaining() <= 19.7


def test_heartbeat_by_hand_is_tried_again(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    guard = make_client(proxy.url).acquire(key, manual_heartbeats=True).granted()
    version = guard.record_version_number
    proxy.fault = only("heartbeat", Refuse(), times=3)
    guard.renew()
    assert guard.record_version_number != version
    proxy.fault = only("heartbeat", Answer(400, b'{"type":"invalid-request","field":"data"}'))
    with pytest.raises(InvalidRequest):
        guard.renew(data="x")
    assert guard.valid


def test_heartbeat_goes_on_when_the_failed_one_ends_late(
    proxy: Proxy, make_client: MakeClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next heartbeat is due before the thread of the failed one has come to its end."""
    monkeypatch.setattr("leasehold._guard._log.warning", lambda *_, **__: time.sleep(0.3))
    guard = make_client(proxy.url).acquire(key, heartbeat_interval=0.1).granted()
    proxy.fault = only("heartbeat", Refuse())
    before = proxy.count("heartbeat")
    eventually(lambda: proxy.count("heartbeat") > before + 5, within=15)
    assert guard.valid


def test_release_during_a_heartbeat_is_no_loss(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    guard = client.acquire(key, heartbeat_interval=0.05).granted()
    told: list[object] = []
    guard.on_lost(told.append)
    proxy.fault = only("heartbeat", Delay(3))
    before = proxy.count("heartbeat")
    eventually(lambda: proxy.count("heartbeat") > before)
    guard.release()
    assert guard.lost is None
    client.close()
    assert (guard.lost, told) == (None, [])


def test_holding_on_survives_an_outage_but_no_theft(
    proxy: Proxy, make_client: MakeClient, service: str, key: str
) -> None:
    guard = make_client(proxy.url).acquire(key, lease=4, heartbeat_interval=0.2, hold_on_unavailable=True).granted()
    proxy.fault = lambda request: Refuse()
    assert guard.wait_lost(4.5) is None
    assert guard.valid
    assert guard.remaining() == 0.0, "nothing is certain any more"
    with pytest.raises(Unavailable):
        guard.renew()
    proxy.fault = lambda request: None
    eventually(lambda: guard.remaining() > 0)
    proxy.fault = lambda request: Refuse()
    make_client(service).acquire(key, wait=20).granted()
    assert guard.valid, "the other one is not known of"
    proxy.fault = lambda request: None
    assert guard.wait_lost(60) == "taken-over"


def test_heartbeats_that_hang_do_not_make_others_late(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url, lease=10)
    stuck = [client.acquire(f"{key}-stuck-{number}").granted() for number in range(20)]
    well = [client.acquire(f"{key}-well-{number}").granted() for number in range(3)]
    lost_at: dict[str, float] = {}
    for guard in stuck:
        guard.on_lost(lambda guard: lost_at.setdefault(guard.key, time.monotonic()))
    proxy.fault = lambda request: Hang() if "stuck" in str(request.body.get("key")) else None
    start = time.monotonic()
    worst = 10.0
    while len(lost_at) < 20:
        worst = min([worst, *(guard.remaining() for guard in well)])
        assert time.monotonic() - start < 60
        time.sleep(0.02)
    assert {guard.lost for guard in stuck} == {"expired"}
    assert worst > 1.5, "renewed in time, while twenty others hung"
    assert all(guard.valid for guard in well)


def test_at_risk_is_told_before_the_loss(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    guard = make_client(proxy.url).acquire(key, lease=6, heartbeat_interval=0.3).granted()
    told: list[str] = []
    guard.on_at_risk(3.0, lambda guard: told.append("at risk"))
    guard.on_lost(lambda guard: told.append("lost"))
    assert guard.wait_lost(0.7) is None
    assert not told, "renewed in time"
    proxy.fault = lambda request: Refuse()
    eventually(lambda: told == ["at risk", "lost"])


def test_exception_of_a_block_survives_a_release_that_fails(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError), make_client(proxy.url).lock(key):
        proxy.fault = only("release", Answer(403))
        _ = 1 / 0
    assert "could not be released" in caplog.text


def test_result_of_a_block_survives_an_undelivered_release(
    proxy: Proxy, make_client: MakeClient, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold._core.OPERATION_BOUND_MS", 500)
    client = make_client(proxy.url)
    with client.lock(key) as guard:
        proxy.fault = only("release", Refuse())
    assert not guard.valid
    with pytest.raises(Unavailable):
        guard.release()
    monkeypatch.undo()
    proxy.fault = lambda request: None
    guard.release()
    assert client.get(key).state == "released"


def test_release_tried_again_leaves_what_the_first_left(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    with client.lock(key, occurrence="2026-11-28T09") as guard:
        proxy.fault = only("release", Answer(403), 1)
        with pytest.raises(Forbidden):
            guard.release(completed="2026-11-28T09", data="the result")
    lock = client.get(key)
    assert (lock.state, lock.last_occurrence, lock.data) == ("released", "2026-11-28T09", b"the result")


def test_completion_after_a_plain_release_is_a_loss(make_client: MakeClient, key: str) -> None:
    client = make_client()
    with client.lock(key, occurrence="2026-11-28T09") as guard:
        guard.release()
        with pytest.raises(LockLost):
            guard.release(completed="2026-11-28T09")
    assert client.get(key).last_occurrence is None


def test_release_that_is_refused_gives_the_lock_back(make_client: MakeClient, key: str) -> None:
    client = make_client()
    with pytest.raises(InvalidRequest), client.lock(key, lease=60) as guard:
        guard.release(completed="2026-11-28T09")
    assert client.get(key).state == "released"


def test_close_goes_on_after_a_failure(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    guards = [client.acquire(f"{key}-{number}").granted() for number in range(4)]

    def fault(request: Seen) -> Fault | None:
        return Answer(403) if request.action == "release" and request.body["key"] == f"{key}-1" else None

    proxy.fault = fault
    with pytest.raises(CloseError) as error:
        client.close()
    assert [type(failure) for failure in error.value.errors] == [Forbidden]
    assert not any(guard.valid for guard in guards)
    direct = make_client()
    assert [direct.get(f"{key}-{number}").state for number in range(4)] == ["released", "held"] + ["released"] * 2
    with pytest.raises(KeyError, match="the body's"), client:
        raise KeyError("the body's")
    proxy.fault = lambda request: None
    client.close()
    assert direct.get(f"{key}-1").state == "released"


def test_close_is_bounded_however_many_locks_hang(
    proxy: Proxy, make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(proxy.url, lease=60)
    for number in range(70):
        client.acquire(f"{key}-{number}").granted()
    proxy.fault = only("release", Hang())
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        client.close()
    assert time.monotonic() - start < 30, "not two seconds for each"
    assert sum("goes on in the background" in message for message in caplog.messages) == 70
    proxy.let_pass()
    looker = make_client()
    eventually(lambda: all(looker.get(f"{key}-{number}").state == "released" for number in range(70)))


def test_reading_is_tried_again(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    client = make_client(proxy.url)
    client.acquire(key, manual_heartbeats=True).granted()
    proxy.fault = only("lock", Refuse(), times=3)
    assert client.get(key).state == "held"
    proxy.fault = only("locks", Answer(503), times=2)
    assert list(client.list(key=key))


def test_token_that_cannot_be_fetched_is_an_outage(
    make_client: MakeClient, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = threading.Event()

    def token() -> str:
        if broken.is_set():
            raise OSError("no token today")
        return "token"

    client = make_client(token=token)
    guard = client.acquire(key, lease=3, heartbeat_interval=0.2).granted()
    broken.set()
    with caplog.at_level(logging.WARNING):
        assert guard.wait_lost(60) == "expired"
    with pytest.raises(LockLost) as error:
        guard.ensure_held()
    assert isinstance(error.value.__cause__, OSError)
    with pytest.raises(OSError, match="no token"):
        client.try_acquire(key)
    broken.clear()


def test_manual_lock_is_not_kept_by_the_background(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    guard = make_client(proxy.url).acquire(key, heartbeat_interval=1).granted()
    guard.release()
    sent = proxy.count("heartbeat")
    time.sleep(1.5)
    assert proxy.count("heartbeat") == sent


def test_two_heartbeats_of_one_guard_are_never_under_way_at_once(
    proxy: Proxy, make_client: MakeClient, key: str
) -> None:
    guard = make_client(proxy.url).acquire(key, heartbeat_interval=0.05).granted()
    crowd = proxy.fault = Crowd("heartbeat", 0.03)
    threads = [threading.Thread(target=guard.renew) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    eventually(lambda: len(crowd.sizes) > 10)
    assert max(crowd.sizes) == 1
