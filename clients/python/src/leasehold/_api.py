"""The calls of the API, each one request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ._call import Memory
from ._messages import Call, read
from ._payload import payload_base64, payload_text
from ._telemetry import Telemetry
from ._timing import lease_to_ms, request_timeout
from .errors import LockLost, Superseded
from .model import (
    Ended,
    Grant,
    Grants,
    HistoryEntry,
    LockName,
    LockView,
    Page,
    PermitsGrant,
    PermitsRenewal,
    ReleaseOutcome,
    Renewal,
    SemaphoreView,
    outcome,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from . import _wire
    from ._messages import Transport
    from ._numbers import Numbered
    from .errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class HeartbeatContent:
    """The content of a heartbeat."""

    lease: float | None = None
    """Seconds; `None`: the record's stays."""
    data: bytes | str | None = None
    delete_data: bool = False
    permits: int | None = None
    """The number of permits to keep; `None`: all."""
    held_permits: int | None = None
    """The number of permits held before."""


@dataclass(frozen=True)
class Leaving:
    """The data and the state that a release leaves."""

    data: bytes | str | None = None
    delete: bool = False
    completed: str | None = None
    """The occurrence that is done."""
    completed_ttl: float | None = None
    """The seconds for which it is remembered; `None`: for ever."""

    @property
    def stores(self) -> bool:
        """Whether it stores data or a completed occurrence."""
        return self.data is not None or self.completed is not None


class Api:
    """Typed requests and answers. `timeout` is in seconds; refusals are raised as `LeaseholdError`s."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.telemetry = Telemetry()
        self.memory = Memory()

    async def acquire(self, numbered: Numbered[_wire.AcquireRequest], timeout: float) -> Grant:
        request = {**numbered.content, **numbered.number}
        return await self.post("/v1/acquire", request, timeout, Grant.from_wire)

    async def acquire_all(self, numbered: Numbered[_wire.AcquireAllRequest], timeout: float) -> Grants:
        request = {**numbered.content, **numbered.number}
        return await self.post("/v1/acquire-all", request, timeout, Grants.from_wire)

    async def acquire_permits(self, request: Mapping[str, object], timeout: float) -> PermitsGrant:
        return await self.post("/v1/semaphore/acquire", request, timeout, PermitsGrant.from_wire)

    async def enqueue(self, request: Mapping[str, object], timeout: float) -> tuple[str, int]:
        """Returns the ticket's id and number."""
        return await self.post("/v1/semaphore/enqueue", request, timeout, _ticket)

    async def heartbeat(
        self,
        name: LockName,
        lease_id: str,
        numbered: Numbered[HeartbeatContent],
        timeout: float,
        fencing_token: int | None = None,
    ) -> Renewal:
        content = numbered.content
        request: _wire.HeartbeatRequest = {
            "key": name[0],
            "sortKey": name[1],
            "leaseId": lease_id,
            "leaseDurationMs": None if content.lease is None else lease_to_ms(content.lease),
            "fencingToken": fencing_token,
            "data": payload_text(content.data),
            "dataBase64": payload_base64(content.data),
            "deleteData": content.delete_data or None,
        }
        return await self.post("/v1/heartbeat", {**request, **numbered.number}, timeout, Renewal.from_wire)

    async def release(
        self,
        name: LockName,
        lease_id: str,
        timeout: float,
        leaving: Leaving = Leaving(),
    ) -> Ended:
        request: _wire.ReleaseRequest = {
            "key": name[0],
            "sortKey": name[1],
            "leaseId": lease_id,
            "data": payload_text(leaving.data),
            "dataBase64": payload_base64(leaving.data),
            "delete": leaving.delete or None,
            "completed": leaving.completed,
            "completedTtlMs": None if leaving.completed_ttl is None else math.ceil(leaving.completed_ttl * 1000),
        }
        call = Call("POST", "/v1/release", request)
        ended = await self._release(call, timeout, Ended.of)
        # If the transport repeated the request, the earlier call may be this one.
        return Ended("released", ended.wanted) if call.was_repeated and ended.outcome == "replayed" else ended

    async def want(self, name: LockName, owner_name: str) -> None:
        """Marks a held lock, so that its holder learns that somebody waits."""
        request: _wire.WantRequest = {"key": name[0], "sortKey": name[1], "ownerName": owner_name}
        await self.post("/v1/want", request, request_timeout(None), outcome)

    async def heartbeat_permits(
        self, name: LockName, lease_id: str, numbered: Numbered[HeartbeatContent], timeout: float
    ) -> PermitsRenewal:
        content = numbered.content
        request: _wire.HeartbeatPermitsRequest = {
            "key": name[0],
            "sortKey": name[1],
            "leaseId": lease_id,
            "leaseDurationMs": None if content.lease is None else lease_to_ms(content.lease),
            "permits": content.permits,
            "heldPermits": content.held_permits,
            "data": payload_text(content.data),
            "dataBase64": payload_base64(content.data),
        }
        path = "/v1/semaphore/heartbeat"
        return await self.post(path, {**request, **numbered.number}, timeout, PermitsRenewal.of)

    async def release_permits(self, name: LockName, lease_id: str, timeout: float) -> ReleaseOutcome:
        """Gives permits back, or withdraws a ticket."""
        request: _wire.ReleasePermitsRequest = {"key": name[0], "sortKey": name[1], "leaseId": lease_id}
        call = Call("POST", "/v1/semaphore/release", request)
        released: ReleaseOutcome = await self._release(call, timeout, outcome)
        return "released" if call.was_repeated and released == "replayed" else released

    async def break_entry(self, name: LockName, holder_id: str, version: str, timeout: float) -> ReleaseOutcome:
        request: _wire.BreakEntryRequest = {
            "key": name[0],
            "sortKey": name[1],
            "holderId": holder_id,
            "version": version,
        }
        return await self.post("/v1/semaphore/break", request, timeout, outcome)

    async def set_capacity(self, name: LockName, capacity: int, expected: int, timeout: float) -> int:
        """Returns the number of free permits."""
        request: _wire.CapacityRequest = {
            "key": name[0],
            "sortKey": name[1],
            "capacity": capacity,
            "expected": expected,
        }
        return await self.post("/v1/semaphore/capacity", request, timeout, _available)

    async def get_semaphore(self, name: LockName, timeout: float) -> SemaphoreView:
        query = {"key": name[0], "sortKey": name[1]}
        return await self.get("/v1/semaphore", query, timeout, SemaphoreView.of)

    async def break_lock(self, name: LockName, record_version_number: str, timeout: float) -> ReleaseOutcome:
        request: _wire.BreakRequest = {
            "key": name[0],
            "sortKey": name[1],
            "recordVersionNumber": record_version_number,
        }
        return await self.post("/v1/break", request, timeout, outcome)

    async def set_occurrence(
        self, name: LockName, last_occurrence: str, record_version_number: str, timeout: float
    ) -> str:
        """Returns the new version of the lock."""
        request: _wire.OccurrenceRequest = {
            "key": name[0],
            "sortKey": name[1],
            "lastOccurrence": last_occurrence,
            "recordVersionNumber": record_version_number,
        }
        return await self.post("/v1/occurrence", request, timeout, _version)

    async def get_lock(self, name: LockName, timeout: float) -> LockView:
        return await self.get("/v1/lock", {"key": name[0], "sortKey": name[1]}, timeout, LockView.from_wire)

    async def watch(self, name: LockName, version: str, wait: float, timeout: float) -> LockView:
        """Returns the lock, or semaphore, as soon as it differs from `version`, or after `wait` seconds.
        `timeout` begins after them."""
        query = {"key": name[0], "sortKey": name[1], "version": version, "waitMs": math.ceil(wait * 1000)}
        return await self.get("/v1/watch", query, wait + timeout, LockView.from_wire)

    async def post(self, path: str, members: Mapping[str, object], timeout: float, make: Callable[[Any], T]) -> T:
        """Sends a POST. `make` makes the result of the answer's document."""
        return await self._send(Call("POST", path, members), timeout, make)

    async def get(self, path: str, query: Mapping[str, object], timeout: float, make: Callable[[Any], T]) -> T:
        """Sends a GET, as `post`."""
        return await self._send(Call("GET", path, query), timeout, make)

    async def list_locks(self, query: Mapping[str, object], timeout: float) -> Page:
        return await self.get("/v1/locks", query, timeout, Page.from_wire)

    async def history(self, query: Mapping[str, object], timeout: float) -> tuple[tuple[HistoryEntry, ...], str | None]:
        """Returns a page of a lock's history, and the cursor of the next one."""

        def page(answer: Any) -> tuple[tuple[HistoryEntry, ...], str | None]:
            return tuple(HistoryEntry.from_wire(entry) for entry in answer["entries"]), answer.get("nextCursor")

        return await self.get("/v1/history", query, timeout, page)

    async def _send(self, call: Call, timeout: float, make: Callable[[Any], T]) -> T:
        with self.telemetry.span(call.path.rpartition("/")[2], call.members.get("key")) as headers:
            call.headers = headers
            answer = await self.transport.send(call, timeout)
            self.memory.answered = True
            return read(call, answer, make)

    async def _release(self, call: Call, timeout: float, make: Callable[[Any], T]) -> T:
        try:
            return await self._send(call, timeout, make)
        except LockLost as error:
            error._was_repeated = call.was_repeated
            raise

    def is_unreached(self, error: Unavailable) -> bool:
        """Whether no connection could be made, and there was no answer to any request so far."""
        return not self.memory.answered and not error.sent


def _ticket(answer: Any) -> tuple[str, int]:
    if "fencingToken" in answer:
        # The permits were free. A request for them returns the grant, and counts its lease.
        raise Superseded("The permits are granted.", 0, answer["fencingToken"])
    return text(answer, "ticketId"), whole(answer, "number")


def _version(answer: Any) -> str:
    return text(answer, "recordVersionNumber")


def _available(answer: Any) -> int:
    return whole(answer, "available")
