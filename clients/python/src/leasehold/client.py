"""The synchronous client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

from ._acquisition import Held
from ._api import Wish
from ._client import AcquireOptions, BaseClient, Settings, State, explicit_options, list_query
from ._http import HttpTransport, MakePool
from ._messages import Auth, Service, Token, service_of
from ._runtime import run
from ._threads import LOOK_AGAIN, Threads
from ._timing import OPERATION_BOUND, Wait
from ._world import World
from .errors import CloseError, LockLost, WaitCancelled
from .guard import Guard
from .model import LockView, Page, ReleaseOutcome, Renewal
from .transactions import TransactionCalls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_log = logging.getLogger("leasehold")


class Client(BaseClient[Guard], TransactionCalls):
    """A client of one Leasehold service. Safe to use from several threads, and afresh after a fork.

    As a context manager it is closed, and with it every lock is released, at the end of the block.

    Arguments, all but the first by name:

    - `base_url`: `http://` or `https://`, up to what stands before `/v1`; or a `leasehold.aws.Function`.
    - `owner_name`: who asks, for people to read. Default: host and process id.
    - `token`: a bearer token, or a callable that returns one; it is asked for each request.
    - `headers`: further headers of each request.
    - `auth`: a callable that signs a request (see `leasehold.aws.SigV4`).
    - `lease`: seconds, 0.1 to 86400, for locks that name no other.
    - `poll_interval`: seconds between requests for a held lock, at least 0.05. Default: none, the client
      watches the lock; where the service has no watches, 1, or more where the service asks for more.
    - `heartbeat_interval`: seconds, at most half the lease. Default: a quarter of the lease.
    - `wait_margin`: seconds that `wait="lease"` and `wait="extend"` add to the observed lease.
    - `observation_margin`: seconds by which the clocks may differ of all who share saved observations.
    - `make_pool`: makes the `urllib3.PoolManager`, for a private CA or client certificates. The default uses
      the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`), except for loopback addresses.
    - `world`: clock and randomness, for tests.

    For the methods of a client with `asyncio` or `trio`, see `leasehold.aio`.

    Every call may raise the errors of `leasehold.errors`; wrong arguments raise `InvalidRequest`.
    """

    _guard_type = Guard

    def __init__(
        self,
        base_url: str | Service,
        *,
        owner_name: str | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        lease: float = 20.0,
        poll_interval: float | None = None,
        heartbeat_interval: float | None = None,
        wait_margin: float = 2.0,
        observation_margin: float = 1.0,
        make_pool: MakePool | None = None,
        world: World | None = None,
    ) -> None:
        world = world or World()
        service = service_of(base_url, token, headers, auth)
        settings: Settings = {
            "owner_name": owner_name,
            "lease": lease,
            "poll_interval": poll_interval,
            "heartbeat_interval": heartbeat_interval,
            "wait_margin": wait_margin,
            "observation_margin": observation_margin,
        }
        super().__init__(HttpTransport(service, make_pool), Threads(world), world, settings)

    # Acquiring

    @explicit_options
    def try_acquire(self, key: str, **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Asks once, and tries nothing again. Takes over a lock that this client's earlier calls, or
        loaded observations, have shown to be stale.

        `key` is 1 to 2048 bytes of UTF-8. Giving up is a value: `Held`. Raises `Unavailable` where no
        answer came; the request is then taken back in the background.
        """
        return run(self._try(key, **options))

    @explicit_options
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
        event `cancel`, from another thread or a signal handler, ends the wait with `WaitCancelled`: after
        the request under way, if there is one. A lock that was granted meanwhile is given back.
        """
        return run(self._wait(key, wait, partial(self._sleep, cancel), **options))

    @explicit_options
    @contextmanager
    def lock(
        self,
        key: str,
        *,
        wait: Wait = "lease",
        cancel: threading.Event | None = None,
        **options: Unpack[AcquireOptions],
    ) -> Iterator[Guard]:
        """`with client.lock(key) as guard:` waits for the lock, and releases it at the end of the block.

        Raises `LockHeld` when the wait ends in vain, and `LockLost` if the body ended well but the lock was
        lost meanwhile. An exception of the body is never hidden. The body is not interrupted by a loss: let
        it call `guard.check()`, and hand `guard.fencing_token` to what it writes to.
        """
        with self.acquire(key, wait=wait, cancel=cancel, **options).granted() as guard:
            yield guard

    def resume(
        self,
        key: str,
        lease_id: str,
        *,
        sequence: int | None = None,
        sort_key: str | None = None,
        lease: float | None = None,
        heartbeat_interval: float | None = None,
        manual_heartbeats: bool = False,
        hold_on_unavailable: bool = False,
    ) -> Guard:
        """Makes a guard of a lock that was acquired elsewhere, by one heartbeat, which sets the lease to
        `lease` seconds (default: it stays as it is). `sequence` is the number that `Guard.detach` handed out;
        without it, the service is asked. Raises `LockLost` if the lock is not held under this id.
        """
        return run(
            self._resume(
                (key, sort_key),
                lease_id,
                sequence,
                lease,
                heartbeat_interval,
                manual_heartbeats,
                hold_on_unavailable,
            )
        )

    # With nothing but the lease id

    def heartbeat(
        self,
        key: str,
        lease_id: str,
        *,
        sort_key: str | None = None,
        lease: float | None = None,
        data: bytes | str | None = None,
    ) -> Renewal:
        """Renews a lock, from wherever it was acquired; sets its lease to `lease` seconds (default: it stays
        as it is). Tried again for ten seconds."""
        return run(self._heartbeat((key, sort_key), lease_id, Wish(lease, data)))

    def release(
        self,
        key: str,
        lease_id: str,
        *,
        sort_key: str | None = None,
        data: bytes | str | None = None,
        delete: bool = False,
    ) -> ReleaseOutcome:
        """Releases a lock, from wherever it was acquired. May be repeated. Tried again for ten seconds."""
        return run(self._release((key, sort_key), lease_id, data, delete))

    # Looking, and an operator's force

    def get(self, key: str, *, sort_key: str | None = None) -> LockView:
        """Reads one lock, strongly consistent. Raises `LockNotFound`. Counts as an observation."""
        return run(self._get((key, sort_key)))

    def list(
        self,
        *,
        key: str | None = None,
        state: State | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[LockView]:
        """All locks that match, fetched page by page. Rows that cannot be read are in `pages` only."""
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
        """The pages of a listing. `key`: only the sort keys under it. `page_size`: 1 to 1000, default 100.
        `cursor`: go on after the page that had it; the other arguments must be the same again."""

        while True:
            page = run(self._page(list_query(key, state, owner_name, page_size, cursor)))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    def break_lock(
        self, key: str, record_version_number: str, *, sort_key: str | None = None
    ) -> ReleaseOutcome:
        """Takes a lock from its holder, as an operator who saw it at this version. Raises
        `VersionMismatch` if it changed since. Tried again for ten seconds."""
        return run(self._break((key, sort_key), record_version_number))

    # The end

    def close(self) -> None:
        """Releases every lock, ends the waiting of other threads, and closes the connections.

        One failure does not stop the others; then raises `CloseError` with all of them. Locks that were
        lost are no failure. Takes about ten seconds where the service does not answer. May be repeated.
        """
        self._core.closed.set()
        deadline = self._core.world.now() + OPERATION_BOUND
        errors: list[Exception] = []

        def release(guard: Guard) -> None:
            try:
                run(guard.release_until(deadline))
            except LockLost:
                pass
            except Exception as error:
                errors.append(error)

        _side_by_side([partial(release, guard) for guard in self._live_guards()])
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

    async def _sleep(self, cancel: threading.Event | None, seconds: float) -> None:
        """The pause of a wait that can be cancelled."""
        deadline = self._core.world.now() + seconds
        while cancel is not None:
            if cancel.is_set():
                raise WaitCancelled("the wait for the lock was cancelled")
            rest = deadline - self._core.world.now()
            if rest <= 0:
                break
            cancel.wait(min(rest, LOOK_AGAIN))
            await self._core.pause(0)
        else:
            await self._core.pause(seconds)


def _side_by_side(tasks: Iterable[Callable[[], None]]) -> None:
    """Runs all tasks, many at once, so that a service that hangs does not cost one time-out for each."""
    left: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for task in tasks:
        left.put(task)

    def work() -> None:
        with suppress(Empty):
            while True:
                left.get_nowait()()

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(left.qsize(), 32) - 1)]
    with suppress(RuntimeError):  # the interpreter ends, and starts no threads any more
        for helper in helpers:
            helper.start()
    work()
    for helper in helpers:
        if helper.ident is not None:
            helper.join()
