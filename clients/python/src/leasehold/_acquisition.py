"""One acquisition: its lease id, its polls, its retries, and its end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from ._call import Action, Call, Done, Ended, Event, Finish, Send, Start, Terms
from ._core import Core, GivingBack, end_of, milliseconds
from ._guard import B, BaseLockGuard, BasePermitGuard, Granted, Holding
from ._line import Turn
from ._numbers import Numbered, Numbers
from ._patience import Patience
from ._timing import (
    LONGEST_TIMEOUT_MS,
    OPERATION_BOUND_MS,
    Backoff,
    Budget,
    poll_pause,
    request_timeout,
    wait_timeout,
)
from ._watching import WatchFailed, watch
from .errors import LeaseholdError, LockHeld, LockLost, Superseded, Unavailable
from .model import LockName, LockView, ReleaseOutcome, Renewal, SemaphoreView
from .observations import Observation

if TYPE_CHECKING:
    from . import _wire
    from ._watching import Pause

G = TypeVar("G", bound=BaseLockGuard)
H = TypeVar("H")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("leasehold")


@dataclass(frozen=True)
class Held:
    """Someone else holds the lock, or too many permits. This is a value, not an error; `granted` makes it an
    error."""

    lock: LockView
    """The lock as the service showed it; a `SemaphoreView` where permits were asked for."""
    observation: Observation
    """The version that was seen, and the time since. The client remembers it, and takes over once it is
    stale. With several holders, the version is the one that may be stale first."""
    stale_in: float
    """Seconds, from the arrival of the answer, until the lock can be taken over if its holder sends no
    heartbeat."""

    def __bool__(self) -> Literal[False]:
        """Makes `if guard := client.try_acquire(key):` mean what it says."""
        return False

    def granted(self) -> NoReturn:
        """Raises `LockHeld`. (`Guard.granted` returns the guard.)"""
        raise LockHeld(self.lock)


class Requests(Generic[T]):
    """The requests under one lease id, and after its end under the next. A caller that gives up without a
    guard must call `abandon`."""

    def __init__(self, core: Core, name: LockName, lease: float, holding: Holding, keys: int = 1) -> None:
        """`lease`: the lease that is asked for, in seconds. `keys`: the number of locks."""
        self._core = core
        self.name = name
        self._seconds = lease
        self._holding = holding
        self._keys = keys
        self._terms = Terms(
            LONGEST_TIMEOUT_MS, OPERATION_BOUND_MS, milliseconds(lease), milliseconds(holding.delay) or 0
        )
        self._begin()

    def _begin(self) -> None:
        """Begins, or begins again, under a fresh lease id."""
        self._lease_id = self._core.world.new_id()
        self._sent = 0  # the time of the first sending of the last request, for the rules
        self._machine: Call[T] = Call(self._terms, self._keys)
        self._was_too_late = False  # the last grant was older than its lease
        self._first: Granted | None = None  # the outcome that a late grant named

    def begin_under(self, lease_id: str) -> None:
        """Asks under a lease id that the caller chose, and may have used before."""
        self._lease_id = lease_id

    @property
    def _numbers(self) -> Numbers[T]:
        return self._machine.numbers

    def abandon(self) -> None:
        """Leaves nothing behind: releases, in the background, a grant that may have been missed."""
        actions = self._step("cancel")
        if not self._machine.has_ended:
            GivingBack(self._core, self.name, self._machine, actions, partial(self._release, self._lease_id))

    async def _release(self, lease_id: str, key: int, timeout: float) -> ReleaseOutcome:
        """Releases the lease id on the key at this position."""
        raise NotImplementedError

    def _step(self, event: Event[T]) -> list[Action[T]]:
        world = self._core.world
        return self._machine.step(self._core.api.memory, event, world.now_ms(), world)[1]

    async def _send(self, content: T, timeout: float, call: Callable[[Numbered[T], float], Awaitable[R]]) -> R:
        """Sends the request without an answer again, or else this one. Raises `LeaseholdError`s."""
        (action,) = self._step(Start(content, milliseconds(timeout) or 0))
        assert isinstance(action, Send)  # noqa: S101
        assert isinstance(action.what, Numbered)  # noqa: S101
        self._sent = int(action.what.sent)
        numbered = replace(action.what, sent=action.what.sent / 1000)
        try:
            answer = await call(numbered, timeout)
        except BaseException as error:
            self._step(Ended(action.send, end_of(error)))
            raise
        (finish,) = self._step(Ended(action.send, Done(milliseconds(_lease_of(answer)))))
        self._was_too_late = isinstance(finish, Finish) and finish.outcome == "too-late"
        return answer

    def _guarded(self, guard: type[B], renewal: Renewal, granted: Granted) -> B:
        """Returns the guard of the grant under this lease id."""
        return guard(
            self._core,
            name=self.name,
            lease_id=self._lease_id,
            sent=self._sent,
            last_number=self._numbers.last,
            renewal=renewal,
            holding=self._holding,
            granted=granted,
        )

    def waits_for(self, guards: Sequence[Any]) -> bool:
        """Whether it is never granted while these guards of its own flow are held."""
        return any(guard.is_of(self.name) and not isinstance(guard, BasePermitGuard) for guard in guards)

    def end_turn(self) -> None:
        """Lets the next waiter of this client ask: this one has no guard."""

    def taken(self) -> None:
        """The caller has its guard."""
        self._step("taken")

    def _believe(self, granted: Granted) -> Granted:
        """Returns the outcome of the grant. Raises `TooLate`."""
        granted = self._first or granted
        if self._was_too_late:
            self._first = granted
            raise TooLate("the grant arrived after its lease had ended")
        return granted


class Asking(Requests[T], Generic[T, H]):
    """Requests everything repeatedly, until all is granted at once."""

    async def once(self) -> H | Held:
        """One request. Raises `LeaseholdError`s."""
        return await self._ask(request_timeout(self._holding.believed(self._seconds)))

    async def wait(self, budget: Budget, poll_interval: float | None, sleep: Pause) -> H | Held:
        """Requests until all is granted or the budget is used up. Between two requests it looks, or polls if
        a poll interval was chosen. Raises `Unavailable` only if no answer ever came, and other
        `LeaseholdError`s at once. `sleep` may raise, to end the wait."""
        world = self._core.world
        backoff = Backoff(world.chance)
        held: Held | None = None
        begun = world.now()
        is_told = False
        rest = max(0.0, budget.deadline - world.now())
        await sleep(min(rest, self._core.returns(self.name, poll_interval)))
        while True:
            rest = max(0.0, budget.deadline - world.now())
            last_try = rest == 0.0
            trouble: LeaseholdError
            not_before = 0.0
            try:
                result = await self._ask(wait_timeout(self._holding.believed(self._seconds), rest))
                if not isinstance(result, Held):
                    return result
                held = result
                backoff = Backoff(world.chance)
                budget.saw(held.lock.record_version_number, held.lock.lease, world.now())
                if last_try or world.now() >= budget.deadline:
                    return held
                held = await self._look(held, budget, poll_interval, sleep)
                continue
            except TooLate as error:
                trouble, pause = error, 0.0
            except Unavailable as error:
                trouble, not_before = error, error.retry_after
                if self._core.api.is_unreached(error):
                    budget.unreached(begun)
                if not is_told:
                    _log.warning("trying again: %s", error)
                is_told = True
                pause = backoff.pause(not_before)
            except Superseded as error:
                trouble, pause = error, backoff.pause()
            except LockLost as error:
                # This lease id has ended: a lost answer had granted it, and an operator broke the lock.
                trouble, pause = error, backoff.pause()
                self.abandon()
                self._begin()
            rest = budget.deadline - world.now()
            if last_try or rest < not_before or rest <= 0:
                if held is not None:
                    return held
                raise trouble
            await sleep(min(pause, max(0.0, rest)))

    async def _look(self, held: Held, budget: Budget, poll_interval: float | None, sleep: Pause) -> Held:
        """Returns when another request may succeed, with the last view."""
        raise NotImplementedError

    async def _ask(self, timeout: float) -> H | Held:
        raise NotImplementedError

    def _held(self, lock: LockView) -> Held:
        observation = self._core.observations.see(lock)
        return Held(lock, observation, max(0.0, observation.stale_at - self._core.world.now()))


class Acquisition(Asking["_wire.AcquireRequest", G]):
    """Requests one lock."""

    def __init__(
        self, core: Core, request: _wire.AcquireRequest, lease: float, holding: Holding, guard: type[G]
    ) -> None:
        """`request` names neither a lease id nor a version."""
        super().__init__(core, (request["key"], request.get("sortKey")), lease, holding)
        self._request = request
        self._guard = guard
        self._retry_after = 0.0  # the wish of the last answer
        self._turn: Turn | None = None
        self._patience = Patience(core, self.name, request["ownerName"])

    async def wait(self, budget: Budget, poll_interval: float | None, sleep: Pause) -> G | Held:
        """Waits in the client's line for the lock, and then as all who have the turn."""
        if budget.deadline > self._core.world.now():
            turn = await self._core.lines.turn(self.name, budget, sleep)
            if isinstance(turn, LockView):
                return self._held(turn)
            self._turn = turn
        return await super().wait(budget, poll_interval, sleep)

    def end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()

    def _held(self, lock: LockView) -> Held:
        if self._turn is not None:
            self._turn.saw(lock)
        return super()._held(lock)

    async def _release(self, lease_id: str, key: int, timeout: float) -> ReleaseOutcome:
        return (await self._core.api.release(self.name, lease_id, timeout)).outcome

    async def _look(self, held: Held, budget: Budget, poll_interval: float | None, sleep: Pause) -> Held:
        """Watches, or waits for the next poll."""
        world = self._core.world
        self._patience.saw(held.lock)
        stale_in = held.observation.stale_at - world.now()
        if stale_in > 0 and poll_interval is None and self._core.can_watch:
            return await self._watch(held, budget, sleep)
        pause = poll_pause(poll_interval, self._retry_after, world.chance())
        if stale_in > 0:
            pause = min(pause, stale_in + 0.001)  # not a moment too early, by rounding
        await sleep(max(0.0, min(pause, budget.deadline - world.now())))
        return held

    async def _watch(self, held: Held, budget: Budget, sleep: Pause) -> Held:
        """Returns when another request may succeed: the lock is free or stale, or the wait is over. A pause and
        a read take the place of a watch that failed."""
        world = self._core.world
        by_clock = self._request.get("staleness") == "clock"  # the service judges, and must be asked
        while True:
            begun = world.now()
            poll = begun + poll_pause(None, 0.0, world.chance())
            last = min(budget.deadline, poll if by_clock else held.observation.stale_at + 0.001)
            if last <= begun:
                return held
            self._patience.saw(held.lock)
            last = min(last, self._patience.ends(held.lock))
            try:
                lock = await watch(self._core, self.name, held.lock.watched, last - begun, sleep)
            except WatchFailed as error:
                pause = poll_pause(None, error.retry_after, world.chance())
                await sleep(max(0.0, min(pause, last - world.now())))
                if not self._core.can_watch:
                    return held
                try:
                    lock = await self._core.api.get_lock(self.name, request_timeout(None))
                except LeaseholdError:
                    return held
            if lock is None or lock.state == "released" or isinstance(lock, SemaphoreView):
                return held
            held = self._held(lock)
            budget.saw(lock.record_version_number, lock.lease, world.now())
            if by_clock:
                return held

    def _content(self) -> _wire.AcquireRequest:
        request: _wire.AcquireRequest = {**self._request, "leaseId": self._lease_id}
        observed = self._core.observations.stale_version(self.name)
        if observed is not None and request.get("staleness") != "clock":
            request["observedRecordVersionNumber"] = observed
        return request

    async def _ask(self, timeout: float) -> G | Held:
        try:
            grant = await self._send(self._content(), timeout, self._core.api.acquire)
        except LockHeld as error:
            self._retry_after = error.retry_after
            return self._held(error.lock)
        granted = self._believe(Granted(grant.outcome, grant.owner_name, grant.previous_owner_name, grant.data))
        self._core.observations.forget(self.name)
        guard = self._guarded(self._guard, grant.renewal, granted)
        if self._turn is not None:
            guard.turn = self._turn
            self._turn.holds(guard.view)
        return guard


def _lease_of(answer: object) -> float | None:
    """The lease that an answer grants, in seconds."""
    renewal = getattr(answer, "renewal", answer)
    lease: float | None = getattr(renewal, "lease", None)
    return lease


class TooLate(Unavailable):
    """A grant whose lease has run out already. The lock is this lease id's, or another owner took it over."""
