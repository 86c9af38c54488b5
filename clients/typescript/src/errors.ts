/** Errors, by what the caller has to do about them. */
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
  | "transaction-not-found";

/**
 * Reason of a loss. `expired` is the holder's own finding: the lease ran out by its clock before a heartbeat was
 * answered. `queued` is of a semaphore: the lease id waits for its permits.
 */
export type LostReason = "absent" | "released" | "taken-over" | "version-mismatch" | "queued" | "expired";

/** The base of all errors of this package. No message and no property ever shows a lease id. */
export abstract class LeaseholdError extends Error {
  abstract readonly kind: ErrorKind;
  /** The id of the transaction, where the error is about one. */
  declare transactionId?: string;
}

/** Someone else holds the lock. Thrown by `granted()` and `withLock` only: otherwise this is a value, `Held`. */
export class LockHeldError extends LeaseholdError {
  readonly kind = "held";

  constructor(
    message: string,
    /** The lock as it was last seen. */
    readonly lock: Lock,
    /** How long the service asks to wait before the next request, in milliseconds. */
    readonly retryAfter = 0,
    /** All that are held, where several were asked for. */
    readonly locks: readonly Lock[] = [lock],
  ) {
    super(message);
  }
}

/** The lock is no longer the caller's: stop the work under it. */
export class LockLostError extends LeaseholdError {
  readonly kind = "lost";
  /** The lock as it is now, where the service told. */
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

/** There is no such lock, and `onlyIfExists` was given. */
export class LockNotFoundError extends LeaseholdError {
  readonly kind = "not-found";
}

/** The lock changed since you looked; nothing was broken. */
export class VersionMismatchError extends LeaseholdError {
  readonly kind = "version-mismatch";

  constructor(
    message: string,
    /** The lock as it is now, where there is one. */
    readonly lock?: Lock,
  ) {
    super(message);
  }
}

/** The request is wrong, and will be wrong again. */
export class InvalidRequestError extends LeaseholdError {
  readonly kind = "invalid-request";

  constructor(
    message: string,
    /** The field or option at fault, where one is. */
    readonly field?: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * The service or its gateway refused the credentials; or this key is not the caller's, or the lock another principal's.
 */
export class ForbiddenError extends LeaseholdError {
  readonly kind = "forbidden";
}

/** The service cannot work with its table: whoever runs the service must act. Trying again does not help. */
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
    /** The token of the acquisition, where the service told. */
    readonly fencingToken?: number,
  ) {
    super(message);
  }
}

/** The occurrence, or a later one, was completed: do not run it. `lock.data` is what its run left. */
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

/** The key is a semaphore's, and the request a lock's; or the other way round. */
export class WrongKindError extends LeaseholdError {
  readonly kind = "wrong-kind";
}

/** The holder has another number of permits than the request says. There is no upgrade. */
export class PermitsMismatchError extends LeaseholdError {
  readonly kind = "permits-mismatch";
}

/** More permits are asked for than the semaphore has. */
export class ExceedsCapacityError extends LeaseholdError {
  readonly kind = "exceeds-capacity";
}

/** The queue of the semaphore has no room. A wait goes on; the service refuses one ticket. */
export class QueueFullError extends LeaseholdError {
  readonly kind = "queue-full";

  constructor(
    message: string,
    /** The semaphore as it is, where the service told. */
    readonly lock?: Lock,
  ) {
    super(message);
  }
}

/** Too many requests; nobody knows about this one. Try again. */
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

/** Nobody knows whether it was done: the service or the network failed, or there was no answer in time. Try again. */
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

/** The row in the table is not a readable lock; an operator must look at it. It is never taken for free. */
export class CorruptRecordError extends LeaseholdError {
  readonly kind = "corrupt-record";
}

/** Another transaction has an item, and did not make way in time. This one is open: repeat the call, or roll back. */
export class TransactionContendedError extends LeaseholdError {
  readonly kind = "contended";

  constructor(
    message: string,
    /** The public id of the other one, where the service told. It proves nothing. */
    readonly other?: string,
    /** How long the service asks to wait before the next request, in milliseconds. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/**
 * The transaction was rolled back, by another one that needed its items, or because nobody worked on it: begin another
 * one.
 */
export class TransactionRolledBackError extends LeaseholdError {
  readonly kind = "rolled-back";

  constructor(
    message: string,
    /** How long the service asks to wait before the next request, in milliseconds. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/** The transaction is committed, which cannot be taken back, nor added to. */
export class TransactionCommittedError extends LeaseholdError {
  readonly kind = "committed";
}

/** The condition of a request does not hold; the transaction was rolled back. */
export class ConditionFailedError extends LeaseholdError {
  readonly kind = "condition-failed";

  constructor(
    message: string,
    /** Which of the call's requests, counted from 0. */
    readonly request?: number,
    /** The item as it is, where the request asked for it and there is one. */
    readonly item?: Item,
  ) {
    super(message);
  }
}

/** There is no such transaction: it was never begun, or ended so long ago that it was removed. */
export class TransactionNotFoundError extends LeaseholdError {
  readonly kind = "transaction-not-found";
}

// By name: a bundler that shortens the names of classes must not shorten those in logs.
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
};
for (const [name, { prototype }] of Object.entries(classes)) Object.defineProperty(prototype, "name", { value: name });

/**
 * Whether the request may have been carried out all the same. An error that is not Leasehold's comes from a caller's
 * signal.
 */
export function isUnanswered(error: unknown): boolean {
  if (error instanceof ThrottledError) return error.reachedService;
  return error instanceof UnavailableError || !(error instanceof LeaseholdError);
}

/** Whether another request, under a higher number, is due at once. */
export function isAboutItsNumber(error: unknown): error is TooLateError | SupersededError {
  return error instanceof TooLateError || error instanceof SupersededError;
}

/** Whether another request is worth sending. */
export function isRetryable(error: unknown): boolean {
  return isTransient(error) || isAboutItsNumber(error);
}

/** Whether the error says nothing about the lock, so that the same request is worth repeating. */
export function isTransient(error: unknown): error is ThrottledError | UnavailableError {
  return error instanceof ThrottledError || error instanceof UnavailableError;
}

/** Whether a transaction has to give way, and may succeed if it is begun again from the start. */
export function isContention(error: unknown): error is TransactionContendedError | TransactionRolledBackError {
  return error instanceof TransactionContendedError || error instanceof TransactionRolledBackError;
}
