"""The rules of holding a lock, for every kind of client."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

from ._api import HeartbeatContent, Leaving
from ._durations import Duration, seconds_of
from ._numbers import Numbered, Numbers, ending_of
from ._telemetry import result_of
from ._timing import (
    LEAVE_BOUND,
    Backoff,
    Lease,
    heartbeat_every,
    heartbeat_pause,
    heartbeat_retry_pause,
    lease_to_ms,
    request_timeout,
)
from .errors import InvalidRequest, LeaseholdError, LockLost, LossReason, Superseded, Unavailable
from .model import LockName, LockView, PermitsRenewal, ReleaseOutcome, Renewal

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._core import Core
    from ._line import Turn

Callback: TypeAlias = "Callable[[Any], object]"

Outcome: TypeAlias = Literal["created", "reacquired", "takenOver", "renewed", "resumed"]

_log = logging.getLogger("leasehold")


_EXIT_TIMEOUT = 1.0
"""Seconds for the release of a lock that is held when its event loop ends."""


@dataclass(frozen=True)
class Holding:
    """The settings of a held lock."""

    heartbeat_interval: float | None = None
    """The interval of heartbeats in seconds; `None`: a quarter of the lease."""
    manual_heartbeats: bool = False
    hold_on_unavailable: bool = False
    delay: float = 0.0
    """Seconds at the end of each lease in which the holder does not believe in it."""
    max_hold: float | None = None
    """The seconds after which the guard is lost, however well the heartbeats go."""

    def believed(self, lease: float) -> float:
        """Returns the seconds of this lease that the holder believes in. Raises `InvalidRequest` if there are
        none."""
        if not 0 <= self.delay < lease:
            raise InvalidRequest(f"must be at least 0 and below the lease ({lease} s)", "lock_delay")
        return lease - self.delay

    def interval(self, lease: float) -> float:
        """Returns the seconds between heartbeats. Raises `InvalidRequest` if the interval is too long."""
        return heartbeat_every(self.heartbeat_interval, self.believed(lease))


@dataclass(frozen=True)
class Granted:
    """The origin of a guard."""

    outcome: Outcome = "resumed"
    owner_name: str | None = None
    previous_owner_name: str | None = None
    data: bytes | None = None
    capacity: int = 0
    """The capacity of a semaphore."""


@dataclass(frozen=True)
class Handover:
    """A lock, or permits, that stay held without their guard: the parts that another process needs to resume them."""

    key: str
    lease_id: str = field(repr=False)
    """The secret that proves possession."""
    sequence: int | None = None
    """The number of the last request under the lease id. Without it, the successor learns it from the service."""
    sort_key: str | None = None


class Keeping:
    """The functions of every guard."""

    def granted(self) -> Self:
        """Returns this guard. (`Held.granted` raises.)"""
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest(
            "a guard cannot be pickled or copied: give what detach() returns to the other process, which resumes it"
        )

    # The rest is for this package, or is what each guard has.

    _core: Core

    async def leave(self, error: BaseException | None) -> None:
        """Ends a block: releases, within the rest of the lease or two seconds, and then in the background. An
        exception of the body is raised unchanged, whatever the outcome of the release."""
        try:
            await self.release_soon(self._core.world.now() + LEAVE_BOUND)
        except LockLost:
            if error is None:
                raise
        except Exception as failure:
            _log.warning("%s could not be released: %s", self, failure, extra=_about(self))

    async def release_soon(self, deadline: float) -> None:
        """Releases until the deadline, or the end of the lease where that is earlier; and then in the background,
        with a warning, where the service does not answer."""
        try:
            await self.release_until(min(deadline, self._core.world.now() + self.remaining()))
        except Unavailable as failure:
            _log.warning(
                "%s is not released yet, which goes on in the background: %s", self, failure, extra=_about(self)
            )
            self._core.in_background(self._release_later)

    async def _release_later(self) -> None:
        try:
            await self.release_until(None)
        except LockLost:
            pass  # its lease ran out meanwhile
        except Exception as failure:
            _log.warning("%s could not be released: %s", self, failure, extra=_about(self))

    def remaining(self) -> float:
        raise NotImplementedError

    def ensure_held(self) -> None:
        raise NotImplementedError

    def on_lost(self, callback: Callback) -> None:
        raise NotImplementedError

    async def until_lost(self, timeout: float | None) -> LossReason | None:
        raise NotImplementedError

    async def release_until(self, deadline: float | None) -> None:
        raise NotImplementedError


def _about(guard: Any, **fields: object) -> dict[str, object]:
    """The members of a log record about this guard, for structured logs. A lease id is not among them."""
    keys = getattr(guard, "keys", None)
    about = {"key": guard.key if keys is None else list(keys), "fencing_token": guard.fencing_token, **fields}
    return {f"leasehold_{name}": value for name, value in about.items()}


async def call_back(callback: Callback, guard: Keeping) -> None:
    """Runs a callback, which may be a coroutine. Its exception is logged."""
    try:
        result = callback(guard)
        if inspect.isawaitable(result):
            await result
    except Exception:
        _log.exception("a callback for %s failed", guard, extra=_about(guard))


class BaseGuard(Keeping):
    """A grant under one lease id, which heartbeats keep."""

    def __init__(
        self,
        core: Core,
        *,
        name: LockName,
        lease_id: str,
        lease: Lease,
        last_number: int,
        renewal: Renewal,
        holding: Holding,
        granted: Granted,
    ) -> None:
        self._core = core
        self._name = name
        self._lease_id = lease_id
        self._lease = lease
        self._numbers: Numbers[HeartbeatContent] = Numbers(last_number)
        self._renewal = renewal
        self._holding = holding
        self._granted = granted
        self._backoff = Backoff(core.world.chance)
        self._state = threading.RLock()  # reentrant: a signal handler may release
        self._sending = core.runtime.mutex()  # one heartbeat at a time
        self._over = core.runtime.event()  # lost, or its release has begun
        self._loss: tuple[LossReason, LockView | None] | None = None
        self._trouble: Exception | None = None  # the failure of the last heartbeat
        self._release_sent = False
        self._leaving: Leaving | None = None  # once a release has begun
        self._delivered = False
        self._begun: float | None = None  # the time of the guard's start
        self._hold_ends = math.inf
        self.turn: Turn | None = None
        """The turn in the client's line, which ends with the hold."""
        self._beat_at: float | None = None  # None: no heartbeat is planned, or one is in flight
        self._on_lost: list[Callback] = []
        self._at_risk: list[_AtRisk] = []

    def __repr__(self) -> str:
        state = self.lost or ("released" if self._over.is_set() else "held")
        return f"<Guard of {self.key!r}, {state}, fencing token {self.fencing_token}>"

    @property
    def key(self) -> str:
        """The lock's key."""
        return self._name[0]

    @property
    def sort_key(self) -> str | None:
        """The lock's sort key, on a table that has one."""
        return self._name[1]

    @property
    def owner_name(self) -> str | None:
        """The owner's name as granted; `None` after `Client.resume`."""
        return self._granted.owner_name

    @property
    def outcome(self) -> Outcome:
        """The outcome of the acquisition."""
        return self._granted.outcome

    @property
    def lease_id(self) -> str:
        """The secret that proves possession: with it anyone can renew and release the lock."""
        return self._lease_id

    @property
    def fencing_token(self) -> int:
        """A token above every token granted for this key before. Hand it to the resource with every write."""
        return self._renewal.fencing_token

    @property
    def lease(self) -> float:
        """The last renewed lease in seconds."""
        return self._lease.seconds

    def remaining(self) -> float:
        """Seconds for which nobody else can take the lock over without another heartbeat. 0.0 after the lock
        was lost or released."""
        with self._state:
            return 0.0 if self._look() else max(0.0, min(self._lease.ends, self._hold_ends) - self._core.world.now())

    @property
    def valid(self) -> bool:
        """Whether the lock is held, as far as can be known without asking. Once false, it stays false."""
        with self._state:
            return not self._look()

    @property
    def lost(self) -> LossReason | None:
        """The reason of the loss, or `None` while the lock is held and after its release."""
        with self._state:
            self._look()
            return None if self._loss is None else self._loss[0]

    def ensure_held(self) -> None:
        """Raises `LockLost` unless `valid`. Sends nothing: cheap enough for every step of the work."""
        with self._state:
            if self._look():
                raise self._error()

    def on_lost(self, callback: Callback) -> None:
        """Runs the callback once, in the client's background, when the lock is lost; at once if it was lost
        before. Does not run it after `release`. An exception of the callback is logged.
        """
        with self._state:
            self._on_lost.append(callback)
            if self._look() and self._loss is not None:
                self._core.runtime.schedule(self._tell_lost, self._core.world.now())

    def on_at_risk(self, threshold: Duration, callback: Callback) -> None:
        """Runs the callback, in the client's background, when less than `threshold` seconds of the lease are
        left: once for each lease that was not renewed in time.

        Raises `InvalidRequest` for a threshold that every lease reaches before its next heartbeat.
        """
        threshold = seconds_of(threshold, "threshold")
        with self._state:
            if not self._holding.manual_heartbeats:
                rest = self._holding.believed(self._lease.seconds) - self._interval()
                if threshold >= rest:
                    raise InvalidRequest(f"must be below {rest} s, which are left when a heartbeat is due", "threshold")
            self._at_risk.append(_AtRisk(self, threshold, callback))
            self._plan()

    def detach(self) -> Handover:
        """Ends the heartbeats without a release, and returns the parts that `Client.resume` needs in another
        process. The guard ends as well. Raises `LockLost` unless the lock is held."""
        with self._state:
            self.ensure_held()
            self._end()
            self._end_turn()
            self._delivered = True
            return Handover(self.key, self._lease_id, self._numbers.last, self.sort_key)

    # The rest is for this package.

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to release: the lock was lost, or certainly released."""
        return self._delivered or self.lost is not None

    def start(self) -> None:
        """Begins the heartbeats, and the watch over the lease."""
        _log.debug(
            "the lock %r is %s, fencing token %d", self.key, self.outcome, self.fencing_token, extra=_about(self)
        )
        with self._state:
            self._core.guards.add(self)
            self._begun = self._core.world.now()
            if self._holding.max_hold is not None:
                self._hold_ends = self._begun + self._holding.max_hold
            if not self._holding.manual_heartbeats:
                self._beat_at = self._core.world.now() + self._pause()
            self._plan()

    def is_of(self, name: LockName) -> bool:
        """Whether this is a guard of this key."""
        return self._name == name

    async def release_until(self, deadline: float | None, leaving: Leaving | None = None) -> None:
        """Releases, with retries until the deadline, and at least once. A later call, after a failure, leaves
        what the first call would have left."""
        with self._state:
            if self._delivered:
                return
            self._leaving = this = self._leaving or leaving or Leaving()
            self._look()
            if self._loss is not None:
                raise self._error()
            self._end()

        async def once(timeout: float) -> None:
            first, self._release_sent = not self._release_sent, True
            outcome = await self._send_release(timeout, this)
            if outcome == "replayed" and first:
                # Another caller ended it: an operator, or another process with this lease id.
                raise LockLost("released", key=self.key, sort_key=self.sort_key)

        async def send() -> None:
            await self._core.repeat(once, lease=self._lease.seconds, deadline=deadline)
            self._delivered = True

        try:
            await self._core.runtime.finish(send)
        except LockLost as error:
            with self._state:
                self._lose(error.reason, error.lock)
            raise
        finally:
            self._end_turn()

    async def release_at_exit(self, timeout: float) -> None:
        """Releases the lock that the program forgot, by one request: nothing can be repeated any more."""
        with self._state:
            if self._over.is_set():
                return
            self._end()
            self._delivered = True
        _log.warning(
            "the lock %r was never released: it is released at the end of the program", self.key, extra=_about(self)
        )
        try:
            await self._send_release(timeout, Leaving())
        except Exception as failure:
            _log.warning("the lock %r could not be released: %s", self.key, failure, extra=_about(self))

    async def renew_with(self, content: HeartbeatContent) -> None:
        """Sends one heartbeat with this content, with retries while the lease lasts."""
        if content.lease is None:
            content = replace(content, lease=self._lease.seconds)
        else:
            lease_to_ms(content.lease)
            self._holding.interval(content.lease)
        await self._sending.acquire()
        try:
            deadline = self._lease.ends
            backoff = Backoff(self._core.world.chance)
            while True:
                self.ensure_held()
                try:
                    if await self._beat(content):
                        return
                except Superseded:
                    pass  # again, under a higher number
                except Unavailable as error:
                    if self._core.world.now() >= deadline and self.valid:
                        raise
                    with self._state:
                        pause = self._pause_after(error, backoff)
                    await self._over.wait(pause)
        finally:
            self._sent()

    def _sent(self) -> None:
        """Lets the next heartbeat be sent. It is due now, if its time came before this one was through."""
        self._sending.release()
        with self._state:
            if self._beat_at is None and not self._holding.manual_heartbeats:
                self._beat_at = self._core.world.now()
            self._plan()

    async def until_lost(self, timeout: float | None) -> LossReason | None:
        """Waits until the lock is lost or released, or for `timeout` seconds. Returns the reason of a
        loss."""
        await self._over.wait(timeout)
        return self.lost

    async def _send_heartbeat(self, numbered: Numbered[HeartbeatContent], timeout: float) -> Renewal:
        raise NotImplementedError

    async def _send_release(self, timeout: float, leaving: Leaving) -> ReleaseOutcome:
        raise NotImplementedError

    def after_fork_in_child(self) -> None:
        """Leaves the lock to the parent."""
        was_over = self._over.is_set()
        self._state, self._sending = threading.RLock(), self._core.runtime.mutex()
        self._over = self._core.runtime.event()
        self._over.set()
        if not was_over:
            self._loss = ("forked", None)

    def _interval(self) -> float:
        return self._holding.interval(self._lease.seconds)

    def _pause(self) -> float:
        return heartbeat_pause(self._interval(), self._core.world.chance())

    def _look(self) -> bool:
        """Whether the guard has ended. Notices that the lease has run out. Needs `_state`, as all functions
        below do."""
        now = self._core.world.now()
        if not self._over.is_set() and now >= min(self._lease.believed_until, self._hold_ends):
            self._lose("expired" if now >= self._lease.believed_until else "max-hold", None)
        return self._over.is_set()

    def _end(self) -> None:
        if self._begun is not None:
            self._core.api.telemetry.held(self._core.world.now() - self._begun)
            self._begun = None
        self._over.set()
        self._core.runtime.cancel(self._tick)

    def view(self) -> LockView | None:
        """How the lock is held; `None` once it is not."""
        if self._over.is_set():
            return None
        version, lease, token = self._renewal.record_version_number, self._lease.seconds, self.fencing_token
        return LockView(self.key, "held", self.owner_name or "", version, lease, self.sort_key, token)

    def _end_turn(self) -> None:
        if self.turn is not None:
            self.turn.end()

    def _lose(self, reason: LossReason, lock: LockView | None) -> None:
        if self._loss is None:
            self._loss = (reason, lock)
            self._end()
            self._end_turn()
            self._core.api.telemetry.lost(reason)
            _log.warning("the lock %r is lost: %s", self.key, reason, extra=_about(self, reason=reason))
            self._core.runtime.schedule(self._tell_lost, self._core.world.now())

    def _error(self) -> LockLost:
        reason, lock = self._loss or ("released", None)
        error = LockLost(reason, lock, key=self.key, sort_key=self.sort_key)
        error.__cause__ = self._trouble if reason == "expired" else None
        return error

    def _plan(self) -> None:
        """Schedules the next look."""
        if not self._over.is_set():
            times = [self._lease.believed_until, self._hold_ends]
            times += [self._lease.ends - risk.threshold for risk in self._at_risk if not risk.told]
            if self._beat_at is not None:
                times.append(self._beat_at)
            self._core.runtime.schedule(self._tick, min(times), at_exit=True)

    async def _tick(self) -> None:
        if self._core.runtime.ends:
            await self.release_at_exit(_EXIT_TIMEOUT)
            return
        now = self._core.world.now()
        with self._state:
            if self._look():
                return
            for risk in self._at_risk:
                if not risk.told and now >= self._lease.ends - risk.threshold:
                    risk.told = True
                    self._core.runtime.schedule(risk.tell, now)
            beat = False
            if self._beat_at is not None and now >= self._beat_at:
                self._beat_at = None  # a sender in flight plans the next one, at its end at the latest
                beat = self._sending.try_acquire()
            self._plan()
        if beat:
            try:
                await self._beat(HeartbeatContent(self._lease.seconds))
            except Superseded:
                pass  # again at once, under a higher number
            except Exception as error:
                if self._loss is not None or not self._over.is_set():  # no release crossed with it
                    _log.warning("a heartbeat of the lock %r failed: %s", self.key, error, extra=_about(self))
            finally:
                self._sent()

    async def _beat(self, content: HeartbeatContent) -> bool:
        """Sends the heartbeat without an answer again, or else this one, and handles the outcome. Returns
        whether it was this one. Needs `_sending`."""
        world = self._core.world
        with self._state:
            self._beat_at = None
            now = world.now()
            numbered = self._numbers.next(content, now, world.new_id)
            sent = numbered.content.lease or self._lease.seconds
            timeout = request_timeout(self._holding.believed(sent), self._lease.believed_until - now)
            self._lease.send(now, numbered.sequence, sent)
            self._plan()
        try:
            renewal = await self._measured(numbered, timeout)
        except LockLost as error:
            with self._state:
                self._numbers.ended("told")
                if not self._over.is_set():
                    self._lose(error.reason, error.lock)
            raise
        except Superseded as error:
            with self._state:
                self._numbers.ended(error.sequence)
                if error.fencing_token is not None:
                    self._same_token(error.fencing_token)
                self._beat_next(world.now())
            raise
        except BaseException as error:
            with self._state:
                self._numbers.ended(ending_of(error))
                if isinstance(error, Exception):
                    self._failed(error)
            raise
        with self._state:
            self._numbers.ended("told")
            if self._look():  # the answer came after the lease had ended: too late to believe again
                raise self._error()
            self._same_token(renewal.fencing_token)
            self._lease.answered(renewal.lease)
            if self._look():
                raise self._error()
            self._renewal = renewal
            self._trouble = None
            self._backoff = Backoff(world.chance)
            for risk in self._at_risk:
                risk.told = False
            self._beat_next(numbered.sent + self._pause())
        return numbered.content is content

    async def _measured(self, numbered: Numbered[HeartbeatContent], timeout: float) -> Renewal:
        world, result = self._core.world, "renewed"
        begun = world.now()
        try:
            return await self._send_heartbeat(numbered, timeout)
        except BaseException as error:
            result = result_of(error)
            raise
        finally:
            self._core.api.telemetry.heartbeat(world.now() - begun, result)

    def _same_token(self, token: int) -> None:
        """Raises `LockLost` if the row has a token that was not granted: the token of a late ghost."""
        if token != self._renewal.fencing_token:
            self._lose("taken-over", None)
            raise self._error()

    def _beat_next(self, at: float) -> None:
        if not self._holding.manual_heartbeats:
            self._beat_at = at
        self._plan()

    def _failed(self, error: Exception) -> None:
        """Plans the next try: the failure says nothing about the lock."""
        now = self._core.world.now()
        self._trouble = error
        next_try = now + self._pause_after(error, self._backoff)
        unreachable = isinstance(error, Unavailable) or not isinstance(error, LeaseholdError)
        if self._holding.hold_on_unavailable and unreachable and not self._look():
            self._lease.hold_on(now if self._holding.manual_heartbeats else next_try)
        self._beat_next(next_try)

    def _pause_after(self, error: Exception, backoff: Backoff) -> float:
        left = self._lease.ends - self._core.world.now()
        return heartbeat_retry_pause(backoff.pause(getattr(error, "retry_after", 0.0)), left)

    async def _tell_lost(self) -> None:
        with self._state:
            callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            await call_back(callback, self)


class BaseLockGuard(BaseGuard):
    """A lock that was granted."""

    _wanted = False

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the lock, as far as a heartbeat has told. A holder may release the lock
        earlier than planned."""
        return self._wanted

    @property
    def previous_owner_name(self) -> str | None:
        """The name of the owner before, if any."""
        return self._granted.previous_owner_name

    @property
    def data(self) -> bytes | None:
        """The payload at the time of the grant: the predecessor's, or the one that was just stored."""
        return self._granted.data

    @property
    def record_version_number(self) -> str:
        """The version in the last answer to a heartbeat."""
        return self._renewal.record_version_number

    async def _send_heartbeat(self, numbered: Numbered[HeartbeatContent], timeout: float) -> Renewal:
        token = self._renewal.fencing_token
        renewal = await self._core.api.heartbeat(self._name, self._lease_id, numbered, timeout, token)
        self._wanted = self._wanted or renewal.wanted
        return renewal

    async def _send_release(self, timeout: float, leaving: Leaving) -> ReleaseOutcome:
        ended = await self._core.api.release(self._name, self._lease_id, timeout, leaving)
        self._core.released(self._name, ended.wanted)
        return ended.outcome


class BasePermitGuard(BaseGuard):
    """Permits of a semaphore that were granted."""

    @property
    def holder_id(self) -> str:
        """The public name of this holder. It proves nothing."""
        return self._own.holder_id

    @property
    def permits(self) -> int:
        """The number of held permits."""
        return self._own.permits

    @property
    def capacity(self) -> int:
        """The capacity of the semaphore at the grant."""
        return self._granted.capacity

    @property
    def version(self) -> str:
        """The holder's version in the last answer to a heartbeat."""
        return self._renewal.record_version_number

    @property
    def _own(self) -> PermitsRenewal:
        return cast(PermitsRenewal, self._renewal)

    # The rest is for this package.

    async def keep_only(self, permits: int) -> None:
        """Releases permits by a heartbeat, with retries while the lease lasts."""
        held = self.permits
        if not 1 <= permits <= held:
            raise InvalidRequest(f"must be 1 to {held}, which are held", "permits")
        await self.renew_with(HeartbeatContent(permits=permits, held_permits=held))

    async def _send_heartbeat(self, numbered: Numbered[HeartbeatContent], timeout: float) -> Renewal:
        return await self._core.api.heartbeat_permits(self._name, self._lease_id, numbered, timeout)

    async def _send_release(self, timeout: float, leaving: Leaving) -> ReleaseOutcome:
        return await self._core.api.release_permits(self._name, self._lease_id, timeout)


B = TypeVar("B", bound=BaseGuard)


class _AtRisk:
    """A callback for a lease that was not renewed in time."""

    def __init__(self, guard: BaseGuard, threshold: float, callback: Callback) -> None:
        self.threshold = threshold
        self.told = False
        self._guard = guard
        self._callback = callback

    async def tell(self) -> None:
        if not self._guard._over.is_set():
            await call_back(self._callback, self._guard)
