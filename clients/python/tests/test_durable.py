"""Locks in durable functions, in the test runner of their SDK, against a real service."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("aws_durable_execution_sdk_python_testing", reason="needs the SDK of durable functions")

from aws_durable_execution_sdk_python import durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python_testing import DurableFunctionTestRunner
from conftest import eventually

from leasehold import Client, LockNotFound
from leasehold._acquisition import Acquisition
from leasehold._world import World
from leasehold.durable import Waiters, lock_step


@pytest.fixture(autouse=True, scope="module")
def loops_of_the_runner() -> Iterator[None]:
    """The runner leaves the event loops of its scheduler open."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def run(handler: Any) -> Any:
    with DurableFunctionTestRunner(durable_execution(handler), poll_interval=0.05) as runner:
        return runner.run(execution_timeout=120)


def state(client: Client, key: str) -> str:
    try:
        return client.get(key).state
    except LockNotFound:
        return "absent"


@pytest.fixture
def locks(service: str) -> Client:
    return Client(service, owner_name="durable")


def test_replay_acquires_nothing_again(locks: Client, key: str) -> None:
    seen: list[tuple[int, str]] = []

    def handler(event: Any, context: Any) -> Any:
        with lock_step(context, key, client=locks, lease="5m") as lock:
            # Before the sleep and after it: the function runs from its start again.
            seen.append((lock.fencing_token, state(locks, key)))
            context.wait(Duration.from_seconds(30))
            return lock.fencing_token

    result = run(handler)
    assert result.status.value == "SUCCEEDED"
    assert len(seen) >= 2
    assert {held for _, held in seen} == {"held"}
    assert len({token for token, _ in seen}) == 1
    assert locks.get(key).fencing_token == seen[0][0]
    assert state(locks, key) == "released"


def test_function_sleeps_while_another_holds_the_lock(locks: Client, service: str, key: str) -> None:
    other = Client(service).acquire(key).granted()
    invocations = []

    def handler(event: Any, context: Any) -> Any:
        invocations.append(state(locks, key))
        if len(invocations) == 2:
            other.release()
        with lock_step(context, key, client=locks, lease="5m") as lock:
            return lock.fencing_token

    result = run(handler)
    assert result.status.value == "SUCCEEDED"
    assert len(invocations) > 1, "it ended, and was invoked again"
    assert (locks.get(key).fencing_token or 0) > other.fencing_token
    assert state(locks, key) == "released"


class Table:
    """The table of the waiters, which tells of each row."""

    def __init__(self, tell: Callable[[dict[str, Any]], object] = lambda row: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._tell = tell

    def put_item(self, **arguments: Any) -> None:
        assert arguments["TableName"] == "waiters"
        self.rows.append(arguments["Item"])
        self._tell(arguments["Item"])


def test_waker_ends_the_sleep(locks: Client, service: str, key: str) -> None:
    other = Client(service).acquire(key, lease="1h", manual_heartbeats=True).granted()
    table, invocations = Table(), []

    def handler(event: Any, context: Any) -> Any:
        invocations.append(state(locks, key))
        waiters = Waiters("waiters", table)
        with lock_step(context, key, client=locks, lease="5m", waiters=waiters) as lock:
            return lock.fencing_token

    with DurableFunctionTestRunner(durable_execution(handler), poll_interval=0.05) as runner:
        arn = runner.run_async(execution_timeout=120)
        callback = runner.wait_for_callback(arn, name=f"lock {key} sleep", timeout=60)
        eventually(lambda: len(table.rows) == 1)
        other.release()
        runner.send_callback_success(callback_id=callback)
        result = runner.wait_for_result(arn, timeout=60)
    assert result.status.value == "SUCCEEDED"
    (row,) = table.rows
    assert (row["lock"], row["token"]) == ({"S": f'["{key}"]'}, {"S": callback})
    assert row["isCallback"] == {"BOOL": True}
    assert len(invocations) > 1, "it ended, and was invoked again"
    assert int(result.result) > other.fencing_token
    assert state(locks, key) == "released"


@pytest.mark.parametrize("waiters", [None, Waiters("waiters", Table())])
def test_wait_is_bounded(locks: Client, service: str, key: str, waiters: Waiters | None) -> None:
    other = Client(service).acquire(key, lease=6, heartbeat_interval=0.2).granted()

    def handler(event: Any, context: Any) -> Any:
        with lock_step(context, key, client=locks, lease="5m", wait="5s", waiters=waiters):
            return "never"

    result = run(handler)
    assert result.status.value == "FAILED"
    assert "is held by" in result.error.message
    other.release()


def test_failure_of_the_work_releases_the_lock(locks: Client, key: str) -> None:
    def handler(event: Any, context: Any) -> Any:
        with lock_step(context, key, client=locks, lease="5m"):
            raise ValueError("the work failed")

    result = run(handler)
    assert (result.status.value, result.error.message) == ("FAILED", "the work failed")
    assert state(locks, key) == "released"


def test_renewal_is_a_step(locks: Client, key: str) -> None:
    def handler(event: Any, context: Any) -> Any:
        with lock_step(context, key, client=locks, lease="1m") as lock:
            lock.renew("10m")
            return locks.get(key).lease

    result = run(handler)
    assert (result.status.value, float(result.result)) == ("SUCCEEDED", 600.0)
    assert state(locks, key) == "released"


def test_crash_before_the_checkpoint_leaves_one_holder(
    locks: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grant is written, the process dies before the checkpoint, and the replay asks again."""
    lost: list[int] = []
    begin_under = Acquisition.begin_under

    def crashed_before(acquisition: Acquisition[Any], lease_id: str) -> None:
        begin_under(acquisition, lease_id)
        if not lost:
            lost.append(0)
            guard = locks.try_acquire(key, lease=60, manual_heartbeats=True).granted()
            assert guard.lease_id == lease_id
            lost[0] = guard.fencing_token
            guard.detach()

    def new_id(world: World) -> str:
        return ids[-1]

    ids: list[str] = []

    def handler(event: Any, context: Any) -> Any:
        with lock_step(context, key, client=locks, lease="5m") as lock:
            return lock.fencing_token

    def remember(acquisition: Acquisition[Any], lease_id: str) -> None:
        ids.append(lease_id)
        with monkeypatch.context() as patch:
            patch.setattr(World, "new_id", new_id)
            crashed_before(acquisition, lease_id)

    monkeypatch.setattr(Acquisition, "begin_under", remember)
    result = run(handler)
    assert result.status.value == "SUCCEEDED"
    assert len(ids) == 1, "it does not wait for itself"
    assert locks.get(key).fencing_token == int(result.result) > lost[0]
    assert state(locks, key) == "released"
