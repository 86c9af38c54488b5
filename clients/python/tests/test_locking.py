"""Locks on the real service, without trouble."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from typing import Any

import pytest
from conftest import MakeClient, broken, eventually, keeper_threads

from leasehold import (
    Client,
    Guard,
    Handover,
    Held,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    VersionMismatch,
    WaitCancelled,
)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Every client keeps the same rules."""
    return str(request.param)


def test_grant_held_release(make_client: MakeClient, key: str) -> None:
    one, two = make_client(owner_name="one"), make_client(owner_name="two")
    guard = one.try_acquire(key)
    assert isinstance(guard, Guard)
    assert (guard.key, guard.owner_name, guard.outcome) == (key, "one", "created")
    assert guard.valid
    assert 0 < guard.remaining() <= guard.lease == 20.0
    held = two.try_acquire(key)
    assert isinstance(held, Held)
    assert guard
    assert not held
    assert (held.lock.owner_name, held.lock.fencing_token) == ("one", guard.fencing_token)
    assert held.observation.record_version_number == held.lock.record_version_number
    assert 0 < held.stale_in <= 20.02
    with pytest.raises(LockHeld) as error:
        held.granted()
    assert error.value.lock.owner_name == "one"
    guard.release()
    guard.release()
    assert not guard.valid
    assert guard.lost is None
    assert guard.remaining() == 0.0
    with pytest.raises(LockLost):
        guard.ensure_held()
    second = two.try_acquire(key).granted()
    assert (second.outcome, second.previous_owner_name) == ("reacquired", "one")
    assert second.fencing_token > guard.fencing_token


def test_heartbeats_keep_the_lock_for_longer_than_its_lease(make_client: MakeClient, key: str) -> None:
    guard = make_client().acquire(key, lease=3, heartbeat_interval=0.2).granted()
    version, token = guard.record_version_number, guard.fencing_token
    time.sleep(3.2)
    assert guard.valid
    assert guard.record_version_number != version
    assert guard.fencing_token == token
    assert isinstance(make_client().try_acquire(key), Held)


def test_waiter_gets_the_lock_when_it_is_released(make_client: MakeClient, key: str) -> None:
    first = make_client(owner_name="first").acquire(key).granted()
    seen: list[int] = []

    def wait() -> None:
        with make_client(owner_name="second").lock(key, wait=20) as guard:
            seen.append(guard.fencing_token)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    assert not seen
    first.release()
    thread.join(60)
    assert seen
    assert seen[0] > first.fencing_token


def test_giving_up_is_a_value(make_client: MakeClient, key: str) -> None:
    make_client(owner_name="one").acquire(key).granted()
    start = time.monotonic()
    held = make_client().acquire(key, wait=0.5)
    assert time.monotonic() - start >= 0.5
    assert isinstance(held, Held)
    assert held.lock.owner_name == "one"
    with pytest.raises(LockHeld), make_client().lock(key, wait=0):
        pytest.fail("the body must not run")


def test_default_wait_outlives_one_lease_of_a_living_holder(make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=3, heartbeat_interval=0.2).granted()
    start = time.monotonic()
    assert isinstance(make_client(lease=60, wait_margin=0.4).acquire(key), Held)
    assert 3.4 <= time.monotonic() - start < 30, "its own lease does not count"


def test_dead_holder_is_followed_after_its_lease_only(make_client: MakeClient, key: str) -> None:
    dead = make_client().acquire(key, lease=1.5, manual_heartbeats=True).granted()
    start = time.monotonic()
    guard = make_client(lease=1, poll_interval=60).acquire(key, wait=30).granted()
    took = time.monotonic() - start
    assert guard.outcome == "takenOver"
    assert 1.5 <= took < 30, "and before the next poll"
    assert guard.fencing_token > dead.fencing_token
    assert dead.lost == "expired"


def test_observations_are_kept_across_calls(make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=3, manual_heartbeats=True).granted()
    client = make_client()
    assert isinstance(client.try_acquire(key), Held)
    assert isinstance(client.try_acquire(key), Held), "seen, but not yet for its lease"
    time.sleep(3.05)
    assert client.try_acquire(key).granted().outcome == "takenOver"


def test_get_counts_as_an_observation(make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=0.5, manual_heartbeats=True).granted()
    client = make_client()
    assert client.get(key).state == "held"
    time.sleep(0.55)
    assert client.try_acquire(key).granted().outcome == "takenOver"


def test_observations_are_carried_to_another_client(make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=3, manual_heartbeats=True).granted()
    first = make_client()
    assert isinstance(first.try_acquire(key), Held)
    second = make_client(observation_margin=0.5)
    second.load_observations(first.save_observations())
    assert isinstance(second.try_acquire(key), Held)
    time.sleep(3.6)
    assert second.try_acquire(key).granted().outcome == "takenOver"


def test_staleness_by_the_clock_needs_no_observation(make_client: MakeClient, key: str) -> None:
    make_client().acquire(key, lease=2, manual_heartbeats=True).granted()
    time.sleep(3.3)  # the lease, and the service's skew of a second
    other = make_client()
    assert isinstance(other.try_acquire(key), Held)
    assert other.try_acquire(key, staleness="clock").granted().outcome == "takenOver"


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe", "", "Grüße 🔑", b"plain"])
def test_data_comes_back(client: Client, key: str, data: bytes | str) -> None:
    expected = data if isinstance(data, bytes) else data.encode()
    guard = client.acquire(key, data=data).granted()
    assert guard.data == expected
    assert client.get(key).data == expected
    guard.release()
    assert client.acquire(key).granted().data == expected


def test_data_is_replaced_kept_or_deleted(client: Client, key: str) -> None:
    guard = client.acquire(key).granted()
    assert guard.data is None
    guard.renew(data="by the heartbeat")
    assert client.get(key).data == b"by the heartbeat"
    guard.release(data=b"by the release")
    guard = client.acquire(key, data="new", replace_data=False).granted()
    assert guard.data == b"by the release"
    guard.renew(delete_data=True)
    assert client.get(key).data is None
    client.heartbeat(key, guard.lease_id, data=b"stateless")
    assert client.get(key).data == b"stateless"


def test_attributes_are_stored(client: Client, key: str) -> None:
    client.acquire(key, attributes={"job": "export", "tries": 3}).granted()
    assert client.get(key).attributes == {"job": "export", "tries": 3}


def test_only_if_exists(client: Client, key: str) -> None:
    with pytest.raises(LockNotFound):
        client.acquire(key, only_if_exists=True)
    client.acquire(key).granted().release()
    assert client.acquire(key, only_if_exists=True).granted().valid


def test_release_with_delete_leaves_no_row(client: Client, key: str) -> None:
    client.acquire(key).granted().release(delete=True)
    with pytest.raises(LockNotFound):
        client.get(key)


@pytest.mark.parametrize("suffix", ["ß/?&=+ %2F#", "🔑", "\u202e\x00\n", '"\\'])
def test_any_text_is_a_key(client: Client, key: str, suffix: str) -> None:
    guard = client.acquire(key + suffix).granted()
    assert client.get(key + suffix).key == key + suffix == guard.key
    assert isinstance(client.try_acquire(key + suffix), Held)
    client.release(key + suffix, guard.lease_id)
    assert client.get(key + suffix).state == "released"


def test_sort_keys(sorted_service: str, make_client: MakeClient, key: str) -> None:
    client = make_client(sorted_service, heartbeat_interval=0.2)
    one = client.acquire(key, sort_key="a b").granted()
    two = client.acquire(key, sort_key="ü").granted()
    assert (one.sort_key, two.sort_key) == ("a b", "ü")
    assert sorted(str(lock.sort_key) for lock in client.list(key=key)) == ["a b", "ü"]
    one.renew()
    one.release()
    assert client.get(key, sort_key="a b").state == "released"
    assert client.get(key, sort_key="ü").state == "held"
    resumed = client.resume(Handover(key, two.lease_id, sort_key="ü"))
    client.heartbeat(key, two.lease_id, sort_key="ü")
    broken(client, key, sort_key="ü")
    assert resumed.wait_lost(60) == "released"


def test_lock_taken_here_is_kept_and_released_there(make_client: MakeClient, key: str) -> None:
    here, there = make_client(), make_client()
    guard = here.acquire(key, lease=15, manual_heartbeats=True).granted()
    version = guard.record_version_number
    renewal = there.heartbeat(key, guard.lease_id)
    assert renewal.record_version_number != version
    assert (renewal.lease, renewal.fencing_token) == (15, guard.fencing_token)
    assert there.release(key, guard.lease_id) == "released"
    assert there.release(key, guard.lease_id) == "replayed"
    with pytest.raises(LockLost) as error:
        there.heartbeat(key, guard.lease_id)
    assert error.value.reason == "released"


def test_resume_makes_a_guard(make_client: MakeClient, key: str) -> None:
    here, there = make_client(), make_client()
    lease_id = here.acquire(key, manual_heartbeats=True).granted().lease_id
    with there.resume(Handover(key, lease_id), lease=3, heartbeat_interval=0.2) as guard:
        assert (guard.outcome, guard.lease) == ("resumed", 3)
        time.sleep(3.2)
        guard.ensure_held()
    assert there.get(key).state == "released"
    with pytest.raises(LockLost):
        there.resume(Handover(key, lease_id))


def test_list_goes_over_all_pages(make_client: MakeClient, key: str) -> None:
    owner = f"owner of {key}"
    client = make_client(owner_name=owner)
    names = [f"{key}-{number}" for number in range(7)]
    guards = [client.acquire(name, manual_heartbeats=True).granted() for name in names]
    guards[0].release()
    pages = list(client.pages(owner_name=owner, page_size=3))
    assert len(pages) > 2
    assert sorted(lock.key for page in pages for lock in page.locks) == names
    again = client.pages(owner_name=owner, page_size=3, cursor=pages[0].next_cursor)
    assert list(again) == pages[1:]
    assert len(list(client.list(owner_name=owner, page_size=2))) == 7
    assert [lock.key for lock in client.list(owner_name=owner, state="released")] == names[:1]


def test_operator_breaks_what_he_saw(make_client: MakeClient, key: str) -> None:
    guard = make_client(heartbeat_interval=0.2).acquire(key).granted()
    operator = make_client()
    with pytest.raises(VersionMismatch) as error:
        operator.break_lock(key, "another version")
    assert error.value.lock is not None
    assert error.value.lock.key == key
    broken(operator, key)
    assert guard.wait_lost(60) == "released"


def test_heartbeat_by_hand_changes_the_lease(client: Client, key: str) -> None:
    guard = client.acquire(key, manual_heartbeats=True).granted()
    guard.renew(lease=30)
    assert guard.lease == 30
    assert guard.remaining() > 25
    assert client.get(key).lease == 30
    guard.renew()
    assert client.get(key).lease == 30
    with pytest.raises(InvalidRequest):
        guard.renew(lease=0.01)


def test_manual_heartbeats_are_the_callers_own(client: Client, key: str) -> None:
    lost = threading.Event()
    guard = client.acquire(key, lease=3, manual_heartbeats=True).granted()
    guard.on_lost(lambda guard: lost.set())
    version = guard.record_version_number
    time.sleep(0.3)
    assert guard.record_version_number == version
    guard.renew()
    assert guard.wait_lost(60) == "expired"
    assert lost.wait(60)
    with pytest.raises(LockLost):
        guard.release()
    assert client.get(key).state == "held", "a lost lock is not released"


def test_at_risk_is_told_once_for_each_lease(client: Client, key: str) -> None:
    told: list[float] = []
    guard = client.acquire(key, lease=5, manual_heartbeats=True).granted()
    guard.on_at_risk(4.7, lambda guard: told.append(guard.remaining()))
    eventually(lambda: told)
    time.sleep(0.2)
    assert len(told) == 1
    assert 0 < told[0] <= 4.7
    guard.renew()
    eventually(lambda: len(told) == 2)


def test_block_releases(client: Client, key: str) -> None:
    with client.lock(key) as guard:
        assert guard.valid
    assert client.get(key).state == "released"
    assert guard.lost is None
    with client.lock(key) as guard:
        guard.release(data="left by hand")
    assert client.get(key).data == b"left by hand"


def test_block_passes_its_exception_on(client: Client, key: str) -> None:
    mistake = RuntimeError("the body's own")
    with pytest.raises(RuntimeError) as error, client.lock(key):
        raise mistake
    assert error.value is mistake
    assert client.get(key).state == "released"


def test_block_that_lost_its_lock_says_so(make_client: MakeClient, key: str) -> None:
    operator = make_client()
    with pytest.raises(LockLost) as error, make_client(heartbeat_interval=0.2).lock(key, lease=60) as guard:
        broken(operator, key)
        operator.acquire(key).granted()
        eventually(lambda: guard.lost is not None)
    assert error.value.key == key


def test_lock_released_elsewhere_is_lost(make_client: MakeClient, key: str) -> None:
    holder = make_client(heartbeat_interval=0.2)
    with pytest.raises(LockLost) as error, holder.lock(key, lease=60) as guard:
        assert make_client().release(key, guard.lease_id) == "released"
        eventually(lambda: guard.lost is not None)
    assert error.value.reason == "released"


def test_release_succeeds_when_an_operator_was_first(make_client: MakeClient, key: str) -> None:
    operator = make_client()
    with make_client().lock(key, lease=60):
        operator.break_lock(key, operator.get(key).record_version_number)
    assert operator.get(key).state == "released"


def test_exception_of_a_block_is_not_replaced_by_the_loss(make_client: MakeClient, key: str) -> None:
    operator = make_client()
    with pytest.raises(KeyError, match="mine"), make_client(heartbeat_interval=0.2).lock(key) as guard:
        broken(operator, key)
        assert guard.wait_lost(60) == "released"
        raise KeyError("mine")


def test_theft_is_known_at_the_next_heartbeat(make_client: MakeClient, key: str) -> None:
    thief = make_client(owner_name="thief")
    guard = make_client().acquire(key, lease=60, heartbeat_interval=3).granted()
    told: list[Guard] = []
    guard.on_lost(told.append)
    broken(thief, key)
    stolen = thief.acquire(key).granted()
    assert guard.wait_lost(30) == "taken-over", "long before the lease runs out"
    with pytest.raises(LockLost) as error:
        guard.ensure_held()
    assert error.value.lock is not None
    assert error.value.lock.owner_name == "thief"
    eventually(lambda: told == [guard])
    again: list[Guard] = []
    guard.on_lost(again.append)
    eventually(lambda: again == [guard])
    with pytest.raises(LockLost):
        guard.renew()
    with pytest.raises(LockLost):
        guard.release()
    assert stolen.valid


def test_failing_callback_is_logged(client: Client, key: str, caplog: pytest.LogCaptureFixture) -> None:
    guard = client.acquire(key, lease=0.3, manual_heartbeats=True).granted()
    after = threading.Event()

    def bad(guard: Guard) -> None:
        raise RuntimeError("a bug of the callback")

    guard.on_lost(bad)
    guard.on_lost(lambda guard: after.set())
    assert after.wait(60)
    eventually(lambda: "a bug of the callback" in caplog.text)


def test_wait_lost_ends_with_the_release(client: Client, key: str) -> None:
    guard = client.acquire(key).granted()
    assert guard.wait_lost(0.05) is None
    said: list[object] = []
    thread = threading.Thread(target=lambda: said.append(guard.wait_lost()))
    thread.start()
    guard.release()
    thread.join(60)
    assert said == [None]


def test_heartbeat_thread_ends_with_the_last_lock(make_client: MakeClient, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("an event loop has no threads")
    eventually(lambda: keeper_threads() == 0)
    client = make_client()
    guards = [client.acquire(f"{key}-{number}").granted() for number in range(20)]
    eventually(lambda: keeper_threads() == 1)
    for guard in guards:
        guard.release()
    eventually(lambda: keeper_threads() == 0)


def test_close_releases_all_and_ends_the_waiting_of_others(make_client: MakeClient, key: str) -> None:
    blocker = make_client().acquire(f"{key}-blocked").granted()
    client = make_client()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            client.acquire(f"{key}-blocked", wait=None)
        except LeaseholdError as error:
            failures.append(error)

    with client:
        guards = [client.acquire(f"{key}-{number}").granted() for number in range(3)]
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
    thread.join(60)
    assert len(failures) == 1
    assert "closed" in str(failures[0])
    assert not any(guard.valid for guard in guards)
    assert {blocker.key} == {lock.key for lock in make_client().list(state="held") if lock.key.startswith(key)}
    with pytest.raises(LeaseholdError, match="closed"):
        client.acquire(key)
    client.close()


def test_wrong_arguments_are_named(client: Client, key: str) -> None:
    for arguments, field in (
        ({"lease": 0.05}, "lease"),
        ({"lease": 1, "heartbeat_interval": 0.6}, "heartbeat_interval"),
        ({"attributes": {"leaseDuration": "1"}}, "attributes"),
        ({"data": "x" * 300_000}, None),
    ):
        with pytest.raises(InvalidRequest) as error:
            client.acquire(key, **arguments)
        assert error.value.field in (field, f"{field}.leaseDuration"), arguments
    with pytest.raises(TypeError):
        client.acquire(key, lese=1)  # type: ignore[call-arg]
    with pytest.raises(LockNotFound):
        client.get(key)


def test_one_of_many_threads_holds_the_lock(make_client: MakeClient, key: str) -> None:
    tokens: list[int] = []
    inside: list[int] = []

    def work() -> None:
        client = make_client(lease=60, poll_interval=None)
        for _ in range(3):
            with client.lock(key, wait=90) as guard:
                inside.append(1)
                assert len(inside) == 1
                tokens.append(guard.fencing_token)
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(tokens) == 24
    assert tokens == sorted(set(tokens))


def test_wait_can_be_cancelled_by_an_event(make_client: MakeClient, key: str, kind: str) -> None:
    if kind != "threads":
        pytest.skip("an event loop has cancellation")
    make_client(owner_name="one", lease=30).acquire(key).granted()
    client = make_client(poll_interval=30)
    cancel = threading.Event()
    timer = threading.Timer(0.4, cancel.set)
    start = time.monotonic()
    timer.start()
    with pytest.raises(WaitCancelled):
        client.acquire(key, wait=None, cancel=cancel)
    assert 0.3 < time.monotonic() - start < 20, "and not at the next poll"
    with pytest.raises(WaitCancelled), client.lock(f"{key}-free", cancel=cancel):
        pytest.fail("the body must not run")
    timer.join()
    assert not client._core.guards


def plain(service: str, operation: str, **members: str) -> Any:
    """Sends a request as a caller of plain HTTP does."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{service}/v1/{operation}", json.dumps(members).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def test_unwanted_key_is_taken_again_without_a_pause(make_client: MakeClient, key: str) -> None:
    client = make_client(poll_interval=3600)
    for _ in range(6):
        with client.lock(key) as guard:
            assert not guard.wanted


def test_wanted_key_is_asked_for_again_after_a_poll(make_client: MakeClient, key: str, service: str) -> None:
    client = make_client(poll_interval=5)
    with client.lock(key) as guard:
        assert plain(service, "want", key=key, ownerName="waiter") == {"outcome": "marked"}
        assert client.get(key).wanted_by == "waiter"
        guard.renew()
        assert guard.wanted
        released = time.monotonic()
    start = time.monotonic()
    with client.lock(f"{key}-other"):
        assert time.monotonic() - start < 4, "no other key waits"
    with client.lock(key):
        assert time.monotonic() - released >= 5
    start = time.monotonic()
    assert isinstance(client.try_acquire(key), Guard)
    assert time.monotonic() - start < 4


def test_waiter_marks_the_lock_of_another_client(make_client: MakeClient, key: str) -> None:
    guard = make_client(owner_name="holder").acquire(key).granted()
    assert isinstance(make_client(owner_name="waiter").acquire(key, wait=2.5), Held)
    eventually(lambda: make_client().get(key).wanted_by == "waiter")
    guard.renew()
    assert guard.wanted


def test_detached_lock_is_resumed_above_its_number(make_client: MakeClient, key: str) -> None:
    here, there = make_client(), make_client()
    guard = here.acquire(key, lease=30).granted()
    guard.renew()
    detached = guard.detach()
    assert detached.lease_id not in repr(detached)
    assert not guard.valid
    assert guard.lost is None
    with pytest.raises(LockLost):
        guard.detach()
    here.close()
    assert there.get(key).state == "held", "a detached lock is nobody's to release"
    resumed = there.resume(detached)
    assert (resumed.lease, resumed.fencing_token) == (30.0, guard.fencing_token)
    second = make_client().resume(Handover(key, detached.lease_id))
    resumed.renew()
    second.renew()
    assert resumed.valid, "superseded is no loss"
    resumed.release()


def test_threshold_that_every_lease_reaches_is_refused(client: Client, key: str) -> None:
    guard = client.acquire(key, lease=4, heartbeat_interval=1).granted()
    with pytest.raises(InvalidRequest) as error:
        guard.on_at_risk(3.0, lambda guard: None)
    assert error.value.field == "threshold"
    guard.on_at_risk(2.9, lambda guard: None)
