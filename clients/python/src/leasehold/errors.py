"""The errors of this package. A kind exists only where a caller would act differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from .model import Item, LockView

LossReason: TypeAlias = Literal[
    "taken-over",
    "released",
    "absent",
    "version-mismatch",
    "queued",
    "not-queued",
    "expired",
    "forked",
    "deadline",
    "max-hold",
]
"""The reason of a loss. `expired`: the lease ran out by the holder's own clock. `forked`: the lock belongs to
the parent process. `deadline`: the invocation of the Lambda function ends. `max-hold`: it
was held for as long as it may be. The others are the service's; `queued`: the lease id waits, and has no
permits."""


class LeaseholdError(Exception):
    """The base of all errors of this package. Each can be copied, and pickled for another process."""

    transaction_id: str | None = None
    """The transaction that the error is about, if any."""

    retryable: bool = False
    """Whether the same call may succeed later. False: the caller, or an operator, must change something."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is made again from its message, which is not what its constructor takes.
        return _restored, (type(self), self.args, self.__dict__)


class LockHeld(LeaseholdError):
    """Another owner holds the lock. `lock` names the holder. `retry_after`: the service's wish, in seconds.
    `locks` has all refused locks of a request for several."""

    retryable = True

    def __init__(self, lock: LockView, retry_after: float = 0.0, locks: tuple[LockView, ...] = ()) -> None:
        self.locks = locks or (lock,)
        super().__init__("; ".join(f"{lock.key!r} is held by {lock.held_by}" for lock in self.locks))
        self.lock = lock
        self.retry_after = retry_after


class LockLost(LeaseholdError):
    """The lock is not, or no longer, the caller's: stop what was done under it.

    `key` and `sort_key` name the lock, `reason` says why it is lost. `lock` is the lock as it was then, where
    the service showed it. The `__cause__` of an `expired` is the last failure of a heartbeat.
    """

    _was_repeated = False  # the transport sent the request twice, and the answer is that of the second

    def __init__(
        self, reason: LossReason, lock: LockView | None = None, *, key: str, sort_key: str | None = None
    ) -> None:
        name = repr(key) if sort_key is None else f"{key!r}, {sort_key!r}"
        super().__init__(f"the lock {name} is lost: {reason}")
        self.key = key
        self.sort_key = sort_key
        self.reason: LossReason = reason
        self.lock = lock


class Superseded(LeaseholdError):
    """A later request under the same lease id was carried out, and this one changed nothing. The lock is not
    lost.

    `sequence` is the number of the later request: continue above it. `fencing_token` is the lock's.
    """

    retryable = True

    def __init__(self, message: str, sequence: int, fencing_token: int | None = None) -> None:
        super().__init__(message)
        self.sequence = sequence
        self.fencing_token = fencing_token


class WouldDeadlock(LeaseholdError):
    """This thread, or task, holds the lock already, and would wait for itself. Locks are not reentrant: hand the
    guard on, or say `reentrant=True`. A task counts as its holder's where it was started under the lock."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the lock {key!r} is held here already, and waiting for it would never end: pass its guard on, or use "
            "lock(..., reentrant=True)"
        )
        self.key = key


class WaitCancelled(LeaseholdError):
    """The wait for a lock was cancelled by its caller. A lock that may have been granted is released."""


class LockNotFound(LeaseholdError):
    """There is no such lock (`get`, or `only_if_exists`)."""


class OccurrenceDone(LeaseholdError):
    """The occurrence, or a later one, was completed: do not run it. The `data` of `lock` is what the
    completed run left. `lock` is `None` if the row was deleted since."""

    def __init__(self, message: str, lock: LockView | None = None) -> None:
        super().__init__(message)
        self.lock = lock


class PayloadMismatch(LeaseholdError):
    """Another event came under the same key of idempotency: the key does not tell the two apart."""

    def __init__(self, key: str) -> None:
        super().__init__(f"another payload came under the key {key!r}")
        self.key = key


class WrongKind(LeaseholdError):
    """The key belongs to a semaphore where a lock is meant, or to a lock where a semaphore is meant."""


class PermitsMismatch(LeaseholdError):
    """The holder has another number of permits. There is no upgrade."""


class ExceedsCapacity(LeaseholdError):
    """The request asks for more permits than the semaphore has: ask for fewer."""


class QueueFull(LeaseholdError):
    """The queue is full: try again later. `lock` is the semaphore."""

    retryable = True

    def __init__(self, message: str, lock: LockView | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.lock = lock
        self.retry_after = retry_after


class VersionMismatch(LeaseholdError):
    """The lock changed since the operator looked. `lock` is its present state, where there is a row."""

    def __init__(self, message: str, lock: LockView | None = None) -> None:
        super().__init__(message)
        self.lock = lock


class InvalidRequest(LeaseholdError, ValueError):
    """The request breaks a rule; `field` names the argument or member at fault, where known."""

    def __init__(self, message: str, field: str | None = None) -> None:
        is_named = field is None or message.startswith(f"{field} ")
        super().__init__(message if is_named else f"{field}: {message}")
        self.field = field


class Forbidden(LeaseholdError):
    """The service, or its gateway, refuses the caller (401, 403): the credentials are missing, the key is out
    of the caller's scope, or the lock was acquired by another principal."""


class Misconfigured(LeaseholdError):
    """The service is misconfigured, and cannot work with its table: its operator must act."""


class Unavailable(LeaseholdError):
    """The outcome of the request is unknown: retry with the same lease id or transaction id.

    `retry_after` is the service's wish in seconds. `sent` is false if the request certainly never reached the
    service.
    """

    retryable = True

    def __init__(self, message: str, retry_after: float = 0.0, *, sent: bool = True) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.sent = sent
        self._is_answer = True  # False where no answer came at all


class Throttled(Unavailable):
    """Too many requests: as `Unavailable`, but slow down."""


class CorruptRecord(LeaseholdError):
    """The row is not a readable lock record: an operator must look at it."""


class TransactionContended(LeaseholdError):
    """Another transaction, `other`, has locked an item, and did not finish in time. The caller's transaction
    is open: repeat the call, or roll back. `retry_after` is the service's wish, in seconds."""

    retryable = True

    def __init__(self, message: str, other: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.other = other
        self.retry_after = retry_after


class TransactionRolledBack(LeaseholdError):
    """The transaction was rolled back by another one that needed its items, or because it was idle: begin
    another one. `retry_after` is the service's wish, in seconds."""

    retryable = True

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TransactionCommitted(LeaseholdError):
    """The transaction is committed: it takes no further requests, and no rollback."""


class TransactionNotFound(LeaseholdError):
    """There is no such transaction: it was never begun, or was removed long after its end."""


class ConditionFailed(LeaseholdError):
    """The condition of a request does not hold; the transaction was rolled back. `request` is the request's
    position in the call, from 0; `item` is the present item, where the request asked for it."""

    def __init__(self, message: str, request: int | None = None, item: Item | None = None) -> None:
        super().__init__(message)
        self.request = request
        self.item = item


class CloseError(LeaseholdError):
    """Some locks could not be released by `Client.close`; `errors` has each failure."""

    def __init__(self, errors: tuple[Exception, ...]) -> None:
        super().__init__(f"{len(errors)} of the locks could not be released: {errors[0]}")
        self.errors = errors


def _restored(kind: type[LeaseholdError], args: tuple[object, ...], members: Mapping[str, object]) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(members)
    return error
