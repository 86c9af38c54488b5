"""A lock that is held."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

from ._timing import (
    Backoff,
    Lease,
    heartbeat_every,
    heartbeat_pause,
    heartbeat_retry_pause,
    lease_to_ms,
    request_timeout,
)
from .errors import LeaseholdError, LockLost, LossReason, Unavailable
from .model import LockName, LockView, Renewal

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._core import Core

Callback: TypeAlias = "Callable[[Guard], object]"

_log = logging.getLogger("leasehold")


@dataclass(frozen=True)
class Holding:
    """How a lock is to be held."""

    heartbeat_interval: float | None = None
    """Seconds; `None`: a quarter of the lease."""
    manual_heartbeats: bool = False
    hold_on_unavailable: bool = False


class Guard:
    """A lock that was granted. Heartbeats go on in the background until `release`, or until it is lost.

    As a context manager it releases the lock at the end of the block. Safe to use from several threads.
    A guard that nobody refers to any more is kept, with its lock, until the client is closed.
    """

    owner_name: str | None
    """As granted; `None` after `Client.resume`."""
    outcome: Literal["created", "reacquired", "takenOver", "renewed", "resumed"]
    """How it came about."""
    previous_owner_name: str | None
    data: bytes | None
    """The row's payload when the lock was granted: what the predecessor left, or what was just stored."""

    def __init__(
        self,
        core: Core,
        *,
        name: LockName,
        lease_id: str,
        lease: Lease,
        renewal: Renewal,
        holding: Holding,
        owner_name: str | None = None,
        outcome: Literal["created", "reacquired", "takenOver", "renewed", "resumed"] = "resumed",
        previous_owner_name: str | None = None,
        data: bytes | None = None,
    ) -> None:
        self.owner_name = owner_name
        self.outcome = outcome
        self.previous_owner_name = previous_owner_name
        self.data = data
        self._core = core
        self._name = name
        self._lease_id = lease_id
        self._lease = lease
        self._renewal = renewal
        self._holding = holding
        self._backoff = Backoff(core.world.chance)
        self._state = threading.RLock()  # reentrant: a signal handler may release
        self._sending = threading.Lock()  # one heartbeat at a time, so that the last answer tells the lease
        self._over = threading.Event()  # lost, or its release has begun
        self._loss: tuple[LossReason, LockView | None] | None = None
        self._trouble: Exception | None = None  # why the last heartbeat failed
        self._delivered = False
        self._beat_at: float | None = None  # None: never, or one is under way
        self._on_lost: list[Callback] = []
        self._at_risk: list[_AtRisk] = []
        core.guards.add(self)

    def __repr__(self) -> str:
        state = self.lost or ("released" if self._over.is_set() else "held")
        return f"<Guard of {self.key!r}, {state}, fencing token {self.fencing_token}>"

    @property
    def key(self) -> str:
        """Which lock."""
        return self._name[0]

    @property
    def sort_key(self) -> str | None:
        """On a table with a sort key."""
        return self._name[1]

    @property
    def lease_id(self) -> str:
        """The secret that proves possession: with it anyone can renew and release the lock."""
        return self._lease_id

    @property
    def fencing_token(self) -> int:
        """Above every token granted for this key before. Hand it to the resource with every write."""
        return self._renewal.fencing_token

    @property
    def record_version_number(self) -> str:
        """As of the last heartbeat that was answered."""
        return self._renewal.record_version_number

    @property
    def lease(self) -> float:
        """Seconds: the lease as last renewed."""
        return self._lease.seconds

    def remaining(self) -> float:
        """Seconds for which, without another heartbeat, nobody else can take the lock over. 0.0 at the
        least, and after the lock was lost or given back."""
        with self._state:
            return 0.0 if self._look() else max(0.0, self._lease.ends - self._core.world.now())

    @property
    def is_held(self) -> bool:
        """Whether the lock is held, as far as can be known without asking. Once false, it stays false."""
        with self._state:
            return not self._look()

    @property
    def lost(self) -> LossReason | None:
        """Why the lock was lost, or `None` while it is held and after it was given back."""
        with self._state:
            self._look()
            return None if self._loss is None else self._loss[0]

    def check(self) -> None:
        """Raises `LockLost` unless `is_held`. Asks nobody: cheap enough for every step of the work."""
        with self._state:
            if self._look():
                raise self._error()

    def wait_lost(self, timeout: float | None = None) -> LossReason | None:
        """Waits until the lock is lost, and says why. `None` after `timeout` seconds, or once the lock is
        given back."""
        self._over.wait(timeout)
        return self.lost

    def on_lost(self, callback: Callback) -> None:
        """Runs the callback once, in a thread of the client's, when the lock is lost; at once if it was.

        Not after `release`. What the callback raises is logged.
        """
        with self._state:
            self._on_lost.append(callback)
            if self._look() and self._loss is not None:
                self._core.keeper.schedule(self._tell_lost, self._core.world.now())

    def on_at_risk(self, threshold: float, callback: Callback) -> None:
        """Runs the callback, in a thread of the client's, when less than `threshold` seconds of the lease
        are left: once for each lease that was not renewed in time."""
        with self._state:
            self._at_risk.append(_AtRisk(self, threshold, callback))
            self._plan()

    def heartbeat(
        self, *, data: bytes | str | None = None, delete_data: bool = False, lease: float | None = None
    ) -> None:
        """Renews the lease now. `data` replaces the payload; `lease` (seconds) is the lease from now on.

        Tried again while the lease lasts. Raises `LockLost`, `Unavailable` where the lease lasts only by
        `hold_on_unavailable`, and other `LeaseholdError`s at once; the lock is then held as before.
        """
        if lease is not None:
            lease_to_ms(lease)
            heartbeat_every(self._holding.heartbeat_interval, lease)
        with self._sending:
            deadline = self._lease.ends
            backoff = Backoff(self._core.world.chance)
            try:
                while True:
                    self.check()
                    try:
                        return self._beat(lease or self._lease.seconds, data, delete_data)
                    except Unavailable as error:
                        if self._core.world.now() >= deadline and self.is_held:
                            raise
                        with self._state:
                            pause = self._pause_after(error, backoff)
                        self._over.wait(pause)
            finally:
                with self._state:
                    if self._beat_at is None and not self._holding.manual_heartbeats:
                        self._beat_at = self._core.world.now()
                    self._plan()

    def release(self, *, data: bytes | str | None = None, delete: bool = False) -> None:
        """Gives the lock back: with `data` for the next holder, or with `delete` without leaving the row.

        Heartbeats stop first. Tried again for ten seconds; raises `Unavailable` if that did not help (the
        lock is then free one lease after its last heartbeat, and `release` may be called again), and
        `LockLost` if there was nothing to give back. A second call does nothing.
        """
        self.release_until(None, data, delete)

    def granted(self) -> Self:
        """This guard. (`Held.granted` raises.)"""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases. An exception of the body passes through, whatever becomes of the release.

        If the body ended well: raises `LockLost` if the lock was lost meanwhile. A release that could not
        be delivered is only logged: the work is done, and the lock is free one lease later.
        """
        try:
            self.release()
        except LockLost:
            if error is None:
                raise
        except Exception as failure:
            _log.warning("the lock %r could not be released: %s", self.key, failure)

    # Below: for this package.

    @property
    def ended(self) -> bool:
        """Lost, or released beyond doubt: there is nothing left to release."""
        return self._delivered or self.lost is not None

    def release_until(
        self, deadline: float | None, data: bytes | str | None = None, delete: bool = False
    ) -> None:
        """As `release`, tried again until the deadline; at least tried once."""
        with self._state:
            if self._delivered:
                return
            self._look()
            if self._loss is not None:
                raise self._error()
            self._over.set()
            self._core.keeper.cancel(self._tick)
        try:
            self._core.repeat(
                lambda timeout: self._core.api.release(
                    self._name, self._lease_id, timeout=timeout, data=data, delete=delete
                ),
                lease=self._lease.seconds,
                deadline=deadline,
            )
        except LockLost as error:
            with self._state:
                self._lose(error.reason, error.lock)
            raise
        self._delivered = True

    def start(self) -> None:
        """Begins the heartbeats, and the watch over the lease."""
        with self._state:
            if not self._holding.manual_heartbeats:
                self._beat_at = self._core.world.now() + self._pause()
            self._plan()

    def after_fork_in_child(self) -> None:
        """The lock is the parent's."""
        was_over = self._over.is_set()
        self._state, self._sending, self._over = threading.RLock(), threading.Lock(), threading.Event()
        self._over.set()
        if not was_over:
            self._loss = ("forked", None)

    def _pause(self) -> float:
        interval = heartbeat_every(self._holding.heartbeat_interval, self._lease.seconds)
        return heartbeat_pause(interval, self._core.world.chance())

    def _look(self) -> bool:
        """Whether it is over. Notices that the lease has run out. Needs `_state`, as all below do."""
        if not self._over.is_set() and self._core.world.now() >= self._lease.believed_until:
            self._lose("expired", None)
        return self._over.is_set()

    def _lose(self, reason: LossReason, lock: LockView | None) -> None:
        if self._loss is None:
            self._loss = (reason, lock)
            self._over.set()
            self._core.keeper.cancel(self._tick)
            self._core.keeper.schedule(self._tell_lost, self._core.world.now())

    def _error(self) -> LockLost:
        reason, lock = self._loss or ("released", None)
        error = LockLost(reason, lock, key=self.key, sort_key=self.sort_key)
        error.__cause__ = self._trouble if reason == "expired" else None
        return error

    def _plan(self) -> None:
        """Tells the keeper when to look again."""
        if not self._over.is_set():
            times = [self._lease.believed_until]
            times += [self._lease.ends - risk.threshold for risk in self._at_risk if not risk.told]
            if self._beat_at is not None:
                times.append(self._beat_at)
            self._core.keeper.schedule(self._tick, min(times))

    def _tick(self) -> None:
        now = self._core.world.now()
        with self._state:
            if self._look():
                return
            for risk in self._at_risk:
                if not risk.told and now >= self._lease.ends - risk.threshold:
                    risk.told = True
                    self._core.keeper.schedule(risk.tell, now)
            beat = False
            if self._beat_at is not None and now >= self._beat_at:
                self._beat_at = None  # whoever is sending plans the next one
                beat = self._sending.acquire(blocking=False)
            self._plan()
        if beat:
            try:
                self._beat(self._lease.seconds)
            except Exception as error:
                if self._loss is not None or not self._over.is_set():  # not where it crossed with the release
                    _log.warning("a heartbeat of the lock %r failed: %s", self.key, error)
            finally:
                self._sending.release()

    def _beat(self, lease: float, data: bytes | str | None = None, delete_data: bool = False) -> None:
        """One heartbeat, and what follows from its answer. Needs `_sending`."""
        world = self._core.world
        with self._state:
            self._beat_at = None
            sent = world.now()
            timeout = request_timeout(lease, self._lease.believed_until - sent)
            self._lease.send(sent, lease)
            self._plan()
        try:
            renewal = self._core.api.heartbeat(
                self._name,
                self._lease_id,
                lease=lease,
                timeout=timeout,
                data=data,
                delete_data=delete_data,
            )
        except LockLost as error:
            with self._state:
                self._lease.refused()
                if not self._over.is_set():
                    self._lose(error.reason, error.lock)
            raise
        except BaseException as error:
            with self._state:
                if isinstance(error, LeaseholdError) and not getattr(error, "sent", False):
                    self._lease.refused()
                else:
                    self._lease.unanswered()
                if isinstance(error, Exception):
                    self._failed(error)
            raise
        with self._state:
            if self._look():  # the answer came after the lease had ended: too late to believe again
                raise self._error()
            self._lease.renewed(renewal.lease)
            self._renewal = renewal
            self._trouble = None
            self._backoff = Backoff(world.chance)
            for risk in self._at_risk:
                risk.told = False
            if not self._holding.manual_heartbeats:
                self._beat_at = sent + self._pause()
            self._plan()

    def _failed(self, error: Exception) -> None:
        """It says nothing about the lock: try again until the lease runs out."""
        now = self._core.world.now()
        self._trouble = error
        unreachable = isinstance(error, Unavailable) or not isinstance(error, LeaseholdError)
        if self._holding.hold_on_unavailable and unreachable and not self._look():
            self._lease.hold_on(now)
        if not self._holding.manual_heartbeats:
            self._beat_at = now + self._pause_after(error, self._backoff)
        self._plan()

    def _pause_after(self, error: Exception, backoff: Backoff) -> float:
        rest = self._lease.believed_until - self._core.world.now()
        return heartbeat_retry_pause(backoff.pause(getattr(error, "retry_after", 0.0)), rest)

    def _tell_lost(self) -> None:
        with self._state:
            callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callback) -> None:
        try:
            callback(self)
        except Exception:
            _log.exception("a callback for the lock %r failed", self.key)


class _AtRisk:
    """A callback for a lease that was not renewed in time."""

    def __init__(self, guard: Guard, threshold: float, callback: Callback) -> None:
        self.threshold = threshold
        self.told = False
        self._guard = guard
        self._callback = callback

    def tell(self) -> None:
        if not self._guard._over.is_set():
            self._guard._call(self._callback)
