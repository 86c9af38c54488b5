/** Acquiring one lock: polls or watches, and takeovers (rules C1, C4, K1). */
import type { Duration } from "./duration.js";
import { refuseDeadlock } from "./flow.js";
import { delayOf } from "./holding.js";
import type { Bound } from "./pacing.js";
import { Acquisition, pursue } from "./acquisition.js";
import type { Context } from "./context.js";
import type { LockHeldError } from "./errors.js";
import { Guard } from "./guard.js";
import type { Held } from "./held.js";
import { checkGuardOptions, type GuardOptions, type ReleaseOutcome } from "./holding.js";
import { type Lock, lockFromWire } from "./lock.js";
import { type CallOptions, checkLease } from "./options.js";
import { pollPause, requestTimeout, type Wait, type WaitBudget } from "./pacing.js";
import { Patience } from "./patience.js";
import { toWire } from "./data.js";
import type { Answers, Requests, SendOptions } from "./service.js";
import { sleepUntil } from "./timers.js";
import { watch, watches } from "./watching.js";

/** Options of `tryAcquire`. */
export interface TryAcquireOptions extends CallOptions, GuardOptions {
  /** The owner, for people to read: 1 to 1024 bytes. Default: the client's. */
  ownerName?: string | undefined;
  /**
   * The time in which others must see no heartbeat before they may take over, in milliseconds: 100 to
   * 86400000. Default: the client's.
   */
  lease?: Duration | undefined;
  /** The payload to store, at most 256 KiB. Default: the row's payload stays. */
  data?: string | Uint8Array | undefined;
  /** If false, the payload is stored only if the row has none. Default: true. */
  replaceData?: boolean | undefined;
  /** If true, a missing row is refused with {@link LockNotFoundError}. Default: false. */
  onlyIfExists?: boolean | undefined;
  /**
   * The run of a recurring job that the lock is for, such as `2026-11-21T02`. Refused with {@link
   * AlreadyDoneError} if it, or a later one, was completed.
   */
  occurrence?: string | undefined;
  /**
   * If true, the occurrence counts as completed from the acquire on: a failed run is not tried again.
   * Default: false.
   */
  atMostOnce?: boolean | undefined;
  /** Additional attributes of the row, at most 50. */
  attributes?: Record<string, unknown> | undefined;
  /**
   * The judge of a dead holder: `"rvn"`, this client's own observation of its versions; `"clock"`, the
   * servers' clocks, without waiting. Default: `"rvn"`.
   */
  staleness?: "rvn" | "clock" | undefined;
}

/** Options of `acquire` and `withLock`. */
export interface AcquireOptions extends TryAcquireOptions {
  /** The bound of the wait. Default: `"lease"`. */
  wait?: Wait | undefined;
}

/** Options of `withLock` and `locked`. */
export interface ScopeOptions extends AcquireOptions {
  /**
   * Uses the guard of the scope around this one, where that holds the lock, and leaves its release to that scope.
   * Default: false, and such a scope is refused with {@link WouldDeadlockError}.
   */
  reentrant?: boolean | undefined;
}

type AcquireBody = Omit<Requests["acquire"], "sequence" | "requestId">;

/** One lease id for one lock. */
class LockAcquisition extends Acquisition<Guard, Lock, AcquireBody> {
  /** The version that the last request named. */
  #named: string | null | undefined;
  /** The time from which the found lock is stale, on the monotonic clock. */
  #staleFrom = Infinity;
  readonly #patience: Patience;
  /**
   * The outcome of the first grant, which names the previous owner even if that grant arrived too late to be
   * of use.
   */
  #told: Pick<Answers["acquire"], "outcome" | "previousOwnerName"> | undefined;

  constructor(
    context: Context,
    private readonly key: string,
    private readonly options: TryAcquireOptions,
    leaseDuration: number,
    leaseId?: string,
  ) {
    super(context, leaseDuration, delayOf(options), 1, leaseId);
    const target = { key, sortKey: options.sortKey };
    this.#patience = new Patience(context, target, options.ownerName ?? context.ownerName);
  }

  protected async send(): Promise<Guard> {
    const { service, observations, ownerName } = this.context;
    const { key, options, leaseId, leaseDuration } = this;
    const { sortKey } = options;
    const { request } = this.take({
      key,
      sortKey,
      ownerName: options.ownerName ?? ownerName,
      leaseId,
      leaseDurationMs: leaseDuration,
      // A version that was seen for its whole lease is taken over. The service takes one kind of judge or the
      // other.
      observedRecordVersionNumber: options.staleness === "clock" ? undefined : observations.stale(key, sortKey),
      staleness: options.staleness,
      ...toWire(options.data),
      replaceData: options.replaceData,
      onlyIfExists: options.onlyIfExists,
      attributes: options.attributes,
      occurrence: options.occurrence,
      atMostOnce: options.atMostOnce,
    });
    this.#named = request.observedRecordVersionNumber;
    const answer = await this.counted(request, (numbered, sendOptions) =>
      service.ask("acquire", numbered, sendOptions),
    );
    this.#told ??= answer;
    this.throwIfTooLate();
    observations.forget(key, sortKey);
    const { outcome, previousOwnerName } = this.#told;
    const version = answer.recordVersionNumber;
    const grant = {
      ...answer,
      version,
      outcome,
      previousOwnerName,
      key,
      sortKey,
      leaseId,
      sequence: this.numbers.last,
    };
    return new Guard(this.context, grant, this.sentAt, options);
  }

  found({ lock }: LockHeldError, budget: WaitBudget | undefined): Lock {
    this.#see(lock, budget);
    return lock;
  }

  #see({ recordVersionNumber, leaseDurationMs }: Lock, budget: WaitBudget | undefined): void {
    const { observations, runtime } = this.context;
    this.#staleFrom = observations.found(this.key, this.options.sortKey, recordVersionNumber, leaseDurationMs);
    budget?.found(recordVersionNumber, leaseDurationMs, runtime.now());
  }

  async rest(refusal: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void> {
    const { context, key } = this;
    const { runtime, pollInterval } = context;
    const { staleness, sortKey } = this.options;
    const pollAt = runtime.now() + pollPause(pollInterval, refusal.retryAfter, runtime.random());
    let { lock } = refusal;
    let version = lock.recordVersionNumber;
    this.#patience.saw(lock);
    // A version that was named without success waits for the next poll. If the service judges, it must be
    // asked.
    const staleFrom = (): number => (staleness === "clock" || version === this.#named ? pollAt : this.#staleFrom);
    if (!watches(context)) {
      await sleepUntil(runtime, Math.min(pollAt, budget.deadline, staleFrom()), signal);
      return;
    }
    for (;;) {
      const end = Math.min(staleFrom(), budget.deadline);
      if (runtime.now() >= end) return;
      this.#patience.saw(lock);
      const until = Math.min(end, this.#patience.endsAt(lock));
      const sight = await watch(context, { key, sortKey }, version, until, signal);
      const seen = sight ? sight.lock : await this.#read(signal);
      if (seen?.state !== "held") return;
      lock = seen;
      this.#see(lock, budget);
      version = lock.recordVersionNumber;
    }
  }

  /** Reads the lock in place of a watch that failed. Undefined where the service has no watches, or the read failed too. */
  async #read(signal: AbortSignal): Promise<Lock | undefined> {
    if (!watches(this.context)) return undefined;
    const request = { key: this.key, sortKey: this.options.sortKey };
    try {
      return lockFromWire(await this.context.service.ask("get", request, { timeout: requestTimeout(), signal }));
    } catch {
      signal.throwIfAborted();
      return undefined;
    }
  }

  protected async giveBack(_key: number, sendOptions: SendOptions): Promise<ReleaseOutcome> {
    const request = { key: this.key, sortKey: this.options.sortKey, leaseId: this.leaseId };
    return (await this.context.service.ask("release", request, sendOptions)).outcome;
  }
}

/** Requests the lock for a time, under a lease id that the caller chose, and may have used before. */
export function acquireUnder(
  context: Context,
  key: string,
  leaseId: string,
  options: TryAcquireOptions & { lease: number },
  wait: number,
): Promise<Guard | Held> {
  const lease = checkLease(options.lease);
  const { sortKey, signal } = options;
  const attempt = (): LockAcquisition => new LockAcquisition(context, key, options, lease, leaseId);
  return pursue(context, { key, sortKey, wait, signal }, attempt);
}

/** Requests the lock: once, or for as long as `wait` says. */
export function acquire(
  context: Context,
  key: string,
  options: TryAcquireOptions,
  wait: Bound | undefined,
): Promise<Guard | Held> {
  if (wait !== undefined) refuseDeadlock(context, key, options.sortKey);
  const lease = checkLease(options.lease ?? context.lease);
  checkGuardOptions(options, lease);
  const { sortKey, signal } = options;
  return pursue(
    context,
    { key, sortKey, wait, signal, inLine: true },
    () => new LockAcquisition(context, key, options, lease),
  );
}
