"""Leader election on the real service."""

from __future__ import annotations

import threading
import time

import pytest
from conftest import MakeClient, broken, eventually
from test_watching import Background

from leasehold import Election, Guard, Leader, LockHeld, LockLost, WaitCancelled


def test_candidate_leads_after_the_leader_resigned(make_client: MakeClient, key: str) -> None:
    one = Election(make_client(owner_name="one", lease=30), key, "10.0.0.1")
    two = Election(make_client(owner_name="two", lease=30, poll_interval=None), key, "10.0.0.2")
    first = one.campaign()
    with pytest.raises(LockHeld):
        two.campaign(wait=0.2)
    campaign = Background(two.campaign)
    time.sleep(0.2)
    first.release()
    second = campaign.wait()
    assert isinstance(second, Guard)
    assert second.fencing_token > first.fencing_token
    assert make_client().get(key).data == b"10.0.0.2"


def test_campaign_can_be_cancelled(make_client: MakeClient, key: str) -> None:
    Election(make_client(lease=30), key).campaign()
    cancel = threading.Event()
    campaign = Background(lambda: Election(make_client(poll_interval=None), key).campaign(cancel=cancel))
    time.sleep(0.2)
    cancel.set()
    assert isinstance(campaign.wait(), WaitCancelled)


def test_observers_follow_the_leaders(make_client: MakeClient, key: str) -> None:
    followers = make_client(poll_interval=None)
    seen: list[Leader | None] = []
    cancel = threading.Event()

    def follow() -> None:
        for leader in Election(followers, key).observe(cancel=cancel):
            seen.append(leader)

    following = Background(follow)
    eventually(lambda: seen == [None])
    one = Election(make_client(owner_name="one", heartbeat_interval=0.1, lease=30), key, "10.0.0.1")
    guard = one.campaign()
    eventually(lambda: len(seen) == 2)
    version = guard.record_version_number
    eventually(lambda: guard.record_version_number != version)
    guard.release()
    eventually(lambda: len(seen) == 3)
    cancel.set()
    following.wait()
    assert seen == [None, Leader("one", b"10.0.0.1", guard.fencing_token), None], "no heartbeat is news"


def test_body_is_called_again_after_a_loss(make_client: MakeClient, key: str) -> None:
    operator = make_client()
    tokens: list[int] = []

    def body(guard: Guard) -> str:
        tokens.append(guard.fencing_token)
        if len(tokens) == 1:
            broken(operator, key)
            guard.wait_lost(60)
            guard.ensure_held()
        return "done"

    election = Election(make_client(heartbeat_interval=0.1, lease=30), key)
    assert election.lead(body) == "done"
    assert len(tokens) == 2
    assert operator.get(key).state == "released"

    def fail(guard: Guard) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        election.lead(fail)


def test_loss_of_another_lock_is_the_bodys_own(make_client: MakeClient, key: str) -> None:
    def body(guard: Guard) -> None:
        raise LockLost("released", key="another")

    with pytest.raises(LockLost):
        Election(make_client(lease=30), key).lead(body)
