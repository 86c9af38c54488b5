"""Several keys at once, locks and permits, all or none: acquiring and holding them (K6 of docs/client.md)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._acquisition import Asking, Held
from ._api import HeartbeatContent
from ._durations import Duration
from ._guard import BaseGuard, BaseLockGuard, BasePermitGuard, Callback, Granted, Holding, Keeping, call_back
from ._plan import Ask, Enqueue, Look, plan
from ._timing import OPERATION_BOUND, Budget, poll_pause, request_timeout
from ._watching import WatchFailed, watch
from .errors import LeaseholdError, LockHeld, LockLost, LockNotFound, LossReason, Unavailable
from .model import Grants, LockName, LockView, Permits, PermitsRenewal, ReleaseOutcome, Renewal, SemaphoreView
from .observations import Observation

if TYPE_CHECKING:
    from . import _wire
    from ._core import Core
    from ._watching import Pause

L = TypeVar("L", bound="BaseAllGuard")

_log = logging.getLogger("leasehold")


class Together(Asking["_wire.AcquireAllRequest", L], Generic[L]):
    """Requests several keys. While it waits it looks, since polling transactions conflict with the heartbeats
    of the same rows."""

    def __init__(
        self,
        core: Core,
        wanted: Sequence[LockName | Permits],
        request: _wire.AcquireAllRequest,
        lease: float,
        holding: Holding,
        guard: type[L],
    ) -> None:
        """`request` has neither keys nor a lease id."""
        names = [it.name if isinstance(it, Permits) else it for it in wanted]
        super().__init__(core, names[0], lease, holding, len(names))
        self._names = tuple(names)
        self._permits = {it.name: it for it in wanted if isinstance(it, Permits)}
        self._request = request
        self._guard = guard
        self._refused: tuple[LockView, ...] = ()  # the locks in the last refusal

    def waits_for(self, guards: Sequence[Any]) -> bool:
        locks = [guard for guard in guards if not isinstance(guard, BasePermitGuard)]
        return any(guard.is_of(name) for guard in locks for name in self._names)

    async def _release(self, lease_id: str, key: int, timeout: float) -> ReleaseOutcome:
        name = self._names[key]
        if name in self._permits:
            return await self._core.api.release_permits(name, lease_id, timeout)
        return (await self._core.api.release(name, lease_id, timeout)).outcome

    def _see(self, lock: LockView) -> None:
        """Records the view of a key."""
        if isinstance(lock, SemaphoreView):
            self._core.entries.see(lock)
        else:
            self._core.observations.see(lock)

    def _plan(self, view: SemaphoreView, permits: int) -> Ask | Enqueue | Look:
        """The next step of a caller that has no place in the queue."""
        stale_in = partial(self._core.entries.stale_in, view.name)
        return plan(view, permits, None, stale_in, None, math.inf, 0.0, 0.0)

    def _hopeless_for(self, lock: LockView) -> float:
        """Seconds for which another request is refused by this key, unless the key changes."""
        wanted = self._permits.get(lock.name)
        if isinstance(lock, SemaphoreView):
            step = None if wanted is None else self._plan(lock, wanted.permits)
            return step.seconds if isinstance(step, Look) else 0.0
        return self._core.observations.see(lock).stale_at - self._core.world.now()

    async def _look(self, held: Held, budget: Budget, poll_interval: float | None, sleep: Pause) -> Held:
        """Returns when no refused lock still looks held and alive, or the wait is over."""
        world = self._core.world
        waited_for = {lock.name: lock for lock in self._refused}
        looked = False
        while True:
            hopeless_for = {name: self._hopeless_for(lock) for name, lock in waited_for.items()}
            alive = [name for name, seconds in hopeless_for.items() if seconds > 0]
            left = budget.deadline - world.now()
            pause = poll_pause(poll_interval, 0.0, world.chance())
            if not alive and not looked:
                await sleep(max(0.0, min(left, pause)))  # the same request was refused just now
            if not alive or left <= 0:
                return held
            looked, name = True, alive[0]
            within = min(left, hopeless_for[name] + 0.001)
            if self._request.get("staleness") == "clock":
                within = min(within, pause)
            lock = await self._change(waited_for[name], within, pause, poll_interval, sleep)
            is_semaphore = isinstance(lock, SemaphoreView)
            if (
                lock is None
                or is_semaphore != (name in self._permits)
                or (not is_semaphore and lock.state == "released")
            ):
                del waited_for[name]
                continue
            self._see(lock)
            waited_for[name] = lock
            held = self._shown(lock)
            budget.saw(lock.watched, _longest_lease(lock), world.now())
            if self._request.get("staleness") == "clock":
                return held

    async def _change(
        self, lock: LockView, within: float, pause: float, poll_interval: float | None, sleep: Pause
    ) -> LockView | None:
        """Returns the lock once it has changed, or about at the end of this time; `None` if there is none."""
        if poll_interval is None and self._core.can_watch:
            try:
                return await watch(self._core, lock.name, lock.watched, within, sleep)
            except WatchFailed as error:
                pause = max(pause, error.retry_after)
        await sleep(min(within, pause))
        try:
            if isinstance(lock, SemaphoreView):
                return await self._core.api.get_semaphore(lock.name, request_timeout(self._seconds))
            return await self._core.api.get_lock(lock.name, request_timeout(self._seconds))
        except LockNotFound:
            return None

    def _content(self) -> _wire.AcquireAllRequest:
        by_clock = self._request.get("staleness") == "clock"
        return {
            **self._request,
            "leaseId": self._lease_id,
            "keys": [
                self._wanted_permits(self._permits[name], by_clock)
                if name in self._permits
                else _wanted(name, None if by_clock else self._core.observations.stale_version(name))
                for name in self._names
            ],
        }

    def _wanted_permits(self, wanted: Permits, by_clock: bool) -> _wire.WantedLock:
        view = None if by_clock else self._core.entries.view(wanted.name)
        step = None if view is None else self._plan(view, wanted.permits)
        dead: list[_wire.ObservedEntry] = []
        for entry in step.names if isinstance(step, Ask) else ():
            dead.append({"holderId": entry.id, "version": entry.version, "permits": entry.permits})
        share: _wire.WantedLock = {**_wanted(wanted.name, None), "permits": wanted.permits, "capacity": wanted.of}
        share["observed"] = dead
        if (epoch := self._core.entries.epoch(wanted.name)) is not None:
            share["epoch"] = epoch
        return share

    def _shown(self, lock: LockView) -> Held:
        """The refusal by this key. Of a semaphore, the entry that may be stale first counts."""
        if not isinstance(lock, SemaphoreView):
            return self._held(lock)
        now = self._core.world.now()
        observations = [self._core.entries.observation(lock.name, entry) for entry in lock.entries]
        first = min(observations, key=lambda o: o.stale_at, default=Observation(lock.changed, 0.0, now))
        return Held(lock, first, max(0.0, first.stale_at - now))

    async def _ask(self, timeout: float) -> L | Held:
        try:
            grants = await self._send(self._content(), timeout, self._core.api.acquire_all)
        except LockHeld as error:
            self._refused = error.locks
            for lock in error.locks:
                self._see(lock)
            return self._shown(error.lock)
        granted = self._believe(Granted("created", grants.owner_name))
        for name in self._names:
            self._core.observations.forget(name)
        return self._guard([self._member(name, grants, granted) for name in self._names])

    def _member(self, name: LockName, grants: Grants, granted: Granted) -> BaseGuard:
        renewal: Renewal = Renewal(grants.versions[name], grants.lease, grants.fencing_token)
        kind: type[BaseGuard] = BaseLockGuard
        if name in self._permits:
            self._core.entries.granted(name, grants.fencing_token)
            kind = BasePermitGuard
            granted = replace(granted, capacity=self._permits[name].of)
            renewal = PermitsRenewal(
                renewal.record_version_number,
                renewal.lease,
                renewal.fencing_token,
                holder_id=grants.holder_ids[name],
                permits=self._permits[name].permits,
            )
        return kind(
            self._core,
            name=name,
            lease_id=self._lease_id,
            sent=self._sent,
            last_number=self._numbers.last,
            renewal=renewal,
            holding=self._holding,
            granted=granted,
        )


def _longest_lease(lock: LockView) -> float:
    """The lease after which each holder that is dead counts as dead."""
    if isinstance(lock, SemaphoreView):
        return max((entry.lease for entry in lock.entries), default=0.0)
    return lock.lease


def _wanted(name: LockName, observed: str | None) -> _wire.WantedLock:
    wanted: _wire.WantedLock = {"key": name[0]}
    if name[1] is not None:
        wanted["sortKey"] = name[1]
    if observed is not None:
        wanted["observedRecordVersionNumber"] = observed
    return wanted


class BaseAllGuard(Keeping):
    """Several keys, locks and permits, under one lease id and one fencing token. The loss of one is the loss of
    all, and the others are released."""

    def __init__(self, members: Sequence[BaseGuard]) -> None:
        self._members = tuple(members)
        self._core = members[0]._core
        self._state = threading.RLock()
        self._over = self._core.runtime.event()  # lost, or its release has begun
        self._on_lost: list[Callback] = []

    def __repr__(self) -> str:
        state = self.lost or self._members[0].word
        return f"<Guard of {', '.join(map(repr, self.keys))}, {state}, fencing token {self.fencing_token}>"

    @property
    def keys(self) -> tuple[str, ...]:
        """The locks' keys, in the order of the request."""
        return tuple(member.key for member in self._members)

    @property
    def sort_keys(self) -> tuple[str | None, ...]:
        """The locks' sort keys, on a table that has one."""
        return tuple(member.sort_key for member in self._members)

    @property
    def permits(self) -> dict[str, int]:
        """The permits that are held of each semaphore, by its key."""
        return {member.key: member.permits for member in self._members if isinstance(member, BasePermitGuard)}

    @property
    def owner_name(self) -> str | None:
        """The owner's name as granted."""
        return self._members[0].owner_name

    @property
    def lease_id(self) -> str:
        """The secret that proves possession of each lock."""
        return self._members[0].lease_id

    @property
    def fencing_token(self) -> int:
        """A token above every token granted for any of the keys before. Hand it to the resource with every
        write."""
        return self._members[0].fencing_token

    @property
    def lease(self) -> float:
        """The last renewed lease in seconds."""
        return min(member.lease for member in self._members)

    def remaining(self) -> float:
        """The remaining time of the lock whose lease ends first, as `Guard.remaining`."""
        return min(member.remaining() for member in self._members)

    @property
    def valid(self) -> bool:
        """Whether all locks are held, as far as can be known without asking."""
        return all(member.valid for member in self._members)

    @property
    def lost(self) -> LossReason | None:
        """The reason of a loss, or `None` while all locks are held and after their release."""
        return next((member.lost for member in self._members if member.lost is not None), None)

    def ensure_held(self) -> None:
        """Raises `LockLost`, which names the lock, unless `valid`. Sends nothing."""
        for member in sorted(self._members, key=lambda member: member.lost is None):
            member.ensure_held()

    def on_lost(self, callback: Callback) -> None:
        """Runs the callback once, in the client's background, when a lock is lost; at once if one was lost
        before."""
        with self._state:
            self._on_lost.append(callback)
        if self.lost is not None:
            self._core.runtime.schedule(self._tell_lost, self._core.world.now())

    def on_at_risk(self, threshold: Duration, callback: Callback) -> None:
        """Runs the callback as `Guard.on_at_risk` does, for each of the locks."""
        for member in self._members:
            member.on_at_risk(threshold, lambda _: callback(self))

    # The rest is for this package.

    def start(self) -> None:
        """Begins the heartbeats of each lock."""
        for member in self._members:
            member.on_lost(self._one_lost)
            member.start()

    def is_of(self, name: LockName) -> bool:
        """Whether one of the locks is of this key."""
        return any(member.is_of(name) for member in self._members)

    async def renew_with(self, lease: float | None) -> None:
        """Sends one heartbeat for each lock."""
        for member in self._members:
            await member.renew_with(HeartbeatContent(lease))

    async def release_until(self, deadline: float | None) -> None:
        """Releases each lock, in ten seconds by default. One failure does not stop the others. Raises the
        first failure, and a loss before any other."""
        self._over.set()
        if deadline is None:
            deadline = self._core.world.now() + OPERATION_BOUND
        errors: list[Exception] = []

        async def release() -> None:
            for member in self._members:
                try:
                    await member.release_until(deadline)
                except Exception as error:
                    errors.append(error)
                    if isinstance(error, Unavailable) and self._core.world.now() >= deadline:
                        return  # no answer to the others either, in no time

        await self._core.runtime.finish(release)
        for error in sorted(errors, key=lambda error: not isinstance(error, LockLost)):
            raise error

    async def until_lost(self, timeout: float | None) -> LossReason | None:
        await self._over.wait(timeout)
        return self.lost

    async def _one_lost(self, lost: BaseGuard) -> None:
        if not self._over.is_set():
            self._over.set()
            self._core.runtime.schedule(self._give_back, self._core.world.now(), at_exit=True)
        await self._tell_lost()

    async def _give_back(self) -> None:
        try:
            await self.release_until(None)
        except LockLost:
            pass  # the loss that caused the release
        except LeaseholdError as error:
            _log.warning("the rest of %s could not be released: %s", self, error)

    async def _tell_lost(self) -> None:
        with self._state:
            callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            await call_back(callback, self)
