/** Semaphores, read/write locks and fair locks (rule K6). */
import type { Duration } from "./duration.js";
import type { Bound } from "./pacing.js";
import { checkBody } from "./bodies.js";
import { type Context, track } from "./context.js";
import { InvalidRequestError } from "./errors.js";
import type { Held } from "./held.js";
import { checkGuardOptions, type GuardOptions, type Handover } from "./holding.js";
import type { SemaphoreView } from "./lock.js";
import { checkWait, checkLease } from "./options.js";
import { acquirePermits, PermitGuard, type PermitsOptions, type TryPermitsOptions } from "./permits.js";
import { renewOnce } from "./resuming.js";
import { under } from "./scope.js";

/** Options of `resume` of a semaphore. */
export interface ResumePermitsOptions extends GuardOptions {
  /** A new lease, in milliseconds: 100 to 86400000. Default: the record's. */
  lease?: Duration | undefined;
  signal?: AbortSignal | undefined;
}

/** The sort key of the semaphore, on a table that has one. */
export interface SemaphoreOptions {
  sortKey?: string | undefined;
}

/**
 * A semaphore: `capacity` permits, of which a grant takes some. Made by {@link Client.semaphore}; nothing is sent until
 * permits are asked for. The first request makes the semaphore with this capacity; later the semaphore's own holds.
 */
export class Semaphore {
  readonly #context: Context;
  readonly #permits: number;
  readonly #sortKey: string | undefined;

  /** @internal */
  constructor(
    context: Context,
    readonly key: string,
    readonly capacity: number,
    { sortKey, permits = 1 }: SemaphoreOptions & { permits?: number } = {},
  ) {
    this.#context = context;
    this.#permits = permits;
    this.#sortKey = sortKey;
  }

  /**
   * Asks for permits once, and takes no place in the queue.
   *
   * @throws {ExceedsCapacityError} there are fewer in all.
   * @throws {UnavailableError | ThrottledError} nobody knows; what may have been granted is released in the background.
   */
  async tryAcquire(options: TryPermitsOptions = {}): Promise<PermitGuard | Held<SemaphoreView>> {
    return this.#acquire(options, undefined);
  }

  /**
   * Waits for permits: in the queue, after those who came before. Holders and waiters that died are passed. Gives up
   * when `wait` is over.
   *
   * @throws {ExceedsCapacityError} there are fewer in all.
   * @throws {UnavailableError | ThrottledError} the service could not be reached until the wait was over.
   */
  async acquire(options: PermitsOptions = {}): Promise<PermitGuard | Held<SemaphoreView>> {
    const { wait = "lease" } = options;
    return this.#acquire(options, checkWait(wait));
  }

  /**
   * Waits for permits, does `body` under them, and gives them back. An error of `body` comes out as it is.
   * `guard.signal` is aborted when the permits are lost, for `body` to stop.
   *
   * @throws {LockHeldError} the wait was over.
   * @throws {LockLostError} `body` came to its end, but the permits were lost meanwhile.
   */
  async withPermits<T>(body: (guard: PermitGuard) => T | Promise<T>, options: PermitsOptions = {}): Promise<T> {
    checkBody(body, "body");
    return under(this.#context, (await this.acquire(options)).granted(), body);
  }

  /**
   * Makes a guard for permits that were acquired elsewhere, by renewing them. One process at a time should do this.
   *
   * @throws {LockLostError} nobody holds them under this lease id any more.
   */
  async resume(handover: Handover, options: ResumePermitsOptions = {}): Promise<PermitGuard> {
    this.#context.closed.throwIfAborted();
    const resumed = this.#resume(handover, options);
    track(this.#context, resumed);
    return resumed;
  }

  async #resume(
    { key, sortKey, leaseId, sequence: known }: Handover,
    options: ResumePermitsOptions,
  ): Promise<PermitGuard> {
    const { service } = this.#context;
    if (key !== this.key || sortKey !== this.#sortKey)
      throw new InvalidRequestError(`The semaphore is ${JSON.stringify(this.key)}, not ${JSON.stringify(key)}.`, "key");
    const leaseDurationMs = options.lease === undefined ? undefined : checkLease(options.lease);
    const { answer, sentAt, sequence } = await renewOnce(
      this.#context,
      { key, sortKey, leaseId, leaseDurationMs },
      (request, sendOptions) => service.ask("semaphore-heartbeat", request, sendOptions),
      { ...options, sequence: known },
    );
    checkGuardOptions(options, answer.leaseDurationMs);
    const grant = { ...answer, key, sortKey, leaseId, sequence, capacity: this.capacity, outcome: "resumed" as const };
    return new PermitGuard(this.#context, grant, sentAt, options);
  }

  async #acquire(options: PermitsOptions, wait: Bound | undefined): Promise<PermitGuard | Held<SemaphoreView>> {
    const { key, capacity } = this;
    const permits = options.permits ?? this.#permits;
    return acquirePermits(this.#context, { key, sortKey: this.#sortKey, capacity, permits }, options, wait);
  }
}

/** The writer's side of a read/write lock. */
class Writer extends Semaphore {
  override async tryAcquire(options: TryPermitsOptions = {}): Promise<PermitGuard | Held<SemaphoreView>> {
    return exclusive(await super.tryAcquire(options));
  }

  override async acquire(options: PermitsOptions = {}): Promise<PermitGuard | Held<SemaphoreView>> {
    return exclusive(await super.acquire(options));
  }
}

/** Refuses a grant beside which others fit: the lock was made with more permits, or got more. */
async function exclusive(result: PermitGuard | Held<SemaphoreView>): Promise<PermitGuard | Held<SemaphoreView>> {
  if (result.kind === "held" || result.permits === result.capacity) return result;
  const { key, capacity } = result;
  await result[Symbol.asyncDispose]();
  throw new InvalidRequestError(
    `The read/write lock ${JSON.stringify(key)} has the capacity ${capacity}, and a writer needs all of it.`,
    "capacity",
  );
}

/**
 * A lock that many readers hold at a time, or one writer. There is no upgrade from reader to writer.
 * Made by {@link Client.readWriteLock}.
 */
export class ReadWriteLock {
  readonly #reader: Semaphore;
  readonly #writer: Writer;

  /** @internal */
  constructor(context: Context, key: string, capacity: number, options: SemaphoreOptions) {
    this.#reader = new Semaphore(context, key, capacity, options);
    this.#writer = new Writer(context, key, capacity, { ...options, permits: capacity });
  }

  /** The readers' side: one permit for each. */
  read(): Semaphore {
    return this.#reader;
  }

  /** The writer's side: all permits. */
  write(): Semaphore {
    return this.#writer;
  }
}
