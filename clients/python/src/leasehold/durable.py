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

import math
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aws_durable_execution_sdk_python.config import Duration as Sleep
from aws_durable_execution_sdk_python.waits import WaitForConditionConfig, WaitForConditionDecision

from ._acquisition import Held
from ._cancelling import pause_until
from ._durations import Duration, seconds_if, seconds_of
from ._runtime import run
from .client import Client
from .errors import LockHeld, LockLost, Superseded, Unavailable

if TYPE_CHECKING:
    from aws_durable_execution_sdk_python.context import DurableContext

__all__ = ["DurableLock", "lock_step"]

LONGEST_SLEEP = 300.0
"""Seconds after which a sleeping function looks again, though the holder's lease may last longer."""

ASKS_FOR = 1.0
"""Seconds for the requests of one look."""


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
) -> DurableLock:
    """Acquires a lock, and sleeps while another holds it.

    `lease` must be as long as the work and its sleeps: 0.1 s to a day; `DurableLock.renew` begins it anew. A holder
    that is silent is judged by the service's clock. `wait` bounds the sleep (default: no bound); then the invocation
    fails with `LockHeld`. `name` (default: of the key) is the name of the operations, which must be the same in each
    replay.
    """
    seconds, longest = seconds_of(lease, "lease"), seconds_if(wait, "wait")
    name = name or f"lock {key}"

    def ask(state: dict[str, Any], _: object) -> dict[str, Any]:
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
            return {"leaseId": str(uuid.uuid4()), "token": None, "slept": state["slept"] + state["sleep"], "sleep": 2}
        slept = state["slept"] + state["sleep"]
        if isinstance(result, Held):
            # A second more: the service allows its clocks a difference.
            sleep = math.ceil(min(result.stale_in + 1.0, LONGEST_SLEEP))
            return {**state, "slept": slept, "sleep": sleep}
        result.detach()
        return {**state, "slept": slept, "token": result.fencing_token}

    def decide(state: dict[str, Any], attempts: int) -> WaitForConditionDecision:
        if state["token"] is not None or (longest is not None and state["slept"] >= longest):
            return WaitForConditionDecision.stop_polling()
        return WaitForConditionDecision.continue_waiting(Sleep.from_seconds(state["sleep"]))

    lease_id = context.step(lambda _: str(uuid.uuid4()), f"{name} id")
    initial: dict[str, Any] = {"leaseId": lease_id, "token": None, "sleep": 0, "slept": 0}
    state = context.wait_for_condition(ask, WaitForConditionConfig(decide, initial), name)
    if state["token"] is None:
        raise LockHeld(client.get(key, sort_key=sort_key))
    return DurableLock(key, sort_key, state["token"], state["leaseId"], name, client, context)
