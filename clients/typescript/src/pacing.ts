/** How long to wait for what: the pauses, bounds and time-outs of rules C4, C5 and C7. All in milliseconds. */

/** For a request, before it counts as unanswered. */
const LONGEST_REQUEST_MS = 5000;
/** Below this, a slow network would never let a short lease be renewed. */
export const SHORTEST_REQUEST_MS = 200;
/** For one call of a transaction, before it counts as unanswered: the service may wait for other transactions for ten seconds. */
export const TRANSACTION_CALL_MS = 15_000;
/** For a release, a look or a break, with all that is tried again. */
export const OPERATION_BOUND_MS = 10_000;

/** Time-out of one request for, or under, a lease; of any other where there is none. */
export function requestTimeout(lease = Infinity): number {
  return Math.max(SHORTEST_REQUEST_MS, Math.min(LONGEST_REQUEST_MS, lease / 4));
}

/** Before request number `failures` + 1, after so many without a useful answer (from 1). `random` is from 0 to below 1. */
export function retryPause(failures: number, retryAfter: number, random: number): number {
  const ceiling = Math.min(100 * 2 ** (failures - 1), 2000);
  return Math.max(retryAfter, random * ceiling);
}

/** The longest pause before the next try of a heartbeat, with so much of the lease left: patience must not cost the lock. */
export function heartbeatPatience(remaining: number): number {
  // Nothing is left to lose for a holder that holds on all the same.
  return remaining > 0 ? remaining / 3 : Infinity;
}

/** Between two polls of a held lock: longer by up to a quarter, so that waiters do not move in step. */
export function pollPause(pollInterval: number, retryAfter: number, random: number): number {
  return Math.max(pollInterval, retryAfter) * (1 + random / 4);
}

/** Between two heartbeats: shorter by up to a tenth, so that holders do not move in step. */
export function heartbeatPause(interval: number, random: number): number {
  return interval * (1 - random / 10);
}

/**
 * How long to wait for a held lock.
 *
 * * a number of milliseconds, `Infinity` for no bound;
 * * `"lease"`: one lease of the holder that is found, plus a margin: enough to outlive one that died before the wait began;
 * * `"extend"`: the same, and again whenever the holder gave a sign of life or the lock changed hands.
 */
export type Wait = number | "lease" | "extend";

/** The bound of one wait. */
export class WaitBudget {
  /** On the monotonic clock. No request is begun after it. */
  deadline: number;
  #seen: string | undefined;

  constructor(
    private readonly wait: Wait,
    private readonly margin: number,
    ownLease: number,
    now: number,
  ) {
    // Until the holder's lease is known, one's own is the best guess.
    this.deadline = now + (typeof wait === "number" ? wait : ownLease + margin);
  }

  /** The lock was found held, under this version and lease. */
  found(recordVersionNumber: string, lease: number, now: number): void {
    const first = this.#seen === undefined;
    const moved = this.#seen !== recordVersionNumber;
    this.#seen = recordVersionNumber;
    if ((this.wait === "lease" && first) || (this.wait === "extend" && moved)) this.deadline = now + lease + this.margin;
  }
}
