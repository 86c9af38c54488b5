"""Client of Leasehold, a distributed lock service on one DynamoDB table.

    with Client("http://127.0.0.1:8080") as client:
        with client.lock("nightly-export") as guard:
            export(fencing_token=guard.fencing_token)

`Client` acquires locks. A `Guard` is a granted lock, which heartbeats in the background keep. `Held` names
the present holder. Three failures are never mixed up: held (`LockHeld`), lost (`LockLost`), and unavailable
(`Unavailable`: the outcome is unknown, and a held lock stays held until its lease runs out).

`Client.transaction` changes many items of DynamoDB tables together or not at all.

Durations are seconds, a `timedelta`, or a text such as `20s`. A lease id is a secret: no `repr`, log or
message of this package has one.
"""

from ._about import __version__
from ._acquisition import Held
from ._client import AcquireOptions, LockOptions, TogetherOptions
from ._durations import Duration
from ._guard import Handover
from ._http import MakePool
from ._messages import Auth, Request, Token
from ._semaphore import PermitOptions
from ._timing import Wait
from .client import Client
from .election import Election
from .errors import (
    CloseError,
    ConditionFailed,
    CorruptRecord,
    ExceedsCapacity,
    Forbidden,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    LossReason,
    Misconfigured,
    OccurrenceDone,
    PayloadMismatch,
    PermitsMismatch,
    QueueFull,
    Superseded,
    Throttled,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
    VersionMismatch,
    WaitCancelled,
    WouldDeadlock,
    WrongKind,
)
from .guard import AllGuard, Guard, PermitGuard
from .model import (
    AlreadyDone,
    HistoryEntry,
    Holder,
    Leader,
    LockView,
    Page,
    Permits,
    Ran,
    ReleaseOutcome,
    Renewal,
    SemaphoreView,
    Ticket,
    UnreadableRow,
)
from .observations import Observation, SavedObservation
from .semaphore import ReadWriteLock, Semaphore
from .transactions import (
    CapacityMeter,
    ConsumedCapacity,
    Isolation,
    Participant,
    Transaction,
    TransactionStatus,
    derive_transaction_id,
)

__all__ = [
    "AcquireOptions",
    "AllGuard",
    "AlreadyDone",
    "Auth",
    "CapacityMeter",
    "Client",
    "CloseError",
    "ConditionFailed",
    "ConsumedCapacity",
    "CorruptRecord",
    "Duration",
    "Election",
    "ExceedsCapacity",
    "Forbidden",
    "Guard",
    "Handover",
    "Held",
    "HistoryEntry",
    "Holder",
    "InvalidRequest",
    "Isolation",
    "Leader",
    "LeaseholdError",
    "LockHeld",
    "LockLost",
    "LockNotFound",
    "LockOptions",
    "LockView",
    "LossReason",
    "MakePool",
    "Misconfigured",
    "Observation",
    "OccurrenceDone",
    "Page",
    "Participant",
    "PayloadMismatch",
    "PermitGuard",
    "PermitOptions",
    "Permits",
    "PermitsMismatch",
    "QueueFull",
    "Ran",
    "ReadWriteLock",
    "ReleaseOutcome",
    "Renewal",
    "Request",
    "SavedObservation",
    "Semaphore",
    "SemaphoreView",
    "Superseded",
    "Throttled",
    "Ticket",
    "TogetherOptions",
    "Token",
    "Transaction",
    "TransactionCommitted",
    "TransactionContended",
    "TransactionNotFound",
    "TransactionRolledBack",
    "TransactionStatus",
    "Unavailable",
    "UnreadableRow",
    "VersionMismatch",
    "Wait",
    "WaitCancelled",
    "WouldDeadlock",
    "WrongKind",
    "__version__",
    "derive_transaction_id",
]
