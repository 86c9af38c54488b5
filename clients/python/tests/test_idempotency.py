"""Idempotency: repeated events, failed and dead attempts, other payloads, and Powertools on top."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig
from aws_lambda_powertools.utilities.idempotency import idempotent as powertools_idempotent
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyValidationError,
)
from conftest import MakeClient, eventually
from proxy import Proxy
from test_handlers import Context

from leasehold import Client, InvalidRequest, LockHeld, LockLost, PayloadMismatch
from leasehold._records import Record, hash_of
from leasehold._world import World
from leasehold.handlers import idempotent
from leasehold.powertools import LeaseholdPersistenceLayer

PENDING = Record(hash_of({})).text()


class Clock(World):
    """A wall clock that a test sets forward."""

    ahead = 0.0

    def epoch_ms(self) -> float:
        return super().epoch_ms() + self.ahead


def test_repeated_event_is_answered_with_the_result(client: Client, make_client: MakeClient, key: str) -> None:
    ran = []

    def work(event: Any, context: Any) -> Any:
        ran.append(event)
        return {"charged": event["amount"], "text": "ä"}

    event = {"id": key, "amount": 7}
    first = idempotent(key="{id}", client=client)(work)
    second = idempotent(key="{id}", client=make_client())(work)
    assert first(event, Context()) == second(event, Context()) == first(event, Context()) == {"charged": 7, "text": "ä"}
    assert len(ran) == 1


def test_other_payload_under_the_key_is_refused(client: Client, make_client: MakeClient, key: str) -> None:
    @idempotent(key="{id}", client=client)
    def handler(event: Any, context: Any) -> None:
        if event["amount"] == 7:  # while it is in progress, too
            with pytest.raises(PayloadMismatch):
                handler({"id": key, "amount": 8}, Context())
            with pytest.raises(LockHeld):
                handler(event, Context())

    handler({"id": key, "amount": 7}, Context())
    with pytest.raises(PayloadMismatch, match=key):
        handler({"id": key, "amount": 8}, Context())


def test_payload_is_the_part_that_was_chosen(client: Client, key: str) -> None:
    @idempotent(key="{id}", client=client, payload=lambda event: event["amount"])
    def handler(event: Any, context: Any) -> int:
        return int(event["attempt"])

    assert handler({"id": key, "amount": 7, "attempt": 1}, Context()) == 1
    assert handler({"id": key, "amount": 7, "attempt": 2}, Context()) == 1


def test_failed_attempt_runs_again(client: Client, key: str) -> None:
    attempts = []

    @idempotent(key=key, client=client)
    def handler(event: Any, context: Any) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("as it was told")
        return "done"

    with pytest.raises(ValueError, match="told"):
        handler({}, Context())
    assert [handler({}, Context()), handler({}, Context())] == ["done", "done"]
    assert len(attempts) == 2


def test_dead_attempt_frees_itself_for_a_fresh_sandbox(client: Client, make_client: MakeClient, key: str) -> None:
    dead = make_client(lease=0.5).acquire(key, occurrence="0000000001", manual_heartbeats=True, data=PENDING).granted()

    @idempotent(key=key, client=client, on_contention="wait")
    def handler(event: Any, context: Any) -> int:
        return int(context.leasehold.fencing_token)

    assert handler({}, Context()) > dead.fencing_token


def test_dead_attempt_is_judged_by_the_clock(make_client: MakeClient, key: str) -> None:
    make_client(lease=0.5).acquire(key, occurrence="0000000001", manual_heartbeats=True, data=PENDING).granted()
    results: list[str] = []

    def is_done() -> bool:
        # Each one is a fresh sandbox, which has observed nothing.
        handler = idempotent(key=key, client=make_client())(lambda event, context: "done")
        with suppress(LockHeld):
            results.append(handler({}, Context()))
        return bool(results)

    eventually(is_done)
    assert results == ["done"]


def test_second_event_waits_for_the_result(client: Client, make_client: MakeClient, key: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(event: Any, context: Any) -> str:
        begun.set()
        assert go_on.wait(30)
        return "once"

    first = idempotent(key=key, client=client)(work)
    second = idempotent(key=key, client=make_client(), on_contention="wait")(work)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(first({}, Context()))),
        threading.Thread(target=lambda: results.append(second({}, Context()))),
    ]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    threading.Timer(0.2, go_on.set).start()
    for thread in threads:
        thread.join()
    assert results == ["once", "once"]
    assert client.get(key).last_occurrence == "0000000001"


def test_result_whose_time_ended_during_the_wait_does_not_count(
    client: Client, make_client: MakeClient, key: str
) -> None:
    ran: list[int] = []

    def work(event: Any, context: Any) -> int:
        ran.append(1)
        if len(ran) == 1:
            second.start()
            time.sleep(0.5)
        return len(ran)

    waiting = idempotent(key=key, client=make_client(), on_contention="wait")(work)
    results: list[int] = []
    second = threading.Thread(target=lambda: results.append(waiting({}, Context())))
    idempotent(key=key, client=client, completed_ttl=0.001)(work)({}, Context())
    second.join()
    assert results == [2]


def test_result_counts_for_its_time(make_client: MakeClient, key: str) -> None:
    clock = Clock()
    client = make_client(world=clock)
    ran = []

    @idempotent(key=key, client=client, completed_ttl="24h")
    def handler(event: Any, context: Any) -> int:
        ran.append(1)
        return len(ran)

    for ahead, expected in ((0, 1), (23, 1), (25, 2), (48, 2), (50, 3)):
        clock.ahead = ahead * 3_600_000
        assert handler({}, Context()) == expected


def test_attempt_that_died_after_the_time_is_repeated(make_client: MakeClient, key: str) -> None:
    clock = Clock()
    client = make_client(world=clock)
    handler = idempotent(key=key, client=client, on_contention="wait")(lambda event, context: "again")
    assert handler({}, Context()) == "again"
    clock.ahead = 2 * 3_600_000
    make_client(lease=0.5).acquire(key, occurrence="0000000002", manual_heartbeats=True, data=PENDING).granted()
    assert handler({}, Context()) == "again"
    assert client.get(key).last_occurrence == "0000000002"


@pytest.mark.parametrize("result", [object(), float("nan"), "\ud800", "x" * 256 * 1024])
def test_result_that_cannot_be_kept_is_an_error(client: Client, key: str, result: Any) -> None:
    handler = idempotent(key=key, client=client)(lambda event, context: result)
    with pytest.raises(InvalidRequest, match=r"^result: "):
        handler({}, Context())
    assert client.get(key).last_occurrence is None
    assert client.get(key).state == "released"


def test_large_result_is_kept(client: Client, key: str) -> None:
    handler = idempotent(key=key, client=client)(lambda event, context: "x" * 250 * 1024)
    assert handler({}, Context()) == handler({}, Context())


def test_lost_attempt_is_no_success(client: Client, make_client: MakeClient, key: str) -> None:
    @idempotent(key=key, client=client)
    def handler(event: Any, context: Any) -> None:
        client.break_lock(key, client.get(key).record_version_number)

    with pytest.raises(LockLost):
        handler({}, Context())
    assert client.get(key).last_occurrence is None


class LambdaContext(Context):
    function_name = "payments"


def wrapped(client: Client, work: Any, **config: Any) -> Any:
    layer = LeaseholdPersistenceLayer(client)
    configured = IdempotencyConfig(event_key_jmespath="id", **config)
    decorate: Any = powertools_idempotent
    return decorate(work, persistence_store=layer, config=configured)


def invoked(handler: Any, event: Any) -> Any:
    return handler(event, LambdaContext())


def test_powertools_answers_a_repeated_event(client: Client, make_client: MakeClient, key: str) -> None:
    ran = []

    def work(event: Any, context: Any) -> Any:
        ran.append(1)
        return {"amount": event["amount"]}

    first, second = wrapped(client, work), wrapped(make_client(), work)
    event = {"id": key, "amount": 7}
    assert invoked(first, event) == invoked(second, event) == {"amount": 7}
    assert len(ran) == 1


def test_powertools_sees_an_attempt_in_progress(client: Client, make_client: MakeClient, key: str) -> None:
    handlers: list[Any] = []

    def work(event: Any, context: Any) -> str:
        with pytest.raises(IdempotencyAlreadyInProgressError):
            invoked(handlers[1], event)
        return "done"

    handlers += [wrapped(client, work), wrapped(make_client(), work)]
    assert invoked(handlers[0], {"id": key}) == "done"


def test_powertools_runs_a_failed_attempt_again(client: Client, key: str) -> None:
    attempts = []

    def work(event: Any, context: Any) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("as it was told")
        return "done"

    handler = wrapped(client, work)
    with pytest.raises(ValueError, match="told"):
        invoked(handler, {"id": key})
    assert invoked(handler, {"id": key}) == "done"


def test_powertools_validates_the_payload(client: Client, make_client: MakeClient, key: str) -> None:
    handler = wrapped(client, lambda event, context: "done", payload_validation_jmespath="amount")
    assert invoked(handler, {"id": key, "amount": 7}) == "done"
    with pytest.raises(IdempotencyValidationError):
        invoked(handler, {"id": key, "amount": 8})


def test_powertools_expires_a_result(make_client: MakeClient, key: str) -> None:
    clock = Clock()
    client = make_client(world=clock)
    ran = []
    handler = wrapped(client, lambda event, context: ran.append(1), expires_after_seconds=60)
    invoked(handler, {"id": key})
    clock.ahead = 61_000
    invoked(handler, {"id": key})
    assert len(ran) == 2


def test_record_may_leave_the_table_when_it_counts_no_more(proxy: Proxy, make_client: MakeClient, key: str) -> None:
    observed = make_client(proxy.url)
    for ttl in ("24h", 0, "5000d"):
        idempotent(key=f"{key}-{ttl}", client=observed, completed_ttl=ttl)(lambda event, context: "done")({}, Context())
    times: list[Any] = [r.body.get("completedTtlMs") for r in proxy.seen if r.action == "release"]
    day, none, forever = times
    assert 86_000_000 < day <= 86_400_000
    assert none == 1
    assert forever is None


def test_completed_record_that_is_deleted_runs_again(client: Client, key: str) -> None:
    runs: list[Any] = []
    layer = LeaseholdPersistenceLayer(client)
    decorate: Any = powertools_idempotent

    def work(event: Any, context: Any) -> int:
        runs.append(event)
        return len(runs)

    handler = decorate(work, persistence_store=layer)
    event = {"id": key}
    assert [invoked(handler, event), invoked(handler, event)] == [1, 1]
    layer.delete_record(event, ValueError())
    assert [invoked(handler, event), invoked(handler, event)] == [2, 2]


def test_attempt_elsewhere_outlives_a_deletion(client: Client, make_client: MakeClient, key: str) -> None:
    other = LeaseholdPersistenceLayer(make_client())
    decorate: Any = powertools_idempotent
    event = {"id": key}
    runs: list[Any] = []

    def work(event: Any, context: Any) -> int:
        runs.append(event)
        for _ in range(2):
            with pytest.raises(IdempotencyAlreadyInProgressError):
                invoked(second, event)
            other.delete_record(event, ValueError())
        with pytest.raises(IdempotencyItemAlreadyExistsError):
            other.save_success(event, {"is": "not its own"})
        return len(runs)

    first = decorate(work, persistence_store=LeaseholdPersistenceLayer(client))
    second = decorate(work, persistence_store=other)
    assert [invoked(first, event), invoked(second, event)] == [1, 1]
    with pytest.raises(IdempotencyItemAlreadyExistsError):
        other.save_success(event, {"is": "too late"})


def test_result_of_an_attempt_begun_elsewhere_is_stored(client: Client, key: str) -> None:
    layer = LeaseholdPersistenceLayer(client)
    decorate: Any = powertools_idempotent
    handler = decorate(lambda event, context: "run", persistence_store=layer)
    invoked(handler, {"id": f"{key}-other"})
    layer.save_success({"id": key}, {"from": "a replay"})
    assert invoked(handler, {"id": key}) == {"from": "a replay"}
