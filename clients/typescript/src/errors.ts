/** What can go wrong, by what the caller has to do about it. */
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
  | "contended"
  | "rolled-back"
  | "committed"
  | "condition-failed"
  | "transaction-not-found";

/** How a lock was lost. `expired` is the holder's own finding: the lease ran out by its clock and nobody could be asked. */
export type LostReason = "absent" | "released" | "taken-over" | "version-mismatch" | "expired";

/** The base of all errors of this package. No message and no property ever shows a lease id. */
export abstract class LeaseholdError extends Error {
  abstract readonly kind: ErrorKind;
  /** Which transaction it is about, where it is about one. */
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

/** The service or its gateway refused the credentials; or this key is not the caller's, or the lock another principal's. */
export class ForbiddenError extends LeaseholdError {
  readonly kind = "forbidden";
}

/** Too many requests; nobody knows about this one. Try again. */
export class ThrottledError extends LeaseholdError {
  readonly kind = "throttled";

  constructor(
    message: string,
    /** Not to be asked again before this many milliseconds. */
    readonly retryAfter = 0,
  ) {
    super(message);
  }
}

/** Nobody knows whether it was done: the service or the network failed, or there was no answer in time. Try again. */
export class UnavailableError extends LeaseholdError {
  readonly kind = "unavailable";

  constructor(
    message: string,
    /** Not to be asked again before this many milliseconds. */
    readonly retryAfter = 0,
    options?: ErrorOptions,
  ) {
    super(message, options);
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

/** The transaction was rolled back, by another one that needed its items, or because nobody worked on it: begin another one. */
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

// By name, so that a bundler that shortens the names of classes does not shorten those in logs.
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
  TransactionContendedError,
  TransactionRolledBackError,
  TransactionCommittedError,
  ConditionFailedError,
  TransactionNotFoundError,
};
for (const [name, { prototype }] of Object.entries(classes)) Object.defineProperty(prototype, "name", { value: name });

/** Whether the error says nothing about the lock, so that the same request is worth repeating. */
export function isTransient(error: unknown): error is ThrottledError | UnavailableError {
  return error instanceof ThrottledError || error instanceof UnavailableError;
}

/** Whether a transaction has to give way, and may succeed if it is begun again from the start. */
export function isContention(error: unknown): error is TransactionContendedError | TransactionRolledBackError {
  return error instanceof TransactionContendedError || error instanceof TransactionRolledBackError;
}
