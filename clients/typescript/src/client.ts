/** The client: all calls of the service, and the state between them. */
import { acquire, type AcquireOptions, type ScopeOptions, type TryAcquireOptions } from "./acquire.js";
import { checkBody, finished } from "./bodies.js";
import { type Context, track } from "./context.js";
import { type Duration, millisecondsOf } from "./duration.js";
import { answerFromWire, itemFromWire, itemToWire } from "./dynamodb.js";
import { Endpoints, urlsOf } from "./endpoints.js";
import {
  AlreadyDoneError,
  ClosedError,
  CloseError,
  InvalidRequestError,
  LockNotFoundError,
  UnavailableError,
} from "./errors.js";
import { releaseAtExit } from "./exit.js";
import { heldHere } from "./flow.js";
import { Guard } from "./guard.js";
import type { Held } from "./held.js";
import { checkGuardOptions, type GuardOptions, type Handover, type Holding, type ReleaseOutcome } from "./holding.js";
import {
  acquireAll,
  type AcquireAllOptions,
  type AllGuard,
  type LockName,
  type TryAcquireAllOptions,
} from "./joint.js";
import { type Fetch, HttpTransport, type Token } from "./http.js";
import { Lines } from "./line.js";
import { isSemaphore, type Lock, lockFromWire, type SemaphoreView } from "./lock.js";
import { Observations, type SavedObservation } from "./observations.js";
import { observe } from "./observing.js";
import {
  type CallOptions,
  checkLease,
  checkWait,
  checkWhole,
  completionOf,
  type HeartbeatOptions,
  type ReleaseOptions,
} from "./options.js";
import { changeToWire, toWire } from "./data.js";
import type { WirePayload } from "./payload.js";
import { Sightings } from "./plan.js";
import { Releases } from "./releases.js";
import { defaultOwnerName, type Runtime, systemRuntime } from "./runtime.js";
import { type Tls, tlsFetch } from "./tls.js";
import { type Resumed, type ResumeBody, renewOnce } from "./resuming.js";
import { under, work } from "./scope.js";
import { ReadWriteLock, Semaphore, type SemaphoreOptions } from "./semaphore.js";
import { type Answers, retrying, type SendOptions, Service } from "./service.js";
import { consoleLogger, type Logger, silent, type Telemetry } from "./telemetry.js";
import { leaveBound } from "./pacing.js";
import { at, keepAlive } from "./timers.js";
import { Transaction, type TransactionRequest } from "./transaction.js";
import { type OneCallOptions, runTransaction, transact, type TransactionOptions } from "./transactions.js";
import { messageOf, type Transport } from "./transport.js";
import type { Item } from "./values.js";
import type { components } from "./wire.js";

type Schemas = components["schemas"];

/** Options of a client. Durations are milliseconds, or texts such as `"20s"`. */
export interface ClientOptions {
  /**
   * The address of the service, with the stage if there is one:
   * `https://abc.execute-api.eu-central-1.amazonaws.com/prod`. Several, in an array or in one text with commas, are
   * endpoints of one service, such as stacks in several regions that have one table with strong consistency. Where an
   * endpoint gives no answer, the next try goes to the next one.
   */
  url?: string | URL | readonly (string | URL)[] | undefined;
  /** Carries the requests in place of HTTP: `lambda(…)` of `leasehold/lambda`. Excludes `url`, `token`, `fetch` and `tls`. */
  transport?: Transport | undefined;
  /** The owner of the locks, for people to read: 1 to 1024 bytes. Default: `hostname:pid`. */
  ownerName?: string | undefined;
  /** The token of `Authorization: Bearer`. A function is called for each request. */
  token?: Token | undefined;
  /**
   * Sends the requests, instead of the global `fetch`: to sign them, to trace them, to use a proxy. It must
   * not retry.
   */
  fetch?: Fetch | undefined;
  /** An authority of one's own, and a client's certificate (mutual TLS). Needs Node. Excludes `fetch`. */
  tls?: Tls | undefined;
  /** The default lease in milliseconds: 100 to 86400000. Default: 20000. */
  lease?: Duration | undefined;
  /**
   * The interval between two polls of a held lock, at least 50. By default the client watches the lock, with
   * one read that waits at the service. If that is not possible, the interval is 1000, or the service's pause
   * if that is longer.
   */
  pollInterval?: Duration | undefined;
  /** The time that a wait continues after the lease of the found holder: 0 or more. Default: 2000. */
  waitMargin?: Duration | undefined;
  /**
   * Called when a release fails, and throwing would hide the result or the error of the work: at the end of
   * `withLock` and of `await using`. Such a lock is free one lease after its last heartbeat. Default: the `logger`.
   */
  onReleaseError?: ((error: unknown, guard: Holding) => void) | undefined;
  /** Receives the warnings, with their parts as members. Default: `console.warn`. */
  logger?: Logger | undefined;
  /** Receives spans and measurements: `openTelemetry()` of `leasehold/opentelemetry`. */
  telemetry?: Telemetry | undefined;
  /** Clock, timers and randomness, for tests. */
  runtime?: Runtime | undefined;
}

function transportOf({ transport, url, token, fetch, tls, runtime }: ClientOptions): Transport {
  if (transport !== undefined) {
    const [excluded] = Object.entries({ url, token, fetch, tls }).filter(([, value]) => value !== undefined);
    if (excluded) throw new InvalidRequestError(`A transport excludes ${excluded[0]}.`, excluded[0]);
    return transport;
  }
  if (url === undefined) throw new InvalidRequestError("Either url or transport is needed.", "url");
  if (tls !== undefined && fetch !== undefined)
    throw new InvalidRequestError("A fetch of one's own excludes tls.", "tls");
  const urls = urlsOf(url);
  if (tls !== undefined && !urls.every((one) => String(one).startsWith("https:")))
    throw new InvalidRequestError("tls needs https:// in the url.", "tls");
  const send = tls === undefined ? fetch : tlsFetch(tls);
  const transports = urls.map((one) => new HttpTransport(one, token, send));
  const [only] = transports;
  if (only === undefined) throw new InvalidRequestError("The url names no endpoint.", "url");
  return transports.length === 1 ? only : new Endpoints(transports, runtime ?? systemRuntime);
}

/** Options of `once`. */
export type OnceOptions = Omit<AcquireOptions, "occurrence">;

/** A decorator of functions and methods, whose result becomes a promise. */
export type Locked<Arguments extends unknown[]> = <This, Given extends Arguments, T>(
  work: (this: This, ...given: Given) => T | Promise<T>,
  context?: ClassMethodDecoratorContext,
) => (this: This, ...given: Given) => Promise<T>;

/** A decorator of functions and methods that run once in each period. */
export type OnceEvery = <This, Given extends unknown[], T>(
  work: (this: This, ...given: Given) => T | Promise<T>,
  context?: ClassMethodDecoratorContext,
) => (this: This, ...given: Given) => Promise<Ran<T> | AlreadyDone | Held>;

/** This caller ran the occurrence, which is now completed. */
export interface Ran<T> {
  readonly kind: "ran";
  /** The value that the body returned. */
  readonly value: T;
}

/** The occurrence, or a later one, was completed before. */
export interface AlreadyDone {
  readonly kind: "already-done";
  /** The lock as it is. Its `data` and `text` are what the last completed run left. */
  readonly lock: Lock;
}

/** Filters of a listing. */
export interface ListOptions {
  state?: Lock["state"] | undefined;
  ownerName?: string | undefined;
  /** Lists all sort keys under one key, on a table with a sort key. */
  key?: string | undefined;
  /** Locks in one page: 1 to 1000. Default: 100. */
  pageSize?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** One page of a listing. It may have no lock and still not be the last. */
export interface Page {
  readonly locks: readonly (Lock | SemaphoreView)[];
  /** Rows that are not readable locks: an operator must look at them. */
  readonly unreadable: readonly { readonly key: string; readonly sortKey?: string; readonly detail: string }[];
}

/** The largest page of locks, and of a history. */
const LARGEST_PAGE = 1000;

/** The part of a lock's history to read. */
export interface HistoryOptions extends CallOptions {
  /** No event before this time, in epoch milliseconds. */
  sinceMs?: number | undefined;
  /** No event after this time, in epoch milliseconds. */
  untilMs?: number | undefined;
  /** The largest number of events: the newest ones. Default: all. */
  limit?: number | undefined;
}

/** One event in the life of a lock. */
export interface HistoryEntry {
  /** The time of the change, in epoch milliseconds. That of DynamoDB's stream is exact to the second. */
  readonly atMs: number;
  readonly event: "acquired" | "renewed" | "takenOver" | "released" | "broken" | "expired" | "deleted";
  /** The holder: the new one, or the one whose time ended. Absent where the row's owner was unreadable. */
  readonly ownerName?: string;
  /** Absent where another client wrote the row. */
  readonly fencingToken?: number;
  /** The occurrence that the acquisition was for, or that the release completed. */
  readonly occurrence?: string;
  /** The holder that a takeover ended. */
  readonly previousOwnerName?: string;
  readonly previousFencingToken?: number;
}

function historyEntryFromWire(entry: Schemas["HistoryEntry"]): HistoryEntry {
  const { ownerName, fencingToken, occurrence, previousOwnerName, previousFencingToken } = entry;
  return {
    atMs: entry.atMs,
    event: entry.event,
    ...(ownerName != null && { ownerName }),
    ...(fencingToken != null && { fencingToken }),
    ...(occurrence != null && { occurrence }),
    ...(previousOwnerName != null && { previousOwnerName }),
    ...(previousFencingToken != null && { previousFencingToken }),
  };
}

/** The answer to a heartbeat without a guard. */
export interface Renewal {
  readonly recordVersionNumber: string;
  /** The lease in milliseconds, counted from before the heartbeat was sent. */
  readonly leaseDurationMs: number;
  readonly fencingToken: number;
  /** The number of this heartbeat: hand it to the next one. */
  readonly sequence: number;
}

/** Options of `resume`. All durations in milliseconds. */
export interface ResumeOptions extends Omit<CallOptions, "sortKey">, GuardOptions {
  /** A new lease: 100 to 86400000. Default: the record's. */
  lease?: Duration | undefined;
}

/**
 * The view of a reader outside of transactions: the items as the last committed transaction left them, or as
 * they are.
 */
export type Isolation = "committed" | "uncommitted";

/** The options of a read outside of transactions. */
export interface ReadOptions {
  /** Default: `"committed"`. */
  isolation?: Isolation | undefined;
  signal?: AbortSignal | undefined;
}

/** The options of a listing of items: a Query with a `keyCondition`, a Scan without. */
export interface ListItemsOptions extends ReadOptions {
  keyCondition?: string | undefined;
  /** An index of the table that projects all attributes. Default: the table itself. */
  indexName?: string | undefined;
  filter?: string | undefined;
  /** The expressions' `:values`. */
  values?: object | undefined;
  /** The expressions' `#names`. */
  names?: Record<string, string> | undefined;
  projection?: string | undefined;
  /** Whether the sort keys of a Query ascend. Default: true. */
  forward?: boolean | undefined;
  /** Items that a request looks at: 1 to 1000. */
  pageSize?: number | undefined;
}

/** The state of a transaction, as the service knows it. */
export interface TransactionStatus {
  readonly transactionId: string;
  readonly state: "pending" | "committed" | "rolled-back";
  /** Whether all its items are free again. False for a moment after the decision, or until a sweep. */
  readonly finished: boolean;
  /** The reason of the rollback, for people to read. */
  readonly reason?: string;
  /** The time of the beginning, in milliseconds since the epoch, as is the next. */
  readonly createdAtMs: number;
  readonly lastWorkedAtMs: number;
  /**
   * The participants, in the order in which the items were locked. `operation` is `get`, `put`, `update`,
   * `delete` or `check`.
   */
  readonly requests: readonly { readonly tableName: string; readonly key: Item; readonly operation: string }[];
}

/** The context of a client, for the other modules of this package. @internal */
export let contextOf: (client: Client) => Context;

/**
 * A client of one Leasehold service. A client keeps its observations of other holders' locks, so use one for the whole
 * process.
 *
 * Every method rejects with a `LeaseholdError`, or with the reason of the caller's own signal.
 */
export class Client implements AsyncDisposable {
  static {
    contextOf = (client) => client.#context;
  }

  readonly #context: Context;
  readonly #closing = new AbortController();
  #closed: Promise<Map<Holding, unknown>> | undefined;

  /** @throws {InvalidRequestError} an option is out of its range. */
  constructor(options: ClientOptions = {}) {
    const runtime = options.runtime ?? systemRuntime;
    const logger = options.logger ?? consoleLogger;
    const warnOfRelease = (error: unknown, { key }: Holding): void => {
      logger.warn(`the lock ${JSON.stringify(key)} could not be released: ${messageOf(error)}`, { key, error });
    };
    const onReleaseError = options.onReleaseError ?? warnOfRelease;
    const guards = new Set<Holding>();
    releaseAtExit(guards, logger);
    this.#context = {
      service: new Service(transportOf(options), runtime, options.telemetry),
      telemetry: options.telemetry ?? silent,
      logger,
      runtime,
      observations: new Observations(runtime),
      lines: new Lines(runtime),
      sightings: new Sightings(runtime),
      ownerName: options.ownerName ?? defaultOwnerName(),
      lease: checkLease(options.lease ?? 20_000),
      pollInterval:
        options.pollInterval === undefined ? undefined : millisecondsOf(options.pollInterval, "pollInterval"),
      waitMargin: millisecondsOf(options.waitMargin ?? 2000, "waitMargin"),
      watching: { isPossible: true },
      guards,
      releases: new Releases(),
      underWay: new Set(),
      closed: this.#closing.signal,
      releaseFailed(error, guard) {
        try {
          onReleaseError(error, guard);
        } catch (thrown) {
          // The caller's mistake must be reported, but must not replace the result of the caller's work.
          queueMicrotask(() => {
            throw thrown;
          });
        }
      },
    };
  }

  /** The default lease, in milliseconds. */
  get lease(): number {
    return this.#context.lease;
  }

  /**
   * Sends one request for the lock, without a retry.
   *
   * @throws {UnavailableError | ThrottledError} the outcome is unknown; a grant is released in the background.
   * @throws {LockNotFoundError} with `onlyIfExists`.
   */
  async tryAcquire(key: string, options: TryAcquireOptions = {}): Promise<Guard | Held> {
    return acquire(this.#context, key, options, undefined);
  }

  /**
   * Waits for the lock: watches it, takes it over from a holder that died, and gives up when `wait` is over. Not
   * reentrant: a client waits for its own lock, too, and inside of a scope of that lock the wait is refused.
   *
   * @throws {UnavailableError | ThrottledError} the service could not be reached until the wait was over.
   * @throws {LockNotFoundError} with `onlyIfExists`.
   */
  async acquire(key: string, options: AcquireOptions = {}): Promise<Guard | Held> {
    const { wait = "lease" } = options;
    return acquire(this.#context, key, options, checkWait(wait));
  }

  /**
   * Waits for the lock, runs `body` under it, and releases it. An error of `body` is thrown unchanged. `guard.signal`
   * is aborted when the lock is lost, for `body` to stop. The process stays alive while `body` runs, even if `body`
   * only waits for the loss.
   *
   * @throws {LockHeldError} the wait was over.
   * @throws {LockLostError} `body` came to its end, but the lock was lost meanwhile.
   * @throws {WouldDeadlockError} the scope around this one holds the lock.
   */
  async withLock<T>(key: string, body: (guard: Guard) => T | Promise<T>, options: ScopeOptions = {}): Promise<T> {
    checkBody(body, "body");
    if (options.reentrant === true) {
      const outer = heldHere().find((guard) => guard.blocks(this.#context, key, options.sortKey));
      if (outer instanceof Guard) {
        const result = finished(await body(outer));
        outer.ensureHeld();
        return result;
      }
    }
    return under(this.#context, (await this.acquire(key, options)).granted(), body);
  }

  /**
   * Returns a decorator, which runs a function or a method under the lock: `client.locked("key")(work)`, or
   * `@client.locked("key")` above a method. The key may be a function of the arguments. As {@link withLock}.
   */
  locked<Arguments extends unknown[]>(
    key: string | ((...given: Arguments) => string),
    options: ScopeOptions = {},
  ): Locked<Arguments> {
    const client = this;
    return (work) => {
      checkBody(work, "work");
      return function (this: ThisParameterType<typeof work>, ...given) {
        const name = typeof key === "string" ? key : key(...given);
        return client.withLock(name, () => work.apply(this, given), options);
      };
    };
  }

  /**
   * Returns a decorator, which runs a function at most once in each period, over all processes that share the key:
   * `client.onceEvery("report", "1h")(work)`. Periods begin at multiples since the epoch, in UTC. Who comes while
   * another one runs the period does not wait, and gets `Held`, unless `wait` says so. As {@link once}.
   */
  onceEvery(key: string, period: Duration, options: OnceOptions = {}): OnceEvery {
    const every = millisecondsOf(period, "period");
    if (!(every >= 1000)) throw new InvalidRequestError("period must be a second or more.", "period");
    const client = this;
    return (work) => {
      checkBody(work, "work");
      return function (this: ThisParameterType<typeof work>, ...given) {
        const now = client.#context.runtime.epoch();
        const occurrence = new Date(Math.floor(now / every) * every).toISOString();
        return client.once(key, occurrence, () => work.apply(this, given), { wait: 0, ...options });
      };
    };
  }

  /**
   * Makes a guard for a lock that another process acquired, by one heartbeat: of what `detach` returned, or of a key and
   * a lease id. One process at a time should do this. Without a named lease, the record's lease stays.
   *
   * @throws {LockLostError} nobody holds it under this lease id any more.
   */
  async resume(handover: Handover, options: ResumeOptions = {}): Promise<Guard> {
    this.#closing.signal.throwIfAborted();
    const leaseDuration = options.lease === undefined ? undefined : checkLease(options.lease);
    const resumed = this.#resume(handover, leaseDuration, options);
    track(this.#context, resumed);
    return resumed;
  }

  async #resume(
    { key, sortKey, leaseId, sequence: known }: Handover,
    leaseDurationMs: number | undefined,
    options: ResumeOptions,
  ): Promise<Guard> {
    const body = { key, sortKey, leaseId, leaseDurationMs };
    const { answer, sentAt, sequence } = await this.#renew(body, { ...options, sequence: known });
    checkGuardOptions(options, answer.leaseDurationMs);
    const grant = {
      ...answer,
      version: answer.recordVersionNumber,
      key,
      sortKey,
      leaseId,
      sequence,
      outcome: "resumed" as const,
    };
    return new Guard(this.#context, grant, sentAt, options);
  }

  /**
   * Renews a lock that any process acquired, by its lease id alone. Without a named lease, the record's lease stays.
   *
   * @throws {LockLostError} nobody holds it under this lease id any more.
   */
  async heartbeat(
    key: string,
    leaseId: string,
    options: HeartbeatOptions & { sequence?: number | undefined } = {},
  ): Promise<Renewal> {
    const { data, sortKey } = options;
    const leaseDurationMs = options.lease === undefined ? undefined : checkLease(options.lease);
    const { answer, sequence } = await this.#renew(
      { key, sortKey, leaseId, leaseDurationMs, ...changeToWire(data) },
      options,
    );
    const { recordVersionNumber, fencingToken } = answer;
    return { recordVersionNumber, leaseDurationMs: answer.leaseDurationMs, fencingToken, sequence };
  }

  /** Sends one heartbeat under a lease id that has no guard here, with its retries. */
  #renew(
    body: ResumeBody & WirePayload & { deleteData?: true },
    options: { sequence?: number | undefined; signal?: AbortSignal | undefined; lockDelay?: Duration | undefined },
  ): Promise<Resumed<Answers["heartbeat"]>> {
    const { service } = this.#context;
    return renewOnce(
      this.#context,
      body,
      (request, sendOptions) => service.ask("heartbeat", request, sendOptions),
      options,
    );
  }

  /**
   * Releases a lock that any process acquired, by its lease id alone. May be repeated.
   *
   * @throws {LockLostError} another owner holds it.
   */
  async release(key: string, leaseId: string, options: ReleaseOptions = {}): Promise<ReleaseOutcome> {
    const request = {
      key,
      sortKey: options.sortKey,
      leaseId,
      delete: options.delete,
      ...completionOf(options),
      ...toWire(options.data),
    };
    const { runtime, service } = this.#context;
    const send = (sendOptions: SendOptions) => service.ask("release", request, sendOptions);
    const { outcome, wanted } = await retrying(runtime, send, { signal: options.signal });
    this.#context.releases.released(key, options.sortKey, wanted ?? false, runtime.now());
    return outcome;
  }

  /**
   * Runs `body` once for each `occurrence` of a recurring job, on the first host that asks. A failed run is tried again
   * by the next caller, a completed one never. Occurrences must grow: `2026-11-21T02`. Text or bytes that `body`
   * returns become the lock's data. With `atMostOnce`, a failed run is not tried again either.
   *
   * @throws {LockLostError} `body` came to its end, but the lock was lost meanwhile: another run may follow.
   * @throws {UnavailableError | ThrottledError} it is unknown whether the completion was stored; another run may
   *   follow.
   */
  async once<T>(
    key: string,
    occurrence: string,
    body: (guard: Guard) => T | Promise<T>,
    options: OnceOptions = {},
  ): Promise<Ran<T> | AlreadyDone | Held> {
    checkBody(body, "body");
    const guard = await this.acquire(key, { ...options, occurrence }).catch((error: unknown): AlreadyDone => {
      if (!(error instanceof AlreadyDoneError)) throw error;
      const { lastOccurrence } = error.lock;
      if (lastOccurrence !== occurrence)
        this.#context.logger.warn(
          `${JSON.stringify(key)} is done up to ${lastOccurrence}, which sorts after ${occurrence}`,
          { key },
        );
      return { kind: "already-done", lock: error.lock };
    });
    if (guard.kind !== "granted") return guard;
    const value = await work(this.#context, guard, body);
    const data = typeof value === "string" || value instanceof Uint8Array ? value : undefined;
    await guard.release({ completed: occurrence, data });
    return { kind: "ran", value };
  }

  /**
   * Sends one request for 2 to 50 keys, locks or permits: all or none.
   *
   * @throws {UnavailableError | ThrottledError} the outcome is unknown; a grant is released in the background.
   */
  async tryAcquireAll(locks: readonly LockName[], options: TryAcquireAllOptions = {}): Promise<AllGuard | Held> {
    return acquireAll(this.#context, locks, options, undefined);
  }

  /**
   * Waits for 2 to 50 keys, locks or permits: all or none, so that two callers cannot wait for each other. A semaphore
   * in whose queue somebody waits refuses.
   *
   * @throws {UnavailableError | ThrottledError} the service could not be reached until the wait was over.
   */
  async acquireAll(locks: readonly LockName[], options: AcquireAllOptions = {}): Promise<AllGuard | Held> {
    const { wait = "lease" } = options;
    return acquireAll(this.#context, locks, options, checkWait(wait));
  }

  /** Waits for all locks, runs `body` under them, and releases them: as {@link withLock}. */
  async withAll<T>(
    locks: readonly LockName[],
    body: (guard: AllGuard) => T | Promise<T>,
    options: AcquireAllOptions = {},
  ): Promise<T> {
    checkBody(body, "body");
    return under(this.#context, (await this.acquireAll(locks, options)).granted(), body);
  }

  /**
   * Yields the present view of the lock or the semaphore, and its view after each change; undefined while
   * there is none.
   */
  observe(
    key: string,
    { sortKey, signal }: CallOptions = {},
  ): AsyncGenerator<Lock | SemaphoreView | undefined, void, undefined> {
    return observe(this.#context, { key, sortKey }, signal);
  }

  /** Returns a semaphore of this number of permits. Nothing is sent. */
  semaphore(key: string, capacity: number, options: SemaphoreOptions = {}): Semaphore {
    return new Semaphore(this.#context, key, capacity, options);
  }

  /** Returns a lock for at most `capacity` readers (100), or one writer. Nothing is sent. */
  readWriteLock(
    key: string,
    { capacity = 100, ...options }: SemaphoreOptions & { capacity?: number | undefined } = {},
  ): ReadWriteLock {
    return new ReadWriteLock(this.#context, key, capacity, options);
  }

  /**
   * Returns a lock that is granted in the order of the requests: a semaphore of one permit. Nothing is sent.
   */
  fairLock(key: string, options: SemaphoreOptions = {}): Semaphore {
    return this.semaphore(key, 1, options);
  }

  /** Reads the semaphore; undefined if there is none. */
  async getSemaphore(key: string, { sortKey, signal }: CallOptions = {}): Promise<SemaphoreView | undefined> {
    const { runtime, service, sightings } = this.#context;
    try {
      const view = lockFromWire(
        await retrying(runtime, (sendOptions) => service.ask("semaphore-get", { key, sortKey }, sendOptions), {
          signal,
        }),
      );
      if (!isSemaphore(view)) throw new UnavailableError("The answer is incomplete.");
      sightings.saw(view);
      return view;
    } catch (error) {
      if (error instanceof LockNotFoundError) return undefined;
      throw error;
    }
  }

  /**
   * Removes a holder or a waiter, as an operator, if it still has the version that you saw. `id` is a `holderId` or a
   * `ticketId`.
   *
   * @throws {VersionMismatchError} it changed since, or is gone.
   */
  async breakEntry(
    key: string,
    id: string,
    version: string,
    { sortKey, signal }: CallOptions = {},
  ): Promise<ReleaseOutcome> {
    const { runtime, service } = this.#context;
    const request = { key, sortKey, holderId: id, version };
    return (await retrying(runtime, (sendOptions) => service.ask("semaphore-break", request, sendOptions), { signal }))
      .outcome;
  }

  /**
   * Changes the capacity of a semaphore, as an operator, if it is still the one that you saw. Holders keep their
   * permits; after a cut nothing is granted until enough permits are released. Resolves with the capacity, and the
   * number of free permits.
   *
   * @throws {VersionMismatchError} the capacity is another.
   * @throws {LockNotFoundError} there is no such semaphore.
   */
  async setCapacity(
    key: string,
    capacity: number,
    expected: number,
    { sortKey, signal }: CallOptions = {},
  ): Promise<{ capacity: number; available: number }> {
    const { runtime, service } = this.#context;
    const request = { key, sortKey, capacity, expected };
    return retrying(runtime, (sendOptions) => service.ask("semaphore-capacity", request, sendOptions), { signal });
  }

  /** Reads the lock; undefined if there is none. */
  async get(key: string, { sortKey, signal }: CallOptions = {}): Promise<Lock | undefined> {
    const { runtime, service } = this.#context;
    try {
      return lockFromWire(
        await retrying(runtime, (sendOptions) => service.ask("get", { key, sortKey }, sendOptions), { signal }),
      );
    } catch (error) {
      if (error instanceof LockNotFoundError) return undefined;
      throw error;
    }
  }

  /** Yields all locks and semaphores that match. Unreadable rows are left out: see {@link pages}. */
  async *list(options: ListOptions = {}): AsyncGenerator<Lock | SemaphoreView, void, undefined> {
    for await (const page of this.pages(options)) yield* page.locks;
  }

  /** Yields the pages of a listing, with the unreadable rows. */
  async *pages({ pageSize: limit, signal, ...filter }: ListOptions = {}): AsyncGenerator<Page, void, undefined> {
    const { runtime, service } = this.#context;
    checkWhole(limit, "pageSize", 1, LARGEST_PAGE);
    let cursor: string | undefined;
    do {
      const query = { ...filter, limit, cursor };
      const answer = await retrying(runtime, (sendOptions) => service.ask("list", query, sendOptions), { signal });
      yield {
        locks: answer.locks.map(lockFromWire),
        unreadable: (answer.unreadable ?? []).map(({ key, sortKey, detail }) => ({
          key,
          ...(sortKey != null && { sortKey }),
          detail,
        })),
      };
      cursor = answer.nextCursor ?? undefined;
    } while (cursor !== undefined);
  }

  /**
   * Resolves with who held a lock, when, and how it ended, from the newest event on. Reads page after page up to `limit`,
   * which is all of them by default.
   *
   * @throws {LockNotFoundError} the service keeps no history.
   */
  async history(key: string, options: HistoryOptions = {}): Promise<HistoryEntry[]> {
    const { runtime, service } = this.#context;
    const { sortKey, sinceMs, untilMs, limit = Number.POSITIVE_INFINITY, signal } = options;
    if (limit !== Number.POSITIVE_INFINITY) checkWhole(limit, "limit", 1);
    checkWhole(sinceMs, "sinceMs", 0);
    checkWhole(untilMs, "untilMs", 0);
    const entries: HistoryEntry[] = [];
    let cursor: string | undefined;
    while (entries.length < limit) {
      const query = { key, sortKey, sinceMs, untilMs, limit: Math.min(limit - entries.length, LARGEST_PAGE), cursor };
      const page = await retrying(runtime, (sendOptions) => service.ask("history", query, sendOptions), { signal });
      entries.push(...page.entries.map(historyEntryFromWire));
      cursor = page.nextCursor ?? undefined;
      if (cursor === undefined) break;
    }
    return entries;
  }

  /**
   * Takes a lock from its holder, as an operator, if it still has the version that you saw. The holder learns of it at
   * its next heartbeat, and continues until then.
   *
   * @throws {VersionMismatchError} the lock changed since.
   */
  async breakLock(key: string, recordVersionNumber: string, options: CallOptions = {}): Promise<ReleaseOutcome> {
    const request = { key, sortKey: options.sortKey, recordVersionNumber };
    const { runtime, service } = this.#context;
    return (
      await retrying(runtime, (sendOptions) => service.ask("break", request, sendOptions), { signal: options.signal })
    ).outcome;
  }

  /**
   * Sets which occurrence counts as the last one that is done, as an operator, if the lock is free and still has the
   * version that you saw. Resolves with its new version.
   *
   * @throws {VersionMismatchError} the lock changed since.
   * @throws {LockHeldError} the lock has a holder, whose run may still complete an occurrence.
   */
  async setOccurrence(
    key: string,
    lastOccurrence: string,
    recordVersionNumber: string,
    options: CallOptions = {},
  ): Promise<string> {
    const request = { key, sortKey: options.sortKey, lastOccurrence, recordVersionNumber };
    const { runtime, service } = this.#context;
    const answer = await retrying(runtime, (sendOptions) => service.ask("occurrence", request, sendOptions), {
      signal: options.signal,
    });
    return answer.recordVersionNumber;
  }

  /**
   * Runs `body` in a transaction, commits it, and resolves with what `body` returned. An error of `body` rolls the
   * transaction back, and is thrown unchanged. After a conflict with another transaction, the transaction is rolled
   * back, and `body` is run again in a new one. Its changes of items happen once; its other effects may happen several
   * times.
   *
   * @throws {TransactionContendedError | TransactionRolledBackError} after the last try.
   * @throws {UnavailableError} at the commit: the outcome is unknown, and `transactionId` names the transaction.
   */
  async transaction<T>(body: (tx: Transaction) => T | Promise<T>, options: TransactionOptions = {}): Promise<T> {
    return runTransaction(this.#context, body, options);
  }

  /**
   * Carries out all requests in one call, at most 1000, together or not at all. Resolves with the requested items, in
   * the order of the requests. Retries after conflicts. If the `signal` ends the call, the outcome is unknown.
   *
   * @throws {TransactionCommittedError} the requests were carried out, but the answer, with the items of the writes,
   *   was lost.
   */
  async transact(requests: readonly TransactionRequest[], options: OneCallOptions = {}): Promise<(Item | undefined)[]> {
    return transact(this.#context, requests, options);
  }

  /**
   * Opens a transaction that is committed by hand, here or in another process. Only its calls keep it alive.
   */
  async beginTransaction(): Promise<Transaction> {
    this.#closing.signal.throwIfAborted();
    const transaction = new Transaction(this.#context, this.#context.runtime.uuid());
    await transaction.begin();
    return transaction;
  }

  /** Continues a transaction that another process opened. Nothing is sent. */
  resumeTransaction(id: string): Transaction {
    return new Transaction(this.#context, id);
  }

  /**
   * Returns the state of a transaction, even long after its end.
   *
   * @throws {TransactionNotFoundError}
   */
  async transactionStatus(id: string, { signal }: { signal?: AbortSignal } = {}): Promise<TransactionStatus> {
    const { runtime, service } = this.#context;
    const answer = await retrying(runtime, (sendOptions) => service.ask("get-transaction", { id }, sendOptions), {
      signal,
    });
    const { transactionId, state, finished, reason, createdAtMs, lastWorkedAtMs } = answer;
    const requests = answer.requests.map(({ tableName, key, operation }) => ({
      tableName,
      key: itemFromWire(key),
      operation,
    }));
    return {
      transactionId: transactionId ?? id,
      state,
      finished,
      ...(reason != null && { reason }),
      createdAtMs,
      lastWorkedAtMs,
      requests,
    };
  }

  /** Reads one item outside of transactions. */
  async readItem(table: string, key: object, options: ReadOptions = {}): Promise<Item | undefined> {
    return (await this.readItems([[table, key]], options))[0];
  }

  /**
   * Reads items, given as pairs of table and key, in their order: at most 100, each once. Only a transaction reads them
   * all at one moment.
   */
  async readItems(
    keys: readonly (readonly [table: string, key: object])[],
    { isolation, signal }: ReadOptions = {},
  ): Promise<(Item | undefined)[]> {
    const { runtime, service } = this.#context;
    const requests = keys.map(([tableName, key]) => ({ tableName, key: itemToWire(key) }));
    const answer = await retrying(
      runtime,
      (sendOptions) => service.ask("get-items", { requests, isolation }, sendOptions),
      { signal },
    );
    return (answer.answers ?? []).map(answerFromWire);
  }

  /**
   * Yields all items that a Query or a Scan finds, page after page. The listing is no snapshot: docs/transactions.md
   * lists what it can miss.
   */
  async *listItems(table: string, options: ListItemsOptions = {}): AsyncGenerator<Item, void, undefined> {
    const { runtime, service } = this.#context;
    checkWhole(options.pageSize, "pageSize", 1);
    const request = {
      tableName: table,
      indexName: options.indexName,
      keyConditionExpression: options.keyCondition,
      filterExpression: options.filter,
      projectionExpression: options.projection,
      expressionAttributeNames: options.names,
      expressionAttributeValues: options.values && itemToWire(options.values),
      scanIndexForward: options.forward,
      limit: options.pageSize,
      isolation: options.isolation,
    };
    let exclusiveStartKey: Schemas["ListItemsResponse"]["lastEvaluatedKey"];
    do {
      const page = { ...request, exclusiveStartKey };
      const answer = await retrying(runtime, (sendOptions) => service.ask("list-items", page, sendOptions), {
        signal: options.signal,
      });
      yield* answer.items.map(itemFromWire);
      exclusiveStartKey = answer.lastEvaluatedKey;
    } while (exclusiveStartKey != null);
  }

  /**
   * Returns the observations of other holders' locks, for `loadObservations` in a later process: plain JSON.
   */
  saveObservations(): SavedObservation[] {
    return this.#context.observations.save();
  }

  /**
   * Adds the observations of another process. The wall clock measures their age. `margin` milliseconds (default: 1000)
   * are added to each lease, and the clocks of all sharers of the list must agree within the margin.
   *
   * @throws {InvalidRequestError} the list is malformed; nothing was loaded.
   */
  loadObservations(list: readonly SavedObservation[], { margin = 1000 }: { margin?: Duration } = {}): void {
    if (!Array.isArray(list)) throw new InvalidRequestError("The saved observations are no list.", "list");
    this.#context.observations.load(list as readonly SavedObservation[], millisecondsOf(margin, "margin"));
  }

  /**
   * Ends all waits (with a `ClosedError`), releases all locks, and waits for the answers: for two seconds, after which
   * the releases go on in the background, with a warning. One failure does not stop the others.
   *
   * @throws {CloseError} of all failures; those locks are free one lease after their last heartbeats.
   */
  async close(): Promise<void> {
    const failures = await this.#closeOnce();
    if (failures.size > 0) throw new CloseError([...failures.values()]);
  }

  /** Closes as {@link close}, but never throws: `onReleaseError` receives the failure. */
  async [Symbol.asyncDispose](): Promise<void> {
    const failures = await this.#closeOnce();
    for (const [guard, error] of failures) this.#context.releaseFailed(error, guard);
  }

  /** Closes at the first call; each call has the same end. */
  #closeOnce(): Promise<Map<Holding, unknown>> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<Map<Holding, unknown>> {
    const { guards, underWay, runtime, logger } = this.#context;
    this.#closing.abort(new ClosedError());
    // Background work does not keep the process alive; a caller that waits for it does.
    const letGo = keepAlive(runtime);
    const failures = new Map<Holding, unknown>();
    const toTheEnd = async (): Promise<void> => {
      while (guards.size > 0 || underWay.size > 0) {
        const releases = [...guards].map((guard) =>
          guard.release().catch((error: unknown) => failures.set(guard, error)),
        );
        await Promise.all([...releases, ...underWay]);
      }
    };
    let cancel = (): void => undefined;
    const late = new Promise<"late">((resolve) => {
      cancel = at(runtime, runtime.now() + leaveBound(Infinity), () => {
        resolve("late");
      });
    });
    const all = toTheEnd().finally(letGo);
    const outcome = await Promise.race([all, late]);
    cancel();
    if (outcome === "late") {
      const key = [...guards].map((guard) => JSON.stringify(guard.key)).join(", ");
      logger.warn(`the client is closed, and goes on to release in the background: ${key}`, { key });
      const told = new Map(failures);
      void all.then(() => {
        for (const [guard, error] of failures) if (!told.has(guard)) this.#context.releaseFailed(error, guard);
      });
      return told;
    }
    return failures;
  }
}
