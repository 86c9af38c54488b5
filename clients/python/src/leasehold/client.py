"""The synchronous client."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ._acquisition import Held
from ._api import HeartbeatContent, Leaving
from ._bodies import check_body, finished, key_of, takes_guard
from ._cancelling import pause_until
from ._client import (
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
from ._decorators import KeyOf, Period, key_for
from ._durations import Duration, seconds_if
from ._endpoints import Place, transport_of
from ._guard import Handover
from ._http import HttpTransport, MakePool
from ._messages import Auth, Token
from ._runtime import run
from ._semaphore import READ_WRITE_CAPACITY
from ._threads import Threads
from ._timing import SIDE_BY_SIDE, Wait, leave_bound
from ._tls import ClientCert, Path, tls_context
from ._watching import Observer
from ._world import World
from .errors import CloseError, InvalidRequest, LockLost, OccurrenceDone
from .guard import AllGuard, Guard
from .model import (
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
from .semaphore import ReadWriteLock, Semaphore
from .transactions import TransactionCalls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._core import Kept

_log = logging.getLogger("leasehold")

T = TypeVar("T")
P = ParamSpec("P")


class Client(BaseClient[Guard], TransactionCalls):
    """A client of one Leasehold service. Safe to use from several threads, and afresh after a fork.

    As a context manager the client is closed at the end of the block, which releases every lock.

    Arguments, all but the first by name:

    - `base_url`: the address up to `/v1`, with `http://` or `https://`; or a `leasehold.aws.Function`. Several, in a
      list or in one text with commas, are endpoints of one service, such as stacks in several regions that have one
      table with strong consistency. Where an endpoint gives no answer, the next try goes to the next one.
    - `owner_name`: the owner, for people to read. Default: host and process id.
    - `token`: a bearer token, or a callable that returns one; it is asked for each request.
    - `headers`: further headers of each request.
    - `auth`: a callable that signs a request (see `leasehold.aws.SigV4`).
    - `lease`: seconds, 0.1 to 86400, for locks that name no other.
    - `poll_interval`: seconds between requests for a held lock, at least 0.05. Default: none, the client
      watches the lock; where the service has no watches, 1, or more where the service asks for more.
    - `heartbeat_interval`: seconds, at most half the lease. Default: a quarter of the lease.
    - `wait_margin`: seconds, 0 or more, that `wait="lease"` and `wait="extend"` add to the observed lease.
      Default: 2.
    - `observation_margin`: seconds, 0 or more, by which the clocks of all sharers of saved observations may
      differ. Default: 1.
    - `ca_file`: a file of the authorities to trust, in PEM, in place of the system's.
    - `client_cert`: the file of a certificate that the client shows, with its key; or a pair of files.
    - `make_pool`: makes the `urllib3.PoolManager`, for anything else. The default uses the proxy that the
      environment names (`HTTPS_PROXY`, `NO_PROXY`), except for loopback addresses.
    - `world`: clock and randomness, for tests.

    For the methods of a client with `asyncio` or `trio`, see `leasehold.aio`.

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
        make_pool: MakePool | None = None,
        world: World | None = None,
    ) -> None:
        world = world or World()
        tls = None if ca_file is None and client_cert is None else tls_context(ca_file, client_cert)
        if tls is not None and make_pool is not None:
            raise InvalidRequest("excludes ca_file and client_cert", "make_pool")
        settings = settings_of(
            owner_name=owner_name,
            lease=lease,
            poll_interval=poll_interval,
            heartbeat_interval=heartbeat_interval,
            wait_margin=wait_margin,
            observation_margin=observation_margin,
        )
        transport = transport_of(base_url, token, headers, auth, lambda service: HttpTransport(service, make_pool, tls))
        super().__init__(transport, Threads(world), world, settings)

    # Acquiring

    @explicit_options(BaseClient._acquisition)
    def try_acquire(self, key: str, **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Sends one request, without a retry. Takes over a lock that this client's earlier calls, or
        loaded observations, have shown to be stale.

        `key` is 1 to 2048 bytes of UTF-8. Giving up is a value: `Held`. Raises `Unavailable` if no answer
        came; the client then releases, in the background, what the request may have acquired.
        """
        return run(self._once(self._acquisition(key, **options)))

    @explicit_options(BaseClient._acquisition)
    def acquire(
        self,
        key: str,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[AcquireOptions],
    ) -> Guard | Held:
        """Waits for the lock. `wait` is in seconds, or `"lease"`, `"extend"`, `None` (see `Wait`).

        Giving up is a value: `Held`. Raises `Unavailable` if the service did not answer once. Setting the
        event `cancel`, from another thread or a signal handler, ends the wait with `WaitCancelled`, after the
        request in flight, if there is one. A lock that was granted meanwhile is released. Raises `WouldDeadlock`
        where this thread holds the lock already.
        """
        return run(self._wait(self._acquisition(key, **options), wait, partial(pause_until, self._core, cancel)))

    @explicit_options(BaseClient._acquisition)
    @contextmanager
    def lock(
        self,
        key: str,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        reentrant: bool = False,
        **options: Unpack[AcquireOptions],
    ) -> Iterator[Guard]:
        """`with client.lock(key) as guard:` waits for the lock, and releases it at the end of the block.

        Raises `LockHeld` when the wait is over, and `LockLost` if the body ended well but the lock was
        lost meanwhile. An exception of the body is never hidden. A loss does not interrupt the body: let it
        call `guard.ensure_held()`, and hand `guard.fencing_token` to every resource that it writes to.

        Locks are not reentrant: `WouldDeadlock` is raised where this thread holds the lock already. With
        `reentrant=True` the block then uses that guard, and leaves its release to the outer block.
        """
        if reentrant and (outer := self._taken(key, options.get("sort_key"))) is not None:
            yield outer
            outer.ensure_held()
            return
        with self.acquire(key, wait=wait, cancel=cancel, **options).granted() as guard:
            yield guard

    @explicit_options(BaseClient._together)
    def try_acquire_all(self, keys: Iterable[OneOfSeveral], **options: Unpack[TogetherOptions]) -> AllGuard | Held:
        """Sends one request for several keys, all or none, without a retry. `keys`: 2 to 50, each a key, a pair
        of key and sort key, or `Permits`. `Held` names one of the keys that others hold or wait for."""
        return run(self._once(self._together(keys, AllGuard, **options)))

    @explicit_options(BaseClient._together)
    def acquire_all(
        self,
        keys: Iterable[OneOfSeveral],
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[TogetherOptions],
    ) -> AllGuard | Held:
        """Waits until all keys are granted at once. No caller holds some of the keys while it waits, so two
        callers never wait for each other. A semaphore in whose queue somebody waits refuses. Otherwise as
        `acquire`."""
        sleep = partial(pause_until, self._core, cancel)
        return run(self._wait(self._together(keys, AllGuard, **options), wait, sleep))

    @explicit_options(BaseClient._together)
    @contextmanager
    def lock_all(
        self,
        keys: Iterable[OneOfSeveral],
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[TogetherOptions],
    ) -> Iterator[AllGuard]:
        """`with client.lock_all(["a", "b"]) as guard:` waits for all locks, and releases them at the
        block's end. Raises as `lock` does."""
        with self.acquire_all(keys, wait=wait, cancel=cancel, **options).granted() as guard:
            yield guard

    @explicit_options(BaseClient._acquisition)
    def once(
        self,
        key: str,
        occurrence: str,
        body: Callable[[Guard], T],
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[LockOptions],
    ) -> Ran[T] | AlreadyDone:
        """Runs `body` with the guard of the lock, unless the occurrence, or a later one, was done before.
        Occurrences are compared byte for byte: `2026-11-21T02`.

        Text or bytes that `body` returns become the lock's data. An exception of `body` is raised unchanged,
        and the occurrence may be run again, but not with `at_most_once=True`. Raises `LockHeld` when the wait
        is over, and `LockLost` or `Unavailable` if it is uncertain whether the occurrence counts as done.
        """
        check_body(body, "body", "function")
        try:
            guard = self.acquire(key, wait=wait, cancel=cancel, occurrence=occurrence, **options).granted()
        except OccurrenceDone as done:
            return done_before(occurrence, done)
        with guard:
            result = finished(body, body(guard))
            guard.release(completed=occurrence, data=payload_of(result))
        return Ran(result)

    @explicit_options(BaseClient._acquisition)
    def locked(
        self,
        key: KeyOf,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        reentrant: bool = False,
        **options: Unpack[AcquireOptions],
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """`@client.locked("key")` runs a function under the lock, as `lock` does. The key may be a function of
        the arguments. A parameter `guard` of the function receives the guard."""

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            check_body(function, "function", "function")
            shows = takes_guard(function)

            @functools.wraps(function)
            def under(*arguments: P.args, **named: P.kwargs) -> T:
                name = key_for(key, arguments, named)
                with self.lock(name, wait=wait, cancel=cancel, reentrant=reentrant, **options) as guard:
                    if shows:
                        named["guard"] = guard
                    return finished(function, function(*arguments, **named))

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
        cancel: threading.Event | None = None,
        **options: Unpack[LockOptions],
    ) -> Callable[[Callable[P, T]], Callable[P, Ran[T] | AlreadyDone | Held]]:
        """`@client.once_every(hours=1)` runs a function at most once in each period, over all processes that
        share the key (default: the function's name). Periods begin at multiples since the epoch, in UTC.

        The call returns `Ran`, or `AlreadyDone` where the period was done before, or `Held` where another one is at
        it. A failed run may be run again in its period. Otherwise as `once`.
        """
        period = Period(seconds, minutes, hours, days)

        def decorate(function: Callable[P, T]) -> Callable[P, Ran[T] | AlreadyDone | Held]:
            check_body(function, "function", "function")
            shows, name = takes_guard(function), key or key_of(function)

            @functools.wraps(function)
            def once(*arguments: P.args, **named: P.kwargs) -> Ran[T] | AlreadyDone | Held:
                occurrence = period.occurrence(self._core.world.epoch_ms())
                try:
                    asked = self.acquire(name, wait=wait, cancel=cancel, occurrence=occurrence, **options)
                except OccurrenceDone as done:
                    return done_before(occurrence, done)
                if isinstance(asked, Held):
                    return asked
                with asked:
                    if shows:
                        named["guard"] = asked
                    result = finished(function, function(*arguments, **named))
                    asked.release(completed=occurrence, data=payload_of(result))
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

    def resume(
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
        return run(
            self._resume(
                Guard,
                handover,
                partial(self._core.api.heartbeat, name, handover.lease_id),
                lease,
                holding,
            )
        )

    # With nothing but the lease id

    def heartbeat(
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
        return run(self._heartbeat((key, sort_key), lease_id, HeartbeatContent(seconds_if(lease, "lease"), data)))

    def release(
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
        return run(self._release((key, sort_key), lease_id, Leaving(data, delete, completed, ttl)))

    # Looking, and an operator's force

    def get(self, key: str, *, sort_key: str | None = None) -> LockView:
        """Reads one lock, strongly consistent. Raises `LockNotFound`. Counts as an observation."""
        return run(self._get((key, sort_key)))

    def get_semaphore(self, key: str, *, sort_key: str | None = None) -> SemaphoreView:
        """Reads one semaphore, strongly consistent. Raises `LockNotFound`. Counts as an observation of each
        holder and each ticket."""
        return run(self._get_semaphore((key, sort_key)))

    def observe(
        self, key: str, *, sort_key: str | None = None, cancel: threading.Event | None = None
    ) -> Iterator[LockView | None]:
        """Yields the present view of the lock or the semaphore, and its view after each change, by watching;
        `None` if there is none. Continues for ever, through outages; setting `cancel` ends it with
        `WaitCancelled`.
        """
        sleep = partial(pause_until, self._core, cancel)
        observer = Observer(self._core, (key, sort_key), self._settings["poll_interval"], sleep)
        while True:
            yield run(observer.next())

    def list(
        self,
        *,
        key: str | None = None,
        state: State | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[LockView]:
        """Yields all locks that match, page by page. Unreadable rows are in `pages` only."""
        for page in self.pages(key=key, state=state, owner_name=owner_name, page_size=page_size):
            yield from page.locks

    def pages(
        self,
        *,
        key: str | None = None,
        state: State | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> Iterator[Page]:
        """Yields the pages of a listing. `key`: only the sort keys under it. `page_size`: 1 to 1000, default
        100. `cursor`: continues after the page that had it, with the other arguments unchanged."""

        while True:
            page = run(self._page(list_query(key, state, owner_name, page_size, cursor)))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    def history(
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
        return run(self._history((key, sort_key), since_ms, until_ms, limit))

    def break_lock(self, key: str, record_version_number: str, *, sort_key: str | None = None) -> ReleaseOutcome:
        """Takes a lock from its holder, as an operator who saw it at this version. Raises `VersionMismatch`
        if it changed since. Retries for ten seconds."""
        return run(self._break((key, sort_key), record_version_number))

    def set_occurrence(
        self, key: str, last_occurrence: str, record_version_number: str, *, sort_key: str | None = None
    ) -> str:
        """Sets which occurrence counts as the last one that is done, as an operator who saw the lock at this
        version. Returns the new version. Raises `VersionMismatch` if the lock changed since, and `LockHeld`
        while it has a holder. Retries for ten seconds."""
        call = partial(self._core.api.set_occurrence, (key, sort_key), last_occurrence, record_version_number)
        return run(self._repeat(call))

    def break_entry(self, key: str, entry_id: str, version: str, *, sort_key: str | None = None) -> ReleaseOutcome:
        """Removes a holder or a ticket of a semaphore, as an operator who saw it at this version. Raises
        `VersionMismatch` if it changed since. Retries for ten seconds."""
        return run(self._repeat(partial(self._core.api.break_entry, (key, sort_key), entry_id, version)))

    def set_capacity(self, key: str, capacity: int, expected: int, *, sort_key: str | None = None) -> int:
        """Changes the capacity of a semaphore, as an operator who saw the capacity `expected`. Returns the
        number of free permits. Holders keep their permits. Raises `VersionMismatch` for another capacity."""
        return run(self._repeat(partial(self._core.api.set_capacity, (key, sort_key), capacity, expected)))

    # The end

    def close(self) -> None:
        """Releases every lock, ends the waiting of other threads, and closes the connections.

        One failure does not stop the others; `CloseError` contains all failures. Lost locks are no failure. If
        the service does not answer, the releases go on in the background after two seconds, with a warning. May
        be repeated.
        """
        self._core.closed.set()
        deadline = self._core.world.now() + leave_bound()
        errors: list[Exception] = []

        def release(guard: Kept) -> None:
            try:
                run(guard.release_soon(deadline))
            except LockLost:
                pass
            except Exception as error:
                errors.append(error)

        _side_by_side([partial(release, guard) for guard in self._core.live_guards()])
        run(self._core.settle(max(0.0, deadline - self._core.world.now())))
        run(self._core.api.transport.close())
        if errors:
            raise CloseError(tuple(errors)) from errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CloseError as failure:
            if error is None:
                raise
            _log.warning("%s", failure)


def _side_by_side(tasks: Iterable[Callable[[], None]]) -> None:
    """Runs all tasks, many at once, so that a service that hangs does not cost one time-out for each."""
    left: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for task in tasks:
        left.put(task)

    def work() -> None:
        with suppress(Empty):
            while True:
                left.get_nowait()()

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(left.qsize(), SIDE_BY_SIDE) - 1)]
    with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
        for helper in helpers:
            helper.start()
    work()
    for helper in helpers:
        if helper.ident is not None:
            helper.join()
