"""The asynchronous client."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

from .._acquisition import Held
from .._api import HeartbeatContent, Leaving
from .._bodies import awaited, check_body, key_of, takes_guard
from .._client import (
    AcquireOptions,
    BaseClient,
    LockOptions,
    State,
    TogetherOptions,
    done_before,
    explicit_options,
    list_query,
    settings_of,
)
from .._decorators import KeyOf, Period, key_for
from .._durations import Duration, seconds_if
from .._endpoints import Place, transport_of
from .._guard import Handover
from .._messages import Auth, Token
from .._semaphore import READ_WRITE_CAPACITY
from .._timing import SIDE_BY_SIDE, Wait, leave_bound
from .._tls import ClientCert, Path, tls_context
from .._watching import Observer
from .._world import World
from ..errors import CloseError, InvalidRequest, LockLost, OccurrenceDone
from ..model import (
    AlreadyDone,
    HistoryEntry,
    LockView,
    OneOfSeveral,
    Page,
    Ran,
    ReleaseOutcome,
    Renewal,
    SemaphoreView,
    payload_of,
)
from ._http import HttpxTransport, MakeClient
from ._tasks import Tasks
from .guard import AllGuard, Guard, bound_body
from .semaphore import ReadWriteLock, Semaphore
from .transactions import TransactionCalls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .._core import Kept

_log = logging.getLogger("leasehold")

T = TypeVar("T")
P = ParamSpec("P")


class Client(BaseClient[Guard], TransactionCalls):
    """A client of one Leasehold service, for code with `asyncio` or `trio`. One client for one event loop.

    As an asynchronous context manager the client is closed at the end of the block, which releases every
    lock. Cancellation leaves nothing behind: a lock that may have been granted to a cancelled caller is
    released in the background.

    Arguments, all but the first by name, are those of `leasehold.Client`, except for `make_client`, which
    makes the `httpx.AsyncClient`. A `token` that is a callable, and `auth`, run in a thread.

    Every call may raise the errors of `leasehold.errors`; wrong arguments raise `InvalidRequest`.
    """

    _guard_type = Guard

    def __init__(
        self,
        base_url: Place,
        *,
        owner_name: str | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        lease: Duration = 20.0,
        poll_interval: Duration | None = None,
        heartbeat_interval: Duration | None = None,
        wait_margin: Duration = 2.0,
        observation_margin: Duration = 1.0,
        ca_file: Path | None = None,
        client_cert: ClientCert | None = None,
        make_client: MakeClient | None = None,
        world: World | None = None,
    ) -> None:
        world = world or World()
        tls = None if ca_file is None and client_cert is None else tls_context(ca_file, client_cert)
        if tls is not None and make_client is not None:
            raise InvalidRequest("excludes ca_file and client_cert", "make_client")
        settings = settings_of(
            owner_name=owner_name,
            lease=lease,
            poll_interval=poll_interval,
            heartbeat_interval=heartbeat_interval,
            wait_margin=wait_margin,
            observation_margin=observation_margin,
        )
        transport = transport_of(
            base_url, token, headers, auth, lambda service: HttpxTransport(service, make_client, tls)
        )
        super().__init__(transport, Tasks(world), world, settings)

    # Acquiring

    @explicit_options(BaseClient._acquisition)
    async def try_acquire(self, key: str, **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Sends one request, without a retry. Takes over a lock that this client's earlier calls, or
        loaded observations, have shown to be stale.

        Giving up is a value: `Held`. Raises `Unavailable` if no answer came. The client releases, in the
        background, what that request or a cancelled one may have acquired.
        """
        return await self._once(self._acquisition(key, **options))

    @explicit_options(BaseClient._acquisition)
    async def acquire(self, key: str, *, wait: Wait = "lease", **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Waits for the lock. `wait` is in seconds, or `"lease"`, `"extend"`, `None` (see `leasehold.Wait`).

        Giving up is a value: `Held`. Raises `Unavailable` if the service did not answer once, and
        `WouldDeadlock` where this task, or the one that started it, holds the lock already.
        """
        return await self._wait(self._acquisition(key, **options), wait, self._core.pause)

    @explicit_options(BaseClient._acquisition)
    @asynccontextmanager
    async def lock(
        self,
        key: str,
        *,
        wait: Wait = "lease",
        cancel_on_loss: bool = True,
        reentrant: bool = False,
        **options: Unpack[AcquireOptions],
    ) -> AsyncIterator[Guard]:
        """`async with client.lock(key) as guard:` waits for the lock, and releases it at the block's end.

        Raises `LockHeld` when the wait is over. A loss of the lock cancels the body, and the block then
        raises `LockLost`; with `cancel_on_loss=False` the body is not interrupted, and the block raises
        `LockLost` at its end. An exception of the body is never hidden.

        Locks are not reentrant: `WouldDeadlock` is raised where this task, or the one that started it, holds the
        lock already. With `reentrant=True` the block then uses that guard, and leaves its release to the outer block.
        """
        if reentrant and (outer := self._taken(key, options.get("sort_key"))) is not None:
            yield outer
            outer.ensure_held()
            return
        result = await self.acquire(key, wait=wait, **options)
        guard = result.granted()
        async with bound_body(guard, cancel_on_loss):
            yield guard

    @explicit_options(BaseClient._together)
    async def try_acquire_all(
        self, keys: Iterable[OneOfSeveral], **options: Unpack[TogetherOptions]
    ) -> AllGuard | Held:
        """Sends one request for several keys, all or none, without a retry. `keys`: 2 to 50, each a key, a pair
        of key and sort key, or `Permits`. `Held` names one of the keys that others hold or wait for."""
        return await self._once(self._together(keys, AllGuard, **options))

    @explicit_options(BaseClient._together)
    async def acquire_all(
        self,
        keys: Iterable[OneOfSeveral],
        *,
        wait: Wait = "lease",
        **options: Unpack[TogetherOptions],
    ) -> AllGuard | Held:
        """Waits until all keys are granted at once. No caller holds some of the keys while it waits, so two
        callers never wait for each other. A semaphore in whose queue somebody waits refuses. Otherwise as
        `acquire`."""
        return await self._wait(self._together(keys, AllGuard, **options), wait, self._core.pause)

    @explicit_options(BaseClient._together)
    @asynccontextmanager
    async def lock_all(
        self,
        keys: Iterable[OneOfSeveral],
        *,
        wait: Wait = "lease",
        cancel_on_loss: bool = True,
        **options: Unpack[TogetherOptions],
    ) -> AsyncIterator[AllGuard]:
        """`async with client.lock_all(["a", "b"]) as guard:` waits for all locks, and releases them at the
        block's end. Raises as `lock` does."""
        guard = (await self.acquire_all(keys, wait=wait, **options)).granted()
        async with bound_body(guard, cancel_on_loss):
            yield guard

    @explicit_options(BaseClient._acquisition)
    async def once(
        self,
        key: str,
        occurrence: str,
        body: Callable[[Guard], Awaitable[T]],
        *,
        wait: Wait = "lease",
        **options: Unpack[LockOptions],
    ) -> Ran[T] | AlreadyDone:
        """Awaits `body` with the guard of the lock, unless the occurrence, or a later one, was done before. A
        loss of the lock cancels it. Occurrences are compared byte for byte: `2026-11-21T02`.

        Text or bytes that `body` returns become the lock's data. An exception of `body` is raised unchanged,
        and the occurrence may be run again, but not with `at_most_once=True`. Raises `LockHeld` when the wait
        is over, and `LockLost` or `Unavailable` if it is uncertain whether the occurrence counts as done.
        """
        check_body(body, "body", "coroutine function")
        try:
            asked = await self.acquire(key, wait=wait, occurrence=occurrence, **options)
        except OccurrenceDone as done:
            return done_before(occurrence, done)
        async with bound_body(guard := asked.granted(), True):
            result = await awaited(body, body(guard))
            await guard.release(completed=occurrence, data=payload_of(result))
        return Ran(result)

    @explicit_options(BaseClient._acquisition)
    def locked(
        self,
        key: KeyOf,
        *,
        wait: Wait = "lease",
        reentrant: bool = False,
        **options: Unpack[AcquireOptions],
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """`@client.locked("key")` runs a coroutine function under the lock, as `lock` does. The key may be a function
        of the arguments. A parameter `guard` of the function receives the guard."""

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            check_body(function, "function", "coroutine function")
            shows = takes_guard(function)

            @functools.wraps(function)
            async def under(*arguments: P.args, **named: P.kwargs) -> T:
                name = key_for(key, arguments, named)
                async with self.lock(name, wait=wait, reentrant=reentrant, **options) as guard:
                    if shows:
                        named["guard"] = guard
                    return await awaited(function, function(*arguments, **named))

            return under

        return decorate

    @explicit_options(BaseClient._acquisition)
    def once_every(
        self,
        key: str | None = None,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        wait: Wait = 0,
        **options: Unpack[LockOptions],
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, Ran[T] | AlreadyDone | Held]]]:
        """`@client.once_every(hours=1)` runs a coroutine function at most once in each period, over all processes that
        share the key (default: the function's name). Periods begin at multiples since the epoch, in UTC.

        The call returns `Ran`, or `AlreadyDone` where the period was done before, or `Held` where another one is at
        it. A failed run may be run again in its period. Otherwise as `once`.
        """
        period = Period(seconds, minutes, hours, days)

        def decorate(
            function: Callable[P, Awaitable[T]],
        ) -> Callable[P, Coroutine[Any, Any, Ran[T] | AlreadyDone | Held]]:
            check_body(function, "function", "coroutine function")
            shows, name = takes_guard(function), key or key_of(function)

            @functools.wraps(function)
            async def once(*arguments: P.args, **named: P.kwargs) -> Ran[T] | AlreadyDone | Held:
                occurrence = period.occurrence(self._core.world.epoch_ms())
                try:
                    asked = await self.acquire(name, wait=wait, occurrence=occurrence, **options)
                except OccurrenceDone as done:
                    return done_before(occurrence, done)
                if isinstance(asked, Held):
                    return asked
                async with bound_body(asked, True):
                    if shows:
                        named["guard"] = asked
                    result = await awaited(function, function(*arguments, **named))
                    await asked.release(completed=occurrence, data=payload_of(result))
                return Ran(result)

            return once

        return decorate

    def semaphore(self, key: str, capacity: int, *, sort_key: str | None = None) -> Semaphore:
        """Returns a semaphore of `capacity` permits. An existing semaphore keeps its own capacity."""
        return Semaphore(self, (key, sort_key), capacity)

    def read_write_lock(
        self, key: str, *, capacity: int = READ_WRITE_CAPACITY, sort_key: str | None = None
    ) -> ReadWriteLock:
        """Returns a lock for at most `capacity` readers, or one writer. The lock is a semaphore, and a writer
        takes all permits."""
        return ReadWriteLock(self, (key, sort_key), capacity)

    def fair_lock(self, key: str, *, sort_key: str | None = None) -> Semaphore:
        """Returns a lock that is granted in the order of the requests: a semaphore of one permit."""
        return Semaphore(self, (key, sort_key), 1)

    async def resume(
        self,
        handover: Handover,
        *,
        lease: Duration | None = None,
        heartbeat_interval: Duration | None = None,
        manual_heartbeats: bool = False,
        lock_delay: Duration = 0.0,
        max_hold: Duration | None = None,
        hold_on_unavailable: bool = False,
    ) -> Guard:
        """Makes a guard of a lock that another process acquired, by one heartbeat, which sets the lease to
        `lease` seconds, 0.1 to 86400 (default: unchanged). `handover` is what `Guard.detach` returned, or is made
        of a key and a lease id. Raises `LockLost` if the lock is not held under this id.
        """
        name = (handover.key, handover.sort_key)
        holding = self._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable, lock_delay, max_hold)
        beat = partial(self._core.api.heartbeat, name, handover.lease_id)
        return await self._resume(Guard, handover, beat, lease, holding)

    # With nothing but the lease id

    async def heartbeat(
        self,
        key: str,
        lease_id: str,
        *,
        sort_key: str | None = None,
        lease: Duration | None = None,
        data: bytes | str | None = None,
    ) -> Renewal:
        """Renews a lock that any process acquired, and sets its lease to `lease` seconds, 0.1 to 86400
        (default: unchanged). Retries for ten seconds."""
        return await self._heartbeat((key, sort_key), lease_id, HeartbeatContent(seconds_if(lease, "lease"), data))

    async def release(
        self,
        key: str,
        lease_id: str,
        *,
        sort_key: str | None = None,
        data: bytes | str | None = None,
        delete: bool = False,
        completed: str | None = None,
        completed_ttl: Duration | None = None,
    ) -> ReleaseOutcome:
        """Releases a lock that any process acquired. `completed` is the occurrence that is done, and
        `completed_ttl` the time for which it is remembered at least (default: for ever). May be
        repeated. Retries for ten seconds."""
        ttl = seconds_if(completed_ttl, "completed_ttl")
        return await self._release((key, sort_key), lease_id, Leaving(data, delete, completed, ttl))

    # Looking, and an operator's force

    async def get(self, key: str, *, sort_key: str | None = None) -> LockView:
        """Reads one lock, strongly consistent. Raises `LockNotFound`. Counts as an observation."""
        return await self._get((key, sort_key))

    async def get_semaphore(self, key: str, *, sort_key: str | None = None) -> SemaphoreView:
        """Reads one semaphore, strongly consistent. Raises `LockNotFound`. Counts as an observation of each
        holder and each ticket."""
        return await self._get_semaphore((key, sort_key))

    async def observe(self, key: str, *, sort_key: str | None = None) -> AsyncGenerator[LockView | None, None]:
        """Yields the present view of the lock or the semaphore, and its view after each change, by watching;
        `None` if there is none. Continues for ever, through outages."""
        poll_interval = self._settings["poll_interval"]
        observer = Observer(self._core, (key, sort_key), poll_interval, self._core.pause)
        while True:
            yield await observer.next()

    async def list(
        self,
        *,
        key: str | None = None,
        state: State | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[LockView]:
        """Yields all locks that match, page by page. Unreadable rows are in `pages` only."""
        async for page in self.pages(key=key, state=state, owner_name=owner_name, page_size=page_size):
            for lock in page.locks:
                yield lock

    async def pages(
        self,
        *,
        key: str | None = None,
        state: State | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> AsyncIterator[Page]:
        """Yields the pages of a listing. `key`: only the sort keys under it. `page_size`: 1 to 1000, default
        100. `cursor`: continues after the page that had it, with the other arguments unchanged."""
        while True:
            page = await self._page(list_query(key, state, owner_name, page_size, cursor))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    async def history(
        self,
        key: str,
        *,
        sort_key: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int | None = None,
    ) -> tuple[HistoryEntry, ...]:
        """Returns who held a lock, when, and how it ended, from the newest event on: those since and until these
        times, in epoch milliseconds. Reads page after page up to `limit`, which is all of them by default. Raises
        `LockNotFound` where the service keeps no history. Retries for ten seconds."""
        return await self._history((key, sort_key), since_ms, until_ms, limit)

    async def break_lock(self, key: str, record_version_number: str, *, sort_key: str | None = None) -> ReleaseOutcome:
        """Takes a lock from its holder, as an operator who saw it at this version. Raises `VersionMismatch`
        if it changed since. Retries for ten seconds."""
        return await self._break((key, sort_key), record_version_number)

    async def set_occurrence(
        self, key: str, last_occurrence: str, record_version_number: str, *, sort_key: str | None = None
    ) -> str:
        """Sets which occurrence counts as the last one that is done, as an operator who saw the lock at this
        version. Returns the new version. Raises `VersionMismatch` if the lock changed since, and `LockHeld`
        while it has a holder. Retries for ten seconds."""
        call = partial(self._core.api.set_occurrence, (key, sort_key), last_occurrence, record_version_number)
        return await self._repeat(call)

    async def break_entry(
        self, key: str, entry_id: str, version: str, *, sort_key: str | None = None
    ) -> ReleaseOutcome:
        """Removes a holder or a ticket of a semaphore, as an operator who saw it at this version. Raises
        `VersionMismatch` if it changed since. Retries for ten seconds."""
        return await self._repeat(partial(self._core.api.break_entry, (key, sort_key), entry_id, version))

    async def set_capacity(self, key: str, capacity: int, expected: int, *, sort_key: str | None = None) -> int:
        """Changes the capacity of a semaphore, as an operator who saw the capacity `expected`. Returns the
        number of free permits. Holders keep their permits. Raises `VersionMismatch` for another capacity."""
        return await self._repeat(partial(self._core.api.set_capacity, (key, sort_key), capacity, expected))

    # The end

    async def close(self) -> None:
        """Releases every lock, ends the waiting of other tasks, and closes the connections.

        One failure does not stop the others; `CloseError` contains all failures. Lost locks are no failure.
        If the service does not answer, the releases go on in the background after two seconds, with a warning.
        May be repeated.
        """
        self._core.closed.set()
        deadline = self._core.world.now() + leave_bound()
        errors: list[Exception] = []

        # Each release has a connection: a thousand at once would keep the service from answering any in time.
        side_by_side = anyio.CapacityLimiter(SIDE_BY_SIDE)

        async def release(guard: Kept) -> None:
            try:
                async with side_by_side:
                    await guard.release_soon(deadline)
            except LockLost:
                pass
            except Exception as error:
                errors.append(error)

        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as releases:
                for guard in self._core.live_guards():
                    releases.start_soon(release, guard)
            await self._core.settle(max(0.0, deadline - self._core.world.now()))
            await self._core.api.transport.close()
        if errors:
            raise CloseError(tuple(errors)) from errors[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except CloseError as failure:
            if error is None:
                raise
            _log.warning("%s", failure)
