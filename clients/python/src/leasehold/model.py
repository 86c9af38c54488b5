"""The answers of the service in Python's terms: durations in seconds, payloads as bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from . import _wire

Value: TypeAlias = Any
"""`None`, `bool`, `int`, `Decimal`, `str`, `bytes`; a list or a mapping of such; a set of numbers, of texts
or of bytes."""

Item: TypeAlias = dict[str, Value]
"""Values by attribute name."""

LockName: TypeAlias = tuple[str, str | None]
"""Key and sort key."""

ReleaseOutcome: TypeAlias = Literal["released", "replayed", "absent"]
"""`released` by this call, `replayed` where an earlier call had done so, `absent` where there is no row."""


@dataclass(frozen=True)
class LockView:
    """The public view of a lock."""

    key: str
    state: Literal["held", "released"]
    owner_name: str
    """The owner, or the last one."""
    record_version_number: str
    """Changes with every acquire and heartbeat."""
    lease: float
    """Seconds for which the version must be seen unchanged before the lock is stale."""
    sort_key: str | None = None
    fencing_token: int | None = None
    """`None` where another client wrote the row."""
    data: bytes | None = None
    attributes: Mapping[str, Any] | None = None

    @classmethod
    def from_wire(cls, lock: _wire.Lock) -> LockView:
        return cls(
            key=lock["key"],
            state=lock["state"],
            owner_name=lock["ownerName"],
            record_version_number=lock["recordVersionNumber"],
            lease=lock["leaseDurationMs"] / 1000,
            sort_key=lock.get("sortKey"),
            fencing_token=lock.get("fencingToken"),
            data=payload(lock),
            attributes=lock.get("attributes"),
        )


@dataclass(frozen=True)
class UnreadableRow:
    """A row that is no readable lock record: an operator must look at it."""

    key: str
    sort_key: str | None
    detail: str


@dataclass(frozen=True)
class Page:
    """One page of a listing. It may be empty and still not be the last."""

    locks: tuple[LockView, ...]
    unreadable: tuple[UnreadableRow, ...]
    next_cursor: str | None

    @classmethod
    def from_wire(cls, page: _wire.ListResponse) -> Page:
        return cls(
            locks=tuple(LockView.from_wire(lock) for lock in page["locks"]),
            unreadable=tuple(
                UnreadableRow(row["key"], row.get("sortKey"), row["detail"])
                for row in page.get("unreadable", ())
            ),
            next_cursor=page.get("nextCursor"),
        )


@dataclass(frozen=True)
class Renewal:
    """The answer to a heartbeat: a lease that starts anew, counted from before the request was sent."""

    record_version_number: str
    lease: float
    """Seconds."""
    fencing_token: int

    @classmethod
    def from_wire(cls, answer: _wire.HeartbeatResponse) -> Renewal:
        return cls(answer["recordVersionNumber"], answer["leaseDurationMs"] / 1000, answer["fencingToken"])


@dataclass(frozen=True)
class Grant:
    """The answer to an acquire that succeeded."""

    owner_name: str
    renewal: Renewal
    outcome: Literal["created", "reacquired", "takenOver", "renewed"]
    previous_owner_name: str | None
    data: bytes | None

    @classmethod
    def from_wire(cls, answer: _wire.AcquireResponse) -> Grant:
        return cls(
            owner_name=answer["ownerName"],
            renewal=Renewal(
                answer["recordVersionNumber"], answer["leaseDurationMs"] / 1000, answer["fencingToken"]
            ),
            outcome=answer["outcome"],
            previous_owner_name=answer.get("previousOwnerName"),
            data=payload(answer),
        )


def payload_text(data: bytes | str | None) -> str | None:
    """Text travels as text, so that people can read it in the table."""
    return data if isinstance(data, str) else None


def payload_base64(data: bytes | str | None) -> str | None:
    """Bytes travel as base64."""
    return None if data is None or isinstance(data, str) else base64.b64encode(data).decode("ascii")


def payload(answer: _wire.Lock | _wire.AcquireResponse) -> bytes | None:
    """The row's payload, or `None` where it has none."""
    text = answer.get("data")
    if text is not None:
        return text.encode()
    encoded = answer.get("dataBase64")
    return None if encoded is None else base64.b64decode(encoded, validate=True)
