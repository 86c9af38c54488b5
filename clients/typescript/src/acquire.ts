/** Acquiring a lock: requests, polls and takeovers (rules C1, C4, C5, C6 and C10). */
import { type Context, track } from "./context.js";
import { isAboutItsNumber, isRetryable, isTransient, LeaseholdError, LockHeldError, LockLostError, TooLateError, UnavailableError } from "./errors.js";
import { checkGuardOptions, Guard, type GuardOptions } from "./guard.js";
import { Held } from "./held.js";
import { Lease } from "./lease.js";
import { Numbers } from "./numbers.js";
import { type CallOptions, checkLease } from "./options.js";
import { LAST_LOOK_MS, pollPause, requestTimeout, retryPause, returnPause, type Wait, WaitBudget } from "./pacing.js";
import { toWire } from "./payload.js";
import { type Answers, type Requests, retrying } from "./service.js";
import { at, abortable, LinkedController, sleepUntil } from "./timers.js";

/** Options of `tryAcquire`. */
export interface TryAcquireOptions extends CallOptions, GuardOptions {
  /** For people to read: 1 to 1024 bytes. Default: the client's. */
  ownerName?: string | undefined;
  /** How long others must see no heartbeat before they may take over, in milliseconds: 100 to 86400000. Default: the client's. */
  lease?: number | undefined;
  /** The payload to store, at most 256 KiB. Default: what the row has stays. */
  data?: string | Uint8Array | undefined;
  /** If false, the payload is stored only where the row has none. Default: true. */
  replaceData?: boolean | undefined;
  /** If true, a missing row is refused with {@link LockNotFoundError}. Default: false. */
  onlyIfExists?: boolean | undefined;
  /** Further attributes of the row, at most 50. */
  attributes?: Record<string, unknown> | undefined;
  /**
   * How a dead holder is noticed: `"rvn"`, by this client's own observation of its versions; `"clock"`, by the servers' clocks, at
   * once and with trust in them. Default: `"rvn"`.
   */
  staleness?: "rvn" | "clock" | undefined;
}

/** Options of `acquire` and `withLock`. */
export interface AcquireOptions extends TryAcquireOptions {
  /** How long to wait. Default: `"lease"`. */
  wait?: Wait | undefined;
}

type AcquireBody = Omit<Requests["acquire"], "sequence" | "requestId">;

/** One lease id, from the first request that carries it to a guard or to nothing. */
class Acquisition {
  /** The version that the last request named. */
  named: string | null | undefined;
  readonly #leaseId: string;
  readonly #numbers: Numbers<AcquireBody>;
  readonly #lease = new Lease();
  #underWay: Promise<Guard> | undefined;
  /** The first grant tells whom the holder succeeds, also where it arrived too late to be of use. */
  #told: Pick<Answers["acquire"], "outcome" | "previousOwnerName"> | undefined;

  constructor(
    private readonly context: Context,
    private readonly key: string,
    private readonly options: TryAcquireOptions,
    private readonly leaseDuration: number,
  ) {
    this.#leaseId = context.runtime.uuid();
    this.#numbers = new Numbers(context.runtime);
  }

  /** Sends one request. With the version that was seen for its whole lease, it takes over. */
  ask(observed: string | undefined): Promise<Guard> {
    this.#underWay = this.#ask(observed);
    return this.#underWay;
  }

  async #ask(observed: string | undefined): Promise<Guard> {
    const { service, runtime, observations, ownerName } = this.context;
    const { key, options, leaseDuration } = this;
    const { sortKey } = options;
    const { request } = this.#numbers.take({
      key,
      sortKey,
      ownerName: options.ownerName ?? ownerName,
      leaseId: this.#leaseId,
      leaseDurationMs: leaseDuration,
      observedRecordVersionNumber: observed,
      staleness: options.staleness,
      ...toWire(options.data),
      replaceData: options.replaceData,
      onlyIfExists: options.onlyIfExists,
      attributes: options.attributes,
    });
    this.named = request.observedRecordVersionNumber;
    this.#lease.send(request.sequence, leaseDuration, runtime.now());
    const timeout = requestTimeout(leaseDuration);
    const answer = await this.#numbers.send(request, (numbered) => service.ask("acquire", numbered, { timeout }));
    this.#lease.renewed(answer.leaseDurationMs);
    this.#told ??= answer;
    if (this.#lease.validUntil <= runtime.now()) throw new TooLateError();
    observations.forget(key, sortKey);
    const { outcome, previousOwnerName } = this.#told;
    const grant = { ...answer, outcome, previousOwnerName, key, sortKey, leaseId: this.#leaseId, sequence: this.#numbers.last };
    return new Guard(this.context, grant, this.#lease, options);
  }

  /** Releases whatever may have been granted, once the last request has ended. */
  async abandon(): Promise<void> {
    const { service, runtime } = this.context;
    const guard = await this.#underWay?.catch(() => undefined);
    if (guard) {
      await guard.release();
    } else if (this.#told || this.#numbers.isOpen) {
      const request = { key: this.key, sortKey: this.options.sortKey, leaseId: this.#leaseId };
      await retrying(runtime, (sendOptions) => service.ask("release", request, sendOptions), { lease: this.leaseDuration, background: true });
    }
  }
}

/** Asks for the lock: once, or as long as `wait` says. */
export function acquire(context: Context, key: string, options: TryAcquireOptions, wait: Wait | undefined): Promise<Guard | Held> {
  const { runtime, telemetry } = context;
  const begunAt = runtime.now();
  const result = telemetry.trace(wait === undefined ? "try-acquire" : "wait", key, () => poll(context, key, options, wait));
  const measured = (outcome: string): void => {
    telemetry.record({ name: "wait", duration: runtime.now() - begunAt, result: outcome });
  };
  result.then(
    ({ kind }) => {
      measured(kind);
    },
    (error: unknown) => {
      measured(error instanceof LeaseholdError ? error.kind : "aborted");
    },
  );
  track(context, result);
  return result;
}

async function poll(context: Context, key: string, options: TryAcquireOptions, wait: Wait | undefined): Promise<Guard | Held> {
  const { runtime, observations } = context;
  const { sortKey } = options;
  const lease = checkLease(options.lease ?? context.lease);
  checkGuardOptions(options, lease);
  const budget = wait === undefined ? undefined : new WaitBudget(wait, context.waitMargin, runtime.now());
  const stop = new LinkedController(options.signal, context.closed);
  let acquisition = new Acquisition(context, key, options, lease);
  let guard: Guard | undefined;
  /** The last useful answer, and the number of requests without one since. */
  let held: Held | undefined;
  let failures = 0;
  try {
    stop.signal.throwIfAborted();
    if (budget) await giveWay(context, key, sortKey, budget.deadline, stop.signal);
    for (;;) {
      stop.signal.throwIfAborted();
      let next: number;
      const left = budget ? budget.deadline - runtime.now() : Infinity;
      const cutAt = runtime.now() + requestTimeout(lease, left, LAST_LOOK_MS);
      // The service takes one way of judging or the other.
      const observed = options.staleness === "clock" ? undefined : observations.stale(key, sortKey);
      try {
        guard = await answerBy(context, acquisition.ask(observed), cutAt, stop.signal);
        return guard;
      } catch (error) {
        stop.signal.throwIfAborted();
        const now = runtime.now();
        if (error instanceof LockHeldError) {
          held = new Held(error);
          failures = 0;
          const { recordVersionNumber, leaseDurationMs } = error.lock;
          const staleFrom = observations.found(key, sortKey, recordVersionNumber, leaseDurationMs);
          budget?.found(recordVersionNumber, leaseDurationMs, now);
          if (!budget || now >= budget.deadline) return held;
          const pollAt = now + pollPause(context.pollInterval, error.retryAfter, runtime.random());
          // One last look when the wait is over, and one as soon as the lock may be taken over.
          next = Math.min(pollAt, budget.deadline);
          if (options.staleness !== "clock" && recordVersionNumber !== acquisition.named) next = Math.min(next, staleFrom);
        } else if (budget && (isRetryable(error) || error instanceof LockLostError)) {
          failures += 1;
          next = now + (isAboutItsNumber(error) ? 0 : retryPause(failures, isTransient(error) ? error.retryAfter : 0, runtime.random()));
          if (next >= budget.deadline) {
            // Only the last look failed: the answer before it tells who has the lock.
            if (held && failures === 1 && isTransient(error)) return held;
            throw error;
          }
          // An operator broke a lock that a lost answer had granted: the lease id has ended.
          if (error instanceof LockLostError) acquisition = new Acquisition(context, key, options, lease);
        } else {
          throw error;
        }
      }
      await sleepUntil(runtime, next, stop.signal);
    }
  } finally {
    stop.unlink();
    if (!guard) track(context, acquisition.abandon());
  }
}

/** Pauses one poll after this client's own release of the key: otherwise two clients that come back at once starve each other. */
async function giveWay(context: Context, key: string, sortKey: string | undefined, deadline: number, signal: AbortSignal): Promise<void> {
  const { runtime, releases, pollInterval } = context;
  const releasedAt = releases.get(key, sortKey);
  if (releasedAt === undefined) return;
  const pause = returnPause(runtime.now() - releasedAt, pollInterval, runtime.random());
  if (pause > 0) await sleepUntil(runtime, Math.min(runtime.now() + pause, deadline), signal);
}

/** Returns the answer, if it comes in time. The request goes on either way: it must have ended before it can be undone. */
async function answerBy(context: Context, answer: Promise<Guard>, time: number, signal: AbortSignal): Promise<Guard> {
  const over = new LinkedController(signal);
  const cancel = at(context.runtime, time, () => {
    over.abort(new UnavailableError("The service has not answered in time."));
  });
  try {
    return await abortable(answer, over.signal);
  } finally {
    cancel();
    over.unlink();
  }
}
