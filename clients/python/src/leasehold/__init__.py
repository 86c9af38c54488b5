"""Client of Leasehold, a distributed lock service on one DynamoDB table.

    with Client("http://127.0.0.1:8080") as client:
        with client.lock("nightly-export") as guard:
            export(fencing_token=guard.fencing_token)

`Client` asks for locks; a `Guard` is one that was granted, and is kept by heartbeats in the background;
`Held` says who has it. Three failures are never mixed up: held (`LockHeld`), lost (`LockLost`), and
unavailable (`Unavailable`: nobody knows, and what was held is held until its lease runs out).

`Client.run_transaction` changes many items of DynamoDB tables together or not at all.

All durations are seconds. A lease id is a secret: no `repr`, log or message of this package has one.
"""

from ._about import __version__
from ._acquisition import Held
from ._client import AcquireOptions
from ._guard import Detached
from ._http import MakePool
from ._messages import Auth, Request, Token
from ._timing import Wait
from .client import Client
from .errors import (
    CloseError,
    ConditionFailed,
    CorruptRecord,
    Forbidden,
    InvalidRequest,
    LeaseholdError,
    LockHeld,
    LockLost,
    LockNotFound,
    LossReason,
    Misconfigured,
    Superseded,
    Throttled,
    TransactionCommitted,
    TransactionContended,
    TransactionNotFound,
    TransactionRolledBack,
    Unavailable,
    VersionMismatch,
    WaitCancelled,
)
from .guard import Guard
from .model import LockView, Page, ReleaseOutcome, Renewal, UnreadableRow
from .observations import Observation, SavedObservation
from .transactions import Isolation, Participant, Transaction, TransactionStatus

__all__ = [
    "AcquireOptions",
    "Auth",
    "Client",
    "CloseError",
    "ConditionFailed",
    "CorruptRecord",
    "Detached",
    "Forbidden",
    "Guard",
    "Held",
    "InvalidRequest",
    "Isolation",
    "LeaseholdError",
    "LockHeld",
    "LockLost",
    "LockNotFound",
    "LockView",
    "LossReason",
    "MakePool",
    "Misconfigured",
    "Observation",
    "Page",
    "Participant",
    "ReleaseOutcome",
    "Renewal",
    "Request",
    "SavedObservation",
    "Superseded",
    "Throttled",
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
    "__version__",
]
