"""The client: what to call."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar

from ._acquisition import Acquisition, Held
from ._api import Api
from ._core import Core
from ._http import Auth, MakePool, Token, Transport
from ._timing import (
    OPERATION_BOUND,
    Budget,
    Lease,
    Wait,
    heartbeat_every,
    lease_to_ms,
)
from ._world import World
from .errors import CloseError, InvalidRequest, LeaseholdError, LockLost, LockNotFound
from .guard import Guard, Holding
from .model import LockView, Page, ReleaseOutcome, Renewal, payload_base64, payload_text
from .observations import SavedObservation
from .transactions import TransactionCalls

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from . import _wire

SavedObservations: TypeAlias = list[SavedObservation]

T = TypeVar("T")

_log = logging.getLogger("leasehold")


class AcquireOptions(TypedDict, total=False):
    """What `try_acquire`, `acquire` and `lock` take by name, all optional."""

    sort_key: str | None
    """On a table with a sort key, and only there: 1 to 1024 bytes of UTF-8."""
    owner_name: str | None
    """Who asks, for people to read. Default: the client's."""
    lease: float | None
    """Seconds, 0.1 to 86400. Default: the client's."""
    data: bytes | str | None
    """The payload, at most 256 KiB. `None`: what the row has stays."""
    replace_data: bool
    """False: `data` is stored only where the row has none. Default: true."""
    only_if_exists: bool
    """Raise `LockNotFound` where there is no row. Default: false."""
    attributes: Mapping[str, Any] | None
    """Further attributes of the row, as plain JSON, at most 50."""
    staleness: Literal["rvn", "clock"]
    """`clock`: let the service's clocks judge a holder dead, without any waiting. Default: `rvn`, this
    client's own observations."""
    heartbeat_interval: float | None
    """Seconds, at most half the lease. Default: the client's, or a quarter of the lease."""
    manual_heartbeats: bool
    """True: no heartbeats in the background; call `Guard.heartbeat`. Default: false."""
    hold_on_unavailable: bool
    """True: go on believing in the lock while the service cannot be reached. **Another holder may have
    taken it over meanwhile**: only where two at once are better than none. Default: false."""


class Client(TransactionCalls):
    """A client of one Leasehold service. Safe to use from several threads, and afresh after a fork.

    As a context manager it is closed, and with it every lock is released, at the end of the block.

    Arguments, all but the first by name:

    - `base_url`: `http://` or `https://`, up to what stands before `/v1`.
    - `owner_name`: who asks, for people to read. Default: host and process id.
    - `token`: a bearer token, or a callable that returns one; it is asked for each request.
    - `headers`: further headers of each request.
    - `auth`: a callable that signs a request (see `leasehold.aws.SigV4`).
    - `lease`: seconds, 0.1 to 86400, for locks that name no other.
    - `poll_interval`: seconds between requests for a held lock.
    - `heartbeat_interval`: seconds, at most half the lease. Default: a quarter of the lease.
    - `wait_margin`: seconds that `wait="lease"` and `wait="extend"` add to the observed lease.
    - `observation_margin`: seconds by which the clocks may differ of all who share saved observations.
    - `make_pool`: makes the `urllib3.PoolManager`, for a private CA or client certificates. The default uses
      the proxy that the environment names (`HTTPS_PROXY`, `NO_PROXY`), except for loopback addresses.
    - `world`: clock and randomness, for tests.

    Every call may raise the errors of `leasehold.errors`; wrong arguments raise `InvalidRequest`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        owner_name: str | None = None,
        token: Token | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        lease: float = 20.0,
        poll_interval: float = 1.0,
        heartbeat_interval: float | None = None,
        wait_margin: float = 2.0,
        observation_margin: float = 1.0,
        make_pool: MakePool | None = None,
        world: World | None = None,
    ) -> None:
        lease_to_ms(lease)
        _positive(poll_interval, "poll_interval")
        _positive(wait_margin, "wait_margin", or_zero=True)
        _positive(observation_margin, "observation_margin", or_zero=True)
        self._owner_name = owner_name
        self._lease = lease
        self._poll_interval = poll_interval
        self._heartbeat_interval = heartbeat_interval
        self._wait_margin = wait_margin
        transport = Transport(base_url, token=token, headers=headers, auth=auth, make_pool=make_pool)
        self._core = Core(Api(transport), world or World(), observation_margin)

    # Acquiring

    def try_acquire(self, key: str, **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Asks once, and tries nothing again. Takes over a lock that this client's earlier calls, or
        loaded observations, have shown to be stale.

        `key` is 1 to 2048 bytes of UTF-8. Giving up is a value: `Held`. Raises `Unavailable` where no
        answer came; the request is then taken back in the background.
        """
        acquisition = self._acquisition(key, **options)
        return _started(acquisition, acquisition.once)

    def acquire(self, key: str, *, wait: Wait = "lease", **options: Unpack[AcquireOptions]) -> Guard | Held:
        """Waits for the lock. `wait` is in seconds, or `"lease"`, `"extend"`, `None` (see `Wait`).

        Giving up is a value: `Held`. Raises `Unavailable` if the service did not answer once.
        """
        acquisition = self._acquisition(key, **options)
        budget = Budget(wait, self._core.world.now(), acquisition.lease, self._wait_margin)
        return _started(acquisition, lambda: acquisition.wait(budget, self._poll_interval))

    @contextmanager
    def lock(self, key: str, *, wait: Wait = "lease", **options: Unpack[AcquireOptions]) -> Iterator[Guard]:
        """`with client.lock(key) as guard:` waits for the lock, and releases it at the end of the block.

        Raises `LockHeld` when the wait ends in vain, and `LockLost` if the body ended well but the lock was
        lost meanwhile. An exception of the body is never hidden. The body is not interrupted by a loss: let
        it call `guard.check()`, and hand `guard.fencing_token` to what it writes to.
        """
        with self.acquire(key, wait=wait, **options).granted() as guard:
            yield guard

    def resume(
        self,
        key: str,
        lease_id: str,
        *,
        sort_key: str | None = None,
        lease: float | None = None,
        heartbeat_interval: float | None = None,
        manual_heartbeats: bool = False,
        hold_on_unavailable: bool = False,
    ) -> Guard:
        """Makes a guard of a lock that was acquired elsewhere, by one heartbeat, which sets the lease to
        `lease` seconds (default: this client's). Raises `LockLost` if the lock is not held under this id.
        """
        lease = self._lease if lease is None else lease
        holding = self._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable)
        sent: list[float] = []

        def send(timeout: float) -> Renewal:
            sent.append(self._core.world.now())
            return self._core.api.heartbeat((key, sort_key), lease_id, lease=lease, timeout=timeout)

        renewal = self._repeat(send, lease)
        guard = Guard(
            self._core,
            name=(key, sort_key),
            lease_id=lease_id,
            lease=Lease(sent[-1], renewal.lease, unanswered=sent[0] if len(sent) > 1 else None),
            renewal=renewal,
            holding=holding,
        )
        guard.start()
        return guard

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
        return self._repeat(
            lambda timeout: self._core.api.heartbeat(
                (key, sort_key), lease_id, lease=lease, timeout=timeout, data=data
            ),
            lease,
        )

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
        return self._repeat(
            lambda timeout: self._core.api.release(
                (key, sort_key), lease_id, timeout=timeout, data=data, delete=delete
            )
        )

    # Looking, and an operator's force

    def get(self, key: str, *, sort_key: str | None = None) -> LockView:
        """Reads one lock, strongly consistent. Raises `LockNotFound`. Counts as an observation."""
        try:
            lock = self._repeat(lambda timeout: self._core.api.get((key, sort_key), timeout=timeout))
        except LockNotFound:
            self._core.observations.forget((key, sort_key))
            raise
        if lock.state == "held":
            self._core.observations.see(lock)
        else:
            self._core.observations.forget((key, sort_key))
        return lock

    def list(
        self,
        *,
        key: str | None = None,
        state: Literal["held", "released"] | None = None,
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
        state: Literal["held", "released"] | None = None,
        owner_name: str | None = None,
        page_size: int | None = None,
        cursor: str | None = None,
    ) -> Iterator[Page]:
        """The pages of a listing. `key`: only the sort keys under it. `page_size`: 1 to 1000, default 100.
        `cursor`: go on after the page that had it; the other arguments must be the same again."""

        def fetch(timeout: float) -> Page:
            return self._core.api.list(
                limit=page_size, cursor=cursor, state=state, owner_name=owner_name, key=key, timeout=timeout
            )

        while True:
            page = self._repeat(fetch)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    def break_lock(
        self, key: str, record_version_number: str, *, sort_key: str | None = None
    ) -> ReleaseOutcome:
        """Takes a lock from its holder, as an operator who saw it at this version. Raises
        `VersionMismatch` if it changed since. Tried again for ten seconds."""
        return self._repeat(
            lambda timeout: self._core.api.break_lock((key, sort_key), record_version_number, timeout=timeout)
        )

    # Observations that outlive the process

    def save_observations(self) -> SavedObservations:
        """What this client saw of held locks, as plain JSON documents. See `load_observations`."""
        return self._core.observations.save()

    def load_observations(self, saved: Iterable[SavedObservation]) -> None:
        """Adds what an earlier process, or another host, has saved, so that a job that runs for a second
        each minute can take over a dead holder's lock. Measured by the wall clock: right only while the
        clocks of all who share it differ, and step, by no more than `observation_margin`."""
        self._core.observations.load(saved)

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
                guard.release_until(deadline)
            except LockLost:
                pass
            except Exception as error:
                errors.append(error)

        _side_by_side([partial(release, guard) for guard in self._core.live_guards()])
        self._core.settle(max(0.0, deadline - self._core.world.now()))
        self._core.api.transport.close()
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

    def _acquisition(
        self,
        key: str,
        *,
        sort_key: str | None = None,
        owner_name: str | None = None,
        lease: float | None = None,
        data: bytes | str | None = None,
        replace_data: bool = True,
        only_if_exists: bool = False,
        attributes: Mapping[str, Any] | None = None,
        staleness: Literal["rvn", "clock"] = "rvn",
        heartbeat_interval: float | None = None,
        manual_heartbeats: bool = False,
        hold_on_unavailable: bool = False,
    ) -> Acquisition:
        lease = self._lease if lease is None else lease
        request: _wire.AcquireRequest = {
            "key": key,
            "sortKey": sort_key,
            "ownerName": owner_name or self._owner_name or f"{socket.gethostname()}:{os.getpid()}",
            "leaseDurationMs": lease_to_ms(lease),
            "data": payload_text(data),
            "dataBase64": payload_base64(data),
            "replaceData": None if replace_data else False,
            "onlyIfExists": only_if_exists or None,
            "attributes": None if attributes is None else dict(attributes),
            "staleness": None if staleness == "rvn" else staleness,
        }
        holding = self._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable)
        self._check_open()
        return Acquisition(self._core, request, lease, holding)

    def _holding(self, lease: float, interval: float | None, manual: bool, hold_on: bool) -> Holding:
        interval = self._heartbeat_interval if interval is None else interval
        if not manual:
            heartbeat_every(interval, lease)
        return Holding(interval, manual, hold_on)

    def _repeat(self, send: Callable[[float], T], lease: float | None = None) -> T:
        self._check_open()
        return self._core.repeat(send, lease=lease)

    def _check_open(self) -> None:
        if self._core.closed.is_set():
            raise LeaseholdError("the client is closed")


def _started(acquisition: Acquisition, ask: Callable[[], Guard | Held]) -> Guard | Held:
    """Asks, and leaves nothing behind unless a guard is handed over."""
    guard = None
    try:
        result = ask()
        if isinstance(result, Guard):
            result.start()
            guard = result
        return result
    finally:
        if guard is None:
            acquisition.abandon()


def _positive(value: float, name: str, *, or_zero: bool = False) -> None:
    if not (value > 0 or (or_zero and value == 0)):
        raise InvalidRequest(f"must be above zero, not {value}", name)


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
