"""Locks in durable functions, which sleep without a bill while another holds the lock.

    @durable_execution
    def handler(event, context):
        with lock_step(context, f"orders/{event['id']}", client=client, lease="15m") as lock:
            context.step(lambda _: ship(event, fencing_token=lock.fencing_token))

Needs `aws-durable-execution-sdk-python`. The wait is a durable one: the function ends, and is invoked again when the
lock may be free. A replay acquires nothing: the lease id and the grant are checkpoints, and a request that is
repeated under its lease id finds itself. While the function sleeps, nobody sends heartbeats, so that the lease must
be as long as the work and its sleeps.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aws_durable_execution_sdk_python.config import CallbackConfig
from aws_durable_execution_sdk_python.config import Duration as Sleep
from aws_durable_execution_sdk_python.exceptions import CallbackError
from aws_durable_execution_sdk_python.waits import WaitForConditionConfig, WaitForConditionDecision

from ._acquisition import Held
from ._cancelling import pause_until
from ._durations import Duration, seconds_if, seconds_of
from ._runtime import run
from .client import Client
from .errors import LockHeld, LockLost, Superseded, Unavailable

if TYPE_CHECKING:
    from aws_durable_execution_sdk_python.context import DurableContext

__all__ = ["DurableLock", "Waiters", "lock_step"]

LONGEST_SLEEP = 300.0
"""Seconds after which a sleeping function looks again, though the holder's lease may last longer."""

ASKS_FOR = 1.0
"""Seconds for the requests of one look."""

FORGOTTEN = 3600
"""Seconds for which the row of a waiter outlives its sleep."""


@dataclass(frozen=True)
class Waiters:
    """The table of a stack with `WakeWaiters`, whose waker ends sleeps."""

    table: str
    """The output `WaitersTableName`."""
    dynamodb: Any = None
    """A client of boto3 (default: a new one), with the permission `dynamodb:PutItem` on the table."""

    def put(self, item: dict[str, Any]) -> None:
        """Writes a row."""
        client = self.dynamodb
        if client is None:
            import boto3

            client = boto3.client("dynamodb")
        client.put_item(TableName=self.table, Item=item)


@dataclass(frozen=True)
class DurableLock:
    """A lock of a durable function. Leaving its block releases it; a sleep of the function does not."""

    key: str
    sort_key: str | None
    fencing_token: int
    """A token above every token granted for this key before. Hand it to every resource that the work writes to."""
    _lease_id: str
    _name: str
    _client: Client
    _context: DurableContext

    def renew(self, lease: Duration | None = None) -> None:
        """Renews the lease, in a step. Raises what the SDK raises for a step that failed, if the lock is lost."""

        def beat(_: object) -> None:
            self._client.heartbeat(self.key, self._lease_id, sort_key=self.sort_key, lease=lease)

        self._context.step(beat, f"{self._name} renew")

    def release(self) -> None:
        """Releases the lock, in a step. A lock that was lost before is no error: its work may have been refused."""

        def give_back(_: object) -> None:
            with suppress(LockLost):
                self._client.release(self.key, self._lease_id, sort_key=self.sort_key)

        self._context.step(give_back, f"{self._name} release")

    def __enter__(self) -> DurableLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The SDK puts a function to sleep by an exception that is none of `Exception`: the lock stays.
        if error is None or isinstance(error, Exception):
            self.release()


def lock_step(
    context: DurableContext,
    key: str,
    *,
    client: Client,
    lease: Duration,
    sort_key: str | None = None,
    owner_name: str | None = None,
    wait: Duration | None = None,
    name: str | None = None,
    waiters: Waiters | None = None,
) -> DurableLock:
    """Acquires a lock, and sleeps while another holds it.

    `lease` must be as long as the work and its sleeps: 0.1 s to a day; `DurableLock.renew` begins it anew. A holder
    that is silent is judged by the service's clock. `wait` bounds the sleep (default: no bound); then the invocation
    fails with `LockHeld`. `name` (default: of the key) is the name of the operations, which must be the same in each
    replay. With `waiters`, the stack's waker ends a sleep as soon as the lock is free; else the function looks again
    by itself.
    """
    seconds, longest = seconds_of(lease, "lease"), seconds_if(wait, "wait")
    name = name or f"lock {key}"

    def ask(state: dict[str, Any], _: object) -> dict[str, Any]:
        at = time.time()
        last = min(state["sleep"], at - state["at"]) if state["woken"] else state["sleep"]
        state = {**state, "slept": state["slept"] + last, "at": at, "woken": False}
        acquisition = client._acquisition(
            key,
            sort_key=sort_key,
            owner_name=owner_name,
            lease=seconds,
            staleness="clock",
            manual_heartbeats=True,
        )
        # After a crash before the checkpoint, this is the same lease id again, whose holder is this function.
        acquisition.begin_under(state["leaseId"])
        try:
            result = run(client._wait(acquisition, ASKS_FOR, partial(pause_until, client._core, None)))
        except (LockLost, Superseded, Unavailable):
            # What the request may have acquired is given back.
            return {**state, "leaseId": str(uuid.uuid4()), "sleep": 2}
        if isinstance(result, Held):
            # A second more: the service allows its clocks a difference.
            sleep = math.ceil(min(result.stale_in + 1.0, LONGEST_SLEEP))
            return {**state, "sleep": sleep}
        result.detach()
        return {**state, "token": result.fencing_token}

    def is_over(state: dict[str, Any]) -> bool:
        return state["token"] is not None or (longest is not None and state["slept"] >= longest)

    def decide(state: dict[str, Any], attempts: int) -> WaitForConditionDecision:
        if is_over(state):
            return WaitForConditionDecision.stop_polling()
        return WaitForConditionDecision.continue_waiting(Sleep.from_seconds(state["sleep"]))

    first: dict[str, Any] = context.step(lambda _: {"leaseId": str(uuid.uuid4()), "askedAt": time.time()}, f"{name} id")
    asked_at, lease_id = first["askedAt"], first["leaseId"]
    state: dict[str, Any] = {"leaseId": lease_id, "token": None, "sleep": 0, "slept": 0, "at": asked_at, "woken": False}
    if waiters is None:
        state = context.wait_for_condition(ask, WaitForConditionConfig(decide, state), name)
    else:
        row = {
            "lock": json.dumps(
                [key] if sort_key is None else [key, sort_key], separators=(",", ":"), ensure_ascii=False
            ),
            "waiter": f"{asked_at * 1000:.0f}#{lease_id}",
        }
        state = context.step(partial(ask, state), name)
        while not is_over(state):
            woken = _sleep_until_woken(context, name, waiters, row, state["sleep"])
            state = context.step(partial(ask, {**state, "woken": woken}), name)
    if state["token"] is None:
        raise LockHeld(client.get(key, sort_key=sort_key))
    return DurableLock(key, sort_key, state["token"], state["leaseId"], name, client, context)


def _sleep_until_woken(context: DurableContext, name: str, waiters: Waiters, row: dict[str, str], seconds: int) -> bool:
    """Leaves a callback for the waker, and sleeps. The waker looks at the lock after the row was written, so that no
    release is missed. Returns whether the waker ended the sleep."""
    callback = context.create_callback(f"{name} sleep", CallbackConfig(timeout=Sleep.from_seconds(seconds)))

    def enqueue(_: object) -> None:
        waiters.put(
            {attribute: {"S": value} for attribute, value in row.items()}
            | {
                "permits": {"N": "1"},
                "token": {"S": callback.callback_id},
                "isCallback": {"BOOL": True},
                "expireAt": {"N": str(math.ceil(time.time()) + seconds + FORGOTTEN)},
            }
        )

    context.step(enqueue, f"{name} enqueue")
    try:
        callback.result()
    except CallbackError:
        return False
    return True
