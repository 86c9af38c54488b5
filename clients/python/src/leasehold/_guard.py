"""The rules of holding a lock, for every kind of client."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

from ._api import HeartbeatContent, Leaving
from ._call import may_apply
from ._core import end_of
from ._durations import Duration, seconds_of
from ._holder import (
    AtRisk,
    Beat,
    BeatEnded,
    Event,
    FinishRenew,
    GiveBack,
    Grant,
    Holder,
    HolderTerms,
    Leave,
    Renew,
    Renewed,
    Returned,
    SendBeat,
    TakeOver,
    TellLost,
    TokenSuperseded,
    Untold,
    WakeAt,
    WarnAt,
    WasLost,
)
from ._numbers import Numbered
from ._telemetry import result_of
from ._timing import LONGEST_TIMEOUT_MS, lease_to_ms, leave_bound
from .errors import InvalidRequest, LockLost, LossReason, Superseded, Unavailable
from .model import LockName, LockView, PermitsRenewal, ReleaseOutcome, Renewal

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._call import Cause
    from ._core import Core
    from ._holder import Reply
    from ._line import Turn
    from ._runtime import Event as Happened

Callback: TypeAlias = "Callable[[Any], object]"

Outcome: TypeAlias = Literal["created", "reacquired", "takenOver", "renewed", "resumed"]

_log = logging.getLogger("leasehold")


_WORDS: dict[str, str] = {"releasing": "being released", "unreleased": "not released yet"}
"""The states whose name says too little."""

_EXIT_TIMEOUT = 1.0
"""Seconds for the release of a lock that is held when its event loop ends."""


def _whole(seconds: float) -> int:
    """Whole milliseconds, for the rules; a century at most."""
    return int(min(seconds, 3e9) * 1000)


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

    @property
    def terms(self) -> HolderTerms:
        """The same, for the rules."""
        interval = None if self.heartbeat_interval is None else _whole(self.heartbeat_interval)
        return HolderTerms(
            LONGEST_TIMEOUT_MS,
            "manual" if self.manual_heartbeats else "quarterly" if interval is None else interval,
            _whole(self.delay),
            self.hold_on_unavailable,
            None if self.max_hold is None else _whole(self.max_hold),
        )

    def believed(self, lease: float) -> float:
        """The seconds of this lease that the holder believes in."""
        return self.terms.believed(_whole(lease)) / 1000

    def check(self, lease: float) -> None:
        """Raises `InvalidRequest` where the settings cannot keep a lease of so many seconds."""
        match self.terms.fault(_whole(lease)):
            case "delay":
                raise InvalidRequest(f"must be at least 0 and below the lease ({lease} s)", "lock_delay")
            case "interval":
                believed = lease - self.delay
                raise InvalidRequest(f"must be above 0 and at most half the lease ({believed} s)", "heartbeat_interval")


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
            await self.release_soon(self._core.world.now() + leave_bound(self.remaining()))
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
        sent: int,
        last_number: int,
        renewal: Renewal,
        holding: Holding,
        granted: Granted,
    ) -> None:
        """`sent`: the time of the first sending of the grant's request, for the rules."""
        self._core = core
        self._name = name
        self._lease_id = lease_id
        self._renewal = renewal
        self._holding = holding
        self._granted = granted
        grant = Grant(sent, round(renewal.lease * 1000), renewal.fencing_token, last_number)
        self._holder: Holder[HeartbeatContent] = Holder(holding.terms, grant)
        self._state = threading.RLock()  # reentrant: a signal handler may release
        self._clocks = core.world.clocks()  # when the last heartbeat was answered, or the last suspension was seen
        self._over = core.runtime.event()  # lost, or its release has begun
        self._calls: dict[int, _Renewing] = {}
        self._last_call = 0
        self._told: LockLost | None = None  # the loss, where an answer told it
        self._trouble: Exception | None = None  # the failure of the last heartbeat
        self._returning: Happened | None = None  # the release that is under way
        self._leaving: Leaving | None = None  # once a release has begun
        self._begun: float | None = None  # the time of the guard's start
        self.turn: Turn | None = None
        """The turn in the client's line, which ends with the hold."""
        self._on_lost: list[Callback] = []
        self._at_risk: list[Callback] = []

    def __repr__(self) -> str:
        return f"<Guard of {self.key!r}, {self.word}, fencing token {self.fencing_token}>"

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
        return self._holder.lease / 1000

    def remaining(self) -> float:
        """Seconds for which nobody else can take the lock over without another heartbeat. 0.0 after the lock
        was lost or released."""
        self._look()
        return self._holder.remaining(self._now()) / 1000

    @property
    def valid(self) -> bool:
        """Whether the lock is held, as far as can be known without asking. Once false, it stays false, unless the
        process was suspended: then nothing is believed until a heartbeat was answered."""
        self._look()
        return self._holder.valid(self._now())

    @property
    def lost(self) -> LossReason | None:
        """The reason of the loss, or `None` while the lock is held and after its release."""
        return self._holder.loss(self._now())

    def ensure_held(self) -> None:
        """Raises `LockLost` unless `valid`, and `Unavailable` after the process was suspended, until a heartbeat was
        answered. Sends nothing: cheap enough for every step of the work."""
        if self.valid:
            return
        if self.in_doubt:
            raise Unavailable("the process was suspended, and no heartbeat was answered since")
        raise self._error()

    def on_lost(self, callback: Callback) -> None:
        """Runs the callback once, in the client's background, when the lock is lost; at once if it was lost
        before. Does not run it after `release`. An exception of the callback is logged.
        """
        with self._state:
            self._on_lost.append(callback)
            if self.lost is not None:
                self._core.runtime.schedule(self._tell_lost, self._core.world.now())

    def on_at_risk(self, threshold: Duration, callback: Callback) -> None:
        """Runs the callback, in the client's background, when less than `threshold` seconds of the lease are
        left: once for each lease that was not renewed in time.

        Raises `InvalidRequest` for a threshold that every lease reaches before its next heartbeat.
        """
        threshold = seconds_of(threshold, "threshold")
        left = _whole(threshold)
        with self._state:
            terms, lease = self._holding.terms, self._holder.lease
            if not self._holding.manual_heartbeats and terms.fault(lease, left) == "warning":
                rest = (terms.believed(lease) - (terms.interval(terms.believed(lease)) or 0)) / 1000
                raise InvalidRequest(f"must be below {rest} s, which are left when a heartbeat is due", "threshold")
            self._at_risk.append(callback)
            self._step(WarnAt(left))

    def detach(self) -> Handover:
        """Ends the heartbeats without a release, and returns the parts that `Client.resume` needs in another
        process. The guard ends as well. Raises `LockLost` unless the lock is held."""
        with self._state:
            self.ensure_held()
            self._step("detach")
            self._end()
            self._end_turn()
            return Handover(self.key, self._lease_id, self._holder.numbers.last, self.sort_key)

    # The rest is for this package.

    @property
    def word(self) -> str:
        """The state, for people."""
        return self.lost or _WORDS.get(self._holder.state, self._holder.state)

    @property
    def in_doubt(self) -> bool:
        """Whether no heartbeat was answered since a suspension."""
        self._look()
        return self._holder.in_doubt

    def _look(self) -> None:
        """Ends the belief if the process was suspended since the last heartbeat was answered."""
        world, runtime = self._core.world, self._core.runtime
        clocks = world.clocks()
        if not self._clocks.show_suspension_until(clocks):
            return
        with self._state:
            self._clocks = clocks
            send, _ = self._step("suspended")
        if send is not None:
            runtime.schedule(partial(self._send_all, send), world.now())

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to release: the lock was lost, or certainly released."""
        return self._holder.state in ("released", "detached") or self.lost is not None

    def start(self) -> None:
        """Begins the heartbeats, and the watch over the lease."""
        _log.debug(
            "the lock %r is %s, fencing token %d", self.key, self.outcome, self.fencing_token, extra=_about(self)
        )
        with self._state:
            self._core.guards.add(self)
            self._begun = self._core.world.now()
            self._step("start")

    def is_of(self, name: LockName) -> bool:
        """Whether this is a guard of this key."""
        return self._name == name

    async def release_until(self, deadline: float | None, leaving: Leaving | None = None) -> None:
        """Releases, with retries until the deadline, and at least once. A later call, after a failure, leaves
        what the first call would have left, which may have been carried out; but not after a refusal."""
        with self._state:
            if leaving is not None and leaving.stores and self._leaving is not None and not self._leaving.stores:
                raise self._error()  # a release has begun that stores nothing
            self._leaving = this = self._leaving or leaving or Leaving()
        while (give_back := self._give_back()) is None:
            if self._holder.state in ("released", "detached"):
                return
            if (returning := self._returning) is None:
                raise self._error()
            await returning.wait(None)  # another caller releases it
        lease = give_back.lease / 1000

        async def send() -> None:
            done = Returned("failed")
            loss: LockLost | None = None
            try:
                await self._core.repeat(partial(self._try_release, leaving=this), lease=lease, deadline=deadline)
                done = Returned("done")
            except LockLost as error:
                self._told = loss = error
                done = Returned(WasLost(error.reason))
            finally:
                with self._state:
                    returning, self._returning = self._returning, None
                    self._step(done)
                if returning is not None:
                    returning.set()
            if loss is not None and self._holder.state == "lost":
                raise loss

        try:
            await self._core.runtime.finish(send)
        finally:
            self._end_turn()

    async def _try_release(self, timeout: float, leaving: Leaving) -> None:
        sent = self._now()
        try:
            await self._send_release(timeout, leaving)
        except BaseException as error:
            was_repeated = isinstance(error, LockLost) and error._was_repeated
            arrives = True if was_repeated else may_apply(end_of(error))
            if arrives is not None:
                self._step(Untold(sent, arrives, leaving.stores))
            elif isinstance(error, InvalidRequest):
                self._leaving = None
            raise

    def _give_back(self) -> GiveBack | None:
        """Ends the hold. Returns what is to be released, unless it is lost, released, or being released."""
        with self._state:
            give_back = self._step("release")[1]
            if give_back is not None:
                self._returning = self._core.runtime.event()
                self._end()
            return give_back

    async def release_at_exit(self, timeout: float) -> None:
        """Releases the lock that the program forgot, by one request: nothing can be repeated any more."""
        if self._over.is_set() or self._give_back() is None:
            return
        self._step(Returned("done"))
        _log.warning(
            "the lock %r was never released: it is released at the end of the program", self.key, extra=_about(self)
        )
        try:
            await self._send_release(timeout, Leaving())
        except Exception as failure:
            _log.warning("the lock %r could not be released: %s", self.key, failure, extra=_about(self))

    async def renew_with(self, content: HeartbeatContent) -> None:
        """Sends one heartbeat with this content, with retries while the lease lasts."""
        if content.lease is not None:
            lease_to_ms(content.lease)
            self._holding.check(content.lease)
        lease = None if content.lease is None else _whole(content.lease)
        with self._state:
            self._last_call += 1
            call, this = self._last_call, _Renewing(self._core.runtime.event())
            self._calls[call] = this
            send, _ = self._step(Renew(call, content, lease))
        try:
            # The caller carries out its own heartbeat. The background does so after a pause.
            while send is not None and not this.done.is_set():
                send = await self._send(send)
            if send is not None:
                self._core.runtime.schedule(partial(self._send_all, send), self._core.world.now())
            await this.done.wait(None)
        finally:
            with self._state:
                if self._calls.pop(call, None) is not None:
                    self._step(Leave(call))
        if this.error is not None:
            raise this.error

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
        self._state = threading.RLock()
        self._over = self._core.runtime.event()
        self._over.set()
        self._holder.step("forked", self._now(), self._core.world)

    def _now(self) -> int:
        return self._core.world.now_ms()

    def _step(
        self, event: Event[HeartbeatContent], answer: Renewal | None = None, error: Exception | None = None
    ) -> tuple[SendBeat[HeartbeatContent] | None, GiveBack | None]:
        """Takes an event, and carries out what can be done at once. Returns what is to be sent."""
        world, runtime = self._core.world, self._core.runtime
        send: SendBeat[HeartbeatContent] | None = None
        give_back: GiveBack | None = None
        with self._state:
            self._look()
            _, actions = self._holder.step(event, self._now(), world)
            if isinstance(event, BeatEnded) and self._holder.trouble == event.send:
                self._trouble = error or Unavailable("the answer arrived after its lease had ended")
            for action in actions:
                match action:
                    case SendBeat():
                        send = action
                    case WakeAt(time):
                        runtime.schedule(self._tick, time / 1000, at_exit=True)
                    case TakeOver():
                        self._renewal, self._trouble = cast(Renewal, answer), None
                        self._clocks = world.clocks()
                    case FinishRenew(call, outcome):
                        if (this := self._calls.pop(call, None)) is not None:
                            if outcome != "renewed":
                                this.error = self._error() if outcome == "ended" else self._trouble
                            this.done.set()
                    case AtRisk(risk):
                        runtime.schedule(partial(self._tell_at_risk, self._at_risk[risk]), world.now())
                    case TellLost(reason):
                        self._lost(reason)
                    case GiveBack():
                        give_back = action
                    case _:  # a request that was abandoned comes to its end, which counts for nothing
                        pass
        return send, give_back

    async def _tick(self) -> None:
        if self._core.runtime.ends:
            await self.release_at_exit(_EXIT_TIMEOUT)
            return
        send, _ = self._step("tick")
        if send is not None:
            await self._send_all(send)

    async def _send_all(self, send: SendBeat[HeartbeatContent]) -> None:
        """Sends a heartbeat, and what follows it at once."""
        following: SendBeat[HeartbeatContent] | None = send
        while following is not None:
            following = await self._send(following)

    async def _send(self, send: SendBeat[HeartbeatContent]) -> SendBeat[HeartbeatContent] | None:
        """Sends a heartbeat. Returns the one that follows at once."""
        beat: Beat[HeartbeatContent] = send.beat.content
        content = replace(beat.change or HeartbeatContent(), lease=beat.lease / 1000)
        numbered = Numbered(send.beat.sequence, send.beat.request_id, content, send.beat.sent / 1000)
        answer: Renewal | None = None
        error: BaseException | None = None
        end: Reply | Cause
        try:
            answer = await self._measured(numbered, send.timeout / 1000)
            end = Renewed(round(answer.lease * 1000), answer.fencing_token, answer.wanted)
        except BaseException as failure:
            error, end = failure, _end_of(failure)
            if isinstance(failure, LockLost):
                self._told = self._told or failure
            if not isinstance(failure, Exception):
                self._step(BeatEnded(send.send, end))
                raise
        was_under_way = self._holder.under_way == send.send  # no release crossed with it
        following, _ = self._step(BeatEnded(send.send, end), answer, cast("Exception | None", error))
        # A loss is told once, by `_lost`.
        if error is not None and was_under_way and not isinstance(error, LockLost):
            _log.warning("a heartbeat of the lock %r failed: %s", self.key, error, extra=_about(self))
        return following

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
        version, token = self._renewal.record_version_number, self.fencing_token
        return LockView(self.key, "held", self.owner_name or "", version, self.lease, self.sort_key, token)

    def _end_turn(self) -> None:
        if self.turn is not None:
            self.turn.end()

    def _lost(self, reason: LossReason) -> None:
        self._end()
        self._end_turn()
        self._core.api.telemetry.lost(reason)
        _log.warning("the lock %r is lost: %s", self.key, reason, extra=_about(self, reason=reason))
        self._core.runtime.schedule(self._tell_lost, self._core.world.now())

    def _error(self) -> LockLost:
        reason = self.lost or "released"
        told = self._told if self._told is not None and self._told.reason == reason else None
        error = LockLost(reason, None if told is None else told.lock, key=self.key, sort_key=self.sort_key)
        error.__cause__ = self._trouble if reason == "expired" else None
        return error

    async def _tell_lost(self) -> None:
        with self._state:
            callbacks, self._on_lost = self._on_lost, []
        for callback in callbacks:
            await call_back(callback, self)

    async def _tell_at_risk(self, callback: Callback) -> None:
        if not self._over.is_set():
            await call_back(callback, self)


def _end_of(error: BaseException) -> Reply | Cause:
    """The end of a heartbeat that raised this error, for the rules."""
    match error:
        case LockLost(reason=reason):
            return WasLost(reason)
        case Superseded(sequence=sequence, fencing_token=token):
            return TokenSuperseded(sequence, token)
    return cast("Reply | Cause", end_of(error))


@dataclass
class _Renewing:
    """A caller that waits for its heartbeat."""

    done: Happened
    error: Exception | None = None


class BaseLockGuard(BaseGuard):
    """A lock that was granted."""

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the lock, as far as a heartbeat has told. A holder may release the lock
        earlier than planned."""
        return self._holder.wanted

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
        return await self._core.api.heartbeat(self._name, self._lease_id, numbered, timeout, token)

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
