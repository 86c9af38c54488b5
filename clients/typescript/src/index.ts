/**
 * Client of Leasehold, a serverless distributed lock service: leases, heartbeats, fencing tokens.
 *
 * Start with {@link Client}. A lock that is held is a {@link Guard}; one that is not, {@link Held}. A {@link Transaction} changes many
 * items of DynamoDB tables together, or not at all.
 */
export type { AcquireOptions, TryAcquireOptions } from "./acquire.js";
export {
  Client,
  type ClientOptions,
  type Isolation,
  type ListItemsOptions,
  type ListOptions,
  type Page,
  type ReadOptions,
  type Renewal,
  type ResumeOptions,
  type TransactionStatus,
} from "./client.js";
export {
  ConditionFailedError,
  CorruptRecordError,
  type ErrorKind,
  ForbiddenError,
  InvalidRequestError,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  type LostReason,
  MisconfiguredError,
  SupersededError,
  ThrottledError,
  TransactionCommittedError,
  TransactionContendedError,
  TransactionNotFoundError,
  TransactionRolledBackError,
  UnavailableError,
  VersionMismatchError,
} from "./errors.js";
export { Guard, type GuardOptions, type Handover, type Outcome, type ReleaseOutcome } from "./guard.js";
export { Held } from "./held.js";
export type { Fetch, Token } from "./http.js";
export type { Lock } from "./lock.js";
export type { SavedObservation } from "./observations.js";
export type { CallOptions, HeartbeatOptions, ReleaseOptions } from "./options.js";
export type { Wait } from "./pacing.js";
export type { Payload } from "./payload.js";
export type { Runtime } from "./runtime.js";
export { type ReturnValues, Transaction, type TransactionRequest, type WriteOptions } from "./transaction.js";
export type { TransactionOptions, TransactOptions } from "./transactions.js";
export type { Measurement, Telemetry } from "./telemetry.js";
export type { Answer, Call, ExchangeOptions, Transport } from "./transport.js";
export { ExactNumber, type Item } from "./values.js";
