"""The calls of the API, each one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._timing import lease_to_ms
from .model import Grant, LockName, LockView, Page, ReleaseOutcome, Renewal, payload_base64, payload_text

if TYPE_CHECKING:
    from . import _wire
    from ._http import Transport


class Api:
    """Typed requests and answers. `timeout` is in seconds; refusals are raised as `LeaseholdError`s."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def acquire(self, request: _wire.AcquireRequest, timeout: float) -> Grant:
        return self.transport.post("/v1/acquire", request, timeout, Grant.from_wire)

    def heartbeat(
        self,
        name: LockName,
        lease_id: str,
        *,
        lease: float | None,
        timeout: float,
        data: bytes | str | None = None,
        delete_data: bool = False,
    ) -> Renewal:
        request: _wire.HeartbeatRequest = {
            "key": name[0],
            "sortKey": name[1],
            "leaseId": lease_id,
            "leaseDurationMs": None if lease is None else lease_to_ms(lease),
            "data": payload_text(data),
            "dataBase64": payload_base64(data),
            "deleteData": delete_data or None,
        }
        return self.transport.post("/v1/heartbeat", request, timeout, Renewal.from_wire)

    def release(
        self,
        name: LockName,
        lease_id: str,
        *,
        timeout: float,
        data: bytes | str | None = None,
        delete: bool = False,
    ) -> ReleaseOutcome:
        request: _wire.ReleaseRequest = {
            "key": name[0],
            "sortKey": name[1],
            "leaseId": lease_id,
            "data": payload_text(data),
            "dataBase64": payload_base64(data),
            "delete": delete or None,
        }
        return self.transport.post("/v1/release", request, timeout, _outcome)

    def break_lock(self, name: LockName, record_version_number: str, *, timeout: float) -> ReleaseOutcome:
        request: _wire.BreakRequest = {
            "key": name[0],
            "sortKey": name[1],
            "recordVersionNumber": record_version_number,
        }
        return self.transport.post("/v1/break", request, timeout, _outcome)

    def get(self, name: LockName, *, timeout: float) -> LockView:
        query = {"key": name[0], "sortKey": name[1]}
        return self.transport.get("/v1/lock", query, timeout, LockView.from_wire)

    def list(
        self,
        *,
        limit: int | None,
        cursor: str | None,
        state: str | None,
        owner_name: str | None,
        key: str | None,
        timeout: float,
    ) -> Page:
        query = {"limit": limit, "cursor": cursor, "state": state, "ownerName": owner_name, "key": key}
        return self.transport.get("/v1/locks", query, timeout, Page.from_wire)


def _outcome(answer: Any) -> ReleaseOutcome:
    outcome: ReleaseOutcome = answer["outcome"]
    return outcome
