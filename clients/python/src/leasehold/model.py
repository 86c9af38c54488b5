"""The answers of the service in Python's terms: durations in seconds, payloads as bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from . import _wire

    _Permits: TypeAlias = _wire.HeartbeatPermitsResponse | _wire.AcquirePermitsResponse

T = TypeVar("T")

Value: TypeAlias = Any
"""`None`, `bool`, `int`, `Decimal`, `str`, `bytes`; a list or a mapping of such; a set of numbers, of texts
or of bytes."""

Item: TypeAlias = dict[str, Value]
"""Values by attribute name."""

LockName: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True)
class Permits:
    """Permits of a semaphore, as one of several keys that are acquired together."""

    key: str
    permits: int = 1
    _: KW_ONLY
    of: int
    """The number of permits in all, if the semaphore is new. An existing one keeps its capacity."""
    sort_key: str | None = None

    @property
    def name(self) -> LockName:
        """Key and sort key."""
        return self.key, self.sort_key


OneOfSeveral: TypeAlias = "str | tuple[str, str] | Permits"
"""A lock, by its key or with its sort key, or permits."""
"""Key and sort key."""

ReleaseOutcome: TypeAlias = Literal["released", "replayed", "absent"]
"""The outcome of a release. `released`: by this call. `replayed`: by an earlier call. `absent`: there is no
row."""


@dataclass(frozen=True)
class LockView:
    """The public view of a lock."""

    key: str
    state: Literal["held", "released"]
    owner_name: str
    """The owner, or the last one."""
    record_version_number: str
    """The version, which changes with every acquire and heartbeat."""
    lease: float
    """Seconds for which the version must be seen unchanged before the lock is stale."""
    sort_key: str | None = None
    fencing_token: int | None = None
    """The fencing token; `None` if another kind of client wrote the row."""
    data: bytes | None = None
    attributes: Mapping[str, Any] | None = None
    occurrence: str | None = None
    """The occurrence that the holder runs, if any."""
    last_occurrence: str | None = None
    """The last occurrence that was completed, if any."""
    wanted_by: str | None = None
    """The owner name of a waiter who marked the lock, if any."""

    @classmethod
    def from_wire(cls, lock: _wire.Lock) -> LockView:
        """The view of a lock, or of a semaphore."""
        if lock.get("kind") == "semaphore":
            return SemaphoreView.of(lock)
        return cls(**_members(lock))

    @property
    def name(self) -> LockName:
        """Key and sort key."""
        return self.key, self.sort_key

    @property
    def watched(self) -> str:
        """The version that a watch compares."""
        return self.record_version_number

    @property
    def held_by(self) -> str:
        """The holder, in words."""
        return repr(self.owner_name)


def _members(lock: _wire.Lock) -> dict[str, Any]:
    return {
        "key": text(lock, "key"),
        "state": text(lock, "state"),
        "owner_name": text(lock, "ownerName"),
        "record_version_number": text(lock, "recordVersionNumber"),
        "lease": whole(lock, "leaseDurationMs") / 1000,
        "sort_key": lock.get("sortKey"),
        "fencing_token": lock.get("fencingToken"),
        "data": payload(lock),
        "attributes": lock.get("attributes"),
        "occurrence": lock.get("occurrence"),
        "last_occurrence": lock.get("lastOccurrence"),
        "wanted_by": lock.get("wantedBy"),
    }


@dataclass(frozen=True)
class Holder:
    """A holder of permits."""

    holder_id: str
    """The public name, which proves nothing."""
    owner_name: str
    version: str
    """The version, which changes with every heartbeat of this holder."""
    lease: float
    """Seconds for which the version must be seen unchanged before the holder is dead."""
    permits: int
    fencing_token: int
    data: bytes | None = None

    @property
    def id(self) -> str:
        """As `holder_id`."""
        return self.holder_id

    @classmethod
    def from_wire(cls, holder: _wire.Holder) -> Holder:
        return cls(
            holder_id=text(holder, "holderId"),
            owner_name=text(holder, "ownerName"),
            version=text(holder, "version"),
            lease=whole(holder, "leaseDurationMs") / 1000,
            permits=whole(holder, "permits"),
            fencing_token=whole(holder, "fencingToken"),
            data=payload(holder),
        )


@dataclass(frozen=True)
class Ticket:
    """A place in the queue of a semaphore."""

    ticket_id: str
    """The public name, which proves nothing."""
    owner_name: str
    version: str
    """The version, which changes with every renewal."""
    lease: float
    """Seconds for which the version must be seen unchanged before the waiter is dead."""
    permits: int
    number: int
    """The place in the queue: lower numbers go first."""

    @property
    def id(self) -> str:
        """As `ticket_id`."""
        return self.ticket_id

    @classmethod
    def from_wire(cls, ticket: _wire.Ticket) -> Ticket:
        return cls(
            ticket_id=text(ticket, "ticketId"),
            owner_name=text(ticket, "ownerName"),
            version=text(ticket, "version"),
            lease=whole(ticket, "leaseDurationMs") / 1000,
            permits=whole(ticket, "permits"),
            number=whole(ticket, "number"),
        )


Entry: TypeAlias = Holder | Ticket


@dataclass(frozen=True)
class SemaphoreView(LockView):
    """The public view of a semaphore. As a lock, the semaphore is held while any permits are."""

    capacity: int = 0
    """The number of permits."""
    available: int = 0
    """The number of free permits."""
    changed: str = ""
    """A version that changes when permits are released, and when the queue or the capacity changes."""
    holders: tuple[Holder, ...] = ()
    """The holders, the oldest first."""
    queue: tuple[Ticket, ...] = ()
    """The waiters, the first in the queue first."""
    epoch: str = ""
    """The age of the semaphore, for requests that this view leads to."""

    @classmethod
    def of(cls, state: _wire.Lock) -> SemaphoreView:
        return cls(
            **_members(state),
            capacity=whole(state, "capacity"),
            available=whole(state, "available"),
            changed=text(state, "changed"),
            holders=tuple(Holder.from_wire(holder) for holder in state["holders"]),
            queue=tuple(Ticket.from_wire(ticket) for ticket in state["queue"]),
            epoch=state.get("epoch", ""),
        )

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Holders and tickets."""
        return (*self.holders, *self.queue)

    @property
    def watched(self) -> str:
        return self.changed

    @property
    def held_by(self) -> str:
        holders, waiters = ([entry.owner_name for entry in kind] for kind in (self.holders, self.queue))
        return ", ".join(map(repr, holders)) or f"the queue: {', '.join(map(repr, waiters))}"


@dataclass(frozen=True)
class Ran(Generic[T]):
    """This caller ran the occurrence, which is now done."""

    value: T
    """The value that the body returned."""


@dataclass(frozen=True)
class AlreadyDone:
    """The occurrence, or a later one, was done before: nothing was run."""

    lock: LockView | None
    """The lock, whose `data` is what the completed run left. `None` if the row was deleted since."""

    @property
    def data(self) -> bytes | None:
        """The data that the completed run left."""
        return None if self.lock is None else self.lock.data


@dataclass(frozen=True)
class Leader:
    """A leader."""

    owner_name: str
    value: bytes | None
    """The leader's value, such as its address."""
    fencing_token: int | None

    @classmethod
    def of(cls, lock: LockView | None) -> Leader | None:
        """The leader that holds this lock, if any."""
        if lock is None or lock.state == "released":
            return None
        return cls(lock.owner_name, lock.data, lock.fencing_token)


@dataclass(frozen=True)
class UnreadableRow:
    """A row that is not a readable lock record: an operator must look at it."""

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
                UnreadableRow(row["key"], row.get("sortKey"), row["detail"]) for row in page.get("unreadable", ())
            ),
            next_cursor=page.get("nextCursor"),
        )


@dataclass(frozen=True)
class HistoryEntry:
    """One event in the life of a lock."""

    at_ms: int
    """The time of the change, in epoch milliseconds. That of DynamoDB's stream is exact to the second."""
    event: Literal["acquired", "renewed", "takenOver", "released", "broken", "expired", "deleted"]
    owner_name: str | None
    """The holder: the new one, or the one whose time ended. None where the row's owner was unreadable."""
    fencing_token: int | None
    """None where another client wrote the row."""
    occurrence: str | None
    """The occurrence that the acquisition was for, or that the release completed."""
    previous_owner_name: str | None
    """The holder that a takeover ended."""
    previous_fencing_token: int | None

    @classmethod
    def from_wire(cls, entry: _wire.HistoryEntry) -> HistoryEntry:
        return cls(
            at_ms=entry["atMs"],
            event=entry["event"],
            owner_name=entry.get("ownerName"),
            fencing_token=entry.get("fencingToken"),
            occurrence=entry.get("occurrence"),
            previous_owner_name=entry.get("previousOwnerName"),
            previous_fencing_token=entry.get("previousFencingToken"),
        )


@dataclass(frozen=True)
class Renewal:
    """The answer to a heartbeat: a lease that starts anew, counted from before the request was sent."""

    record_version_number: str
    lease: float
    """Seconds."""
    fencing_token: int
    wanted: bool = False
    """Whether somebody waits for the lock."""

    @classmethod
    def from_wire(cls, answer: _wire.HeartbeatResponse) -> Renewal:
        lease, wanted = whole(answer, "leaseDurationMs") / 1000, answer.get("wanted") or False
        return cls(text(answer, "recordVersionNumber"), lease, whole(answer, "fencingToken"), wanted)


class Ended(NamedTuple):
    """The answer to a release."""

    outcome: ReleaseOutcome
    wanted: bool
    """Whether somebody waits for the lock, as far as is known."""

    @classmethod
    def of(cls, answer: _wire.ReleaseResponse) -> Ended:
        return cls(outcome(answer), answer.get("wanted") or False)


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
            owner_name=text(answer, "ownerName"),
            renewal=Renewal(
                text(answer, "recordVersionNumber"),
                whole(answer, "leaseDurationMs") / 1000,
                whole(answer, "fencingToken"),
            ),
            outcome=outcome(answer),
            previous_owner_name=answer.get("previousOwnerName"),
            data=payload(answer),
        )


@dataclass(frozen=True)
class Grants:
    """The answer to an acquire of several locks that succeeded."""

    owner_name: str
    lease: float
    fencing_token: int
    versions: Mapping[LockName, str]
    holder_ids: Mapping[LockName, str]

    @classmethod
    def from_wire(cls, answer: _wire.AcquireAllResponse) -> Grants:
        return cls(
            owner_name=text(answer, "ownerName"),
            lease=whole(answer, "leaseDurationMs") / 1000,
            fencing_token=whole(answer, "fencingToken"),
            versions={
                (text(lock, "key"), lock.get("sortKey")): text(lock, "recordVersionNumber") for lock in answer["locks"]
            },
            holder_ids={
                (text(lock, "key"), lock.get("sortKey")): lock.get("holderId") or "" for lock in answer["locks"]
            },
        )


@dataclass(frozen=True)
class PermitsRenewal(Renewal):
    """As `Renewal`, of one holder of a semaphore."""

    holder_id: str = ""
    permits: int = 0

    @classmethod
    def of(cls, answer: _Permits) -> PermitsRenewal:
        return cls(
            text(answer, "version"),
            whole(answer, "leaseDurationMs") / 1000,
            whole(answer, "fencingToken"),
            holder_id=text(answer, "holderId"),
            permits=whole(answer, "permits"),
        )


@dataclass(frozen=True)
class PermitsGrant:
    """The answer to an acquire of permits that succeeded."""

    owner_name: str
    renewal: PermitsRenewal
    outcome: Literal["created", "reacquired", "takenOver", "renewed"]
    capacity: int
    epoch: str

    @classmethod
    def from_wire(cls, answer: _wire.AcquirePermitsResponse) -> PermitsGrant:
        renewal, epoch = PermitsRenewal.of(answer), answer.get("epoch", "")
        return cls(text(answer, "ownerName"), renewal, outcome(answer), whole(answer, "capacity"), epoch)


def text(document: Mapping[str, object], name: str) -> str:
    """A member that is a text. Raises `TypeError` for another one: the answer is not the service's."""
    value = document[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value


def whole(document: Mapping[str, object], name: str) -> int:
    """A member that is a whole number. Raises `TypeError` for another one."""
    value = document[name]
    if type(value) is not int:  # True is an `int`
        raise TypeError(f"{name} is no whole number")
    return value


def outcome(document: Mapping[str, object]) -> Any:
    """The outcome of an acquire or a release: one of a few words, which the service may add to."""
    return text(document, "outcome")


def payload_of(result: object) -> bytes | str | None:
    """Returns the result of a body, if it is a payload."""
    return result if isinstance(result, (bytes, str)) else None


def payload(answer: _wire.Lock | _wire.AcquireResponse | _wire.Holder) -> bytes | None:
    """Returns the row's payload, or `None` if there is none."""
    text = answer.get("data")
    if text is not None:
        return text.encode()
    encoded = answer.get("dataBase64")
    return None if encoded is None else base64.b64decode(encoded, validate=True)
