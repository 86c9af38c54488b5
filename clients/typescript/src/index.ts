/**
 * Client of Leasehold, a serverless distributed lock service: leases, heartbeats, fencing tokens.
 *
 * Start with {@link Client}. A granted lock is a {@link Guard}; a refusal is a {@link Held}. Beside locks there
 * are semaphores, read/write locks and fair locks ({@link Semaphore}), several locks at once ({@link AllGuard}) and
 * elections ({@link Election}). A {@link Transaction} changes many items of DynamoDB tables together, or not at all.
 */
export type { AcquireOptions, ScopeOptions, TryAcquireOptions } from "./acquire.js";
export { CapacityMeter, type ConsumedCapacity } from "./capacity.js";
export { deriveTransactionId } from "./derived.js";
export {
  type AlreadyDone,
  Client,
  type ClientOptions,
  type Isolation,
  type HistoryEntry,
  type HistoryOptions,
  type ListItemsOptions,
  type ListOptions,
  type Locked,
  type OnceEvery,
  type OnceOptions,
  type Page,
  type Ran,
  type ReadOptions,
  type Renewal,
  type ResumeOptions,
  type TransactionStatus,
} from "./client.js";
export type { Duration } from "./duration.js";
export { type CampaignOptions, Election, type Leader } from "./election.js";
export {
  AlreadyDoneError,
  ClosedError,
  CloseError,
  ConditionFailedError,
  CorruptRecordError,
  type ErrorKind,
  ExceedsCapacityError,
  ForbiddenError,
  InvalidRequestError,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  type LostReason,
  MisconfiguredError,
  PayloadMismatchError,
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
  WouldDeadlockError,
  WrongKindError,
} from "./errors.js";
export { Guard } from "./guard.js";
export { Held } from "./held.js";
export { type GuardOptions, type Handover, Holding, type Outcome, type ReleaseOutcome } from "./holding.js";
export type { Fetch, Token } from "./http.js";
export { type AcquireAllOptions, AllGuard, type LockName, type TryAcquireAllOptions } from "./joint.js";
export { type Holder, isSemaphore, type Lock, type SemaphoreView, type Ticket } from "./lock.js";
export type { SavedObservation } from "./observations.js";
export type { CallOptions, HeartbeatOptions, ReleaseOptions } from "./options.js";
export type { Wait } from "./pacing.js";
export type { Payload } from "./payload.js";
export { PermitGuard, type PermitsHeartbeatOptions, type PermitsOptions, type TryPermitsOptions } from "./permits.js";
export type { Runtime } from "./runtime.js";
export {
  ReadWriteLock,
  type ResumePermitsOptions,
  Semaphore,
  type SemaphoreOptions,
} from "./semaphore.js";
export {
  type QueryOptions,
  type ReturnValues,
  Transaction,
  type TransactionRequest,
  type WriteOptions,
} from "./transaction.js";
export type { OneCallOptions, TransactionOptions, TransactOptions } from "./transactions.js";
export type { LogFields, Logger, Measurement, Telemetry } from "./telemetry.js";
export type { Tls } from "./tls.js";
export type { Answer, Call, ExchangeOptions, Transport } from "./transport.js";
export { ExactNumber, type Item } from "./values.js";
