"""One acquisition: its lease id, its polls, its retries, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ._core import Abandoned, Core
from ._timing import Backoff, Budget, Lease, poll_pause, request_timeout
from .errors import LeaseholdError, LockHeld, LockLost, Unavailable
from .guard import Guard, Holding
from .model import LockView
from .observations import Observation

if TYPE_CHECKING:
    from . import _wire

_LAST_REQUEST = 1.0
"""Seconds for a request near the end of a wait: too short a time-out would waste it."""


@dataclass(frozen=True)
class Held:
    """Someone else holds the lock. A value, not an error; `granted` makes it one."""

    lock: LockView
    """The lock as the service showed it."""
    observation: Observation
    """Since when this version is seen. The client remembers it, and takes over once it is stale."""
    stale_in: float
    """Seconds, from when the answer arrived, until the lock can be taken over unless its holder shows a
    sign of life."""

    def granted(self) -> NoReturn:
        """Raises `LockHeld`. (`Guard.granted` returns the guard.)"""
        raise LockHeld(self.lock)


class Acquisition:
    """Asks for one lock under one lease id. Whoever gives it up without a guard must call `abandon`."""

    def __init__(self, core: Core, request: _wire.AcquireRequest, lease: float, holding: Holding) -> None:
        """`request` names neither a lease id nor a version; `lease` is its lease in seconds."""
        self._core = core
        self._request = request
        self._name = (request["key"], request.get("sortKey"))
        self.lease = lease
        self._holding = holding
        self._lease_id = core.world.new_lease_id()
        self._unanswered: float | None = None  # when the first request was sent that may yet be granted
        self._may_arrive_until = 0.0
        self._retry_after = 0.0  # of the last answer

    def once(self) -> Guard | Held:
        """One request. Raises `LeaseholdError`s."""
        return self._ask(request_timeout(self.lease))

    def wait(self, budget: Budget, poll_interval: float) -> Guard | Held:
        """Asks until the lock is granted or the budget is used up. Raises `Unavailable` only if no answer
        ever came, and other `LeaseholdError`s at once."""
        world = self._core.world
        backoff = Backoff(world.chance)
        held: Held | None = None
        while True:
            rest = max(0.0, budget.deadline - world.now())
            last_try = rest == 0.0
            trouble: LeaseholdError | None = None
            not_before = 0.0
            try:
                result = self._ask(request_timeout(self.lease, max(rest, _LAST_REQUEST)))
                if isinstance(result, Guard):
                    return result
                held = result
                backoff = Backoff(world.chance)
                budget.saw(held.lock.record_version_number, held.lock.lease, world.now())
                pause = poll_pause(poll_interval, self._retry_after, world.chance())
                stale_in = held.observation.stale_at - world.now()
                if stale_in > 0:
                    pause = min(pause, stale_in + 0.001)  # not a moment too early, by rounding
            except Unavailable as error:
                trouble = error
                not_before = error.retry_after
                pause = backoff.pause(not_before)
            except LockLost as error:
                # This lease id has ended: a lost answer had granted it, and an operator broke the lock.
                trouble = error
                pause = backoff.pause()
                self._lease_id = world.new_lease_id()
            rest = budget.deadline - world.now()
            if last_try or rest < not_before or rest <= 0:
                if held is not None:
                    return held
                if trouble is not None:
                    raise trouble
            if self._core.closed.wait(min(pause, max(0.0, rest))):
                raise LeaseholdError("the client was closed")

    def abandon(self) -> None:
        """Leaves nothing behind: releases, in the background, what may have been granted unseen."""
        if self._unanswered is not None:
            Abandoned(self._core, self._name, self._lease_id, self.lease, self._may_arrive_until)

    def _ask(self, timeout: float) -> Guard | Held:
        world, observations = self._core.world, self._core.observations
        request: _wire.AcquireRequest = {**self._request, "leaseId": self._lease_id}
        observed = observations.stale_version(self._name)
        if observed is not None and request.get("staleness") != "clock":
            request["observedRecordVersionNumber"] = observed
        sent = world.now()
        earlier, self._unanswered = self._unanswered, sent if self._unanswered is None else self._unanswered
        self._may_arrive_until = sent + timeout
        try:
            grant = self._core.api.acquire(request, timeout)
        except LockHeld as error:
            self._unanswered = earlier
            self._retry_after = error.retry_after
            observation = observations.see(error.lock)
            return Held(error.lock, observation, max(0.0, observation.stale_at - world.now()))
        except LockLost:
            self._unanswered = None
            raise
        except LeaseholdError as error:
            if not getattr(error, "sent", False):
                self._unanswered = earlier
            raise
        lease = Lease(sent, grant.renewal.lease, earlier)
        if world.now() >= lease.ends:
            raise Unavailable("the grant arrived after its lease had ended")
        observations.forget(self._name)
        return Guard(
            self._core,
            name=self._name,
            lease_id=self._lease_id,
            lease=lease,
            renewal=grant.renewal,
            holding=self._holding,
            owner_name=grant.owner_name,
            outcome=grant.outcome,
            previous_owner_name=grant.previous_owner_name,
            data=grant.data,
        )
