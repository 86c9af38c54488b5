"""The rules of acquiring locks, for every kind of client."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeAlias, TypedDict, TypeVar

from ._acquisition import Acquisition, G, Held
from ._api import Api, HeartbeatContent, Leaving
from ._core import Core
from ._durations import Duration, seconds_if, seconds_of, whole
from ._flow import held_here, note
from ._guard import B, Granted, Handover, Holding
from ._numbers import Numbered, Numbers, ending_of
from ._payload import payload_base64, payload_text
from ._telemetry import result_of
from ._timing import Budget, Wait, lease_to_ms
from ._together import L, Together
from ._world import World
from .errors import InvalidRequest, LockNotFound, OccurrenceDone, Superseded, Unavailable, WouldDeadlock
from .model import (
    AlreadyDone,
    HistoryEntry,
    LockName,
    LockView,
    OneOfSeveral,
    Page,
    Permits,
    ReleaseOutcome,
    Renewal,
    SemaphoreView,
)
from .observations import SavedObservation

if TYPE_CHECKING:
    from . import _wire
    from ._messages import Transport
    from ._runtime import Runtime
    from ._watching import Pause

SavedObservations: TypeAlias = list[SavedObservation]

State: TypeAlias = Literal["held", "released"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("leasehold")


def done_before(occurrence: str, done: OccurrenceDone) -> AlreadyDone:
    """The outcome of a run that is done. Warns where a later one is: no run is due until then."""
    lock = done.lock
    if lock is not None and lock.last_occurrence != occurrence:
        _log.warning("%r is done up to %s, which sorts after %s", lock.key, lock.last_occurrence, occurrence)
    return AlreadyDone(done.lock)


class LockOptions(TypedDict, total=False):
    """The options of a lock."""

    sort_key: str | None
    """The lock's sort key, on a table that has one: 1 to 1024 bytes of UTF-8."""
    owner_name: str | None
    """The owner's name, for people to read. Default: the client's."""
    lease: Duration | None
    """The lease in seconds, 0.1 to 86400. Default: the client's."""
    data: bytes | str | None
    """The payload, at most 256 KiB. `None`: the row's stays."""
    replace_data: bool
    """False: `data` is stored only if the row has none. Default: true."""
    only_if_exists: bool
    """Raise `LockNotFound` if there is no row. Default: false."""
    attributes: Mapping[str, Any] | None
    """Additional attributes of the row, as plain JSON, at most 50."""
    at_most_once: bool
    """True: the occurrence counts as completed from the acquisition on. Default: false."""
    staleness: Literal["rvn", "clock"]
    """`clock`: the service's clocks judge a holder dead, without any waiting. Default: `rvn`, this client's
    own observations."""
    heartbeat_interval: Duration | None
    """The interval of heartbeats in seconds, at most half the lease. Default: the client's, or a quarter of
    the lease."""
    manual_heartbeats: bool
    """True: no heartbeats in the background; call `Guard.heartbeat`. Default: false."""
    lock_delay: Duration
    """Seconds at the end of each lease, 0 or more and below the lease, in which this holder does not believe in
    it. Default: 0."""
    max_hold: Duration | None
    """The longest time to hold the lock. At its end the guard is lost, with the reason `max-hold`; the lock is
    free one lease after the last heartbeat. Default: none."""
    hold_on_unavailable: bool
    """True: the holder believes in the lock while the service cannot be reached. **Another holder may have
    taken it over meanwhile**: only for work where two holders are better than none. Default: false."""


class AcquireOptions(LockOptions, total=False):
    """The options of `try_acquire`, `acquire` and `lock`."""

    occurrence: str | None
    """The occurrence of a recurring job, such as `2026-11-21T02`. Raises `OccurrenceDone` if it, or a later one,
    was completed."""


class TogetherOptions(TypedDict, total=False):
    """The options of a request for several locks, like those for one."""

    owner_name: str | None
    lease: Duration | None
    staleness: Literal["rvn", "clock"]
    heartbeat_interval: Duration | None
    manual_heartbeats: bool
    lock_delay: Duration
    max_hold: Duration | None
    hold_on_unavailable: bool


class Settings(TypedDict):
    """The settings of a client that its locks inherit, in seconds."""

    owner_name: str | None
    lease: float
    poll_interval: float | None
    heartbeat_interval: float | None
    wait_margin: float
    observation_margin: float


def settings_of(
    *,
    owner_name: str | None,
    lease: Duration,
    poll_interval: Duration | None,
    heartbeat_interval: Duration | None,
    wait_margin: Duration,
    observation_margin: Duration,
) -> Settings:
    """Checks the settings. Raises `InvalidRequest`."""
    settings: Settings = {
        "owner_name": owner_name,
        "lease": seconds_of(lease, "lease"),
        "poll_interval": seconds_if(poll_interval, "poll_interval"),
        "heartbeat_interval": seconds_if(heartbeat_interval, "heartbeat_interval"),
        "wait_margin": seconds_of(wait_margin, "wait_margin"),
        "observation_margin": seconds_of(observation_margin, "observation_margin"),
    }
    lease_to_ms(settings["lease"])
    if settings["poll_interval"] == 0:
        raise InvalidRequest("must be above zero", "poll_interval")
    return settings


class Acquiring(Protocol[T_co]):
    """An acquisition: of a lock, of permits, of several locks."""

    @property
    def name(self) -> LockName: ...

    async def once(self) -> T_co | Held:
        """Sends one request."""
        ...

    async def wait(self, budget: Budget, poll_interval: float | None, sleep: Pause) -> T_co | Held:
        """Sends requests until the budget is used up."""
        ...

    def waits_for(self, guards: Sequence[Any]) -> bool:
        """Whether it is never granted while these guards of its own flow are held."""
        ...

    def taken(self) -> None:
        """Records that the caller has its guard."""
        ...

    def abandon(self) -> None:
        """Releases a grant that may have been missed."""
        ...

    def end_turn(self) -> None:
        """Lets the next waiter of this client ask: this one has no guard."""
        ...


class Starting(Protocol):
    """A guard before its start."""

    def start(self) -> None: ...


S = TypeVar("S", bound=Starting)

Beat: TypeAlias = "Callable[[Numbered[HeartbeatContent], float], Awaitable[Renewal]]"
"""Sends a heartbeat; the number is its time-out."""


class BaseClient(Generic[G]):
    """A client of one Leasehold service."""

    _guard_type: type[G]

    def __init__(self, transport: Transport, runtime: Runtime, world: World, settings: Settings) -> None:
        self._settings = settings
        self._core = Core(Api(transport), world, runtime, settings["observation_margin"])

    async def _once(self, asking: Acquiring[S]) -> S | Held:
        return await self._started(asking, asking.once)

    async def _wait(self, asking: Acquiring[S], wait: Wait, sleep: Pause) -> S | Held:
        budget = Budget(wait, self._core.world.now(), self._settings["wait_margin"])
        if asking.waits_for(held_here(self._core)):
            raise WouldDeadlock(asking.name[0])
        poll_interval = self._settings["poll_interval"]

        async def ask() -> S | Held:
            result = await asking.wait(budget, poll_interval, sleep)
            if not isinstance(result, Held):
                await sleep(0)  # raises if the wait was cancelled while the request was under way
            return result

        return await self._started(asking, ask)

    async def _started(self, asking: Acquiring[S], ask: Callable[[], Awaitable[S | Held]]) -> S | Held:
        """Sends requests, and leaves nothing behind unless a guard is returned."""
        telemetry, begun = self._core.api.telemetry, self._core.world.now()
        guard, outcome = None, "held"
        try:
            with telemetry.span("wait", asking.name[0]):
                result = await ask()
            if not isinstance(result, Held):
                asking.taken()
                result.start()
                note(result)
                guard, outcome = result, "granted"
            return result
        except BaseException as error:
            outcome = result_of(error)
            raise
        finally:
            if guard is None:
                asking.abandon()
                asking.end_turn()
            telemetry.waited(self._core.world.now() - begun, outcome)

    async def _resume(
        self,
        guard: type[B],
        handover: Handover,
        beat: Beat,
        lease: Duration | None,
        holding: Holding,
        granted: Granted | None = None,
    ) -> B:
        """Makes a guard of a grant that another process holds."""
        self._core.check_open()
        numbers: Numbers[HeartbeatContent] = Numbers(handover.sequence or 0)
        renewal, sent = await self._renew(beat, HeartbeatContent(seconds_if(lease, "lease")), numbers)
        holding.check(renewal.lease)
        resumed = guard(
            self._core,
            name=(handover.key, handover.sort_key),
            lease_id=handover.lease_id,
            sent=sent,
            last_number=numbers.last,
            renewal=renewal,
            holding=holding,
            granted=granted or Granted(),
        )
        resumed.start()
        return resumed

    async def _heartbeat(self, name: LockName, lease_id: str, content: HeartbeatContent) -> Renewal:
        self._core.check_open()
        beat = partial(self._core.api.heartbeat, name, lease_id)
        return (await self._renew(beat, content, Numbers()))[0]

    async def _renew(
        self, beat: Beat, content: HeartbeatContent, numbers: Numbers[HeartbeatContent]
    ) -> tuple[Renewal, int]:
        """Sends one heartbeat under a lease id that has no guard here, and retries it. Returns the time of its
        first sending as well, for the rules."""

        async def send(timeout: float) -> tuple[Renewal, int]:
            numbered = numbers.next(content, self._core.world.now_ms(), self._core.world.new_id)
            try:
                renewal = await beat(numbered, timeout)
            except BaseException as error:
                numbers.ended(ending_of(error))
                if isinstance(error, Superseded):
                    return await send(timeout)
                raise
            numbers.ended("told")
            sent = int(numbered.sent)
            if self._core.world.now_ms() >= sent + lease_to_ms(renewal.lease):
                raise Unavailable("the answer arrived after its lease had ended")
            return renewal, sent

        return await self._core.repeat(send, lease=content.lease)

    async def _release(self, name: LockName, lease_id: str, leaving: Leaving) -> ReleaseOutcome:
        ended = await self._repeat(lambda timeout: self._core.api.release(name, lease_id, timeout, leaving))
        self._core.released(name, ended.wanted)
        return ended.outcome

    async def _get(self, name: LockName) -> LockView:
        try:
            lock = await self._repeat(lambda timeout: self._core.api.get_lock(name, timeout))
        except LockNotFound:
            self._core.observations.forget(name)
            raise
        if lock.state == "held":
            self._core.observations.see(lock)
        else:
            self._core.observations.forget(name)
        return lock

    async def _get_semaphore(self, name: LockName) -> SemaphoreView:
        view = await self._repeat(partial(self._core.api.get_semaphore, name))
        self._core.entries.see(view)
        return view

    async def _page(self, query: Mapping[str, object]) -> Page:
        return await self._repeat(lambda timeout: self._core.api.list_locks(query, timeout))

    async def _history(
        self, name: LockName, since_ms: int | None, until_ms: int | None, limit: int | None
    ) -> tuple[HistoryEntry, ...]:
        """The events of all pages, up to `limit`."""
        entries: tuple[HistoryEntry, ...] = ()
        cursor: str | None = None
        limit = whole(limit, "limit", 1)
        since_ms, until_ms = whole(since_ms, "since_ms", 0), whole(until_ms, "until_ms", 0)
        while limit is None or len(entries) < limit:
            query = history_query(name, since_ms, until_ms, limit and limit - len(entries), cursor)
            page, cursor = await self._repeat(partial(self._core.api.history, query))
            entries += page
            if cursor is None:
                break
        return entries

    async def _break(self, name: LockName, record_version_number: str) -> ReleaseOutcome:
        return await self._repeat(lambda timeout: self._core.api.break_lock(name, record_version_number, timeout))

    def save_observations(self) -> SavedObservations:
        """Returns this client's observations of held locks, as plain JSON documents. See
        `load_observations`."""
        return self._core.observations.save()

    def load_observations(self, saved: Iterable[SavedObservation]) -> None:
        """Adds observations that an earlier process, or another host, has saved. A job that runs for a second
        each minute can then take over a dead holder's lock. The wall clock measures their age: the clocks of
        all who share them must agree within `observation_margin`."""
        self._core.observations.load(saved)

    def _acquisition(
        self,
        key: str,
        *,
        sort_key: str | None = None,
        owner_name: str | None = None,
        lease: Duration | None = None,
        data: bytes | str | None = None,
        replace_data: bool = True,
        only_if_exists: bool = False,
        attributes: Mapping[str, Any] | None = None,
        occurrence: str | None = None,
        at_most_once: bool = False,
        staleness: Literal["rvn", "clock"] = "rvn",
        heartbeat_interval: Duration | None = None,
        manual_heartbeats: bool = False,
        lock_delay: Duration = 0.0,
        max_hold: Duration | None = None,
        hold_on_unavailable: bool = False,
    ) -> Acquisition[G]:
        lease = self._settings["lease"] if lease is None else seconds_of(lease, "lease")
        request: _wire.AcquireRequest = {
            "key": key,
            "sortKey": sort_key,
            "ownerName": self._owner_name(owner_name),
            "leaseDurationMs": lease_to_ms(lease),
            "data": payload_text(data),
            "dataBase64": payload_base64(data),
            "replaceData": None if replace_data else False,
            "onlyIfExists": only_if_exists or None,
            "attributes": _members(attributes),
            "occurrence": occurrence,
            "atMostOnce": at_most_once or None,
            "staleness": None if staleness == "rvn" else staleness,
        }
        holding = self._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable, lock_delay, max_hold)
        self._core.check_open()
        return Acquisition(self._core, request, lease, holding, self._guard_type)

    def _together(
        self,
        keys: Iterable[OneOfSeveral],
        guard: type[L],
        *,
        owner_name: str | None = None,
        lease: Duration | None = None,
        staleness: Literal["rvn", "clock"] = "rvn",
        heartbeat_interval: Duration | None = None,
        manual_heartbeats: bool = False,
        lock_delay: Duration = 0.0,
        max_hold: Duration | None = None,
        hold_on_unavailable: bool = False,
    ) -> Together[L]:
        if isinstance(keys, str):
            raise InvalidRequest("must be several keys, not one text", "keys")
        wanted: list[LockName | Permits] = [(key, None) if isinstance(key, str) else key for key in keys]
        if len(wanted) < 2:
            raise InvalidRequest("must be 2 to 50", "keys")
        lease = self._settings["lease"] if lease is None else seconds_of(lease, "lease")
        request: _wire.AcquireAllRequest = {
            "keys": [],
            "ownerName": self._owner_name(owner_name),
            "leaseDurationMs": lease_to_ms(lease),
            "staleness": None if staleness == "rvn" else staleness,
        }
        holding = self._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable, lock_delay, max_hold)
        self._core.check_open()
        return Together(self._core, wanted, request, lease, holding, guard)

    def _taken(self, key: str, sort_key: str | None) -> G | None:
        """The guard of this lock that the running flow has, if any."""
        for guard in held_here(self._core):
            if isinstance(guard, self._guard_type) and guard.is_of((key, sort_key)):
                return guard
        return None

    def __reduce__(self) -> NoReturn:
        raise InvalidRequest("a client cannot be pickled or copied: make one in each process")

    def _owner_name(self, chosen: str | None) -> str:
        return chosen or self._settings["owner_name"] or f"{socket.gethostname()}:{os.getpid()}"

    def _holding(
        self,
        lease: Duration | None,
        interval: Duration | None,
        manual: bool,
        hold_on: bool,
        delay: Duration = 0.0,
        max_hold: Duration | None = None,
    ) -> Holding:
        chosen = (
            self._settings["heartbeat_interval"] if interval is None else seconds_of(interval, "heartbeat_interval")
        )
        longest = seconds_if(max_hold, "max_hold")
        if longest == 0:
            raise InvalidRequest("must be above zero", "max_hold")
        holding = Holding(chosen, manual, hold_on, seconds_of(delay, "lock_delay"), longest)
        if lease is not None:
            holding.check(seconds_of(lease, "lease"))
        return holding

    async def _repeat(self, send: Callable[[float], Awaitable[T]], lease: float | None = None) -> T:
        self._core.check_open()
        return await self._core.repeat(send, lease=lease)


def explicit_options(source: Callable[..., object]) -> Callable[[F], F]:
    """Shows the options of `source` in the signature of a function, so that `help` and editors list them.
    Refuses other options in the function's own name."""

    def explicit(function: F) -> F:
        own = inspect.signature(function)
        options = inspect.signature(source).parameters.values()
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        shown_already = {p.name for p in parameters}
        parameters += [p for p in options if p.kind is p.KEYWORD_ONLY and p.name not in shown_already]
        signature = own.replace(parameters=parameters)

        def check(kwargs: Mapping[str, object]) -> None:
            unknown = kwargs.keys() - signature.parameters.keys()
            if unknown:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}")

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def checked_coroutine(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return await function(*args, **kwargs)

        shown: Any = checked_coroutine if inspect.iscoroutinefunction(function) else checked
        shown.__signature__ = signature
        shown_function: F = shown
        return shown_function

    return explicit


_LARGEST_PAGE = 1000
"""The largest page of locks, and of a history."""


def _members(attributes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if attributes is None:
        return None
    if not isinstance(attributes, Mapping) or not all(isinstance(name, str) for name in attributes):
        raise InvalidRequest(f"must be a mapping from texts, not {attributes!r}", "attributes")
    return dict(attributes)


def list_query(
    key: str | None, state: State | None, owner_name: str | None, page_size: int | None, cursor: str | None
) -> dict[str, object]:
    """The query of a page."""
    page_size = whole(page_size, "page_size", 1, _LARGEST_PAGE)
    return {"limit": page_size, "cursor": cursor, "state": state, "ownerName": owner_name, "key": key}


def history_query(
    name: LockName, since_ms: int | None, until_ms: int | None, left: int | None, cursor: str | None
) -> dict[str, object]:
    """The query of a page. `left` is the number of events that are still wanted."""
    limit = _LARGEST_PAGE if left is None else min(left, _LARGEST_PAGE)
    times = {"sinceMs": since_ms, "untilMs": until_ms}
    return {"key": name[0], "sortKey": name[1], **times, "limit": limit, "cursor": cursor}
