/** Refusals and failures of the service, as errors. */
import { answerFromWire } from "./dynamodb.js";
import {
  AlreadyDoneError,
  ConditionFailedError,
  CorruptRecordError,
  ExceedsCapacityError,
  ForbiddenError,
  InvalidRequestError,
  type LeaseholdError,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  MisconfiguredError,
  PermitsMismatchError,
  QueueFullError,
  SupersededError,
  ThrottledError,
  TransactionCommittedError,
  TransactionContendedError,
  TransactionNotFoundError,
  TransactionRolledBackError,
  UnavailableError,
  VersionMismatchError,
  WrongKindError,
} from "./errors.js";
import { type Lock, lockFromWire, refusedFromWire } from "./lock.js";
import type { Answer } from "./transport.js";
import type { components } from "./wire.js";

/** A later version of the service sends `misconfigured`. */
type Problem = Omit<components["schemas"]["Problem"], "type"> & {
  type: components["schemas"]["Problem"]["type"] | "misconfigured";
};

/**
 * Returns the error for an answer that is not a 200. Without a problem document of Leasehold's, the status
 * decides.
 */
export function refusal({ status, document, retryAfter }: Answer, key: string): LeaseholdError {
  const found: Partial<Problem> = document ?? {};
  // A document with another status is a proxy's.
  const problem: Partial<Problem> = found.status === status ? found : {};
  const said = (found as { message?: unknown }).message; // by a gateway
  const detail = problem.detail ?? `The answer is HTTP ${status}${typeof said === "string" ? ` (${said})` : ""}.`;
  const lock = problem.lock ? lockFromWire(problem.lock) : undefined;
  const locks = (problem.locks ?? []).flatMap(refusedFromWire);
  switch (problem.type) {
    case "held":
      return heldError(detail, lock ? [lock] : locks, retryAfter) ?? new UnavailableError("The answer is incomplete.");
    case "lost":
      return new LockLostError(
        problem.locks?.[0]?.key ?? key,
        problem.locks?.[0]?.reason ?? problem.reason ?? "taken-over",
        detail,
        { lock },
      );
    case "superseded":
      if (typeof problem.sequence !== "number") return new UnavailableError("The answer is incomplete.");
      return new SupersededError(detail, problem.sequence, problem.fencingToken ?? undefined);
    case "not-found":
      return new LockNotFoundError(detail);
    case "version-mismatch":
      return new VersionMismatchError(detail, lock);
    case "forbidden":
      return new ForbiddenError(detail);
    case "throttled":
      return new ThrottledError(detail, retryAfter);
    case "unavailable":
      return new UnavailableError(detail, retryAfter);
    case "misconfigured":
      return new MisconfiguredError(detail);
    case "corrupt-record":
      return new CorruptRecordError(detail);
    case "invalid-request":
    case "too-large":
    case "unsupported-media-type":
    case "method-not-allowed":
      return new InvalidRequestError(detail, problem.field ?? undefined);
    case "unknown-route":
      return new InvalidRequestError(`There is no such route: check the path of the url. ${detail}`);
    case "already-done":
      return lock ? new AlreadyDoneError(detail, lock) : new UnavailableError("The answer is incomplete.");
    case "wrong-kind":
      return new WrongKindError(detail);
    case "permits-mismatch":
      return new PermitsMismatchError(detail);
    case "exceeds-capacity":
      return new ExceedsCapacityError(detail);
    case "queue-full":
      return new QueueFullError(detail, lock);
    case "contended":
      return new TransactionContendedError(detail, problem.publicId ?? undefined, retryAfter);
    case "rolled-back":
      return new TransactionRolledBackError(detail, retryAfter);
    case "committed":
      return new TransactionCommittedError(detail);
    case "condition-failed":
      return new ConditionFailedError(detail, problem.request ?? undefined, answerFromWire(problem));
    case "transaction-not-found":
      return new TransactionNotFoundError(detail);
    case undefined:
      break;
    default:
      // A later version of the service may send a kind that the types exclude.
      problem.type satisfies never;
  }
  if (status === 401 || status === 403) return new ForbiddenError(detail);
  if (status === 429) return new ThrottledError(detail, retryAfter, false);
  // 408: the server stopped waiting for the request. Below 300: a proxy answered in place of the service.
  if (status >= 500 || status === 408 || status < 300) return new UnavailableError(detail, retryAfter);
  return new InvalidRequestError(status === 404 && problem.detail === undefined ? `${detail} Check the url.` : detail);
}

function heldError(detail: string, locks: readonly Lock[], retryAfter: number): LockHeldError | undefined {
  const [first] = locks;
  return first && new LockHeldError(detail, first, retryAfter, locks);
}
