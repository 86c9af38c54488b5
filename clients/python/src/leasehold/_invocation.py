"""A lock for one invocation of a Lambda function: its deadline, its heartbeats, its freezes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from ._acquisition import Held
from ._api import Leaving
from ._bodies import check_body
from ._runtime import run
from ._timing import OPERATION_BOUND, heartbeat_interval_ms
from .client import Client
from .errors import InvalidRequest, LeaseholdError, LockLost, LossReason
from .guard import Guard

_log = logging.getLogger("leasehold")

PULSE = 0.25
"""Seconds between two signs of life of the process."""

FROZEN = 1.0
"""Seconds without a sign of life after which the process counts as frozen."""

_SHORTEST_LEASE = 0.1

LostCallback: TypeAlias = "Callable[[InvocationGuard], object]"


class Context(Protocol):
    """The part of a Lambda context that is needed."""

    def get_remaining_time_in_millis(self) -> int: ...


class Deadline:
    """The end of an invocation, by the holder's clock."""

    def __init__(self, client: Client, context: Context, margin: float) -> None:
        self.now = client._core.world.now
        self.margin = margin
        self.at = self.now() + context.get_remaining_time_in_millis() / 1000

    @property
    def stops(self) -> float:
        """The time at which the work must end."""
        return self.at - self.margin

    def left(self, needed: float = 0.0) -> float:
        """The seconds that are left for a wait, before work that needs so many."""
        return max(0.0, self.stops - needed - self.now())

    def lease(self, asked: float) -> float:
        """The lease that is asked for, or what remains of the invocation and the margin, if that is shorter.
        Raises `InvalidRequest` if there is no time for any work."""
        now = self.now()
        if now >= self.stops:
            raise InvalidRequest(f"the invocation ends in {self.at - now:.1f} s: no time for any work", "margin")
        return self.cut(asked)

    def cut(self, asked: float) -> float:
        """The same, also at the end."""
        return max(_SHORTEST_LEASE, min(asked, self.at + self.margin - self.now()))


def asked(client: Client, deadline: Deadline, ask: Callable[[], Guard | Held]) -> Guard | Held:
    """Asks for the lock of an invocation. Where that brings no guard, it waits until a request without an answer, which
    may have acquired the lock, was given back: the sandbox is frozen behind the end of the invocation."""
    result: Guard | Held | None = None
    try:
        result = ask()
        return result
    finally:
        if not isinstance(result, Guard):
            run(client._core.settle(max(0.0, deadline.at - deadline.margin / 4 - deadline.now())))


class InvocationGuard:
    """The lock of an invocation. Hand `fencing_token` to every resource that the work writes to.

    Heartbeats renew the lease, which never outlasts the invocation by more than the margin. After a freeze of
    the sandbox, nothing is believed until a heartbeat was answered.
    """

    def __init__(self, guard: Guard, deadline: Deadline) -> None:
        self.leaving: Leaving | None = None
        """What the release leaves, if the work came to its end."""
        self._guard = guard
        self._deadline = deadline
        self._lease = guard.lease
        self._runtime = guard._core.runtime
        self._state = threading.RLock()
        self._pulse = deadline.now()
        self._freezes = 0
        self._believed = 0  # the freezes before the last answered heartbeat was sent
        self._is_over = False  # the invocation has ended, or gave the lock back
        self._loss: LossReason | None = None
        self._callbacks: list[LostCallback] = []
        self._sending = threading.Lock()
        self._ending = threading.Lock()  # a sandbox is frozen behind its answer, so that a release must end before

    def __repr__(self) -> str:
        return repr(self._guard)

    @property
    def key(self) -> str:
        """The lock's key."""
        return self._guard.key

    @property
    def sort_key(self) -> str | None:
        """The lock's sort key, on a table that has one."""
        return self._guard.sort_key

    @property
    def fencing_token(self) -> int:
        """A token above every token granted for this key before."""
        return self._guard.fencing_token

    @property
    def data(self) -> bytes | None:
        """The payload at the time of the grant."""
        return self._guard.data

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the lock, as far as a heartbeat has told."""
        return self._guard.wanted

    @property
    def lost(self) -> LossReason | None:
        """The reason to stop: that of a loss, or `deadline`. `None` while the work may go on."""
        return self._loss or self._guard.lost

    @property
    def valid(self) -> bool:
        """Whether the work may go on. False after a freeze, until a heartbeat was answered."""
        return not self._is_frozen() and self._loss is None and self._guard.valid

    def remaining(self) -> float:
        """Seconds for which nobody else can take the lock over; 0.0 where `valid` is false."""
        return self._guard.remaining() if self.valid else 0.0

    def ensure_held(self) -> None:
        """Raises `LockLost` unless the work may go on. Sends nothing, but after a freeze a heartbeat."""
        while self._is_frozen():
            self.renew()
        if self._loss is not None:
            raise LockLost(self._loss, key=self.key, sort_key=self.sort_key)
        self._guard.ensure_held()

    def renew(self) -> None:
        """Renews the lease now. Raises as `Guard.renew`."""
        with self._sending:
            self._is_frozen()
            freezes = self._freezes
            self._guard.renew(lease=self._deadline.cut(self._lease))
            self._believed = freezes

    def on_lost(self, callback: LostCallback) -> None:
        """Runs the callback once, in another thread, when the work must stop; at once if it must already."""
        check_body(callback, "callback", "function")
        with self._state:
            if self._loss is None:
                self._callbacks.append(callback)
                return
        callback(self)

    # The rest is for this package.

    def start(self) -> None:
        """Begins the heartbeats and the watch over the deadline."""
        self._guard.on_lost(lambda guard: self._tell(guard.lost or "expired"))
        now = self._deadline.now()
        self._runtime.schedule(self._tick, now + PULSE)
        # After a wait, the lease was asked for when more of the invocation remained.
        is_cut = self._deadline.cut(self._lease) < self._lease - PULSE
        self._runtime.schedule(self._beat, now if is_cut else now + self._pause())
        self._runtime.schedule(self._stop, self._deadline.stops)
        self._runtime.schedule(self._end, self._deadline.at - self._deadline.margin / 2)

    def finish(self) -> None:
        """Ends work that came to its end. Raises `LockLost` if the lock was lost, or given back, before. A
        release that could not be delivered is only logged, unless it leaves something."""
        with self._ending:
            if not self._finish():
                raise LockLost("deadline", key=self.key, sort_key=self.sort_key)
            self._guard.ensure_held()
            if self.leaving is None:
                self._give_back()
            else:
                self._release(self.leaving)

    def abort(self) -> None:
        """Ends work that failed."""
        with self._ending:
            if self._finish():
                self._give_back()

    def _finish(self) -> bool:
        """Ends all background work. Returns whether it was this call that did."""
        with self._state:
            was_over, self._is_over = self._is_over, True
        for task in (self._tick, self._beat, self._stop, self._end):
            self._runtime.cancel(task)
        return not was_over

    def _release(self, leaving: Leaving | None) -> None:
        now, reserve = self._deadline.now(), self._deadline.margin / 4
        last = max(now + reserve, self._deadline.at - reserve)
        run(self._guard.release_until(min(last, now + OPERATION_BOUND), leaving))

    def _give_back(self) -> None:
        try:
            self._release(None)
        except LockLost:
            pass
        except LeaseholdError as error:
            _log.warning("%s could not be released, and is free at the end of its lease: %s", self, error)

    def _pause(self) -> float:
        return max(PULSE, heartbeat_interval_ms(int(self._guard.lease * 1000)) / 1000)

    def _is_frozen(self) -> bool:
        """Looks for a freeze since the last sign of life. Returns whether no heartbeat was sent and answered since."""
        with self._state:
            now = self._deadline.now()
            if not self._is_over and now - self._pulse > FROZEN:
                self._freezes += 1
            self._pulse = now
            return self._believed < self._freezes or self._guard.in_doubt

    def _tell(self, reason: LossReason) -> None:
        with self._state:
            if self._loss is not None or self._is_over:
                return
            self._loss, callbacks = reason, self._callbacks
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("a callback for %s failed", self)

    async def _tick(self) -> None:
        with self._state:
            if self._is_over:
                return
            frozen = self._is_frozen()
            self._runtime.schedule(self._tick, self._pulse + PULSE)
            if frozen:
                self._runtime.schedule(self._beat, self._pulse)

    async def _beat(self) -> None:
        try:
            self.renew()
        except LeaseholdError as error:
            if not self._is_over:
                _log.warning("a heartbeat of %s failed: %s", self, error)
        with self._state:
            at = self._deadline.now() + self._pause()
            if not self._is_over and self._guard.valid and at < self._deadline.stops:
                self._runtime.schedule(self._beat, at)

    async def _stop(self) -> None:
        self._tell("deadline")

    async def _end(self) -> None:
        self.abort()


@contextmanager
def kept(guard: Guard, deadline: Deadline, context: Any) -> Iterator[InvocationGuard]:
    """A block under the lock of an invocation, which `context.leasehold` names meanwhile. Releases on every way
    out. An exception of the body is raised unchanged."""
    held = InvocationGuard(guard, deadline)
    context.leasehold = held
    held.start()
    try:
        yield held
    except BaseException:
        held.abort()
        raise
    held.finish()
