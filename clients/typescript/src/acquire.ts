/** From "I want this lock" to a guard, or to the word that someone else has it (rules C1, C4, C5 and C6). */
import { type Context, track } from "./context.js";
import { isTransient, LockHeldError, LockLostError, UnavailableError } from "./errors.js";
import { checkGuardOptions, Guard, type GuardOptions } from "./guard.js";
import { Held } from "./held.js";
import { Lease } from "./lease.js";
import { type CallOptions, checkLease } from "./options.js";
import { pollPause, requestTimeout, retryPause, SHORTEST_REQUEST_MS, type Wait, WaitBudget } from "./pacing.js";
import { toWire } from "./payload.js";
import { retrying } from "./service.js";
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

/** One lease id, from the first request that carries it to a guard or to nothing. */
class Acquisition {
  readonly #leaseId: string;
  readonly #lease = new Lease();
  #underWay: Promise<Guard> | undefined;
  #granted = false;

  constructor(
    private readonly context: Context,
    private readonly key: string,
    private readonly options: TryAcquireOptions,
    private readonly leaseDuration: number,
  ) {
    this.#leaseId = context.runtime.uuid();
  }

  /** One request; with the version that was seen for its whole lease, it takes over. */
  ask(observed: string | undefined): Promise<Guard> {
    this.#underWay = this.#ask(observed);
    return this.#underWay;
  }

  async #ask(observed: string | undefined): Promise<Guard> {
    const { service, runtime, observations, ownerName } = this.context;
    const { key, options, leaseDuration } = this;
    const { sortKey } = options;
    this.#lease.begin(leaseDuration, runtime.now());
    try {
      const answer = await service.ask(
        "acquire",
        {
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
        },
        { timeout: requestTimeout(leaseDuration) },
      );
      this.#granted = true;
      this.#lease.renewed(answer.leaseDurationMs);
      if (this.#lease.validUntil <= runtime.now()) throw new UnavailableError("The grant arrived after its lease had run out.");
      observations.forget(key, sortKey);
      return new Guard(this.context, { ...answer, key, sortKey, leaseId: this.#leaseId }, this.#lease, options);
    } catch (error) {
      if (isTransient(error)) this.#lease.gaveUp();
      else this.#lease.refused();
      throw error;
    }
  }

  /** Whoever stops asking leaves nothing behind: what may have been granted is released, when the request has ended. */
  async abandon(): Promise<void> {
    const { service, runtime } = this.context;
    const guard = await this.#underWay?.catch(() => undefined);
    if (guard) {
      await guard.release();
    } else if (this.#granted || this.#lease.unanswered) {
      const request = { key: this.key, sortKey: this.options.sortKey, leaseId: this.#leaseId };
      await retrying(runtime, (sendOptions) => service.ask("release", request, sendOptions), { lease: this.leaseDuration, background: true });
    }
  }
}

/** Asks for the lock: once, or as long as `wait` says. */
export function acquire(context: Context, key: string, options: TryAcquireOptions, wait: Wait | undefined): Promise<Guard | Held> {
  const result = poll(context, key, options, wait);
  track(context, result);
  return result;
}

async function poll(context: Context, key: string, options: TryAcquireOptions, wait: Wait | undefined): Promise<Guard | Held> {
  const { runtime, observations } = context;
  const { sortKey } = options;
  const lease = checkLease(options.lease ?? context.lease);
  checkGuardOptions(options, lease);
  const budget = wait === undefined ? undefined : new WaitBudget(wait, context.waitMargin, lease, runtime.now());
  const stop = new LinkedController(options.signal, context.closed);
  let acquisition = new Acquisition(context, key, options, lease);
  let guard: Guard | undefined;
  /** The last useful answer, and how many requests had none since. */
  let held: Held | undefined;
  let failures = 0;
  try {
    for (;;) {
      stop.signal.throwIfAborted();
      let next: number;
      // The wait bounds all requests but the first, which may have to wake up a service that scales to zero.
      const begun = held !== undefined || failures > 0;
      const cutAt = budget && begun ? Math.max(budget.deadline, runtime.now() + SHORTEST_REQUEST_MS) : Infinity;
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
          if (options.staleness !== "clock" && recordVersionNumber !== observed) next = Math.min(next, staleFrom);
        } else if (budget && (isTransient(error) || error instanceof LockLostError)) {
          // Cut off by the end of the wait, and not by a service that fails: what was known before is still the best answer.
          if (error instanceof WaitOver && held && failures === 0) return held;
          failures += 1;
          next = now + retryPause(failures, isTransient(error) ? error.retryAfter : 0, runtime.random());
          if (next >= budget.deadline) throw error;
          // A lock that a lost answer had granted was broken since: its lease id has ended.
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

class WaitOver extends UnavailableError {
  constructor() {
    super("The service has not answered before the wait was over.");
  }
}

/** The answer, if it comes in time. The request goes on either way: it must have ended before it can be undone. */
async function answerBy(context: Context, answer: Promise<Guard>, time: number, signal: AbortSignal): Promise<Guard> {
  const over = new LinkedController(signal);
  const cancel = at(context.runtime, time, () => {
    over.abort(new WaitOver());
  });
  try {
    return await abortable(answer, over.signal);
  } finally {
    cancel();
    over.unlink();
  }
}
