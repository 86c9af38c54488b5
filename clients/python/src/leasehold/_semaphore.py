"""The rules of acquiring permits, for every kind of client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from ._durations import Duration, seconds_of
from ._guard import Granted, Handover, Holding
from ._permits import P, PermitsAcquisition, Want
from ._timing import lease_to_ms
from .errors import InvalidRequest

if TYPE_CHECKING:
    from ._client import BaseClient
    from .model import LockName

M = TypeVar("M", bound="BaseSemaphore[Any]")

READ_WRITE_CAPACITY = 100
"""The permits of a read/write lock: as many readers as a semaphore may have holders."""

_LEASE = 60.0
"""The default lease. It is longer than a lock's, because DynamoDB bills a heartbeat by the size of the row,
which all holders share."""

_TICKET_LEASE = 120.0


class PermitOptions(TypedDict, total=False):
    """The options of a request for permits."""

    owner_name: str | None
    """The owner's name, for people to read, at most 128 bytes. Default: the client's."""
    lease: Duration
    """The lease in seconds, 0.1 to 86400. Default: 60."""
    ticket_lease: Duration
    """Seconds without a refresh after which others may pass this waiter. Default: 120."""
    data: bytes | str | None
    """A payload of this holder, for everyone to read: at most 256 bytes."""
    staleness: Literal["rvn", "clock"]
    """"clock": the service judges by its own clock which holders and waiters are dead, for callers that keep no
    observations. A caller that waits observes them as well. Default: "rvn"."""
    heartbeat_interval: Duration | None
    """The interval of heartbeats in seconds, at most half the lease. Default: the client's, or a quarter of
    the lease."""
    manual_heartbeats: bool
    """True: no heartbeats in the background; call `PermitGuard.heartbeat`. Default: false."""
    max_hold: Duration | None
    """The longest time to hold the permits, as with a lock. Default: none."""
    hold_on_unavailable: bool
    """True: the holder believes in the permits while the service cannot be reached, as with a lock."""


class BaseSemaphore(Generic[P]):
    """A semaphore: permits of one key for several holders."""

    _guard_type: type[P]

    def __init__(self, client: BaseClient[Any], name: LockName, capacity: int, permits: int = 1) -> None:
        self._client = client
        self._name = name
        self._capacity = capacity
        self._permits = permits

    @property
    def key(self) -> str:
        """The semaphore's key."""
        return self._name[0]

    @property
    def sort_key(self) -> str | None:
        """The semaphore's sort key, on a table that has one."""
        return self._name[1]

    def _acquisition(
        self,
        permits: int | None,
        *,
        owner_name: str | None = None,
        lease: Duration = _LEASE,
        ticket_lease: Duration = _TICKET_LEASE,
        data: bytes | str | None = None,
        staleness: Literal["rvn", "clock"] = "rvn",
        heartbeat_interval: Duration | None = None,
        manual_heartbeats: bool = False,
        max_hold: Duration | None = None,
        hold_on_unavailable: bool = False,
    ) -> PermitsAcquisition[P]:
        lease, ticket_lease = seconds_of(lease, "lease"), seconds_of(ticket_lease, "ticket_lease")
        lease_to_ms(lease)
        lease_to_ms(ticket_lease)
        permits = self._permits if permits is None else permits
        if permits < 1:
            raise InvalidRequest(f"must be at least 1, not {permits}", "permits")
        client = self._client
        holding = client._holding(lease, heartbeat_interval, manual_heartbeats, hold_on_unavailable, max_hold=max_hold)
        client._core.check_open()
        want = Want(
            self._name,
            self._capacity,
            permits,
            client._owner_name(owner_name),
            lease,
            ticket_lease,
            data,
            staleness == "clock",
        )
        return PermitsAcquisition(client._core, want, holding, self._guard_type)

    async def _resume(self, handover: Handover, lease: Duration | None, holding: Holding) -> P:
        if (handover.key, handover.sort_key) != self._name:
            raise InvalidRequest(f"the semaphore is {self.key!r}, and not {handover.key!r}", "key")
        beat = partial(self._client._core.api.heartbeat_permits, self._name, handover.lease_id)
        granted = Granted(capacity=self._capacity)
        return await self._client._resume(self._guard_type, handover, beat, lease, holding, granted)


class BaseReadWriteLock(Generic[M]):
    """Many readers, or one writer. `Client.read_write_lock` makes it. The queue keeps writers from starving.
    A reader cannot become a writer; a writer becomes a reader by `PermitGuard.downgrade`."""

    _semaphore_type: type[M]

    def __init__(self, client: BaseClient[Any], name: LockName, capacity: int) -> None:
        self._client = client
        self._name = name
        self._capacity = capacity

    def read(self) -> M:
        """Returns the semaphore for readers: `with lock.read().hold():`."""
        return self._semaphore_type(self._client, self._name, self._capacity, 1)

    def write(self) -> M:
        """Returns the semaphore for the writer: `with lock.write().hold():`."""
        return self._semaphore_type(self._client, self._name, self._capacity, self._capacity)
