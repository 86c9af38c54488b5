/** Errors, sorted by the reaction of the caller. */
import type { Lock } from "./lock.js";
import type { Item } from "./values.js";

/** The kinds of {@link LeaseholdError}. */
export type ErrorKind =
  | "held"
  | "lost"
  | "not-found"
  | "version-mismatch"
  | "invalid-request"
  | "forbidden"
  | "throttled"
  | "unavailable"
  | "corrupt-record"
  | "misconfigured"
  | "superseded"
  | "already-done"
  | "wrong-kind"
  | "permits-mismatch"
  | "exceeds-capacity"
  | "queue-full"
  | "contended"
  | "rolled-back"
  | "committed"
  | "condition-failed"
  | "transaction-not-found"
  | "payload-mismatch"
  | "would-deadlock"
  | "closed"
  | "not-released";

/**
 * Reason of a loss. `expired` is the holder's own finding: the lease ran out by its clock before a heartbeat
 * was answered. `queued` occurs with semaphores: the lease id waits for its permits. `deadline`: the invocation of the
 * Lambda function ends. `max-hold`: it was held for as long as it may be.
 */
export type LostReason =
  | "absent"
  | "released"
  | "taken-over"
  | "version-mismatch"
  | "queued"
  | "not-queued"
  | "expired"
  | "deadline"
  | "max-hold";

/** The base of all errors of this package. No message and no property ever shows a lease id. */
export abstract class LeaseholdError extends Error {
  abstract readonly kind: ErrorKind;

  /** Whether the same call may succeed later, as it is. False: the caller, or an operator, must change something. */
  get retryable(): boolean {
    return RETRYABLE.has(this.kind);
  }

  /** The id of the transaction, where the error is about one. */
  declare transactionId?: string;
}

const RETRYABLE: ReadonlySet<ErrorKind> = new Set([
  "held",
  "queue-full",
  "superseded",
  "throttled",
  "unavailable",
  "contended",
  "rolled-back",
]);

/**
 * Another owner holds the lock. Thrown by `granted()` and `withLock` only: otherwise contention is a value,
 * `Held`.
 */
export class LockHeldError extends LeaseholdError {
  readonly kind = "held";

  constructor(
    message: string,
    /** The lock as it was last seen. */
    readonly lock: Lock,
    /** The pause that the service asks for before the next request, in milliseconds. */
    readonly retryAfter = 0,
    /** All held locks of a request for several. */
    readonly locks: readonly Lock[] = [lock],
  ) {
    super(message);
  }
}

/** The lock is no longer the caller's: stop the work under it. */
export class LockLostError extends LeaseholdError {
  readonly kind = "lost";
  /** The lock as it is now, if the service showed it. */
  readonly lock?: Lock;

  constructor(
    readonly key: string,
    readonly reason: LostReason,
    detail: string,
    { lock, ...options }: ErrorOptions & { lock?: Lock | undefined } = {},
  ) {
    super(`The lock ${JSON.stringify(key)} is lost: ${detail}`, options);
    if (lock) this.lock = lock;
  }
}

/**
 * The running scope holds the lock already, and would wait for itself. Locks are not reentrant: hand the guard on, or say
 * `reentrant: true`. A scope is `withLock`, and everything that was started in it.
 */
export class WouldDeadlockError extends LeaseholdError {
  readonly kind = "would-deadlock";

  constructor(readonly key: string) {
    super(
      `The lock ${JSON.stringify(key)} is held here already, and waiting for it would never end: pass its guard on, or ` +
        "use withLock(..., { reentrant: true }).",
    );
  }
}

/** The client was closed. */
export class ClosedError extends LeaseholdError {
  readonly kind = "closed";

  constructor() {
    super("The client was closed.");
  }
}

/** Some locks could not be released by `close`. They are free one lease after their last heartbeats. */
export class CloseError extends LeaseholdError {
  readonly kind = "not-released";

  constructor(
    /** Each failure. */
    readonly errors: readonly unknown[],
  ) {
    super(`${errors.length} of the locks could not be released: ${String(errors[0])}`);
  }
}

/** Another event came under the same key of idempotency: the key does not tell the two apart. */
export class PayloadMismatchError extends LeaseholdError {
  readonly kind = "payload-mismatch";
}

/** There is no such lock, and `onlyIfExists` was given. */
export class LockNotFoundError extends LeaseholdError {
  readonly kind = "not-found";
}

/** The lock changed since you looked; nothing was broken. */
export class VersionMismatchError extends LeaseholdError {
  readonly kind = "version-mismatch";

  constructor(
    message: string,
    /** The lock as it is now, if there is one. */
    readonly lock?: Lock,
  ) {
    super(message);
  }
}

/** The request is invalid, and a repeat will be refused too. */
export class InvalidRequestError extends LeaseholdError {
  readonly kind = "invalid-request";

  constructor(
    message: string,
    /** The field or option at fault, if there is one. */
    readonly field?: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * The service or its gateway refused the credentials; or the key is out of the caller's scope; or the lock is
 * bound to another principal.
 */
export class ForbiddenError extends LeaseholdError {
  readonly kind = "forbidden";
}

/** The service cannot work with its table: its operator must act. A retry does not help. */
export class MisconfiguredError extends LeaseholdError {
  readonly kind = "misconfigured";
}

/** A later request under the same lease id was carried out, and this one changed nothing. The lock is not lost. */
export class SupersededError extends LeaseholdError {
  readonly kind = "superseded";

  constructor(
    message: string,
    /** The number of the last request that was carried out. The next request needs a higher one. */
    readonly sequence: number,
    /** The token of the acquisition, if the service showed it. */
    readonly fencingToken?: number,
  ) {
    super(message);
  }
}

/**
 * The occurrence, or a later one, was completed: do not run it. `lock.data` is what the completed run left.
 */
export class AlreadyDoneError extends LeaseholdError {
  readonly kind = "already-done";

  constructor(
    message: string,
    /** The lock as it is. */
    readonly lock: Lock,
  ) {
    super(message);
  }
}

/** The key belongs to a semaphore where a lock is meant, or to a lock where a semaphore is meant. */
export class WrongKindError extends LeaseholdError {
  readonly kind = "wrong-kind";
}

/** The holder has another number of permits than the request names. There is no upgrade. */
export class PermitsMismatchError extends LeaseholdError {
  readonly kind = "permits-mismatch";
}

/** The request asks for more permits than the semaphore has. */
export class ExceedsCapacityError extends LeaseholdError {
  readonly kind = "exceeds-capacity";
}

/** The queue of the semaphore is full. A wait continues; the service refuses one ticket. */
export class QueueFullError extends LeaseholdError {
  readonly kind = "queue-full";

  constructor(
    message: string,
    /** The semaphore as it is, if the service showed it. */
    readonly lock?: Lock,
  ) {
    super(message);
  }
}

/** The service throttled the request, whose outcome is unknown. Try again. */
export class ThrottledError extends LeaseholdError {
  readonly kind = "throttled";

  constructor(
    message: string,
    /** The shortest pause before the next request, in milliseconds. */
    readonly retryAfter = 0,
    /** Whether the request reached the service, which may have carried it out all the same. */
    readonly reachedService = true,
  ) {
    super(message);
  }
}

/**
 * The outcome of the request is unknown: the service or the network failed, or no answer came in time. Try
 * again.
 */
export class UnavailableError extends LeaseholdError {
  readonly kind = "unavailable";

  constructor(
    message: string,
    /** The shortest pause before the next request, in milliseconds. */
    readonly retryAfter = 0,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * The answer arrived after the lease that it grants had run out. The next number is sent at once. Callers see an
 * `UnavailableError`.
 */
export class TooLateError extends UnavailableError {
  constructor() {
    super("The answer arrived after its lease had run out.");
  }
}

/** No connection could be made. Callers see an `UnavailableError`. */
export class UnconnectedError extends UnavailableError {
  /** Whether there was no answer to any request of the client so far. */
  neverAnswered = false;
}

/** Whether the client has the wrong address, as it seems, or the service does not run. */
export function isUnreached(error: unknown): boolean {
  return error instanceof UnconnectedError && error.neverAnswered;
}

/** The row in the table is not a readable lock; an operator must look at it. The row never counts as free. */
export class CorruptRecordError extends LeaseholdError {
  readonly kind = "corrupt-record";
}

/**
 * Another transaction has an item, and did not make way in time. The caller's transaction is open: repeat the
 * call, or roll back.
 */
export class TransactionContendedError extends LeaseholdError {
  readonly kind = "contended";

  constructor(
    message: string,
    /** The public id of the other transaction, if the service showed it. It proves nothing. */
    readonly other?: string,
    /** The pause that the service asks for before the next request, in milliseconds. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/**
 * The transaction was rolled back by another one that needed its items, or because it was idle: begin another
 * one.
 */
export class TransactionRolledBackError extends LeaseholdError {
  readonly kind = "rolled-back";

  constructor(
    message: string,
    /** The pause that the service asks for before the next request, in milliseconds. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/** The transaction is committed: it can be neither rolled back nor extended. */
export class TransactionCommittedError extends LeaseholdError {
  readonly kind = "committed";
}

/** The condition of a request does not hold; the transaction was rolled back. */
export class ConditionFailedError extends LeaseholdError {
  readonly kind = "condition-failed";

  constructor(
    message: string,
    /** The position of the request in the call, counted from 0. */
    readonly request?: number,
    /** The existing item, if the request asked for it. */
    readonly item?: Item,
  ) {
    super(message);
  }
}

/** The transaction is unknown: it was never begun, or was removed long after its end. */
export class TransactionNotFoundError extends LeaseholdError {
  readonly kind = "transaction-not-found";
}

// The names are set explicitly: a bundler that shortens the names of classes must not shorten those in logs.
const classes = {
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  VersionMismatchError,
  InvalidRequestError,
  ForbiddenError,
  ThrottledError,
  UnavailableError,
  CorruptRecordError,
  MisconfiguredError,
  SupersededError,
  AlreadyDoneError,
  WrongKindError,
  PermitsMismatchError,
  ExceedsCapacityError,
  QueueFullError,
  TransactionContendedError,
  TransactionRolledBackError,
  TransactionCommittedError,
  ConditionFailedError,
  TransactionNotFoundError,
  PayloadMismatchError,
  WouldDeadlockError,
  ClosedError,
  CloseError,
};
for (const [name, { prototype }] of Object.entries(classes)) Object.defineProperty(prototype, "name", { value: name });

/**
 * Whether the request may have been carried out despite the error. An error that is not Leasehold's comes
 * from a caller's signal.
 */
export function isUnanswered(error: unknown): boolean {
  if (error instanceof ThrottledError) return error.reachedService;
  return error instanceof UnavailableError || !(error instanceof LeaseholdError);
}

/** Whether another request, under a higher number, must be sent at once. */
export function isAboutItsNumber(error: unknown): error is TooLateError | SupersededError {
  return error instanceof TooLateError || error instanceof SupersededError;
}

/** Whether another request may succeed. */
export function isRetryable(error: unknown): boolean {
  return isTransient(error) || isAboutItsNumber(error);
}

/** Whether the error says nothing about the lock, so that the same request may succeed later. */
export function isTransient(error: unknown): error is ThrottledError | UnavailableError {
  return error instanceof ThrottledError || error instanceof UnavailableError;
}

/** Whether a transaction has to give way, and may succeed if it is begun again from the start. */
export function isContention(error: unknown): error is TransactionContendedError | TransactionRolledBackError {
  return error instanceof TransactionContendedError || error instanceof TransactionRolledBackError;
}
