"""One acquisition: its lease id, its polls, its retries, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from ._core import Abandoned, Core
from ._guard import BaseGuard, Granted, Holding
from ._numbers import Numbers
from ._timing import Backoff, Budget, Lease, poll_pause, request_timeout, return_pause, wait_timeout
from ._watching import WatchFailed, watch
from .errors import LeaseholdError, LockHeld, LockLost, Superseded, Unavailable
from .model import LockView, SemaphoreView
from .observations import Observation

if TYPE_CHECKING:
    from . import _wire
    from ._watching import Pause

G = TypeVar("G", bound=BaseGuard)


@dataclass(frozen=True)
class Held:
    """Someone else holds the lock. A value, not an error; `granted` makes it one."""

    lock: LockView
    """The lock as the service showed it."""
    observation: Observation
    """The version that was seen, and since when. The client remembers it, and takes over once it is stale."""
    stale_in: float
    """Seconds, from when the answer arrived, until the lock can be taken over unless its holder shows a
    sign of life."""

    def granted(self) -> NoReturn:
        """Raises `LockHeld`. (`Guard.granted` returns the guard.)"""
        raise LockHeld(self.lock)


class Acquisition(Generic[G]):
    """Asks for one lock under one lease id. Whoever gives it up without a guard must call `abandon`."""

    def __init__(
        self, core: Core, request: _wire.AcquireRequest, lease: float, holding: Holding, guard: type[G]
    ) -> None:
        """`request` names neither a lease id nor a version; `lease` is its lease in seconds."""
        self._core = core
        self._request = request
        self.name = (request["key"], request.get("sortKey"))
        self._seconds = lease
        self._holding = holding
        self._guard = guard
        self._may_arrive_until = 0.0
        self._retry_after = 0.0  # of the last answer
        self._begin()

    def _begin(self) -> None:
        """Begins, or begins again, under a fresh lease id."""
        self._lease_id = self._core.world.new_id()
        self._lease = Lease()
        self._numbers: Numbers[_wire.AcquireRequest] = Numbers(self._core.world.new_id)
        self._pending = False  # a request was sent that may yet be granted
        self._first: Granted | None = None  # told by a grant that came too late

    async def once(self) -> G | Held:
        """One request. Raises `LeaseholdError`s."""
        return await self._ask(request_timeout(self._seconds))

    async def wait(
        self,
        budget: Budget,
        poll_interval: float | None,
        sleep: Pause,
    ) -> G | Held:
        """Asks until the lock is granted or the budget is used up. Between two requests it watches the lock,
        unless a poll interval was chosen. Raises `Unavailable` only if no answer ever came, and other
        `LeaseholdError`s at once. `sleep` may raise, to end the wait."""
        world = self._core.world
        backoff = Backoff(world.chance)
        held: Held | None = None
        ago = self._core.released_ago(self.name)
        rest = max(0.0, budget.deadline - world.now())
        await sleep(min(rest, return_pause(ago, poll_interval, world.chance())))
        while True:
            rest = max(0.0, budget.deadline - world.now())
            last_try = rest == 0.0
            trouble: LeaseholdError | None = None
            not_before = 0.0
            try:
                result = await self._ask(wait_timeout(self._seconds, rest))
                if not isinstance(result, Held):
                    return result
                held = result
                backoff = Backoff(world.chance)
                budget.saw(held.lock.record_version_number, held.lock.lease, world.now())
                pause = poll_pause(poll_interval, self._retry_after, world.chance())
                stale_in = held.observation.stale_at - world.now()
                if stale_in > 0 and not last_try and poll_interval is None and self._core.can_watch:
                    held = await self._watch(held, budget, sleep)
                    continue
                if stale_in > 0:
                    pause = min(pause, stale_in + 0.001)  # not a moment too early, by rounding
            except _TooLate as error:
                trouble, pause = error, 0.0
            except Unavailable as error:
                trouble, not_before = error, error.retry_after
                pause = backoff.pause(not_before)
            except Superseded as error:
                trouble, pause = error, backoff.pause()
            except LockLost as error:
                # This lease id has ended: a lost answer had granted it, and an operator broke the lock.
                trouble, pause = error, backoff.pause()
                self._begin()
            rest = budget.deadline - world.now()
            if last_try or rest < not_before or rest <= 0:
                if held is not None:
                    return held
                if trouble is not None:
                    raise trouble
            await sleep(min(pause, max(0.0, rest)))

    async def _watch(self, held: Held, budget: Budget, sleep: Pause) -> Held:
        """Returns when the lock is worth asking for: it is free or stale, the watch failed, or the wait is
        over."""
        world = self._core.world
        by_clock = self._request.get("staleness") == "clock"  # the service judges, and has to be asked
        while True:
            begun = world.now()
            poll = begun + poll_pause(None, 0.0, world.chance())
            last = min(budget.deadline, poll if by_clock else held.observation.stale_at + 0.001)
            if last <= begun:
                return held
            try:
                lock = await watch(self._core, self.name, held.lock.watched, last - begun, sleep)
            except WatchFailed as error:
                pause = poll_pause(None, error.retry_after, world.chance())
                await sleep(max(0.0, min(pause, last - world.now())))
                return held
            if lock is None or lock.state == "released" or isinstance(lock, SemaphoreView):
                return held
            held = self._held(lock)
            budget.saw(lock.record_version_number, lock.lease, world.now())
            if by_clock:
                return held

    def _held(self, lock: LockView) -> Held:
        observation = self._core.observations.see(lock)
        return Held(lock, observation, max(0.0, observation.stale_at - self._core.world.now()))

    def abandon(self) -> None:
        """Leaves nothing behind: releases, in the background, what may have been granted unseen."""
        if self._pending:
            Abandoned(self._core, self.name, self._lease_id, self._seconds, self._may_arrive_until)

    def _content(self) -> _wire.AcquireRequest:
        request: _wire.AcquireRequest = {**self._request, "leaseId": self._lease_id}
        observed = self._core.observations.stale_version(self.name)
        if observed is not None and request.get("staleness") != "clock":
            request["observedRecordVersionNumber"] = observed
        return request

    async def _ask(self, timeout: float) -> G | Held:
        world, observations = self._core.world, self._core.observations
        now = world.now()
        numbered = self._numbers.next(self._content(), now)
        self._lease.send(now, numbered.sequence, self._seconds)
        was_pending, self._pending = self._pending, True
        self._may_arrive_until = now + timeout
        try:
            grant = await self._core.api.acquire(numbered, timeout)
        except LockHeld as error:
            self._numbers.answered()
            self._pending = was_pending  # an earlier sending may still arrive
            self._retry_after = error.retry_after
            return self._held(error.lock)
        except LockLost:
            self._numbers.answered()
            self._pending = False
            raise
        except Superseded as error:
            self._numbers.superseded(error.sequence)
            raise
        except Unavailable as error:
            if not error.sent:
                self._pending = was_pending
            raise
        except LeaseholdError:
            self._numbers.answered()
            self._pending = was_pending
            raise
        self._numbers.answered()
        self._lease.answered(grant.renewal.lease)
        granted = self._first or Granted(
            grant.outcome, grant.owner_name, grant.previous_owner_name, grant.data
        )
        if world.now() >= self._lease.ends:
            self._first = granted
            raise _TooLate("the grant arrived after its lease had ended")
        observations.forget(self.name)
        return self._guard(
            self._core,
            name=self.name,
            lease_id=self._lease_id,
            lease=self._lease,
            last_number=self._numbers.last,
            renewal=grant.renewal,
            holding=self._holding,
            granted=granted,
        )


class _TooLate(Unavailable):
    """A grant that is worth nothing any more. The lock is this lease id's, or somebody took it over."""
